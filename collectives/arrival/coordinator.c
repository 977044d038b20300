/* SPDX-License-Identifier: BSD-3-Clause */
/* The coordinator of an arrival reduction: it is elected, assigns slots to ranks as they
 * arrive, and keeps the result for late ranks. arrival.h has the protocol. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/arrival/arrival.h"
#include "collectives/plan/arrival_tree.h"
#include "collectives/local/local.h"
#include "collectives/plan/cost.h"

/* Calls whose result a coordinator keeps for late ranks at a time; further calls wait for all
 * ranks. */
#define KEPT_MAX 8
/* The sums of a coordinator's own rank wait while the coordinator still has slots to assign or
 * to send, because its answers would queue behind megabytes of sums in the port. They wait for
 * 1 / PRIORITY_PART of the predicted time and for PRIORITY_ALPHAS latencies, in which
 * connections are made, but at most PRIORITY_S. */
#define PRIORITY_S      2e-3
#define PRIORITY_PART   8
#define PRIORITY_ALPHAS 8

struct bny_coordinator {
    struct bny_op op;      /* its own; of_way[BNY_WAY_ARRIVAL] is this coordinator */
    struct bny_op *member; /* the call; NULL: it has ended */
    uint32_t seq;          /* the call's number */
    int me, n;
    /* The election */
    int8_t serves;      /* 1; 0: the other coordinator does; -1: not known yet */
    int8_t vote[3];     /* of ranks 0, 1 and 2: for rank 0 or 1; -1: not known */
    uint8_t is_open[3]; /* rank 0, 1 or 2 has opened its coordinator, as it announced */
    struct bny_coord_outbox out;
    /* The ranks that have arrived */
    uint8_t *has_arrived; /* [n] */
    int *queue;           /* [n] in order of arrival; the first ntaken have an answer */
    int nqueue, ntaken;
    int *order;  /* [slots] by slot */
    int *parent; /* [slots] */
    int slots, nfilled, depth;
    int next, top;        /* the next slot to assign; the slot that has no parent */
    uint64_t until_ns;    /* slots are assigned from then on; 0: at once */
    uint64_t priority_ns; /* until then the member's sums wait for answers; 0: no longer */
    /* For a sum of schedule auto (lateness.h) */
    uint8_t adapts, asks; /* asks: it answers only when all ranks have arrived */
    uint8_t has_answered; /* a rank has its answer: all answers have the same flag */
    uint32_t was_late;    /* that flag: BNY_COORD_WAS_LATE or 0 */
    uint64_t opened_ns, late_ns;
    /* The late ranks */
    struct bny_feed *late; /* [n - slots] those to which this rank sends the result */
    int nlate;
    int last; /* the last rank of a line that may get longer; -1: there is no such line */
    uint8_t forwards_only; /* it assigns no slots, and sends one late rank the result */
    uint32_t nkept;
    char *kept;         /* the result; NULL: not needed, or no chunk of it has arrived */
    uint32_t *kept_len; /* [nchunks] bytes of encoded chunks, or BNY_ARRIVAL_RAW; NULL: there is
                           no codec */
    size_t stride;      /* of chunks in `kept` */
    uint8_t *have;      /* [nchunks] */
    uint64_t *set;      /* the contributors of the result; NULL: not known yet */
};

static struct bny_coordinator *coordinator_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_ARRIVAL];
}

static int keeps(const struct bny_coordinator *d)
{
    return d->slots < d->n && d->op.call.collective == BNY_ALLREDUCE;
}

/* ---- the election ---- */

static void send_answer(struct bny_coordinator *d, int r, const struct bny_coord_msg *w)
{
    bny_coord_outbox_add(&d->op, &d->out, r, d->seq, w);
}

void bny_coordinator_deliver_own(struct bny_op *op, const struct bny_coord_msg *w)
{
    struct bny_coordinator *d = coordinator_of(op);

    if (d->member)
        bny_arrival_answer(d->member, d->me, w);
}

