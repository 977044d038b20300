/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/text.h"

#include <locale.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <strings.h>

#include "base/lazy_cjson.h"

/* The C library has this locale built in: nothing is loaded, and nothing can fail. */
static locale_t c_locale(void)
{
    static _Atomic(locale_t) kept;
    locale_t c = atomic_load_explicit(&kept, memory_order_relaxed);

    if (!c) {
        c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        atomic_store_explicit(&kept, c, memory_order_relaxed);
    }
    return c;
}

double bny_strtod(const char *text, char **end)
{
    return strtod_l(text, end, c_locale());
}

int bny_strcasecmp(const char *a, const char *b)
{
    return strcasecmp_l(a, b, c_locale());
}

int bny_vsnprintf(char *buf, size_t cap, const char *fmt, va_list ap)
{
    locale_t before = uselocale(c_locale());
    int n = vsnprintf(buf, cap, fmt, ap);

    uselocale(before);
    return n;
}

int bny_snprintf(char *buf, size_t cap, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = bny_vsnprintf(buf, cap, fmt, ap);
    va_end(ap);
    return n;
}

int bny_fprintf(FILE *f, const char *fmt, ...)
{
    locale_t before = uselocale(c_locale());
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vfprintf(f, fmt, ap);
    va_end(ap);
    uselocale(before);
    return n;
}

struct cJSON *bny_json_parse(const char *text, size_t len, const char **end)
{
    locale_t before = uselocale(c_locale());
    cJSON *o = cJSON_ParseWithLengthOpts(text, len, end, 0);

    uselocale(before);
    return o;
}
