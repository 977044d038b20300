/* SPDX-License-Identifier: BSD-3-Clause */
/* A predicted step as a file for Perfetto or chrome://tracing, as tools/banyan_trace merge
 * writes measured operations: a process a rank, a track each for computing, buckets, encoding,
 * the wire and decoding. A slice that overlaps the slice before it in its track (messages on
 * the way at the same time) begins where that one ends. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tools/predict.h"

enum track { COMPUTE, BUCKET, ENCODE, WIRE, DECODE, TRACKS };
static const char *const track_names[TRACKS] = { "compute", "operation", "encode", "wire",
                                                 "decode-add" };

struct slice {
    double began_s, ended_s;
    uint32_t id;
    int rank;
    enum track track;
};

static int track_of(const struct predict_node *n)
{
    switch (n->what) {
    case PREDICT_COMPUTE: return COMPUTE;
    case PREDICT_START:
    case PREDICT_ENCODE: return ENCODE;
    case PREDICT_WIRE: return WIRE;
    case PREDICT_DECODE: return DECODE;
    default: return -1;
    }
}

static int by_track(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->track != y->track)
        return x->track < y->track ? -1 : 1;
    if (x->ended_s < y->ended_s || x->ended_s > y->ended_s)
        return x->ended_s < y->ended_s ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static size_t predict_trace_collect(struct slice *out, const struct predict_job *j,
                                    const struct bny_sim_result *r)
{
    size_t n = 0;

    for (uint32_t i = 0; i < j->sim.n; i++) {
        int track = track_of(&j->nodes[i]);
        if (track >= 0 && r->spans[i].ended_s > r->spans[i].began_s)
            out[n++] = (struct slice){ r->spans[i].began_s, r->spans[i].ended_s, i,
                                       j->sim.transfers[i].from, (enum track)track };
    }
    qsort(out, n, sizeof *out, by_track);
    for (size_t i = 1; i < n; i++)
        if (out[i].rank == out[i - 1].rank && out[i].track == out[i - 1].track &&
            out[i].began_s < out[i - 1].ended_s)
            out[i].began_s = out[i - 1].ended_s;
    return n;
}

static void put_names(FILE *f, int nranks)
{
    for (int r = 0; r < nranks; r++) {
        fprintf(f,
                "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":"
                "\"rank %d\"}}",
                r ? "," : "", r, r);
        for (int t = 0; t < TRACKS; t++)
            fprintf(f,
                    ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                    "\"args\":{\"name\":\"%s\"}}",
                    r, t, track_names[t]);
    }
}

/* From the start of each bucket at a rank to the last thing that it does there: asynchronous
 * slices, since they overlap. */
static void put_buckets(FILE *f, const struct predict_job *j, const struct bny_sim_result *r,
                        struct bny_sim_span *of)
{
    size_t n = (size_t)j->sim.nranks, buckets = (size_t)j->bucket + 1;

    for (size_t k = 0; k < n * buckets; k++)
        of[k] = (struct bny_sim_span){ r->seconds, 0 };
    for (uint32_t i = 0; i < j->sim.n; i++) {
        const struct predict_node *node = &j->nodes[i];
        struct bny_sim_span *s = &of[(size_t)j->sim.transfers[i].to * buckets + node->bucket];

        if (node->what == PREDICT_START && r->spans[i].began_s < s->began_s)
            s->began_s = r->spans[i].began_s;
        if (node->what != PREDICT_COMPUTE && r->spans[i].ended_s > s->ended_s)
            s->ended_s = r->spans[i].ended_s;
    }
    for (size_t k = 0; k < n * buckets; k++)
        for (int end = 0; end < 2 && of[k].ended_s > of[k].began_s; end++)
            fprintf(f,
                    ",\n{\"ph\":\"%s\",\"cat\":\"bucket\",\"id\":%zu,\"pid\":%zu,\"tid\":%d,"
                    "\"name\":\"%s %zu\",\"ts\":%.3f}",
                    end ? "e" : "b", k, k / buckets, BUCKET,
                    k % buckets == j->bucket ? "verdict" : "bucket", k % buckets,
                    1e6 * (end ? of[k].ended_s : of[k].began_s));
}

static void put_slice(FILE *f, const struct predict_job *j, const struct slice *s)
{
    const struct bny_transfer *t = &j->sim.transfers[s->id];

    fprintf(f,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{",
            s->rank, s->track, track_names[s->track], 1e6 * s->began_s,
            1e6 * (s->ended_s - s->began_s));
    if (s->track != COMPUTE)
        fprintf(f, "\"bucket\":%u", j->nodes[s->id].bucket);
    if (s->track == WIRE)
        fprintf(f, ",\"bytes\":%.0f,\"peer\":%d", t->bytes, t->to);
    fputs("}}", f);
}

int predict_trace(const char *path, const struct predict_job *j, const struct bny_sim_result *r,
                  const struct predicted *p)
{
    size_t cells = (size_t)j->sim.nranks * ((size_t)j->bucket + 1), n;
    struct slice *slices = malloc((j->sim.n + (size_t)1) * sizeof *slices);
    struct bny_sim_span *spans = malloc((cells + 1) * sizeof *spans);
    FILE *f = slices && spans ? fopen(path, "w") : NULL;
    int broken;

    if (!f) {
        int rc = slices && spans ? bny_fail_errno("--trace: %.200s cannot be written", path)
                                 : bny_fail(BANYAN_ENOMEM, "no memory for a trace");
        free(slices);
        free(spans);
        return rc;
    }
    n = predict_trace_collect(slices, j, r);
    fprintf(f,
            "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"step_s\":%.9g,\"buckets\":%zu},"
            "\"traceEvents\":[",
            p->step_s, p->buckets);
    put_names(f, j->sim.nranks);
    put_buckets(f, j, r, spans);
    for (size_t i = 0; i < n; i++)
        put_slice(f, j, &slices[i]);
    fputs("\n]}\n", f);
    broken = ferror(f);
    broken |= fclose(f) != 0;
    free(slices);
    free(spans);
    return broken ? bny_fail_errno("--trace: writing %.200s", path) : 0;
}
