/* SPDX-License-Identifier: BSD-3-Clause */
/* The programs of a communicator: by which names users ask for one, and those it has made so
 * far. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/internal.h"
#include "collectives/topology.h"

struct bny_programs { /* one cached program */
    struct bny_programs *next;
    enum bny_collective collective;
    char schedule[BNY_NAME_MAX];
    int root, coalesce, is_send, borrowed;
    struct bny_program *program;
};

/* ---- names ---- */

int bny_schedule_known(const char *name)
{
    return !strcmp(name, "oneshot") || bny_builder_find(name) || bny_direct_find(name) ||
           bny_topology_schedule_known(name);
}

const char *banyan_schedule_name(size_t i)
{
    size_t nb = 0, nd = 0;

    while (bny_builders[nb])
        nb++;
    while (bny_directs[nd])
        nd++;
    if (i < nb)
        return bny_builders[i]->name;
    if (i < nb + nd)
        return bny_directs[i - nb]->name;
    return i == nb + nd ? "oneshot" : bny_topology_schedule_name(i - nb - nd - 1);
}

const char *bny_schedule_list(void)
{
    static _Thread_local char text[400];
    size_t at = 0;
    const char *name;

    text[0] = '\0';
    for (size_t i = 0; (name = banyan_schedule_name(i)) && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? ", " : "", name);
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

int bny_collective_use(enum bny_collective c, enum bny_forest_use *use)
{
    switch (c) {
    case BNY_ALLREDUCE: *use = BNY_FOREST_ALLREDUCE; return 1;
    case BNY_REDUCE_SCATTER:
    case BNY_ALLGATHER: *use = BNY_FOREST_SCATTERED; return 1;
    case BNY_REDUCE:
    case BNY_BROADCAST: *use = BNY_FOREST_ROOTED; return 1;
    default: return 0;
    }
}

static int build(struct bny_program **out, int *borrowed, struct banyan_comm *c,
                 enum bny_collective coll, const char *schedule, int root, int coalesce)
{
    const struct bny_builder_ops *b = bny_builder_find(schedule);
    const struct bny_direct_ops *d = bny_direct_find(schedule);
    enum bny_forest_use use;
    struct bny_forest *forest;
    int rc;

    *borrowed = 0;
    if (bny_topology_schedule_known(schedule))
        return bny_topology_program(out, borrowed, c, coll, schedule, root, coalesce);
    if (d && (d->collectives & (1u << coll)))
        return d->build(out, coll, c->n, c->rank, root);
    if (!b || !bny_collective_use(coll, &use) || !(b->uses & use))
        return -BANYAN_ENOTSUP;
    rc = b->build(&forest, c->n, use, root);
    if (rc)
        return rc;
    rc = bny_compile(out, forest, coll, c->rank, coalesce);
    bny_forest_free(forest);
    return rc;
}

int bny_program_get(struct banyan_comm *c, enum bny_collective coll, const char *schedule,
                    int root, int coalesce, const struct bny_program **out)
{
    struct bny_programs *p;
    struct bny_program *made;
    int rc, borrowed;

    for (p = c->programs; p; p = p->next)
        if (p->collective == coll && p->root == root && p->coalesce == coalesce &&
            !strcmp(p->schedule, schedule)) {
            *out = p->program;
            return 0;
        }
    rc = build(&made, &borrowed, c, coll, schedule, root, coalesce);
    if (rc)
        return rc;
    p = calloc(1, sizeof *p);
    if (!p) {
        if (!borrowed)
            bny_program_free(made);
        return bny_fail(BANYAN_ENOMEM, "no memory for a program");
    }
    p->collective = coll;
    snprintf(p->schedule, sizeof p->schedule, "%s", schedule);
    p->root = root;
    p->coalesce = coalesce;
    p->borrowed = borrowed;
    p->program = made;
    p->next = c->programs;
    c->programs = p;
    *out = made;
    return 0;
}

static struct bny_program *sendrecv_program(struct banyan_comm *c, int peer, int is_send)
{
    struct bny_program *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->collective = BNY_SENDRECV;
    p->rank = c->rank;
    p->nranks = c->n;
    p->root = peer;
    snprintf(p->schedule, sizeof p->schedule, "%s", is_send ? "send" : "recv");
    p->nblocks = 1;
    p->contiguous = 1;
    p->nsteps = 1;
    p->steps = calloc(1, sizeof *p->steps);
    p->recv_first = calloc((size_t)c->n + 1, sizeof *p->recv_first);
    p->recv_of = calloc(1, sizeof *p->recv_of);
    if (!p->steps || !p->recv_first || !p->recv_of) {
        bny_program_free(p);
        return NULL;
    }
    p->steps[0] = (struct bny_step){ .kind = is_send ? BNY_SEND : BNY_RECV_COPY,
                                     .peer = peer,
                                     .src = is_send ? BNY_IN : BNY_NOWHERE,
                                     .dst = is_send ? BNY_NOWHERE : BNY_OUT,
                                     .nblocks = 1,
                                     .from = UINT32_MAX };
    for (int r = peer + 1; r <= c->n && !is_send; r++)
        p->recv_first[r] = 1;
    return p;
}

const struct bny_program *bny_plan_sendrecv(struct banyan_comm *c, int peer, int is_send)
{
    struct bny_programs *p;

    for (p = c->programs; p; p = p->next)
        if (p->collective == BNY_SENDRECV && p->root == peer && p->is_send == is_send)
            return p->program;
    p = calloc(1, sizeof *p);
    if (p)
        p->program = sendrecv_program(c, peer, is_send);
    if (!p || !p->program) {
        free(p);
        bny_fail(BANYAN_ENOMEM, "no memory for a program");
        return NULL;
    }
    p->collective = BNY_SENDRECV;
    p->root = peer;
    p->is_send = is_send;
    p->next = c->programs;
    c->programs = p;
    return p->program;
}

void bny_plans_free(struct banyan_comm *c)
{
    while (c->programs) {
        struct bny_programs *p = c->programs;
        c->programs = p->next;
        if (!p->borrowed)
            bny_program_free(p->program);
        free(p);
    }
}
