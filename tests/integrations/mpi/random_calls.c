/* SPDX-License-Identifier: BSD-3-Clause */
/* Random collective calls; what they leave in memory goes to a file. test_mpi.py runs it with
 * and without the interposer and compares the files. Usage: random_calls SEED CALLS PREFIX
 * [plain]
 *
 * What all ranks must agree on comes from a generator with the same state everywhere; data and
 * layouts from one for each rank. What follows PREFIX is "plain" for the run without: calls are
 * then blocking, because the non-blocking ones of Open MPI 4.1.4 crash on freed types and hang.
 * Both avoid MPI_Reduce in place at another root than 0, which crashes MPICH 4.0.2 from some
 * KiB on.
 *
 * Data whose sums are exact (and integers) is compared by a hash of the whole buffer, gaps and
 * guards included; other floats by value. */
#include <complex.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random_data.h"

#define PENDING 8
#define COMMS   8
#define UNIT    6 /* counts are multiples, so that types of 2, 3 and 6 elements fit */

static FILE *out;

/* ---- communicators ---- */

static MPI_Comm comms[COMMS]; /* MPI_COMM_NULL where this rank is no member */

static MPI_Comm make_comm(void)
{
    int how = all(6), a = all(world_n) + 1, b = all(2);
    MPI_Comm c = MPI_COMM_NULL;
    MPI_Group group, part;
    int range[1][3] = { { 0, a - 1, 1 } };

    switch (how) {
    case 0: MPI_Comm_dup(MPI_COMM_WORLD, &c); break;
    case 1: MPI_Comm_split(MPI_COMM_WORLD, me % 2, b ? -me : me, &c); break;
    case 2: MPI_Comm_split(MPI_COMM_WORLD, me < a ? 0 : MPI_UNDEFINED, -me, &c); break;
    case 3:
        MPI_Comm_group(MPI_COMM_WORLD, &group);
        MPI_Group_range_incl(group, 1, range, &part);
        if (me < a)
            MPI_Comm_create_group(MPI_COMM_WORLD, part, 5, &c);
        MPI_Group_free(&group);
        MPI_Group_free(&part);
        break;
    case 4: MPI_Comm_split(MPI_COMM_WORLD, 0, -me, &c); break;
    default: MPI_Comm_dup(MPI_COMM_SELF, &c); break;
    }
    if (c != MPI_COMM_NULL) /* with the interposer, it then runs non-blocking calls too, which
                               Open MPI's may crash */
        MPI_Barrier(c);
    return c;
}

/* ---- results ---- */

struct pending {
    int call;
    const char *name;
    struct area send, recv;
    int *vec;
    int values, rough; /* of a reduction: elements to look at */
    int undefined; /* and elements after them that may hold anything; all else is hashed as it
                      is */
    const struct base *base;
    char what[40]; /* for people */
};

static void write_result(struct pending *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    char *v = at(&p->recv);

    fprintf(out, "%d %s%s", p->call, p->name, p->what);
    if (p->rough) {
        for (int i = 0; i < p->values; i++, v += p->base->extent)
            fprintf(out, " %.17g",
                    p->base->kind == 'f'   ? (double)*(float *)v
                    : p->base->kind == 'd' ? *(double *)v
                                           : (double)*(long double *)v);
        fprintf(out, " eps %g\n", p->base->kind == 'f' ? 0x1p-23 : 0x1p-52);
    } else if (p->recv.mem) {
        for (int i = 0; i < p->values; i++, v += p->base->extent) {
            if (p->base->kind == 'c') /* the sign of zero depends on the order of factors */
                *(float complex *)v += 0.0f + 0.0f * I;
            if (p->base->kind == 'z')
                *(double complex *)v += 0.0 + 0.0 * I;
            h = hash(h, v, (size_t)p->base->size);
            memset(v, 0, (size_t)p->base->extent); /* padding is anybody's */
        }
        if (p->undefined)
            memset(v, 0, (size_t)p->undefined * (size_t)p->base->extent);
        fprintf(out, " %016llx\n", (unsigned long long)hash(h, p->recv.mem, p->recv.bytes));
    } else {
        fprintf(out, " -\n");
    }
    free(p->send.mem);
    free(p->recv.mem);
    free(p->vec);
}

