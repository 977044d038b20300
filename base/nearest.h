/* SPDX-License-Identifier: BSD-3-Clause */
/* Suggestions for a name that does not exist. */
#ifndef BNY_BASE_NEAREST_H
#define BNY_BASE_NEAREST_H

#include <stddef.h>

/* The i-th existing name, NULL past the end. */
typedef const char *(*bny_name_fn)(size_t i);

/* " (did you mean ring?)" with the name of the smallest edit distance from text, for the end of
 * a sentence; "" if none is near: more than a third of its letters are wrong. Valid until the
 * thread's next call. more: a further name, or NULL. */
const char *bny_did_you_mean(const char *text, bny_name_fn name, const char *more);

#endif
