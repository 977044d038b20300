/* SPDX-License-Identifier: BSD-3-Clause */
/* Edge lists: a line is "src dst [GBps [us [one|both]]]", separated by blanks or commas; 1
 * GB/s, 0 us, both directions by default. Lines with # are comments. "@switch NAME...", "@nic
 * NAME...", "@host N NAME..." and "@rank NAME..." (ranks 0, 1, ... in this order) declare
 * nodes; all others are compute nodes. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/import.h"

#define WORDS_MAX      4096
#define LINE_MAX_BYTES 65536

struct edges {
    struct bny_import *im;
    int line, next_rank;
    char *text, **word; /* the line, cut into words */
    int nwords;
    struct seen {
        int a, b, line, both;
    } * seen; /* the pairs so far, by their smaller end; open addressing */
    int seen_cap, nseen;
};

static int edges_sniff(const char *text, size_t len)
{
    return 1;
}

static int edges_split(struct edges *s, const char *text, size_t len)
{
    char *save = NULL;

    if (len >= LINE_MAX_BYTES)
        return bny_import_fail(s->im, s->line,
                               "longer than %d bytes, which is the most for a line",
                               LINE_MAX_BYTES - 1);
    memcpy(s->text, text, len);
    s->text[len] = 0;
    if (memchr(text, 0, len))
        return bny_import_fail(s->im, s->line, "a zero byte: this is no text");
    s->text[strcspn(s->text, "#")] = 0;
    s->nwords = 0;
    for (char *w = strtok_r(s->text, " \t\r,;", &save); w;
         w = strtok_r(NULL, " \t\r,;", &save)) {
        if (s->nwords == WORDS_MAX)
            return bny_import_fail(s->im, s->line, "more than %d words", WORDS_MAX);
        s->word[s->nwords++] = w;
    }
    return 0;
}

static int directive(struct edges *s)
{
    static const char *const names[] = { "@switch", "@nic", "@host", "@rank" };
    int d = 0, host = 0, first = 1;

    while (d < 4 && strcmp(s->word[0], names[d]))
        d++;
    if (d == 4)
        return bny_import_fail(s->im, s->line,
                               "unknown \"%.40s\": there are @switch, @nic, @host, @rank",
                               s->word[0]);
    if (d == 2) {
        char *end = NULL;
        long v = s->nwords > 1 ? strtol(s->word[1], &end, 10) : -1;
        if (v < 0 || v > 1000000 || *end)
            return bny_import_fail(s->im, s->line,
                                   "@host wants a number from 0 on, then names");
        host = (int)v;
        first = 2;
    }
    for (int i = first; i < s->nwords; i++) {
        int v = bny_import_node(s->im, s->word[i], s->line);
        if (v < 0)
            return v;
        if (d < 2)
            s->im->g->nodes[v].kind = d ? BNY_NODE_NIC : BNY_NODE_SWITCH;
        else if (d == 2)
            s->im->g->nodes[v].host = host;
        else if (s->im->g->nodes[v].rank >= 0)
            return bny_import_fail(s->im, s->line, "node %s has rank %d already", s->word[i],
                                   s->im->g->nodes[v].rank);
        else
            s->im->g->nodes[v].rank = s->next_rank++;
    }
    return 0;
}

/* A cable written once for each end is an error that would double it: detected by its pair. */
static int edges_note(struct edges *s, int a, int b, int both)
{
    int lo = a < b ? a : b, hi = a < b ? b : a, i;
    uint64_t h;

    if (2 * (s->nseen + 1) > s->seen_cap) {
        int cap = s->seen_cap ? s->seen_cap * 2 : 256;
        struct seen *old = s->seen, *more = calloc((size_t)cap, sizeof *more);
        int n = s->seen_cap;
        if (!more)
            return bny_fail(BANYAN_ENOMEM, "no memory for the links of %s", s->im->file);
        s->seen = more;
        s->seen_cap = cap;
        s->nseen = 0;
        for (int k = 0; k < n; k++)
            if (old[k].line) {
                int line = s->line;
                s->line = old[k].line;
                edges_note(s, old[k].a, old[k].b, old[k].both);
                s->line = line;
            }
        free(old);
    }
    h = ((uint64_t)lo << 32 | (uint32_t)hi) * UINT64_C(0x9e3779b97f4a7c15);
    for (i = (int)(h >> 40) & (s->seen_cap - 1); s->seen[i].line;
         i = (i + 1) & (s->seen_cap - 1)) {
        const struct seen *k = &s->seen[i];
        if (k->a == b && k->b == a && (both || k->both))
            return bny_import_fail(
                s->im, s->line,
                "this link is there already, in both directions, since line %d; "
                "write \"one\" behind the latency where a line is one direction",
                k->line);
        if (k->a == a && k->b == b)
            return 0;
    }
    s->seen[i] = (struct seen){ a, b, s->line, both };
    s->nseen++;
    return 0;
}

static int edge(struct edges *s)
{
    struct bny_ratio cap = { 1, 1 };
    int64_t ns = 0;
    int both = 1, a, b, e = 0;

    if (s->nwords < 2 || s->nwords > 5)
        return bny_import_fail(s->im, s->line,
                               "a link is \"src dst [GBps [us [one|both]]]\", not %d words",
                               s->nwords);
    if (s->nwords > 2)
        e = bny_import_number(s->im, &cap, s->word[2], "capacity", s->line);
    if (!e && s->nwords > 3)
        e = bny_import_us(s->im, &ns, s->word[3], s->line);
    if (!e && s->nwords > 4) {
        both = !strcmp(s->word[4], "both");
        if (!both && strcmp(s->word[4], "one"))
            e = bny_import_fail(s->im, s->line, "\"%.40s\" is neither one nor both",
                                s->word[4]);
    }
    if (e)
        return e;
    a = bny_import_node(s->im, s->word[0], s->line);
    b = a < 0 ? a : bny_import_node(s->im, s->word[1], s->line);
    if (b < 0)
        return b;
    e = bny_import_link(s->im, a, b, cap, ns, s->line);
    if (!e && both)
        e = bny_import_link(s->im, b, a, cap, ns, s->line);
    return e ? e : edges_note(s, a, b, both);
}

static int edges_parse(struct bny_import *im)
{
    struct edges s = { .im = im };
    const char *text = im->text, *stop = im->text + im->len;
    int e = 0;

    if (text[strspn(text, " \t\r\n")] == '<')
        return bny_import_fail(
            im, 0, "XML, but neither GraphML nor NCCL's <system> nor hwloc's <topology>");
    s.text = malloc(LINE_MAX_BYTES);
    s.word = malloc(WORDS_MAX * sizeof *s.word);
    if (!s.text || !s.word)
        e = bny_fail(BANYAN_ENOMEM, "no memory for %s", im->file);
    while (text < stop && !e) {
        const char *nl = memchr(text, '\n', (size_t)(stop - text));
        size_t len = (size_t)((nl ? nl : stop) - text);
        s.line++;
        e = edges_split(&s, text, len);
        text += len + 1;
        /* A heading, as written by spreadsheets. */
        if (e || !s.nwords || (s.line == 1 && !strcmp(s.word[0], "src")))
            continue;
        e = s.word[0][0] == '@' ? directive(&s) : edge(&s);
    }
    if (!e && !im->nlinks)
        e = bny_import_fail(im, 0, "no link in it");
    free(s.text);
    free(s.word);
    free(s.seen);
    return e;
}

const struct bny_importer bny_import_edges = { "edges", edges_sniff, edges_parse };
