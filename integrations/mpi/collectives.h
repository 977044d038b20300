/* SPDX-License-Identifier: BSD-3-Clause */
/* The collectives with counts of type COUNT and displacements of type DISPL; FN(name) is a
 * function's name. Included by calls.c: for int, and for the large counts of MPI-4 where the
 * MPI library has those. */

/* ---- blocks of different sizes ---- */

/* The user's blocks as bytes where they lie. A displacement may be negative: *base moves to the
 * lowest block. */
static int FN(lay_out)(int n, const COUNT *counts, const DISPL *displs,
                       const struct shim_type *t, char **base, size_t *bytes, size_t *offsets)
{
    ptrdiff_t low = 0;
    int any = 0;

    for (int r = 0; r < n; r++) {
        ptrdiff_t at = (ptrdiff_t)displs[r] * t->extent;
        if (counts[r] < 0)
            return -1;
        if (counts[r] > 0 && (!any || at < low))
            low = at;
        any |= counts[r] > 0;
    }
    for (int r = 0; r < n; r++) {
        bytes[r] = (size_t)counts[r] * t->size;
        offsets[r] = counts[r] > 0 ? (size_t)((ptrdiff_t)displs[r] * t->extent - low) : 0;
    }
    *base = any ? (char *)((uintptr_t)*base + (uintptr_t)low) : NULL;
    return 0;
}

static size_t FN(total)(int n, const COUNT *counts)
{
    size_t sum = 0;

    for (int r = 0; r < n; r++)
        sum += (size_t)counts[r];
    return sum;
}

/* The user's blocks packed one after another into `to`. */
static int FN(pack_blocks)(int n, const void *base, const COUNT *counts, const DISPL *displs,
                           const struct shim_type *t, char *to)
{
    int rc = MPI_SUCCESS;

    for (int r = 0; r < n && rc == MPI_SUCCESS; r++) {
        rc = shim_pack((const char *)base + (ptrdiff_t)displs[r] * t->extent, (size_t)counts[r],
                       t, to);
        to += (size_t)counts[r] * t->size;
    }
    return rc;
}

/* Blocks to be received: in place, or into temp[1]; then *offsets becomes NULL (packed), and
 * the blocks are unpacked afterwards. vec must have 4 arrays; the last two are used here. */
static enum how FN(receive_blocks)(struct shim_job *j, void *buf, const COUNT *counts,
                                   const DISPL *displs, const struct shim_type *t)
{
    int n = j->c->n;
    char *base = buf;

    j->rcounts = j->vec + 2 * n;
    j->rdispls = j->vec + 3 * n;
    if (FN(lay_out)(n, counts, displs, t, &base, j->rcounts, j->rdispls))
        return MPIS;
    j->recv = base;
    if (t->plain)
        return GO;
    j->out = 1;
    j->out_base = buf;
    j->out_type = *t;
    j->out_counts = j->vec + n;
    j->out_displs = (ptrdiff_t *)j->rdispls;
    j->rdispls = NULL;
    for (int r = 0; r < n; r++) {
        j->out_counts[r] = (size_t)counts[r];
        j->out_displs[r] = (ptrdiff_t)displs[r];
    }
    j->recv = shim_job_temp(j, 1, FN(total)(n, counts) * t->size);
    return j->recv ? GO : NO_MEMORY;
}

/* Where block `rank` of such blocks lies, packed from the user's memory if need be: what
 * MPI_IN_PLACE sends. */
static const void *FN(own_block)(struct shim_job *j, const void *buf, const COUNT *counts,
                                 const DISPL *displs, const struct shim_type *t)
{
    const char *own = (const char *)buf + (ptrdiff_t)displs[j->c->rank] * t->extent;
    char *packed;

    if (t->plain)
        return counts[j->c->rank] > 0 ? own : NULL;
    packed = (char *)j->recv + FN(total)(j->c->rank, counts) * t->size;
    shim_pack(own, (size_t)counts[j->c->rank], t, packed);
    return packed;
}

/* ---- reductions ---- */

static enum how FN(allreduce)(struct shim_job *j, const void *send, void *recv, COUNT count,
                              MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    if (count == 0)
        return nothing_of(type, op);
    if (count < 0 || !recv || recv == MPI_IN_PLACE || !send || send == recv)
        return MPIS;
    return elementwise(j, send == MPI_IN_PLACE ? recv : send, recv, (size_t)count, type, op);
}

