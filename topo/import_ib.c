/* SPDX-License-Identifier: BSD-3-Clause */
/* Output of ibnetdiscover, in both forms: blocks (Switch, Ca, Rt, each with a line per port)
 * and one line per port (-p); blanks may replace tabs, and precede lines, as in text copied
 * from a terminal. A cable is listed at both ends, so every line is one direction. One rank per
 * host: channel adapters whose description begins with the same words ("node1 HCA-1", "node1
 * mlx5_1") are its NICs. Two adapters with identical descriptions are on different hosts, as
 * hosts number theirs: such descriptions ("localhost mlx5_0", the firmware's default) identify
 * no host, and each card becomes one. Capacities are data rates: width x rate of a lane. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "topo/import.h"

#define LAT_IB    500
#define GUID_SIZE 25
#define DESC_SIZE 65

/* A channel adapter; its number is its node. */
struct adapter {
    char guid[GUID_SIZE], desc[DESC_SIZE];
    char card[GUID_SIZE]; /* the system image GUID, common to a card's adapters; or "" */
    int node, alike; /* alike: another has the same description, or one of its host's does */
};

struct ib {
    struct bny_import *im;
    int line, node;       /* the block's device, or -1 */
    int collect;          /* the first pass, which only collects adapters */
    char card[GUID_SIZE]; /* of the next block */
    struct adapter *adapters;
    int nadapters, cap;
    char text[1024]; /* the line */
};

/* Does the line begin with that word, followed by a blank or tab? */
static int begins(const char *line, const char *word)
{
    size_t n = strlen(word);

    return !strncmp(line, word, n) && (line[n] == ' ' || line[n] == '\t');
}

static int is_block(const char *line)
{
    return begins(line, "Switch") || begins(line, "Ca") || begins(line, "Rt");
}

static int is_port_line(const char *line)
{
    const char *guid;

    if (!begins(line, "SW") && !begins(line, "CA") && !begins(line, "RT"))
        return 0;
    guid = strstr(line, " 0x");
    return guid && guid < line + strcspn(line, "\n");
}

/* Headings of ibnetdiscover -g. */
static int is_heading(const char *line)
{
    return begins(line, "Chassis") || begins(line, "Non-Chassis");
}

static int ib_sniff(const char *text, size_t len)
{
    const char *s = text;

    for (int lines = 0; lines < 200 && *s; lines++) {
        const char *t = s + strspn(s, " \t\r");
        size_t n = strcspn(t, "\n");
        if (!strncmp(t, "vendid=", 7) || (is_block(t) && memchr(t, '"', n)) ||
            is_port_line(t) || is_heading(t))
            return 1;
        if (*t != '#' && *t != '\n' && *t)
            return 0;
        s += strcspn(s, "\n");
        s += *s == '\n';
    }
    return 0;
}

/* Data rate of a lane in megabytes per second. */
static int64_t lane_rate(const char *name)
{
    static const struct {
        char name[6];
        int64_t rate;
    } rates[] = { { "SDR", 250 },    { "DDR", 500 },   { "QDR", 1000 },
                  { "FDR10", 1250 }, { "FDR", 1705 },  { "EDR", 3125 },
                  { "HDR", 6250 },   { "NDR", 12500 }, { "XDR", 25000 } };

    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        size_t n = strlen(rates[i].name);
        if (!strncmp(name, rates[i].name, n) && !isalnum((unsigned char)name[n]))
            return rates[i].rate;
    }
    return 0;
}

/* "4xHDR" or "4x HDR": 0 if malformed. */
static int64_t cable_rate(const char *s)
{
    char *end;
    long width = strtol(s, &end, 10);

    if (end == s || *end != 'x' || width < 1 || width > 24)
        return 0;
    end++;
    return width * lane_rate(end + strspn(end, " \t"));
}

