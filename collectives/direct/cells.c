/* SPDX-License-Identifier: BSD-3-Clause */
/* Short operations between ranks that share memory. Every rank shows in its cell (area/cells.h)
 * what the operation is, and what others need of it; a rank that needs something reads it
 * there, and adds in the order of the ranks. One line changes hands between two ranks where
 * that is enough. No message is sent but the first one of a communicator, by which areas become
 * known, and nobody waits but for what he needs: a root that broadcasts goes on.
 *
 * The waiting rank compares the operations. Ranks that differ in one where neither
 * waits for the other, two roots of broadcasts for example, are told by the next operation in
 * which one does: `history`. */
#include "base/cpu.h"
#include "collectives/area/area.h"
#include "collectives/direct/direct.h"
#include "collectives/plan/cost.h"

/* Bytes of a rank's next operation that are read ahead; the processor goes on by itself. */
#define FETCHED 512u

static struct bny_areas *area_of(const struct bny_op *op)
{
    return op->comm->areas[BNY_AREA_ALL];
}

/* A part for one rank, where ranks have several. Longer ones begin in a line of their own. */
static size_t part_bytes(size_t bytes)
{
    size_t unit = bytes < 64 ? 8 : 64;

    return (bytes + unit - 1) & ~(unit - 1);
}

/* The most bytes that a rank of n shows in a collective whose count is `bytes`. */
static size_t shown_bytes(int collective, int n, size_t bytes)
{
    if (collective == BNY_BARRIER)
        return 0;
    return bny_direct_has_parts(collective) ? (size_t)n * part_bytes(bytes) : bytes;
}

/* Before it is shown. */
static void arm(struct bny_op *op, struct bny_direct *s, uint32_t seq)
{
    struct bny_areas *w = area_of(op);

    s->key = bny_cell_key(seq, &op->sig, w->history);
    s->part = part_bytes(s->bytes);
    s->all = shown_bytes(op->call.collective, op->comm->n, s->bytes);
    s->is_given = s->has_failed = 0;
    if (bny_ring_is_empty(&w->shown) && w->shown_next != seq) /* others were no short ones */
        atomic_store_explicit(&w->peers[op->comm->rank].cells->done, seq, memory_order_release);
}

static int start(struct bny_op *op)
{
    struct bny_areas *w = bny_area_get(op->comm, BNY_AREA_ALL);
    struct bny_direct *s = bny_direct_of(op);
    uint32_t seq = bny_op_seq(op);

    if (!w)
        return -BANYAN_ENOMEM;
    if (!s->is_given) /* else it was shown before its start */
        arm(op, s, seq);
    s->lacks = NULL;
    w->history = bny_cell_history(&s->key);
    w->shown_next = seq + 1;
    bny_link_in(&w->shown, &s->link);
    return 0;
}

/* ---- showing ---- */

/* Are all ranks done with what it was used for last? */
static int is_free(struct bny_areas *w, const struct bny_area_use *u, uint32_t seq, int n)
{
    if (!u->used)
        return 1;
    for (int r = 0; r < n; r++) {
        struct bny_area_peer *p = &w->peers[r];

        if ((int32_t)(p->done - u->seq) > 0)
            continue;
        p->done = atomic_load_explicit(&p->cells->done, memory_order_acquire);
        /* The second: so long ago that numbers have gone half round. */
        if ((int32_t)(p->done - u->seq) <= 0 && (int32_t)(p->done + BNY_CELL_SLOTS - seq) <= 0)
            return 0;
    }
    return 1;
}

/* Does this rank give anything to anybody? */
static int gives(const struct bny_op *op)
{
    switch (op->call.collective) {
    case BNY_BARRIER: return 0;
    case BNY_BROADCAST:
    case BNY_SCATTER: return op->comm->rank == op->call.root;
    case BNY_GATHER: return op->comm->rank != op->call.root;
    default: return 1;
    }
}

