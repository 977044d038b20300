/* SPDX-License-Identifier: BSD-3-Clause */
/* The programs and plans of a communicator: by which names users ask for one, and those it has
 * made so far. Both are bounded; what operations still hold outlives its place in the list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/topology.h"
#include "collectives/program/directs.h"
#include "transport/transport.h"

/* ---- names ---- */

int bny_schedule_is_auto(const char *name)
{
    return !name[0] || !strcmp(name, "auto") || !strcmp(name, "static");
}

/* The i-th way that users can name. */
static const char *way_name(size_t i)
{
#define WAY_NAME(id, symbol, name) name,
    static const char *const names[] = { BNY_WAYS(WAY_NAME) };

    for (size_t k = 0; k < BNY_WAY_COUNT; k++)
        if (names[k][0] && i-- == 0)
            return names[k];
    return NULL;
}

static int is_way(const char *name)
{
#define CARRIED(symbol) "direct:" #symbol,
    static const char *const carried[] = { BNY_CARRIERS(CARRIED) };
    const char *way;

    for (size_t i = 0; (way = way_name(i)); i++)
        if (!strcmp(way, name))
            return 1;
    for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++)
        if (!strcmp(carried[i], name))
            return 1;
    return 0;
}

int bny_schedule_known(const char *name)
{
    return (name[0] && bny_schedule_is_auto(name)) || is_way(name) || bny_builder_find(name) ||
           bny_direct_find(name) || bny_topology_schedule_known(name);
}

const char *banyan_schedule_name(size_t i)
{
    size_t nb = 0, nd = 0, nw = 0;

    while (bny_builders[nb])
        nb++;
    while (bny_directs[nd])
        nd++;
    while (way_name(nw))
        nw++;
    if (i < nb)
        return bny_builders[i]->name;
    if (i < nb + nd)
        return bny_directs[i - nb]->name;
    return i < nb + nd + nw ? way_name(i - nb - nd)
                            : bny_topology_schedule_name(i - nb - nd - nw);
}

const char *bny_schedule_list(void)
{
    static _Thread_local char text[400];
    size_t at = (size_t)snprintf(text, sizeof text, "auto, static");
    const char *name;

    for (size_t i = 0; (name = banyan_schedule_name(i)) && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, ", %s", name);
    return text;
}

const char *banyan_codec_name(size_t i)
{
    const struct bny_codec_ops *ops = bny_codec_at(i);

    return ops ? ops->name : NULL;
}

const char *banyan_transport_name(size_t i)
{
    for (size_t k = 0; bny_transports[k]; k++)
        if (k == i)
            return bny_transports[k]->name;
    return NULL;
}

/* ---- programs ---- */

#define KEPT_MAX       256         /* programs of a communicator */
#define KEPT_BYTES_MAX (16u << 20) /* and their memory, beyond KEPT_MIN of them */
#define KEPT_MIN       8
#define KEPT_SETS_MAX  16 /* programs of participation sets */

struct bny_kept_program {
    struct bny_kept_program *next; /* latest use first */
    enum bny_collective collective;
    char schedule[BNY_NAME_MAX];
    int root, coalesce, is_send;
    int among;
    int has_set;         /* of a participation set: */
    uint64_t set_key[2]; /* as the call's */
    int borrowed;        /* the topology's */
    int listed;
    unsigned holds; /* plans */
    size_t bytes;
    struct bny_program *program;
};

static void kept_free(struct bny_kept_program *k)
{
    if (!k->borrowed)
        bny_program_free(k->program);
    free(k);
}

static void delist(struct bny_plans *plans, struct bny_kept_program **at)
{
    struct bny_kept_program *k = *at;

    *at = k->next;
    plans->nkept--;
    plans->nsets -= (size_t)k->has_set;
    plans->bytes -= k->bytes;
    k->listed = 0;
    if (!k->holds)
        kept_free(k);
}

