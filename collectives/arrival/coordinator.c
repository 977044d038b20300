/* SPDX-License-Identifier: BSD-3-Clause */
/* The coordinator of an arrival reduction: which coordinator serves, who gets which slot, and
 * the result for those who are late. arrival.h tells the whole. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/arrival/arrival.h"
#include "collectives/plan/arrival_tree.h"
#include "collectives/local/local.h"
#include "collectives/plan/cost.h"

/* Calls whose result a coordinator keeps for late ranks; the next ones wait for all. */
#define KEPT_MAX 8
/* The sums of a coordinator's own rank wait for slots that are still to be given or told, as
 * their words would stand behind megabytes of sums in the port: for so much of the sum's time,
 * and as long as connections take to be made, but never longer than the first. */
#define WORDS_S      2e-3
#define WORDS_PART   8
#define WORDS_ALPHAS 8

struct bny_coordinator {
    struct bny_op op;      /* its own, whose of_way[BNY_WAY_ARRIVAL] is the coordinator */
    struct bny_op *member; /* the call; NULL: it has ended */
    uint32_t seq;          /* its number */
    int me, n;
    /* Which coordinator serves */
    int8_t serves;   /* 1, 0: the other one, -1: not known yet */
    int8_t voice[3]; /* of ranks 0, 1 and 2: for 0 or 1; -1: not known */
    uint8_t heard[3];
    struct bny_outbox out;
    /* The ranks that have come */
    uint8_t *here; /* [n] */
    int *queue;    /* [n] in their order; the first ntaken have an answer */
    int nqueue, ntaken;
    int *order;  /* [slots] by slot */
    int *parent; /* [slots] */
    int slots, nfilled, depth;
    int next, top;     /* the next slot to be given; the last of all sums */
    uint64_t until_ns; /* 0: slots are given at once */
    uint64_t words_ns; /* until then the member's own sums wait for words; 0: no longer */
    /* Of a sum of schedule auto */
    uint8_t adapts, asks; /* the call does not wait for the answer, which comes when all have */
    uint8_t has_told;     /* somebody has an answer: all are told the same */
    uint32_t was_late;    /* BNY_SAID_WAS_LATE or 0, once one has */
    uint64_t opened_ns, late_ns;
    /* The ranks that are late */
    struct bny_feed *late; /* [n - slots] those that this rank serves */
    int nlate;
    int last;     /* the last in a line that may get longer; -1: there is none */
    uint8_t only; /* it hands out nothing, but serves one who is late */
    uint32_t nkept;
    char *kept; /* the result; NULL: not needed, or none of it is here yet */
    uint32_t
        *kept_len; /* [nchunks] of encoded chunks, BNY_ARRIVAL_RAW; NULL: there is no codec */
    size_t stride; /* of chunks in `kept` */
    uint8_t *have; /* [nchunks] */
    uint64_t *set; /* of it; NULL: not here yet */
};

static struct bny_coordinator *coordinator_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_ARRIVAL];
}

static int keeps(const struct bny_coordinator *d)
{
    return d->slots < d->n && d->op.call.collective == BNY_ALLREDUCE;
}

/* ---- which coordinator serves ---- */

static void coordinator_tell(struct bny_coordinator *d, int r, const struct bny_arrival_word *w)
{
    bny_outbox_add(&d->op, &d->out, r, d->seq, w);
}

void bny_coordinator_own(struct bny_op *op, const struct bny_arrival_word *w)
{
    struct bny_coordinator *d = coordinator_of(op);

    if (d->member)
        bny_arrival_word(d->member, d->me, w);
}

static void tell_coordinator(struct bny_coordinator *d, int r, uint32_t said, int rank)
{
    struct bny_arrival_word w = { .said = said, .rank = rank };

    if (r != d->me)
        bny_outbox_add(&d->op, &d->out, r, d->seq + 1, &w);
}

