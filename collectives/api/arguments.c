/* SPDX-License-Identifier: BSD-3-Clause */
/* Arguments of the public collectives: checked, and put into a struct bny_call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/counts.h"
#include "base/nearest.h"
#include "base/sized.h"
#include "collectives/api/arguments.h"
#include "collectives/api/group.h"
#include "collectives/local/memory_kind.h"
#include "collectives/plan/budget_choice.h"
#include "compress/linear.h"
#include "compress/parse.h"

static int take_opts(struct banyan_opts *out, const struct banyan_opts *given)
{
    *out = (struct banyan_opts)BANYAN_OPTS_INIT;
    return bny_sized_take(out, sizeof *out, given, "opts", "BANYAN_OPTS_INIT");
}

/* Of a call that has begun: its options could be taken. */
static struct banyan_opts opts_of(const struct banyan_opts *given)
{
    struct banyan_opts o;
    int rc = take_opts(&o, given);

    BNY_ASSERT(rc == 0);
    return o;
}

int bny_check_seconds(const char *what, double seconds)
{
    return !isnan(seconds)
               ? 0
               : bny_fail(BANYAN_EINVAL, "%s: it is not a number (NaN), but has to be seconds",
                          what);
}

static int take_schedule(struct bny_call *call, const char *name)
{
    if (!bny_schedule_known(name))
        return bny_fail(BANYAN_EINVAL, "schedule: \"%.32s\" is unknown%s; there are: %s", name,
                        bny_did_you_mean(name, banyan_schedule_name, "auto"),
                        bny_schedule_list());
    bny_call_set_schedule(call, name);
    return 0;
}

static int take_codec(struct bny_call *call, const char *name)
{
    int rc = bny_codec_parse(&call->codec, name);

    if (rc)
        return bny_group_lacks(rc);
    if (call->codec->ops->family == BNY_CODEC_RAW)
        call->codec = NULL;
    return 0;
}

static int take_reduce_opts(struct banyan_reduce_opts *out,
                            const struct banyan_reduce_opts *given)
{
    *out = (struct banyan_reduce_opts)BANYAN_REDUCE_OPTS_INIT;
    return bny_sized_take(out, sizeof *out, given, "opts.reduce", "BANYAN_REDUCE_OPTS_INIT");
}

/* Its participants wait for the type and the operation: bny_check_participants(). */
static int call_take_reduce_opts(struct bny_call *call, const char *what,
                                 const struct banyan_comm *comm,
                                 const struct banyan_reduce_opts *given)
{
    struct banyan_reduce_opts o;
    int rc;

    if (call->collective != BNY_ALLREDUCE && call->collective != BNY_REDUCE)
        return bny_fail(BANYAN_EINVAL,
                        "opts.reduce: %s takes all inputs, only allreduce and reduce can leave "
                        "some out; set it to NULL",
                        what);
    rc = take_reduce_opts(&o, given);
    if (rc)
        return rc;
    if (o.at_least < 0 || o.at_least > comm->n)
        return bny_fail(BANYAN_EINVAL, "at_least: %d is not in [0, %d], the ranks of comm",
                        o.at_least, comm->n);
    if (o.at_least && strcmp(call->schedule, "arrival") != 0)
        return bny_fail(BANYAN_EINVAL,
                        "at_least: only reductions in order of arrival need not wait for "
                        "all ranks; set opts.schedule to \"arrival\"");
    call->first = (size_t)o.at_least;
    call->contributors = o.contributors;
    return 0;
}

static int call_take_opts(struct bny_call *call, const char *what,
                          const struct banyan_comm *comm, const struct banyan_opts *given)
{
    struct banyan_opts o;
    int rc = take_opts(&o, given);

    if (rc == 0 && o.schedule)
        rc = take_schedule(call, o.schedule);
    if (rc == 0 && o.codec)
        rc = take_codec(call, o.codec);
    if (rc == 0)
        rc = bny_check_seconds("timeout_s", o.timeout_s);
    if (rc)
        return rc;
    call->timeout_s = o.timeout_s;
    call->tag = o.tag;
    if (o.deterministic >= 0)
        call->deterministic = o.deterministic != 0;
    call->chunk_bytes = o.chunk_bytes;
    call->state = o.codec_state;
    if (o.reduce)
        rc = call_take_reduce_opts(call, what, comm, o.reduce);
    return rc || !call->state ? rc : bny_state_check(call->state, "opts.codec_state");
}

int bny_call_begin(struct bny_call *call, enum bny_collective collective, const char *what,
                   struct banyan_comm *comm, const struct banyan_opts *opts)
{
    static const struct bny_call none = {
        .root = -1, .redop.commutative = 1, .timeout_s = -1, .schedule = "auto"
    };
    int rc;

