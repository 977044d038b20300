/* SPDX-License-Identifier: BSD-3-Clause */
/* The work of a job in trouble. */
#include "tests/mp/trouble_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "banyan/objects.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/mp/mix.h"

#define STATES 4 /* two sizes, of two communicators of all members */

struct kept {
    struct banyan_codec_state *st;
    void *saved;
    size_t bytes;
    uint32_t step; /* where it was */
    uint64_t hash; /* of its residuals then */
    int loaded;    /* since: there is nothing to undo */
};

struct work {
    struct test *t;
    struct mix mix;
    int has_store, has_states, undoes, revokes, shrinks_many, groups;
    int open; /* all communicators of mix are there, at all members */
    struct kept kept[STATES];
    struct banyan_objects *store;
    int store_is_sure;        /* all members have it */
    int has_put;              /* in this step */
    uint32_t put_round;       /* of the objects of the present step */
    uint32_t round, who;      /* of objects that are there, and who put them */
    size_t count, put_count;  /* their elements */
    uint32_t step_who;        /* members in the present step */
    uint64_t own;             /* random numbers of this rank */
    long gets, lost, reduces; /* of objects */
};

/* ---- codec states ---- */

static void note_state(struct work *w, struct kept *k)
{
    free(k->saved);
    k->bytes = banyan_codec_state_bytes(k->st);
    k->saved = case_malloc(k->bytes);
    CHECK_OK(w->t, banyan_codec_state_save(k->st, k->saved, k->bytes));
    CHECK_OK(w->t, banyan_codec_state_step(k->st, &k->step));
}

static uint64_t residual_hash(const struct kept *k, int number)
{
    return case_hash(banyan_codec_state_residual(k->st), lossy_count(number % 2) * 4);
}

static void note_states(struct work *w)
{
    case_feed(1);
    for (int i = 0; i < STATES && w->has_states; i++) {
        note_state(w, &w->kept[i]);
        case_feed(1); /* case_malloc ended that */
        w->kept[i].hash = residual_hash(&w->kept[i], i);
    }
    case_feed(0);
}

static void undo_state(struct work *w, struct kept *k, int number)
{
    uint32_t step;
    int rc = banyan_codec_state_undo(k->st, k->step);

    CHECK_OK(w->t, banyan_codec_state_step(k->st, &step));
    CHECK(w->t, rc == 0 || (rc == -BANYAN_EINVAL && k->loaded && step == k->step),
          "undo to step %u of a state at step %u returned %d", k->step, step, rc);
    CHECK(w->t, residual_hash(k, number) == k->hash, "state %d: other residuals", number);
}

static void go_back(struct work *w)
{
    case_feed(1);
    for (int i = 0; i < STATES && w->has_states; i++) {
        struct kept *k = &w->kept[i];

        if (w->undoes) {
            undo_state(w, k, i);
            continue;
        }
        CHECK_OK(w->t, banyan_codec_state_load(k->st, k->saved, k->bytes));
        CHECK(w->t, residual_hash(k, i) == k->hash, "state %d: other residuals", i);
    }
    case_feed(0);
}

/* What a newcomer is told; the residuals are of the rank that had them. */
static void take_state(struct work *w, struct kept *k, int number, const void *data,
                       size_t bytes)
{
    size_t count = lossy_count(number % 2);
    struct banyan_codec_state *away;

    case_feed(1);
    CHECK_OK(w->t, banyan_codec_state_load(k->st, data, bytes));
    CHECK_OK(w->t, banyan_codec_state_create(&away, count, 1));
    CHECK_OK(w->t, banyan_codec_state_move(away, 0, k->st, 0, count));
    banyan_codec_state_free(away);
    k->loaded = 1;
    case_feed(0);
}