static int add_adapter(struct ib *s, const char *guid, const char *desc, size_t desc_len)
{
    char name[40];
    struct adapter *a;
    int v;

    snprintf(name, sizeof name, "H-%.24s", guid);
    v = bny_import_node(s->im, name, s->line);
    if (v < s->nadapters)
        return v;
    if (s->nadapters == s->cap) {
        int more = s->cap ? 2 * s->cap : 256;
        void *p = reallocarray(s->adapters, (size_t)more, sizeof *s->adapters);
        if (!p)
            return bny_fail(BANYAN_ENOMEM, "no memory for the adapters of %s", s->im->file);
        s->adapters = p;
        s->cap = more;
    }
    a = &s->adapters[s->nadapters++];
    *a = (struct adapter){ .node = v };
    snprintf(a->guid, sizeof a->guid, "%s", guid);
    snprintf(a->desc, sizeof a->desc, "%.*s", (int)(desc_len < 64 ? desc_len : 64), desc);
    s->im->g->nodes[v].kind = BNY_NODE_NIC;
    return v;
}

/* Length of the host's words in a description; 0: none. */
static size_t host_words(const char *desc)
{
    size_t len = strlen(desc);

    while (len && desc[len - 1] != ' ')
        len--;
    while (len && desc[len - 1] == ' ')
        len--;
    return len < 40 ? len : 0;
}

/* Sorts by host. */
static int by_host(const void *a, const void *b)
{
    const struct adapter *x = *(struct adapter *const *)a, *y = *(struct adapter *const *)b;
    size_t n = host_words(x->desc), m = host_words(y->desc);
    int order = memcmp(x->desc, y->desc, n < m ? n : m);

    return order ? order : n != m ? (n > m) - (n < m) : strcmp(x->desc, y->desc);
}

static int same_host(const struct adapter *a, const struct adapter *b)
{
    size_t n = host_words(a->desc);

    return n == host_words(b->desc) && !memcmp(a->desc, b->desc, n);
}

/* Marks the adapters whose descriptions identify no host. */
static int find_alike(struct ib *s)
{
    struct adapter **sorted = calloc((size_t)s->nadapters + 1, sizeof(struct adapter *));
    const struct adapter *example = NULL;
    int alike = 0;

    if (!sorted)
        return bny_fail(BANYAN_ENOMEM, "no memory for the adapters of %s", s->im->file);
    for (int i = 0; i < s->nadapters; i++)
        sorted[i] = &s->adapters[i];
    qsort(sorted, (size_t)s->nadapters, sizeof(struct adapter *), by_host);
    for (int first = 0, end; first < s->nadapters; first = end) {
        int twice = 0;
        for (end = first + 1; end < s->nadapters && same_host(sorted[first], sorted[end]);
             end++)
            if (!strcmp(sorted[end]->desc, sorted[end - 1]->desc)) {
                example = twice || example ? example : sorted[end];
                twice = 1;
            }
        for (int i = first; i < end && twice; i++, alike++)
            sorted[i]->alike = 1;
    }
    if (alike)
        bny_warn("%s: the descriptions of %d adapters name no host, as several are called "
                 "\"%s\"; each card is taken for a host of its own",
                 s->im->file, alike, example->desc);
    free(sorted);
    return 0;
}

/* The host of an adapter, which becomes a rank when first seen. */
static int host_of(struct ib *s, const struct adapter *a)
{
    size_t words = a->alike ? 0 : host_words(a->desc);
    char host[40];
    int h;

    if (words)
        snprintf(host, sizeof host, "%.*s", (int)words, a->desc);
    else
        snprintf(host, sizeof host, "host-%s", a->alike && *a->card ? a->card : a->guid);
    h = bny_import_node(s->im, host, s->line);
    if (h >= 0 && s->im->g->nodes[h].host < 0)
        s->im->g->nodes[h].host = h;
    return h;
}

/* A device, named by its GUID's digits as in "S-..."; ca: a NIC of its host. */
static int device(struct ib *s, int ca, const char *guid, const char *desc, size_t desc_len)
{
    char name[40];
    int v, h;

    if (s->collect)
        return ca ? add_adapter(s, guid, desc, desc_len) : 0;
    snprintf(name, sizeof name, "%s%.24s", ca ? "H-" : "S-", guid);
    v = bny_import_node(s->im, name, s->line);
    if (v < 0)
        return v;
    if (!ca)
        s->im->g->nodes[v].kind = BNY_NODE_SWITCH;
    if (!ca || s->im->g->nodes[v].host >= 0)
        return v;
    h = host_of(s, &s->adapters[v]);
    if (h < 0)
        return h;
    s->im->g->nodes[v].host = s->im->g->nodes[h].host;
    return v;
}