/* Our own part of an exchange stays where it is; that of a sum is added in its turn. */
static void fill(const struct bny_op *op, const struct bny_direct *s, char *to)
{
    int me = op->comm->rank, adds = bny_call_row(&op->call)->reduces;

    if (!gives(op))
        return;
    if (!bny_direct_has_parts(op->call.collective)) {
        bny_local_place(to, bny_direct_payload(op, 0), s->bytes);
        return;
    }
    for (int r = 0; r < op->comm->n; r++)
        if (r != me || adds)
            bny_local_place(to + (size_t)r * s->part, bny_direct_payload(op, r), s->bytes);
}

/* Ranks that sleep wake, and statistics. */
static void tell(struct bny_op *op, const struct bny_direct *s)
{
    struct bny_tp *tp = area_of(op)->tp;
    uint64_t handed = 0, messages = 0;

    for (int r = 0; r < op->comm->n; r++)
        if (bny_call_sends(&op->call, op->comm->rank, r)) {
            bny_ep_wake(op->comm->peers[r].ep);
            handed += s->bytes;
            messages++;
        }
    op->wire_bytes += handed;
    bny_counter_add(&tp->messages, messages);
    bny_counter_add(&tp->wire_bytes, handed);
    bny_counter_add(&tp->copied_bytes, s->bytes);
}

/* Do all know each other's areas? */
static int have_met(struct bny_op *op, struct bny_direct *s)
{
    struct bny_areas *w = area_of(op);
    int rank = 0, rc = bny_area_meet(w, op, &rank);

    if (rc < 0) {
        s->has_failed = 1;
        bny_op_send_failed(op, rank, rc, "");
    }
    return rc == 1;
}

/* Have all that began before it been shown? Else one of them may be due in the same cell, and
 * could never be shown once this one lies there: nobody is done with this one before it. */
static int is_in_turn(struct bny_areas *w, const struct bny_direct *s)
{
    const struct bny_link *before = s->link.prev;

    return !before || before == &w->shown ||
           BNY_LINK_OF(before, struct bny_direct, link)->is_given;
}

/* Shows it: 1, or 0: not yet. */
static int give(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);
    struct bny_areas *w = area_of(op);
    struct bny_cells *own = w->peers[op->comm->rank].cells;
    uint32_t seq = bny_op_seq(op);
    struct bny_area_use *cell = &w->cell_use[seq % BNY_CELLS],
                        *slot = &w->slot_use[seq % BNY_CELL_SLOTS];

    if (s->has_failed || ((w->untold | w->unmapped) && !have_met(op, s)) || !is_in_turn(w, s) ||
        !is_free(w, cell, seq, op->comm->n))
        return 0;
    if (s->all > BNY_CELL_INLINE) {
        if (!is_free(w, slot, seq, op->comm->n))
            return 0;
        *slot = (struct bny_area_use){ seq, 1 };
    }
    *cell = (struct bny_area_use){ seq, 1 };
    fill(op, s, bny_cell_payload(own, seq, s->all));
    bny_cell_show(bny_cell_of(own, seq), &s->key);
    s->is_given = 1;
    tell(op, s);
    return 1;
}

/* ---- reading ---- */

static const char *from(const struct bny_op *op, int r)
{
    const struct bny_direct *s = bny_direct_of(op);
    const char *shown = bny_cell_payload(area_of(op)->peers[r].cells, bny_op_seq(op), s->all);

    return bny_direct_has_parts(op->call.collective) ? shown + (size_t)op->comm->rank * s->part
                                                     : shown;
}

static void combine(struct bny_op *op)
{
    bny_direct_combine(op, from);
}

/* ---- ranks that differ ---- */

static struct bny_msg as_message(const struct bny_op *op, const struct bny_cell_key *k)
{
    return (struct bny_msg){ .hdr = { .comm = op->comm->id,
                                      .seq = (uint32_t)(k->word >> 32),
                                      .kind = BNY_MSG_DATA,
                                      .sig = bny_cell_sig(k) } };
}

static const uint64_t history_bits = (uint64_t)0xffff << 16;

