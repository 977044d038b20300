/* SPDX-License-Identifier: BSD-3-Clause */
/* Any messages from ranks of the job while one or two operations run. The operations fail or
 * complete, nothing is written outside of their output, inputs stay as they were, and leaving
 * works. Byte 0 picks the operation and how many sends run beside it, 1 its codec and size;
 * then come messages: one byte that says which fields are not what the operation waits for and
 * whether they travel as one piece, one that picks sender, operation and payload, the fields,
 * and up to 64 bytes that the payload repeats. Or a message gives credit, asks for it, or
 * begins an epoch. A send that is complete is started again. Codec 1 is none, with sums in
 * order of arrival: an allreduce, and in place of scan a reduce of the first two ranks to come.
 */
#include <stddef.h>

#include "input.h"
#include "loop_rig.h"

#include "collectives/api/job.h"
#include "collectives/match/table.h"
#include "collectives/progress/progress.h"
#include "compress/codec.h"
#include "transport/loop/loop.h"

#define NRANKS  3
#define COUNT   3000 /* elements a rank, at most */
#define CHUNK   4096
#define PAYLOAD 16384
#define SENDS   300 /* more than an epoch has tags */

static char payload[64][PAYLOAD]; /* of the messages of one input: borrowed until it is over */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    setenv("BANYAN_ENCODE_THREADS", "0", 1);
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    return 0;
}

struct rig {
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm;  /* of rank 0 */
    struct bny_tp *tp[NRANKS]; /* of the others */
    struct bny_ep *ep[NRANKS]; /* theirs to rank 0 */
    struct banyan_request *req[2];
    float *in[2], *out[2];
    struct banyan_request *sends[SENDS]; /* to rank 1 */
    float *sent;                         /* by all of them */
    unsigned nsends, next_send;
    size_t count;
};

static void rig_open(struct rig *g)
{
    memset(g, 0, sizeof *g);
    loop_rig_open(&g->fabric, &g->comm, NRANKS, 0, g->tp, g->ep);
}

static void start(struct rig *g, int i, unsigned what, unsigned how)
{
    static const char *const codecs[] = { "none",           "none",         "int8:force=1",
                                          "bf16:force=1",   "topk:force=1", "lossless:force=1",
                                          "onebit:force=1", "mxfp8:force=1" };
    static const char *const schedules[] = { "auto", "star", "ring", "double_binary_tree" };
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t n = g->count, all = n * NRANKS;
    int arrival = how % 8 == 1, rc;

    o.codec = codecs[how % 8];
    o.schedule = arrival && what % 8 % 7 == 0 ? "arrival" : schedules[what / 8 % 4];
    inputs.at_least = what % 8 == 0 ? NRANKS : 2;
    o.reduce = !strcmp(o.schedule, "arrival") ? &inputs : NULL;
    o.chunk_bytes = CHUNK;
    g->in[i] = malloc(4 * all);
    g->out[i] = malloc(4 * all); /* exactly as long: a sanitizer sees one byte too many */
    for (size_t k = 0; k < all; k++)
        g->in[i][k] = (float)k;
    memset(g->out[i], 0x55, 4 * all);
    switch (what % 8) {
    case 0:
        rc = banyan_allreduce_init(g->in[i], g->out[i], all, BANYAN_F32, BANYAN_SUM, g->comm,
                                   &o, &g->req[i]);
        break;
    case 1:
        rc = banyan_broadcast_init(g->out[i], all, BANYAN_F32, 1, g->comm, &o, &g->req[i]);
        break;
    case 2:
        rc = banyan_reduce_scatter_init(g->in[i], g->out[i], n, BANYAN_F32, BANYAN_SUM, g->comm,
                                        &o, &g->req[i]);
        break;
    case 3:
        rc = banyan_allgather_init(g->in[i], g->out[i], n, BANYAN_F32, g->comm, &o, &g->req[i]);
        break;
    case 4:
        rc = banyan_alltoall_init(g->in[i], g->out[i], n, BANYAN_F32, g->comm, &o, &g->req[i]);
        break;
    case 5:
        rc = banyan_recv_init(g->out[i], all, BANYAN_F32, 1, g->comm, &o, &g->req[i]);
        break;
    case 6:
        rc = banyan_gather_init(g->in[i], g->out[i], n, BANYAN_F32, 0, g->comm, &o, &g->req[i]);
        break;
    default:
        if (arrival) {
            rc = banyan_reduce_init(g->in[i], g->out[i], all, BANYAN_F32, BANYAN_SUM, 0,
                                    g->comm, &o, &g->req[i]);
            break;
        }
        rc = banyan_scan_init(g->in[i], g->out[i], all, BANYAN_F32, BANYAN_SUM, g->comm, &o,
                              &g->req[i]);
    }
    if (rc == 0)
        EXPECT(banyan_start(g->req[i]) == 0);
    else
        g->req[i] = NULL;
}

static void start_sends(struct rig *g, unsigned n)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t all = g->count * NRANKS;

    g->sent = malloc(4 * all);
    for (size_t k = 0; k < all; k++)
        g->sent[k] = (float)k;
    for (g->nsends = 0; g->nsends < n; g->nsends++) {
        o.tag = g->nsends;
        EXPECT(banyan_send_init(g->sent, all, BANYAN_F32, 1, g->comm, &o,
                                &g->sends[g->nsends]) == 0);
        EXPECT(banyan_start(g->sends[g->nsends]) == 0);
    }
}

static void send_again(struct rig *g)
{
    struct banyan_request *rq = g->nsends ? g->sends[g->next_send++ % g->nsends] : NULL;
    int done = 0;

    if (rq && banyan_test(rq, &done) == 0 && done)
        banyan_start(rq); /* refused when the communicator has failed */
}