static void send_to_coordinator(struct bny_coordinator *d, int r, uint32_t kind, int rank)
{
    struct bny_coord_msg w = { .kind = kind, .rank = rank };

    if (r != d->me)
        bny_coord_outbox_add(&d->op, &d->out, r, d->seq + 1, &w);
}

/* Rank 0 votes for itself; ranks 1 and 2 for rank 0 if its message came first, else for 1. */
static void cast_vote(struct bny_coordinator *d)
{
    int candidate = d->me == 0 ? 0 : d->is_open[0] ? 0 : d->is_open[3 - d->me] ? 1 : -1;

    if (d->vote[d->me] >= 0 || candidate < 0)
        return;
    d->vote[d->me] = (int8_t)candidate;
    send_to_coordinator(d, 0, BNY_COORD_VOTE, candidate);
    send_to_coordinator(d, 1, BNY_COORD_VOTE, candidate);
}

static void elect(struct bny_coordinator *d)
{
    int votes[2] = { 0, 0 };

    if (d->n < BNY_COORDINATORS)
        votes[0] = 2;
    else
        cast_vote(d);
    for (int r = 0; r < BNY_COORDINATORS && d->n >= BNY_COORDINATORS; r++)
        if (d->vote[r] >= 0)
            votes[d->vote[r]]++;
    if (d->serves < 0 && (votes[0] >= 2 || votes[1] >= 2))
        d->serves = d->me < 2 && votes[d->me] >= 2;
    if (d->serves < 0 && d->me == 2 && d->vote[2] >= 0)
        d->serves = 0; /* it has voted, and does nothing else */
}

/* ---- slots ---- */

/* The flag of all answers of this sum, fixed with the first one: whether a rank was late for
 * this sum, if all have arrived by then, else for the previous one. */
static uint32_t lateness_flag(struct bny_coordinator *d)
{
    if (d->adapts && !d->has_answered && d->op.comm->lateness.was_late)
        d->was_late = BNY_COORD_WAS_LATE;
    d->has_answered = 1;
    return d->was_late;
}

/* The slot of the next rank to arrive, r; -1: none is left. The root of a reduce has the top,
 * whenever it arrives, because the sum ends there. */
static int free_slot(struct bny_coordinator *d, int r)
{
    int is_reduce = d->op.call.collective == BNY_REDUCE;

    if (is_reduce && r == d->op.call.root)
        return d->top;
    d->next += is_reduce && d->next == d->top;
    return d->next < d->slots ? d->next++ : -1;
}

static void assign_slot(struct bny_coordinator *d, int r, int s)
{
    int up = d->parent[s];
    struct bny_coord_msg w = { .kind = BNY_COORD_SLOT | lateness_flag(d),
                               .slot = s,
                               .slots = d->slots,
                               .depth = d->depth,
                               .rank = up == BNY_SHAPE_TOP ? BNY_NO_PARENT : d->order[up] };

    d->nfilled++;
    d->order[s] = r;
    if (bny_arrival_is_last(&d->op.call, d->n, s, d->slots, d->depth))
        d->last = r;
    send_answer(d, r, &w);
    w = (struct bny_coord_msg){ .kind = BNY_COORD_PARENT, .rank = r };
    for (int c = 0; c < d->slots; c++)
        if (d->parent[c] == s && d->order[c] >= 0)
            send_answer(d, d->order[c], &w);
}

/* All ranks arrived together: the static schedule is faster. */
static void run_static(struct bny_coordinator *d)
{
    struct bny_coord_msg w = { .kind = BNY_COORD_TOGETHER | lateness_flag(d) };

    for (int r = 0; r < d->n; r++)
        send_answer(d, r, &w);
    d->ntaken = d->nqueue;
    d->nfilled = d->slots;
}

