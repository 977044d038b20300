/* SPDX-License-Identifier: BSD-3-Clause */
/* A step: gradients are marked, buckets start in their order as they fill, what is in flight is
 * driven along, and at the end all ranks hear of what was wrong at any. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "training/buckets.h"

/* ---- errors that no step survives ---- */

int bny_buckets_fail(struct banyan_buckets *b, int rc)
{
    if (!b->failed) {
        b->failed = rc;
        snprintf(b->failed_text, sizeof b->failed_text, "%s", banyan_last_error());
        if (banyan_async_error(b->comm, NULL, NULL, 0) == 0)
            banyan_abort(b->comm, b->failed_text); /* others would wait for this rank */
    }
    return bny_fail((enum banyan_error) - b->failed, "%s", b->failed_text);
}

int bny_buckets_check(const struct banyan_buckets *b, const char *what)
{
    int rc = bny_object_check(b, BNY_BUCKETS_KIND, what);

    if (rc == 0 && b->failed)
        rc = bny_fail((enum banyan_error) - b->failed, "%s", b->failed_text);
    return rc;
}

int bny_buckets_enter(const struct banyan_buckets *b, const char *what)
{
    int rc = bny_object_enter(b, BNY_BUCKETS_KIND, what);

    return rc ? rc : bny_buckets_check(b, what);
}

int bny_buckets_check_idle(const struct banyan_buckets *b, const char *what)
{
    int rc = bny_buckets_check(b, what);

    if (rc == 0 && (b->in_step || b->micro))
        rc = bny_fail(BANYAN_EBUSY,
                      "%s: called within a step; after the banyan_buckets_wait that ends it",
                      what);
    return rc;
}

static int check_tensor(const struct banyan_buckets *b, size_t tensor, const char *what)
{
    int rc = bny_buckets_enter(b, what);

    if (rc == 0 && tensor >= b->model.n)
        rc = bny_fail(BANYAN_EINVAL, "%s: tensor %zu of %zu", what, tensor, b->model.n);
    return rc;
}

/* An operation of bucket j failed with rc. */
static int bucket_failed(struct banyan_buckets *b, size_t j, int rc)
{
    const struct bny_bucket *u = &b->bucket[j];
    char more[64] = "";

    if (u->nspans > 1)
        snprintf(more, sizeof more, " (and %zu more of its bucket)", u->nspans - 1);
    return bny_buckets_fail(b, bny_fail((enum banyan_error) - rc, "tensor %s%s: %s",
                                        b->model.at[u->spans[0].tensor].name, more,
                                        banyan_last_error()));
}

/* ---- time ---- */

static int in_flight(const struct banyan_buckets *b)
{
    return b->oldest < b->next;
}

static void clock_enter(struct banyan_buckets *b)
{
    struct bny_clock *c = &b->clock;

    c->entry_ns = in_flight(b) ? bny_now_ns() : 0;
    c->gap_ns = c->entry_ns ? c->entry_ns - c->exit_ns : 0;
}

static void clock_leave(struct banyan_buckets *b)
{
    struct bny_clock *c = &b->clock;
    uint64_t now, idle;

    if (!c->entry_ns)
        return;
    now = bny_now_ns();
    if (c->gap_ns && !in_flight(b) && c->latest_end_ns < c->entry_ns) {
        /* All ended while the caller was elsewhere, by a progress thread. */
        idle = c->entry_ns - c->latest_end_ns;
        c->gap_ns -= idle < c->gap_ns ? idle : c->gap_ns;
    }
    c->hidden_ns += c->gap_ns;
    c->in_library_ns += now - c->entry_ns;
    c->exit_ns = now;
}

/* The time that the caller has spent in here in this step, until `at`. */
static uint64_t in_library_at(const struct bny_clock *c, uint64_t at)
{
    return c->in_library_ns + (at > c->entry_ns ? at - c->entry_ns : 0);
}

/* ---- buckets start, and end ---- */

/* More at a time share the network, and all end late; by far more fill the transports' rings,
 * and every look at them costs as much as there are operations. */
