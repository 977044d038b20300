/* SPDX-License-Identifier: BSD-3-Clause */
/* Random collective calls; what they leave in memory goes to a file. test_mpi.py runs it with and without the interposer
 * and compares the files. Usage: random_calls SEED CALLS PREFIX [plain]
 *
 * What all ranks must agree on comes from a generator with the same state everywhere; data and layouts from one for each
 * rank. What follows PREFIX is "plain" for the run without: calls are then blocking, because the non-blocking ones of
 * Open MPI 4.1.4 crash on freed types and hang. Both avoid MPI_Reduce in place at another root than 0, which crashes
 * MPICH 4.0.2 from some KiB on.
 *
 * Data whose sums are exact (and integers) is compared by a hash of the whole buffer, gaps and guards included;
 * other floats by value. */
#include <complex.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN  4096
#define PENDING 8
#define COMMS   8
#define UNIT    6 /* counts are multiples, so that types of 2, 3 and 6 elements fit */

static uint64_t all_state, my_state; /* the two generators */
static int me, world_n;
static FILE *out;

static uint64_t next(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int all(int n) /* the same on all ranks */
{
    return (int)(next(&all_state) % (uint64_t)n);
}

static int mine(int n)
{
    return (int)(next(&my_state) % (uint64_t)n);
}

static uint64_t hash(uint64_t h, const void *p, size_t bytes)
{
    for (const unsigned char *c = p; bytes--; c++)
        h = (h ^ *c) * 0x100000001b3u;
    return h;
}

/* ---- communicators ------------------------------------------------------------------------------------------------ */

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
    if (c != MPI_COMM_NULL) /* with the interposer, it then runs non-blocking calls too, which Open MPI's may crash */
        MPI_Barrier(c);
    return c;
}

/* ---- types ------------------------------------------------------------------------------------------------------------ */

struct base {
    MPI_Datatype type;
    int size, extent; /* bytes of value from the start; and between elements */
    char kind;        /* i integer, f float, d double, g long double, c float complex, z double complex, b bool, p pair */
};
static struct base bases[48];
static int nbases;

static void base(MPI_Datatype type, char kind, int value_bytes)
{
    MPI_Aint lb, extent;
    int size;

    if (type == MPI_DATATYPE_NULL)
        return;
    MPI_Type_get_extent(type, &lb, &extent);
    MPI_Type_size(type, &size);
    bases[nbases++] = (struct base){ type, value_bytes ? value_bytes : size, (int)extent, kind };
}

static void make_bases(void)
{
    MPI_Datatype ints[] = { MPI_INT, MPI_LONG, MPI_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
                            MPI_UNSIGNED_SHORT, MPI_LONG_LONG, MPI_UNSIGNED_LONG_LONG,
                            MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_INT8_T, MPI_INT16_T,
                            MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T,
                            MPI_UINT64_T };

    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        base(ints[i], 'i', 0);
    base(MPI_INTEGER, 'n', 0);
    base(MPI_INTEGER8, 'n', 0);
    base(MPI_AINT, 'm', 0);
    base(MPI_OFFSET, 'm', 0);
    base(MPI_BYTE, 'y', 0);
    base(MPI_FLOAT, 'f', 0);
    base(MPI_FLOAT, 'f', 0);
    base(MPI_REAL, 'f', 0);
    base(MPI_DOUBLE, 'd', 0);
    base(MPI_DOUBLE, 'd', 0);
    base(MPI_DOUBLE_PRECISION, 'd', 0);
    base(MPI_LONG_DOUBLE, 'g', 10);
    base(MPI_C_FLOAT_COMPLEX, 'c', 0);
    base(MPI_C_DOUBLE_COMPLEX, 'z', 0);
    base(MPI_C_BOOL, 'b', 0);
    base(MPI_FLOAT_INT, 'p', 0);
    base(MPI_2INT, 'q', 0);
    base(MPI_DOUBLE_INT, 'r', 0);
    base(MPI_LONG_INT, 's', 0);
    base(MPI_CHAR, 'x', 0);
}

