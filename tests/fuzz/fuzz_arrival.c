/* SPDX-License-Identifier: BSD-3-Clause */
/* What ranks say to each other in a reduction in order of arrival, and what they never should:
 * to a rank that has a coordinator or none, is the root or not, has come or is late, every
 * message that a peer can send to it or to its coordinator, with any place, depth and parent;
 * and chunks and sets of sums and results. The operation fails or completes, nothing is written
 * outside of its output, inputs stay as they were, and leaving works.
 *
 * Byte 0 picks whose side is fuzzed and the collective, 1 codec, length and how many inputs are
 * enough, 2 whether schedule auto asks who is late. Then messages: a byte that says what it is
 * and who sends it, its fields, each small or near to what is right. Fuzz_engine has headers of
 * all kinds, for any operation. */
#include <stddef.h>

#include "input.h"
#include "loop_rig.h"

#include "collectives/api/job.h"
#include "collectives/arrival/arrival.h"
#include "collectives/progress/progress.h"
#include "compress/codec.h"
#include "transport/loop/loop.h"

#define NRANKS   5
#define COUNT    4000 /* elements, at most; of schedule auto: */
#define LONG     (3u << 18)
#define CHUNK    4096
#define PAYLOAD  (2 * CHUNK)
#define MESSAGES 64

static char payload[MESSAGES]
                   [PAYLOAD]; /* of the messages of one input: borrowed until it is over */
static float *input, *output; /* of the longest */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    setenv("BANYAN_ENCODE_THREADS", "0", 1);
    setenv("BANYAN_LINK_GBPS", "0.1", 1); /* sums are long enough for auto to ask */
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    input = malloc(4 * LONG);
    for (size_t k = 0; k < LONG; k++)
        input[k] = (float)(k % 1000);
    return 0;
}

struct rig {
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm; /* of rank `me` */
    int me;
    struct bny_tp *tp[NRANKS]; /* of the others */
    struct bny_ep *ep[NRANKS]; /* theirs to rank `me` */
    struct banyan_request *req;
    size_t count;
};

static void rig_open(struct rig *g, int me)
{
    memset(g, 0, sizeof *g);
    g->me = me;
    loop_rig_open(&g->fabric, &g->comm, NRANKS, me, g->tp, g->ep);
}

static void start(struct rig *g, unsigned what, unsigned how, unsigned is_auto)
{
    static const char *const codecs[] = { "none", "none", "int8:force=1", "topk:force=1" };
    static const size_t counts[] = { 5, 1100, COUNT, 33 };
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int root = (int)(what / 5 / 2 % NRANKS), rc;

    o.schedule = "arrival";
    o.reduce = &inputs;
    inputs.at_least = (int)(how / 16 % NRANKS);
    if (!inputs.at_least)
        inputs.at_least = NRANKS; /* all, and never by a static schedule from the start */
    o.codec = codecs[how % 4];
    o.chunk_bytes = CHUNK;
    g->count = counts[how / 4 % 4];
    if (is_auto % 4 == 1) {
        o.schedule = "auto";
        inputs.at_least = 0;
        o.codec = "none";
        o.chunk_bytes = 0;
        g->count = LONG;
    }
    output = malloc(4 * g->count); /* exactly as long: a sanitizer sees one byte too many */
    memset(output, 0x55, 4 * g->count);
    if (what / 5 % 2)
        rc = banyan_reduce_init(input, output, g->count, BANYAN_F32, BANYAN_SUM, root, g->comm,
                                &o, &g->req);
    else
        rc = banyan_allreduce_init(input, output, g->count, BANYAN_F32, BANYAN_AVG, g->comm, &o,
                                   &g->req);
    EXPECT(rc == 0);
    EXPECT(banyan_start(g->req) == 0);
}

/* The other ranks take what this one sends. */
static void turn(struct rig *g)
{
    struct bny_event ev[16];

    banyan_progress(g->comm);
    for (int r = 0; r < NRANKS; r++)
        for (int i = 0, n = g->tp[r] ? g->tp[r]->ops->poll(g->tp[r], ev, 16) : 0; i < n; i++)
            if (ev[i].kind == BNY_EV_MSG)
                ev[i].msg->ep->ops->release(ev[i].msg);
}

/* The call, or its coordinator. */
static struct bny_op *arrival_of(const struct rig *g, int is_coordinator)
{
    for (struct bny_op *op = g->comm->active_first; op; op = op->next)
        if (op->of_way[BNY_WAY_ARRIVAL] && bny_is_coordinator(op) == is_coordinator)
            return op;
    return NULL;
}