static void programs_make_room(struct bny_plans *plans)
{
    while (plans->nsets > KEPT_SETS_MAX) {
        struct bny_kept_program **last = NULL;

        for (struct bny_kept_program **at = &plans->kept; *at; at = &(*at)->next)
            if ((*at)->has_set)
                last = at;
        delist(plans, last);
    }
    while (plans->nkept > KEPT_MAX ||
           (plans->bytes > KEPT_BYTES_MAX && plans->nkept > KEPT_MIN)) {
        struct bny_kept_program **at = &plans->kept;

        while ((*at)->next)
            at = &(*at)->next;
        delist(plans, at);
    }
}

static struct bny_kept_program *find_kept(struct bny_plans *plans, const struct bny_call *call,
                                          const char *schedule, int root, int coalesce)
{
    enum bny_collective coll = (enum bny_collective)call->collective;

    for (struct bny_kept_program **at = &plans->kept, *k; (k = *at); at = &k->next)
        if (k->collective == coll && k->root == root && k->coalesce == coalesce &&
            k->is_send == call->is_send && k->among == call->among &&
            k->has_set == call->has_set && k->set_key[0] == call->set_key[0] &&
            k->set_key[1] == call->set_key[1] && !strcmp(k->schedule, schedule)) {
            *at = k->next;
            k->next = plans->kept;
            plans->kept = k;
            return k;
        }
    return NULL;
}

/* This rank and its equals, the ranks of the same place on each host, ascending: *n of them.
 * *at: which it is. NULL: no memory. */
static int *equals_of(const struct bny_scope *s, int *n, int *at)
{
    int *ranks = calloc((size_t)(s->n / s->near), sizeof *ranks),
        mine = bny_scope_place(s, s->rank);

    *n = *at = 0;
    for (int r = 0; ranks && r < s->n; r++) {
        if (bny_scope_place(s, r) != mine)
            continue;
        if (r == s->rank)
            *at = *n;
        ranks[(*n)++] = r;
    }
    return ranks;
}

/* A program of n ranks becomes one of these ranks of all. */
static int spread(struct bny_program *p, const struct bny_scope *s, const int *ranks, int n)
{
    uint32_t *first = calloc((size_t)s->n + 1, sizeof *first);

    if (!first)
        return bny_fail(BANYAN_ENOMEM, "no memory for a program");
    for (int r = 0, i = 0; r <= s->n; r++) {
        first[r] = p->recv_first[i];
        i += i < n && ranks[i] == r;
    }
    free(p->recv_first);
    p->recv_first = first;
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].peer >= 0)
            p->steps[i].peer = ranks[p->steps[i].peer];
    p->rank = s->rank;
    p->nranks = s->n;
    return 0;
}

/* An allreduce of this rank and its equals on other hosts. */
static int build_rail(struct bny_program **out, const struct bny_scope *s, const char *schedule,
                      int coalesce)
{
    const struct bny_direct_ops *d = bny_direct_find(schedule);
    int n, at, *ranks = equals_of(s, &n, &at), rc;
    struct bny_forest *forest = NULL;

    if (!ranks)
        return bny_fail(BANYAN_ENOMEM, "no memory for a program");
    if (d)
        rc = d->build(out, BNY_ALLREDUCE, n, at, -1);
    else
        rc = bny_builder_find(schedule)->build(&forest, n, BNY_FOREST_ALLREDUCE, 0);
    if (rc == 0 && !d)
        rc = bny_compile(out, forest, BNY_ALLREDUCE, at, coalesce);
    bny_forest_free(forest);
    if (rc == 0 && (rc = spread(*out, s, ranks, n)) != 0)
        bny_program_free(*out);
    free(ranks);
    return rc;
}

