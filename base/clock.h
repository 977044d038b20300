/* SPDX-License-Identifier: BSD-3-Clause */
/* Monotonic time and the pause instruction. Deadlines are absolute nanoseconds; 0 means none.
 */
#ifndef BNY_BASE_CLOCK_H
#define BNY_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t bny_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Longer than any process lives; infinity, and values that overflow nanoseconds, exceed it. */
#define BNY_FOREVER_S 1e9

/* Absolute deadline `seconds` after from_ns; 0 (none) if seconds <= 0, >= BNY_FOREVER_S or
 * NaN. */
static inline uint64_t bny_deadline_after(uint64_t from_ns, double seconds)
{
    return seconds > 0 && seconds < BNY_FOREVER_S ? from_ns + (uint64_t)(seconds * 1e9) : 0;
}

static inline uint64_t bny_deadline_in(double seconds)
{
    return bny_deadline_after(bny_now_ns(), seconds);
}

static inline int bny_deadline_passed(uint64_t deadline_ns)
{
    return deadline_ns != 0 && bny_now_ns() >= deadline_ns;
}

static inline void bny_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
