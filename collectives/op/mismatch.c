/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that call different operations. Every message carries the signature of its sender's
 * operation, which is compared with ours of the same number: in flight (match/) or among the
 * latest ones that are finished here.
 *
 * Ranks may differ such that nobody sends anything: each waits for data of the other, or has
 * data and waits for the other to be ready. So an operation that has waited for a while asks
 * the peers it waits for by a probe, a message that is only a signature. A peer that has not
 * started that operation yet keeps it until it does. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "collectives/op/op.h"

#define PROBE_FIRST_NS 50000000u   /* of waiting; far longer than any healthy small operation */
#define PROBE_SEND_NS  1000000u    /* a send's probe also shows it to receives from any rank */
#define PROBE_AGAIN_NS 1000000000u /* the peer may have had no such communicator */
#define PROBE_RETRY_NS 20000000u   /* while connecting, or while the peer's ring is full */

/* The sign of a signature's participation set (wire.h); 0: all ranks take part. A count that
 * fills 64 bits is no collective's. */
static unsigned set_of(const struct bny_sig *sig)
{
    int may = sig->collective == BNY_ALLREDUCE || sig->collective == BNY_REDUCE;

    return may && sig->count >> 63 ? (unsigned)(sig->count >> 48) : 0;
}

/* Signatures are of a peer: they may name no collective at all. */
static int has_root(const struct bny_sig *sig)
{
    const struct bny_collective_row *row = bny_collective_of_wire(sig->collective);

    return row && row->rooted;
}

static int has_redop(const struct bny_sig *sig)
{
    const struct bny_collective_row *row = bny_collective_of_wire(sig->collective);

    return row && row->reduces;
}

/* With a root, only tags of 16 bits can be told from it. */
static uint32_t tag_of(const struct bny_sig *sig)
{
    if (sig->collective == BNY_SENDRECV)
        return sig->root_tag;
    return has_root(sig) ? sig->root_tag >> 16 : sig->root_tag << 16 | sig->root_tag >> 16;
}

#define TEXT_MAX 160

static void __attribute__((format(printf, 2, 3)))
append(char buf[TEXT_MAX], const char *fmt, ...)
{
    size_t at = strlen(buf);
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(buf + at, TEXT_MAX - at, fmt, ap);
    va_end(ap);
}

/* "count 7, f32", or "counts by rank of 7 in all, hash 8a3f, f32" */
static void describe_count(const struct bny_sig *sig, char buf[TEXT_MAX])
{
    int has_sign = (int)(sig->count >> 63);
    unsigned long long count = has_sign ? sig->count & BNY_SIG_COUNT_BITS : sig->count;

    if (has_sign && !set_of(sig))
        append(buf, "counts by rank of %llu in all, hash %04llx, ", count,
               (unsigned long long)(sig->count >> 48));
    else
        append(buf, "count %llu, ", count);
    append(buf, "%s", banyan_dtype_name((enum banyan_dtype)sig->dtype));
}

/* "allreduce(count 7, f32, sum)". A tag is named when it is set, here or at the other rank. */
static void mismatch_describe(const struct bny_sig *sig, int with_tag, char buf[TEXT_MAX])
{
    int barrier = sig->collective == BNY_BARRIER;

    buf[0] = '\0';
    append(buf, "%s(", bny_collective_name((enum bny_collective)sig->collective));
    if (!barrier)
        describe_count(sig, buf);
    if (has_redop(sig))
        append(buf, ", %s", bny_redop_name(sig->op));
    if (has_root(sig))
        append(buf, ", root %u", sig->root_tag & 0xffff);
    if (with_tag)
        append(buf, "%stag %u", barrier ? "" : ", ", tag_of(sig));
    append(buf, ")");
}

/* ", participants 0, 2": of n ranks. */
static void describe_set(const struct bny_sig *sig, int n, char buf[TEXT_MAX])
{
    unsigned set = set_of(sig);
    const char *comma = "";

    append(buf, " with participants ");
    if (!set)
        append(buf, "all");
    else if (n > 15)
        append(buf, "of hash %04x", set & 0x7fff);
    else if (!(set & 0x7fff))
        append(buf, "none");
    for (int r = 0; set && n <= 15 && r < n; r++)
        if (set >> r & 1) {
            append(buf, "%s%d", comma, r);
            comma = ",";
        }
}