/* They called different ones before this: which, if that is still there? */
static void report_past(struct bny_op *op, int r)
{
    struct banyan_comm *c = op->comm;
    struct bny_area_peer *peers = c->areas[BNY_AREA_ALL]->peers;

    for (uint32_t i = 0; i < BNY_CELLS; i++) {
        struct bny_cell_key theirs = bny_cell_read(&peers[r].cells->cell[i]),
                            ours = bny_cell_read(&peers[c->rank].cells->cell[i]);

        if (theirs.word >> 32 == ours.word >> 32 &&
            (theirs.word != ours.word || ((theirs.what ^ ours.what) & ~history_bits))) {
            struct bny_msg msg = as_message(op, &theirs);
            bny_mismatch_past(c, r, &msg);
            return;
        }
    }
    bny_area_differed(op, r);
}

/* Rank r runs something else under this number, once. */
static void differs(struct bny_op *op, struct bny_direct *s, int r,
                    const struct bny_cell_key *k)
{
    s->has_failed = 1;
    if (k->word == s->key.word && !((k->what ^ s->key.what) & ~history_bits)) {
        report_past(op, r);
    } else {
        struct bny_msg msg = as_message(op, k);
        bny_mismatch_report(op, r, &msg);
    }
}

/* ---- going on ---- */

static const struct bny_cell *cell_of(const struct bny_op *op, int r)
{
    return bny_cell_of(area_of(op)->peers[r].cells, bny_op_seq(op));
}

static int look(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);
    int before = s->missing;

    if (s->lacks && !bny_cell_has(s->lacks, bny_op_seq(op))) /* most often */
        return 0;
    for (; s->next < op->comm->n && !s->has_failed; s->next++) {
        struct bny_cell_key k;

        if (!bny_call_sends(&op->call, s->next, op->comm->rank))
            continue;
        s->lacks = cell_of(op, s->next);
        if (!bny_cell_has(s->lacks, bny_op_seq(op)))
            break;
        k = bny_cell_read(s->lacks);
        if (k.word != s->key.word || k.what != s->key.what)
            differs(op, s, s->next, &k);
        else
            s->missing--;
    }
    return s->missing < before;
}

/* For a rank that is ahead of this one, and may have shown the next operation, too, probably
 * one like this: its lines, of longer data the first. Any lines are right. */
static void fetch_next(const struct bny_direct *s, struct bny_cells *theirs, uint32_t seq)
{
    const char *data = bny_cell_payload(theirs, seq, s->all);

    __builtin_prefetch(bny_cell_of(theirs, seq));
    for (size_t i = 0; s->all > BNY_CELL_INLINE && i < s->all && i < FETCHED; i += 64)
        __builtin_prefetch(data + i);
}

/* Shows it under a number that is not taken yet. Whatever is not as it should be is left to
 * those who begin as usual: they find the cell filled, and the key the same. */
static int try_now(struct bny_op *op, uint32_t seq, int tries)
{
    struct bny_areas *w = area_of(op);
    struct bny_direct *s = bny_direct_of(op);
    int n = op->comm->n;

    if (!w || (w->untold | w->unmapped))
        return 0;
    op->match.seq = seq;
    arm(op, s, seq);
    if (!give(op))
        return 0;
    s->is_early = 1;
    for (int r = 0; r < n; r++) {
        const struct bny_cell *c = cell_of(op, r);
        int before = tries;

        if (!bny_call_sends(&op->call, r, op->comm->rank))
            continue;
        for (; !bny_cell_has(c, seq); bny_pause())
            if (tries-- <= 0)
                return 0;
        if (tries == before)
            fetch_next(s, w->peers[r].cells, seq + 1);
        if (c->what != s->key.what ||
            atomic_load_explicit(&c->word, memory_order_relaxed) != s->key.word)
            return 0;
    }
    combine(op);
    s->is_early = 0;
    w->history = bny_cell_history(&s->key);
    w->shown_next = seq + 1;
    atomic_store_explicit(&w->peers[op->comm->rank].cells->done, seq + 1, memory_order_release);
    return 1;
}

