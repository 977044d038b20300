/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that writes into all it shares, at random and at any moment: into its own segment,
 * which carries records to us, and into ours, which carries what it gives back. We neither
 * crash nor hang, and what we lend to others is only what it may send. BANYAN_TEST_SEED and
 * BANYAN_TEST_SCALE as elsewhere. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "tests/transport/shm/pair.h"

#define SEEDS  60
#define WRITES 20000 /* of one seed, unless it is found out before */
#define HELD   64

static struct hostile {
    struct pair pair;
    uint64_t rng;
    _Atomic int stop, done;
    int seen; /* messages that came of it */
} hostile;

/* Words that lead deeper than random ones mostly do. */
static uint32_t some_word(uint64_t *rng)
{
    uint32_t random = (uint32_t)bny_rng_next(rng);

    switch (bny_rng_below(rng, 4)) {
    case 0: return random;
    case 1: return random & 0x1ff;
    case 2: return 1u << (random & 31);
    default: return random | 0xffff0000u;
    }
}

/* As another process would: no lock, no order, any word. */
static void spoil(struct shm_seg *seg, uint64_t *rng)
{
    size_t control = offsetof(struct shm_seg, ring), ring = sizeof seg->ring;
    size_t at = bny_rng_below(rng, 3) ? bny_rng_below(rng, ring / 4) * 4 + control
                                      : 64 + bny_rng_below(rng, (control - 64) / 4) * 4;

    __atomic_store_n((uint32_t *)(void *)((uint8_t *)seg + at), some_word(rng),
                     __ATOMIC_RELAXED);
}

static void *spoil_all(void *arg)
{
    struct hostile *h = arg;
    struct shm_ep *ep = (struct shm_ep *)h->pair.ep[0];
    const struct shm_ep *victim = (struct shm_ep *)h->pair.ep[1];

    for (int i = 0; i < WRITES && !atomic_load(&h->stop); i++) {
        uint32_t kind = 1 + (uint32_t)bny_rng_below(&h->rng, 4),
                 most = kind == SHM_REC_INLINE ? SHM_INLINE + 1 : SHM_EAGER_MAX;
        struct bny_hdr hdr = header((uint32_t)bny_rng_below(&h->rng, most), 1);

        if (bny_rng_below(&h->rng, 64) == 0)
            spoil(bny_rng_below(&h->rng, 8) ? ep->out : ep->in, &h->rng);
        /* And what looks like a record, where we look for it. */
        if (ep->out_pos - __atomic_load_n(&victim->in_pos, __ATOMIC_RELAXED) < 4)
            bny_shm_post(ep, &hdr, kind | (uint32_t)bny_rng_below(&h->rng, SHM_SLOTS) << 3,
                         bny_rng_next(&h->rng) & 0xffff);
    }
    atomic_store(&h->done, 1);
    return NULL;
}

/* What came lies where the peer may put it, and is as long as it says. */
static void look_at(struct bny_msg *msg, uint8_t *buf)
{
    uint32_t off = 0;

    while (off < msg->hdr.len) {
        const void *ptr;
        uint32_t len = msg->hdr.len - off < 4096 ? msg->hdr.len - off : 4096;
        long n = bny_shm_ops.view(msg, off, len, buf, &ptr);

        if (n <= 0)
            return;
        off += (uint32_t)n;
    }
}

/* Returns 1: the peer is known to be a liar. */
static int live_through(struct hostile *h)
{
    static uint8_t buf[4096], mine[2000];
    struct bny_msg *held[HELD];
    int n = 0, down = 0;

    for (int round = 0; !down && !atomic_load(&h->done); round++) {
        struct bny_hdr hdr = header(sizeof mine, (uint32_t)round);
        struct bny_event ev[4];
        int got = bny_shm_ops.poll(h->pair.tp[1], ev, 4);

        for (int i = 0; i < got; i++) {
            if (ev[i].kind == BNY_EV_MSG && n < HELD)
                held[n++] = ev[i].msg;
            else if (ev[i].kind == BNY_EV_MSG)
                bny_shm_ops.release(ev[i].msg);
            h->seen += ev[i].kind == BNY_EV_MSG;
            down |= ev[i].kind == BNY_EV_DOWN;
        }
        if (n && round % 3 == 0) {
            look_at(held[--n], buf);
            bny_shm_ops.release(held[n]);
        }
        if (round % 2)
            bny_shm_ops.send(h->pair.ep[1], &hdr, mine, mine);
        else
            bny_shm_ops.eager(h->pair.ep[1], &hdr, mine);
    }
    while (n)
        bny_shm_ops.release(held[--n]);
    return down;
}

Test(shm_hostile, random_words_everywhere_crash_nobody, .timeout = 120)
{
    const char *scale = getenv("BANYAN_TEST_SCALE"), *seed = getenv("BANYAN_TEST_SEED");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 20261130;
    int seeds = (int)(SEEDS * (scale && atof(scale) > 1 ? atof(scale) : 1)), liars = 0;

    banyan_set_log(NULL, NULL, BANYAN_LOG_ERROR);
    setenv("BANYAN_DEBUG", "error", 1);
    for (int i = 0; i < seeds; i++) {
        struct hostile *h = &hostile;
        struct bny_hdr hdr = header(0, 0);
        struct bny_event ev;
        pthread_t thread;

        h->rng = first + (uint64_t)i;
        atomic_store(&h->stop, 0);
        atomic_store(&h->done, 0);
        pair_open(&h->pair, i % 2 ? "1" : "0");
        for (int r = 0; r < 2; r++) { /* both segments are there */
            /* As of another process: one of ours would be trusted with addresses. */
            ((struct shm_ep *)h->pair.ep[r])->copy = i % 2 ? SHM_COPY_CMA : SHM_COPY_NONE;
            cr_assert_eq(bny_shm_ops.eager(h->pair.ep[r], &hdr, NULL), 0);
            cr_assert(next_event(h->pair.tp[!r], &ev) && ev.kind == BNY_EV_MSG);
            bny_shm_ops.release(ev.msg);
        }
        cr_assert_eq(pthread_create(&thread, NULL, spoil_all, h), 0);
        liars += live_through(h);
        atomic_store(&h->stop, 1);
        pthread_join(thread, NULL);
        pair_close(&h->pair);
    }
    fprintf(stderr, "# %d of %d seeds were found out, %d messages came\n", liars, seeds,
            hostile.seen);
    cr_assert_gt(liars, 0, "nobody was found out");
    cr_assert_gt(hostile.seen, 0, "no message came");
}
