/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives as data. Sizes follow nccl-tests: for allgather, reduce_scatter, alltoall, gather
 * and scatter the size is that of the larger side, nranks blocks; bus factors are 2(n-1)/n for
 * allreduce, (n-1)/n for those five, 1 for reduce, broadcast and sendrecv. */
#include "perf/perf_case.h"

#include <string.h>

static int run_allreduce(const struct perf_call *c)
{
    return banyan_allreduce(c->send, c->recv, c->count, c->dtype, c->op, c->comm, c->opts);
}

static int run_reduce(const struct perf_call *c)
{
    return banyan_reduce(c->send, c->recv, c->count, c->dtype, c->op, c->root, c->comm,
                         c->opts);
}

static int run_broadcast(const struct perf_call *c)
{
    return banyan_broadcast(c->recv, c->count, c->dtype, c->root, c->comm, c->opts);
}

static int run_reduce_scatter(const struct perf_call *c)
{
    return banyan_reduce_scatter(c->send, c->recv, c->count, c->dtype, c->op, c->comm, c->opts);
}

static int run_allgather(const struct perf_call *c)
{
    return banyan_allgather(c->send, c->recv, c->count, c->dtype, c->comm, c->opts);
}

static int run_gather(const struct perf_call *c)
{
    return banyan_gather(c->send, c->recv, c->count, c->dtype, c->root, c->comm, c->opts);
}

static int run_scatter(const struct perf_call *c)
{
    return banyan_scatter(c->send, c->recv, c->count, c->dtype, c->root, c->comm, c->opts);
}

static int run_alltoall(const struct perf_call *c)
{
    return banyan_alltoall(c->send, c->recv, c->count, c->dtype, c->comm, c->opts);
}

static int run_barrier(const struct perf_call *c)
{
    return banyan_barrier(c->comm, c->opts);
}

/* Every rank sends to the next one. */
static int run_sendrecv(const struct perf_call *c)
{
    int to = (c->rank + 1) % c->nranks, from = (c->rank + c->nranks - 1) % c->nranks;

    return banyan_sendrecv(c->send, c->count, c->dtype, to, c->recv, c->count, c->dtype, from,
                           c->comm, c->opts);
}

static size_t elems_count(const struct perf_call *c)
{
    return c->count;
}

static size_t elems_blocks(const struct perf_call *c)
{
    return c->count * (size_t)c->nranks;
}

static size_t elems_root_count(const struct perf_call *c)
{
    return c->rank == c->root ? c->count : 0;
}

static size_t elems_root_blocks(const struct perf_call *c)
{
    return c->rank == c->root ? c->count * (size_t)c->nranks : 0;
}

static size_t elems_none(const struct perf_call *c)
{
    (void)c;
    return 0;
}

static int blocks_one(const struct perf_call *c)
{
    (void)c;
    return 1;
}

static int blocks_all(const struct perf_call *c)
{
    return c->nranks;
}

static int blocks_root_one(const struct perf_call *c)
{
    return c->rank == c->root;
}

static int blocks_root_all(const struct perf_call *c)
{
    return c->rank == c->root ? c->nranks : 0;
}

static int blocks_none(const struct perf_call *c)
{
    (void)c;
    return 0;
}

static struct perf_source from_sum(const struct perf_call *c, int block)
{
    (void)c;
    (void)block;
    return (struct perf_source){ PERF_REDUCED, 0 };
}

static struct perf_source from_sum_mine(const struct perf_call *c, int block)
{
    (void)block;
    return (struct perf_source){ PERF_REDUCED, (size_t)c->rank * c->count };
}

static struct perf_source from_root(const struct perf_call *c, int block)
{
    (void)block;
    return (struct perf_source){ c->root, 0 };
}

static struct perf_source from_root_mine(const struct perf_call *c, int block)
{
    (void)block;
    return (struct perf_source){ c->root, (size_t)c->rank * c->count };
}

static struct perf_source from_each(const struct perf_call *c, int block)
{
    (void)c;
    return (struct perf_source){ block, 0 };
}

static struct perf_source from_each_mine(const struct perf_call *c, int block)
{
    return (struct perf_source){ block, (size_t)c->rank * c->count };
}

static struct perf_source from_previous(const struct perf_call *c, int block)
{
    (void)block;
    return (struct perf_source){ (c->rank + c->nranks - 1) % c->nranks, 0 };
}

