/* SPDX-License-Identifier: BSD-3-Clause */
/* Rounds of calls at random. */
#include "tests/mp/mix.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"

/* ---- what a round does ---- */
static void draw_exact(struct mix *m, struct mix_item *it, int number, uint64_t seed)
{
    static const char *const codecs[] = {
        "", "", "", "none", "lossless", "lossless:force=1", "blocksparse", "blocksparse:force=1"
    };
    static const enum coll vectors[] = { C_ALLGATHERV, C_GATHERV, C_SCATTERV, C_ALLTOALLV };
    uint64_t s = seed ^ 0xc0dec, memory = bny_rng_below(&m->own, 4);
    int n = banyan_comm_count(m->comm[it->comm]);

    call_random(&it->call, n, m->max, seed, bny_rng_next(&m->own));
    snprintf(it->call.codec, sizeof it->call.codec, "%s",
             codecs[bny_rng_below(&s, sizeof codecs / sizeof codecs[0])]);
    if (bny_rng_below(&s, 5) == 0) {
        it->call.coll = vectors[bny_rng_below(&s, sizeof vectors / sizeof vectors[0])];
        it->call.op = (enum model_op)BANYAN_SUM;
        it->call.in_place &= it->call.coll == C_ALLGATHERV;
        it->call.count /= (size_t)n;
    }
    if (bny_rng_below(&s, 4) == 0) { /* large enough that the call's bytes decide on chunks */
        size_t unit = model_unit(it->call.op);
        size_t most = m->max / banyan_dtype_bytes(it->call.dtype) / (size_t)n / unit;
        it->call.count = (most / 4 + bny_rng_below(&s, most - most / 4)) * unit;
    }
    if (bny_rng_below(&s, 2)) /* most names serve few collectives */
        it->call.schedule = NULL;
    if (!*it->call.codec && getenv("BANYAN_CODEC")) /* which may lose something */
        snprintf(it->call.codec, sizeof it->call.codec, "none");
    it->call.deterministic = (int)bny_rng_below(&s, 6) ? -1 : (int)bny_rng_below(&s, 2);
    it->starts = it->call.in_place ? 1 : 1 + (int)bny_rng_below(&s, 3);
    if (memory < 2 && m->pool[number][memory].mem[0])
        it->call.pool = &m->pool[number][memory];
}

static enum mix_kind draw_kind(struct mix *m)
{
    uint64_t what = bny_rng_below(&m->shared, 6);
    enum mix_kind kind = what < 2 ? MIX_LOSSY : what == 2 ? MIX_ARRIVAL : MIX_EXACT;

    return m->without >> MIX_MANNERS >> kind & 1 ? MIX_EXACT : kind;
}

static void draw_round(struct mix *m)
{
    int taken[MIX_COMMS] = { 0 };

    m->nitems = 1 + (int)bny_rng_below(&m->shared, MIX_ITEMS);
    for (int i = 0; i < m->nitems; i++) {
        struct mix_item *it = &m->item[i];
        uint64_t seed = bny_rng_next(&m->shared), stateful = bny_rng_below(&m->shared, 3);
        int size = (int)bny_rng_below(&m->shared, 10), which = size == 0 ? 2 : size > 5, n;

        memset(it, 0, sizeof *it);
        it->t = m->t;
        it->comm = (int)bny_rng_below(&m->shared, (uint64_t)m->ncomms);
        it->kind = draw_kind(m);
        it->starts = 1;
        n = banyan_comm_count(m->comm[it->comm]);
        if (it->kind == MIX_EXACT) {
            draw_exact(m, it, i, seed);
        } else if (it->kind == MIX_ARRIVAL) {
            arrival_random(&it->arrival, n, seed);
        } else {
            lossy_random(&it->lossy, which, n, seed);
            it->lossy.count = it->lossy.count / (size_t)n * (size_t)n;
            if (stateful && !taken[it->comm] && it->lossy.count == lossy_count(which)) {
                taken[it->comm] = 1; /* a state serves one call at a time */
                it->lossy.state = m->state[it->comm][which];
            }
        }
    }
}