static enum how FN(scan)(struct shim_job *j, const void *send, void *recv, COUNT count,
                         MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    return FN(allreduce)(j, send, recv, count, type, op, comm);
}

static enum how FN(exscan)(struct shim_job *j, const void *send, void *recv, COUNT count,
                           MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    return FN(allreduce)(j, send, recv, count, type, op, comm);
}

static enum how FN(reduce)(struct shim_job *j, const void *send, void *recv, COUNT count,
                           MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
    int here = is_root(j, root);

    if (root < 0 || root >= j->c->n || count < 0)
        return MPIS;
    if (count == 0)
        return nothing_of(type, op);
    if (!send || (here && (!recv || recv == MPI_IN_PLACE || send == recv)) ||
        (!here && send == MPI_IN_PLACE))
        return MPIS;
    j->root = root;
    return elementwise(j, send == MPI_IN_PLACE ? recv : send, recv, (size_t)count, type, op);
}

static enum how FN(reduce_scatter)(struct shim_job *j, const void *send, void *recv,
                                   const COUNT counts[], MPI_Datatype type, MPI_Op op,
                                   MPI_Comm comm)
{
    int n = j->c->n, me = j->c->rank;
    size_t before = 0, total = 0, esz;
    enum how how;

    if (!counts || recv == MPI_IN_PLACE || send == recv)
        return MPIS;
    for (int r = 0; r < n; r++) {
        if (counts[r] < 0)
            return MPIS;
        before += r < me ? (size_t)counts[r] : 0;
        total += (size_t)counts[r];
    }
    if (total == 0)
        return nothing_of(type, op);
    how = elementwise(j, send, recv, total, type, op);
    if (how != GO)
        return how;
    if (shim_job_vec(j, 1))
        return NO_MEMORY;
    j->scounts = j->vec;
    for (int r = 0; r < n; r++)
        j->scounts[r] = (size_t)counts[r] * j->r.unit;
    esz = j->r.unit * banyan_dtype_bytes(j->r.dtype);
    return send == MPI_IN_PLACE ? scattered_in_place(j, recv, before, (size_t)counts[me] * esz)
                                : GO;
}

static enum how FN(reduce_scatter_block)(struct shim_job *j, const void *send, void *recv,
                                         COUNT count, MPI_Datatype type, MPI_Op op,
                                         MPI_Comm comm)
{
    size_t before = (size_t)count * (size_t)j->c->rank, esz;
    enum how how;

    if (count == 0)
        return nothing_of(type, op);
    if (count < 0 || !send || !recv || recv == MPI_IN_PLACE || send == recv)
        return MPIS;
    how = elementwise(j, send, recv, (size_t)count, type, op);
    if (how != GO)
        return how;
    j->bytes *= (size_t)j->c->n;
    esz = j->r.unit * banyan_dtype_bytes(j->r.dtype);
    return send == MPI_IN_PLACE ? scattered_in_place(j, recv, before, (size_t)count * esz) : GO;
}

/* ---- one to all, all to one ---- */

static enum how FN(bcast)(struct shim_job *j, void *buf, COUNT count, MPI_Datatype type,
                          int root, MPI_Comm comm)
{
    struct shim_type t;

    if (root < 0 || root >= j->c->n || count < 0 || buf == MPI_IN_PLACE ||
        shim_type_get(type, &t))
        return MPIS;
    if (count == 0 || t.size == 0)
        return NOTHING;
    if (t.plain && !buf)
        return MPIS;
    j->root = root;
    j->count = j->bytes = (size_t)count * t.size;
    if (is_root(j, root))
        j->recv = (void *)sent(j, buf, (size_t)count, &t);
    else
        j->recv = received(j, buf, (size_t)count, &t);
    return j->recv ? GO : NO_MEMORY;
}

/* Is the one block where this rank's of all blocks is, alike in type and count? An error in
 * MPICH, which it finds before it sends anything: so it is the one to say so. */
static int FN(on_block)(const void *one, MPI_Datatype one_type, COUNT one_count,
                        const void *own, MPI_Datatype own_type, COUNT own_count)
{
    return !shim.open_mpi && one && one == own && one_count > 0 && one_type == own_type &&
           one_count == own_count;
}