/* A layout of `per` elements: any of these has the same signature. */
static MPI_Datatype layout(const struct base *b, int which, int *per)
{
    MPI_Datatype t, u;
    int two[2] = { 1, 2 }, at[2] = { 4, 0 };

    *per = 1;
    switch (which) {
    case 0: /* a gap after each */
        MPI_Type_create_resized(b->type, 0, 2 * b->extent, &t);
        break;
    case 1:
        MPI_Type_contiguous(3, b->type, &t);
        *per = 3;
        break;
    case 2:
        MPI_Type_vector(2, 3, 4, b->type, &t);
        *per = 6;
        break;
    case 3: /* the later element first */
        MPI_Type_indexed(2, two, at, b->type, &t);
        *per = 3;
        break;
    case 4:
        MPI_Type_contiguous(2, b->type, &u);
        MPI_Type_dup(u, &t);
        MPI_Type_free(&u);
        *per = 2;
        break;
    default: return b->type;
    }
    MPI_Type_commit(&t);
    return t;
}

/* ---- buffers -------------------------------------------------------------------------------------------------------------- */

struct area {
    char *mem;
    size_t bytes; /* margins included */
};

static struct area area(size_t elems, int extent)
{
    struct area a = { .bytes = elems * (size_t)extent * 4 + 2 * MARGIN };

    a.mem = calloc(a.bytes, 1);
    for (size_t i = 0; i + 8 <= a.bytes; i += 8) {
        uint64_t x = next(&my_state);
        memcpy(a.mem + i, &x, 8);
    }
    return a;
}

static char *at(struct area *a)
{
    return a->mem + MARGIN;
}

/* Values whose sums and products are exact, also in float; or (rough) any between -1 and 1. */
static void fill(char *p, const struct base *b, int count, int product, int sum, int rough)
{
    for (int i = 0; i < count; i++, p += b->extent) {
        double v = product ? (double)(1 + mine(2)) * (mine(2) ? 1 : -1) : mine(200) - 100;
        double x = rough ? (double)(int64_t)next(&my_state) * 0x1p-63 : v;
        uint64_t bits[2] = { next(&my_state), next(&my_state) };
        memset(p, 0, (size_t)b->extent);
        switch (b->kind) {
        case 'f': *(float *)p = (float)x; break;
        case 'd': *(double *)p = x; break;
        case 'g': *(long double *)p = (long double)x; break;
        case 'c': *(float complex *)p = (float)v + (float)mine(2) * I; break;
        case 'z': *(double complex *)p = v + mine(2) * I; break;
        case 'b': *p = (char)mine(2); break;
        case 'p': *(float *)p = (float)v, ((int *)p)[1] = mine(50); break;
        case 'q': ((int *)p)[0] = (int)v, ((int *)p)[1] = mine(50); break;
        case 'r': *(double *)p = v, ((int *)p)[2] = mine(50); break;
        case 's': *(long *)p = (long)v, ((int *)p)[2] = mine(50); break;
        case 'i': /* Open MPI's sums of short types saturate, and the result depends on their order */
            if (sum && b->extent <= 2)
                *p = (char)(bits[0] % 16);
            else
                memcpy(p, bits, (size_t)b->extent);
            break;
        default: memcpy(p, bits, (size_t)b->extent); break;
        }
    }
}

/* ---- operations ---------------------------------------------------------------------------------------------------------- */

static void add_mod(void *in, void *inout, int *n, MPI_Datatype *type)
{
    for (int i = 0; i < *n; i++)
        ((uint32_t *)inout)[i] = ((uint32_t *)in)[i] + 3 + ((uint32_t *)inout)[i];
}

/* 2 x 2 matrices, in x inout: order matters. */
static void multiply(void *in, void *inout, int *n, MPI_Datatype *type)
{
    uint32_t *a = in, *b = inout;

    for (int i = 0; i < *n; i++, a += 4, b += 4) {
        uint32_t c[4] = { a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
                          a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3] };
        memcpy(b, c, sizeof c);
    }
}