/* Is it earlier than *until_ns? Then `op` will be advanced again. */
static int waits_until(struct bny_op *op, uint64_t *until_ns)
{
    struct bny_world *w = op->comm->world;

    if (!*until_ns || bny_deadline_passed(*until_ns)) {
        *until_ns = 0;
        return 0;
    }
    if (!w->due_ns || *until_ns < w->due_ns)
        w->due_ns = *until_ns;
    bny_op_mark_runnable(op);
    return 1;
}

int bny_coordinator_has_priority(struct bny_coordinator *d)
{
    return bny_coordinator_is_needed(d) && waits_until(d->member, &d->priority_ns);
}

/* Rank r is late: it joins the line, or begins one at this rank. */
static void join_line(struct bny_coordinator *d, int r)
{
    struct bny_coord_msg w = { .kind = BNY_COORD_FEED, .rank = r };

    if (d->last >= 0)
        send_answer(d, d->last, &w);
    else if (keeps(d))
        d->late[d->nlate++] = (struct bny_feed){ .to = r };
    w.kind = BNY_COORD_LATE;
    w.rank = d->last >= 0 ? d->last : d->me;
    send_answer(d, r, &w);
    if (keeps(d))
        d->last = r;
}

static void assign_slots(struct bny_coordinator *d)
{
    if (d->serves != 1 || d->ntaken == d->nqueue)
        return;
    /* Slots wait for a moment, because all ranks may arrive together. */
    if ((d->until_ns || d->asks) && d->nqueue == d->n)
        run_static(d);
    else if (d->asks || waits_until(&d->op, &d->until_ns))
        return;
    while (d->ntaken < d->nqueue) {
        int r = d->queue[d->ntaken++], s = free_slot(d, r);

        if (s >= 0) {
            assign_slot(d, r, s);
            continue;
        }
        join_line(d, r);
    }
}

static void add_arrival(struct bny_coordinator *d, int r)
{
    d->has_arrived[r] = 1;
    d->queue[d->nqueue++] = r;
    if (d->adapts && d->nqueue == d->n)
        d->op.comm->lateness.was_late = bny_now_ns() - d->opened_ns >= d->late_ns;
}

void bny_coordinator_receive(struct bny_coordinator *d, int from, const struct bny_coord_msg *w)
{
    int is_coordinator = d->n >= BNY_COORDINATORS && from < BNY_COORDINATORS && from != d->me;

    if (w->kind == BNY_COORD_ARRIVED && !d->has_arrived[from] && d->me < 2) {
        add_arrival(d, from);
    } else if (w->kind == BNY_COORD_OPEN && is_coordinator) {
        d->is_open[from] = 1;
    } else if (w->kind == BNY_COORD_VOTE && is_coordinator && d->vote[from] < 0 && d->me < 2 &&
               (w->rank == 0 || (w->rank == 1 && from != 0))) {
        d->vote[from] = (int8_t)w->rank;
        d->is_open[from] = 1; /* the vote may overtake that message */
    } else {
        bny_arrival_wrong(&d->op, from,
                          "it sent a coordinator a message that is not valid in this state");
        return;
    }
    elect(d);
    assign_slots(d);
    bny_coord_outbox_flush(&d->op, &d->out); /* ahead of this rank's own sums */
    bny_op_mark_runnable(&d->op);
}

int bny_coordinator_awaits(const struct bny_coordinator *d, int r)
{
    return d->serves == 1 && !d->has_arrived[r] && d->nfilled < d->slots;
}

int bny_coordinator_serves(const struct bny_coordinator *d, int r)
{
    return d->serves == 1 && d->has_arrived[r];
}

int bny_coordinator_is_needed(const struct bny_coordinator *d)
{
    for (size_t i = 0; d->serves == 1 && i < d->out.n; i++)
        if (d->out.at[i].seq ==
            d->seq) /* an answer; a message to a coordinator may take long to be delivered */
            return 1;
    return d->serves == 1 && d->nfilled < d->slots;
}

/* ---- late ranks ---- */

