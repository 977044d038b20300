/* SPDX-License-Identifier: BSD-3-Clause */
/* Joins the ranks' events (collectives/op/trace.h) into one file: a process per rank, tracks
 * for the operation, encode (one more for each encoding thread), wire, credit wait and
 * decode-add.
 *
 * A chunk is on the wire of its sender from when the transport took it, or the sender's chunk
 * before it had arrived, until all of it has arrived: slices of a track never overlap, and what
 * they cover is when anything was on its way. Ranks on one machine share a clock; other
 * machines' are set right by barriers, to within about a message's time. */
#include "perf/perf_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/op/trace.h"
#include "perf/perf.h"

#define EVENTS 65536 /* a rank keeps of one iteration */
#define ROUNDS 9     /* barriers that compare clocks */

enum track { OPERATION, ENCODE, WIRE, CREDIT, DECODE, TRACKS };
static const char *const track_names[TRACKS] = { "operation", "encode", "wire", "credit wait",
                                                 "decode-add" };

/* What a rank says of its part. */
struct part {
    uint64_t n, lost, t0, t1, pid;
    uint64_t boot;          /* hash of the kernel's boot id: equal where clocks are */
    uint64_t clock[ROUNDS]; /* after each barrier */
};

struct slice {
    uint64_t t0, t1, posted; /* of rank 0's clock */
    int rank;
    enum track track;
    struct bny_trace_event e;
};

struct slices {
    struct slice *s;
    size_t n, cap;
};

static int is_traced(const struct perf_run *run)
{
    return run->opts->trace && !(run->opts->what->flags & PERF_RAW);
}

int perf_trace_open(struct perf_run *run)
{
    if (!is_traced(run) || run->rank != 0)
        return 0;
    run->trace_file = fopen(run->opts->trace, "w");
    if (!run->trace_file) {
        fprintf(stderr, "banyan_perf: rank 0: cannot write %s: %s\n", run->opts->trace,
                strerror(errno));
        return -1;
    }
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", run->trace_file);
    for (int r = 0; r < run->nranks; r++) {
        fprintf(run->trace_file,
                "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":"
                "\"rank %d\"}}",
                r ? "," : "", r, r);
        for (int l = 0; l < TRACKS; l++)
            fprintf(run->trace_file,
                    ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                    "\"args\":{\"name\":\"%s\"}}",
                    r, l, track_names[l]);
    }
    return 0;
}

int perf_trace_begin(struct perf_run *run, struct perf_trace *t)
{
    *t = (struct perf_trace){ 0 };
    return is_traced(run) ? bny_trace_begin(run->comm, EVENTS) : 0;
}

int perf_trace_end(struct perf_run *run, struct perf_trace *t, uint64_t t0, uint64_t t1)
{
    size_t n = 0;
    int rc;

    if (!is_traced(run))
        return 0;
    rc = bny_trace_end(run->comm, &t->events, &n, &t->lost);
    t->t0 = t0;
    t->t1 = t1;
    for (size_t i = 0; rc == 0 && i < n; i++) /* the barrier before is no part of it */
        if (t->events[i].t0 >= t0 && t->events[i].t1 <= t1)
            t->events[t->n++] = t->events[i];
    return rc;
}

/* ---- all ranks' events at rank 0 ---- */

static uint64_t boot_hash(void)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    uint64_t h = 0xcbf29ce484222325u;
    int c;

    while (f && (c = fgetc(f)) != EOF)
        h = (h ^ (unsigned char)c) * 0x100000001b3u;
    if (f)
        fclose(f);
    return h;
}

static int gather(struct perf_run *run, const struct perf_trace *t, struct part *parts,
                  struct bny_trace_event **all)
{
    struct banyan_opts plain = BANYAN_OPTS_INIT;
    struct part mine = { .n = t->n,
                         .lost = t->lost,
                         .t0 = t->t0,
                         .t1 = t->t1,
                         .pid = (uint64_t)getpid(),
                         .boot = boot_hash() };
    size_t *counts = calloc((size_t)run->nranks, sizeof *counts), total = 0;
    int rc = counts ? 0 : -BANYAN_ENOMEM;