static int programs_build(struct bny_program **out, int *borrowed, struct bny_scope *s,
                          enum bny_collective coll, const char *schedule, int root,
                          int coalesce)
{
    const struct bny_builder_ops *b = bny_builder_find(schedule);
    const struct bny_direct_ops *d = bny_direct_find(schedule);
    const struct bny_collective_row *row = bny_collective_row(coll);
    struct bny_forest *forest;
    int rc;

    *borrowed = 0;
    if (bny_topology_schedule_known(schedule))
        return bny_topology_program(out, borrowed, s, coll, schedule, root, coalesce);
    if (d && (d->collectives & (1u << coll)))
        return d->build(out, coll, s->n, s->rank, root);
    if (!b || !row->has_use || !(b->uses & row->use))
        return -BANYAN_ENOTSUP;
    rc = b->build(&forest, s->n, row->use, root);
    if (rc)
        return rc;
    rc = bny_compile(out, forest, coll, s->rank, coalesce);
    bny_forest_free(forest);
    return rc;
}

/* The forest that the builder makes of the ranks in the set, hung with the others. A reduce in
 * order of ranks ends at the lowest of them (linear.c), any other at the call's root where that
 * takes part. */
static int build_part(struct bny_program **out, const struct bny_scope *s,
                      const struct bny_call *call, const char *schedule, int coalesce)
{
    const struct bny_builder_ops *b = bny_builder_find(schedule);
    const struct bny_collective_row *row = bny_call_row(call);
    int sink = row->rooted ? call->root : -1, root = 0, rc;
    struct bny_forest *inner, *forest;

    if (!b || !row->has_use || !(b->uses & row->use))
        return -BANYAN_ENOTSUP;
    for (int r = 0; sink >= 0 && !(b->traits & BNY_BUILDER_ORDERED) && r < sink; r++)
        root += call->present[sink] && call->present[r];
    rc = b->build(&inner, (int)call->nset, row->use, root);
    if (rc)
        return rc;
    rc = bny_forest_part(&forest, inner, s->n, call->present, sink);
    bny_forest_free(inner);
    if (rc)
        return rc;
    rc = bny_compile(out, forest, (enum bny_collective)call->collective, s->rank, coalesce);
    bny_forest_free(forest);
    return rc;
}

/* A message between two ranks: one step. Both ends call it "sendrecv": the name is hashed. */
static int build_sendrecv(struct bny_program **out, const struct bny_scope *s, int peer,
                          int is_send)
{
    struct bny_program *p = calloc(1, sizeof *p);

    if (!p)
        return bny_fail(BANYAN_ENOMEM, "no memory for a program");
    p->collective = BNY_SENDRECV;
    p->rank = s->rank;
    p->nranks = s->n;
    p->root = peer;
    snprintf(p->schedule, sizeof p->schedule, "%s", is_send ? "send" : "recv");
    p->nblocks = 1;
    p->contiguous = 1;
    p->nsteps = 1;
    p->steps = calloc(1, sizeof *p->steps);
    p->recv_first = calloc((size_t)s->n + 1, sizeof *p->recv_first);
    p->recv_of = calloc(1, sizeof *p->recv_of);
    if (!p->steps || !p->recv_first || !p->recv_of) {
        bny_program_free(p);
        return bny_fail(BANYAN_ENOMEM, "no memory for a program");
    }
    p->steps[0] = (struct bny_step){ .kind = is_send ? BNY_SEND : BNY_RECV_COPY,
                                     .peer = peer,
                                     .src = is_send ? BNY_IN : BNY_NOWHERE,
                                     .dst = is_send ? BNY_NOWHERE : BNY_OUT,
                                     .nblocks = 1,
                                     .from = UINT32_MAX };
    for (int r = peer + 1; r <= s->n && !is_send; r++)
        p->recv_first[r] = 1;
    *out = p;
    return 0;
}

