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

#define AGAIN_NS 1000000000u

struct moment {
    uint64_t ticks, ns;
};

struct bny_recorder {
    char dump[512], trace[512]; /* "": not asked for */
    int is_finished;            /* the trace is complete */
    struct moment since;
    uint64_t failed_ns; /* when a failure was written last; 0: never */
    int logged; /* failures that were agreed on, when the control plane's thread last looked */
    _Atomic unsigned asked; /* by signals: as many have been answered */
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

/* A counter that a 4 B call can afford to read. */
uint64_t bny_recorder_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t t;

    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return bny_now_ns();
#endif
}

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

/* ---- records ---- */

void bny_recorder_add(struct bny_op *op, uint64_t begun)
{
    struct banyan_comm *c = op->comm;
    struct bny_record *r;

    op->record = 0;
    if (op->parent || op->free_detached)
        return;
    if (!c->records)
        c->records = calloc(1, sizeof *c->records);
    if (!c->records)
        return;
    r = &c->records->of[c->records->n++ % BNY_RECORDS];
    op->record = c->records->n;
    *r = (struct bny_record){
        .number = op->record,
        .begun = begun,
        .count = op->call.count,
        .codec = op->plan.codec ? op->plan.codec->spec : NULL,
        .weighs = op->plan.weighs,
        .name = bny_call_name(&op->call),
        .seq = bny_op_seq(op),
        .root = op->call.collective == BNY_SENDRECV || bny_call_row(&op->call)->rooted
                    ? op->call.root
                    : -1,
        .dtype = (uint8_t)op->call.dtype,
        .is_p2p = op->call.collective == BNY_SENDRECV,
        .esz = (uint8_t)op->esz,
    };
    memcpy(r->schedule, op->plan.schedule, sizeof r->schedule); /* perhaps not all of it */
}

void bny_recorder_end(const struct bny_op *op)
{
    const struct bny_records *all = op->comm->records;
    struct bny_record *r;

    if (!op->record || !all)
        return;
    r = (struct bny_record *)&all->of[(op->record - 1) % BNY_RECORDS];
    if (r->number != op->record)
        return;
    r->ended = bny_recorder_ticks();
    r->result = op->result;
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

static void write_record(FILE *f, const struct banyan_comm *c, const struct bny_record *r,
                         const struct ticks_clock *k)
{
    const struct bny_op *op = r->ended ? NULL : in_flight(c, r->number);

    fprintf(f,
            "{\"record_id\": %llu, \"%s\": %u, \"profiling_name\": \"banyan:%s\", "
            "\"is_p2p\": %s, \"input_sizes\": [[%zu]], \"input_dtypes\": [\"%s\"], "
            "\"bytes\": %zu, \"schedule\": \"%.19s\", \"codec\": \"%s%s\", \"root\": %d, "
            "\"time_created_ns\": %llu",
            (unsigned long long)r->number, r->is_p2p ? "p2p_seq_id" : "collective_seq_id",
            r->seq, r->name, r->is_p2p ? "true" : "false", r->count,
            banyan_dtype_name((enum banyan_dtype)r->dtype), r->count * r->esz, r->schedule,
            r->codec ? r->codec : "none", r->weighs ? " if it pays" : "", r->root,
            (unsigned long long)wall_of(k, r->begun));
    if (!r->ended) {
        fputs(", \"state\": \"started\"", f);
        if (op)
            write_waits(f, op);
    } else {
        bny_fprintf(f,
                    ", \"state\": \"%s\", \"result\": %d, \"time_completed_ns\": %llu, "
                    "\"duration_ms\": %.6f",
                    r->result ? "failed" : "completed", r->result,
                    (unsigned long long)wall_of(k, r->ended),
                    (double)(r->ended - r->begun) * k->ns_per_tick * 1e-6);
    }
    fputc('}', f);
}

static void write_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(f, "\\%c", *text);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, f);
    fputc('"', f);
}