    plain.schedule = "auto";
    plain.codec = "none";
    for (int i = 0; rc == 0 && i < ROUNDS; i++) {
        rc = banyan_barrier(run->comm, &plain);
        mine.clock[i] = bny_now_ns();
    }
    if (rc == 0)
        rc = banyan_allgather(&mine, parts, sizeof mine, BANYAN_U8, run->comm, &plain);
    for (int r = 0; rc == 0 && r < run->nranks; r++) {
        counts[r] = (size_t)parts[r].n * sizeof **all;
        total += counts[r];
    }
    *all = malloc(total + 1);
    if (rc == 0 && !*all)
        rc = -BANYAN_ENOMEM;
    if (rc == 0)
        rc = banyan_gatherv(t->events, (size_t)t->n * sizeof **all, *all, counts, NULL,
                            BANYAN_U8, 0, run->comm, &plain);
    free(counts);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* What must be added to rank r's clock: the median over the barriers. */
static int64_t clock_offset(const struct part *parts, int r)
{
    int64_t d[ROUNDS];

    if (parts[r].boot == parts[0].boot)
        return 0;
    for (int i = 0; i < ROUNDS; i++)
        d[i] = (int64_t)(parts[0].clock[i] - parts[r].clock[i]);
    qsort(d, ROUNDS, sizeof d[0], by_value);
    return d[ROUNDS / 2];
}

/* ---- slices ---- */

static void put_slice(struct slices *out, int rank, enum track track,
                      const struct bny_trace_event *e, uint64_t t0, uint64_t t1)
{
    if (out->n < out->cap)
        out->s[out->n++] = (struct slice){ t0, t1 < t0 ? t0 : t1, t0, rank, track, *e };
}

/* Posts and arrivals of one message beside each other: by sender, receiver, operation, message,
 * chunk; the post first, then arrivals in order of time. */
struct end {
    int from, to, is_arrival;
    const struct bny_trace_event *e;
    uint64_t t;
};

static int by_message(const void *a, const void *b)
{
    const struct end *x = a, *y = b;

#define ORDER(p, q)                                                                            \
    if ((p) != (q))                                                                            \
    return (p) < (q) ? -1 : 1
    ORDER(x->from, y->from);
    ORDER(x->to, y->to);
    ORDER(x->e->seq, y->e->seq);
    ORDER(x->e->ordinal, y->e->ordinal);
    ORDER(x->e->chunk, y->e->chunk);
    ORDER(x->is_arrival, y->is_arrival);
    ORDER(x->t, y->t);
    return 0;
}

static int same_message(const struct end *x, const struct end *y)
{
    return x->from == y->from && x->to == y->to && x->e->seq == y->e->seq &&
           x->e->ordinal == y->e->ordinal && x->e->chunk == y->e->chunk;
}

static int by_track_and_end(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;

    ORDER(x->rank, y->rank);
    ORDER(x->track, y->track);
    ORDER(x->e.thread, y->e.thread);
    ORDER(x->t1, y->t1);
    ORDER(x->t0, y->t0);
    return 0;
}

/* Fills *out. ends: as many as events. */
static void make_slices(const struct perf_run *run, const struct part *parts,
                        const struct bny_trace_event *all, struct end *ends, struct slices *out)
{
    size_t at = 0, nends = 0;
    uint64_t before = 0;

    for (int r = 0; r < run->nranks; r++) {
        uint64_t off = (uint64_t)clock_offset(parts, r);

        for (uint64_t i = 0; i < parts[r].n; i++, at++) {
            const struct bny_trace_event *e = &all[at];

            switch (e->kind) {
            case BNY_TRACE_ENCODE:
                put_slice(out, r, ENCODE, e, e->t0 + off, e->t1 + off);
                break;
            case BNY_TRACE_DECODE:
                put_slice(out, r, DECODE, e, e->t0 + off, e->t1 + off);
                break;
            case BNY_TRACE_CREDIT:
                put_slice(out, r, CREDIT, e, e->t0 + off, e->t1 + off);
                break;
            case BNY_TRACE_POST:
                ends[nends++] = (struct end){ r, e->peer, 0, e, e->t0 + off };
                break;
            default: ends[nends++] = (struct end){ e->peer, r, 1, e, e->t0 + off }; break;
            }
        }
    }
    qsort(ends, nends, sizeof *ends, by_message);
    for (size_t i = 0; i + 1 < nends; i++)
        if (!ends[i].is_arrival && ends[i + 1].is_arrival &&
            same_message(&ends[i], &ends[i + 1]))
            put_slice(out, ends[i].from, WIRE, ends[i].e, ends[i].t, ends[i + 1].t);
    qsort(out->s, out->n, sizeof *out->s, by_track_and_end);
    for (size_t i = 0; i < out->n; i++) {
        struct slice *s = &out->s[i];

        if (i == 0 || s->rank != s[-1].rank || s->track != s[-1].track ||
            s->e.thread != s[-1].e.thread)
            before = 0;
        if (s->t0 < before)
            s->t0 = before < s->t1 ? before : s->t1;
        before = s->t1;
    }
}

/* ---- the verdict ---- */

static int by_start(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;

    ORDER(x->t0, y->t0);
    return 0;
}
#undef ORDER

/* ns of [t0, t1] in which one of the slices of `tracks` (bits) lies that rank r has to do with.
 * tmp: as many as slices. */
static uint64_t covered(const struct slices *in, struct slice *tmp, int r, unsigned tracks,
                        uint64_t t0, uint64_t t1)
{
    uint64_t sum = 0, end = t0;
    size_t n = 0;

    for (size_t i = 0; i < in->n; i++)
        if ((tracks >> in->s[i].track & 1) &&
            (in->s[i].rank == r || (in->s[i].track == WIRE && in->s[i].e.peer == r)))
            tmp[n++] = in->s[i];
    qsort(tmp, n, sizeof *tmp, by_start);
    for (size_t i = 0; i < n; i++) {
        uint64_t from = tmp[i].t0 > end ? tmp[i].t0 : end, to = tmp[i].t1 < t1 ? tmp[i].t1 : t1;

        if (to > from) {
            sum += to - from;
            end = to;
        }
    }
    return sum;
}

/* One line, kept until the table's line is complete. */
__attribute__((format(printf, 2, 3))) static void say(struct perf_run *run, const char *fmt,
                                                      ...)
{
    va_list ap;
    size_t room = sizeof run->verdict - run->verdict_len;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(run->verdict + run->verdict_len, room, fmt, ap);
    va_end(ap);
    if (n > 0)
        run->verdict_len += (size_t)n < room ? (size_t)n : room - 1;
}

static void say_verdict(struct perf_run *run, const struct perf_row *row,
                        const struct part *parts, const struct slices *in, struct slice *tmp)
{
    static const enum track work[] = { WIRE, ENCODE, DECODE, CREDIT };
    double share[TRACKS] = { 0 }, most = 0, span;
    enum track top = WIRE;
    uint64_t off, t0, t1;
    int r = 0;

    for (int i = 1; i < run->nranks; i++)
        if (parts[i].t1 - parts[i].t0 > parts[r].t1 - parts[r].t0)
            r = i;
    off = (uint64_t)clock_offset(parts, r);
    t0 = parts[r].t0 + off;
    t1 = parts[r].t1 + off;
    span = t1 > t0 ? (double)(t1 - t0) : 1;
    say(run,
        "# trace: %s of %" PRIu64 " bytes, codec %s, %s: rank %d, %.1f us: ", row->collective,
        row->bytes, row->codec, row->inplace ? "in place" : "out of place", r, span / 1000);
    if (in->n == 0) {
        say(run, "no chunks (short messages travel in one exchange)\n");
        return;
    }
    for (int i = 0; i < 4; i++)
        share[work[i]] = 100 * (double)covered(in, tmp, r, 1u << work[i], t0, t1) / span;
    for (int i = 0; i < 3; i++) /* waiting for credit binds nothing: what it waits for does */
        if (share[work[i]] > most) {
            most = share[work[i]];
            top = work[i];
        }
    say(run, "%s-bound %.0f %%", track_names[top], share[top]);
    for (int i = 0; i < 4; i++)
        if (work[i] != top)
            say(run, ", %s %.0f %%", track_names[work[i]], share[work[i]]);
    say(run, ", none of these %.0f %%\n",
        100 - 100 * (double)covered(in, tmp, r, ~0u, t0, t1) / span);
}

/* ---- the file ---- */

static void write_slices(struct perf_run *run, const struct perf_row *row, int batch,
                         const struct part *parts, const struct slices *in)
{
    FILE *f = run->trace_file;
    char plan[512] = "";
    int named = 0;

    if (!run->trace_base)
        run->trace_base = parts[0].t0;
    banyan_comm_plan(run->comm, row->collective, row->count,
                     (enum banyan_dtype)perf_parse_dtype(row->dtype), plan, sizeof plan);
    for (char *p = plan; *p; p++)
        if (*p == '"' || *p == '\\')
            *p = '\'';
    for (int r = 0; r < run->nranks; r++)
        fprintf(f,
                ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s %" PRIu64
                " B\",\"ts\":%.3f,"
                "\"dur\":%.3f,\"args\":{\"codec\":\"%s\",\"inplace\":%d,\"operations\":%d,"
                "\"plan\":\"%s\",\"lost_events\":%" PRIu64 "}}",
                r, OPERATION, row->collective, row->bytes,
                ((double)(int64_t)(parts[r].t0 - run->trace_base) +
                 (double)clock_offset(parts, r)) /
                    1000,
                (double)(parts[r].t1 - parts[r].t0) / 1000, row->codec, row->inplace, batch,
                plan, parts[r].lost);
    for (size_t i = 0; i < in->n; i++) {
        const struct slice *s = &in->s[i];
        int thread = (int)s->e.thread;

        if (i == 0 || s[-1].rank != s->rank)
            named = 0;
        if (thread > named) /* slices are in order of track, then of thread */
            fprintf(f,
                    ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                    "\"args\":{\"name\":\"encode, thread %d\"}}",
                    s->rank, TRACKS - 1 + thread, thread);
        named = thread > named ? thread : named;
        fprintf(
            f,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"operation\":%u,\"step\":%u,\"chunk\":%u,\"bytes\":%u,\"peer\":%d",
            s->rank, thread ? TRACKS - 1 + thread : (int)s->track, track_names[s->track],
            (double)(int64_t)(s->t0 - run->trace_base) / 1000, (double)(s->t1 - s->t0) / 1000,
            s->e.seq, s->e.step, s->e.chunk, s->e.bytes, s->e.peer);
        if (s->track == WIRE)
            fprintf(f, ",\"queued_us\":%.3f", (double)(s->t0 - s->posted) / 1000);
        fputs("}}", f);
    }
}

int perf_trace_write(struct perf_run *run, const struct perf_row *row, int batch,
                     struct perf_trace *t)
{
    struct part *parts;
    struct bny_trace_event *all = NULL;
    struct slices s = { 0 };
    struct slice *tmp = NULL;
    struct end *ends = NULL;
    int rc;