    *call = none;
    call->collective = (uint8_t)collective;
    rc = bny_comm_enter(comm, what);
    if (rc)
        return rc;
    if (comm->init)
        return bny_fail(
            BANYAN_EINVAL,
            "%s: the communicator is still joining; call banyan_comm_init_test until it is "
            "done",
            what);
    call->deterministic = comm->scope.deterministic != 0;
    call->codec = comm->scope.codec;
    return opts ? call_take_opts(call, what, comm, opts) : 0;
}

int bny_check_type(struct bny_call *call, enum banyan_dtype dtype)
{
    if ((unsigned)dtype >= BNY_DTYPE_COUNT)
        return bny_fail(BANYAN_EINVAL, "dtype: %d is not a data type", (int)dtype);
    call->dtype = dtype;
    return 0;
}

int bny_check_op(struct bny_call *call, banyan_op op)
{
    int rc = bny_redop_get(&call->redop, op, call->dtype);

    if (rc)
        return rc;
    if (call->redop.elem_bytes && call->count % call->redop.elem_bytes)
        return bny_fail(
            BANYAN_EINVAL,
            "count: %zu bytes is not a multiple of the operation's element of %zu bytes",
            call->count, call->redop.elem_bytes);
    return 0;
}

/* The signature has the set's hash above the count: op.c. */
#define SET_COUNT_MAX (((uint64_t)1 << 48) - 1)

int bny_check_participants(struct bny_call *call, const struct banyan_comm *comm,
                           const struct banyan_opts *opts)
{
    struct banyan_reduce_opts o;
    int rc = take_reduce_opts(&o, opts_of(opts).reduce);
    const uint8_t *set = o.participants;

    if (rc || !set)
        return rc;
    for (int r = 0; r < comm->n; r++)
        if (set[r] > 1)
            return bny_fail(BANYAN_EINVAL,
                            "participants: [%d] is %u; it is 1 for a rank that takes part and "
                            "0 for one that does not, for each of the %d ranks",
                            r, set[r], comm->n);
    if (call->count > SET_COUNT_MAX)
        return bny_fail(BANYAN_EINVAL,
                        "count: %zu elements are too many with a participation set",
                        call->count);
    bny_call_set_participants(call, set, comm->n);
    if (call->has_set && call->nset == 0 &&
        (call->redop.user ||
         (call->redop.kind != BANYAN_SUM && call->redop.kind != BANYAN_AVG)))
        return bny_fail(BANYAN_EINVAL,
                        "participants: nobody takes part, and the %s of nothing is no value; "
                        "sums and averages give zeros",
                        bny_redop_name(call->redop.wire));
    if (!bny_call_takes_part(call, comm->rank))
        call->sendbuf = NULL;
    return 0;
}

int bny_check_op_counts(const struct bny_call *call, const size_t *counts, int n)
{
    size_t unit = call->redop.elem_bytes;

    for (int r = 0; unit && r < n; r++)
        if (counts[r] % unit)
            return bny_fail(BANYAN_EINVAL,
                            "counts: %zu bytes of rank %d are not a multiple of the "
                            "operation's element of %zu bytes",
                            counts[r], r, unit);
    return 0;
}

int bny_check_root(const struct bny_call *call, const struct banyan_comm *comm,
                   const char *what)
{
    if (call->root < 0 || call->root >= comm->n)
        return bny_fail(BANYAN_EINVAL, "%s: rank %d is not in [0, %d)", what, call->root,
                        comm->n);
    return 0;
}

int bny_check_buffer(const void *ptr, size_t elems, const char *what)
{
    if (!ptr && elems)
        return bny_fail(BANYAN_EINVAL, "%s: must not be NULL for %zu elements", what, elems);
    return 0;
}

size_t bny_counts_sum(const size_t *counts, int n)
{
    size_t total = 0;

    for (int r = 0; r < n; r++)
        if (__builtin_add_overflow(total, counts[r], &total))
            return SIZE_MAX;
    return total;
}

/* Is an element of some block beyond what an address can tell? counts: at most `most` each. */
static int is_too_far(const size_t *counts, const size_t *displs, int n, size_t most)
{
    for (int r = 0; r < n; r++)
        if (counts[r] && displs[r] > most - counts[r])
            return 1;
    return 0;
}

static int check_long(const struct banyan_comm *comm, const struct bny_call *call)
{
    size_t most = PTRDIFF_MAX / banyan_dtype_bytes(call->dtype);
    const size_t *const counts[2] = { call->scounts, call->rcounts };
    const size_t *const displs[2] = { call->sdispls, call->rdispls };

    if (call->count > most / (size_t)comm->n)
        return bny_fail(BANYAN_EINVAL,
                        "count: %zu elements of %s for %d ranks are more than memory can hold",
                        call->count, banyan_dtype_name(call->dtype), comm->n);
    for (int i = 0; i < 2; i++) {
        if (call->vector && counts[i] && bny_counts_sum(counts[i], comm->n) > most)
            return bny_fail(BANYAN_EINVAL, "counts: their sum is more than memory can hold");
        if (call->vector && counts[i] && displs[i] &&
            is_too_far(counts[i], displs[i], comm->n, most))
            return bny_fail(
                BANYAN_EINVAL,
                "displs: one lies beyond all memory; they count elements from the buffer on");
    }
    return 0;
}