void bny_coordinator_keep(struct bny_coordinator *d, uint32_t c)
{
    size_t at = (size_t)c * d->op.chunk_elems * d->op.esz;
    const struct bny_arrival_coded *k = &bny_arrival_of(d->member)->coded;

    if (!keeps(d) || d->serves != 1)
        return;
    if (!d->kept)
        d->kept = malloc(d->stride * bny_arrival_chunks(&d->op));
    if (!d->kept) {
        bny_op_send_failed(&d->op, -1,
                           bny_fail(BANYAN_ENOMEM, "no memory to keep a result for late ranks"),
                           "");
        return;
    }
    if (d->kept_len)
        d->kept_len[c] = k->len[c];
    if (d->kept_len && k->len[c] != BNY_ARRIVAL_RAW)
        bny_local_place(d->kept + d->stride * c, k->wire + k->stride * c, k->len[c]);
    else
        bny_local_place(d->kept + d->stride * c, d->member->out + at,
                        bny_arrival_chunk(&d->op, c) * d->op.esz);
    d->have[c] = 1;
    d->nkept++;
    bny_op_mark_runnable(&d->op);
}

void bny_coordinator_keep_set(struct bny_coordinator *d)
{
    size_t bytes = bny_arrival_set_bytes(&d->op);

    if (!keeps(d) || d->serves != 1 || d->set)
        return;
    d->set = malloc(bytes);
    if (!d->set) {
        bny_op_send_failed(&d->op, -1, bny_fail(BANYAN_ENOMEM, "no memory for a set"), "");
        return;
    }
    memcpy(d->set, bny_arrival_of(d->member)->set, bytes);
    bny_op_mark_runnable(&d->op);
}

void bny_coordinator_member_ended(struct bny_coordinator *d)
{
    d->member = NULL;
    bny_op_mark_runnable(&d->op);
}

static int is_fed(const struct bny_coordinator *d, const struct bny_feed *f)
{
    return f->next == bny_arrival_chunks(&d->op) && !f->borrowed && f->set_sent;
}

/* A line ends when its first rank has received all, or the chain before it has ended: the next
 * late rank begins another line. */
static void end_line(struct bny_coordinator *d)
{
    static const struct bny_coord_msg ends = { .kind = BNY_COORD_LINE_ENDS };
    int is_whole = d->nkept == bny_arrival_chunks(&d->op) && d->set;

    if (d->last < 0 || !(d->nlate ? is_fed(d, &d->late[d->nlate - 1]) : is_whole))
        return;
    send_answer(d, d->last, &ends);
    d->last = -1;
}

static int is_over(const struct bny_coordinator *d)
{
    if (d->out.n || d->last >= 0)
        return 0;
    if (d->serves != 1)
        return d->serves == 0;
    if (d->nqueue < d->n)
        return 0;
    for (int i = 0; i < d->nlate; i++)
        if (!is_fed(d, &d->late[i]))
            return 0;
    return 1;
}

/* ---- life ---- */

static int memory_of(struct bny_coordinator *d)
{
    size_t n = (size_t)d->n, slots = (size_t)d->slots;

    d->has_arrived = calloc(n, 1);
    d->queue = malloc(n * sizeof *d->queue);
    d->order = malloc(slots * sizeof *d->order);
    d->parent = malloc(slots * sizeof *d->parent);
    d->late = calloc(n, sizeof *d->late);
    d->have = calloc((size_t)bny_arrival_chunks(&d->op) + 1, 1);
    d->op.asked = calloc(n, sizeof *d->op.asked);
    d->stride = d->op.chunk_elems * d->op.esz;
    if (d->member->plan.codec && keeps(d)) { /* it keeps chunks as they travel */
        size_t coded = bny_arrival_of(d->member)->coded.stride;

        d->stride = d->stride > coded ? d->stride : coded;
        d->kept_len = calloc((size_t)bny_arrival_chunks(&d->op) + 1, sizeof *d->kept_len);
        if (!d->kept_len)
            return bny_fail(BANYAN_ENOMEM, "no memory for an operation's coordinator");
    }
    return d->has_arrived && d->queue && d->order && d->parent && d->late && d->have &&
                   d->op.asked
               ? 0
               : bny_fail(BANYAN_ENOMEM, "no memory for an operation's coordinator");
}

