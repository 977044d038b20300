/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan/extend.h: a library on top fails and logs as banyan does. tests/training/entries.c has
 * banyan_comm_may_wait. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "banyan/extend.h"

Test(extend, a_failure_has_its_code_and_its_sentence)
{
    char long_one[600];

    cr_expect_eq(banyan_fail(BANYAN_ENOTSUP, "rank %d: no %s", 3, "disk"), -BANYAN_ENOTSUP);
    cr_expect_str_eq(banyan_last_error(), "rank 3: no disk");
    cr_expect_eq(banyan_fail(BANYAN_EINVAL, "load: %s", banyan_last_error()), -BANYAN_EINVAL);
    cr_expect_str_eq(banyan_last_error(), "load: rank 3: no disk");
    memset(long_one, 'x', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = '\0';
    banyan_fail(BANYAN_EINVAL, "%s", long_one);
    cr_expect_eq(strlen(banyan_last_error()), 511);
}

struct heard {
    enum banyan_log_level level;
    char line[64];
    int lines;
};

static void hear(void *ctx, enum banyan_log_level level, const char *line)
{
    struct heard *h = ctx;

    h->level = level;
    h->lines++;
    snprintf(h->line, sizeof h->line, "%s", line);
}

Test(extend, a_line_reaches_the_sink_if_its_level_is_on)
{
    struct heard h = { 0 };

    banyan_set_log(hear, &h, BANYAN_LOG_WARN);
    banyan_log(BANYAN_LOG_WARN, "store of %d rows", 5);
    cr_expect_eq(h.level, BANYAN_LOG_WARN);
    cr_expect_str_eq(h.line, "banyan: warning: store of 5 rows");
    banyan_log(BANYAN_LOG_INFO, "nothing");
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    cr_expect_eq(h.lines, 1);
}