int work_hand_over(struct work *w, struct banyan_comm *comm, int root, int fresh)
{
    uint64_t bytes[STATES];
    int rc = 0, is_root = banyan_comm_rank(comm) == root;

    if (!w->has_states)
        return 0;
    for (int i = 0; i < STATES; i++)
        bytes[i] = w->kept[i].bytes;
    rc = banyan_broadcast(bytes, STATES, BANYAN_U64, root, comm, NULL);
    for (int i = 0; i < STATES && rc == 0; i++) {
        void *data = is_root ? w->kept[i].saved : case_malloc(bytes[i]);

        rc = banyan_broadcast(data, bytes[i], BANYAN_U8, root, comm, NULL);
        if (rc == 0 && fresh)
            take_state(w, &w->kept[i], i, data, bytes[i]);
        if (!is_root)
            free(data);
    }
    if (rc == 0 && fresh)
        note_states(w);
    return rc;
}

/* ---- objects: u32 that follow from who put them, and when ---- */

static struct banyan_object_id name_of(uint64_t kind, uint32_t round, int who)
{
    struct banyan_object_id id;
    uint64_t number = (uint64_t)round << 8 | (uint64_t)who;

    memcpy(id.bytes, &kind, 8);
    memcpy(id.bytes + 8, &number, 8);
    return id;
}

static uint32_t value_of(uint32_t round, int who, size_t i)
{
    return (round * 31u + (uint32_t)who * 7919u) ^ (uint32_t)i;
}

static int put_mine(struct work *w, const struct work_place *at)
{
    static const size_t counts[] = { 1, 500, 992, 993, 5000, 100000 };
    uint64_t s = w->t->seed + at->round;
    struct banyan_object_id id = name_of(1, at->round, w->t->rank);
    uint32_t *x;
    int rc;

    w->put_round = at->round;
    w->has_put = 1;
    w->put_count = counts[bny_rng_below(&s, sizeof counts / sizeof counts[0])];
    x = case_malloc(w->put_count * 4);
    for (size_t i = 0; i < w->put_count; i++)
        x[i] = value_of(at->round, w->t->rank, i);
    rc = banyan_object_put(w->store, &id, x, w->put_count * 4);
    free(x);
    return rc;
}

/* That an object was put is known to two ranks and to those that have it (docs/objects.md):
 * where so many are gone it may be known to nobody. Then it is waited for. */
static int may_be_forgotten(const struct work *w, const struct work_place *at)
{
    int ranks[MP_RANKS_MAX];

    return __builtin_popcount(w->who & ~at->members) +
               banyan_comm_failed(at->comm, ranks, MP_RANKS_MAX) >=
           2;
}
#define FORGOTTEN_S 1

/* By any of the ways to get one. */
static int get_any(struct work *w, const struct banyan_object_id *id, double timeout_s,
                   struct banyan_object *o)
{
    int how = (int)bny_rng_below(&w->own, timeout_s < 0 ? 3 : 2), rc, rc2;
    struct banyan_request *rq = NULL;
    size_t have;

    if (how == 0)
        return banyan_object_get(w->store, id, timeout_s, o);
    if (how == 1) {
        rc = banyan_object_open(w->store, id, timeout_s, o);
        if (rc)
            return rc;
        rc = banyan_object_wait(w->store, o, o->bytes, timeout_s, &have);
        if (rc)
            banyan_object_release(w->store, o);
        return rc;
    }
    rc = banyan_object_get_init(w->store, id, o, &rq);
    if (rc == 0)
        rc = banyan_start(rq);
    if (rc == 0)
        rc = banyan_wait(rq, -1);
    rc2 = banyan_request_free(rq);
    return rc ? rc : rc2;
}

/* An object that was there when all agreed last: it comes, or all who had it are dead. */
static int get_one(struct work *w, const struct work_place *at)
{
    int who = (int)bny_rng_below(&w->own, MP_RANKS_MAX), rc;
    struct banyan_object_id id;
    struct banyan_object o;

    while (!(w->who >> who & 1))
        who = (who + 1) % MP_RANKS_MAX;
    id = name_of(1, w->round, who);
    rc = get_any(w, &id, may_be_forgotten(w, at) ? FORGOTTEN_S : -1, &o);
    w->gets++;
    if (rc == -BANYAN_ETIMEDOUT && may_be_forgotten(w, at))
        return 0;
    if (rc == -BANYAN_ERANKDEAD) {
        w->lost++;
        atomic_fetch_or(&w->t->shared->value[w->t->rank][5], 1u << who);
        return 0;
    }
    if (rc)
        return rc;
    CHECK(w->t, o.bytes == w->count * 4, "object of %zu bytes, not %zu", o.bytes, w->count * 4);
    for (size_t i = 0; i < w->count; i++)
        CHECK(w->t, ((const uint32_t *)o.data)[i] == value_of(w->round, who, i),
              "object of round %u, rank %d: element %zu", w->round, who, i);
    CHECK_OK(w->t, banyan_object_release(w->store, &o));
    return 0;
}