static enum mix_manner draw_manner(struct mix *m)
{
    enum mix_manner manner = (enum mix_manner)bny_rng_below(&m->shared, MIX_MANNERS);

    return m->without >> manner & 1 ? MIX_IN_TURN : manner;
}

/* ---- one call ---- */
static int item_open(struct mix *m, struct mix_item *it)
{
    struct banyan_comm *comm = m->comm[it->comm];

    if (it->kind == MIX_EXACT)
        it->bound = call_open(m->t, comm, &it->call);
    else if (it->kind == MIX_ARRIVAL)
        it->arrived = arrival_open(m->t, comm, &it->arrival);
    else {
        it->coded = lossy_open(m->t, comm, &it->lossy);
        return lossy_begin(it->coded);
    }
    return 0;
}

static int item_issue(struct mix_item *it, struct banyan_request **rq)
{
    return it->kind == MIX_EXACT   ? call_issue(it->bound, rq)
           : it->kind == MIX_LOSSY ? lossy_issue(it->coded, rq)
                                   : arrival_issue(it->arrived, rq);
}

/* Checks what came of it where that is known (rc 0), and gives back. The error of the call, or
 * of comparing with others. */
static int item_close(struct mix *m, struct mix_item *it, int rc)
{
    int what = rc ? rc : it->rc;

    if (it->bound)
        what = call_close_any(m->t, it->bound, what);
    if (it->coded)
        what = lossy_close(m->t, it->coded, what);
    if (it->arrived)
        what = arrival_close(m->t, it->arrived, what);
    __atomic_fetch_add(&m->calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&m->refused, what > 0, __ATOMIC_RELAXED);
    return what > 0 ? 0 : what;
}

/* Of all items; not of those that a failure has left unopened. */
static int close_all(struct mix *m, int opened, int rc)
{
    int first = rc;

    for (int i = 0; i < opened; i++) {
        rc = item_close(m, &m->item[i], first);
        first = first ? first : rc;
    }
    return first;
}

static void be_late(struct mix *m, uint64_t *s)
{
    if (m->late_us && bny_rng_below(s, 6) == 0)
        usleep((useconds_t)bny_rng_below(s, m->late_us));
}

/* ---- one after the other, and threads ---- */

/* SENDRECV is two calls, which need a group; the second error is the same. */
static int item_run(struct mix *m, struct mix_item *it)
{
    int rc = item_open(m, it);

    if (rc == 0)
        it->rc = item_issue(it, NULL);
    return item_close(m, it, rc);
}

static int run_in_turn(struct mix *m)
{
    int rc = 0;

    for (int i = 0; i < m->nitems && rc == 0; i++) {
        be_late(m, &m->own);
        rc = item_run(m, &m->item[i]);
    }
    return rc;
}

static void give_up(struct mix *m)
{
    for (int c = 0; c < m->ncomms; c++)
        banyan_comm_revoke(m->comm[c], "a call of the mix failed");
}

struct thread {
    struct mix *m;
    int comm, rc;
    uint64_t own;
    pthread_t id;
};

static void *thread_main(void *arg)
{
    struct thread *th = arg;

    for (int i = 0; i < th->m->nitems && th->rc == 0; i++)
        if (th->m->item[i].comm == th->comm) {
            be_late(th->m, &th->own);
            th->rc = item_run(th->m, &th->m->item[i]);
        }
    return NULL;
}

static int run_in_threads(struct mix *m)
{
    struct thread th[MIX_COMMS];
    int rc = 0;

    for (int c = 0; c < m->ncomms; c++) {
        th[c] = (struct thread){ .m = m, .comm = c, .own = bny_rng_next(&m->own) };
        CHECK(m->t, pthread_create(&th[c].id, NULL, thread_main, &th[c]) == 0, "thread");
    }
    for (int c = 0; c < m->ncomms; c++) {
        pthread_join(th[c].id, NULL);
        rc = rc ? rc : th[c].rc;
    }
    return rc;
}