static void write_comm(FILE *f, const struct banyan_comm *c, const struct ticks_clock *k)
{
    const struct bny_records *all = c->records;
    uint64_t first = all && all->n > BNY_RECORDS ? all->n - BNY_RECORDS : 0;

    fprintf(f, "{\"pg_id\": %u, \"rank\": %d, \"ranks\": [", c->id, c->rank);
    for (int r = 0; r < c->n; r++)
        fprintf(f, "%s%d", r ? ", " : "", c->peers[r].world_rank);
    fprintf(f, "], \"next_collective_seq_id\": %u, \"failure\": ",
            atomic_load(&c->position.started));
    write_text(f, bny_comm_has_failed(c) ? c->failure_text : "");
    fputs(", \"entries\": [", f);
    for (uint64_t i = first; all && i < all->n; i++) {
        fputs(i > first ? ",\n " : "\n ", f);
        write_record(f, c, &all->of[i % BNY_RECORDS], k);
    }
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

static void write_file(const struct bny_world *w, const char *variable, const char *path,
                       const char *why)
{
    const struct bny_recorder *r = w->recorder;
    char name[64] = "", part[540], boot[40];
    struct ticks_clock k;
    FILE *f;

    snprintf(part, sizeof part, "%s.part", path);
    f = fopen(part, "we");
    if (!f) {
        bny_warn("%s: %s: %s", variable, part, strerror(errno));
        return;
    }
    k = ticks_now(r);
    gethostname(name, sizeof name - 1);
    fprintf(f,
            "{\"version\": \"banyan 1\", \"rank\": %d, \"world_size\": %d, \"host\": ", w->rank,
            w->nranks);
    write_text(f, name);
    boot_id(boot);
    fprintf(f,
            ", \"pid\": %d, \"boot\": \"%s\", \"time_ns\": %llu, \"reason\": ", (int)getpid(),
            boot, (unsigned long long)k.wall_ns);
    write_text(f, why);
    fputs(", \"communicators\": [", f);
    for (const struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        fputs(c == w->comms ? "\n" : ",\n", f);
        write_comm(f, c, &k);
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
static void asked_aside(void *ctx)
{
    struct bny_world *w = ctx;
    struct bny_recorder *r = w->recorder;
    struct bny_failure f;
    int logged = bny_control_logged(w->control);

    if ((r->asked == atomic_load(&signals) && r->logged == logged) || !bny_world_trylock(w))
        return;
    bny_recorder_tick(w);
    if (r->logged != logged && !has_just_failed(r) && bny_control_failure(w->control, &f)) {
        f.text[sizeof f.text - 1] = '\0';
        bny_recorder_dump(w, f.text); /* its communicators may have to hear of it yet */
    }
    r->logged = logged;
    bny_world_unlock(w);
}

/* The recorder, or NULL and errno. */
static struct bny_recorder *opened(const struct bny_world *w, const char *folder,
                                   const char *trace)
{
    struct bny_recorder *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    if (*folder) {
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            free(r);
            return NULL;
        }
        snprintf(r->dump, sizeof r->dump, "%s/banyan-%02x%02x%02x%02x-rank%d.json", folder,
                 w->job[0], w->job[1], w->job[2], w->job[3], w->rank);
    }
    if (*trace)
        snprintf(r->trace, sizeof r->trace, "%s.rank%d", trace, w->rank);
    r->since = moment_now();
    r->asked = atomic_load(&signals);
    return r;
}

void bny_recorder_open(struct bny_world *w)
{
    const char *folder = bny_param_str("BANYAN_DUMP"), *trace = bny_param_str("BANYAN_TRACE");

    if (!*folder && !*trace)
        return;
    w->recorder = opened(w, folder, trace);
    if (!w->recorder) {
        bny_warn("BANYAN_DUMP=%s: %s; nothing is recorded", folder, strerror(errno));
        return;
    }
    if (*trace && bny_trace_begin(w) != 0)
        bny_warn("BANYAN_TRACE=%s: no memory for events", trace);
    if (w->control)
        bny_control_watch(w->control, atomic_load(&signal_fd), asked_aside, w);
}

void bny_recorder_close(struct bny_world *w)
{
    bny_trace_end(w);
    free(w->recorder);
    w->recorder = NULL;
}