/* Rank 0 is for itself; the others for whom they hear of first. */
static void give_voice(struct bny_coordinator *d)
{
    int for_whom = d->me == 0 ? 0 : d->heard[0] ? 0 : d->heard[3 - d->me] ? 1 : -1;

    if (d->voice[d->me] >= 0 || for_whom < 0)
        return;
    d->voice[d->me] = (int8_t)for_whom;
    tell_coordinator(d, 0, BNY_SAID_VOICE, for_whom);
    tell_coordinator(d, 1, BNY_SAID_VOICE, for_whom);
}

static void elect(struct bny_coordinator *d)
{
    int voices[2] = { 0, 0 };

    if (d->n < BNY_COORDINATORS)
        voices[0] = 2;
    else
        give_voice(d);
    for (int r = 0; r < BNY_COORDINATORS && d->n >= BNY_COORDINATORS; r++)
        if (d->voice[r] >= 0)
            voices[d->voice[r]]++;
    if (d->serves < 0 && (voices[0] >= 2 || voices[1] >= 2))
        d->serves = d->me < 2 && voices[d->me] >= 2;
    if (d->serves < 0 && d->me == 2 && d->voice[2] >= 0)
        d->serves = 0; /* it has spoken, and that was all */
}

/* ---- slots ---- */

/* The lateness that is known when the first answer goes: of this sum if all have come, else of
 * the one before. */
static uint32_t lateness_word(struct bny_coordinator *d)
{
    if (d->adapts && !d->has_told && d->op.comm->lateness.was_late)
        d->was_late = BNY_SAID_WAS_LATE;
    d->has_told = 1;
    return d->was_late;
}

/* The next free slot; the top of a reduce is the root's, whenever it comes: the sum ends there.
 */
static int free_slot(struct bny_coordinator *d, int r)
{
    int is_reduce = d->op.call.collective == BNY_REDUCE;

    if (is_reduce && r == d->op.call.root)
        return d->top;
    d->next += is_reduce && d->next == d->top;
    return d->next < d->slots ? d->next++ : -1;
}

static void give_slot(struct bny_coordinator *d, int r, int s)
{
    int up = d->parent[s];
    struct bny_arrival_word w = { .said = BNY_SAID_SLOT | lateness_word(d),
                                  .slot = s,
                                  .slots = d->slots,
                                  .depth = d->depth,
                                  .rank = up == BNY_SHAPE_TOP ? BNY_NO_PARENT : d->order[up] };

    d->nfilled++;
    d->order[s] = r;
    if (bny_arrival_is_last(&d->op.call, d->n, s, d->slots, d->depth))
        d->last = r;
    coordinator_tell(d, r, &w);
    w = (struct bny_arrival_word){ .said = BNY_SAID_PARENT, .rank = r };
    for (int c = 0; c < d->slots; c++)
        if (d->parent[c] == s && d->order[c] >= 0)
            coordinator_tell(d, d->order[c], &w);
}

/* All came together: what is built for that is faster. */
static void run_static(struct bny_coordinator *d)
{
    struct bny_arrival_word w = { .said = BNY_SAID_TOGETHER | lateness_word(d) };

    for (int r = 0; r < d->n; r++)
        coordinator_tell(d, r, &w);
    d->ntaken = d->nqueue;
    d->nfilled = d->slots;
}

/* Is it earlier than that? Then `op` is to look again. */
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

int bny_coordinator_goes_first(struct bny_coordinator *d)
{
    return bny_coordinator_is_needed(d) && waits_until(d->member, &d->words_ns);
}

/* It joins the line that there is, or begins one at this rank. */
static void is_late(struct bny_coordinator *d, int r)
{
    struct bny_arrival_word w = { .said = BNY_SAID_FEED, .rank = r };

    if (d->last >= 0)
        coordinator_tell(d, d->last, &w);
    else if (keeps(d))
        d->late[d->nlate++] = (struct bny_feed){ .to = r };
    w.said = BNY_SAID_LATE;
    w.rank = d->last >= 0 ? d->last : d->me;
    coordinator_tell(d, r, &w);
    if (keeps(d))
        d->last = r;
}