    if (!is_traced(run))
        return 0;
    parts = calloc((size_t)run->nranks, sizeof *parts);
    rc = parts ? gather(run, t, parts, &all) : -BANYAN_ENOMEM;
    for (int r = 0; rc == 0 && r < run->nranks; r++)
        s.cap += (size_t)parts[r].n;
    if (rc == 0 && run->rank == 0) {
        s.s = malloc((s.cap + 1) * sizeof *s.s);
        tmp = malloc((s.cap + 1) * sizeof *tmp);
        ends = malloc((s.cap + 1) * sizeof *ends);
        if (s.s && tmp && ends) {
            make_slices(run, parts, all, ends, &s);
            write_slices(run, row, batch, parts, &s);
            say_verdict(run, row, parts, &s, tmp);
        } else {
            rc = bny_fail(BANYAN_ENOMEM, "no memory for the %zu events of a trace", s.cap);
        }
    }
    free(ends);
    free(tmp);
    free(s.s);
    free(all);
    free(parts);
    free(t->events);
    t->events = NULL;
    return rc;
}

void perf_trace_say(struct perf_run *run)
{
    fflush(stdout);
    fputs(run->verdict, stderr);
    run->verdict[0] = '\0';
    run->verdict_len = 0;
}

int perf_trace_close(struct perf_run *run)
{
    int failed;

    if (!run->trace_file)
        return 0;
    fputs("\n]}\n", run->trace_file);
    failed = ferror(run->trace_file);
    failed |= fclose(run->trace_file) != 0;
    run->trace_file = NULL;
    if (failed)
        fprintf(stderr, "banyan_perf: rank 0: the trace could not be written: %s\n",
                strerror(errno));
    return failed ? -1 : 0;
}
