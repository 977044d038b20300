/* SPDX-License-Identifier: BSD-3-Clause */
/* Environment variables: their keys, what is wrong with them, and what replaces old names. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/param.h"
#include "tests/support/key.h"

static void refused(const char *variable, const char *value, const char *const parts[])
{
    setenv(variable, value, 1);
    cr_assert_eq(bny_param_check(), -BANYAN_ECONFIG, "%s=%s was taken", variable, value);
    for (; *parts; parts++)
        cr_expect(strstr(banyan_last_error(), *parts), "%s=%s: no \"%s\" in \"%s\"", variable,
                  value, *parts, banyan_last_error());
    unsetenv(variable);
}
#define REFUSED(variable, value, ...)                                                          \
    refused(variable, value, (const char *const[]){ __VA_ARGS__, NULL })

Test(param, a_key_has_its_value_or_the_default)
{
    setenv("BANYAN_VERBS", "qps=4,,connect=cm,memory=64K,pkey=0x8001,sl=-1,", 1);
    cr_assert_eq(bny_param_check(), 0, "%s", banyan_last_error());
    cr_expect_eq(bny_param_int("BANYAN_VERBS=qps"), 4);
    cr_expect_eq(bny_param_choice("BANYAN_VERBS=connect"), 2);
    cr_expect_eq(bny_param_int("BANYAN_VERBS=memory"), 65536);
    cr_expect_eq(bny_param_int("BANYAN_VERBS=pkey"), 0x8001);
    cr_expect_eq(bny_param_int("BANYAN_VERBS=sl"), -1);
    cr_expect_eq(bny_param_int("BANYAN_VERBS=retry"), 6, "the default");
    cr_expect_eq(bny_param_choice("BANYAN_VERBS=ar"), 0, "the default");
    setenv("BANYAN_UD", "loss=.25", 1);
    cr_expect_eq(bny_param_real("BANYAN_UD=loss"), .25);
    cr_expect_eq(bny_param_real("BANYAN_DPDK=loss"), 0);
    set_key("BANYAN_VERBS=qps", "5");
    set_key("BANYAN_VERBS=connect", NULL);
    cr_expect_eq(bny_param_int("BANYAN_VERBS=qps"), 5);
    cr_expect_eq(bny_param_choice("BANYAN_VERBS=connect"), 0);
    cr_expect_eq(bny_param_int("BANYAN_VERBS=memory"), 65536, "the others stay");
}

Test(param, what_is_wrong_with_keys_is_told)
{
    REFUSED("BANYAN_VERBS", "qsp=2", "BANYAN_VERBS:", "\"qsp\"", "qps, ");
    REFUSED("BANYAN_VERBS", "=2", "BANYAN_VERBS:", "qps, ");
    REFUSED("BANYAN_VERBS", "qps", "BANYAN_VERBS:", "\"qps\"", "key=value");
    REFUSED("BANYAN_VERBS", "srq=1,qps=2,srq=0", "BANYAN_VERBS: srq", "twice");
    REFUSED("BANYAN_VERBS", "qps=17", "BANYAN_VERBS: qps=17", "[1, 16]");
    REFUSED("BANYAN_VERBS", "qps=2x", "BANYAN_VERBS: qps=2x", "[1, 16]");
    REFUSED("BANYAN_VERBS", "timeout=", "BANYAN_VERBS: timeout=", "[0, 31]");
    REFUSED("BANYAN_VERBS", "tc=256", "BANYAN_VERBS: tc=256", "[-1, 255]");
    REFUSED("BANYAN_VERBS", "pkey=0x18005", "BANYAN_VERBS: pkey=0x18005", "65535");
    REFUSED("BANYAN_VERBS", "connect=both", "BANYAN_VERBS: connect=both", "auto|qp|cm");
    REFUSED("BANYAN_VERBS", "cache=yes", "BANYAN_VERBS: cache=yes", "off|uffd");
    REFUSED("BANYAN_INTEGRITY", "encrypted", "BANYAN_INTEGRITY=encrypted", "plain|mac|encrypt");
    REFUSED("BANYAN_DPDK", "los=.1", "BANYAN_DPDK:", "\"los\"", "loss, ");
    REFUSED("BANYAN_UD", "loss=some", "BANYAN_UD: loss=some", "number >= 0");
    REFUSED("BANYAN_MPI", "after=-1", "BANYAN_MPI: after=-1", "[0, ");
}

Test(param, old_names_are_told_with_the_new_ones)
{
    REFUSED("BANYAN_IB_AR", "1", "BANYAN_IB_AR", "set BANYAN_VERBS=ar=1");
    REFUSED("BANYAN_VERBS_QPS", "2", "BANYAN_VERBS_QPS", "set BANYAN_VERBS=qps=2");
    REFUSED("BANYAN_VERBS_PATH", "tc=106,sl=3", "set BANYAN_VERBS=tc=106,sl=3");
    REFUSED("BANYAN_ALLOW_TCP", "1", "set BANYAN_VERBS=tcp=1");
    REFUSED("BANYAN_UD_MEMORY", "1M", "set BANYAN_UD=memory=1M");
    REFUSED("BANYAN_DPDK_MTU", "9000", "set BANYAN_DPDK=mtu=9000");
    REFUSED("BANYAN_DPDK_FAULT", "loss=.1,seed=3", "set BANYAN_DPDK=loss=.1,seed=3");
    REFUSED("BANYAN_TCP", "integrity=mac", "set BANYAN_INTEGRITY=mac");
    REFUSED("BANYAN_TCP_INTEGRITY", "encrypt", "set BANYAN_INTEGRITY=encrypt");
    REFUSED("BANYAN_MPI_AFTER", "1", "set BANYAN_MPI=after=1");
    setenv("BANYAN_VERBS_QPS", "", 1); /* not set */
    setenv("BANYAN_DPDK_PORT", "memif", 1);
    setenv("BANYAN_PATH", "/usr", 1); /* unknown, and no key of anything */
    cr_expect_eq(bny_param_check(), 0, "%s", banyan_last_error());
}

Test(param, numbers_are_read_past_a_wrong_one)
{
    setenv("BANYAN_VERBS", "qps=99,srq=1", 1); /* a tool that does not check */
    cr_expect_eq(bny_param_int("BANYAN_VERBS=qps"), 1);
    cr_expect_eq(bny_param_int("BANYAN_VERBS=srq"), 1);
}

Test(param, the_list_is_of_what_users_may_set)
{
    const char *name, *type, *def, *doc;
    int variables = 0, keys = 0, qps = 0;

    for (size_t i = 0; banyan_param(i, &name, &type, &def, &doc) == 0; i++) {
        cr_assert(*name && *type && *doc, "%s", name);
        variables += !strchr(name, '=');
        keys += strchr(name, '=') != NULL;
        qps += !strcmp(name, "BANYAN_VERBS=qps");
        cr_expect(strcmp(name, "BANYAN_RANK") != 0, "banyan_run sets it");
    }
    cr_expect(variables > 20 && variables <= 45, "%d variables", variables);
    cr_expect_gt(keys, 30);
    cr_expect_eq(qps, 1);
}