static int FN(on_own_block)(const struct shim_job *j, const void *one, MPI_Datatype one_type,
                            COUNT one_count, const void *all, MPI_Datatype all_type,
                            COUNT all_count)
{
    return FN(on_block)(one, one_type, one_count,
                        (const char *)all + (size_t)j->c->rank * j->count, all_type, all_count);
}

static enum how FN(gather)(struct shim_job *j, const void *send, COUNT scount,
                           MPI_Datatype stype, void *recv, COUNT rcount, MPI_Datatype rtype,
                           int root, MPI_Comm comm)
{
    int here = is_root(j, root), in_place = send == MPI_IN_PLACE;
    size_t n = (size_t)j->c->n, at;
    struct shim_type st = { 0 }, rt = { 0 };

    if (root < 0 || root >= j->c->n || (in_place && !here))
        return MPIS;
    if (!in_place && (scount < 0 || shim_type_get(stype, &st)))
        return MPIS;
    if (here && (rcount < 0 || recv == MPI_IN_PLACE || shim_type_get(rtype, &rt)))
        return MPIS;
    j->count = here ? (size_t)rcount * rt.size : (size_t)scount * st.size;
    if (here && !in_place && j->count != (size_t)scount * st.size)
        return MPIS;
    if (j->count == 0)
        return NOTHING;
    if ((!in_place && st.plain && !send) || (here && rt.plain && !recv))
        return MPIS;
    if (here && !in_place && FN(on_own_block)(j, send, stype, scount, recv, rtype, rcount))
        return MPIS;
    j->root = root;
    j->bytes = j->count;
    j->recv = here ? received(j, recv, n * (size_t)rcount, &rt) : NULL;
    if (here && !j->recv)
        return NO_MEMORY;
    if (!in_place) {
        j->send = sent(j, send, (size_t)scount, &st);
        if (!j->send)
            return NO_MEMORY;
        return here ? apart(j, j->count, j->recv, n * j->count) : GO;
    }
    at = (size_t)root * j->count;
    j->send = (char *)j->recv + at;
    if (!rt.plain)
        shim_pack((char *)recv + (ptrdiff_t)root * (ptrdiff_t)rcount * rt.extent,
                  (size_t)rcount, &rt, (char *)j->recv + at);
    return GO;
}

static enum how FN(gatherv)(struct shim_job *j, const void *send, COUNT scount,
                            MPI_Datatype stype, void *recv, const COUNT rcounts[],
                            const DISPL displs[], MPI_Datatype rtype, int root, MPI_Comm comm)
{
    int here = is_root(j, root), in_place = send == MPI_IN_PLACE;
    struct shim_type st = { 0 }, rt = { 0 };
    enum how how;

    if (root < 0 || root >= j->c->n || (in_place && !here))
        return MPIS;
    if (!in_place && (scount < 0 || shim_type_get(stype, &st)))
        return MPIS;
    if (here && (!rcounts || !displs || recv == MPI_IN_PLACE || shim_type_get(rtype, &rt)))
        return MPIS;
    if (here && !in_place &&
        FN(on_block)(send, stype, scount, (char *)recv + (ptrdiff_t)displs[root] * rt.extent,
                     rtype, rcounts[root]))
        return MPIS;
    j->root = root;
    j->recv = NULL;
    j->rcounts = j->rdispls = NULL;
    if (here) {
        if (shim_job_vec(j, 4))
            return NO_MEMORY;
        how = FN(receive_blocks)(j, recv, rcounts, displs, &rt);
        if (how != GO)
            return how;
    }
    if (in_place) {
        j->count = j->rcounts[root];
        j->send = FN(own_block)(j, recv, rcounts, displs, &rt);
        return GO;
    }
    j->count = j->bytes = (size_t)scount * st.size;
    if (here && j->count != j->rcounts[root])
        return MPIS;
    j->send = sent(j, send, (size_t)scount, &st);
    return j->send || j->count == 0 ? GO : NO_MEMORY;
}