/* A NIC passes its links' data to its host at the same rate, in both directions. */
static int cable(struct ib *s, int from, int to, int64_t rate)
{
    struct bny_ratio cap = { rate, 1 };
    struct bny_node *nodes = s->im->g->nodes;
    int e = s->collect ? 0 : bny_import_link(s->im, from, to, cap, LAT_IB, s->line);

    if (!e && !s->collect && nodes[from].kind == BNY_NODE_NIC) {
        e = bny_import_link(s->im, nodes[from].host, from, cap, 0, s->line);
        if (!e)
            e = bny_import_link(s->im, from, nodes[from].host, cap, 0, s->line);
    }
    return e;
}

/* The text between two '"', terminated there. NULL: none. */
static char *quoted(char **s)
{
    char *a = strchr(*s, '"'), *b = a ? strchr(a + 1, '"') : NULL;

    if (!b)
        return NULL;
    *b = 0;
    *s = b + 1;
    return a + 1;
}

/* SHARP's aggregation nodes are adapters of switches, not hosts. */
static int is_host(const char *desc, size_t len)
{
    static const char word[] = "Aggregation Node";

    for (size_t i = 0; i + sizeof word - 1 <= len; i++)
        if (!memcmp(desc + i, word, sizeof word - 1))
            return 0;
    return 1;
}

/* Switch\t36 "S-..."\t# "description" ... */
static int block(struct ib *s)
{
    int ca = s->text[0] == 'C';
    char *rest = s->text, *id = quoted(&rest), *desc = id ? quoted(&rest) : NULL;

    if (!id || strlen(id) < 3)
        return bny_import_fail(s->im, s->line, "a device without its quoted GUID");
    if (!desc)
        desc = id + strlen(id);
    s->node = -1;
    if (ca && !is_host(desc, strlen(desc)))
        return 0;
    s->node = device(s, ca, id + 2, desc, strlen(desc));
    if (s->collect && ca && s->node >= 0)
        memcpy(s->adapters[s->node].card, s->card, sizeof s->card);
    s->card[0] = 0;
    return s->node < 0 ? s->node : 0;
}

/* [1]\t"H-..."[1](guid) \t\t# "description" lid 5 4xFDR */
static int port(struct ib *s)
{
    char *rest = s->text, *id = quoted(&rest), *desc = id ? quoted(&rest) : NULL, *rate = NULL;
    int64_t mbps = 0;
    int peer, ca;

    if (!id || strlen(id) < 3 || !desc)
        return bny_import_fail(s->im, s->line,
                               "a port without its peer's quoted GUID and description");
    ca = id[0] == 'H';
    if (s->node < 0 || (ca && !is_host(desc, strlen(desc))))
        return 0;
    for (char *w = rest; (w = strpbrk(w, " \t")) && !mbps;) {
        rate = w += strspn(w, " \t");
        mbps = cable_rate(rate);
    }
    if (!mbps)
        return bny_import_fail(s->im, s->line,
                               "no width and speed such as 4xHDR at the end of a port's line");
    peer = device(s, ca, id + 2, desc, strlen(desc));
    return peer < 0 ? peer : cable(s, s->node, peer, mbps);
}

/* One end of a -p line: "SW  2 19 0x0002c9 " at *s. Returns its kind's letter, or 0; *s moves
 * behind the GUID, which is terminated. */
static int end_of(char **s, char **guid)
{
    char *t = *s + strspn(*s, " \t"), kind = *t;

    if (strncmp(t, "SW ", 3) && strncmp(t, "CA ", 3) && strncmp(t, "RT ", 3))
        return 0;
    t = strstr(t, "0x");
    if (!t)
        return 0;
    *guid = t + 2;
    t = *guid + strspn(*guid, "0123456789abcdefABCDEF");
    if (t == *guid || !*t)
        return 0;
    *t = 0;
    *s = t + 1;
    return kind;
}