static struct pending pending[PENDING];
static MPI_Request requests[PENDING];
static int npending;

static void complete_one(int i)
{
    if (i == MPI_UNDEFINED)
        return;
    write_result(&pending[i]);
    pending[i].call = -1;
}

/* Each rank its own way: MPI promises progress whatever the order. */
static void complete_all(void)
{
    int how = mine(6), flag = 0, n, idx[PENDING];
    MPI_Status statuses[PENDING];

    if (how == 0) {
        MPI_Waitall(npending, requests, MPI_STATUSES_IGNORE);
    } else if (how == 1) {
        for (int i = npending; i--;)
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
    } else if (how == 2) {
        for (int i = 0; i < npending; i++) {
            MPI_Waitany(npending, requests, &n, MPI_STATUS_IGNORE);
            complete_one(n);
        }
    } else if (how == 3) {
        for (;;) {
            MPI_Waitsome(npending, requests, &n, idx, statuses);
            if (n == MPI_UNDEFINED)
                break;
            for (int i = 0; i < n; i++)
                complete_one(idx[i]);
        }
    } else if (how == 4) {
        while (!flag)
            MPI_Testall(npending, requests, &flag, statuses);
    } else {
        for (int left = npending; left;) {
            MPI_Request_get_status(requests[mine(npending)], &flag, MPI_STATUS_IGNORE);
            MPI_Testany(npending, requests, &n, &flag, MPI_STATUS_IGNORE);
            if (flag && n != MPI_UNDEFINED) {
                complete_one(n);
                left--;
            }
        }
    }
    for (int i = 0; i < npending; i++)
        if (pending[i].call >= 0)
            complete_one(i);
    npending = 0;
}

/* Keeps a call until its request completes; a blocking one is written at once. */
static void done(struct pending *p, MPI_Request req, int nonblocking)
{
    if (!nonblocking) {
        write_result(p);
        return;
    }
    pending[npending] = *p;
    requests[npending++] = req;
}

/* ---- calls ---- */

static int pick_count(void)
{
    int k = all(10);

    return k == 0 ? 0 : k < 6 ? 1 + all(30) : k < 9 ? 1 + all(2000) : 1 + all(20000);
}

/* How a reduction combines. */
struct combination {
    const struct base *b;
    MPI_Datatype type;
    MPI_Op op;
    int index, product, user; /* index: of built-in operations, 0 is a sum */
};

static struct combination pick_combination(int user)
{
    static struct base kept[2] = { { MPI_DATATYPE_NULL, 4, 4, 'u' },
                                   { MPI_DATATYPE_NULL, 16, 16, 'u' } };
    struct combination c = { .b = &bases[all(nbases)], .index = -1, .user = user };
    int matrix;

    c.type = c.b->type;
    c.op = pick_op(c.b->kind, &c.product, &c.index);
    if (c.b->kind != 'x' && !user)
        return c;
    matrix = all(2);
    c.b = &kept[matrix];
    c.user = 1;
    c.type = MPI_UINT32_T;
    if (matrix) {
        MPI_Type_contiguous(4, MPI_UINT32_T, &c.type);
        MPI_Type_commit(&c.type);
    }
    MPI_Op_create(matrix ? multiply : add_mod, !matrix, &c.op);
    return c;
}

enum { ALLREDUCE, REDUCE, SCAN, EXSCAN, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, REDUCTIONS };