/* "schedule star, codec int8, chunk 4096, asked for chunk 8192, deterministic 0": what probes
 * carry. Of a child, what its program asked for. */
static void describe_plan(const struct bny_op *op, char buf[TEXT_MAX])
{
    const struct bny_plan *plan;
    size_t asked;

    while (op->parent)
        op = op->parent;
    plan = &op->plan;
    asked = op->call.chunk_bytes ? op->call.chunk_bytes : op->comm->scope.chunk_bytes;
    buf[0] = '\0';
    append(buf, "schedule %s, codec %s, chunk %zu", plan->schedule,
           plan->codec ? plan->codec->spec : "none", plan->chunk_bytes);
    if (asked && asked != plan->chunk_bytes)
        append(buf, ", asked for chunk %zu", asked);
    if (has_redop(&op->sig))
        append(buf, ", deterministic %d", op->call.deterministic);
}

/* A probe's description of its sender's plan; foreign input. "" when it says nothing. */
static void read_plan(const struct bny_msg *msg, char buf[TEXT_MAX])
{
    size_t len = msg->hdr.kind == BNY_MSG_PROBE && msg->data ? msg->hdr.len : 0;

    if (len >= TEXT_MAX)
        len = TEXT_MAX - 1;
    for (size_t i = 0; i < len; i++) {
        char c = ((const char *)msg->data)[i];
        buf[i] = c >= ' ' && c <= '~' ? c : '?';
    }
    buf[len] = '\0';
}

/* ours_plan, theirs_plan: "" when not known. The sentence names the lower rank first, so that
 * both sides say the same. */
static void report(struct banyan_comm *c, int from, const struct bny_sig *theirs,
                   const struct bny_sig *ours, uint32_t seq, const char *theirs_plan,
                   const char *ours_plan)
{
    char a[TEXT_MAX], b[TEXT_MAX], hint[2 * TEXT_MAX + 64] = "";
    int low = from < c->rank ? from : c->rank, high = from < c->rank ? c->rank : from;
    int with_tag = tag_of(theirs) || tag_of(ours);

    mismatch_describe(from < c->rank ? theirs : ours, with_tag, a);
    mismatch_describe(from < c->rank ? ours : theirs, with_tag, b);
    if (set_of(theirs) != set_of(ours)) {
        describe_set(from < c->rank ? theirs : ours, c->n, a);
        describe_set(from < c->rank ? ours : theirs, c->n, b);
    }
    if (theirs->codec_sched != ours->codec_sched && !strcmp(a, b)) {
        if (*ours_plan && *theirs_plan)
            snprintf(hint, sizeof hint, "; rank %d with %s, rank %d with %s", low,
                     low == from ? theirs_plan : ours_plan, high,
                     high == from ? theirs_plan : ours_plan);
        else if (*ours_plan)
            snprintf(hint, sizeof hint, "; rank %d with %s, rank %d with another", c->rank,
                     ours_plan, from);
        else if (*theirs_plan)
            snprintf(hint, sizeof hint, "; rank %d with %s, rank %d with another", from,
                     theirs_plan, c->rank);
        else
            snprintf(hint, sizeof hint,
                     " with different schedule, codec, chunk or deterministic");
    }
    bny_report(c->world, c, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH, c->peers[low].world_rank,
               "operation %u: rank %d called %s, rank %d called %s%s", seq, low, a, high, b,
               hint);
}

/* Of a send and a receive that were matched: the sender's call, and the receiver's. */
static void report_pair(const struct bny_op *op, int from, const struct bny_sig *theirs)
{
    struct banyan_comm *c = op->comm;
    int sender = op->call.is_send ? c->rank : from,
        receiver = op->call.is_send ? from : c->rank;
    char sent[TEXT_MAX] = "", received[TEXT_MAX] = "";

    describe_count(op->call.is_send ? &op->sig : theirs, sent);
    describe_count(op->call.is_send ? theirs : &op->sig, received);
    bny_report(c->world, c, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH,
               c->peers[sender < receiver ? sender : receiver].world_rank,
               "tag %u: rank %d called send (%s) to rank %d, which called recv (%s): a receive "
               "takes just what is sent",
               tag_of(&op->sig), sender, sent, receiver, received);
}