static enum how FN(scatter)(struct shim_job *j, const void *send, COUNT scount,
                            MPI_Datatype stype, void *recv, COUNT rcount, MPI_Datatype rtype,
                            int root, MPI_Comm comm)
{
    int here = is_root(j, root), in_place = recv == MPI_IN_PLACE;
    struct shim_type st = { 0 }, rt = { 0 };

    if (root < 0 || root >= j->c->n || (in_place && !here))
        return MPIS;
    if (here && (scount < 0 || send == MPI_IN_PLACE || shim_type_get(stype, &st)))
        return MPIS;
    if (!in_place && (rcount < 0 || shim_type_get(rtype, &rt)))
        return MPIS;
    j->count = here ? (size_t)scount * st.size : (size_t)rcount * rt.size;
    if (here && !in_place && j->count != (size_t)rcount * rt.size)
        return MPIS;
    if (j->count == 0)
        return NOTHING;
    if ((here && st.plain && !send) || (!in_place && rt.plain && !recv))
        return MPIS;
    if (here && !in_place && FN(on_own_block)(j, recv, rtype, rcount, send, stype, scount))
        return MPIS;
    j->root = root;
    j->bytes = j->count;
    j->send = here ? sent(j, send, (size_t)j->c->n * (size_t)scount, &st) : NULL;
    if (here && !j->send)
        return NO_MEMORY;
    if (in_place)
        j->recv = (char *)j->send + (size_t)root * j->count;
    else
        j->recv = received(j, recv, (size_t)rcount, &rt);
    if (!j->recv)
        return NO_MEMORY;
    return here && !in_place ? apart(j, (size_t)j->c->n * j->count, j->recv, j->count) : GO;
}

/* The blocks that a root or every rank sends; vec has 4 arrays, the first two are used. */
static enum how FN(send_blocks)(struct shim_job *j, const void *buf, const COUNT *counts,
                                const DISPL *displs, const struct shim_type *t)
{
    int n = j->c->n;
    char *base = (char *)buf;

    j->scounts = j->vec;
    j->sdispls = j->vec + n;
    if (FN(lay_out)(n, counts, displs, t, &base, j->scounts, j->sdispls))
        return MPIS;
    j->send = base;
    if (t->plain)
        return GO;
    j->sdispls = NULL;
    j->send = shim_job_temp(j, 0, FN(total)(n, counts) * t->size);
    if (!j->send || FN(pack_blocks)(n, buf, counts, displs, t, j->temp[0]) != MPI_SUCCESS)
        return NO_MEMORY;
    return GO;
}

static enum how FN(scatterv)(struct shim_job *j, const void *send, const COUNT scounts[],
                             const DISPL displs[], MPI_Datatype stype, void *recv, COUNT rcount,
                             MPI_Datatype rtype, int root, MPI_Comm comm)
{
    int here = is_root(j, root), in_place = recv == MPI_IN_PLACE;
    struct shim_type st = { 0 }, rt = { 0 };
    enum how how;

    if (root < 0 || root >= j->c->n || (in_place && !here))
        return MPIS;
    if (here && (!scounts || !displs || send == MPI_IN_PLACE || shim_type_get(stype, &st)))
        return MPIS;
    if (!in_place && (rcount < 0 || shim_type_get(rtype, &rt)))
        return MPIS;
    if (here && !in_place &&
        FN(on_block)(recv, rtype, rcount, (char *)send + (ptrdiff_t)displs[root] * st.extent,
                     stype, scounts[root]))
        return MPIS;
    j->root = root;
    j->send = NULL;
    j->scounts = j->sdispls = NULL;
    if (here) {
        if (shim_job_vec(j, 4))
            return NO_MEMORY;
        how = FN(send_blocks)(j, send, scounts, displs, &st);
        if (how != GO)
            return how;
    }
    if (in_place) { /* the block stays where it is; what arrives goes to where it came from */
        j->count = j->scounts[root];
        j->recv = (char *)j->send +
                  (j->sdispls ? j->sdispls[root] : FN(total)(root, scounts) * st.size);
        return GO;
    }
    j->count = j->bytes = (size_t)rcount * rt.size;
    if (here && j->count != j->scounts[root])
        return MPIS;
    j->recv = received(j, recv, (size_t)rcount, &rt);
    return j->recv || j->count == 0 ? GO : NO_MEMORY;
}

/* ---- all to all ---- */

/* Blocks of one size from each to each, or to all: what is checked, and where the result goes.
 */