static void hand_out(struct bny_coordinator *d)
{
    if (d->serves != 1 || d->ntaken == d->nqueue)
        return;
    /* For a moment slots wait, as all may come together. */
    if ((d->until_ns || d->asks) && d->nqueue == d->n)
        run_static(d);
    else if (d->asks || waits_until(&d->op, &d->until_ns))
        return;
    while (d->ntaken < d->nqueue) {
        int r = d->queue[d->ntaken++], s = free_slot(d, r);

        if (s >= 0) {
            give_slot(d, r, s);
            continue;
        }
        is_late(d, r);
    }
}

static void comes(struct bny_coordinator *d, int r)
{
    d->here[r] = 1;
    d->queue[d->nqueue++] = r;
    if (d->adapts && d->nqueue == d->n)
        d->op.comm->lateness.was_late = bny_now_ns() - d->opened_ns >= d->late_ns;
}

void bny_coordinator_word(struct bny_coordinator *d, int from, const struct bny_arrival_word *w)
{
    int is_coordinator = d->n >= BNY_COORDINATORS && from < BNY_COORDINATORS && from != d->me;

    if (w->said == BNY_SAID_HERE && !d->here[from] && d->me < 2) {
        comes(d, from);
    } else if (w->said == BNY_SAID_COORDINATOR && is_coordinator) {
        d->heard[from] = 1;
    } else if (w->said == BNY_SAID_VOICE && is_coordinator && d->voice[from] < 0 && d->me < 2 &&
               (w->rank == 0 || (w->rank == 1 && from != 0))) {
        d->voice[from] = (int8_t)w->rank;
        d->heard[from] = 1; /* messages may overtake each other */
    } else {
        bny_arrival_wrong(&d->op, from, "a word to a coordinator that makes no sense now");
        return;
    }
    elect(d);
    hand_out(d);
    bny_outbox_flush(&d->op, &d->out); /* before this rank's own sums */
    bny_op_mark_runnable(&d->op);
}

int bny_coordinator_lacks(const struct bny_coordinator *d, int r)
{
    return d->serves == 1 && !d->here[r] && d->nfilled < d->slots;
}

int bny_coordinator_answers(const struct bny_coordinator *d, int r)
{
    return d->serves == 1 && d->here[r];
}

int bny_coordinator_is_needed(const struct bny_coordinator *d)
{
    for (size_t i = 0; d->serves == 1 && i < d->out.n; i++)
        if (d->out.at[i].seq ==
            d->seq) /* an answer; words to a coordinator may find nobody for long */
            return 1;
    return d->serves == 1 && d->nfilled < d->slots;
}

/* ---- those who are late ---- */

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

void bny_coordinator_alone(struct bny_coordinator *d)
{
    d->member = NULL;
    bny_op_mark_runnable(&d->op);
}

static int is_fed(const struct bny_coordinator *d, const struct bny_feed *f)
{
    return f->next == bny_arrival_chunks(&d->op) && !f->borrowed && f->set_sent;
}

/* A line ends when its head has no more use for its port: a rank that comes then begins
 * another. */
static void end_line(struct bny_coordinator *d)
{
    static const struct bny_arrival_word ends = { .said = BNY_SAID_ENDS };
    int is_whole = d->nkept == bny_arrival_chunks(&d->op) && d->set;

    if (d->last < 0 || !(d->nlate ? is_fed(d, &d->late[d->nlate - 1]) : is_whole))
        return;
    coordinator_tell(d, d->last, &ends);
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

    d->here = calloc(n, 1);
    d->queue = malloc(n * sizeof *d->queue);
    d->order = malloc(slots * sizeof *d->order);
    d->parent = malloc(slots * sizeof *d->parent);
    d->late = calloc(n, sizeof *d->late);
    d->have = calloc((size_t)bny_arrival_chunks(&d->op) + 1, 1);
    d->op.asked = calloc(n, sizeof *d->op.asked);
    d->stride = d->op.chunk_elems * d->op.esz;
    if (d->member->plan.codec && keeps(d)) { /* a chunk lies there as it travels */
        size_t coded = bny_arrival_of(d->member)->coded.stride;

        d->stride = d->stride > coded ? d->stride : coded;
        d->kept_len = calloc((size_t)bny_arrival_chunks(&d->op) + 1, sizeof *d->kept_len);
        if (!d->kept_len)
            return bny_fail(BANYAN_ENOMEM, "no memory for an operation's coordinator");
    }
    return d->here && d->queue && d->order && d->parent && d->late && d->have && d->op.asked
               ? 0
               : bny_fail(BANYAN_ENOMEM, "no memory for an operation's coordinator");
}

