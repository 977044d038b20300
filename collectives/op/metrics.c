/* SPDX-License-Identifier: BSD-3-Clause */
/* The counters as OpenMetrics text. All of them come from the recorder and the transports. */
#include <stdlib.h>

#include "base/text.h"
#include "collectives/op/observe.h"

struct bny_metrics {
    const struct bny_world *w; /* for what never changes */
    struct bny_counts counts;
    uint64_t sleeps;
    struct bny_traffic peers[]; /* [nranks]; zeros: nothing is counted */
};

struct page {
    FILE *f;
    const struct bny_metrics *m;
    const struct bny_world *w;
    const char *host;
};

struct bny_metrics *bny_metrics_read(struct bny_world *w)
{
    struct bny_metrics *m = calloc(1, sizeof *m + (size_t)w->nranks * sizeof m->peers[0]);

    if (!m)
        return NULL;
    m->w = w;
    m->counts = *bny_recorder_counts(w);
    m->sleeps = atomic_load(&w->sleeps);
    for (int r = 0; r < w->nranks; r++) {
        const struct bny_ep *ep = bny_world_ep(w, r);

        if (ep && ep->ops->traffic)
            ep->ops->traffic(ep, &m->peers[r]);
    }
    return m;
}

static void family(const struct page *p, const char *name, const char *type, const char *unit,
                   const char *help)
{
    fprintf(p->f, "# TYPE banyan_%s %s\n", name, type);
    if (unit)
        fprintf(p->f, "# UNIT banyan_%s %s\n", name, unit);
    fprintf(p->f, "# HELP banyan_%s %s\n", name, help);
}

/* The part in front of a sample's value. key: of its own label; NULL: it has none. */
static void sample(const struct page *p, const char *name, const char *key, const char *value)
{
    const uint8_t *job = p->w->job;

    fprintf(p->f, "banyan_%s{job=\"%02x%02x%02x%02x\",rank=\"%d\",host=", name, job[0], job[1],
            job[2], job[3], p->w->rank);
    bny_json_text(p->f, p->host);
    if (key) {
        fprintf(p->f, ",%s=", key);
        bny_json_text(p->f, value);
    }
    fputs("} ", p->f);
}

static void number(const struct page *p, const char *name, const char *key, const char *value,
                   uint64_t n)
{
    sample(p, name, key, value);
    fprintf(p->f, "%llu\n", (unsigned long long)n);
}

/* ---- operations ---- */

static const char *name_of(int kind)
{
    return kind == BNY_RECORDED_RECV ? "recv"
           : kind == BNY_SENDRECV    ? "send"
                                     : bny_collective_row((enum bny_collective)kind)->name;
}

/* Of a kind that the rank has never called there are no samples. */
static int is_used(const struct bny_count *k)
{
    return k->done || k->failed;
}

static void write_operations(const struct page *p, const struct bny_counts *all)
{
    family(p, "operations", "counter", NULL, "Operations that are complete.");
    for (int k = 0; k < BNY_RECORDED_COUNT; k++)
        if (is_used(&all->of[k]))
            number(p, "operations_total", "operation", name_of(k), all->of[k].done);
    family(p, "operations_failed", "counter", NULL,
           "Operations that ended with an error, aborted ones included.");
    for (int k = 0; k < BNY_RECORDED_COUNT; k++)
        if (is_used(&all->of[k]))
            number(p, "operations_failed_total", "operation", name_of(k), all->of[k].failed);
    family(p, "operation_bytes", "counter", "bytes",
           "Bytes of the calls that are complete: count times type.");
    for (int k = 0; k < BNY_RECORDED_COUNT; k++)
        if (is_used(&all->of[k]))
            number(p, "operation_bytes_total", "operation", name_of(k), all->of[k].bytes);
    family(p, "operation_seconds", "counter", "seconds",
           "Time from begin to end of operations that had to wait for others. Operations that "
           "overlap count each.");
    for (int k = 0; k < BNY_RECORDED_COUNT; k++) {
        if (!is_used(&all->of[k]))
            continue;
        sample(p, "operation_seconds_total", "operation", name_of(k));
        bny_fprintf(p->f, "%.9f\n", (double)all->of[k].ticks * all->ns_per_tick * 1e-9);
    }
    family(p, "sleeps", "counter", NULL, "Waits that slept in the kernel.");
    number(p, "sleeps_total", NULL, NULL, p->m->sleeps);
}