static enum how FN(equal_blocks)(struct shim_job *j, const void *send, COUNT scount,
                                 MPI_Datatype stype, struct shim_type *st, void *recv,
                                 COUNT rcount, MPI_Datatype rtype, struct shim_type *rt)
{
    size_t n = (size_t)j->c->n;
    int in_place = send == MPI_IN_PLACE;

    if (rcount < 0 || recv == MPI_IN_PLACE || shim_type_get(rtype, rt) ||
        (!in_place && (scount < 0 || shim_type_get(stype, st))))
        return MPIS;
    j->count = (size_t)rcount * rt->size;
    if (!in_place && j->count != (size_t)scount * st->size)
        return MPIS;
    if (j->count == 0)
        return NOTHING;
    if ((!in_place && st->plain && !send) || (rt->plain && !recv))
        return MPIS;
    if (send == recv && send && !(j->call == SHIM_ALLGATHER && shim.open_mpi))
        return MPIS; /* MPI_BOTTOM may be both */
    j->bytes = j->count * n;
    j->recv = received(j, recv, n * (size_t)rcount, rt);
    return j->recv ? GO : NO_MEMORY;
}

static enum how FN(allgather)(struct shim_job *j, const void *send, COUNT scount,
                              MPI_Datatype stype, void *recv, COUNT rcount, MPI_Datatype rtype,
                              MPI_Comm comm)
{
    size_t me = (size_t)j->c->rank;
    int in_place = send == MPI_IN_PLACE;
    struct shim_type st = { 0 }, rt = { 0 };
    enum how how = FN(equal_blocks)(j, send, scount, stype, &st, recv, rcount, rtype, &rt);

    if (how != GO)
        return how;
    if (!in_place && FN(on_own_block)(j, send, stype, scount, recv, rtype, rcount))
        return MPIS;
    if (!in_place) {
        j->send = sent(j, send, (size_t)scount, &st);
        return j->send ? apart(j, j->count, j->recv, j->bytes) : NO_MEMORY;
    }
    j->send = (char *)j->recv + me * j->count;
    if (!rt.plain)
        shim_pack((char *)recv + (ptrdiff_t)me * (ptrdiff_t)rcount * rt.extent, (size_t)rcount,
                  &rt, (char *)j->recv + me * j->count);
    return GO;
}

static enum how FN(allgatherv)(struct shim_job *j, const void *send, COUNT scount,
                               MPI_Datatype stype, void *recv, const COUNT rcounts[],
                               const DISPL displs[], MPI_Datatype rtype, MPI_Comm comm)
{
    int in_place = send == MPI_IN_PLACE, me = j->c->rank;
    struct shim_type st = { 0 }, rt = { 0 };
    enum how how;

    if (!rcounts || !displs || recv == MPI_IN_PLACE || shim_type_get(rtype, &rt) ||
        (!in_place && (scount < 0 || shim_type_get(stype, &st))))
        return MPIS;
    if (!in_place &&
        FN(on_block)(send, stype, scount, (char *)recv + (ptrdiff_t)displs[me] * rt.extent,
                     rtype, rcounts[me]))
        return MPIS;
    if (shim_job_vec(j, 4))
        return NO_MEMORY;
    how = FN(receive_blocks)(j, recv, rcounts, displs, &rt);
    if (how != GO)
        return how;
    j->bytes = FN(total)(j->c->n, rcounts) * rt.size;
    if (in_place) {
        j->send = FN(own_block)(j, recv, rcounts, displs, &rt);
        return GO;
    }
    if ((size_t)scount * st.size != j->rcounts[me])
        return MPIS;
    j->send = sent(j, send, (size_t)scount, &st);
    return j->send || j->rcounts[me] == 0 ? GO : NO_MEMORY;
}

static enum how FN(alltoall)(struct shim_job *j, const void *send, COUNT scount,
                             MPI_Datatype stype, void *recv, COUNT rcount, MPI_Datatype rtype,
                             MPI_Comm comm)
{
    size_t n = (size_t)j->c->n;
    int in_place = send == MPI_IN_PLACE;
    struct shim_type st = { 0 }, rt = { 0 };
    enum how how = FN(equal_blocks)(j, send, scount, stype, &st, recv, rcount, rtype, &rt);

    if (how != GO)
        return how;
    if (!in_place)
        j->send = sent(j, send, n * (size_t)scount, &st);
    else if (rt.plain)
        j->send = recv;
    else
        j->send =
            shim_pack(recv, n * (size_t)rcount, &rt, j->recv) == MPI_SUCCESS ? j->recv : NULL;
    if (!j->send)
        return NO_MEMORY;
    return in_place ? GO : apart(j, j->bytes, j->recv, j->bytes);
}

