/* SPDX-License-Identifier: BSD-3-Clause */
/* Where this rank is, as a line of JSON for banyan_status: its operations in flight, whom they
 * wait for, and its traffic. */
#include <unistd.h>

#include "base/text.h"
#include "collectives/op/observe.h"

#define COMMS_MAX 4  /* communicators that have failed; others with operations in flight */
#define REST_MAX  64 /* others */
#define WAITS_MAX 16 /* ranks that an operation waits for */
#define PEERS_MAX 40

static size_t resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long all = 0, resident = 0;
    int n = f ? fscanf(f, "%lu %lu", &all, &resident) : 0;

    if (f)
        fclose(f);
    return n == 2 ? resident * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

/* ---- operations ---- */

static int is_a_call(const struct bny_op *op)
{
    return !op->parent && !op->free_detached;
}

/* Seconds since it began, or since progress first looked at it; < 0: unknown. */
static double age_of(const struct bny_op *op)
{
    double age = bny_recorder_age(op);

    if (age >= 0 || !op->word_ns)
        return age;
    return (double)(bny_now_ns() - op->seen_ns) * 1e-9;
}

static void write_op(FILE *f, const struct banyan_comm *c, const struct bny_op *op)
{
    const char *between = "";
    int more = 0;

    bny_fprintf(f,
                ", \"op\": {\"name\": \"%s\", \"seq\": %u, \"bytes\": %zu, \"sent\": %llu, "
                "\"schedule\": \"%s\", \"age_s\": %.6f, \"waits_for\": [",
                bny_call_name(&op->call), bny_op_seq(op), op->call.count * op->esz,
                (unsigned long long)op->wire_bytes, op->plan.schedule, age_of(op));
    for (int r = 0, n = 0; r < c->n; r++) {
        if (r == c->rank || !bny_op_waits_on(op, r))
            continue;
        if (n++ >= WAITS_MAX) {
            more++;
            continue;
        }
        fprintf(f, "%s%d", between, c->peers[r].world_rank);
        between = ", ";
    }
    fprintf(f, "], \"waits_for_more\": %d}", more);
}

static void write_comm(FILE *f, const struct banyan_comm *c)
{
    const struct bny_op *oldest = NULL;
    int in_flight = 0;

    for (const struct bny_op *op = c->active_first; op; op = op->next) {
        if (!is_a_call(op))
            continue;
        oldest = oldest ? oldest : op;
        in_flight++;
    }
    fprintf(f,
            "{\"id\": %u, \"rank\": %d, \"ranks\": %d, \"begun\": %u, \"done\": %llu, "
            "\"in_flight\": %d, \"failure\": ",
            c->id, c->rank, c->n, atomic_load(&c->position.started),
            (unsigned long long)atomic_load(&c->ops_done), in_flight);
    bny_json_text(f, bny_comm_has_failed(c) ? c->failure_text : "");
    if (oldest)
        write_op(f, c, oldest);
    fputc('}', f);
}

enum shown { FAILED, BUSY, AT_REST };

static enum shown shown_as(const struct banyan_comm *c)
{
    return bny_comm_has_failed(c) ? FAILED : c->active_first ? BUSY : AT_REST;
}

/* What the world's calls have ended, and the communicators, failed ones first. Of those at rest
 * there are only the numbers, but for the first one, which is the program's own. */
static void write_comms(FILE *f, const struct bny_world *w)
{
    const char *between = "";
    uint64_t done = w->ops_before;
    int n = 0;

    fputs(", \"communicators\": [", f);
    for (enum shown as = FAILED; as <= AT_REST; as++) {
        n = 0;
        for (const struct banyan_comm *c = w->comms; c && n < COMMS_MAX; c = c->next_comm) {
            if (shown_as(c) != as || (as == AT_REST && c->next_comm))
                continue;
            fputs(between, f);
            write_comm(f, c);
            between = ", ";
            n++;
        }
    }
    fputs("], \"at_rest\": [", f);
    between = "";
    n = 0;
    for (const struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        done += atomic_load_explicit(&c->ops_done, memory_order_relaxed);
        if (shown_as(c) != AT_REST || n >= REST_MAX)
            continue;
        fprintf(f, "%s{\"id\": %u, \"begun\": %u}", between, c->id,
                atomic_load(&c->position.started));
        between = ", ";
        n++;
    }
    fprintf(f, "], \"done\": %llu", (unsigned long long)done);
}

/* ---- traffic ---- */

static void write_transports(FILE *f, const struct bny_world *w)
{
    fputs(", \"transports\": [", f);
    for (int i = 0; i < w->ntps; i++)
        fprintf(f,
                "%s{\"name\": \"%s\", \"wire_bytes\": %llu, \"messages\": %llu, "
                "\"replaced\": %llu}",
                i ? ", " : "", w->tps[i]->ops->name,
                (unsigned long long)bny_counter_read(&w->tps[i]->wire_bytes),
                (unsigned long long)bny_counter_read(&w->tps[i]->messages),
                (unsigned long long)bny_counter_read(&w->tps[i]->replaced));
    fputc(']', f);
}

/* From the next rank on, as most schedules talk to those that are near. */
static void write_peers(FILE *f, const struct bny_world *w)
{
    const char *between = "";
    int n = 0;

    fputs(", \"peers\": [", f);
    for (int i = 1; i < w->nranks && n < PEERS_MAX; i++) {
        const struct bny_ep *ep = bny_world_ep(w, (w->rank + i) % w->nranks);
        struct bny_traffic t;

        if (!ep || !ep->ops->traffic)
            continue;
        ep->ops->traffic(ep, &t);
        if (!t.sent && !t.received)
            continue;
        fprintf(f,
                "%s{\"rank\": %d, \"transport\": \"%s\", \"sent\": %llu, \"received\": %llu, "
                "\"resent\": %llu, \"replaced\": %u, \"rtt_us\": %u}",
                between, ep->peer, ep->ops->name, (unsigned long long)t.sent,
                (unsigned long long)t.received, (unsigned long long)t.resent, t.replaced,
                t.rtt_us);
        between = ", ";
        n++;
    }
    fputc(']', f);
}

void bny_status_write(FILE *f, const struct bny_world *w, const char *host, int is_locked)
{
    fprintf(f,
            "{\"rank\": %d, \"ranks\": %d, \"job\": \"%02x%02x%02x%02x\", \"version\": \"%s\", "
            "\"host\": ",
            w->rank, w->nranks, w->job[0], w->job[1], w->job[2], w->job[3],
            banyan_version_string());
    bny_json_text(f, host);
    bny_fprintf(f,
                ", \"pid\": %d, \"time_s\": %.6f, \"away_s\": %.6f, \"resident_bytes\": %zu, "
                "\"sleeps\": %llu, \"is_locked\": %s",
                (int)getpid(), (double)bny_now_ns() * 1e-9, bny_control_away_s(w->control),
                resident_bytes(), (unsigned long long)atomic_load(&w->sleeps),
                is_locked ? "false" : "true");
    write_transports(f, w);
    if (is_locked) {
        write_comms(f, w);
        write_peers(f, w);
    }
    fputc('}', f);
}
