/* SPDX-License-Identifier: BSD-3-Clause */
/* Short messages, and such as are a little too long for that, in all the ways in which they are
 * sent and received: blocking, in groups, by requests, in another order than they were sent,
 * with tags that are used for the first time, beside a collective in flight. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mp/case.h"
#include "tests/mp/model.h"

enum how { GROUP, RECEIVES_FIRST, BLOCKING, REVERSED, REQUESTS, HOWS };
enum { MESSAGES = 6, LONGEST = 131073 };

struct plan { /* of a round, the same on all ranks */
    enum how how;
    int n, to;                           /* messages that each rank sends to rank + to */
    int has_collective, sleeper, is_own; /* sent from memory of banyan_mem_alloc */
    struct {
        uint32_t tag;
        size_t bytes;
    } message[MESSAGES];
};

static uint8_t value(uint64_t round, int from, int i, size_t at)
{
    return (uint8_t)(model_mix(round * 64 + (uint64_t)from, (uint64_t)i) + at * 7 + (at >> 8));
}

static struct plan plan_of(const struct test *t, uint64_t round)
{
    static const size_t sizes[] = { 0,    1,    8,     64,    1000,  4095,   4096,
                                    4097, 9001, 16384, 16385, 70001, 131072, LONGEST };
    enum { ALL = sizeof sizes / sizeof *sizes, SHORT = 7 };
    uint64_t x = model_mix(t->seed, round);
    struct plan p = { .how = (enum how)(x % HOWS),
                      .n = 1 + (int)(x >> 8) % MESSAGES,
                      .to = 1 + (int)((x >> 16) % (uint64_t)(t->n - 1)),
                      .has_collective = (x >> 24) % 4 == 0,
                      .is_own = (x >> 40) % 4 == 0,
                      .sleeper = (x >> 28) % 16 ? -1 : (int)((x >> 32) % (uint64_t)t->n) };
    int may_wait = p.how != BLOCKING && p.how != REVERSED; /* nobody receives before he sent */

    if (p.n < 1)
        p.n = 1;
    for (int i = 0; i < p.n; i++) {
        uint64_t y = model_mix(x, (uint64_t)i);
        p.message[i].tag =
            y % 5 ? (uint32_t)(y % 5) : 1000u + (uint32_t)round * MESSAGES + (uint32_t)i;
        p.message[i].bytes =
            sizes[(y >> 8) % (may_wait && (y >> 16) % 2 ? ALL : SHORT + may_wait)];
    }
    return p;
}

static void send_one(struct test *t, const struct plan *p, uint8_t (*out)[LONGEST], int i)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.tag = p->message[i].tag;
    CHECK_OK(t, banyan_send(out[i], p->message[i].bytes, BANYAN_U8, (t->rank + p->to) % t->n,
                            t->comm, &opts));
}

static void receive_one(struct test *t, const struct plan *p, uint8_t (*in)[LONGEST], int i)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.tag = p->message[i].tag;
    CHECK_OK(t, banyan_recv(in[i], p->message[i].bytes, BANYAN_U8,
                            (t->rank + t->n - p->to) % t->n, t->comm, &opts));
}

/* Those of other tags the other way round; those of one tag stay in order. */
static int turned(const struct plan *p, int k)
{
    int order[MESSAGES], n = 0;

    for (int i = p->n - 1; i >= 0; i--) {
        int seen = 0;
        for (int j = 0; j < n; j++)
            seen |= p->message[order[j]].tag == p->message[i].tag;
        for (int j = 0; j < p->n && !seen; j++)
            if (p->message[j].tag == p->message[i].tag)
                order[n++] = j;
    }
    return order[k];
}

static void by_requests(struct test *t, const struct plan *p, uint8_t (*out)[LONGEST],
                        uint8_t (*in)[LONGEST])
{
    struct banyan_request *rq[MESSAGES];
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    for (int i = 0; i < p->n; i++) {
        opts.tag = p->message[i].tag;
        CHECK_OK(t, banyan_recv_init(in[i], p->message[i].bytes, BANYAN_U8,
                                     (t->rank + t->n - p->to) % t->n, t->comm, &opts, &rq[i]));
        CHECK_OK(t, banyan_start(rq[i]));
    }
    for (int i = 0; i < p->n; i++)
        send_one(t, p, out, i);
    for (int i = 0; i < p->n; i++) {
        CHECK_OK(t, banyan_wait(rq[i], 20));
        CHECK_OK(t, banyan_request_free(rq[i]));
    }
}