static enum how FN(alltoallv)(struct shim_job *j, const void *send, const COUNT scounts[],
                              const DISPL sdispls[], MPI_Datatype stype, void *recv,
                              const COUNT rcounts[], const DISPL rdispls[], MPI_Datatype rtype,
                              MPI_Comm comm)
{
    int n = j->c->n, in_place = send == MPI_IN_PLACE;
    struct shim_type st = { 0 }, rt = { 0 };
    enum how how;

    if (!rcounts || !rdispls || recv == MPI_IN_PLACE || shim_type_get(rtype, &rt) ||
        (!in_place && (!scounts || !sdispls || shim_type_get(stype, &st))))
        return MPIS;
    if (!shim.open_mpi && send == recv && stype == rtype && scounts == rcounts)
        return MPIS; /* an error there */
    if (shim_job_vec(j, 5))
        return NO_MEMORY;
    if (in_place) { /* banyan has none: a packed copy is sent */
        how = FN(lay_out)(n, rcounts, rdispls, &rt, &(char *){ recv }, j->vec, j->vec + 4 * n)
                  ? MPIS
                  : GO;
        j->scounts = j->vec;
        j->sdispls = NULL;
        if (how != GO)
            return how;
        j->send = shim_job_temp(j, 0, FN(total)(n, rcounts) * rt.size);
        if (!j->send ||
            FN(pack_blocks)(n, recv, rcounts, rdispls, &rt, j->temp[0]) != MPI_SUCCESS)
            return NO_MEMORY;
    } else {
        how = FN(send_blocks)(j, send, scounts, sdispls, &st);
        if (how != GO)
            return how;
        if (j->sdispls) { /* the second array is wanted for what is received */
            memcpy(j->vec + 4 * n, j->sdispls, (size_t)n * sizeof *j->vec);
            j->sdispls = j->vec + 4 * n;
        }
    }
    how = FN(receive_blocks)(j, recv, rcounts, rdispls, &rt);
    if (how != GO)
        return how;
    for (int r = 0; r < n; r++)
        j->bytes += j->scounts[r];
    return j->scounts[j->c->rank] == j->rcounts[j->c->rank] ? GO : MPIS;
}

/* ---- the names ---- */