static int probe(struct bny_op *op, struct bny_ep *ep)
{
    char text[TEXT_MAX];
    struct bny_hdr h;
    int rc;

    bny_op_header(op, &h, BNY_MSG_PROBE);
    describe_plan(op, text);
    h.len = h.codec_len_raw = (uint32_t)strlen(text);
    rc = ep->ops->eager(ep, &h, text);
    if (rc == 0)
        bny_op_account_sent(op, &h);
    return rc;
}

/* Where only the plans differ, only its owner knows what a plan is: we tell ours, and report
 * when theirs comes, which the same on their side makes sure of. */
void bny_mismatch_report(struct bny_op *op, int from, const struct bny_msg *msg)
{
    struct bny_sig other = msg->hdr.sig;
    struct bny_ep *ep = op->comm->peers[from].ep;
    char theirs[TEXT_MAX], ours[TEXT_MAX];

    if (op->sig.collective == BNY_SENDRECV && other.collective == BNY_SENDRECV) {
        report_pair(op, from, &other);
        return;
    }
    other.codec_sched = op->sig.codec_sched;
    read_plan(msg, theirs);
    describe_plan(op, ours);
    if (ep && !op->asked[from].told && memcmp(&other, &op->sig, sizeof other) == 0) {
        op->has_asked = 1;
        op->asked[from].told = probe(op, ep) == 0;
        if (op->asked[from].told && !*theirs)
            return;
    }
    if (*theirs || !op->asked[from].told)
        report(op->comm, from, &msg->hdr.sig, &op->sig, bny_op_seq(op), theirs, ours);
}

void bny_mismatch_past(struct banyan_comm *c, int from, const struct bny_msg *msg)
{
    const struct bny_hdr *h = &msg->hdr;
    const struct bny_sig *ours =
        h->sig.collective == BNY_SENDRECV ? NULL : bny_match_past(c->match, h->seq);
    char text[TEXT_MAX], theirs[TEXT_MAX];

    read_plan(msg, theirs);
    if (ours && memcmp(ours, &h->sig, sizeof *ours) != 0) {
        report(c, from, &h->sig, ours, h->seq, theirs, "");
        return;
    }
    if (h->kind == BNY_MSG_CTS || h->kind == BNY_MSG_PROBE || h->kind == BNY_MSG_ARRIVE)
        return; /* what it waits for is on its way */
    if (c->begin_failed && ours)
        return; /* of an operation that was over before it began: the view tells all why */
    mismatch_describe(&h->sig, tag_of(&h->sig) != 0, text);
    bny_report(c->world, c, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH, c->peers[from].world_rank,
               "rank %d sent data of %s as operation %u, which rank %d has finished: the ranks "
               "called different operations",
               from, text, h->seq, c->rank);
}

/* ---- probes ---- */

/* 1: all that should be asked have been. A peer that is gone is told of by others than us. */
static int probe_peers(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    int all = 1;

    for (int r = 0; r < c->n; r++) {
        struct bny_ep *ep = c->peers[r].ep;
        if (!ep || op->asked[r].probed || !bny_op_waits_on(op, r))
            continue;
        op->has_asked = 1;
        op->asked[r].probed = probe(op, ep) != BNY_AGAIN;
        all &= op->asked[r].probed;
    }
    return all;
}

void bny_probe_if_due(struct bny_op *op, uint64_t now)
{
    int first = op->probe_ns == 0, all;
    int is_send = op->call.collective == BNY_SENDRECV && op->call.is_send;

    if (now < op->probe_ns || !bny_op_is_active(op) || !op->match.is_open)
        return;
    all = first || probe_peers(op);
    op->probe_ns = now + (first ? is_send ? PROBE_SEND_NS : PROBE_FIRST_NS
                          : all ? PROBE_AGAIN_NS
                                : PROBE_RETRY_NS);
    for (int r = 0; all && r < op->comm->n; r++)
        op->asked[r].probed = 0;
}
