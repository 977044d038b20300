/* SPDX-License-Identifier: BSD-3-Clause */
/* What leaves a host in a sum, by the plans of its ranks: a codec that is allowed never sends
 * more than raw data would, for any codec, 1 to 4 hosts and 1 to 8 ranks on each; and where a
 * host has several ranks a vector leaves it once, however many they are. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/plan/cost.h"
#include "collectives/plan/way.h"

#define HOSTS 4
#define NEAR  8
#define MANY  (HOSTS * NEAR)

static int members[MANY], host_of[MANY];

static struct bny_scope scope_of(struct bny_topology *t, int hosts, int near, double Gbps)
{
    struct bny_scope s = { .n = hosts * near,
                           .members = members,
                           .topology = t,
                           .ways = bny_ways,
                           .eager_max = 4096,
                           .at_once = 65536,
                           .chunk_max = 65536,
                           .coded_max = 65536,
                           .shares_memory = hosts == 1,
                           .one_host = hosts == 1,
                           .near = hosts > 1 && near > 1 ? near : 0,
                           .memory_of = host_of,
                           .link_Bps = Gbps * 125e6,
                           .schedule = "auto" };
    return s;
}

static struct bny_call sum_of(size_t count, const struct bny_codec *codec)
{
    struct bny_call call;

    memset(&call, 0, sizeof call);
    call.collective = BNY_ALLREDUCE;
    call.dtype = BANYAN_F32;
    call.count = count;
    call.root = -1;
    call.codec = codec;
    call.rows = codec && codec->ops->linear ? 1024 : 0;
    call.cols = call.rows ? (int64_t)count / call.rows : 0;
    cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    bny_call_set_schedule(&call, "auto");
    return call;
}

static double out_of(struct bny_scope *s, const struct bny_call *call);

/* Bytes of a program's sends from this rank to other hosts. */
static double of_program(const struct bny_scope *s, const struct bny_call *call,
                         const struct bny_plan *plan)
{
    const struct bny_program *p = plan->program;
    double bytes = (double)call->count * 4, up = 1, down = 1, out = 0;

    if (plan->codec) {
        struct bny_codec_speed k = bny_codec_speed(plan->codec, call->dtype);
        double parts = call->among                                  ? (double)s->n / s->near
                       : bny_topology_hosts_builder(plan->schedule) ? bny_topology_nhosts(s)
                                                                    : s->n;

        up = k.wire_bytes / 4;
        down = bny_cost_result_bytes(call, &k, parts) / 4;
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *st = &p->steps[i];
        double share = 0;

        if ((st->kind != BNY_SEND && st->kind != BNY_FORWARD) ||
            host_of[st->peer] == host_of[s->rank])
            continue;
        for (uint32_t b = st->block; b < st->block + st->nblocks; b++)
            share +=
                p->weight_num ? (double)p->weight_num[b] / p->weight_den[b] : 1.0 / p->nblocks;
        out += share * bytes * (st->kind == BNY_SEND ? up : down);
    }
    return out;
}

/* The rail and the rest of a hierarchical sum; the codes of a linear codec. */
static double of_sequence(struct bny_scope *s, const struct bny_call *call,
                          const struct bny_plan *plan)
{
    struct bny_call child = sum_of(call->count, plan->codec);

    child.is_child = BNY_CHILD;
    if (plan->codec && plan->codec->ops->linear) {
        struct bny_codec_speed k = bny_codec_speed(plan->codec, call->dtype);

        child.codec = NULL;
        child.count = (size_t)((double)call->count * k.wire_bytes / 4);
        return out_of(s, &child);
    }
    child.count /= (size_t)s->near;
    child.among = BNY_AMONG_RAIL;
    child.is_child = plan->codec ? BNY_CHILD_CODED : BNY_CHILD;
    return out_of(s, &child);
}

/* Of this rank. */
static double out_of(struct bny_scope *s, const struct bny_call *call)
{
    struct bny_plan plan;
    double out = 0;

    cr_assert_eq(bny_plan_get(s, call, &plan), 0, "%s", banyan_last_error());
    if (plan.way == BNY_WAY_PROGRAM)
        out = of_program(s, call, &plan);
    else if (plan.way == BNY_WAY_SEQUENCE)
        out = of_sequence(s, call, &plan);
    else if (!s->one_host)
        out = (double)call->count * 4 * (s->n - s->n / bny_topology_nhosts(s));
    bny_plan_drop(&plan);
    return out;
}

