/* SPDX-License-Identifier: BSD-3-Clause */
/* Records and their file. The file's names are those of PyTorch's flight recorder where both
 * mean the same; tools/banyan_trace reads it. */
#include "collectives/op/recorder.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/param.h"
#include "base/text.h"
#include "collectives/op/trace.h"

#define AGAIN_NS  1000000000u
#define ENDED_MAX 32

struct moment {
    uint64_t ticks, ns;
};

struct bny_recorder {
    char dump[512], trace[512]; /* "": not asked for */
    char *ended[ENDED_MAX];     /* traced communicators that have ended, as they are written */
    uint64_t nended;            /* the latest ENDED_MAX of them are there */
    int is_finished;            /* the trace is complete */
    struct moment since;
    uint64_t failed_ns; /* when a failure was written last; 0: never */
    int logged; /* failures that were agreed on, when the control plane's thread last looked */
    _Atomic unsigned asked; /* by signals: as many have been answered */
    struct bny_counts counts;
};

/* ---- signals ---- */

static _Atomic unsigned signals;
static _Atomic int signal_fd = -1;

static void heed_signal(int sig)
{
    uint64_t one = 1;
    int saved = errno, fd = atomic_load(&signal_fd);

    (void)sig;
    atomic_fetch_add(&signals, 1);
    if (fd < 0 || write(fd, &one, sizeof one) == sizeof one)
        return;
    errno = saved;
}

/* A program's own handler stays. */
void bny_recorder_heed_signal(void)
{
    const char *folder = bny_param_str("BANYAN_DUMP");
    struct sigaction now, ours = { .sa_handler = heed_signal, .sa_flags = SA_RESTART };
    int fd;

    if ((!*folder && !*bny_param_str("BANYAN_TRACE")) || atomic_load(&signal_fd) >= 0 ||
        sigaction(SIGUSR2, NULL, &now) != 0 || now.sa_handler != SIG_DFL)
        return;
    fd = bny_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fd < 0)
        return;
    atomic_store(&signal_fd, fd);
    sigaction(SIGUSR2, &ours, NULL);
}

/* ---- time ---- */

/* Both clocks at one moment: of some tries the one in which the least time passed between. */
static struct moment moment_now(void)
{
    struct moment best = { 0, 0 };
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 8; i++) {
        uint64_t before = bny_recorder_ticks(), ns = bny_now_ns(),
                 gap = bny_recorder_ticks() - before;

        if (gap < least) {
            best = (struct moment){ before + gap / 2, ns };
            least = gap;
        }
    }
    return best;
}

struct ticks_clock {
    double ns_per_tick;
    uint64_t ticks, ns, wall_ns; /* at one moment */
};

static uint64_t wall_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct ticks_clock ticks_now(const struct bny_recorder *r)
{
    struct moment now = moment_now();
    uint64_t ns = now.ns - r->since.ns, ticks = now.ticks - r->since.ticks;

    return (struct ticks_clock){ .ns_per_tick = ticks ? (double)ns / (double)ticks : 1,
                                 .ticks = now.ticks,
                                 .ns = now.ns,
                                 .wall_ns = wall_now() - (bny_now_ns() - now.ns) };
}

static uint64_t wall_of(const struct ticks_clock *k, uint64_t ticks)
{
    return k->wall_ns - (uint64_t)((double)(k->ticks - ticks) * k->ns_per_tick);
}

/* ---- counts ---- */

static void count_codec(struct bny_counts *all, const struct bny_record *r, uint64_t n,
                        uint64_t wire)
{
    struct bny_codec_count *k = all->codecs;

    while (k < all->codecs + BNY_CODEC_COUNTS - 1 && k->spec && k->spec != r->codec)
        k++;
    if (!k->spec)
        k->spec = k < all->codecs + BNY_CODEC_COUNTS - 1 ? r->codec : "other";
    k->raw += n * r->count * r->esz;
    k->wire += wire;
}

