/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/text.h"

#include <fenv.h>
#include <locale.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/lazy_cjson.h"

int bny_pair_next(const char **text, struct bny_pair *out)
{
    const char *at = *text;
    size_t len = strcspn(at, ",");

    if (!*at)
        return 0;
    *out = (struct bny_pair){ .key = at, .key_len = strcspn(at, "=,") };
    if (out->key_len < len) {
        out->value = at + out->key_len + 1;
        out->value_len = len - out->key_len - 1;
    }
    *text = at + len + (at[len] == ',');
    return 1;
}

/* The C library has this locale built in: nothing is loaded, so it cannot fail. */
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

/* The thread's settings: its locale, and its rounding mode. */
struct chosen {
    locale_t locale;
    fenv_t fp;
};

static void put_aside(struct chosen *was)
{
    was->locale = uselocale(c_locale());
    feholdexcept(&was->fp);
    fesetround(FE_TONEAREST);
}

static void put_back(const struct chosen *was)
{
    fesetenv(&was->fp);
    uselocale(was->locale);
}

double bny_strtod(const char *text, char **end)
{
    struct chosen was;
    double v;

    put_aside(&was);
    v = strtod(text, end);
    put_back(&was);
    return v;
}

int bny_strcasecmp(const char *a, const char *b)
{
    return strcasecmp_l(a, b, c_locale());
}

int bny_vsnprintf(char *buf, size_t cap, const char *fmt, va_list ap)
{
    struct chosen was;
    int n;

    put_aside(&was);
    n = vsnprintf(buf, cap, fmt, ap);
    put_back(&was);
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
    struct chosen was;
    va_list ap;
    int n;

    put_aside(&was);
    va_start(ap, fmt);
    n = vfprintf(f, fmt, ap);
    va_end(ap);
    put_back(&was);
    return n;
}

void bny_text_printable(char *text)
{
    uint8_t before = 0;

    for (uint8_t *at = (uint8_t *)text; *at; before = *at++)
        if (*at == '\n' || *at == '\t')
            *at = ' ';
        else if (before == 0xc2 && *at >= 0x80 && *at < 0xa0) /* U+0080 to 9f */
            at[-1] = *at = '?';
        else if (*at < ' ' || *at == 0x7f)
            *at = '?';
}

struct cJSON *bny_json_parse(const char *text, size_t len, const char **end)
{
    struct chosen was;
    cJSON *o;

    put_aside(&was);
    o = cJSON_ParseWithLengthOpts(text, len, end, 0);
    put_back(&was);
    return o;
}

void bny_json_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(f, "\\%c", *text);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, f);
    fputc('"', f);
}
