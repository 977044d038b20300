/* SPDX-License-Identifier: BSD-3-Clause */
/* What two ranks of one machine can reach at best, and what the shared-memory transport
 * reaches.
 *
 *   shm_limits exchange [max_bytes [tile]]   two ranks, f32 sum in place: hand-written
 *       between private buffers (process_vm_readv, add, process_vm_writev, tile by tile) and
 *       between shared ones (loads and stores), and both through the transport's calls
 *       (descriptor, view, add, put), without an engine. The slowest rank's microseconds.
 *   shm_limits oneway [max_bytes]   half a round trip of a message whose bytes end in the
 *       receiver's memory: a bare cache line, then eager, slot, and descriptor of private and
 *       of shared memory. A way that does not carry a size shows 0.
 *
 * The cases of one size are interleaved; buffers are rewritten before every operation, else
 * caches lie. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "transport/shm/shm.h"

#define REPS      200        /* most repetitions of a case and size */
#define BUDGET_NS 150000000u /* time for a case and size, so that the largest sizes end too */
#define BATCH_MAX 32768u     /* up to this size 16 operations per clock reading */
#define PUT_CHUNK (512u << 10)

struct line {
    _Alignas(64) _Atomic uint64_t v;
};
struct board { /* shared by the two processes */
    struct line barrier[2], flag[2], done[2];
    _Alignas(64) float mail[2][2][2048]; /* rank, parity: small messages of the hand-written
                                            exchange */
    uint8_t blob[2][BNY_ADDR_MAX];
    int blob_len[2];
    pid_t pid[2];
    void *private_buf[2];
    double us[2][2]; /* microseconds; whether to go on */
};

struct rank {
    struct board *b;
    int me;
    uint64_t barriers, flags; /* counts of our own */
    float *priv, *shared, *peer_shared, *arena, *tile;
    size_t tile_bytes;
    struct bny_tp *tp;
    struct bny_ep *ep;
    uint32_t seq;
    struct bny_msg *queue,
        **queue_end; /* messages of the next operation, while this one's sends end */
    uint64_t sends, sent;
};

static void die(const char *what)
{
    fprintf(stderr, "shm_limits: %s: %s\n", what, banyan_last_error());
    _exit(1);
}

static void wait_for(_Atomic uint64_t *v, uint64_t at_least)
{
    while (atomic_load_explicit(v, memory_order_acquire) < at_least)
        bny_pause();
}

static void barrier(struct rank *r)
{
    atomic_store_explicit(&r->b->barrier[r->me].v, ++r->barriers, memory_order_release);
    wait_for(&r->b->barrier[!r->me].v, r->barriers);
}

__attribute__((target_clones("avx512f", "avx2", "default"))) static void
add(float *restrict x, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}

__attribute__((target_clones("avx512f", "avx2", "default"))) static void
add_both(float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float s = x[i] + y[i];

        x[i] = s;
        y[i] = s;
    }
}

/* ---- hand-written ---- */

static void hand_small(struct rank *r, float *buf, size_t bytes)
{
    int parity = (int)(++r->flags & 1); /* the peer may still read the other one */

    memcpy(r->b->mail[r->me][parity], buf, bytes);
    atomic_store_explicit(&r->b->flag[r->me].v, r->flags, memory_order_release);
    wait_for(&r->b->flag[!r->me].v, r->flags);
    add(buf, r->b->mail[!r->me][parity], bytes / 4);
}

static void hand_start(struct rank *r)
{
    atomic_store_explicit(&r->b->flag[r->me].v, ++r->flags, memory_order_release);
    wait_for(&r->b->flag[!r->me].v, r->flags);
}

static void hand_end(struct rank *r)
{
    atomic_store_explicit(&r->b->done[r->me].v, r->flags, memory_order_release);
    wait_for(&r->b->done[!r->me].v, r->flags);
}

static void hand_private(struct rank *r, size_t bytes)
{
    size_t from = r->me ? bytes / 8 * 4 : 0, to = r->me ? bytes : bytes / 8 * 4;

    if (bytes <= sizeof r->b->mail[0][0]) {
        hand_small(r, r->priv, bytes);
        return;
    }
    hand_start(r);
    for (size_t at = from; at < to; at += r->tile_bytes) {
        size_t n = to - at < r->tile_bytes ? to - at : r->tile_bytes;
        char *mine = (char *)r->priv + at, *theirs = (char *)r->b->private_buf[!r->me] + at;
        struct iovec tile = { r->tile, n }, sum = { mine, n }, remote = { theirs, n };

        if (process_vm_readv(r->b->pid[!r->me], &tile, 1, &remote, 1, 0) != (ssize_t)n)
            die("process_vm_readv");
        add((float *)mine, r->tile, n / 4);
        if (process_vm_writev(r->b->pid[!r->me], &sum, 1, &remote, 1, 0) != (ssize_t)n)
            die("process_vm_writev");
    }
    hand_end(r);
}