/* The other ranks take what rank 0 sends. */
static void turn(struct rig *g)
{
    struct bny_event ev[16];

    banyan_progress(g->comm);
    for (int r = 1; r < NRANKS; r++)
        for (int i = 0, n = g->tp[r]->ops->poll(g->tp[r], ev, 16); i < n; i++)
            if (ev[i].kind == BNY_EV_MSG)
                ev[i].msg->ep->ops->release(ev[i].msg);
}

/* One byte: it begins an epoch, asks, gives back all or nothing; one: of which epoch, how much.
 */
static void credit(struct rig *g, struct input *in, int from)
{
    unsigned what = input_byte(in), much = input_byte(in);
    const struct bny_flow *f = bny_flow_of(g->comm->match, from);
    struct bny_hdr h = { .comm = g->comm->id,
                         .kind = BNY_MSG_CREDIT,
                         .step = (uint16_t)(much << 1 | (what & 1)),
                         .chunk = what >> 1 & 1,
                         .started = f && (what & 4) ? f->tx.sent
                                    : f             ? f->tx.acked + much
                                                    : much,
                         .sig = { .collective = BNY_SENDRECV } };

    g->ep[from]->ops->eager(g->ep[from], &h, NULL);
}

/* As the peer of a point-to-point operation would say it. */
static void of_its_epoch(const struct bny_op *op, struct bny_hdr *h)
{
    const struct bny_flow *f;

    if (op->call.collective != BNY_SENDRECV)
        return;
    f = bny_flow_of(op->comm->match, op->call.root);
    h->step = (uint16_t)(op->match.epoch << 1 | (op->match.side == BNY_SIDE_RECEIVES));
    h->started = f->tx.acked;
}

static void message(struct rig *g, struct input *in, char *text)
{
    unsigned wrong = input_byte(in), who = input_byte(in);
    struct bny_op *op = who & 4 ? g->comm->active_last : g->comm->active_first;
    struct bny_ep *ep = g->ep[1 + who % (NRANKS - 1)];
    struct bny_hdr h = { .comm = g->comm->id, .kind = BNY_MSG_DATA };
    const uint8_t *at;
    size_t n;

    if (wrong & 128) {
        credit(g, in, 1 + (int)who % (NRANKS - 1));
        return;
    }
    if (op) {
        if (op->next && (who & 2))
            op = op->next;
        h.seq = bny_op_seq(op);
        h.sig = op->sig;
        of_its_epoch(op, &h);
    } else {
        h.seq = bny_match_number(g->comm->match) - 1;
    }
    h.len = input_short(in) % (PAYLOAD + 1);
    h.codec_len_raw = h.len;
    if (wrong & 1)
        h.kind = (uint8_t)input_byte(in);
    if (wrong & 2)
        h.step = (uint16_t)input_byte(in);
    if (wrong & 4)
        h.chunk = input_byte(in);
    if (wrong & 8)
        h.seq += (uint32_t)(int8_t)input_byte(in);
    if (wrong & 16)
        ((uint8_t *)&h.sig)[input_byte(in) % sizeof h.sig] ^= (uint8_t)input_byte(in);
    if (wrong & 32)
        input_copy(in, &h,
                   offsetof(struct bny_hdr, len)); /* which is the transport's to tell */
    h.chan %= BNY_CHANNELS;
    at = input_take(in, who >> 2, &n);
    for (size_t i = 0; i < h.len && n; i++)
        text[i] = (char)at[i % n];
    if ((wrong & 64) || h.len > ep->eager_max)
        ep->ops->send(ep, &h, text, NULL);
    else
        ep->ops->eager(ep, &h, text);
}

static void end(struct banyan_request *rq)
{
    for (int k = 0, d = 0; rq && k < 10 && !d; k++)
        banyan_test(rq, &d);
    EXPECT(banyan_request_free(rq) == 0);
}

static void rig_close(struct rig *g)
{
    banyan_abort(g->comm, "end of input");
    for (unsigned i = 0; i < g->nsends; i++)
        end(g->sends[i]);
    for (int i = 0; i < 2; i++)
        end(g->req[i]);
    g->comm->world->orderly = 0; /* no farewell: one thread cannot wait for itself */
    banyan_comm_destroy(g->comm);
    for (int r = 1; r < NRANKS; r++)
        g->tp[r]->ops->destroy(g->tp[r]);
    bny_loop_fabric_destroy(g->fabric);
    for (size_t k = 0; k < g->count * NRANKS; k++)
        EXPECT(g->sent[k] == (float)k);
    free(g->sent);
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; g->in[i] && k < g->count * NRANKS; k++)
            EXPECT(g->in[i][k] == (float)k);
        free(g->in[i]);
        free(g->out[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t counts[] = { 5, 1100, COUNT, 33 };
    static const unsigned sends[] = { 0, 0, 0, 0, 1, 3, 70, SENDS };
    struct input in = { data, size };
    unsigned what = input_byte(&in), how = input_byte(&in);
    struct rig g;

    rig_open(&g);
    g.count = counts[how / 8 % 4];
    start(&g, 0, what, how);
    if (how & 32)
        start(&g, 1, what ^ (how >> 6), how);
    start_sends(&g, sends[what / 32]);
    for (int i = 0; in.left && i < 64; i++) {
        message(&g, &in, payload[i]);
        turn(&g);
        turn(&g);
        send_again(&g);
    }
    for (int i = 0; i < 8; i++)
        turn(&g);
    rig_close(&g);
    return 0;
}