#define IN_FLIGHT_MOST 64

static int start_one(struct banyan_buckets *b)
{
    struct bny_bucket *u = &b->bucket[b->next];
    int rc;

    u->started_ns = bny_now_ns();
    if (!b->clock.entry_ns)
        b->clock.entry_ns = u->started_ns;
    u->started_in_ns = in_library_at(&b->clock, u->started_ns);
    u->is_done = 0;
    rc = banyan_start(u->req);
    if (rc < 0)
        return bucket_failed(b, b->next, rc);
    b->next++;
    return 0;
}

/* Those that are full, in their order. */
static int start_full(struct banyan_buckets *b)
{
    int rc = 0;

    while (rc == 0 && b->next < b->nbuckets && !b->bucket[b->next].missing &&
           b->next - b->oldest < IN_FLIGHT_MOST)
        rc = start_one(b);
    return rc;
}

static void copy_out(const struct banyan_buckets *b, const struct bny_bucket *u)
{
    size_t esz = banyan_dtype_bytes(u->dtype);

    for (size_t k = 0; u->is_copied && k < u->nspans; k++) {
        const struct bny_span *s = &u->spans[k];
        memcpy(b->model.at[s->tensor].grad, u->memory + s->offset * esz, s->count * esz);
    }
}

/* The oldest in flight is complete. */
static void finish_oldest(struct banyan_buckets *b)
{
    struct bny_bucket *u = &b->bucket[b->oldest++];
    struct banyan_request_stats st = { .size = sizeof st };
    struct bny_clock *c = &b->clock;

    u->is_done = 1;
    copy_out(b, u);
    if (banyan_request_stats(u->req, &st) < 0)
        return;
    u->wire_bytes = st.wire_bytes;
    b->wire_bytes += st.wire_bytes;
    u->ended_ns = st.end_ns;
    u->ended_in_ns = in_library_at(c, st.end_ns);
    if (st.end_ns > c->latest_end_ns)
        c->latest_end_ns = st.end_ns;
}

/* One look; then whatever it ended. */
static int drive(struct banyan_buckets *b)
{
    int rc = 0, done = 1;

    while (in_flight(b) && done && rc == 0) {
        rc = banyan_test(b->bucket[b->oldest].req, &done);
        if (rc < 0)
            return bucket_failed(b, b->oldest, rc);
        if (done) {
            finish_oldest(b);
            rc = start_full(b);
        }
    }
    return rc;
}

/* ---- what is wrong here ---- */

/* A fault's number: kind, then the ranks from the last to the first, then the tensor. */
#define KIND_AT     60
#define RANK_AT     32
#define RANK_MASK   0xfffffffu
#define TENSOR_MASK 0xffffffffu

/* Of several the largest stays: the worst kind, of the lowest rank. */
static void note_fault(struct banyan_buckets *b, enum bny_fault kind, size_t tensor)
{
    uint64_t rank = RANK_MASK - (uint32_t)banyan_comm_rank(b->comm);
    uint64_t f = (uint64_t)kind << KIND_AT | rank << RANK_AT | tensor;

    if (f > b->fault)
        b->fault = f;
}

static int tell_fault(const struct banyan_buckets *b, uint64_t fault)
{
    static const char *const texts[][2] = {
        [BNY_FAULT_UNUSED] = { "did not mark tensor",
                               "; mark it, or set unused to BANYAN_UNUSED_ZERO" },
        [BNY_FAULT_PART] = { "marked only a part of tensor", "" },
        [BNY_FAULT_TWICE] = { "marked more than once, in whole or in part, tensor", "" },
        [BNY_FAULT_NAN] = { "has NaN or infinities in the gradient of tensor", "" },
    };
    size_t tensor = fault & TENSOR_MASK, kind = fault >> KIND_AT;
    int rank = (int)(RANK_MASK - (fault >> RANK_AT & RANK_MASK));

    if (kind >= sizeof texts / sizeof texts[0] || !texts[kind][0] || tensor >= b->model.n)
        return bny_fail(BANYAN_EPROTO, "buckets: the verdict of a step makes no sense");
    return bny_fail(BANYAN_EINVAL,
                    "rank %d %s %s in step %" PRIu64 "%s; the gradients of this step are void",
                    rank, texts[kind][0], b->model.at[tensor].name, b->steps, texts[kind][1]);
}

