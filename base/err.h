/* SPDX-License-Identifier: BSD-3-Clause */
/* Errors inside the library: every function that can fail returns 0 or a negative BANYAN_E*
 * code (include/banyan/banyan.h); the function that detects the error sets the sentence once,
 * with bny_fail(). BNY_AGAIN means "not now", like EAGAIN: it is never an error and never
 * leaves the library. */
#ifndef BNY_BASE_ERR_H
#define BNY_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

#include "banyan/extend.h"

#define BNY_AGAIN (-1000) /* no credit, nothing arrived yet: call again after progress */

#define bny_fail banyan_fail /* banyan/extend.h */
/* Same as bny_fail(BANYAN_ESYSTEM), with ": <strerror(errno)>" appended. */
int bny_fail_errno(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Replaces the last error sentence, to pass on a saved one. */
void bny_set_last_error(const char *text);
/* The reason of rc, which a call has just returned: the last error sentence if it has that
 * code, else the code's phrase. A sentence with another code belongs to an older failure. */
const char *bny_why(int rc);

/* The first error of several steps, which all run, with its sentence. Begins with rc 0. */
struct bny_first_error {
    int rc;
    char text[512];
};
/* Notes rc, which a step has just returned. */
void bny_first_error_note(struct bny_first_error *first, int rc);
/* Returns the first error, or 0; its sentence becomes the last error's. */
int bny_first_error_return(const struct bny_first_error *first);

#endif
