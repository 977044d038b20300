/* SPDX-License-Identifier: BSD-3-Clause */
/* One random test over the product of features: rounds of several calls each, on several
 * communicators, of any collective, type, operation, codec, schedule, chunk and memory, with
 * and without states; one after the other, in a group, in flight together, or a thread a
 * communicator.
 *
 * What a round does is drawn from the seed alike on all ranks; each rank draws by itself what
 * may differ: alignment, memory, the order of waiting. Exact calls are compared with the model
 * byte for byte (call.c), lossy ones by the law of their codec (lossy.c). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/mp/call.h"
#include "tests/mp/lossy.h"

#define COMMS  4
#define ITEMS  5
#define STATES 3 /* sizes of tensors; each communicator has a state of each */

enum manner { IN_TURN, IN_GROUP, IN_FLIGHT, IN_THREADS, MANNERS };

struct item {
    const struct test *t;
    int comm; /* its number */
    struct call call;
    struct lossy_call lossy;
    int is_lossy;
    struct bound *bound;
    struct lossy *coded;
    struct banyan_request *rq[2];
    int rc, starts;
};

struct product {
    struct test *t;
    struct banyan_comm *comm[COMMS];
    struct banyan_codec_state *state[COMMS][STATES];
    struct image_pool pool[ITEMS][2];
    size_t max;
    uint64_t shared, own; /* random numbers: of all ranks alike, of this one */
    struct item item[ITEMS];
    int nitems;
    long calls, refused;
};

/* ---- what a round does ---- */
static void draw_exact(struct product *p, struct item *it, int number, uint64_t seed)
{
    static const char *const codecs[] = {
        "", "", "", "none", "lossless", "lossless:force=1", "blocksparse", "blocksparse:force=1"
    };
    static const enum coll vectors[] = { C_ALLGATHERV, C_GATHERV, C_SCATTERV, C_ALLTOALLV };
    uint64_t s = seed ^ 0xc0dec, memory = bny_rng_below(&p->own, 4);
    int n = banyan_comm_count(p->comm[it->comm]);

    call_random(&it->call, n, p->max, seed, bny_rng_next(&p->own));
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
        size_t most = p->max / banyan_dtype_bytes(it->call.dtype) / (size_t)n / unit;
        it->call.count = (most / 4 + bny_rng_below(&s, most - most / 4)) * unit;
    }
    if (bny_rng_below(&s, 2)) /* most names serve few collectives */
        it->call.schedule = NULL;
    if (!*it->call.codec && getenv("BANYAN_CODEC")) /* which may lose something */
        snprintf(it->call.codec, sizeof it->call.codec, "none");
    it->call.deterministic = (int)bny_rng_below(&s, 6) ? -1 : (int)bny_rng_below(&s, 2);
    it->starts = it->call.in_place ? 1 : 1 + (int)bny_rng_below(&s, 3);
    it->call.pool = memory < 2 ? &p->pool[number][memory] : NULL;
}

static void draw_round(struct product *p)
{
    int taken[COMMS] = { 0 };

    p->nitems = 1 + (int)bny_rng_below(&p->shared, ITEMS);
    for (int i = 0; i < p->nitems; i++) {
        struct item *it = &p->item[i];
        uint64_t seed = bny_rng_next(&p->shared), stateful = bny_rng_below(&p->shared, 3);
        int size = (int)bny_rng_below(&p->shared, 10), which = size == 0 ? 2 : size > 5;

        memset(it, 0, sizeof *it);
        it->t = p->t;
        it->comm = (int)bny_rng_below(&p->shared, COMMS);
        it->is_lossy = bny_rng_below(&p->shared, 3) == 0;
        if (!it->is_lossy) {
            draw_exact(p, it, i, seed);
            continue;
        }
        lossy_random(&it->lossy, which, banyan_comm_count(p->comm[it->comm]), seed);
        if (stateful && !taken[it->comm]) { /* a state serves one call at a time */
            taken[it->comm] = 1;
            it->lossy.state = p->state[it->comm][which];
        }
        it->starts = 1;
    }
}

/* ---- running it ---- */
static void item_open(struct product *p, struct item *it)
{
    if (it->is_lossy)
        it->coded = lossy_open(p->t, p->comm[it->comm], &it->lossy);
    else
        it->bound = call_open(p->t, p->comm[it->comm], &it->call);
}

static int item_issue(struct item *it, struct banyan_request **rq)
{
    return it->is_lossy ? lossy_issue(it->coded, rq) : call_issue(it->bound, rq);
}

static void item_close(struct product *p, struct item *it)
{
    int refused = it->is_lossy ? lossy_close(p->t, it->coded, it->rc)
                               : call_close(p->t, it->bound, it->rc);

    __atomic_fetch_add(&p->calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&p->refused, refused, __ATOMIC_RELAXED);
}

/* SENDRECV is two calls, which need a group. */
static void item_run(struct product *p, struct item *it)
{
    item_open(p, it);
    it->rc = item_issue(it, NULL);
    item_close(p, it);
}

static void run_in_turn(struct product *p)
{
    for (int i = 0; i < p->nitems; i++)
        item_run(p, &p->item[i]);
}

static void run_in_group(struct product *p)
{
    for (int i = 0; i < p->nitems; i++)
        item_open(p, &p->item[i]);
    CHECK_OK(p->t, banyan_group_start());
    for (int i = 0; i < p->nitems; i++)
        p->item[i].rc = item_issue(&p->item[i], NULL);
    CHECK_OK(p->t, banyan_group_end());
    for (int i = 0; i < p->nitems; i++)
        item_close(p, &p->item[i]);
}