static void exchange(struct test *t, const struct plan *p, uint8_t (*out)[LONGEST],
                     uint8_t (*in)[LONGEST])
{
    int in_group = p->how == GROUP || p->how == RECEIVES_FIRST;

    if (p->how == REQUESTS) {
        by_requests(t, p, out, in);
        return;
    }
    if (in_group)
        CHECK_OK(t, banyan_group_start());
    for (int i = 0; p->how == RECEIVES_FIRST && i < p->n; i++)
        receive_one(t, p, in, i);
    for (int i = 0; i < p->n; i++)
        send_one(t, p, out, i);
    for (int i = 0; p->how != RECEIVES_FIRST && i < p->n; i++)
        receive_one(t, p, in, p->how == REVERSED ? turned(p, i) : i);
    if (in_group)
        CHECK_OK(t, banyan_group_end());
}

/* Bytes of a receive buffer: the message's, and some behind that must stay as they were. */
static size_t looked_at(const struct plan *p, int i)
{
    size_t bytes = p->message[i].bytes < 9001 ? 9001 : p->message[i].bytes + 64;

    return bytes < LONGEST ? bytes : LONGEST;
}

static void round_of(struct test *t, uint64_t round, uint8_t (*const outs[2])[LONGEST],
                     uint8_t (*in)[LONGEST])
{
    struct plan p = plan_of(t, round);
    uint8_t(*out)[LONGEST] = outs[p.is_own];
    int from = (t->rank + t->n - p.to) % t->n;
    uint32_t one = 1, sum = 0;
    struct banyan_request *rq = NULL;

    for (int i = 0; i < p.n; i++) {
        for (size_t at = 0; at < p.message[i].bytes; at++)
            out[i][at] = value(round, t->rank, i, at);
        memset(in[i], 0x5a, looked_at(&p, i));
    }
    if (p.sleeper == t->rank)
        usleep(3000);
    if (p.has_collective) {
        CHECK_OK(t, banyan_allreduce_init(&one, &sum, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL,
                                          &rq));
        CHECK_OK(t, banyan_start(rq));
    }
    exchange(t, &p, out, in);
    if (rq) {
        CHECK_OK(t, banyan_wait(rq, 20));
        CHECK_OK(t, banyan_request_free(rq));
        CHECK(t, sum == (uint32_t)t->n, "%u", sum);
    }
    for (int i = 0; i < p.n; i++)
        for (size_t at = 0; at < looked_at(&p, i); at++) {
            uint8_t want = at < p.message[i].bytes ? value(round, from, i, at) : 0x5a;
            CHECK(t, in[i][at] == want,
                  "round %llu, way %d, own %d, message %d of %d, tag %u, %zu bytes: byte %zu "
                  "is %u",
                  (unsigned long long)round, p.how, p.is_own, i, p.n, p.message[i].tag,
                  p.message[i].bytes, at, in[i][at]);
        }
}

/* "ROUNDS" */
static int short_messages(struct test *t)
{
    uint8_t(*outs[2])[LONGEST] = { case_malloc(MESSAGES * LONGEST) },
    (*in)[LONGEST] = case_malloc(MESSAGES * LONGEST);
    uint64_t rounds = strtoull(t->arg, NULL, 10);

    CHECK_OK(t, banyan_mem_alloc(t->comm, MESSAGES * LONGEST, (void **)&outs[1]));
    for (uint64_t round = 0; round < rounds; round++)
        round_of(t, round, outs, in);
    free(outs[0]);
    CHECK_OK(t, banyan_mem_free(t->comm, outs[1]));
    free(in);
    return 0;
}

const struct mp_case cases_short[] = {
    { "short", short_messages, 0 },
    { 0 },
};