static void hand_shared(struct rank *r, size_t bytes)
{
    size_t n = bytes / 4, from = r->me ? n / 2 : 0, to = r->me ? n : n / 2;

    if (bytes <= sizeof r->b->mail[0][0]) {
        hand_small(r, r->shared, bytes);
        return;
    }
    hand_start(r);
    add_both(r->shared + from, r->peer_shared + from, to - from);
    hand_end(r);
}

/* ---- through the transport ---- */

/* One event, if there is one: counts SENT, queues messages. */
static void collect(struct rank *r)
{
    struct bny_event ev;
    int n = bny_shm_ops.poll_ep(r->ep, &ev, 1);

    if (n < 0 || (n == 1 && ev.kind == BNY_EV_DOWN))
        die("poll");
    if (n == 0) {
        bny_pause();
    } else if (ev.kind == BNY_EV_SENT) {
        r->sent++;
    } else {
        ev.msg->next = NULL;
        *r->queue_end = ev.msg;
        r->queue_end = &ev.msg->next;
    }
}

static struct bny_msg *next_msg(struct rank *r)
{
    struct bny_msg *m;

    while (!r->queue)
        collect(r);
    m = r->queue;
    r->queue = m->next;
    if (!r->queue)
        r->queue_end = &r->queue;
    return m;
}

static void check(int rc, const char *what)
{
    if (rc != 0)
        die(what);
}

static void tp_small(struct rank *r, float *buf, size_t bytes)
{
    struct bny_hdr h = { .seq = r->seq++, .kind = BNY_MSG_DATA, .len = (uint32_t)bytes };
    struct bny_msg *m;

    check(bny_shm_ops.eager(r->ep, &h, buf), "eager");
    m = next_msg(r);
    add(buf, m->data, bytes / 4);
    bny_shm_ops.release(m);
}

/* The peer's half of a message: view, add, put the sum back. */
static void tp_reduce(struct rank *r, struct bny_msg *m, char *mine,
                      const struct bny_window *win)
{
    struct bny_hdr h = { .kind = BNY_MSG_PUT, .chunk = m->hdr.chunk };
    uint32_t off = 0, from = 0, len = m->hdr.len;
    int rc;
    uint64_t base = (uint64_t)m->hdr.chunk * PUT_CHUNK;

    while (off < len) {
        const void *p;
        uint32_t want = len - off < r->tile_bytes ? len - off : (uint32_t)r->tile_bytes;
        long n = bny_shm_ops.view(m, off, want, NULL, &p);

        if (n <= 0)
            die("view");
        add((float *)(mine + base + off), p, (size_t)n / 4);
        off += (uint32_t)n;
        h.codec_len_raw = off - from;
        do {
            rc = bny_shm_ops.put(r->ep, &h, mine + base + from, off - from, win, base + from,
                                 NULL);
            if (rc == BNY_AGAIN)
                collect(r);
        } while (rc == BNY_AGAIN);
        check(rc, "put");
        from = off;
    }
    bny_shm_ops.release(m);
}

static void tp_exchange(struct rank *r, float *buf, size_t bytes)
{
    size_t half = bytes / 8 * 4, ours = r->me ? half : 0, theirs = r->me ? 0 : half;
    size_t theirs_len = r->me ? half : bytes - half, ours_len = bytes - theirs_len;
    struct bny_hdr h = { .kind = BNY_MSG_READY, .len = sizeof(struct bny_window) };
    struct bny_window win, peer = { 0 };
    size_t to_send = 0, reduced = 0, landed = 0;

    check(bny_shm_ops.window_open(r->ep, (char *)buf + theirs, theirs_len, &win),
          "window_open");
    check(bny_shm_ops.eager(r->ep, &h, &win), "eager");
    while (to_send < theirs_len) {
        h = (struct bny_hdr){ .kind = BNY_MSG_DATA, .chunk = (uint32_t)(to_send / PUT_CHUNK) };
        h.len = (uint32_t)(theirs_len - to_send < PUT_CHUNK ? theirs_len - to_send : PUT_CHUNK);
        check(bny_shm_ops.send(r->ep, &h, (char *)buf + theirs + to_send, r), "send");
        to_send += h.len;
        r->sends++;
    }
    while (reduced < ours_len || landed < theirs_len) {
        struct bny_msg *m = next_msg(r);

        if (m->hdr.kind == BNY_MSG_DATA) {
            reduced += m->hdr.len;
            tp_reduce(r, m, (char *)buf + ours, &peer);
            continue;
        }
        if (m->hdr.kind == BNY_MSG_READY)
            memcpy(&peer, m->data, sizeof peer);
        else
            landed += m->hdr.codec_len_raw;
        bny_shm_ops.release(m);
    }
    while (r->sent < r->sends)
        collect(r);
    check(bny_shm_ops.window_close(r->ep, &win), "window_close");
}