static size_t at_start(const struct perf_call *c)
{
    (void)c;
    return 0;
}

static size_t at_mine(const struct perf_call *c)
{
    return (size_t)c->rank * c->count;
}

const struct perf_case perf_cases[] = {
    {
        .name = "allreduce",
        .flags = PERF_REDUCES | PERF_IN | PERF_OUT | PERF_SAME,
        .bus_a = 2,
        .bus_b = 0,
        .run = run_allreduce,
        .send_elems = elems_count,
        .recv_blocks = blocks_one,
        .source = from_sum,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "reduce",
        .flags = PERF_REDUCES | PERF_ROOTED | PERF_IN | PERF_OUT,
        .bus_a = 0,
        .bus_b = 1,
        .run = run_reduce,
        .send_elems = elems_count,
        .recv_blocks = blocks_root_one,
        .source = from_sum,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "broadcast",
        .flags = PERF_ROOTED | PERF_IN | PERF_SAME,
        .bus_a = 0,
        .bus_b = 1,
        .run = run_broadcast,
        .send_elems = elems_root_count,
        .recv_blocks = blocks_one,
        .source = from_root,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "reduce_scatter",
        .flags = PERF_REDUCES | PERF_BLOCKS | PERF_IN | PERF_OUT,
        .bus_a = 1,
        .bus_b = 0,
        .run = run_reduce_scatter,
        .send_elems = elems_blocks,
        .recv_blocks = blocks_one,
        .source = from_sum_mine,
        .inplace_send = at_start,
        .inplace_recv = at_mine,
    },
    {
        .name = "allgather",
        .flags = PERF_BLOCKS | PERF_IN | PERF_OUT | PERF_SAME,
        .bus_a = 1,
        .bus_b = 0,
        .run = run_allgather,
        .send_elems = elems_count,
        .recv_blocks = blocks_all,
        .source = from_each,
        .inplace_send = at_mine,
        .inplace_recv = at_start,
    },
    {
        .name = "alltoall",
        .flags = PERF_BLOCKS | PERF_IN | PERF_OUT,
        .bus_a = 1,
        .bus_b = 0,
        .run = run_alltoall,
        .send_elems = elems_blocks,
        .recv_blocks = blocks_all,
        .source = from_each_mine,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "gather",
        .flags = PERF_ROOTED | PERF_BLOCKS | PERF_OUT,
        .bus_a = 1,
        .bus_b = 0,
        .run = run_gather,
        .send_elems = elems_count,
        .recv_blocks = blocks_root_all,
        .source = from_each,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "scatter",
        .flags = PERF_ROOTED | PERF_BLOCKS | PERF_OUT,
        .bus_a = 1,
        .bus_b = 0,
        .run = run_scatter,
        .send_elems = elems_root_blocks,
        .recv_blocks = blocks_one,
        .source = from_root_mine,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "barrier",
        .flags = PERF_NO_DATA | PERF_OUT,
        .bus_a = 0,
        .bus_b = 1,
        .run = run_barrier,
        .send_elems = elems_none,
        .recv_blocks = blocks_none,
        .source = from_sum,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "sendrecv",
        .flags = PERF_OUT,
        .bus_a = 0,
        .bus_b = 1,
        .run = run_sendrecv,
        .send_elems = elems_count,
        .recv_blocks = blocks_one,
        .source = from_previous,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "put_bw",
        .flags = PERF_RAW | PERF_OUT,
        .bus_a = 0,
        .bus_b = 1,
        .send_elems = elems_count,
        .recv_blocks = blocks_one,
        .source = from_previous,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    {
        .name = "put_lat",
        .flags = PERF_RAW | PERF_OUT,
        .bus_a = 0,
        .bus_b = 1,
        .send_elems = elems_count,
        .recv_blocks = blocks_one,
        .source = from_previous,
        .inplace_send = at_start,
        .inplace_recv = at_start,
    },
    { .name = "" },
};

const struct perf_case *perf_case_find(const char *name)
{
    for (const struct perf_case *pc = perf_cases; pc->name[0]; pc++)
        if (!strcmp(pc->name, name))
            return pc;
    return NULL;
}

double perf_bus_factor(const struct perf_case *pc, int nranks)
{
    return (double)(pc->bus_a * (nranks - 1) + pc->bus_b * nranks) / nranks;
}