int bny_program_get(struct bny_scope *s, const struct bny_call *call, const char *schedule,
                    int coalesce, struct bny_kept_program **out)
{
    enum bny_collective coll = (enum bny_collective)call->collective;
    const struct bny_collective_row *row = bny_collective_row(coll);
    /* Forests without a root of the call's are the same for all roots. */
    int root = row->has_use && row->use != BNY_FOREST_ROOTED ? -1 : call->root;
    struct bny_plans *plans = bny_plans_of(s);
    struct bny_kept_program *k;
    struct bny_program *made;
    int rc, borrowed = 0;

    if (!plans)
        return -BANYAN_ENOMEM;
    k = find_kept(plans, call, schedule, root, coalesce);
    if (k) {
        *out = k;
        return 0;
    }
    rc = coll == BNY_SENDRECV ? build_sendrecv(&made, s, root, call->is_send)
         : call->has_set      ? build_part(&made, s, call, schedule, coalesce)
         : call->among        ? build_rail(&made, s, schedule, coalesce)
                       : programs_build(&made, &borrowed, s, coll, schedule, root, coalesce);
    if (rc)
        return rc == -BANYAN_ENOMEM ? bny_plans_starve(s) : rc;
    k = calloc(1, sizeof *k);
    if (!k) {
        if (!borrowed)
            bny_program_free(made);
        return bny_plans_starve(s);
    }
    *k = (struct bny_kept_program){ .next = plans->kept,
                                    .collective = coll,
                                    .root = root,
                                    .coalesce = coalesce,
                                    .is_send = call->is_send,
                                    .among = call->among,
                                    .has_set = call->has_set,
                                    .set_key = { call->set_key[0], call->set_key[1] },
                                    .borrowed = borrowed,
                                    .listed = 1,
                                    .program = made };
    snprintf(k->schedule, sizeof k->schedule, "%s", schedule);
    if (!borrowed)
        k->bytes = sizeof *made + made->nsteps * sizeof *made->steps +
                   (made->ndeps + made->nsteps + (size_t)s->n) * sizeof *made->deps;
    plans->kept = k;
    plans->nkept++;
    plans->nsets += call->has_set;
    plans->bytes += k->bytes;
    k->holds++; /* not this one */
    programs_make_room(plans);
    k->holds--;
    *out = k;
    return 0;
}

void bny_plan_hold(struct bny_plan *plan, struct bny_kept_program *k)
{
    k->holds++;
    plan->kept = k;
    plan->program = k->program;
}

void bny_plan_drop(struct bny_plan *plan)
{
    struct bny_kept_program *k = plan->kept;

    memset(plan, 0, sizeof *plan);
    if (k && --k->holds == 0 && !k->listed)
        kept_free(k);
}

/* ---- plans ---- */

struct bny_plans *bny_plans_of(struct bny_scope *s)
{
    if (!s->plans)
        s->plans = calloc(1, sizeof *s->plans);
    if (!s->plans)
        bny_fail(BANYAN_ENOMEM, "no memory for plans");
    return s->plans;
}

/* All fields must reach the top bits: calls that differ only in the collective are often made
 * by turns. */
struct bny_plan_slot *bny_plan_slot(struct bny_plans *plans, const struct bny_call *call)
{
    uint64_t small = call->collective | (uint64_t)call->is_send << 4 |
                     (uint64_t)call->vector << 5 | (uint64_t)call->deterministic << 6 |
                     (uint64_t)call->dtype << 8 | (uint64_t)call->redop.wire << 16 |
                     (uint64_t)(uint32_t)(call->root + 1) << 24;

    if (call->has_set)
        return &plans->slots[BNY_PLAN_SLOTS +
                             (((call->set_key[0] ^ call->set_key[1]) * 0xff51afd7ed558ccdu +
                               call->count * 0x9e3779b97f4a7c15u +
                               small * 0xc2b2ae3d27d4eb4fu) >>
                              61)];
    return &plans->slots[(call->count * 0x9e3779b97f4a7c15u + small * 0xc2b2ae3d27d4eb4fu) >>
                         58];
}

void bny_plans_free(struct bny_scope *s)
{
    struct bny_plans *plans = s->plans;

    s->plans = NULL;
    if (!plans)
        return;
    for (int i = 0; i < BNY_PLAN_SLOTS + BNY_SET_SLOTS; i++)
        bny_plan_drop(&plans->slots[i].plan);
    while (plans->kept)
        delist(plans, &plans->kept);
    free(plans);
}