static MPI_Op pick_op(char kind, int *product, int *which)
{
    MPI_Op sums[] = { MPI_SUM, MPI_MAX, MPI_MIN, MPI_PROD, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND,
                      MPI_LOR, MPI_LXOR, MPI_MAXLOC, MPI_MINLOC };
    int k;

    switch (kind) {
    case 'i': k = all(10); break;
    case 'n': case 'm': k = all(7); break;
    case 'y': k = 4 + all(3); break;
    case 'b': k = 7 + all(3); break;
    case 'f': case 'd': case 'g': k = all(4); break;
    case 'c': case 'z': k = all(2) * 3; break;
    case 'x': k = -1; break;
    default: k = 10 + all(2); break;
    }
    *product = k == 3;
    *which = k;
    return k < 0 ? MPI_OP_NULL : sums[k];
}

/* ---- results -------------------------------------------------------------------------------------------------------------- */

struct pending {
    int call;
    const char *name;
    struct area send, recv;
    int *vec;
    int values, rough; /* of a reduction: elements to look at */
    int undefined;     /* and elements after them that may hold anything; all else is hashed as it is */
    const struct base *base;
    char what[40];     /* for people */
};

static void write_result(struct pending *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    char *v = at(&p->recv);

    fprintf(out, "%d %s%s", p->call, p->name, p->what);
    if (p->rough) {
        for (int i = 0; i < p->values; i++, v += p->base->extent)
            fprintf(out, " %.17g", p->base->kind == 'f'   ? (double)*(float *)v
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

/* ---- calls ------------------------------------------------------------------------------------------------------------------- */

static int pick_count(void)
{
    int k = all(10);

    return k == 0 ? 0 : k < 6 ? 1 + all(30) : k < 9 ? 1 + all(2000) : 1 + all(20000);
}

static void reduction(struct pending *p, MPI_Comm comm, int nonblocking)
{
    const struct base *b = &bases[all(nbases)];
    int which = all(6), in_place = all(3) == 0, user = all(6) == 0, product = 0, root_pick = all(1 << 20);
    int rough = all(4) == 0, n, r, root, count = pick_count(), *counts, total, elems;
    static const char *const names[] = { "allreduce", "reduce", "scan", "exscan", "reduce_scatter",
                                         "reduce_scatter_block" };
    struct base opaque = { MPI_DATATYPE_NULL, 4, 4, 'u' };
    int op_index = -1;
    MPI_Op op = pick_op(b->kind, &product, &op_index);
    MPI_Request req = MPI_REQUEST_NULL;
    MPI_Datatype type = b->type;
    void *send, *recv;
    static struct base kept[2]; /* outlive the call */

    if (b->kind == 'x' || user) {
        int matrix = all(2);
        kept[matrix] = opaque;
        kept[matrix].extent = kept[matrix].size = matrix ? 16 : 4;
        b = &kept[matrix];
        user = 1;
        type = MPI_UINT32_T;
        if (matrix) {
            MPI_Type_contiguous(4, MPI_UINT32_T, &type);
            MPI_Type_commit(&type);
        }
        MPI_Op_create(matrix ? multiply : add_mod, !matrix, &op);
    }
    rough = rough && !user && strchr("fdg", b->kind) && op == MPI_SUM;
    if (rough)
        count = count % 8;
    if (comm == MPI_COMM_NULL)
        goto out;
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &r);
    root = root_pick % n;
    if (which == 5)
        count = count / n;
    counts = malloc((size_t)n * sizeof *counts);
    total = 0;
    for (int i = 0; i < n; i++) {
        counts[i] = (int)((unsigned)count * (unsigned)(i * 7 % 5) / 8);
        total += counts[i];
    }
    elems = which == 4 ? total : which == 5 ? count * n : count;
    p->vec = counts;
    p->name = names[which];
    snprintf(p->what, sizeof p->what, "-%c%d-op%d%s%s-%d", b->kind, b->extent, op_index, user ? "-user" : "",
             in_place ? "-inplace" : "", count);
    p->base = b;
    p->rough = rough;
    p->values = which == 4 ? counts[r] : count;
    p->recv = area((size_t)elems, b->extent);
    p->send = area((size_t)elems, b->extent);
    if (which == 3 && r == 0) /* undefined there */
        p->values = 0;
    if ((which == 3 && r == 0) || (which >= 4 && in_place)) /* Open MPI uses it as work space, MPICH not */
        p->undefined = elems - p->values;
    fill(at(&p->send), b, elems, product, op_index == 0, rough);
    send = at(&p->send);
    recv = at(&p->recv);
    if (in_place && (which != 1 || (r == root && root == 0))) {
        memcpy(recv, send, (size_t)elems * (size_t)b->extent);
        send = MPI_IN_PLACE;
    }
    if (which == 1 && r != root) {
        recv = NULL;
        p->values = 0;
        p->rough = 0;
    }
    switch (which + 10 * nonblocking) {
    case 0: MPI_Allreduce(send, recv, count, type, op, comm); break;
    case 1: MPI_Reduce(send, recv, count, type, op, root, comm); break;
    case 2: MPI_Scan(send, recv, count, type, op, comm); break;
    case 3: MPI_Exscan(send, recv, count, type, op, comm); break;
    case 4: MPI_Reduce_scatter(send, recv, counts, type, op, comm); break;
    case 5: MPI_Reduce_scatter_block(send, recv, count, type, op, comm); break;
    case 10: MPI_Iallreduce(send, recv, count, type, op, comm, &req); break;
    case 11: MPI_Ireduce(send, recv, count, type, op, root, comm, &req); break;
    case 12: MPI_Iscan(send, recv, count, type, op, comm, &req); break;
    case 13: MPI_Iexscan(send, recv, count, type, op, comm, &req); break;
    case 14: MPI_Ireduce_scatter(send, recv, counts, type, op, comm, &req); break;
    case 15: MPI_Ireduce_scatter_block(send, recv, count, type, op, comm, &req); break;
    }
    p->rough = p->rough && !(which == 3 && r == 0);
    done(p, req, nonblocking);
out:
    if (user) { /* legal while it is in flight */
        MPI_Op_free(&op);
        if (type != MPI_UINT32_T)
            MPI_Type_free(&type);
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

/* Only results inside what a reduction in place leaves undefined are not looked at; everything else is hashed. */
static void movement(struct pending *p, MPI_Comm comm, int nonblocking)
{
    static const char *const names[] = { "bcast", "gather", "gatherv", "scatter", "scatterv",
                                         "allgather", "allgatherv", "alltoall", "alltoallv" };
    const struct base *b = &bases[all(nbases)];
    int which = all(9), in_place = all(3) == 0, root_pick = all(1 << 20), count = pick_count();
    uint64_t sizes = next(&all_state);
    int n, r, root, sper, rper, *v, *elems, *scounts, *sdispls, *rcounts, *rdispls, most = 0, sc, rc;
    MPI_Datatype st, rt;
    MPI_Request req = MPI_REQUEST_NULL;
    void *send, *recv;

    if (comm == MPI_COMM_NULL)
        return;
    if (strchr("rsg", b->kind)) /* their padding may travel or not */
        b = &bases[0];
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &r);
    root = root_pick % n;
    count = (which ? count / n : count) / UNIT * UNIT;
    /* Open MPI's allgatherv chooses its algorithm by the local type, and hangs where those differ. */
    st = layout(b, which == 6 ? (int)(sizes >> 60 & 7) : mine(8), &sper);
    rt = layout(b, which == 6 ? (int)(sizes >> 60 & 7) : mine(8), &rper);
    p->name = names[which];
    snprintf(p->what, sizeof p->what, "-%c%d%s-%d", b->kind, b->extent, in_place ? "-inplace" : "", count);
    p->vec = v = malloc(6 * (size_t)n * sizeof *v);
    elems = v;
    scounts = v + n;
    sdispls = v + 2 * n;
    rcounts = v + 3 * n;
    rdispls = v + 4 * n;
    for (int i = 0; i < n; i++) {
        elems[i] = (int)((sizes >> (i * 3) & 7) * (unsigned)count / 8) / UNIT * UNIT;
        most += elems[i] > count ? elems[i] : count;
    }
    sc = count / sper;
    rc = count / rper;
    if (which == 8) { /* what i sends to k has as many as what k expects from i */
        int *to = v + 5 * n;
        for (int i = 0; i < n; i++)
            to[i] = (int)((sizes >> ((r * 5 + i * 11) % 60) & 7) * (unsigned)count / 8) / UNIT * UNIT;
        if (in_place)
            for (int i = 0; i < n; i++)
                to[i] = (int)((sizes >> ((r + i) * 3 % 60) & 7) * (unsigned)count / 8) / UNIT * UNIT;
        place(n, to, sper, scounts, sdispls);
        for (int i = 0; i < n; i++)
            elems[i] = in_place ? to[i]
                                : (int)((sizes >> ((i * 5 + r * 11) % 60) & 7) * (unsigned)count / 8) / UNIT * UNIT;
    } else {
        place(n, elems, sper, scounts, sdispls);
    }
    place(n, elems, rper, rcounts, rdispls);
    p->send = area((size_t)most + (size_t)n * UNIT * 2, b->extent);
    p->recv = area((size_t)most + (size_t)n * UNIT * 2, b->extent);
    send = at(&p->send);
    recv = at(&p->recv);
    if (in_place && (which >= 5 || r == root)) {
        if (which == 3 || which == 4) { /* scatter: the receive buffer is ignored; look at the send buffer */
            struct area swap = p->send;
            p->send = p->recv;
            p->recv = swap;
            recv = MPI_IN_PLACE;
        } else {
            send = MPI_IN_PLACE;
        }
    }
    switch (which + 10 * nonblocking) {
    case 0: MPI_Bcast(recv, rc, rt, root, comm); break;
    case 1: MPI_Gather(send, sc, st, recv, rc, rt, root, comm); break;
    case 2: MPI_Gatherv(send, elems[r] / sper, st, recv, rcounts, rdispls, rt, root, comm); break;
    case 3: MPI_Scatter(send, sc, st, recv, rc, rt, root, comm); break;
    case 4: MPI_Scatterv(send, scounts, sdispls, st, recv, elems[r] / rper, rt, root, comm); break;
    case 5: MPI_Allgather(send, sc, st, recv, rc, rt, comm); break;
    case 6: MPI_Allgatherv(send, elems[r] / sper, st, recv, rcounts, rdispls, rt, comm); break;
    case 7: MPI_Alltoall(send, sc, st, recv, rc, rt, comm); break;
    case 8: MPI_Alltoallv(send, scounts, sdispls, st, recv, rcounts, rdispls, rt, comm); break;
    case 10: MPI_Ibcast(recv, rc, rt, root, comm, &req); break;
    case 11: MPI_Igather(send, sc, st, recv, rc, rt, root, comm, &req); break;
    case 12: MPI_Igatherv(send, elems[r] / sper, st, recv, rcounts, rdispls, rt, root, comm, &req); break;
    case 13: MPI_Iscatter(send, sc, st, recv, rc, rt, root, comm, &req); break;
    case 14: MPI_Iscatterv(send, scounts, sdispls, st, recv, elems[r] / rper, rt, root, comm, &req); break;
    case 15: MPI_Iallgather(send, sc, st, recv, rc, rt, comm, &req); break;
    case 16: MPI_Iallgatherv(send, elems[r] / sper, st, recv, rcounts, rdispls, rt, comm, &req); break;
    case 17: MPI_Ialltoall(send, sc, st, recv, rc, rt, comm, &req); break;
    case 18: MPI_Ialltoallv(send, scounts, sdispls, st, recv, rcounts, rdispls, rt, comm, &req); break;
    }
    done(p, req, nonblocking);
    if (st != b->type) /* legal while it is in flight */
        MPI_Type_free(&st);
    if (rt != b->type)
        MPI_Type_free(&rt);
}

/* Messages of MPI's own between: around the ring, some large enough to wait for their receiver. */
static void ring(int call)
{
    int bytes = all(3) == 0 ? 300000 : 1 + all(5000), how = all(3);
    int to = (me + 1) % world_n, from = (me + world_n - 1) % world_n;
    struct pending p = { .call = call, .name = "ring", .recv = area(1, bytes), .send = area(1, bytes) };
    MPI_Request r[2];

    if (how == 0) {
        MPI_Sendrecv(at(&p.send), bytes, MPI_BYTE, to, 1, at(&p.recv), bytes, MPI_BYTE, from, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
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
                MPI_Comm_free(&comms[which]);
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