/* ---- marks ---- */

static int has_room(struct bny_bucketed *k)
{
    size_t cap = k->parts_cap ? 2 * k->parts_cap : 8;
    struct bny_part *more;

    if (k->nparts < k->parts_cap)
        return 1;
    more = realloc(k->parts, cap * sizeof *more);
    if (!more)
        return 0;
    k->parts = more;
    k->parts_cap = cap;
    return 1;
}

/* Parts stay in order, and those that touch become one. 0; 1: some of [at, end) was marked
 * before; -BANYAN_ENOMEM. */
static int mark_part(struct bny_bucketed *k, size_t at, size_t end)
{
    size_t i = 0;

    while (i < k->nparts && k->parts[i].end < at)
        i++;
    if (i < k->nparts && k->parts[i].at < end && at < k->parts[i].end)
        return 1;
    if (i < k->nparts && k->parts[i].end == at) {
        if (i + 1 < k->nparts && k->parts[i + 1].at < end)
            return 1;
        k->parts[i].end = end;
        if (i + 1 < k->nparts && k->parts[i + 1].at == end) {
            k->parts[i].end = k->parts[i + 1].end;
            k->nparts--;
            memmove(&k->parts[i + 1], &k->parts[i + 2], (k->nparts - i - 1) * sizeof *k->parts);
        }
        return 0;
    }
    if (i < k->nparts && k->parts[i].at == end) {
        k->parts[i].at = at;
        return 0;
    }
    if (!has_room(k))
        return -BANYAN_ENOMEM;
    memmove(&k->parts[i + 1], &k->parts[i], (k->nparts - i) * sizeof *k->parts);
    k->parts[i] = (struct bny_part){ at, end };
    k->nparts++;
    return 0;
}

static int mark(const struct banyan_buckets *b, size_t i, size_t at, size_t count)
{
    struct bny_bucketed *k = &b->tensor[i];
    int rc = 0;

    if (count == b->model.at[i].count || k->marked == b->model.at[i].count)
        rc = k->marked != 0;
    else
        rc = mark_part(k, at, at + count);
    if (rc == 0) {
        k->marked += count;
        k->is_used = 1;
    }
    return rc;
}

static char *gradient(const struct bny_tensor *t, size_t at)
{
    return (char *)t->grad + at * banyan_dtype_bytes(t->dtype);
}

static void buckets_step_look_at(struct banyan_buckets *b, size_t i, size_t at, size_t count)
{
    const struct bny_tensor *t = &b->model.at[i];
    double squares;
    int finite = bny_squares(gradient(t, at), t->dtype, count, &squares);

    if (!finite && b->cfg.check_nan) {
        note_fault(b, BNY_FAULT_NAN, i);
        /* No residual takes it in, no codec fails of it. */
        memset(gradient(t, at), 0, count * banyan_dtype_bytes(t->dtype));
    } else {
        b->tensor[i].squares += squares;
    }
}

/* The residual that a codec left of a tensor which has no codec any more. */
static void add_residual(const struct banyan_buckets *b, size_t i, size_t at, size_t count)
{
    const float *rest = banyan_codec_state_residual(b->tensor[i].state);
    char *x = gradient(&b->model.at[i], at);

    for (size_t e = 0; b->model.at[i].dtype == BANYAN_F32 && e < count; e++) {
        float sum;
        memcpy(&sum, x + e * sizeof sum, sizeof sum);
        sum += rest[at + e];
        memcpy(x + e * sizeof sum, &sum, sizeof sum);
    }
}