/* Both forms of a collective. */
#define COLLECTIVE(name, which, prepare, parameters, arguments)                                \
    int FN(MPI_##name)(UNWRAP parameters)                                                      \
    {                                                                                          \
        struct shim_comm *c = shim_comm_of(comm, 1);                                           \
        enum how how = MPIS;                                                                   \
        struct shim_job j;                                                                     \
        int code;                                                                              \
        if (c) {                                                                               \
            shim_job_start(&j, which, c);                                                      \
            shim_lock();                                                                       \
            how = prepared(&j, FN(prepare)(&j, UNWRAP arguments));                             \
            shim_unlock();                                                                     \
        }                                                                                      \
        switch (how) {                                                                         \
        case GO:                                                                               \
            code = shim_job_run(&j);                                                           \
            if (code != SHIM_AGAIN)                                                            \
                return code;                                                                   \
            break;                                                                             \
        case NOTHING: return MPI_SUCCESS;                                                      \
        case NO_MEMORY: return shim_raise(comm, MPI_ERR_NO_MEM);                               \
        case MPIS: break;                                                                      \
        }                                                                                      \
        return PASS(which, SHIM_BLOCKING, real.FN(name) arguments);                            \
    }                                                                                          \
    int FN(MPI_I##prepare)(UNWRAP parameters, MPI_Request * request)                           \
    {                                                                                          \
        struct shim_comm *c = shim_comm_of(comm, 0);                                           \
        enum how how = MPIS;                                                                   \
        struct shim_job j;                                                                     \
        if (c) {                                                                               \
            shim_job_start(&j, which, c);                                                      \
            shim_lock();                                                                       \
            how = FN(prepare)(&j, UNWRAP arguments);                                           \
            how = prepared(&j, how == GO && is_for_mpi(&j) ? MPIS : how);                      \
            shim_unlock();                                                                     \
        }                                                                                      \
        switch (how) {                                                                         \
        case GO: return shim_job_launch(&j, request);                                          \
        case NO_MEMORY: return shim_raise(comm, MPI_ERR_NO_MEM);                               \
        case NOTHING: return shim_launch_nothing(comm, request);                               \
        case MPIS: break;                                                                      \
        }                                                                                      \
        return PASS(which, SHIM_NONBLOCKING, real.FN(I##prepare)(UNWRAP arguments, request));  \
    }

COLLECTIVE(Allreduce, SHIM_ALLREDUCE, allreduce,
           (const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op,
            MPI_Comm comm),
           (send, recv, count, type, op, comm))
COLLECTIVE(Scan, SHIM_SCAN, scan,
           (const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op,
            MPI_Comm comm),
           (send, recv, count, type, op, comm))
COLLECTIVE(Exscan, SHIM_EXSCAN, exscan,
           (const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op,
            MPI_Comm comm),
           (send, recv, count, type, op, comm))
COLLECTIVE(Reduce, SHIM_REDUCE, reduce,
           (const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op, int root,
            MPI_Comm comm),
           (send, recv, count, type, op, root, comm))
COLLECTIVE(Reduce_scatter, SHIM_REDUCE_SCATTER, reduce_scatter,
           (const void *send, void *recv, const COUNT counts[], MPI_Datatype type, MPI_Op op,
            MPI_Comm comm),
           (send, recv, counts, type, op, comm))
COLLECTIVE(Reduce_scatter_block, SHIM_REDUCE_SCATTER_BLOCK, reduce_scatter_block,
           (const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op,
            MPI_Comm comm),
           (send, recv, count, type, op, comm))
COLLECTIVE(Bcast, SHIM_BCAST, bcast,
           (void *buf, COUNT count, MPI_Datatype type, int root, MPI_Comm comm),
           (buf, count, type, root, comm))
COLLECTIVE(Gather, SHIM_GATHER, gather,
           (const void *send, COUNT scount, MPI_Datatype stype, void *recv, COUNT rcount,
            MPI_Datatype rtype, int root, MPI_Comm comm),
           (send, scount, stype, recv, rcount, rtype, root, comm))
COLLECTIVE(Gatherv, SHIM_GATHERV, gatherv,
           (const void *send, COUNT scount, MPI_Datatype stype, void *recv,
            const COUNT rcounts[], const DISPL displs[], MPI_Datatype rtype, int root,
            MPI_Comm comm),
           (send, scount, stype, recv, rcounts, displs, rtype, root, comm))
COLLECTIVE(Scatter, SHIM_SCATTER, scatter,
           (const void *send, COUNT scount, MPI_Datatype stype, void *recv, COUNT rcount,
            MPI_Datatype rtype, int root, MPI_Comm comm),
           (send, scount, stype, recv, rcount, rtype, root, comm))
COLLECTIVE(Scatterv, SHIM_SCATTERV, scatterv,
           (const void *send, const COUNT scounts[], const DISPL displs[], MPI_Datatype stype,
            void *recv, COUNT rcount, MPI_Datatype rtype, int root, MPI_Comm comm),
           (send, scounts, displs, stype, recv, rcount, rtype, root, comm))
COLLECTIVE(Allgather, SHIM_ALLGATHER, allgather,
           (const void *send, COUNT scount, MPI_Datatype stype, void *recv, COUNT rcount,
            MPI_Datatype rtype, MPI_Comm comm),
           (send, scount, stype, recv, rcount, rtype, comm))
COLLECTIVE(Allgatherv, SHIM_ALLGATHERV, allgatherv,
           (const void *send, COUNT scount, MPI_Datatype stype, void *recv,
            const COUNT rcounts[], const DISPL displs[], MPI_Datatype rtype, MPI_Comm comm),
           (send, scount, stype, recv, rcounts, displs, rtype, comm))
COLLECTIVE(Alltoall, SHIM_ALLTOALL, alltoall,
           (const void *send, COUNT scount, MPI_Datatype stype, void *recv, COUNT rcount,
            MPI_Datatype rtype, MPI_Comm comm),
           (send, scount, stype, recv, rcount, rtype, comm))
COLLECTIVE(Alltoallv, SHIM_ALLTOALLV, alltoallv,
           (const void *send, const COUNT scounts[], const DISPL sdispls[], MPI_Datatype stype,
            void *recv, const COUNT rcounts[], const DISPL rdispls[], MPI_Datatype rtype,
            MPI_Comm comm),
           (send, scounts, sdispls, stype, recv, rcounts, rdispls, rtype, comm))

#undef COLLECTIVE