int bny_check_extent(const struct banyan_comm *comm, const struct bny_call *call)
{
    if (!call->vector && call->count <= UINT32_MAX && comm->n < 1 << 24) /* no division */
        return 0;
    return check_long(comm, call);
}

static int is_sum(const struct bny_call *call)
{
    return !call->redop.user &&
           (call->redop.kind == BANYAN_SUM || call->redop.kind == BANYAN_AVG);
}

/* Why the codec cannot do this call; NULL: it can. */
static const char *codec_lacks(const struct bny_call *call)
{
    const struct bny_collective_row *row = bny_call_row(call);
    const struct bny_codec_ops *ops = call->codec->ops;
    unsigned dtypes = ops->dtypes ? ops->dtypes : 1u << BANYAN_F32;

    if (!row->codecs)
        return "it serves no such call";
    if (!(dtypes >> call->dtype & 1))
        return ops->dtypes ? "it does not take this type" : "it takes f32 alone";
    if (ops->family == BNY_CODEC_EXACT)
        return row->codecs & BNY_CODECS_EXACT ? NULL : "it serves no such call";
    if (!(row->codecs &
          (ops->family == BNY_CODEC_LINEAR ? BNY_CODECS_LINEAR : BNY_CODECS_LOSSY)))
        return ops->family == BNY_CODEC_LINEAR
                   ? "it serves allreduce alone"
                   : "it serves allreduce, reduce, reduce_scatter, broadcast and allgather";
    if (row->reduces && !is_sum(call))
        return "it serves sums and averages alone";
    return call->vector          ? "it serves no calls with counts"
           : call->deterministic ? "deterministic calls take none that loses"
                                 : NULL;
}

/* Of a codec that the plan chooses. */
static const char *budget_lacks(const struct banyan_comm *comm, const struct bny_call *call)
{
    const char *schedule = bny_call_is_open(call) ? comm->scope.schedule : call->schedule;

    if (!bny_budget_serves(schedule))
        return "its budget holds on schedules auto, star, host_star and hierarchical alone "
               "(use schedule auto)";
    if (call->state && !call->codec->budget->feedback)
        return "it keeps no residuals; add feedback=1, or pass no codec_state";
    return call->state || !call->codec->budget->feedback
               ? NULL
               : "feedback=1 keeps residuals; pass a codec_state";
}

/* A codec that the plan chooses is a permission: where none of those that lose something serves
 * the call, it is one that loses nothing, or none. */
static const char *take_budget(const struct banyan_comm *comm, struct bny_call *call)
{
    const char *lacks = codec_lacks(call) ? NULL : budget_lacks(comm, call);

    if (lacks || !codec_lacks(call))
        return lacks;
    call->codec = call->codec->budget->exact;
    if (call->codec && codec_lacks(call))
        call->codec = NULL;
    return NULL;
}

static void tell_unused(struct banyan_comm *comm, const struct bny_call *call, const char *why,
                        const char *remedy)
{
    bny_world_lock(comm->world);
    bny_codec_unused(comm, call, why, remedy);
    bny_world_unlock(comm->world);
}

/* opts.shape: its first dimension are the rows. Without: as square as the count allows. */
static int matrix_of(struct bny_call *call, const struct banyan_opts *opts)
{
    const struct banyan_opts o = opts_of(opts);
    int given = o.shape && o.ndim > 0;
    int64_t count = (int64_t)call->count, rows = 1, all = 1;

    for (int i = 0; given && i < o.ndim; i++)
        if (o.shape[i] < 0 || __builtin_mul_overflow(all, o.shape[i], &all))
            all = -1;
    if (given && all != count)
        return bny_fail(BANYAN_EINVAL,
                        "shape: its %d dimensions make no tensor of %zu elements", o.ndim,
                        call->count);
    if (given)
        rows = o.shape[0];
    for (int64_t r = 2; !given && r * r <= count; r++)
        if (count % r == 0)
            rows = r;
    call->rows = rows;
    call->cols = rows ? count / rows : 0;
    return 0;
}

