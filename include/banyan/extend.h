/* SPDX-License-Identifier: BSD-3-Clause */
/* Functions for libraries on top of banyan, whose calls then fail, log and refuse as banyan's
 * own do: banyan-training and banyan-methods use these functions and nothing else that is not
 * in banyan.h. Programs need none of them. Compiles alone as C11 and as C++17; part of
 * libbanyan.
 */
#ifndef BANYAN_EXTEND_H
#define BANYAN_EXTEND_H

#include <banyan/banyan.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BANYAN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define BANYAN_PRINTF(fmt, args)
#endif

/* Sets the sentence that banyan_last_error() returns to this thread: printf's format, cut off
 * after 511 bytes, numbers with a decimal point in every locale. Arguments may point into the
 * last error. Returns -code: return banyan_fail(BANYAN_EINVAL, "rank %d: ...", rank). */
BANYAN_API int banyan_fail(enum banyan_error code, const char *fmt, ...) BANYAN_PRINTF(2, 3);

/* Writes a line to the log of the process (banyan_set_log) if level is on, with the prefix of
 * banyan's lines: printf's format, without newline, cut off after 1023 bytes. Any thread, but
 * not from a log function. */
BANYAN_API void banyan_log(enum banyan_log_level level, const char *fmt, ...)
    BANYAN_PRINTF(2, 3);

/* May a call wait here for the other ranks of comm, by operations of its own? Returns 0 if it
 * may; -BANYAN_EBUSY inside a group or a user operation; -BANYAN_EINVAL if comm is NULL, was
 * finalized or destroyed, or still joins; -BANYAN_EFORK in a forked child. The sentence begins
 * with `call`, the name of the function that asks. Sends nothing, and does not ask whether comm
 * has failed: the operations return that. Any thread. */
BANYAN_API int banyan_comm_may_wait(const struct banyan_comm *comm, const char *call);

#ifdef __cplusplus
}
#endif

#endif