/* Of the first host. */
static double leaves(struct bny_topology *t, int hosts, int near, double Gbps,
                     const struct bny_call *call)
{
    double out = 0;

    for (int r = 0; r < near; r++) {
        struct bny_scope s = scope_of(t, hosts, near, Gbps);

        s.rank = r;
        out += s.n > 1 ? out_of(&s, call) : 0;
        bny_plans_free(&s);
    }
    return out;
}

static struct bny_topology *topology_of(int hosts, int near)
{
    struct bny_topology *t;

    for (int r = 0; r < hosts * near; r++) {
        members[r] = r;
        host_of[r] = r / near;
    }
    cr_assert_eq(bny_topology_load(&t, "", "auto"), 0);
    cr_assert_eq(bny_topology_settle(t, host_of, hosts * near), 0);
    return t;
}

static void never_more(int hosts, int near)
{
    struct bny_topology *t = topology_of(hosts, near);
    struct bny_call call = sum_of(1u << 20, NULL);
    double raw = leaves(t, hosts, near, 1, &call);
    const char *name;

    for (size_t i = 1; (name = banyan_codec_name(i)); i++) {
        double out;

        cr_assert_eq(bny_codec_parse(&call.codec, name), 0);
        call = sum_of(1u << 20, call.codec);
        out = leaves(t, hosts, near, 1, &call);
        cr_expect_leq(out, 1.001 * raw, "%d hosts of %d, %s: %g bytes, raw %g", hosts, near,
                      name, out, raw);
    }
    bny_topology_free(t);
}

Test(host_bytes, a_codec_never_sends_more_than_raw, .timeout = 120)
{
    for (int hosts = 1; hosts <= HOSTS; hosts++)
        for (int near = 1; near <= NEAR; near++)
            never_more(hosts, near);
}

/* 2 (H - 1) / H vectors, of the codec's length. Flat stars sent as many times that as a host
 * has ranks. */
Test(host_bytes, a_coded_vector_leaves_a_host_once, .timeout = 60)
{
    static const char *const codecs[] = { "int8", "int4", "bf16", "lossless" };

    for (int hosts = 2; hosts <= HOSTS; hosts++)
        for (int near = 1; near <= NEAR; near++) {
            struct bny_topology *t = topology_of(hosts, near);

            for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
                const struct bny_codec *codec;
                struct bny_call call;
                double least, out;

                cr_assert_eq(bny_codec_parse(&codec, codecs[i]), 0);
                call = sum_of(4u << 20, codec);
                least = 2.0 * (hosts - 1) / hosts * (4u << 20) *
                        bny_codec_speed(codec, BANYAN_F32).wire_bytes;
                out = leaves(t, hosts, near, 1, &call);
                cr_expect_leq(out, 1.02 * least, "%d hosts of %d, %s: %g bytes, least %g",
                              hosts, near, codecs[i], out, least);
            }
            bny_topology_free(t);
        }
}

/* Raw sums of 4 KiB and more, of hosts of two ranks 16 KiB: as often as from hosts of one rank.
 * By recursive doubling, which was priced as if each rank had a port of its own, 4.3 times from
 * 2 hosts of 4. Below that size delays decide. */
Test(host_bytes, a_short_vector_leaves_a_host_once, .timeout = 60)
{
    for (int hosts = 2; hosts <= HOSTS; hosts++)
        for (int near = 2; near <= NEAR; near++) {
            struct bny_topology *t = topology_of(hosts, near);

            for (size_t count = near > 2 ? 1024 : 4096; count <= 32768; count *= 2) {
                struct bny_call call = sum_of(count, NULL);
                double vectors = leaves(t, hosts, near, 1, &call) / 4 / (double)count;

                cr_expect_leq(vectors, 1.2 * 2 * (hosts - 1) / hosts,
                              "%d hosts of %d, %zu bytes: %g vectors", hosts, near, 4 * count,
                              vectors);
            }
            bny_topology_free(t);
        }
}