static MPI_Request reduce_by(int which, int nonblocking, const void *send, void *recv,
                             int count, const int *counts, const struct combination *c,
                             int root, MPI_Comm comm)
{
    MPI_Request req = MPI_REQUEST_NULL;

    switch (which + 10 * nonblocking) {
    case 0: MPI_Allreduce(send, recv, count, c->type, c->op, comm); break;
    case 1: MPI_Reduce(send, recv, count, c->type, c->op, root, comm); break;
    case 2: MPI_Scan(send, recv, count, c->type, c->op, comm); break;
    case 3: MPI_Exscan(send, recv, count, c->type, c->op, comm); break;
    case 4: MPI_Reduce_scatter(send, recv, counts, c->type, c->op, comm); break;
    case 5: MPI_Reduce_scatter_block(send, recv, count, c->type, c->op, comm); break;
    case 10: MPI_Iallreduce(send, recv, count, c->type, c->op, comm, &req); break;
    case 11: MPI_Ireduce(send, recv, count, c->type, c->op, root, comm, &req); break;
    case 12: MPI_Iscan(send, recv, count, c->type, c->op, comm, &req); break;
    case 13: MPI_Iexscan(send, recv, count, c->type, c->op, comm, &req); break;
    case 14: MPI_Ireduce_scatter(send, recv, counts, c->type, c->op, comm, &req); break;
    case 15: MPI_Ireduce_scatter_block(send, recv, count, c->type, c->op, comm, &req); break;
    }
    return req;
}

/* A reduction on a communicator that this rank is in. */
static void reduce_here(struct pending *p, const struct combination *c, int which, int in_place,
                        int root_pick, int rough, int count, MPI_Comm comm, int nonblocking)
{
    static const char *const names[REDUCTIONS] = { "allreduce",      "reduce",
                                                   "scan",           "exscan",
                                                   "reduce_scatter", "reduce_scatter_block" };
    int n, r, root, *counts, total = 0, elems;
    void *send, *recv;

    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &r);
    root = root_pick % n;
    if (which == REDUCE_SCATTER_BLOCK)
        count = count / n;
    p->vec = counts = malloc((size_t)n * sizeof *counts);
    for (int i = 0; i < n; i++) {
        counts[i] = (int)((unsigned)count * (unsigned)(i * 7 % 5) / 8);
        total += counts[i];
    }
    elems = which == REDUCE_SCATTER ? total : which == REDUCE_SCATTER_BLOCK ? count * n : count;
    p->name = names[which];
    snprintf(p->what, sizeof p->what, "-%c%d-op%d%s%s-%d", c->b->kind, c->b->extent, c->index,
             c->user ? "-user" : "", in_place ? "-inplace" : "", count);
    p->base = c->b;
    p->rough = rough;
    p->values = which == REDUCE_SCATTER ? counts[r] : count;
    p->recv = area((size_t)elems, c->b->extent);
    p->send = area((size_t)elems, c->b->extent);
    if (which == EXSCAN && r == 0) /* undefined there */
        p->values = p->rough = 0;
    if ((which == EXSCAN && r == 0) ||
        (which >= REDUCE_SCATTER && in_place)) /* Open MPI's work space, MPICH not */
        p->undefined = elems - p->values;
    fill(at(&p->send), c->b, elems, c->product, c->index == 0, rough);
    send = at(&p->send);
    recv = at(&p->recv);
    if (in_place && (which != REDUCE || (r == root && root == 0))) {
        memcpy(recv, send, (size_t)elems * (size_t)c->b->extent);
        send = MPI_IN_PLACE;
    }
    if (which == REDUCE && r != root) {
        recv = NULL;
        p->values = p->rough = 0;
    }
    done(p, reduce_by(which, nonblocking, send, recv, count, counts, c, root, comm),
         nonblocking);
}