/* SW 2 19 0x0002c9 4x QDR - CA 4 1 0x0002c9 ( 'switch' - 'node1 HCA-1' ); a port without a peer
 * has no "- ...". */
static int port_line(struct ib *s)
{
    char *t = s->text, *guid_a, *guid_b, *dash, *desc, *mid, *stop;
    int a = end_of(&t, &guid_a), b, from, to;
    int64_t mbps;

    if (!a)
        return bny_import_fail(
            s->im, s->line,
            "no port: it begins neither with SW nor with CA nor with RT, lid, port "
            "and 0xGUID");
    t += strspn(t, " \t");
    mbps = cable_rate(t);
    dash = strstr(t, " - ");
    desc = strchr(t, '\'');
    if (!dash || (desc && desc < dash))
        return 0;
    t = dash + 3;
    b = end_of(&t, &guid_b);
    desc = b ? strstr(t, "( '") : NULL;
    mid = desc ? strstr(desc + 3, "' - '") : NULL;
    stop = mid ? strrchr(mid + 5, '\'') : NULL;
    if (!mbps || !stop)
        return bny_import_fail(
            s->im, s->line,
            "no width, speed, peer and ( 'description' - 'description' ) in a "
            "port's line");
    if ((a == 'C' && !is_host(desc, (size_t)(mid - desc))) ||
        (b == 'C' && !is_host(mid, (size_t)(stop - mid))))
        return 0;
    from = device(s, a == 'C', guid_a, desc + 3, (size_t)(mid - desc - 3));
    to = from < 0 ? from : device(s, b == 'C', guid_b, mid + 5, (size_t)(stop - mid - 5));
    return to < 0 ? to : cable(s, from, to, mbps);
}

static int line(struct ib *s)
{
    const char *t = s->text;

    if (!*t || *t == '#' || is_heading(t))
        return 0;
    if (is_block(t))
        return block(s);
    if (*t == '[')
        return port(s);
    if (is_port_line(t))
        return port_line(s);
    if (!strncmp(t, "sysimgguid=", 11))
        snprintf(s->card, sizeof s->card, "%" PRIx64, (uint64_t)strtoull(t + 11, NULL, 16));
    else if (!strncmp(t, "vendid=", 7))
        s->card[0] = 0;
    /* vendid=, devid=, switchguid=, caguid=, DR path slid ... */
    return strchr(t, '=') || !strncmp(t, "DR path", 7)
               ? 0
               : bny_import_fail(s->im, s->line,
                                 "\"%.40s\" is nothing that ibnetdiscover prints", t);
}

static int pass(struct ib *s, int collect)
{
    const char *text = s->im->text, *stop = s->im->text + s->im->len;
    int e = 0;

    s->collect = collect;
    s->line = 0;
    s->node = -1;
    while (text < stop && !e) {
        const char *nl = memchr(text, '\n', (size_t)(stop - text)), *end = nl ? nl : stop;
        s->line++;
        while (text < end && isspace((unsigned char)*text))
            text++;
        while (end > text && isspace((unsigned char)end[-1]))
            end--;
        if ((size_t)(end - text) >= sizeof s->text)
            return bny_import_fail(s->im, s->line, "longer than %zu bytes", sizeof s->text - 1);
        memcpy(s->text, text, (size_t)(end - text));
        s->text[end - text] = 0;
        text = (nl ? nl : stop) + 1;
        e = line(s);
    }
    return e;
}

static int ib_parse(struct bny_import *im)
{
    struct ib *s = calloc(1, sizeof *s);
    int e;

    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for %s", im->file);
    s->im = im;
    im->unit_Bps = 1e6;
    im->reduce = 1;
    e = pass(s, 1);
    if (!e)
        e = find_alike(s);
    if (!e)
        e = pass(s, 0);
    free(s->adapters);
    free(s);
    return e;
}

const struct bny_importer bny_import_ib = { "ibnetdiscover", ib_sniff, ib_parse };