static void tp_private(struct rank *r, size_t bytes)
{
    if (bytes <= r->ep->eager_max)
        tp_small(r, r->priv, bytes);
    else
        tp_exchange(r, r->priv, bytes);
}

static void tp_arena(struct rank *r, size_t bytes)
{
    if (bytes <= r->ep->eager_max)
        tp_small(r, r->arena, bytes);
    else
        tp_exchange(r, r->arena, bytes);
}

/* ---- one way ---- */

static void line_pingpong(struct rank *r, size_t bytes)
{
    if (bytes > 8)
        return;
    if (r->me == 0)
        atomic_store_explicit(&r->b->flag[0].v, ++r->flags, memory_order_release);
    else
        ++r->flags;
    wait_for(&r->b->flag[!r->me].v, r->flags);
    if (r->me == 1)
        atomic_store_explicit(&r->b->flag[1].v, r->flags, memory_order_release);
}

static void one_message(struct rank *r, size_t bytes, int way, float *buf)
{
    struct bny_hdr h = { .kind = BNY_MSG_DATA, .len = (uint32_t)bytes };
    struct bny_slot slot;

    switch (way) {
    case 0: check(bny_shm_ops.eager(r->ep, &h, buf), "eager"); break;
    case 1:
        check(bny_shm_ops.reserve(r->ep, h.len, &slot), "reserve");
        memcpy(slot.mem, buf, bytes);
        check(bny_shm_ops.commit(r->ep, &slot, &h), "commit");
        break;
    default: check(bny_shm_ops.send(r->ep, &h, buf, r), "send"); r->sends++;
    }
}

static void pingpong(struct rank *r, size_t bytes, int way, float *buf)
{
    for (int turn = 0; turn < 2; turn++) {
        if (turn == r->me) {
            one_message(r, bytes, way, buf);
        } else {
            struct bny_msg *m = next_msg(r);
            const void *p;

            if (bny_shm_ops.view(m, 0, (uint32_t)bytes, r->tile, &p) < 0)
                die("view");
            bny_shm_ops.release(m);
        }
    }
}

static void way_eager(struct rank *r, size_t bytes)
{
    if (bytes <= r->ep->eager_max)
        pingpong(r, bytes, 0, r->priv);
}

static void way_slot(struct rank *r, size_t bytes)
{
    if (bytes <= r->ep->slot_max)
        pingpong(r, bytes, 1, r->priv);
}

static void way_private(struct rank *r, size_t bytes)
{
    pingpong(r, bytes, 2, r->priv);
}

static void way_arena(struct rank *r, size_t bytes)
{
    pingpong(r, bytes, 2, r->arena);
}

/* ---- the table ---- */