/* Elements [at, +count) of tensor i have their value: into buckets with them. */
static void contribute(struct banyan_buckets *b, size_t i, size_t at, size_t count)
{
    const struct bny_tensor *t = &b->model.at[i];
    struct bny_bucketed *k = &b->tensor[i];
    size_t end = at + count, esz = banyan_dtype_bytes(t->dtype);

    if (b->cfg.check_nan || b->cfg.norms)
        buckets_step_look_at(b, i, at, count);
    if (k->state && !k->codec)
        add_residual(b, i, at, count);
    for (size_t p = at / k->piece; p < k->npieces && p * k->piece < end; p++) {
        struct bny_bucket *u = &b->bucket[k->first + p];
        size_t from = p * k->piece > at ? p * k->piece : at;
        size_t to = (p + 1) * k->piece < end ? (p + 1) * k->piece : end;
        if (u->is_copied)
            memcpy(u->memory + (k->offset + from) * esz, gradient(t, from), (to - from) * esz);
        u->missing -= to - from;
    }
}

static int begin_step(struct banyan_buckets *b)
{
    int rc = 0;

    if (b->in_step)
        return 0;
    if (b->micro == 0)
        rc = bny_buckets_take_residuals(b);
    if (rc == 0 && b->is_stale)
        rc = bny_buckets_cut(b);
    if (rc < 0)
        return bny_buckets_fail(b, rc);
    if (b->micro == 0) {
        b->clock = (struct bny_clock){ 0 };
        b->wire_bytes = 0;
    }
    b->in_step = 1;
    return 0;
}

static int is_last_micro(const struct banyan_buckets *b)
{
    return b->micro + 1 >= b->cfg.accumulate;
}

static int take_mark(struct banyan_buckets *b, size_t i, size_t at, size_t count)
{
    int rc = mark(b, i, at, count);

    if (rc < 0)
        return bny_buckets_fail(b, bny_fail(BANYAN_ENOMEM, "no memory for parts of tensor %s",
                                            b->model.at[i].name));
    if (rc) {
        note_fault(b, BNY_FAULT_TWICE, i);
        return bny_fail(BANYAN_EINVAL,
                        "rank %d: tensor %s was marked before in this step, [%zu, +%zu) of its "
                        "%zu elements or some of them",
                        banyan_comm_rank(b->comm), b->model.at[i].name, at, count,
                        b->model.at[i].count);
    }
    if (!is_last_micro(b))
        return 0;
    if (b->tensor[i].marked == b->model.at[i].count)
        bny_buckets_profile_ready(b, i);
    if (!b->has_order && b->tensor[i].marked == b->model.at[i].count)
        b->seen[b->nseen++] = (uint32_t)i;
    contribute(b, i, at, count);
    return start_full(b);
}

int banyan_buckets_ready_part(struct banyan_buckets *b, size_t tensor, size_t at, size_t count)
{
    int rc = check_tensor(b, tensor, "banyan_buckets_ready_part"), driven = 0;

    if (rc < 0)
        return rc;
    if (at > b->model.at[tensor].count || count > b->model.at[tensor].count - at)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_buckets_ready_part: tensor %s has %zu elements, not [%zu, "
                        "+%zu)",
                        b->model.at[tensor].name, b->model.at[tensor].count, at, count);
    if (count == 0)
        return 0;
    bny_buckets_profile_enter(b);
    rc = begin_step(b);
    if (rc < 0)
        return rc;
    clock_enter(b);
    rc = take_mark(b, tensor, at, count);
    if ((b->cfg.progress || b->next - b->oldest == IN_FLIGHT_MOST) && !b->failed)
        driven = drive(b);
    clock_leave(b);
    bny_buckets_profile_leave(b);
    return rc ? rc : driven;
}

int banyan_buckets_ready(struct banyan_buckets *b, size_t tensor)
{
    int rc = check_tensor(b, tensor, "banyan_buckets_ready");

    return rc ? rc : banyan_buckets_ready_part(b, tensor, 0, b->model.at[tensor].count);
}

int banyan_buckets_progress(struct banyan_buckets *b)
{
    int rc = bny_buckets_enter(b, "banyan_buckets_progress");

    if (rc < 0 || !in_flight(b))
        return rc;
    bny_buckets_profile_enter(b);
    clock_enter(b);
    rc = drive(b);
    clock_leave(b);
    bny_buckets_profile_leave(b);
    return rc;
}

