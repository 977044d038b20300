/* SPDX-License-Identifier: BSD-3-Clause */
/* Monotonic time and the pause instruction. Deadlines are absolute nanoseconds; 0 means none. */
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

/* Absolute deadline `seconds` from now; 0 (none) when seconds <= 0. */
static inline uint64_t bny_deadline_in(double seconds)
{
    return seconds <= 0 ? 0 : bny_now_ns() + (uint64_t)(seconds * 1e9);
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