struct perf_case {
    const char *name;
    void (*run)(struct rank *r, size_t bytes);
};
static const struct perf_case exchange_cases[] = {
    { "hand_private", hand_private },
    { "shm_private", tp_private },
    { "hand_shared", hand_shared },
    { "shm_arena", tp_arena },
    { NULL, NULL },
};
static const struct perf_case oneway_cases[] = {
    { "line", line_pingpong },       { "eager", way_eager },      { "slot", way_slot },
    { "send_private", way_private }, { "send_arena", way_arena }, { NULL, NULL },
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void rewrite(struct rank *r, size_t bytes)
{
    for (size_t i = 0; i < bytes / 4; i++)
        r->priv[i] = r->shared[i] = r->arena[i] = 1.0f;
}

/* Every operation doubles the values of the one buffer that it works on. */
static void verify(const struct rank *r, size_t bytes, int batch, const char *name)
{
    const float *bufs[3] = { r->priv, r->shared, r->arena }, want = (float)(1 << batch);
    int done = 0;

    for (int k = 0; k < 3; k++) {
        done += bufs[k][0] == want;
        for (size_t i = 1; i < bytes / 4; i++)
            if (bufs[k][i] != bufs[k][0]) {
                fprintf(stderr, "shm_limits: %s: wrong value %g at %zu of %zu bytes\n", name,
                        (double)bufs[k][i], i, bytes);
                _exit(1);
            }
    }
    if (done != 1) {
        fprintf(stderr, "shm_limits: %s: %d of 3 buffers were summed\n", name, done);
        _exit(1);
    }
}

static void measure(struct rank *r, const struct perf_case *cases, size_t bytes, int oneway)
{
    double us[8][REPS], once = oneway ? 2000.0 : 1000.0;
    int batch = bytes <= BATCH_MAX ? 16 : 1, reps = 0, n = 0;
    uint64_t end = bny_now_ns() + 4 * (uint64_t)BUDGET_NS;
    int more = 1;

    while (cases[n].run)
        n++;
    while (more && reps < REPS) {
        for (int c = 0; c < n; c++) {
            uint64_t t;

            rewrite(r, bytes);
            barrier(r);
            t = bny_now_ns();
            for (int k = 0; k < batch; k++)
                cases[c].run(r, bytes);
            r->b->us[r->me][0] = (double)(bny_now_ns() - t) / once / batch;
            r->b->us[r->me][1] = reps < 5 || bny_now_ns() < end;
            barrier(r);
            if (!oneway)
                verify(r, bytes, batch, cases[c].name);
            us[c][reps] = r->b->us[0][0] > r->b->us[1][0] ? r->b->us[0][0] : r->b->us[1][0];
            more = r->b->us[0][1] != 0; /* rank 0 decides for both */
            barrier(r);
        }
        reps++;
    }
    if (r->me == 0) {
        printf("%10zu", bytes);
        for (int c = 0; c < n; c++) {
            qsort(us[c], (size_t)reps, sizeof(double), by_value);
            printf(" %14.3f", us[c][reps / 2] < 0.05 ? 0.0 : us[c][reps / 2]);
        }
        printf("\n");
        fflush(stdout);
    }
}

static float *shared_pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

static void setup(struct rank *r, size_t max)
{
    static const uint8_t secret[32];
    struct bny_tp_config cfg = { .rank = r->me, .nranks = 2, .secret = secret };
    struct board *b = r->b;
    cpu_set_t cpu;
    void *arena;

    r->queue_end = &r->queue;
    CPU_ZERO(&cpu);
    CPU_SET(r->me, &cpu);
    sched_setaffinity(0, sizeof cpu, &cpu); /* best effort */
    r->priv = malloc(max);
    r->tile = malloc(max > 1 << 20 ? max : 1 << 20);
    check(bny_shm_ops.create(&r->tp, &cfg), "create");
    check(bny_shm_ops.mem_alloc(r->tp, max, &arena), "mem_alloc");
    r->arena = arena;
    b->pid[r->me] = getpid();
    b->private_buf[r->me] = r->priv;
    b->blob_len[r->me] = bny_shm_ops.address(r->tp, b->blob[r->me], BNY_ADDR_MAX);
    barrier(r);
    check(bny_shm_ops.connect(r->tp, !r->me, b->blob[!r->me], (size_t)b->blob_len[!r->me],
                              &r->ep),
          "connect");
}

static int run(struct rank *r, const struct perf_case *cases, size_t max, int oneway)
{
    setup(r, max);
    tp_small(r, r->priv, 4);
    if (r->me == 0) {
        printf("# us, %s\n%10s", oneway ? "one way" : "two ranks, f32 sum in place", "bytes");
        for (int c = 0; cases[c].run; c++)
            printf(" %14s", cases[c].name);
        printf("\n");
    }
    for (size_t bytes = 4; bytes <= max; bytes *= bytes < 1024 || bytes >= 262144 ? 4 : 2)
        measure(r, cases, bytes, oneway);
    barrier(r);
    bny_shm_ops.farewell(r->tp);
    barrier(r);
    bny_shm_ops.destroy(r->tp);
    return 0;
}

int main(int argc, char **argv)
{
    int oneway = argc > 1 && !strcmp(argv[1], "oneway"), status = 1;
    size_t max = oneway ? 1 << 20 : 64u << 20, tile = 64 << 10;
    struct rank r = { 0 };
    pid_t child;

    if (argc < 2 || (!oneway && strcmp(argv[1], "exchange"))) {
        fprintf(stderr, "usage: shm_limits exchange [max_bytes [tile]] | oneway [max_bytes]\n");
        return 2;
    }
    if (argc > 2)
        max = (size_t)atoll(argv[2]);
    if (argc > 3)
        tile = (size_t)atoll(argv[3]);
    r.b = mmap(NULL, sizeof *r.b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r.b == MAP_FAILED)
        return 1;
    r.tile_bytes = tile;
    r.shared = shared_pages(max);
    r.peer_shared = shared_pages(max);
    child = fork();
    if (child == 0) {
        float *mine = r.peer_shared;

        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a rank spins when the other one is gone */
        r.peer_shared = r.shared;
        r.shared = mine;
        r.me = 1;
        _exit(run(&r, oneway ? oneway_cases : exchange_cases, max, oneway));
    }
    run(&r, oneway ? oneway_cases : exchange_cases, max, oneway);
    waitpid(child, &status, 0);
    return status != 0;
}