static void coord_msg(struct input *in, const struct rig *g, struct bny_hdr *h, char *text)
{
    static const uint32_t kind[] = { BNY_COORD_ARRIVED,  BNY_COORD_OPEN,
                                     BNY_COORD_VOTE,     BNY_COORD_SLOT,
                                     BNY_COORD_PARENT,   BNY_COORD_LATE,
                                     BNY_COORD_TOGETHER, 0 };
    unsigned what = input_byte(in), place = input_byte(in), shape = input_byte(in);
    struct bny_coord_msg w = { .kind = kind[what % 8] | (what & 8 ? BNY_COORD_WAS_LATE : 0),
                               .slot = (int)(place % 8) - 1,
                               .slots = what & 16 ? NRANKS : (int)(place / 8 % 8),
                               .depth = (int)(shape % 4) - 1,
                               .rank = (int)(shape / 4 % 8) - 2 };

    if (what & 32)
        input_copy(in, &w, sizeof w);
    else if (!w.kind && (place & 64)) /* the last of eight */
        w.kind = place & 128 ? BNY_COORD_FEED : BNY_COORD_LINE_ENDS;
    h->kind = w.kind <= BNY_COORD_VOTE ? BNY_MSG_ARRIVE : BNY_MSG_DATA;
    h->seq += w.kind <= BNY_COORD_VOTE; /* to the coordinator */
    h->step = BNY_ARRIVAL_COORD;
    h->chan = 1;
    h->len = sizeof w;
    if (what & 64)
        h->kind = (uint8_t)input_byte(in);
    if (what & 128)
        h->len = input_byte(in);
    memcpy(text, &w, sizeof w);
}

static void set(struct input *in, struct bny_hdr *h, unsigned who, char *text)
{
    uint64_t ranks = input_byte(in);

    h->step = who & 8 ? BNY_ARRIVAL_UP_SET : BNY_ARRIVAL_DOWN_SET;
    h->len = who & 16 ? input_byte(in) : sizeof ranks;
    memcpy(text, &ranks, sizeof ranks);
}

static void chunk(struct input *in, const struct rig *g, struct bny_op *op, struct bny_hdr *h,
                  unsigned who, char *text)
{
    unsigned what = input_byte(in);
    const uint8_t *at;
    size_t n;

    h->step = who & 8 ? BNY_ARRIVAL_UP : BNY_ARRIVAL_DOWN;
    h->chunk = what % 8;
    h->len = CHUNK;
    if (op && h->chunk < bny_arrival_chunks(op))
        h->len = (uint32_t)(bny_arrival_chunk(op, h->chunk) * 4);
    if (what & 16)
        h->kind = BNY_MSG_RAW;
    if (what & 64)
        h->len = input_short(in) % (PAYLOAD + 1);
    h->len = h->len > PAYLOAD ? PAYLOAD : h->len;
    h->codec_len_raw = what & 128 ? CHUNK : h->len;
    at = input_take(in, who >> 2, &n);
    for (size_t i = 0; i < h->len && n; i++)
        text[i] = (char)at[i % n];
}

static void message(struct rig *g, struct input *in, char *text)
{
    unsigned what = input_byte(in), who = input_byte(in);
    int from = (g->me + 1 + (int)(who % (NRANKS - 1))) % NRANKS;
    struct bny_op *op = arrival_of(g, 0), *any = op ? op : arrival_of(g, 1);
    struct bny_ep *ep = g->ep[from];
    struct bny_hdr h = { .comm = g->comm->id, .kind = BNY_MSG_DATA };

    if (!any)
        return;
    h.seq = bny_op_seq(any) - (any != op);
    h.sig = any->sig;
    memset(text, 0, PAYLOAD);
    if (what % 8 < 5)
        coord_msg(in, g, &h, text);
    else if (what % 8 == 5)
        set(in, &h, who, text);
    else
        chunk(in, g, op, &h, who, text);
    if (h.step == BNY_ARRIVAL_COORD || what % 8 == 5)
        h.codec_len_raw = h.len;
    if (what & 64)
        h.seq += (uint32_t)(int8_t)input_byte(in) % 4;
    if ((what & 128) || h.len > ep->eager_max)
        ep->ops->send(ep, &h, text, NULL);
    else
        ep->ops->eager(ep, &h, text);
}

static void rig_close(struct rig *g)
{
    banyan_abort(g->comm, "end of input");
    for (int k = 0, d = 0; k < 10 && !d; k++)
        banyan_test(g->req, &d);
    EXPECT(banyan_request_free(g->req) == 0);
    g->comm->world->orderly = 0; /* no farewell: one thread cannot wait for itself */
    banyan_comm_destroy(g->comm);
    for (int r = 0; r < NRANKS; r++)
        if (g->tp[r])
            g->tp[r]->ops->destroy(g->tp[r]);
    bny_loop_fabric_destroy(g->fabric);
    for (size_t k = 0; k < g->count; k++)
        EXPECT(input[k] == (float)(k % 1000));
    free(output);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    unsigned what = input_byte(&in), how = input_byte(&in), is_auto = input_byte(&in);
    struct rig g;

    rig_open(&g, (int)(what % NRANKS));
    start(&g, what, how, is_auto);
    turn(&g);
    for (int i = 0; in.left && i < MESSAGES; i++) {
        message(&g, &in, payload[i]);
        turn(&g);
    }
    for (int i = 0; i < 8; i++)
        turn(&g);
    rig_close(&g);
    return 0;
}