static void check_reduced(struct work *w, const int *who, int n, int k, const uint32_t *x,
                          const struct banyan_object_id *target)
{
    uint8_t in[MP_RANKS_MAX] = { 0 };
    int m = banyan_object_contributors(w->store, target, in, (size_t)n);

    CHECK(w->t, m == k, "%d objects of %d are in the sum", m, k);
    for (size_t i = 0; i < w->count; i++) {
        uint32_t sum = 0;

        for (int j = 0; j < n; j++)
            sum += in[j] ? value_of(w->round, who[j], i) : 0;
        CHECK(w->t, x[i] == sum, "sum of %d objects of round %u: element %zu", k, w->round, i);
    }
}

/* The sum of some of the objects that are there; where too few are left it is lost. */
static int reduce_some(struct work *w, const struct work_place *at)
{
    struct banyan_object_id ids[MP_RANKS_MAX], target = name_of(2, at->round, w->t->rank);
    int who[MP_RANKS_MAX], n = 0, k, rc;
    struct banyan_object o;

    for (int r = 0; r < MP_RANKS_MAX; r++)
        if (w->who >> r & 1) {
            who[n] = r;
            ids[n++] = name_of(1, w->round, r);
        }
    k = 1 + (int)bny_rng_below(&w->own, (uint64_t)n);
    rc = banyan_object_reduce(w->store, &target, ids, (size_t)n, (size_t)k, w->count,
                              BANYAN_U32, BANYAN_SUM);
    if (rc == 0)
        rc = banyan_object_get(w->store, &target, may_be_forgotten(w, at) ? FORGOTTEN_S : -1,
                               &o);
    w->reduces++;
    if (rc == -BANYAN_ETIMEDOUT && may_be_forgotten(w, at))
        return banyan_object_delete(w->store, &target);
    if (rc == -BANYAN_ERANKDEAD) {
        w->lost++;
        return 0;
    }
    if (rc)
        return rc;
    check_reduced(w, who, n, k, o.data, &target);
    CHECK_OK(w->t, banyan_object_release(w->store, &o));
    return banyan_object_delete(w->store, &target);
}

/* Objects of the step before are got, then one of this rank's own is put. A new store is used
 * from the next step on: where somebody dies while it is made, some may have it and some not.
 */
static int use_objects(struct work *w, const struct work_place *at)
{
    struct banyan_objects_config cfg = { .size = sizeof cfg, .timeout_s = 20 * mp_patience() };
    int rc = 0;

    if (!w->store) {
        rc = banyan_objects_create(at->comm, &cfg, &w->store);
        w->who = 0;
    }
    if (rc || !w->store_is_sure)
        return rc;
    for (int i = 0; i < 2 && rc == 0 && w->who; i++)
        rc = get_one(w, at);
    if (rc == 0 && w->who && bny_rng_below(&w->own, 3) == 0)
        rc = reduce_some(w, at);
    return rc ? rc : put_mine(w, at);
}

static void drop_store(struct work *w)
{
    banyan_objects_destroy(w->store);
    w->store = NULL;
    w->store_is_sure = 0;
    w->who = 0;
}

/* ---- communicators ---- */

static void drop_extras(struct work *w)
{
    for (int c = 1; c < w->mix.ncomms; c++) {
        banyan_comm_destroy(w->mix.comm[c]);
        w->mix.comm[c] = NULL;
    }
    w->open = 0;
}

