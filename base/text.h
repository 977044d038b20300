/* SPDX-License-Identifier: BSD-3-Clause */
/* Text that machines read: numbers with a decimal point, and ASCII letters, whatever the locale
 * and rounding mode of the program or thread. The rest of the library does not call the
 * functions that these replace (check_text.py). Any thread. */
#ifndef BNY_BASE_TEXT_H
#define BNY_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

struct cJSON;

/* One part of "key=value,key=value": settings of codecs and transports. */
struct bny_pair {
    const char *key, *value; /* value NULL: there is no '=' */
    size_t key_len, value_len;
};
/* Takes the part in front off *text. Returns 1, or 0 at the end. */
int bny_pair_next(const char **text, struct bny_pair *out);

double bny_strtod(const char *text, char **end);
int bny_strcasecmp(const char *a, const char *b);

int bny_vsnprintf(char *buf, size_t cap, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
int bny_snprintf(char *buf, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int bny_fprintf(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Replaces control characters, which a terminal would obey, by '?', ends of lines by blanks:
 * for sentences, in which other processes' texts stand. UTF-8 stays. */
void bny_text_printable(char *text);

/* Writes text as a string of JSON, which is a label's value of OpenMetrics as well, without
 * control characters. */
void bny_json_text(FILE *f, const char *text);

/* cJSON_ParseWithLengthOpts; call bny_lazy_cjson() before. *end: behind the value, or the
 * position of an error. The caller frees it with cJSON_Delete. */
struct cJSON *bny_json_parse(const char *text, size_t len, const char **end);

#endif