static void reduction(struct pending *p, MPI_Comm comm, int nonblocking)
{
    int which = all(REDUCTIONS), in_place = all(3) == 0, root_pick = all(1 << 20),
        rough = all(4) == 0, count = pick_count();
    struct combination c = pick_combination(all(6) == 0);

    rough = rough && !c.user && strchr("fdg", c.b->kind) && c.op == MPI_SUM;
    if (comm != MPI_COMM_NULL)
        reduce_here(p, &c, which, in_place, root_pick, rough, rough ? count % 8 : count, comm,
                    nonblocking);
    if (c.user) { /* legal while it is in flight */
        MPI_Op_free(&c.op);
        if (c.type != MPI_UINT32_T)
            MPI_Type_free(&c.type);
    }
}

/* Blocks for each rank: how many types, and where; any order, with gaps. */
static void place(int n, const int *elems, int per, int *counts, int *displs)
{
    int pos = 0, first = mine(n);

    for (int k = 0; k < n; k++) {
        int i = (first + k) % n;
        counts[i] = elems[i] / per;
        displs[i] = pos;
        pos += counts[i] + (counts[i] ? mine(2) : 0);
    }
}

enum {
    BCAST,
    GATHER,
    GATHERV,
    SCATTER,
    SCATTERV,
    ALLGATHER,
    ALLGATHERV,
    ALLTOALL,
    ALLTOALLV,
    MOVEMENTS
};

/* What one movement passes to MPI. */
struct movement {
    int root, per[2]; /* elements of a type; [0] sends, [1] receives */
    MPI_Datatype type[2];
    int count[2], *counts[2], *displs[2],
        own[2]; /* own: of the v-variants, at the rank that has one block */
    void *send, *recv;
};

/* Elements of one block, from the bits of a number that all ranks have. */
static int block_of(uint64_t sizes, int shift, int count)
{
    return (int)((sizes >> shift & 7) * (unsigned)count / 8) / UNIT * UNIT;
}

/* Blocks of each rank; p->vec keeps them. Returns the elements of all. */
static int make_blocks(struct pending *p, struct movement *m, int which, int in_place,
                       uint64_t sizes, int count, int n, int r)
{
    int *v = p->vec = malloc(6 * (size_t)n * sizeof *v), *to = v, *from = v + n, most = 0;

    for (int i = 0; i < n; i++) {
        to[i] = from[i] = block_of(sizes, i * 3, count);
        most += from[i] > count ? from[i] : count;
    }
    for (int i = 0; which == ALLTOALLV && i < n;
         i++) { /* what i sends to k has as many as what k expects from i */
        to[i] = block_of(sizes, in_place ? (r + i) * 3 % 60 : (r * 5 + i * 11) % 60, count);
        from[i] = in_place ? to[i] : block_of(sizes, (i * 5 + r * 11) % 60, count);
    }
    for (int k = 0; k < 2; k++) {
        m->counts[k] = v + (2 + 2 * k) * n;
        m->displs[k] = v + (3 + 2 * k) * n;
        m->count[k] = count / m->per[k];
        m->own[k] = from[r] / m->per[k];
        place(n, k ? from : to, m->per[k], m->counts[k], m->displs[k]);
    }
    return most;
}

static void move(int which, const struct movement *m, MPI_Comm comm)
{
    MPI_Datatype st = m->type[0], rt = m->type[1];
    int sc = m->count[0], rc = m->count[1], *scs = m->counts[0], *rcs = m->counts[1],
        *sds = m->displs[0], *rds = m->displs[1];

    switch (which) {
    case BCAST: MPI_Bcast(m->recv, rc, rt, m->root, comm); break;
    case GATHER: MPI_Gather(m->send, sc, st, m->recv, rc, rt, m->root, comm); break;
    case GATHERV:
        MPI_Gatherv(m->send, m->own[0], st, m->recv, rcs, rds, rt, m->root, comm);
        break;
    case SCATTER: MPI_Scatter(m->send, sc, st, m->recv, rc, rt, m->root, comm); break;
    case SCATTERV:
        MPI_Scatterv(m->send, scs, sds, st, m->recv, m->own[1], rt, m->root, comm);
        break;
    case ALLGATHER: MPI_Allgather(m->send, sc, st, m->recv, rc, rt, comm); break;
    case ALLGATHERV: MPI_Allgatherv(m->send, m->own[0], st, m->recv, rcs, rds, rt, comm); break;
    case ALLTOALL: MPI_Alltoall(m->send, sc, st, m->recv, rc, rt, comm); break;
    case ALLTOALLV: MPI_Alltoallv(m->send, scs, sds, st, m->recv, rcs, rds, rt, comm); break;
    }
}