/* ---- the end of a step ---- */

/* Parts of tensor i that this last micro-step has not marked are sent as they are if an earlier
 * micro-step marked them, else as zeros. */
static void buckets_step_complete(struct banyan_buckets *b, size_t i)
{
    const struct bny_tensor *t = &b->model.at[i];
    struct bny_bucketed *k = &b->tensor[i];
    int zeros = !k->is_used || k->marked;
    size_t at = 0;

    if (k->marked == t->count)
        return;
    if (k->marked)
        note_fault(b, BNY_FAULT_PART, i);
    else if (!k->is_used && b->cfg.unused == BANYAN_UNUSED_ERROR)
        note_fault(b, BNY_FAULT_UNUSED, i);
    for (size_t p = 0; p <= k->nparts; p++) {
        size_t end = p < k->nparts ? k->parts[p].at : t->count;
        if (zeros)
            memset(gradient(t, at), 0, (end - at) * banyan_dtype_bytes(t->dtype));
        if (end > at)
            contribute(b, i, at, end - at);
        at = p < k->nparts ? k->parts[p].end : end;
    }
    if (!b->has_order)
        b->seen[b->nseen++] = (uint32_t)i;
}

static int start_verdict(struct banyan_buckets *b)
{
    int rc;

    b->verdict[0] = b->fault;
    b->verdict[1] = (uint64_t)b->cfg.accumulate;
    b->verdict[2] = ~b->verdict[1];
    rc = banyan_start(b->verdict_req);
    return rc ? bny_buckets_fail(b, rc) : 0;
}

/* Starts what is full and waits for the buckets before `until`. */
static int wait_for_buckets(struct banyan_buckets *b, size_t until)
{
    int rc = start_full(b);

    while (rc == 0 && b->oldest < until) {
        rc = banyan_wait(b->bucket[b->oldest].req, -1);
        if (rc < 0)
            return bucket_failed(b, b->oldest, rc);
        finish_oldest(b);
        rc = start_full(b);
    }
    return rc;
}

static int wait_for_verdict(struct banyan_buckets *b)
{
    struct banyan_request_stats st = { .size = sizeof st };
    int rc = banyan_wait(b->verdict_req, -1);

    if (rc == 0)
        rc = banyan_request_stats(b->verdict_req, &st);
    if (rc < 0)
        return bny_buckets_fail(b, bny_fail((enum banyan_error) - rc,
                                            "the verdict of a step of %zu tensors: %s",
                                            b->model.n, banyan_last_error()));
    if (st.end_ns > b->clock.latest_end_ns)
        b->clock.latest_end_ns = st.end_ns;
    b->wire_bytes += st.wire_bytes;
    return 0;
}

/* Rank 0's order is everybody's. */
static int take_order(struct banyan_buckets *b)
{
    int rc = banyan_broadcast(b->seen, b->model.n, BANYAN_U32, 0, b->comm, &bny_exact);

    if (rc < 0)
        return bny_buckets_fail(b, rc);
    for (size_t i = 0; i < b->model.n; i++)
        if (b->seen[i] >= b->model.n)
            return bny_buckets_fail(
                b, bny_fail(BANYAN_EPROTO, "rank 0 sent an order of tensors with number %u",
                            (unsigned)b->seen[i]));
    memcpy(b->order, b->seen, b->model.n * sizeof *b->order);
    b->has_order = 1;
    rc = bny_buckets_cut(b);
    return rc < 0 ? bny_buckets_fail(b, rc) : 0;
}

static void clear_marks(struct banyan_buckets *b)
{
    for (size_t i = 0; i < b->model.n; i++)
        b->tensor[i].marked = b->tensor[i].nparts = 0;
    b->in_step = 0;
}

