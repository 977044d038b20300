/* SPDX-License-Identifier: BSD-3-Clause */
/* Exact fractions (ratio.h). */
#include "topo/ratio.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

__extension__ typedef __int128 wide;

enum {
    DIGITS = 19,  /* of a whole number: the most that fits in an int64_t */
    DECIMALS = 8, /* that count, after up to 9 digits before the point */
};

static const struct bny_ratio none = { 1, 0 };

static struct bny_ratio reduce(wide num, wide den)
{
    wide a, b;

    if (den == 0)
        return none;
    if (den < 0) {
        num = -num;
        den = -den;
    }
    for (a = num < 0 ? -num : num, b = den; b;) {
        wide r = a % b;
        a = b;
        b = r;
    }
    num /= a;
    den /= a;
    if (num > INT64_MAX || num < -INT64_MAX || den > INT64_MAX)
        return none;
    return (struct bny_ratio){ (int64_t)num, (int64_t)den };
}

int bny_ratio_ok(struct bny_ratio r)
{
    return r.den > 0;
}

struct bny_ratio bny_ratio_of(int64_t num, int64_t den)
{
    return reduce(num, den);
}

/* a/b + c/d over the least common denominator: the products stay within 128 bits. */
struct bny_ratio bny_ratio_add(struct bny_ratio a, struct bny_ratio b)
{
    struct bny_ratio g = reduce(a.den, b.den); /* a.den = x g.num, b.den = x g.den */

    if (!a.den || !b.den || !g.den)
        return none;
    /* |a.num| * g.den and |b.num| * g.num are below 2^126 each */
    return reduce((wide)a.num * g.den + (wide)b.num * g.num, (wide)a.den * g.den);
}

struct bny_ratio bny_ratio_mul(struct bny_ratio a, struct bny_ratio b)
{
    return reduce((wide)a.num * b.num, (wide)a.den * b.den);
}

struct bny_ratio bny_ratio_div(struct bny_ratio a, struct bny_ratio b)
{
    return a.den && b.den ? reduce((wide)a.num * b.den, (wide)a.den * b.num) : none;
}

int bny_ratio_cmp(struct bny_ratio a, struct bny_ratio b)
{
    wide l = (wide)a.num * b.den, r = (wide)b.num * a.den;

    return l < r ? -1 : l > r;
}

double bny_ratio_value(struct bny_ratio r)
{
    return (double)r.num / (double)r.den;
}

char *bny_ratio_text(struct bny_ratio r, char *buf, size_t cap)
{
    if (r.den == 1)
        snprintf(buf, cap, "%" PRId64, r.num);
    else
        snprintf(buf, cap, "%" PRId64 "/%" PRId64, r.num, r.den);
    return buf;
}

/* Appends the digits of one number to v: at most `most` of them, while v does not overflow.
 * Returns the rest of the text. */
static const char *digits(const char *s, int most, int64_t *v, int *n)
{
    int64_t next;

    for (*n = 0; *n < most && isdigit((unsigned char)*s); ++*n) {
        if (__builtin_mul_overflow(*v, 10, &next) ||
            __builtin_add_overflow(next, *s - '0', &next))
            break;
        *v = next;
        s++;
    }
    return s;
}

int bny_ratio_parse(struct bny_ratio *out, const char *text)
{
    const char *s = text + (*text == '-');
    int64_t num = 0, den = 1, scale = 1;
    int before, after = 0;

    s = digits(s, DIGITS, &num, &before);
    if (*s == '.' && before < 10) {
        s = digits(s + 1, DECIMALS, &num, &after);
        for (int i = 0; i < after; i++)
            scale *= 10;
        if (after)
            s += strspn(s, "0123456789");
    } else if (*s == '/' && before) {
        den = 0;
        s = digits(s + 1, DIGITS, &den, &after);
    }
    if (*s || before + after == 0 || den == 0)
        return bny_fail(BANYAN_EINVAL, "\"%.40s\" is no number: write 12, 12.5 or 25/2", text);
    *out = reduce(*text == '-' ? -(wide)num : num, (wide)den * scale);
    return 0;
}