static MPI_Request imove(int which, const struct movement *m, MPI_Comm comm)
{
    MPI_Datatype st = m->type[0], rt = m->type[1];
    int sc = m->count[0], rc = m->count[1], *scs = m->counts[0], *rcs = m->counts[1],
        *sds = m->displs[0], *rds = m->displs[1];
    MPI_Request q = MPI_REQUEST_NULL;

    switch (which) {
    case BCAST: MPI_Ibcast(m->recv, rc, rt, m->root, comm, &q); break;
    case GATHER: MPI_Igather(m->send, sc, st, m->recv, rc, rt, m->root, comm, &q); break;
    case GATHERV:
        MPI_Igatherv(m->send, m->own[0], st, m->recv, rcs, rds, rt, m->root, comm, &q);
        break;
    case SCATTER: MPI_Iscatter(m->send, sc, st, m->recv, rc, rt, m->root, comm, &q); break;
    case SCATTERV:
        MPI_Iscatterv(m->send, scs, sds, st, m->recv, m->own[1], rt, m->root, comm, &q);
        break;
    case ALLGATHER: MPI_Iallgather(m->send, sc, st, m->recv, rc, rt, comm, &q); break;
    case ALLGATHERV:
        MPI_Iallgatherv(m->send, m->own[0], st, m->recv, rcs, rds, rt, comm, &q);
        break;
    case ALLTOALL: MPI_Ialltoall(m->send, sc, st, m->recv, rc, rt, comm, &q); break;
    case ALLTOALLV:
        MPI_Ialltoallv(m->send, scs, sds, st, m->recv, rcs, rds, rt, comm, &q);
        break;
    }
    return q;
}

/* Only results inside what a reduction in place leaves undefined are not looked at; everything
 * else is hashed. */
static void movement(struct pending *p, MPI_Comm comm, int nonblocking)
{
    static const char *const names[MOVEMENTS] = { "bcast",      "gather",   "gatherv",
                                                  "scatter",    "scatterv", "allgather",
                                                  "allgatherv", "alltoall", "alltoallv" };
    const struct base *b = &bases[all(nbases)];
    int which = all(MOVEMENTS), in_place = all(3) == 0, root_pick = all(1 << 20),
        count = pick_count(), n, r;
    uint64_t sizes = next(&all_state);
    size_t room;
    struct movement m;
    MPI_Request req = MPI_REQUEST_NULL;

    if (comm == MPI_COMM_NULL)
        return;
    if (strchr("rsg", b->kind)) /* their padding may travel or not */
        b = &bases[0];
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &r);
    m.root = root_pick % n;
    count = (which == BCAST ? count : count / n) / UNIT * UNIT;
    for (int k = 0; k < 2; k++) /* Open MPI's allgatherv chooses its algorithm by the local
                                   type, and hangs where those differ */
        m.type[k] =
            layout(b, which == ALLGATHERV ? (int)(sizes >> 60 & 7) : mine(8), &m.per[k]);
    p->name = names[which];
    snprintf(p->what, sizeof p->what, "-%c%d%s-%d", b->kind, b->extent,
             in_place ? "-inplace" : "", count);
    room =
        (size_t)make_blocks(p, &m, which, in_place, sizes, count, n, r) + (size_t)n * UNIT * 2;
    p->send = area(room, b->extent);
    p->recv = area(room, b->extent);
    if (in_place && r == m.root &&
        (which == SCATTER || which == SCATTERV)) { /* look at the send buffer */
        struct area swap = p->send;
        p->send = p->recv;
        p->recv = swap;
        m.send = at(&p->recv);
        m.recv = MPI_IN_PLACE;
    } else {
        m.send = in_place && (which >= ALLGATHER || r == m.root) ? MPI_IN_PLACE : at(&p->send);
        m.recv = at(&p->recv);
    }
    if (nonblocking)
        req = imove(which, &m, comm);
    else
        move(which, &m, comm);
    done(p, req, nonblocking);
    for (int k = 0; k < 2; k++)
        if (m.type[k] != b->type) /* legal while it is in flight */
            MPI_Type_free(&m.type[k]);
}

