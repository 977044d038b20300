/* SPDX-License-Identifier: BSD-3-Clause */
/* The typed registry of environment variables: BANYAN_<NAME>. param.c's table has all of them
 * with type, default and doc. The settings of a transport are keys of one variable:
 * BANYAN_VERBS="qps=2,srq=1"; the table has each as a name of its own, BANYAN_VERBS=qps, which
 * all functions for values take. */
#ifndef BNY_BASE_PARAM_H
#define BNY_BASE_PARAM_H

#include <stddef.h>
#include <stdint.h>

/* Name with the BANYAN_ prefix, e.g. "BANYAN_IFNAME", and of no key. Returns the environment's
 * value or the table's default, "" if none. Asserts that the name is in the table. Any
 * thread. */
const char *bny_param_str(const char *name);
/* The same of a variable or a key, cut to cap. */
void bny_param_text(const char *name, char *out, size_t cap);
/* Whole number, with K, M, G suffixes; a value that does not parse or is out of range causes a
 * warning, once per process, and the default is used. */
int64_t bny_param_int(const char *name);
double bny_param_real(const char *name);
/* The place of the value among the words of the type: 1 for qp of auto|qp|cm. Wrong ones as
 * above. */
int bny_param_choice(const char *name);
/* 1: this process has not warned about this variable's value yet; marks it as warned about. */
int bny_param_first_wrong(const char *name);
/* 1 if the variable is set (and not empty) in the environment. */
int bny_param_is_set(const char *name);
/* Warns about unknown BANYAN_* variables in the environment, with the nearest known name; once
 * per process. Returns 0, or -BANYAN_ECONFIG: a variable is set that has become a key of
 * another, or one with keys has an unknown one, one twice, or a wrong value. */
int bny_param_check(void);

/* "64M" -> 67108864; K, M, G are powers of two, k m g too. Returns 0, or -BANYAN_EINVAL. */
int bny_parse_size(const char *text, uint64_t *out);

#endif