static void count(struct bny_counts *all, const struct bny_record *r, uint64_t n, uint64_t wire)
{
    struct bny_count *k = &all->of[r->kind];

    if (r->result) {
        k->failed += n;
        return;
    }
    k->done += n;
    k->bytes += n * r->count * r->esz;
    if (!r->is_at_once)
        k->ticks += r->ended - r->begun;
    if (r->codec)
        count_codec(all, r, n, wire);
}

static void count_run(struct bny_counts *all, struct bny_record *r)
{
    count(all, r, r->again - r->counted, 0);
    r->counted = r->again;
}

const struct bny_counts *bny_recorder_counts(struct bny_world *w)
{
    struct bny_counts *all = &w->recorder->counts;

    for (struct banyan_comm *c = w->comms; c; c = c->next_comm)
        if (c->records && c->records->run)
            count_run(all, c->records->run->run);
    all->ns_per_tick = ticks_now(w->recorder).ns_per_tick;
    return all;
}

/* ---- records ---- */

void bny_recorder_run_end(struct bny_op *op)
{
    count_run(&op->comm->world->recorder->counts, op->run);
    op->comm->records->run = NULL;
    op->run = NULL;
}

static struct bny_record *record_of(const struct bny_op *op)
{
    struct bny_records *all = op->comm->records;
    struct bny_record *r = op->record && all ? &all->of[(op->record - 1) % BNY_RECORDS] : NULL;

    return r && r->number == op->record ? r : NULL;
}

static void describe(struct bny_record *r, const struct bny_op *op)
{
    const struct bny_call *call = &op->call;
    int is_p2p = call->collective == BNY_SENDRECV;

    *r = (struct bny_record){
        .count = call->count,
        .codec = op->plan.codec ? op->plan.codec->spec : NULL,
        .weighs = op->plan.weighs,
        .name = bny_call_name(call),
        .root = is_p2p || bny_call_row(call)->rooted ? call->root : -1,
        .dtype = (uint8_t)call->dtype,
        .is_p2p = (uint8_t)is_p2p,
        .esz = (uint8_t)op->esz,
        .kind = is_p2p && !call->is_send ? BNY_RECORDED_RECV : call->collective,
    };
    memcpy(r->schedule, op->plan.schedule, sizeof r->schedule); /* perhaps not all of it */
}

/* An operation that runs the same call again has been described. */
void bny_recorder_add(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    const struct bny_record *before = record_of(op);
    struct bny_record *r;

    op->record = 0;
    if (c->records && c->records->run) /* this one has the next number */
        bny_recorder_run_end(c->records->run);
    if (op->parent || op->free_detached)
        return;
    if (!c->records)
        c->records = calloc(1, sizeof *c->records);
    if (!c->records)
        return;
    r = &c->records->of[c->records->n++ % BNY_RECORDS];
    if (!before || op->is_any_source)
        describe(r, op);
    else if (before != r)
        *r = *before;
    r->number = op->record = c->records->n;
    r->begun = bny_recorder_ticks();
    r->ended = r->again = r->counted = 0;
    r->seq = bny_op_seq(op);
    r->result = 0;
    r->is_at_once = 0;
}

void bny_recorder_end(const struct bny_op *op)
{
    struct bny_record *r = record_of(op), passed_over;

    if (!op->record)
        return;
    if (!r) { /* later operations have taken its place: it still counts */
        r = &passed_over;
        describe(r, op);
        r->is_at_once = 1;
    }
    r->ended = bny_recorder_ticks();
    r->result = op->result;
    count(&op->comm->world->recorder->counts, r, 1, op->wire_bytes);
}

void bny_recorder_at_once(struct bny_op *op)
{
    struct bny_record *r;

    bny_recorder_add(op);
    r = record_of(op);
    if (!r)
        return;
    r->ended = r->begun;
    r->is_at_once = 1;
    count(&op->comm->world->recorder->counts, r, 1, 0);
    op->run = r;
    op->comm->records->run = op;
}