static void write_codecs(const struct page *p, const struct bny_counts *all)
{
    family(p, "codec_raw_bytes", "counter", "bytes", "Bytes of the calls that a codec served.");
    for (int k = 0; k < BNY_CODEC_COUNTS && all->codecs[k].spec; k++)
        number(p, "codec_raw_bytes_total", "codec", all->codecs[k].spec, all->codecs[k].raw);
    family(p, "codec_wire_bytes", "counter", "bytes",
           "Bytes that this rank handed to transports for these calls.");
    for (int k = 0; k < BNY_CODEC_COUNTS && all->codecs[k].spec; k++)
        number(p, "codec_wire_bytes_total", "codec", all->codecs[k].spec, all->codecs[k].wire);
}

/* ---- traffic ---- */

static void write_transports(const struct page *p)
{
    struct bny_tp *const *tps = p->w->tps;
    int n = p->w->ntps;

    family(p, "wire_bytes", "counter", "bytes",
           "Payload bytes that this rank handed to a transport.");
    for (int i = 0; i < n; i++)
        number(p, "wire_bytes_total", "transport", tps[i]->ops->name,
               bny_counter_read(&tps[i]->wire_bytes));
    family(p, "messages", "counter", NULL, "Messages that this rank sent.");
    for (int i = 0; i < n; i++)
        number(p, "messages_total", "transport", tps[i]->ops->name,
               bny_counter_read(&tps[i]->messages));
    family(p, "replaced_connections", "counter", NULL,
           "Connections of this rank that were lost and replaced.");
    for (int i = 0; i < n; i++)
        number(p, "replaced_connections_total", "transport", tps[i]->ops->name,
               bny_counter_read(&tps[i]->replaced));
}

static void write_peers(const struct page *p, int what, const char *name)
{
    for (int r = 0; r < p->w->nranks; r++) {
        const struct bny_traffic *t = &p->m->peers[r];
        char peer[12];

        if (!t->sent && !t->received)
            continue;
        snprintf(peer, sizeof peer, "%d", r);
        number(p, name, "peer", peer,
               what == 0   ? t->sent
               : what == 1 ? t->received
                           : t->resent);
    }
}

void bny_metrics_write(FILE *f, const struct bny_metrics *m, const char *host)
{
    const struct page p = { f, m, m->w, host };
    const struct bny_counts *all = &m->counts;

    family(&p, "build_info", "gauge", NULL, "1; the label is the library's version.");
    number(&p, "build_info", "version", banyan_version_string(), 1);
    family(&p, "ranks", "gauge", NULL, "Ranks of the job when it began.");
    number(&p, "ranks", NULL, NULL, (uint64_t)m->w->nranks);
    write_operations(&p, all);
    write_codecs(&p, all);
    write_transports(&p);
    family(&p, "peer_sent_bytes", "counter", "bytes",
           "Bytes to a peer, where the transport counts by peer (tcp).");
    write_peers(&p, 0, "peer_sent_bytes_total");
    family(&p, "peer_received_bytes", "counter", "bytes", "Bytes from a peer.");
    write_peers(&p, 1, "peer_received_bytes_total");
    family(&p, "peer_resent_packets", "counter", NULL,
           "Packets to a peer that the kernel sent again.");
    write_peers(&p, 2, "peer_resent_packets_total");
    fputs("# EOF\n", f);
}