void bny_buckets_clear(struct banyan_buckets *b)
{
    clear_marks(b);
    for (size_t i = 0; i < b->model.n; i++)
        b->tensor[i].is_used = 0;
    for (size_t j = 0; j < b->nbuckets; j++)
        b->bucket[j].missing = b->bucket[j].count;
    b->next = b->oldest = 0;
    b->nseen = 0;
    b->micro = 0;
    b->fault = 0;
}

/* The statistics of a step outlive its buckets. */
static void sum_up_tensor(struct banyan_buckets *b, size_t i)
{
    struct bny_bucketed *k = &b->tensor[i];
    const struct bny_bucket *first = &b->bucket[k->first], *last = first;
    uint64_t all, inside;

    k->norm = sqrt(k->squares);
    k->squares = 0;
    k->wire_bytes = 0;
    k->bucket = k->first;
    for (size_t p = 0; p < k->npieces; p++) {
        const struct bny_bucket *u = &b->bucket[k->first + p];
        if (u->ended_ns > last->ended_ns)
            last = u;
        k->wire_bytes +=
            u->nspans == 1
                ? u->wire_bytes
                : (uint64_t)((double)u->wire_bytes * (double)k->piece / (double)u->count);
    }
    all = last->ended_ns - first->started_ns;
    inside = last->ended_in_ns - first->started_in_ns;
    k->exposed_ns = inside < all ? inside : all;
    k->hidden_ns = all - k->exposed_ns;
}

static void sum_up(struct banyan_buckets *b)
{
    b->steps++;
    b->wire_bytes_sum += b->wire_bytes;
    b->hidden_ns_sum += b->clock.hidden_ns;
    b->exposed_ns_sum += b->clock.in_library_ns;
    for (size_t i = 0; i < b->model.n; i++) {
        sum_up_tensor(b, i);
        if (b->tensor[i].codec)
            continue;
        banyan_codec_state_free(b->tensor[i].state); /* its residual was sent */
        b->tensor[i].state = NULL;
    }
}

static int end_step(struct banyan_buckets *b)
{
    size_t most;
    int rc;

    clock_enter(b);
    for (size_t i = b->model.n; i-- > 0;)
        buckets_step_complete(b, i);
    if (!b->clock.entry_ns)
        b->clock.entry_ns = bny_now_ns();
    most = b->nbuckets < IN_FLIGHT_MOST ? 0 : b->nbuckets - IN_FLIGHT_MOST;
    rc = wait_for_buckets(b, most); /* all have started then */
    if (rc == 0)
        rc = start_verdict(b);
    if (rc == 0)
        rc = wait_for_buckets(b, b->nbuckets);
    if (rc == 0)
        rc = wait_for_verdict(b);
    clock_leave(b);
    return rc;
}

static int judge(const struct banyan_buckets *b)
{
    if (b->verdict[1] != ~b->verdict[2])
        return bny_fail(BANYAN_EMISMATCH,
                        "buckets: ranks have %" PRIu64 " and %" PRIu64
                        " micro-steps a step; call banyan_buckets_set_accumulate alike",
                        ~b->verdict[2], b->verdict[1]);
    return b->verdict[0] ? tell_fault(b, b->verdict[0]) : 0;
}

static void end_micro(struct banyan_buckets *b)
{
    for (size_t i = 0; i < b->model.n; i++)
        if (b->tensor[i].marked && b->tensor[i].marked < b->model.at[i].count)
            note_fault(b, BNY_FAULT_PART, i);
    clear_marks(b);
    b->micro++;
}

int banyan_buckets_wait(struct banyan_buckets *b)
{
    int rc = bny_buckets_enter(b, "banyan_buckets_wait");

    if (rc < 0)
        return rc;
    bny_buckets_profile_enter(b);
    rc = begin_step(b);
    if (rc < 0)
        return rc;
    if (!is_last_micro(b)) {
        end_micro(b);
        bny_buckets_profile_leave(b);
        return 0;
    }
    rc = end_step(b);
    if (rc < 0)
        return rc;
    sum_up(b);
    if (!b->has_order)
        rc = take_order(b);
    bny_buckets_clear(b);
    bny_buckets_profile_step(b);
    return rc ? rc : judge(b);
}