/* ---- together ---- */
static int open_all(struct mix *m, int *opened)
{
    int rc = 0;

    for (*opened = 0; *opened < m->nitems && rc == 0; ++*opened)
        rc = item_open(m, &m->item[*opened]);
    return rc;
}

static int is_refused(int rc)
{
    return rc == -BANYAN_ENOTSUP;
}

static int run_in_group(struct mix *m)
{
    int opened, rc = open_all(m, &opened), rc2;

    if (rc == 0) {
        CHECK_OK(m->t, banyan_group_start());
        for (int i = 0; i < m->nitems; i++) {
            m->item[i].rc = item_issue(&m->item[i], NULL);
            rc = rc || is_refused(m->item[i].rc) ? rc : m->item[i].rc;
        }
        be_late(m, &m->own);
        rc2 = banyan_group_end();
        rc = rc ? rc : rc2;
    }
    return close_all(m, opened, rc);
}

static void shuffle(int *order, int n, uint64_t *s)
{
    for (int i = 0; i < n; i++) {
        int at = (int)bny_rng_below(s, (uint64_t)i + 1);

        order[i] = order[at];
        order[at] = i;
    }
}

static int wait_for(struct mix *m, struct mix_item *it)
{
    int how = (int)bny_rng_below(&m->own, 3), done = 0, rc = 0;
    size_t which;

    for (int k = 0; k < 2 && it->rq[k] && rc == 0; k++) {
        if (how == 0)
            rc = banyan_wait(it->rq[k], -1);
        else if (how == 1)
            rc = banyan_wait_any(&it->rq[k], 1, -1, &which);
        else
            for (done = 0; !done && rc == 0;)
                rc = banyan_test(it->rq[k], &done);
    }
    return rc;
}

/* One pass: starts what is started so often, and waits for it. */
static int fly(struct mix *m, int pass)
{
    int start[MIX_ITEMS], wait[MIX_ITEMS], rc = 0;

    shuffle(start, m->nitems, &m->shared);
    shuffle(wait, m->nitems, &m->own);
    for (int i = 0; i < m->nitems; i++)
        for (int k = 0; k < 2 && rc == 0; k++) {
            struct mix_item *it = &m->item[start[i]];
            if (it->rc == 0 && it->starts > pass && it->rq[k])
                rc = banyan_start(it->rq[k]);
        }
    be_late(m, &m->own);
    for (int i = 0; i < m->nitems && rc == 0; i++)
        if (m->item[wait[i]].rc == 0 && m->item[wait[i]].starts > pass)
            rc = wait_for(m, &m->item[wait[i]]);
    return rc;
}

/* Behind a failure some are still active: on communicators that did not fail by themselves. */
static void free_requests(struct mix *m, int rc)
{
    if (rc)
        give_up(m);
    for (int i = 0; i < m->nitems; i++)
        for (int k = 0; k < 2 && m->item[i].rq[k]; k++) {
            if (rc)
                banyan_wait(m->item[i].rq[k], -1);
            CHECK_OK(m->t, banyan_request_free(m->item[i].rq[k]));
        }
}

/* Requests are started in another order than they were made, some several times, and waited for
 * in an order of this rank's own. */
static int run_in_flight(struct mix *m)
{
    int opened, rc = open_all(m, &opened);

    for (int i = 0; i < m->nitems && rc == 0; i++) {
        m->item[i].rc = item_issue(&m->item[i], m->item[i].rq);
        rc = is_refused(m->item[i].rc) ? 0 : m->item[i].rc;
    }
    for (int pass = 0; pass < 3 && rc == 0; pass++)
        rc = fly(m, pass);
    free_requests(m, rc);
    return close_all(m, opened, rc);
}

int mix_round(struct mix *m)
{
    static int (*const run[MIX_MANNERS])(struct mix *) = { run_in_turn, run_in_group,
                                                           run_in_flight, run_in_threads };
    int rc;

    draw_round(m);
    rc = run[draw_manner(m)](m);
    if (rc)
        give_up(m);
    return rc;
}