void bny_coordinator_free(struct bny_op *op)
{
    struct bny_coordinator *d = coordinator_of(op);

    free(d->out.at);
    free(d->has_arrived);
    free(d->queue);
    free(d->order);
    free(d->parent);
    free(d->late);
    free(d->kept);
    free(d->kept_len);
    free(d->have);
    free(d->set);
    op->of_way[BNY_WAY_ARRIVAL] = NULL;
}

static void free_detached(struct bny_op *op)
{
    struct bny_coordinator *d = coordinator_of(op);

    bny_op_finish(op);
    free(d);
}

/* No rank called it: it has no deadline and no memory of a user's. */
static void make_op(struct bny_coordinator *d, const struct bny_op *member)
{
    struct bny_op *op = &d->op;

    op->comm = member->comm;
    op->ways = member->ways;
    op->way = op->ways[BNY_WAY_ARRIVAL];
    op->of_way[BNY_WAY_ARRIVAL] = d;
    op->call = (struct bny_call){ .collective = member->call.collective,
                                  .dtype = member->call.dtype,
                                  .root = member->call.root,
                                  .count = member->call.count,
                                  .first = member->call.first };
    op->sig = member->sig;
    op->esz = member->esz;
    op->chunk_elems = member->chunk_elems;
    op->plan.way = BNY_WAY_ARRIVAL;
    op->planned = 1;
    op->free_detached = free_detached;
}

static int kept_by(const struct banyan_comm *c)
{
    int kept = 0;

    for (const struct bny_op *op = c->active_first; op; op = op->next)
        kept += bny_is_coordinator(op) && keeps(coordinator_of(op));
    return kept;
}

/* A coordinator of so many slots; NULL: no memory. */
static struct bny_coordinator *make_coordinator(struct bny_op *op, int slots)
{
    struct bny_coordinator *d = calloc(1, sizeof *d);

    if (!d) {
        bny_fail(BANYAN_ENOMEM, "no memory for an operation's coordinator");
        return NULL;
    }
    make_op(d, op);
    d->member = op;
    d->seq = bny_op_seq(op);
    d->me = op->comm->rank;
    d->n = op->comm->n;
    d->last = -1;
    d->serves = d->vote[0] = d->vote[1] = d->vote[2] = -1;
    d->slots = slots;
    op->comm->had_coordinator = 1;
    if (memory_of(d) == 0)
        return d;
    bny_op_finish(&d->op);
    free(d);
    return NULL;
}

/* Starts its operation, under a number behind the call's. It may end at once, and is freed
 * then. 0 or an error. */
static int begin_coordinator(struct bny_coordinator *d, struct bny_coordinator **at,
                             uint32_t behind)
{
    int rc;

    *at = d;
    rc = bny_op_start_child(&d->op, NULL, d->seq + behind);
    if (rc) {
        *at = NULL;
        bny_op_finish(&d->op);
        free(d);
    }
    return rc;
}

int bny_coordinator_feed(struct bny_op *op, int to)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_coordinator *d = make_coordinator(op, bny_arrival_slots(&op->call, op->comm->n));
    int rc;

    if (!d)
        return -BANYAN_ENOMEM;
    d->forwards_only = 1;
    d->serves = 1;
    d->nqueue = d->ntaken = d->n; /* it waits for no rank */
    d->nfilled = d->slots;
    d->late[d->nlate++] = (struct bny_feed){ .to = to };
    rc = begin_coordinator(d, &a->feeder, 2); /* the child's number: there is no child */
    for (uint32_t c = 0; a->feeder && c < a->nchunks; c++)
        if (a->have[c])
            bny_coordinator_keep(d, c);
    if (a->feeder && a->has_result_set)
        bny_coordinator_keep_set(d);
    return rc;
}