/* Messages of MPI's own between: around the ring, some large enough to wait for their receiver.
 */
static void ring(int call)
{
    int bytes = all(3) == 0 ? 300000 : 1 + all(5000), how = all(3);
    int to = (me + 1) % world_n, from = (me + world_n - 1) % world_n;
    struct pending p = {
        .call = call, .name = "ring", .recv = area(1, bytes), .send = area(1, bytes)
    };
    MPI_Request r[2];

    if (how == 0) {
        MPI_Sendrecv(at(&p.send), bytes, MPI_BYTE, to, 1, at(&p.recv), bytes, MPI_BYTE, from, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (how == 1) {
        MPI_Irecv(at(&p.recv), bytes, MPI_BYTE, from, 1, MPI_COMM_WORLD, &r[0]);
        MPI_Send(at(&p.send), bytes, MPI_BYTE, to, 1, MPI_COMM_WORLD);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    } else {
        MPI_Isend(at(&p.send), bytes, MPI_BYTE, to, 1, MPI_COMM_WORLD, &r[1]);
        MPI_Recv(at(&p.recv), bytes, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&r[1], MPI_STATUS_IGNORE);
    }
    write_result(&p);
}

/* A communicator of one rank is the MPI's own: Open MPI 4.1.4 never completes an MPI_Iscatterv
 * whose communicator of one rank is freed. */
static void free_comm(MPI_Comm *comm)
{
    int n;

    MPI_Comm_size(*comm, &n);
    if (n == 1)
        complete_all();
    MPI_Comm_free(comm);
}

int main(int argc, char **argv)
{
    char path[600];
    int calls, plain;
    uint64_t seed;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &world_n);
    if (argc < 4)
        MPI_Abort(MPI_COMM_WORLD, 2);
    seed = strtoull(argv[1], NULL, 10);
    calls = atoi(argv[2]);
    plain = argc > 4;
    snprintf(path, sizeof path, "%s.%d", argv[3], me);
    out = fopen(path, "w");
    make_bases();
    all_state = seed;
    for (int i = 1; i < COMMS; i++)
        comms[i] = make_comm();
    comms[0] = MPI_COMM_WORLD;
    for (int call = 0; call < calls; call++) {
        int which = all(COMMS), what = all(20), nonblocking = all(3) == 0 && !plain;
        struct pending p = { .call = call };
        MPI_Comm comm = comms[which];

        my_state = seed * 1000003 + (uint64_t)call * 64 + (uint64_t)me;
        if (what < 8)
            reduction(&p, comm, nonblocking);
        else if (what < 16)
            movement(&p, comm, nonblocking);
        else if (what == 16)
            ring(call);
        else if (what == 17 && comm != MPI_COMM_NULL)
            MPI_Barrier(comm);
        else if (what == 18 && which) { /* operations may be in flight on it */
            if (comm != MPI_COMM_NULL)
                free_comm(&comms[which]);
            comms[which] = make_comm();
        }
        my_state += (uint64_t)call;
        if (npending && (npending == PENDING || what == 19))
            complete_all();
    }
    complete_all();
    for (int i = 1; i < COMMS - 1; i++) /* one is left to MPI_Finalize */
        if (comms[i] != MPI_COMM_NULL)
            MPI_Comm_free(&comms[i]);
    if (fclose(out) != 0)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Finalize();
    return 0;
}
