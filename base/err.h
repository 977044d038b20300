/* SPDX-License-Identifier: BSD-3-Clause */
/* Errors inside the library: every function that can fail returns 0 or a negative BANYAN_E*
 * code (include/banyan/banyan.h), and says the sentence once, where the error is born, with
 * bny_fail(). -EAGAIN-like answers ("not now") are BNY_AGAIN: never an error, never leaves the
 * library. */
#ifndef BNY_BASE_ERR_H
#define BNY_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

#include "banyan/extend.h"

#define BNY_AGAIN (-1000) /* no credit, nothing arrived yet: call again after progress */

#define bny_fail banyan_fail /* banyan/extend.h */
/* As bny_fail(BANYAN_ESYSTEM), with ": <strerror(errno)>" appended. */
int bny_fail_errno(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Replaces the last error sentence (to hand on one that was kept). */
void bny_set_last_error(const char *text);
/* Why what has just returned rc failed: the last error sentence, when it came with that code,
 * else the code's phrase. A sentence of another code is of another, older failure. */
const char *bny_why(int rc);

#endif
