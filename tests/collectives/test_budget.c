/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs within a budget ("auto:max=1e-2"): the choice of a plan. It never breaks the budget,
 * takes what the model prices least at the link's rate, and prices a bounded number of
 * candidates. Plans of hosts that exist nowhere; nothing runs. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/plan/budget_choice.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/way.h"
#include "compress/speed.h"

#define MANY 1024

static int members[MANY], host_of[MANY];

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

static struct bny_scope scope_of(struct bny_topology *t, int hosts, int near, double Gbps)
{
    return (struct bny_scope){ .n = hosts * near,
                               .members = members,
                               .topology = t,
                               .ways = bny_ways,
                               .eager_max = 4096,
                               .at_once = 65536,
                               .chunk_max = 65536,
                               .coded_max = 65536,
                               .near = near > 1 ? near : 0,
                               .memory_of = host_of,
                               .link_Bps = Gbps * 125e6,
                               .schedule = "auto" };
}

static struct bny_call sum_of(size_t count, const char *codec)
{
    struct bny_call call;

    memset(&call, 0, sizeof call);
    call.collective = BNY_ALLREDUCE;
    call.dtype = BANYAN_F32;
    call.count = count;
    call.root = -1;
    cr_assert_eq(bny_codec_parse(&call.codec, codec), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    bny_call_set_schedule(&call, "auto");
    return call;
}

/* The codec of the plan; "none". */
static const char *chosen(int hosts, int near, double Gbps, size_t count, const char *codec)
{
    struct bny_topology *t = topology_of(hosts, near);
    struct bny_scope s = scope_of(t, hosts, near, Gbps);
    struct bny_call call = sum_of(count, codec);
    struct bny_plan plan;
    const char *spec;

    cr_assert_eq(bny_plan_get(&s, &call, &plan), 0, "%s", banyan_last_error());
    cr_assert(!plan.codec || !plan.codec->budget);
    spec = plan.codec ? plan.codec->spec : "none";
    bny_plan_drop(&plan);
    bny_plans_free(&s);
    bny_topology_free(t);
    return spec;
}

/* One core a rank. Where wire and core are both busy only results are encoded: one encode
 * serves all. Faster links take less of codecs. */
Test(budget, links_and_cores_decide)
{
    const char *like = "auto:like=int8,from=raw+int8";

    cr_expect_str_eq(chosen(6, 1, 1, 16u << 20, like), "levels:up=int8,down=int8");
    cr_expect_str_eq(chosen(6, 1, 20, 16u << 20, like), "levels:up=raw,down=int8");
    cr_expect_str_eq(chosen(6, 1, 200, 16u << 20, like), "none");
    cr_expect_str_eq(chosen(2, 4, 1, 16u << 20, like), "levels:up=int8,down=int8");
}

/* The coarser codec only where the budget has room for it. */
Test(budget, the_budget_decides)
{
    static const struct {
        const char *budget, *chosen;
    } cases[] = { { "auto:nmse=1", "levels:up=int4,down=int4" },
                  { "auto:nmse=2.5e-2", "levels:up=int4,down=int8" },
                  { "auto:nmse=2e-4", "levels:up=int8,down=int8" },
                  { "auto:max=1e-2", "levels:up=int8,down=int8" },
                  { "auto:max=5e-3", "levels:up=lossless,down=int8" },
                  { "auto", "levels:up=lossless,down=lossless" },
                  { "auto:max=0,from=raw+int8", "none" },
                  { "auto:nmse=1e-3,feedback=1", "levels:up=int4,down=int4" } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(chosen(4, 1, .1, 4u << 20, cases[i].budget), cases[i].chosen, "%s",
                         cases[i].budget);
}

Test(budget, is_never_broken)
{
    static const double Gbps[] = { .1, 1, 10, 40, 100 };
    char text[64];

    for (int hosts = 2; hosts <= 4; hosts++)
        for (size_t k = 0; k < 4 * 5 * 7; k++) {
            double limit = pow(10, -(double)(k % 7));
            int near = 1 + (int)(k / 7 % 4), by_max = (int)(k & 1);
            struct bny_call call = sum_of(1, "none");
            struct bny_loss loss;
            const char *spec;

            snprintf(text, sizeof text, "auto:%s=%g%s", by_max ? "max" : "nmse", limit,
                     k % 3 ? ",force=1" : "");
            spec = chosen(hosts, near, Gbps[k / 28], 1u << 20, text);
            cr_assert_eq(bny_codec_parse(&call.codec, spec), 0);
            if (!strcmp(spec, "none"))
                continue;
            loss = bny_budget_loss(&call, hosts);
            cr_expect_leq(by_max ? loss.max : loss.nmse, limit, "%s takes %s", text, spec);
        }
}

/* ---- the number of candidates ---- */

static int priced, nlossy;

static double count_prices(struct bny_scope *s, const struct bny_call *call, void *unused)
{
    priced++;
    nlossy += bny_call_is_lossy(call);
    return bny_cost_coded(s, call, "star", BNY_CODED_CHUNK);
}

/* However many ranks there are. Those that break the budget are not priced, and the second call
 * alike has the plan of the first. */
Test(budget, prices_few_candidates)
{
    for (int hosts = 2; hosts <= MANY; hosts *= 8) {
        struct bny_topology *t = topology_of(hosts, 1);
        struct bny_scope s = scope_of(t, hosts, 1, 1);
        struct bny_call any = sum_of(1u << 20, "auto:nmse=1"),
                        tight = sum_of(1u << 20, "auto:max=1e-2");

        priced = nlossy = 0;
        cr_assert_not_null(bny_budget_choose(&s, &any, count_prices, NULL));
        cr_expect_eq(priced, 22, "%d",
                     priced); /* 5 x 5 but raw, and what loses nothing in two ways */
        cr_expect_eq(nlossy, 21);
        priced = 0;
        cr_assert_not_null(bny_budget_choose(&s, &tight, count_prices, NULL));
        cr_expect_lt(priced, 15);
        bny_plans_free(&s);
        bny_topology_free(t);
    }
}