double bny_recorder_age(const struct bny_op *op)
{
    const struct bny_record *r = op->comm->world->recorder ? record_of(op) : NULL;

    if (!r || r->ended)
        return -1;
    return (double)(bny_recorder_ticks() - r->begun) *
           ticks_now(op->comm->world->recorder).ns_per_tick * 1e-9;
}

/* ---- the file ---- */

static const struct bny_op *in_flight(const struct banyan_comm *c, uint64_t number)
{
    const struct bny_op *op = c->active_first;

    while (op && op->record != number)
        op = op->next;
    return op;
}

static void write_waits(FILE *f, const struct bny_op *op)
{
    const char *between = "";

    fputs(", \"waits_for\": [", f);
    for (int r = 0; r < op->comm->n; r++)
        if (r != op->comm->rank && bny_op_waits_on(op, r)) {
            fprintf(f, "%s%d", between, r);
            between = ", ";
        }
    fputc(']', f);
}

/* What is known of the times of operation i of a record, from 0. */
static void write_times(FILE *f, const struct bny_record *r, uint64_t i,
                        const struct ticks_clock *k)
{
    if (i == 0)
        fprintf(f, ", \"time_created_ns\": %llu", (unsigned long long)wall_of(k, r->begun));
    if (r->ended)
        fprintf(f, ", \"state\": \"%s\", \"result\": %d", r->result ? "failed" : "completed",
                r->result);
    if (r->ended && i == r->again)
        fprintf(f, ", \"time_completed_ns\": %llu", (unsigned long long)wall_of(k, r->ended));
    if (r->ended && !r->is_at_once)
        bny_fprintf(f, ", \"duration_ms\": %.6f",
                    (double)(r->ended - r->begun) * k->ns_per_tick * 1e-6);
}

static void write_record(FILE *f, const struct banyan_comm *c, const struct bny_record *r,
                         uint64_t i, const struct ticks_clock *k)
{
    const struct bny_op *op = r->ended ? NULL : in_flight(c, r->number);

    fprintf(f,
            "{\"record_id\": %llu, \"%s\": %u, \"profiling_name\": \"banyan:%s\", "
            "\"is_p2p\": %s, \"input_sizes\": [[%zu]], \"input_dtypes\": [\"%s\"], "
            "\"bytes\": %zu, \"schedule\": \"%.19s\", \"codec\": \"%s%s\", \"root\": %d",
            (unsigned long long)r->number, r->is_p2p ? "p2p_seq_id" : "collective_seq_id",
            r->seq + (uint32_t)i, r->name, r->is_p2p ? "true" : "false", r->count,
            banyan_dtype_name((enum banyan_dtype)r->dtype), r->count * r->esz, r->schedule,
            r->codec ? r->codec : "none", r->weighs ? " if it pays" : "", r->root);
    write_times(f, r, i, k);
    if (!r->ended)
        fputs(", \"state\": \"started\"", f);
    if (op)
        write_waits(f, op);
    fputc('}', f);
}

/* The latest BNY_RECORDS operations. */
static void write_records(FILE *f, const struct banyan_comm *c, const struct ticks_clock *k)
{
    const struct bny_records *all = c->records;
    uint64_t left = 0, first = all->n, skip;
    const char *between = "\n ";

    while (first > 0 && all->n - first < BNY_RECORDS && left < BNY_RECORDS)
        left += 1 + all->of[--first % BNY_RECORDS].again;
    skip = left > BNY_RECORDS ? left - BNY_RECORDS : 0;
    for (; first < all->n; first++, skip = 0)
        for (uint64_t i = skip; i <= all->of[first % BNY_RECORDS].again; i++) {
            fputs(between, f);
            write_record(f, c, &all->of[first % BNY_RECORDS], i, k);
            between = ",\n ";
        }
}

