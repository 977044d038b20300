/* SPDX-License-Identifier: BSD-3-Clause */
/* The limit of an allreduce (f32 sum, in place) between two processes, written by hand: no
 * headers, no choice, no checks. Of these ways the fastest counts at each size:
 *   slots      each copies its data into a shared slot, raises its flag, and adds the other's
 *   halves     each reduces one half: reads the other's half in tiles that stay in L2, adds,
 * and writes the sum back. Private buffers: process_vm_readv/writev. Shared buffers: loads and
 * stores writeback  (private) each puts the half that is not its own into a ring, chunk by
 * chunk; the other adds it to its own half, and stores the sum there and back into the ring And
 * the limit of a barrier, a flag each: which tells how near to each other the host has put the
 * two CPUs at the moment. usage: limit private|shared allreduce|barrier ITERS WARMUP 1 SIZE...
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peer_loop.h"

#define SLOT_BYTES    (64 << 10)
#define TILE_FLOATS   (16 << 10)
#define INLINE_FLOATS 12 /* fit into the flag's cache line */
#define TIMES_MAX     100000
#define RING_SLOTS    8
#define RING_FLOATS   (8 << 10) /* a slot: 32 KiB */
#define RING_LAG      3         /* chunks from in to add, and from add to out */
/* The rank's buffers begin so much later: at a distance of a power of two the lines of both
 * would share their ways in the caches. */
#define COLOUR (64 * 37)

struct shared {
    struct side {
        _Alignas(128) _Atomic uint64_t
            ready; /* slots: number of the operation whose data is there */
        float small[2][INLINE_FLOATS / 2];
        _Alignas(128) _Atomic uint64_t start, done; /* halves */
        _Alignas(128) _Atomic uint64_t barrier;
        _Alignas(128) _Atomic uint64_t in, sum; /* writeback: chunks */
        _Alignas(64) float slot[2][SLOT_BYTES / 4];
        _Alignas(64) float ring[RING_SLOTS][RING_FLOATS];
        float *buffer;
        pid_t pid;
    } side[2];
    double times[TIMES_MAX];
    char *arena; /* buffers of both ranks, when shared */
};

struct limit {
    struct shared *sh;
    int shared;
    enum { SLOTS, HALVES, WRITEBACK, BARRIER } way;
    uint64_t op, sync, chunks;
    pid_t peer;
    float *theirs;
    size_t used;
};
#define ARENA_BYTES ((size_t)1 << 30)

static void wait_until(_Atomic uint64_t *flag, uint64_t value)
{
    for (unsigned i = 0; atomic_load_explicit(flag, memory_order_acquire) < value; i++)
        if (i > 100000)
            sched_yield();
        else
            __builtin_ia32_pause();
}

static void barrier(struct peer *p)
{
    struct limit *l = (struct limit *)p->ctx;

    atomic_store_explicit(&l->sh->side[p->rank].barrier, ++l->sync, memory_order_release);
    wait_until(&l->sh->side[!p->rank].barrier, l->sync);
}

static void add(float *restrict dst, const float *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}

static void add_both(float *restrict dst, float *restrict other, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = other[i] = dst[i] + other[i];
}

/* Two slots in turn: a rank is at most one operation ahead of the other. */
static void by_slots(struct limit *l, int rank, float *buf, size_t n)
{
    struct side *me = &l->sh->side[rank], *peer = &l->sh->side[!rank];
    uint64_t op = ++l->op;
    int small = n <= INLINE_FLOATS / 2;
    float *mine = small ? me->small[op & 1] : me->slot[op & 1];
    const float *theirs = small ? peer->small[op & 1] : peer->slot[op & 1];

    memcpy(mine, buf, n * 4);
    atomic_store_explicit(&me->ready, op, memory_order_release);
    wait_until(&peer->ready, op);
    add(buf, theirs, n);
}

static void move(pid_t pid, float *local, float *remote, size_t n, int write)
{
    struct iovec a = { local, n * 4 }, b = { remote, n * 4 };
    ssize_t did = write ? process_vm_writev(pid, &a, 1, &b, 1, 0)
                        : process_vm_readv(pid, &a, 1, &b, 1, 0);

    if (did != (ssize_t)(n * 4)) {
        perror("limit: process_vm_readv/writev");
        exit(1);
    }
}

static void by_halves(struct limit *l, int rank, float *buf, size_t n)
{
    static float tile[TILE_FLOATS] __attribute__((aligned(64)));
    struct side *me = &l->sh->side[rank], *peer = &l->sh->side[!rank];
    size_t half = n / 2, from = rank ? half : 0, to = rank ? n : half;
    uint64_t op = ++l->op;

    atomic_store_explicit(&me->start, op, memory_order_release);
    wait_until(&peer->start, op);
    for (size_t i = from; i < to; i += TILE_FLOATS) {
        size_t m = to - i < TILE_FLOATS ? to - i : TILE_FLOATS;

        if (l->shared) {
            add_both(buf + i, l->theirs + i, m);
        } else {
            move(l->peer, tile, l->theirs + i, m, 0);
            add(buf + i, tile, m);
            move(l->peer, buf + i, l->theirs + i, m, 1);
        }
    }
    atomic_store_explicit(&me->done, op, memory_order_release);
    wait_until(&peer->done, op);
}

/* Flow control is implied: when the other's chunk k is there, it has taken out all up to
 * k - 2 * RING_LAG, and a slot is used anew after more than that. */
