/* SPDX-License-Identifier: BSD-3-Clause */
/* One log sink for the process. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>

#include "base/fork.h"
#include "base/param.h"
#include "base/text.h"

static struct bny_lock sink_lock = BNY_LOCK(NULL);
static banyan_log_fn sink_fn;
static void *sink_ctx;
static atomic_int max_level = -1; /* -1: not read from the environment yet */
static atomic_int log_rank = -1;

int bny_log_level_named(const char *text)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };

    for (int i = 0; i < 4; i++)
        if (!bny_strcasecmp(text, names[i]))
            return i;
    return -1;
}

static int level_from_env(void)
{
    int level = bny_log_level_named(bny_param_str("BANYAN_DEBUG"));

    return level < 0 ? BANYAN_LOG_WARN : level; /* bny_param_check reports the wrong name */
}

int bny_log_enabled(enum banyan_log_level level)
{
    int max = atomic_load_explicit(&max_level, memory_order_relaxed);

    if (max < 0) {
        max = level_from_env();
        atomic_store_explicit(&max_level, max, memory_order_relaxed);
    }
    return (int)level <= max;
}

void bny_log_set_rank(int rank)
{
    atomic_store_explicit(&log_rank, rank, memory_order_relaxed);
}

void banyan_set_log(banyan_log_fn fn, void *ctx, enum banyan_log_level level)
{
    bny_lock_take(&sink_lock);
    sink_fn = fn;
    sink_ctx = ctx;
    atomic_store_explicit(&max_level, fn ? (int)level : level_from_env(), memory_order_relaxed);
    bny_lock_give(&sink_lock);
}

void banyan_log(enum banyan_log_level level, const char *fmt, ...)
{
    static const char *const names[] = { "error", "warning", "info", "debug" };
    char line[1024];
    int rank = atomic_load_explicit(&log_rank, memory_order_relaxed);
    int at;
    va_list ap;

    if (!bny_log_enabled(level))
        return;
    at = rank >= 0 ? snprintf(line, sizeof line, "banyan: rank %d: %s: ", rank, names[level])
                   : snprintf(line, sizeof line, "banyan: %s: ", names[level]);
    va_start(ap, fmt);
    bny_vsnprintf(line + at, sizeof line - (size_t)at, fmt, ap);
    va_end(ap);
    bny_text_printable(line);
    bny_lock_take(&sink_lock);
    if (sink_fn)
        sink_fn(sink_ctx, level, line);
    else
        fprintf(stderr, "%s\n", line);
    bny_lock_give(&sink_lock);
}