static int check_matrix(struct bny_call *call, struct banyan_comm *comm,
                        const struct banyan_opts *opts)
{
    const struct bny_linear_ops *linear = call->codec->ops->linear;
    int rc = matrix_of(call, opts);
    char why[96];

    if (rc || !call->count || !linear->is_dense ||
        !linear->is_dense(call->codec, call->count, call->rows, call->cols))
        return rc;
    snprintf(why, sizeof why, "its code of a matrix of %lld x %lld is not shorter than that",
             (long long)call->rows, (long long)call->cols);
    if (call->codec->force && opts_of(opts).codec)
        return bny_fail(
            BANYAN_ENOTSUP,
            "codec: %s: %s; give the tensor's dimensions in opts.shape, or use none "
            "for this call",
            call->codec->spec, why);
    tell_unused(comm, call, why, "give the tensor's dimensions in opts.shape");
    return 0;
}

/* A call in which data goes one way takes that way's codec. */
static int take_direction(struct bny_call *call)
{
    const struct bny_codec *c = call->codec,
                           *way = bny_call_row(call)->averages ? c->up : c->down;
    int rc = 0;

    if (c->is_levels && !c->budget && call->collective != BNY_ALLREDUCE)
        rc = bny_levels_make(&call->codec, way, way, c->force);
    if (rc == 0 && call->codec->ops->family == BNY_CODEC_RAW)
        call->codec = NULL;
    return rc;
}

int bny_check_codec(struct bny_call *call, struct banyan_comm *comm,
                    const struct banyan_opts *opts)
{
    size_t count = bny_call_row(call)->per_rank ? call->count * (size_t)comm->n : call->count;
    const char *lacks;
    int rc;

    if (call->codec && (rc = take_direction(call)) != 0)
        return rc;
    if (!call->codec)
        return 0;
    lacks = call->codec->budget ? take_budget(comm, call) : codec_lacks(call);
    if (lacks && opts_of(opts).codec)
        return bny_fail(
            BANYAN_ENOTSUP, "codec: %s cannot do this %s of %s: %s; use none for this call",
            call->codec->spec, bny_call_name(call), banyan_dtype_name(call->dtype), lacks);
    if (lacks) {
        if (call->dtype <=
            BANYAN_BF16) /* what counts, and is no number of a tensor, is as ever */
            tell_unused(comm, call, lacks, "name codecs call by call, in opts.codec");
        call->codec = NULL;
    }
    if (call->codec && call->state && call->state->count != count)
        return bny_fail(BANYAN_EINVAL, "codec_state: made for %zu elements, this call has %zu",
                        call->state->count, count);
    return call->codec && call->codec->ops->linear ? check_matrix(call, comm, opts) : 0;
}

void bny_call_order(struct bny_call *call, const struct banyan_comm *comm, size_t at,
                    size_t own, size_t total)
{
    if (comm->n == 1 || (call->redop.commutative && !call->deterministic))
        return;
    call->collective = BNY_ALLREDUCE;
    call->via_allreduce = 1;
    call->own_at = at;
    call->own_count = own;
    call->count = total;
    call->vector = 0;
    call->scounts = NULL;
    bny_call_set_schedule(call, "auto");
}

/* Longer results would take longer by the private copy. */
#define EVEN_BYTES (1u << 20)

static int lie_together(const struct bny_call *call, int n)
{
    for (int r = 0; call->rdispls && r < n; r++)
        if (call->rdispls[r] != (size_t)r * call->count)
            return 0;
    return 1;
}

void bny_call_even(struct bny_call *call, const struct banyan_comm *comm)
{
    int gathers = call->collective == BNY_ALLGATHER;
    const size_t *counts = gathers ? call->rcounts : call->scounts;

    if (!call->vector || (!gathers && call->collective != BNY_REDUCE_SCATTER) || call->codec ||
        comm->n == 1)
        return;
    for (int r = 1; r < comm->n; r++)
        if (counts[r] != counts[0])
            return;
    if (gathers && counts[0] > EVEN_BYTES / banyan_dtype_bytes(call->dtype) / (size_t)comm->n)
        return;
    call->vector = 0;
    call->count = counts[0];
    if (!lie_together(call, comm->n))
        call->spread = call->rdispls;
    call->scounts = call->rcounts = call->rdispls = NULL;
}

void bny_call_set_shape(struct bny_call *call, const struct banyan_comm *comm)
{
    int is_message = call->collective == BNY_SENDRECV;

    if (call->vector || call->spread || call->codec || call->state || call->has_set ||
        call->contributors || call->via_allreduce || call->chunk_bytes || call->first ||
        call->redop.wire >= BNY_OP_COUNT || strcmp(call->schedule, "auto") != 0 ||
        (is_message && (call->root == comm->rank || call->root == BANYAN_ANY_SOURCE)))
        return;
    call->shape = (struct bny_call_shape){ .count = call->count,
                                           .root = call->root,
                                           .tag = call->tag,
                                           .collective = call->collective,
                                           .is_send = call->is_send,
                                           .dtype = (uint8_t)call->dtype,
                                           .op = call->redop.wire,
                                           .deterministic = call->deterministic,
                                           .is_set = 1 };
}