static void write_comm(FILE *f, const struct banyan_comm *c, const struct ticks_clock *k)
{
    fprintf(f, "{\"pg_id\": %u, \"rank\": %d, \"ranks\": [", c->id, c->rank);
    for (int r = 0; r < c->n; r++)
        fprintf(f, "%s%d", r ? ", " : "", c->peers[r].world_rank);
    fprintf(f, "], \"next_collective_seq_id\": %u, \"failure\": ",
            atomic_load(&c->position.started));
    bny_json_text(f, bny_comm_has_failed(c) ? c->failure_text : "");
    fputs(", \"entries\": [", f);
    if (c->records)
        write_records(f, c, k);
    fputs("]}", f);
}

/* Ranks that have it in common read one clock. */
static void boot_id(char text[40])
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (!f || fscanf(f, "%36s", text) != 1)
        text[0] = '\0';
    if (f)
        fclose(f);
}

void bny_recorder_ended(const struct banyan_comm *c)
{
    struct bny_recorder *r = c->world->recorder;
    char **text = r ? &r->ended[r->nended % ENDED_MAX] : NULL;
    struct ticks_clock k;
    size_t len;
    FILE *f;

    if (!c->world->trace || !c->records)
        return;
    free(*text);
    *text = NULL;
    f = open_memstream(text, &len);
    if (!f)
        return;
    k = ticks_now(r);
    write_comm(f, c, &k);
    if (fclose(f) == 0) {
        r->nended++;
    } else {
        free(*text);
        *text = NULL;
    }
}

static void write_file(const struct bny_world *w, const char *variable, const char *path,
                       const char *why)
{
    const struct bny_recorder *r = w->recorder;
    char name[64] = "", part[540], boot[40];
    struct ticks_clock k;
    FILE *f;

    snprintf(part, sizeof part, "%s.part", path);
    f = bny_fd_new_file(part);
    if (!f) {
        bny_warn("%s: %s: %s", variable, part, strerror(errno));
        return;
    }
    k = ticks_now(r);
    gethostname(name, sizeof name - 1);
    fprintf(f,
            "{\"version\": \"banyan 1\", \"job\": \"%02x%02x%02x%02x\", \"rank\": %d, "
            "\"world_size\": %d, \"host\": ",
            w->job[0], w->job[1], w->job[2], w->job[3], w->rank, w->nranks);
    bny_json_text(f, name);
    boot_id(boot);
    fprintf(f,
            ", \"pid\": %d, \"boot\": \"%s\", \"time_ns\": %llu, \"reason\": ", (int)getpid(),
            boot, (unsigned long long)k.wall_ns);
    bny_json_text(f, why);
    fputs(", \"communicators\": [", f);
    for (const struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        fputs(c == w->comms ? "\n" : ",\n", f);
        write_comm(f, c, &k);
    }
    for (int i = 0; path == r->trace && i < ENDED_MAX && r->ended[i]; i++) {
        fputs(i == 0 && !w->comms ? "\n" : ",\n", f);
        fputs(r->ended[i], f);
    }
    fputc(']', f);
    if (w->trace && path == r->trace) {
        fputs(", ", f);
        bny_trace_write(f, w, (int64_t)(k.wall_ns - k.ns));
    }
    fputs("}\n", f);
    if (ferror(f) | fclose(f) || rename(part, path) != 0)
        bny_warn("%s: %s: %s", variable, path, strerror(errno));
    else
        bny_info("the latest operations are in %s", path);
}

void bny_recorder_dump(struct bny_world *w, const char *why)
{
    if (w->recorder && w->recorder->dump[0])
        write_file(w, "BANYAN_DUMP", w->recorder->dump, why);
    if (w->recorder && w->recorder->trace[0])
        write_file(w, "BANYAN_TRACE", w->recorder->trace, why);
}

void bny_recorder_finish(struct bny_world *w)
{
    struct bny_recorder *r = w->recorder;

    if (r && r->trace[0] && !r->is_finished)
        write_file(w, "BANYAN_TRACE", r->trace, "end of the job");
    if (r)
        r->is_finished = 1;
}

static int has_just_failed(const struct bny_recorder *r)
{
    return r->failed_ns && bny_now_ns() - r->failed_ns < AGAIN_NS;
}