/* The even and the odd members, backwards; each half on its own. */
static int make_group(struct fate *fate, struct banyan_comm *comm, struct banyan_comm **out)
{
    uint64_t begin = bny_now_ns();
    int rank = banyan_comm_rank(comm), n = 0, rc, ranks[MP_RANKS_MAX];

    for (int r = banyan_comm_count(comm) - 1; r >= 0; r--)
        if (r % 2 == rank % 2)
            ranks[n++] = r;
    fate_enter(fate, FATE_GROUP);
    rc = banyan_comm_create_group(comm, ranks, n, 7, out);
    fate_leave(fate, FATE_GROUP);
    if (rc == -BANYAN_ETIMEDOUT && bny_now_ns() - begin < 1000000000ull * WORK_OP_S / 2)
        rc = -BANYAN_EABORTED; /* long before its deadline: somebody gave comm up */
    return rc;
}

static int open_extras(struct work *w, struct fate *fate, struct banyan_comm *comm)
{
    int n = banyan_comm_count(comm), rank = banyan_comm_rank(comm), rc = 0;

    for (int c = 1; c < w->mix.ncomms && rc == 0; c++)
        rc = c == 2 && w->groups ? make_group(fate, comm, &w->mix.comm[c])
             : c == 1            ? banyan_comm_dup(comm, &w->mix.comm[1])
                      : banyan_comm_split(comm, c == 2 ? rank % 2 : 0, c == 2 ? 0 : n - rank,
                                          &w->mix.comm[c]);
    return rc;
}

/* In an order of this rank's own. What was made is used on. */
static int shrink_many(struct work *w, struct banyan_comm *comm, struct banyan_comm **next)
{
    struct banyan_comm *old[MIX_COMMS] = { NULL }, *out[MIX_COMMS] = { NULL };
    int n = w->mix.ncomms, order[MIX_COMMS], rc;

    w->mix.comm[0] = comm;
    for (int c = 0; c < n; c++)
        order[c] = (c + (int)(w->own % (uint64_t)n)) % n;
    for (int c = 0; c < n; c++)
        old[c] = w->mix.comm[order[c]];
    rc = banyan_comm_shrink_many(old, n, out);
    for (int c = 0; c < n; c++) {
        CHECK(w->t, rc || out[c], "shrink_many made no %d", order[c]);
        if (order[c] == 0)
            *next = out[c];
        else {
            banyan_comm_destroy(w->mix.comm[order[c]]);
            w->mix.comm[order[c]] = out[c];
        }
    }
    return rc;
}

int work_shrink(struct work *w, struct banyan_comm *comm, struct banyan_comm **next)
{
    int rc;

    if (w->open && w->shrinks_many)
        return shrink_many(w, comm, next);
    if (w->own & 1)
        drop_extras(w);
    rc = banyan_comm_shrink(comm, next);
    drop_extras(w);
    return rc;
}

void work_miss(struct work *w)
{
    for (int c = 1; c < w->mix.ncomms; c++)
        if (w->mix.comm[c])
            banyan_comm_revoke(w->mix.comm[c], "a step is missed");
}

void work_leave(struct work *w)
{
    drop_store(w);
    drop_extras(w);
}

/* ---- a step ---- */

/* One member gives one communicator up, though nothing is wrong with it. */
static void maybe_revoke(struct work *w, uint64_t *s)
{
    int is_now = bny_rng_below(s, 8) == 0;
    int who = (int)bny_rng_below(s, (uint64_t)banyan_comm_count(w->mix.comm[0]));
    int which = (int)bny_rng_below(s, (uint64_t)w->mix.ncomms);

    if (w->revokes && is_now && who == banyan_comm_rank(w->mix.comm[0]))
        banyan_comm_revoke(w->mix.comm[which], "a test of revoke");
}