static void shuffle(int *order, int n, uint64_t *s)
{
    for (int i = 0; i < n; i++) {
        int at = (int)bny_rng_below(s, (uint64_t)i + 1);

        order[i] = order[at];
        order[at] = i;
    }
}

static void wait_for(struct product *p, struct item *it)
{
    int how = (int)bny_rng_below(&p->own, 3), done = 0;
    size_t which;

    for (int k = 0; k < 2 && it->rq[k]; k++) {
        if (how == 0)
            CHECK_OK(p->t, banyan_wait(it->rq[k], -1));
        else if (how == 1)
            CHECK_OK(p->t, banyan_wait_any(&it->rq[k], 1, -1, &which));
        else
            for (done = 0; !done;)
                CHECK_OK(p->t, banyan_test(it->rq[k], &done));
    }
}

/* Requests are started in another order than they were made, some several times, and waited for
 * in an order of this rank's own. */
static void run_in_flight(struct product *p)
{
    int start[ITEMS], wait[ITEMS];

    for (int i = 0; i < p->nitems; i++)
        item_open(p, &p->item[i]);
    for (int i = 0; i < p->nitems; i++)
        p->item[i].rc = item_issue(&p->item[i], p->item[i].rq);
    for (int pass = 0; pass < 3; pass++) {
        shuffle(start, p->nitems, &p->shared);
        shuffle(wait, p->nitems, &p->own);
        for (int i = 0; i < p->nitems; i++)
            for (int k = 0; k < 2; k++) {
                struct item *it = &p->item[start[i]];
                if (it->rc == 0 && it->starts > pass && it->rq[k])
                    CHECK_OK(p->t, banyan_start(it->rq[k]));
            }
        for (int i = 0; i < p->nitems; i++)
            if (p->item[wait[i]].rc == 0 && p->item[wait[i]].starts > pass)
                wait_for(p, &p->item[wait[i]]);
    }
    for (int i = 0; i < p->nitems; i++) {
        for (int k = 0; k < 2 && p->item[i].rq[k]; k++)
            CHECK_OK(p->t, banyan_request_free(p->item[i].rq[k]));
        item_close(p, &p->item[i]);
    }
}

struct thread {
    struct product *p;
    int comm;
};

static void *thread_main(void *arg)
{
    struct thread *th = arg;

    for (int i = 0; i < th->p->nitems; i++)
        if (th->p->item[i].comm == th->comm)
            item_run(th->p, &th->p->item[i]);
    return NULL;
}

static void run_in_threads(struct product *p)
{
    struct thread th[COMMS];
    pthread_t id[COMMS];

    for (int c = 0; c < COMMS; c++) {
        th[c] = (struct thread){ p, c };
        CHECK(p->t, pthread_create(&id[c], NULL, thread_main, &th[c]) == 0, "thread");
    }
    for (int c = 0; c < COMMS; c++)
        pthread_join(id[c], NULL);
}

/* ---- the case ---- */
static void open_all(struct product *p, struct test *t)
{
    memset(p, 0, sizeof *p);
    p->t = t;
    p->max = 1 << 20;
    p->shared = t->seed;
    p->own = model_mix(t->seed, (uint64_t)t->rank + 1000);
    p->comm[0] = t->comm;
    CHECK_OK(t, banyan_comm_dup(t->comm, &p->comm[1]));
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank % 2, 0, &p->comm[2]));
    CHECK_OK(t, banyan_comm_split(t->comm, 0, t->n - t->rank, &p->comm[3]));
    for (int c = 0; c < COMMS; c++)
        for (int k = 0; k < STATES; k++)
            CHECK_OK(t, banyan_codec_state_create(&p->state[c][k], lossy_count(k), t->seed));
    for (int i = 0; i < ITEMS; i++)
        for (int k = 0; k < 2; k++)
            image_pool_make(t, t->comm, &p->pool[i][k], (enum image_memory)(k + 1),
                            p->max + 4096);
}

static void close_all(struct product *p)
{
    struct test *t = p->t;

    for (int i = 0; i < ITEMS; i++)
        for (int k = 0; k < 2; k++)
            image_pool_free(t, t->comm, &p->pool[i][k]);
    for (int c = 0; c < COMMS; c++)
        for (int k = 0; k < STATES; k++)
            banyan_codec_state_free(p->state[c][k]);
    for (int c = COMMS - 1; c > 0; c--)
        CHECK_OK(t, banyan_comm_finalize(p->comm[c]));
}

/* "ROUNDS", scaled by BANYAN_TEST_SCALE. */
static int product(struct test *t)
{
    static void (*const run[MANNERS])(struct product *) = { run_in_turn, run_in_group,
                                                            run_in_flight, run_in_threads };
    struct product *p = case_malloc(sizeof *p);
    const char *scale = getenv("BANYAN_TEST_SCALE");
    long rounds = (long)((double)atol(t->arg) * (scale ? strtod(scale, NULL) : 1)) + 1;

    open_all(p, t);
    for (long round = 0; round < rounds; round++) {
        draw_round(p);
        run[bny_rng_below(&p->shared, MANNERS)](p);
    }
    if (t->rank == 0)
        printf("note: %ld rounds, %ld calls, %ld refused, seed %llu\n", rounds, p->calls,
               p->refused, (unsigned long long)t->seed);
    close_all(p);
    free(p);
    return 0;
}

const struct mp_case cases_product[] = {
    { "product", product, 0 },
    { 0 },
};
