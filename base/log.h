/* SPDX-License-Identifier: BSD-3-Clause */
/* Log lines to one sink (banyan_set_log; default stderr). Level from BANYAN_DEBUG: error, warn
 * (default), info, debug. The function that detects an error logs it, its callers only return
 * it. Any thread. */
#ifndef BNY_BASE_LOG_H
#define BNY_BASE_LOG_H

#include "banyan/extend.h"

/* The level with that name, in upper or lower case, or -1. */
int bny_log_level_named(const char *text);
/* Sets the rank that prefixes this process's lines; -1: none. */
void bny_log_set_rank(int rank);
int bny_log_enabled(enum banyan_log_level level);

#define bny_warn(...) banyan_log(BANYAN_LOG_WARN, __VA_ARGS__)
#define bny_info(...)                                                                          \
    do {                                                                                       \
        if (bny_log_enabled(BANYAN_LOG_INFO))                                                  \
            banyan_log(BANYAN_LOG_INFO, __VA_ARGS__);                                          \
    } while (0)
#define bny_debug(...)                                                                         \
    do {                                                                                       \
        if (bny_log_enabled(BANYAN_LOG_DEBUG))                                                 \
            banyan_log(BANYAN_LOG_DEBUG, __VA_ARGS__);                                         \
    } while (0)

#endif