int work_step(struct work *w, const struct work_place *at)
{
    uint64_t s = w->t->seed + 77 + at->step, other = w->t->seed + 99 + at->round;
    int rounds = w->undoes ? 1 : 1 + (int)bny_rng_below(&s, 3), rc = 0;

    w->own = bny_rng_next(&s) + (uint64_t)w->t->rank + at->round;
    w->has_put = 0;
    w->step_who = at->members;
    w->mix.comm[0] = at->comm;
    if (!w->open)
        rc = open_extras(w, at->fate, at->comm);
    if (rc == 0 && w->has_store)
        rc = use_objects(w, at);
    for (int i = 0; i < rounds && rc == 0; i++) {
        usleep((useconds_t)atomic_load(at->slow_us));
        maybe_revoke(w, &other);
        w->mix.shared = bny_rng_next(&s);
        w->mix.own = bny_rng_next(&w->own);
        rc = mix_round(&w->mix);
    }
    for (int c = 0; c < w->mix.ncomms && rc; c++)
        if (w->mix.comm[c])
            banyan_comm_revoke(w->mix.comm[c], "a step failed");
    return rc;
}

void work_settle(struct work *w, int well, int dead)
{
    if (!well) {
        go_back(w);
        if (!w->store_is_sure)
            drop_store(w);
        return;
    }
    w->open = 1;
    w->store_is_sure = w->store != NULL;
    if (dead == 0 && w->has_put) { /* who died may have put nothing */
        w->round = w->put_round;
        w->who = w->step_who;
        w->count = w->put_count;
    }
    note_states(w);
    for (int i = 0; i < STATES; i++)
        w->kept[i].loaded = 0;
}

/* ---- all of it ---- */

static void make_states(struct work *w)
{
    case_feed(1);
    for (int i = 0; i < STATES; i++) {
        struct banyan_codec_state **st = &w->kept[i].st;

        CHECK_OK(w->t, banyan_codec_state_create(st, lossy_count(i % 2), w->t->seed));
        if (w->undoes)
            CHECK_OK(w->t, banyan_codec_state_keep_undo(*st, 1));
        w->mix.state[i / 2][i % 2] = *st;
        w->kept[i].loaded = 1;
    }
    case_feed(0);
    note_states(w);
}

struct work *work_make(struct test *t)
{
    struct work *w = case_malloc(sizeof *w);
    uint64_t s = t->seed ^ 0x0f0f;

    memset(w, 0, sizeof *w);
    w->t = t;
    w->mix.t = t;
    w->mix.max = 200000;
    w->mix.late_us = bny_rng_below(&s, 2) ? 2000 : 0;
    w->mix.ncomms = 1 + (int)bny_rng_below(&s, MIX_COMMS);
    for (int i = 1; i < MIX_MANNERS + MIX_KINDS; i++)
        w->mix.without |= (unsigned)(bny_rng_below(&s, 3) == 0) << i;
    w->has_store = bny_rng_below(&s, 2) == 0;
    w->undoes = (int)bny_rng_below(&s, 2);
    w->has_states = bny_rng_below(&s, 3) != 0;
    w->revokes = bny_rng_below(&s, 3) == 0;
    w->shrinks_many = (int)bny_rng_below(&s, 2);
    w->groups = (int)bny_rng_below(&s, 2);
    if (w->has_states)
        make_states(w);
    printf("work: %d communicators, without %x, store %d, states %d, undo %d, revoke %d, "
           "shrink_many %d, groups %d\n",
           w->mix.ncomms, w->mix.without, w->has_store, w->has_states, w->undoes, w->revokes,
           w->shrinks_many, w->groups);
    return w;
}

void work_free(struct work *w, int finalize)
{
    if (w->store && w->store_is_sure && finalize) {
        int rc = banyan_objects_finalize(w->store);

        CHECK(w->t,
              rc == 0 || rc == -BANYAN_ERANKDEAD || rc == -BANYAN_ENOMEM ||
                  rc == -BANYAN_ESYSTEM || rc == -BANYAN_EABORTED,
              "banyan_objects_finalize returned %d (%s)", rc, banyan_last_error());
    } else
        banyan_objects_destroy(w->store);
    w->store = NULL;
    work_leave(w);
    for (int i = 0; i < STATES; i++) {
        banyan_codec_state_free(w->kept[i].st);
        free(w->kept[i].saved);
    }
    printf("work: %ld calls, %ld refused, %ld gets, %ld sums of objects, %ld lost\n",
           w->mix.calls, w->mix.refused, w->gets, w->reduces, w->lost);
    free(w);
}