/* A failure of the world fails its communicators one after another: the first says it all. */
void bny_recorder_failed(struct bny_world *w, const char *why)
{
    if (!w->recorder || has_just_failed(w->recorder))
        return;
    w->recorder->failed_ns = bny_now_ns();
    bny_recorder_dump(w, why);
}

void bny_recorder_tick(struct bny_world *w)
{
    unsigned now = atomic_load_explicit(&signals, memory_order_relaxed);

    if (w->recorder->asked == now)
        return;
    w->recorder->asked = now;
    bny_recorder_dump(w, "SIGUSR2");
}

/* From the control plane's thread: the rank may be in its own code, and nobody drives. A thread
 * that waits in the library holds the lock for moments only. */
void bny_recorder_aside(struct bny_world *w)
{
    struct bny_recorder *r = w->recorder;
    struct bny_failure f;
    int logged = bny_control_logged(w->control);

    if (!r || (r->asked == atomic_load(&signals) && r->logged == logged) ||
        !bny_world_trylock(w))
        return;
    bny_recorder_tick(w);
    if (r->logged != logged && !has_just_failed(r) && bny_control_failure(w->control, &f)) {
        f.text[sizeof f.text - 1] = '\0';
        bny_recorder_dump(w, f.text); /* its communicators may have to hear of it yet */
    }
    r->logged = logged;
    bny_world_unlock(w);
}

static void open_dump(const struct bny_world *w, struct bny_recorder *r, const char *folder)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        bny_warn("BANYAN_DUMP=%s: %s; nothing is dumped", folder, strerror(errno));
    else if (snprintf(r->dump, sizeof r->dump, "%s/banyan-%02x%02x%02x%02x-rank%d.json", folder,
                      w->job[0], w->job[1], w->job[2], w->job[3],
                      w->rank) >= (int)sizeof r->dump) {
        bny_warn("BANYAN_DUMP=%s: the path is too long; nothing is dumped", folder);
        r->dump[0] = '\0';
    }
}

/* A later job of this process, as the one that a job grows into, has a file of its own. */
static void open_trace(struct bny_world *w, struct bny_recorder *r, const char *trace)
{
    static _Atomic int worlds;
    char job[12] = "";

    if (atomic_fetch_add(&worlds, 1) > 0)
        snprintf(job, sizeof job, ".%02x%02x%02x%02x", w->job[0], w->job[1], w->job[2],
                 w->job[3]);
    if (snprintf(r->trace, sizeof r->trace, "%s%s.rank%d", trace, job, w->rank) >=
        (int)sizeof r->trace)
        bny_warn("BANYAN_TRACE=%s: the path is too long; nothing is traced", trace);
    else if (bny_trace_begin(w) != 0)
        bny_warn("BANYAN_TRACE=%s: no memory for events; nothing is traced", trace);
    else
        return;
    r->trace[0] = '\0';
}

void bny_recorder_open(struct bny_world *w)
{
    const char *folder = bny_param_str("BANYAN_DUMP"), *trace = bny_param_str("BANYAN_TRACE");
    struct bny_recorder *r;

    if (!*folder && !*trace && !*bny_param_str("BANYAN_METRICS"))
        return;
    r = w->recorder = calloc(1, sizeof *r);
    if (!r) {
        bny_warn("no memory to record operations");
        return;
    }
    if (*folder)
        open_dump(w, r, folder);
    if (*trace)
        open_trace(w, r, trace);
    r->since = moment_now();
    r->asked = atomic_load(&signals);
    if (w->control && atomic_load(&signal_fd) >= 0)
        bny_control_watch_fd(w->control, atomic_load(&signal_fd));
}

void bny_recorder_close(struct bny_world *w)
{
    bny_trace_end(w);
    for (int i = 0; w->recorder && i < ENDED_MAX; i++)
        free(w->recorder->ended[i]);
    free(w->recorder);
    w->recorder = NULL;
}