void bny_coordinator_free(struct bny_op *op)
{
    struct bny_coordinator *d = coordinator_of(op);

    free(d->out.at);
    free(d->here);
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

/* It is nobody's call: no deadline, no memory of a user's. */
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

/* Of so many slots; NULL: no memory. */
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
    d->serves = d->voice[0] = d->voice[1] = d->voice[2] = -1;
    d->slots = slots;
    op->comm->had_coordinator = 1;
    if (memory_of(d) == 0)
        return d;
    bny_op_finish(&d->op);
    free(d);
    return NULL;
}

/* Begins, under a number behind the call's; it may be over and gone at once. 0 or an error. */
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
    d->only = 1;
    d->serves = 1;
    d->nqueue = d->ntaken = d->n; /* nobody is to come */
    d->nfilled = d->slots;
    d->late[d->nlate++] = (struct bny_feed){ .to = to };
    rc = begin_coordinator(d, &a->feeder, 2); /* the child's number, and there is none */
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
    d->words_ns =
        bny_now_ns() + (uint64_t)(1e9 * fmin(WORDS_S, op->plan.predicted_s / WORDS_PART +
                                                          WORDS_ALPHAS * m.alpha_s));
    comes(d, d->me); /* first of all: the serving one counts */
    for (int r = 0; r < BNY_COORDINATORS && d->n >= BNY_COORDINATORS; r++)
        tell_coordinator(d, r, BNY_SAID_COORDINATOR, 0);
    return begin_coordinator(d, &a->coordinator, 1);
}

int bny_coordinator_advance(struct bny_op *op)
{
    struct bny_coordinator *d = coordinator_of(op);
    struct bny_kept kept;
    int moved = 0;

    if (!d->only)
        elect(d);
    hand_out(d);
    end_line(d);
    if (d->out.n)
        moved |= bny_outbox_flush(op, &d->out);
    if (d->member && !bny_coordinator_is_needed(d)) /* it may have waited for that */
        bny_op_mark_runnable(d->member);
    kept = (struct bny_kept){ .raw = d->kept, /* there since our own slot was told, perhaps */
                              .coded = d->kept,
                              .raw_stride = d->stride,
                              .coded_stride = d->stride,
                              .len = d->kept_len };
    /* Not before our own call has ended: those who came in time have the port to themselves. */
    for (int i = 0; (d->only || !d->member) && i < d->nlate; i++)
        moved |= bny_feed_advance(op, &d->late[i], (uint32_t)i, d->seq, &kept, d->have, d->set);
    if (!is_over(d) || bny_comm_has_failed(op->comm))
        return moved;
    bny_op_complete(op, 0); /* and it is gone */
    return 0;
}

void bny_coordinator_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_arrival_word w;
    int is_word = msg->hdr.kind == BNY_MSG_ARRIVE && bny_arrival_read_word(msg, &w);

    bny_msg_release(&op->comm->world->held, msg);
    if (is_word)
        bny_coordinator_word(coordinator_of(op), from, &w);
    else
        bny_arrival_wrong(op, from, "it sent a coordinator what is no word");
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
    if (d->member && d->only)
        bny_arrival_of(d->member)->feeder = NULL;
    else if (d->member)
        bny_arrival_of(d->member)->coordinator = NULL;
    d->member = NULL;
}