static void by_writeback(struct limit *l, int rank, float *buf, size_t n)
{
    struct side *me = &l->sh->side[rank], *peer = &l->sh->side[!rank];
    size_t half = n / 2, step = n * 4 > 128 << 10 ? RING_FLOATS : RING_FLOATS / 2;
    float *own = buf + (rank ? half : 0), *other = buf + (rank ? 0 : half);
    size_t nown = rank ? n - half : half, nother = n - nown;
    size_t chunks = (n - half + step - 1) / step;
    uint64_t base = l->chunks;

    l->chunks += chunks;
    for (size_t i = 0; i < chunks + 2 * RING_LAG; i++) {
        size_t add_at = (i - RING_LAG) * step, out_at = (i - 2 * RING_LAG) * step,
               at = i * step;

        if (i < chunks) {
            if (at < nother)
                memcpy(me->ring[i % RING_SLOTS], other + at,
                       (nother - at < step ? nother - at : step) * 4);
            atomic_store_explicit(&me->in, base + i + 1, memory_order_release);
        }
        if (i >= RING_LAG && i - RING_LAG < chunks) {
            wait_until(&peer->in, base + i - RING_LAG + 1);
            if (add_at < nown)
                add_both(own + add_at, peer->ring[(i - RING_LAG) % RING_SLOTS],
                         nown - add_at < step ? nown - add_at : step);
            atomic_store_explicit(&me->sum, base + i - RING_LAG + 1, memory_order_release);
        }
        if (i >= 2 * RING_LAG) {
            wait_until(&peer->sum, base + i - 2 * RING_LAG + 1);
            if (out_at < nother)
                memcpy(other + out_at, me->ring[(i - 2 * RING_LAG) % RING_SLOTS],
                       (nother - out_at < step ? nother - out_at : step) * 4);
        }
    }
}

static int run(struct peer *p, const struct peer_call *c)
{
    struct limit *l = (struct limit *)p->ctx;

    switch (l->way) {
    case SLOTS: by_slots(l, p->rank, c->recv, c->count); break;
    case HALVES: by_halves(l, p->rank, c->recv, c->count); break;
    case WRITEBACK: by_writeback(l, p->rank, c->recv, c->count); break;
    case BARRIER: barrier(p); break;
    }
    return 0;
}

static void max_times(struct peer *p, double *us, int n)
{
    struct limit *l = (struct limit *)p->ctx;

    if (p->rank == 1)
        memcpy(l->sh->times, us, (size_t)n * sizeof *us);
    barrier(p);
    for (int i = 0; p->rank == 0 && i < n; i++)
        us[i] = us[i] > l->sh->times[i] ? us[i] : l->sh->times[i];
    barrier(p);
}

static void prepare(struct peer *p, const struct peer_call *c)
{
    struct limit *l = (struct limit *)p->ctx;

    l->sh->side[p->rank].buffer = c->recv;
    l->sh->side[p->rank].pid = getpid();
    barrier(p);
    l->theirs = l->sh->side[!p->rank].buffer;
    l->peer = l->sh->side[!p->rank].pid;
}

/* The arena was mapped before the fork: the same addresses at both. */
static float *alloc_shared(struct peer *p, size_t bytes)
{
    struct limit *l = (struct limit *)p->ctx;
    char *m = l->sh->arena + (size_t)p->rank * (ARENA_BYTES / 2 + COLOUR) + l->used;

    l->used += bytes;
    return l->used <= ARENA_BYTES / 2 - COLOUR ? (float *)m : NULL;
}

static void *map_shared(size_t bytes)
{
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (m == MAP_FAILED) {
        perror("limit: mmap");
        exit(1);
    }
    return m;
}

static void pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv)
{
    struct limit l = { 0 };
    struct peer p = { .nranks = 2,
                      .ctx = &l,
                      .barrier = barrier,
                      .run = run,
                      .max_times = max_times,
                      .prepare = prepare };
    pid_t child;
    static const char *const names[] = { "slots", "halves", "writeback", "barrier" };
    int rc = 0, status = 0, first, last;
    size_t most = 0;

    if (argc < 7 || (strcmp(argv[2], "allreduce") && strcmp(argv[2], "barrier"))) {
        fprintf(stderr,
                "usage: limit private|shared allreduce|barrier ITERS WARMUP 1 SIZE...\n");
        return 2;
    }
    l.shared = !strcmp(argv[1], "shared");
    l.sh = (struct shared *)map_shared(sizeof *l.sh);
    if (l.shared) {
        l.sh->arena = (char *)map_shared(ARENA_BYTES);
        p.alloc = alloc_shared;
    }
    for (int i = 6; i < argc; i++)
        most = strtoul(argv[i], NULL, 10) > most ? strtoul(argv[i], NULL, 10) : most;
    child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    p.rank = child == 0;
    pin(p.rank);
    first = !strcmp(argv[2], "barrier") ? BARRIER : most > SLOT_BYTES ? HALVES : SLOTS;
    last = first == BARRIER ? BARRIER : l.shared ? HALVES : WRITEBACK;
    for (int way = first; way <= last && rc == 0; way++) {
        l.way = way;
        p.name = names[way];
        l.used = 0;
        rc = peer_main(&p, argc - 1, argv + 1);
    }
    if (child == 0)
        exit(rc);
    if (waitpid(child, &status, 0) == child && status)
        rc = 1;
    return rc;
}
