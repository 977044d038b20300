/* SPDX-License-Identifier: BSD-3-Clause */
/* What ibnetdiscover prints, in both forms: blocks (Switch, Ca, Rt, each with a line a port)
 * and one line a port (-p). A cable is named at both its ends, so every line is one direction.
 * One rank a host: the channel adapters whose description begins with the same words ("node1
 * HCA-1", "node1 mlx5_1") are NICs of it. Capacities are data rates: width x rate of a lane. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/import.h"

#define LAT_IB 500

struct ib {
    struct bny_import *im;
    int line, node;  /* the block's device, or -1 */
    char text[1024]; /* the line */
};

static int sniff(const char *text, size_t len)
{
    const char *s = text;

    for (int lines = 0; lines < 200 && *s; lines++) {
        size_t n = strcspn(s, "\n");
        if (!strncmp(s, "vendid=", 7) || !strncmp(s, "Switch\t", 7) || !strncmp(s, "Ca\t", 3))
            return 1;
        if ((!strncmp(s, "CA ", 3) || !strncmp(s, "SW ", 3)) && memchr(s, '(', n))
            return 1;
        if (*s != '#' && n && !isspace((unsigned char)*s))
            return 0;
        s += n + (s[n] == '\n');
    }
    return 0;
}

/* Megabytes of data per second of a lane. */
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

/* "4xHDR" or "4x HDR": 0 where it is none. */
static int64_t cable_rate(const char *s)
{
    char *end;
    long width = strtol(s, &end, 10);

    if (end == s || *end != 'x' || width < 1 || width > 24)
        return 0;
    end++;
    return width * lane_rate(end + strspn(end, " \t"));
}

/* A device by its GUID's digits, as "S-..." does; Ca: a NIC of the host of its description. */
static int device(struct ib *s, int ca, const char *guid, const char *desc, size_t desc_len)
{
    char name[40], host[40];
    int v, h, old;

    snprintf(name, sizeof name, "%s%.24s", ca ? "H-" : "S-", guid);
    old = bny_import_find(s->im, name);
    if (old >= 0)
        return old;
    v = bny_import_node(s->im, name, s->line);
    if (v < 0)
        return v;
    s->im->g->nodes[v].kind = ca ? BNY_NODE_NIC : BNY_NODE_SWITCH;
    if (!ca)
        return v;
    while (desc_len && desc[desc_len - 1] != ' ')
        desc_len--;
    while (desc_len && desc[desc_len - 1] == ' ')
        desc_len--;
    if (desc_len && desc_len < sizeof host)
        snprintf(host, sizeof host, "%.*s", (int)desc_len, desc);
    else
        snprintf(host, sizeof host, "host-%.24s", guid);
    h = bny_import_node(s->im, host, s->line);
    if (h < 0)
        return h;
    if (s->im->g->nodes[h].host < 0)
        s->im->g->nodes[h].host = h;
    s->im->g->nodes[v].host = s->im->g->nodes[h].host;
    return v;
}

/* The NIC that a node with links of that rate is passes them on to its host, both ways. */
static int cable(struct ib *s, int from, int to, int64_t rate)
{
    struct bny_ratio cap = { rate, 1 };
    struct bny_node *nodes = s->im->g->nodes;
    int e = bny_import_link(s->im, from, to, cap, LAT_IB, s->line);

    if (!e && nodes[from].kind == BNY_NODE_NIC) {
        e = bny_import_link(s->im, nodes[from].host, from, cap, 0, s->line);
        if (!e)
            e = bny_import_link(s->im, from, nodes[from].host, cap, 0, s->line);
    }
    return e;
}

/* From '"' to '"': the text between them, cut there. NULL: none. */
static char *quoted(char **s)
{
    char *a = strchr(*s, '"'), *b = a ? strchr(a + 1, '"') : NULL;

    if (!b)
        return NULL;
    *b = 0;
    *s = b + 1;
    return a + 1;
}

/* SHARP's aggregation nodes are adapters of switches, no hosts. */
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

/* One end of a -p line: "SW  2 19 0x0002c9 " at *s. Its kind's letter, or 0; *s behind the
 * GUID, which is cut. */
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
    desc = strstr(t, "( '");
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

    if (!*t || *t == '#')
        return 0;
    if (!strncmp(t, "Switch\t", 7) || !strncmp(t, "Ca\t", 3) || !strncmp(t, "Rt\t", 3))
        return block(s);
    if (*t == '[')
        return port(s);
    if (!strncmp(t, "SW ", 3) || !strncmp(t, "CA ", 3) || !strncmp(t, "RT ", 3))
        return port_line(s);
    /* vendid=, devid=, sysimgguid=, switchguid=, caguid=, DR path slid ... */
    return strchr(t, '=') || !strncmp(t, "DR path", 7)
               ? 0
               : bny_import_fail(s->im, s->line,
                                 "\"%.40s\" is nothing that ibnetdiscover prints", t);
}

static int parse(struct bny_import *im)
{
    struct ib *s = calloc(1, sizeof *s);
    const char *text = im->text, *stop = im->text + im->len;
    int e = 0;

    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for %s", im->file);
    s->im = im;
    s->node = -1;
    im->unit_Bps = 1e6;
    im->reduce = 1;
    while (text < stop && !e) {
        const char *nl = memchr(text, '\n', (size_t)(stop - text));
        size_t len = (size_t)((nl ? nl : stop) - text);
        s->line++;
        if (len >= sizeof s->text) {
            e = bny_import_fail(im, s->line, "longer than %zu bytes", sizeof s->text - 1);
            break;
        }
        memcpy(s->text, text, len);
        while (len && isspace((unsigned char)s->text[len - 1]))
            len--;
        s->text[len] = 0;
        text += (size_t)((nl ? nl : stop) - text) + 1;
        e = line(s);
    }
    free(s);
    return e;
}

const struct bny_importer bny_import_ib = { "ibnetdiscover", sniff, parse };