int bny_coordinator_open(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_cost_model m = bny_cost_model_of(&op->comm->scope);
    int slots =
        kept_by(op->comm) < KEPT_MAX ? bny_arrival_slots(&op->call, op->comm->n) : op->comm->n;
    struct bny_coordinator *d = make_coordinator(op, slots);

    if (!d)
        return -BANYAN_ENOMEM;
    d->depth =
        bny_arrival_tree_choose(d->slots, (double)op->call.count * (double)op->esz,
                                (double)op->chunk_elems * (double)op->esz, m.alpha_s, m.beta);
    bny_arrival_tree_parents(d->slots, d->depth, d->parent);
    for (int i = 0; i < d->slots; i++) {
        d->order[i] = BNY_NO_PARENT_YET;
        d->top = d->parent[i] == BNY_SHAPE_TOP ? i : d->top;
    }
    d->adapts = op->plan.late_s > 0;
    d->asks = a->asks;
    d->late_ns = (uint64_t)(op->plan.late_s * 1e9);
    d->opened_ns = d->adapts ? bny_now_ns() : 0;
    if (op->plan.together_s > 0)
        d->until_ns = bny_now_ns() + (uint64_t)(op->plan.together_s * 1e9);
    d->priority_ns =
        bny_now_ns() + (uint64_t)(1e9 * fmin(PRIORITY_S, op->plan.predicted_s / PRIORITY_PART +
                                                             PRIORITY_ALPHAS * m.alpha_s));
    add_arrival(d, d->me); /* this rank is the first, also where it serves */
    for (int r = 0; r < BNY_COORDINATORS && d->n >= BNY_COORDINATORS; r++)
        send_to_coordinator(d, r, BNY_COORD_OPEN, 0);
    return begin_coordinator(d, &a->coordinator, 1);
}

int bny_coordinator_advance(struct bny_op *op)
{
    struct bny_coordinator *d = coordinator_of(op);
    struct bny_kept kept;
    int moved = 0;

    if (!d->forwards_only)
        elect(d);
    assign_slots(d);
    end_line(d);
    if (d->out.n)
        moved |= bny_coord_outbox_flush(op, &d->out);
    if (d->member && !bny_coordinator_is_needed(d)) /* it may have waited for the answers */
        bny_op_mark_runnable(d->member);
    kept =
        (struct bny_kept){ .raw = d->kept, /* this rank's own slot may have begun it just now */
                           .coded = d->kept,
                           .raw_stride = d->stride,
                           .coded_stride = d->stride,
                           .len = d->kept_len };
    /* Only after this rank's own call has ended: ranks in time have the port to themselves. */
    for (int i = 0; (d->forwards_only || !d->member) && i < d->nlate; i++)
        moved |= bny_feed_advance(op, &d->late[i], (uint32_t)i, d->seq, &kept, d->have, d->set);
    if (!is_over(d) || bny_comm_has_failed(op->comm))
        return moved;
    bny_op_complete(op, 0); /* which frees it */
    return 0;
}

void bny_coordinator_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_coord_msg w;
    int is_coord = msg->hdr.kind == BNY_MSG_ARRIVE && bny_coord_msg_read(msg, &w);

    bny_msg_release(&op->comm->world->held, msg);
    if (is_coord)
        bny_coordinator_receive(coordinator_of(op), from, &w);
    else
        bny_arrival_wrong(op, from, "it sent a coordinator an unknown message");
}

void bny_coordinator_sent(struct bny_op *op, uint32_t cookie)
{
    coordinator_of(op)->late[cookie & 0x7fffffffu].borrowed--;
    bny_op_mark_runnable(op);
}

void bny_coordinator_end(struct bny_op *op, int result)
{
    struct bny_coordinator *d = coordinator_of(op);

    if (result)
        bny_cookies_drop(op);
    if (d->member && d->forwards_only)
        bny_arrival_of(d->member)->feeder = NULL;
    else if (d->member)
        bny_arrival_of(d->member)->coordinator = NULL;
    d->member = NULL;
}