/* Others may use their cells of it again. */
static int end(struct bny_op *op, int result)
{
    struct bny_areas *w = area_of(op);
    struct bny_direct *s = bny_direct_of(op);
    uint32_t done = w->shown_next;

    bny_link_out(&s->link);
    if (!bny_ring_is_empty(&w->shown))
        done = bny_op_seq(BNY_LINK_OF(w->shown.next, struct bny_direct, link)->op);
    atomic_store_explicit(&w->peers[op->comm->rank].cells->done, done, memory_order_release);
    return 0;
}

static int lacks(const struct bny_op *op, int r)
{
    return bny_call_sends(&op->call, r, op->comm->rank) &&
           !bny_cell_has(cell_of(op, r), bny_op_seq(op));
}

static int waits_on(const struct bny_op *op, int r)
{
    const struct bny_areas *w = area_of(op);
    const struct bny_direct *s = bny_direct_of(op);

    if (r == op->comm->rank)
        return 0;
    if (w->untold || w->unmapped)
        return !w->peers[r].area || !w->peers[r].said;
    if (!s->is_given) {
        uint32_t done = atomic_load_explicit(&w->peers[r].cells->done, memory_order_relaxed),
                 before = s->all > BNY_CELL_INLINE ? BNY_CELL_SLOTS : BNY_CELLS;

        if ((int32_t)(done + before - bny_op_seq(op)) <= 0)
            return 1;
    }
    return lacks(op, r);
}

static unsigned pending(const struct bny_op *op, int r)
{
    unsigned flags = waits_on(op, r) ? BNY_PENDING_WAITS : 0;

    /* Cells need not be mapped before ours is shown. */
    return flags | (bny_direct_of(op)->is_given && lacks(op, r) ? BNY_PENDING_MESSAGE : 0);
}

/* ---- choice ---- */

/* Cells go in the order in which operations start; that of children may differ. */
static const char *not_plain(const struct bny_call *call)
{
    const char *why = bny_call_beyond_plain(call);

    if (why)
        return why;
    if (call->has_set)
        return "it takes no participation set";
    return call->is_child ? "it serves no child of another operation" : NULL;
}

/* A rank that has another part for each of the others shows them side by side. */
static const char *cannot(const struct bny_scope *s, const struct bny_call *call)
{
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype);
    const char *why = not_plain(call);

    if (!bny_call_row(call)->direct)
        return "it does not serve this collective";
    if (!s->shares_memory)
        return "ranks of this communicator share no memory";
    if (s->n > BNY_DIRECT_RANKS_MAX)
        return "it is for up to 64 ranks";
    if (why)
        return why;
    return call->count > BNY_CELL_BYTES ||
                   shown_bytes(call->collective, s->n, bytes) > BNY_CELL_BYTES
               ? "it is for what fits into a cell: 16 KiB"
               : NULL;
}

/* Less than a message's delay, as none is made; each rank reads what n - 1 others show, or, of
 * a broadcast, what one does. Two ranks that both add, both read all of it, where others share
 * that. */
static double seconds(const struct bny_scope *s, const struct bny_call *call)
{
    double bytes = (double)call->count * (double)banyan_dtype_bytes(call->dtype), per_byte;
    struct bny_cost_model m = bny_cost_model_of(s);

    per_byte = s->n == 2 && (call->collective == BNY_ALLREDUCE ||
                             call->collective == BNY_REDUCE_SCATTER)
                   ? 2.5 * m.beta
                   : 0.75 * m.beta;
    if (call->collective == BNY_BROADCAST && s->n > 2)
        return m.alpha_s / 5 + (s->n - 1) * 0.02e-6 + bytes * m.beta;
    return m.alpha_s / 5 + (s->n - 1) * (0.05e-6 + bytes * per_byte);
}

const struct bny_carrier bny_carrier_cells = {
    .traits = BNY_WAY_POLLED | BNY_WAY_LOOKS,
    .cannot = cannot,
    .seconds = seconds,
    .give = give,
    .start = start,
    .try_now = try_now,
    .look = look,
    .combine = combine,
    .message = bny_area_message,
    .end = end,
    .pending = pending,
};
