/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions in order of arrival, and their results by the model. */
#include "tests/mp/arrival_call.h"

#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/rng.h"

struct arrived {
    struct arrival_call c;
    struct banyan_comm *comm;
    int n, rank, gets, made;
    size_t bytes;
    char *in, *out;
    banyan_op op;
    uint8_t in_sum[MP_RANKS_MAX];
    struct banyan_reduce_opts inputs;
    struct banyan_opts opts;
};

void arrival_random(struct arrival_call *c, int n, uint64_t seed)
{
    static const size_t counts[] = { 0, 1, 3, 17, 240, 1000, 4096, 9000, 70000, 300000 };
    uint64_t s = seed;
    size_t unit;

    memset(c, 0, sizeof *c);
    do {
        c->dtype = (enum banyan_dtype)bny_rng_below(&s, BNY_DTYPE_COUNT);
        c->op = (enum model_op)bny_rng_below(&s, M_MATRIX);
    } while (!model_op_fits(c->op, c->dtype));
    unit = model_unit(c->op);
    c->reduce = (int)bny_rng_below(&s, 2);
    c->root = (int)bny_rng_below(&s, (uint64_t)n);
    c->in_place = (int)bny_rng_below(&s, 2);
    c->at_least = (int)bny_rng_below(&s, 3);
    if (c->at_least)
        c->at_least =
            c->at_least == 1 ? 0 : n; /* n: all, but never a static schedule at once */
    else
        c->at_least = 1 + (int)bny_rng_below(&s, (uint64_t)n);
    c->count = counts[bny_rng_below(&s, sizeof counts / sizeof counts[0])] / unit * unit;
    c->chunk_bytes = bny_rng_below(&s, 2) ? 8192 : 0;
    c->is_coded = bny_rng_below(&s, 3) == 0;
    c->seed = bny_rng_next(&s);
}

/* ---- the call ---- */
struct arrived *arrival_open(const struct test *t, struct banyan_comm *comm,
                             const struct arrival_call *c)
{
    struct arrived *a = case_malloc(sizeof *a);

    *a = (struct arrived){ .c = *c,
                           .comm = comm,
                           .n = banyan_comm_count(comm),
                           .rank = banyan_comm_rank(comm),
                           .bytes = c->count * banyan_dtype_bytes(c->dtype),
                           .inputs = BANYAN_REDUCE_OPTS_INIT,
                           .opts = BANYAN_OPTS_INIT };
    a->gets = !c->reduce || c->root == a->rank;
    a->in = case_malloc(a->bytes + 1);
    a->out = case_malloc(a->bytes + 1);
    memset(a->out, 0x5a, a->bytes + 1);
    case_feed(1);
    CHECK_OK(t, model_op_create(c->op, a->rank, &a->op, &a->made));
    case_feed(0);
    a->opts.schedule = "arrival";
    a->opts.reduce = &a->inputs;
    a->inputs.at_least = c->at_least;
    a->inputs.contributors = a->in_sum;
    a->opts.chunk_bytes = c->chunk_bytes;
    a->opts.codec = c->is_coded ? "blocksparse:force=1" : "none";
    arrival_fill(a);
    return a;
}

static void *input(struct arrived *a)
{
    return a->c.in_place && a->gets ? a->out : a->in;
}

void arrival_fill(struct arrived *a)
{
    const struct arrival_call *c = &a->c;

    memset(a->in_sum, 7, sizeof a->in_sum);
    model_fill(input(a), 0, c->count, c->dtype, c->op, a->rank, c->seed);
}

int arrival_issue(struct arrived *a, struct banyan_request **rq)
{
    const struct arrival_call *c = &a->c;
    const struct banyan_opts *o = &a->opts;
    void *in = input(a), *out = a->gets ? a->out : NULL;

    if (rq)
        return c->reduce
                   ? banyan_reduce_init(in, out, c->count, c->dtype, a->op, c->root, a->comm, o,
                                        rq)
                   : banyan_allreduce_init(in, out, c->count, c->dtype, a->op, a->comm, o, rq);
    return c->reduce ? banyan_reduce(in, out, c->count, c->dtype, a->op, c->root, a->comm, o)
                     : banyan_allreduce(in, out, c->count, c->dtype, a->op, a->comm, o);
}

/* ---- what comes out ---- */
static void model_of(void *dst, const struct arrived *a)
{
    const struct arrival_call *c = &a->c;
    void *in = case_malloc(a->bytes + 1);
    int m = 0;

    for (int r = 0; r < a->n; r++) {
        if (!a->in_sum[r])
            continue;
        model_fill(m ? in : dst, 0, c->count, c->dtype, c->op, r, c->seed);
        model_begin(m ? in : dst, c->count, c->dtype, c->op, r);
        if (m++)
            model_add(dst, in, c->count, c->dtype, c->op);
    }
    model_end(dst, c->count, c->dtype, c->op, m);
    free(in);
}

static void check_contributors(const struct test *t, const struct arrived *a)
{
    const struct arrival_call *c = &a->c;
    int want = c->at_least ? c->at_least : a->n, m = 0;

    for (int r = 0; r < a->n; r++) {
        CHECK(t, a->in_sum[r] <= 1, "contributors[%d] is %u", r, a->in_sum[r]);
        m += a->in_sum[r];
    }
    if (a->gets) /* of results that must wait for too many: all */
        CHECK(t, m == want || m == a->n, "%d of %d contributed, not %d", m, a->n, want);
    if (c->reduce && a->gets)
        CHECK(t, a->in_sum[a->rank], "the root did not contribute");
}

static void check_result(const struct test *t, const struct arrived *a)
{
    const struct arrival_call *c = &a->c;
    char *want = case_malloc(a->bytes + 1);
    size_t bad;

    model_of(want, a);
    bad = model_compare(a->out, want, c->count, c->dtype, c->op);
    CHECK(t, bad == c->count,
          "%s of %zu %s, op %d, at least %d of %d, in place %d, coded %d: element %zu",
          c->reduce ? "reduce" : "allreduce", c->count, banyan_dtype_name(c->dtype), (int)c->op,
          c->at_least, a->n, c->in_place, c->is_coded, bad);
    free(want);
}

int arrival_close(const struct test *t, struct arrived *a, int rc)
{
    if (rc == 0) {
        check_contributors(t, a);
        if (a->gets)
            check_result(t, a);
        CHECK(t, a->out[a->bytes] == 0x5a, "written behind the result");
    }
    if (rc == 0 && !a->c.reduce)
        rc = case_try_agree(t, a->comm, case_hash(a->in_sum, (size_t)a->n), "contributors");
    if (rc == 0 && !a->c.reduce)
        rc = case_try_agree(t, a->comm, case_hash(a->out, a->bytes), "arrival");
    if (a->made) {
        case_feed(1);
        CHECK_OK(t, banyan_op_free(a->op));
        case_feed(0);
    }
    free(a->in);
    free(a->out);
    free(a);
    return rc;
}
