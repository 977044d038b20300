/* SPDX-License-Identifier: BSD-3-Clause */
/* "auto:max=1e-2,nmse=2e-4": what a call may lose, and from what codecs (levels.c) a plan
 * chooses those of both directions. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "compress/parse.h"
#include "compress/speed.h"

#define FROM_MAX     6
#define FROM_DEFAULT "raw+lossless+bf16+int8+int4"

enum key { MAX, NMSE, LIKE, FROM, FEEDBACK, FORCE, KEYS };

static const char *key_name(size_t i)
{
    static const char *const names[KEYS] = {
        "max", "nmse", "like", "from", "feedback", "force"
    };

    return i < KEYS ? names[i] : NULL;
}

/* ---- what may be lost ---- */

static int number(double *out, const struct bny_pair *pair)
{
    char *end, digits[32];

    if (pair->value && pair->value_len) {
        bny_snprintf(digits, sizeof digits, "%.10g", bny_strtod(pair->value, &end));
        *out = bny_strtod(digits, NULL); /* as in the canonical text */
        if (end == pair->value + pair->value_len && *out >= 0 && isfinite(*out))
            return 0;
    }
    return bny_fail(BANYAN_EINVAL, "codec auto: %.*s wants a number from 0 on, such as 1e-2",
                    (int)pair->key_len, pair->key);
}

/* A codec by its name, of which is known what it loses; *out NULL: raw. */
static int known(const struct bny_codec **out, enum key key, const char *text, size_t len)
{
    char name[16];
    double nmse, max;
    int rc = 0;

    if (len >= sizeof name || memchr(text, ':', len))
        return bny_fail(BANYAN_EINVAL,
                        "codec auto: %s= wants %s, without parameters; raw, lossless, bf16, "
                        "e4m3, int8 and int4 are some",
                        key_name(key), key == LIKE ? "the name of a codec" : "names of codecs");
    snprintf(name, sizeof name, "%.*s", (int)len, text);
    *out = NULL;
    if (strcmp(name, "raw") != 0 && strcmp(name, "none") != 0)
        rc = bny_levels_is_name(name)
                 ? bny_fail(BANYAN_EINVAL, "codec auto: %s is no codec to choose", name)
                 : bny_codec_parse(out, name);
    if (rc)
        return rc;
    bny_codec_loss(*out, &nmse, &max);
    return isfinite(max)
               ? 0
               : bny_fail(BANYAN_EINVAL,
                          "codec auto: nothing bounds what %s loses; %s= takes raw, lossless, "
                          "bf16, e4m3, int8, int4",
                          name, key_name(key));
}

/* ---- from what codecs ---- */

static int take_from(const struct bny_codec *from[FROM_MAX], int *n, const char *text,
                     size_t len)
{
    *n = 0;
    for (;;) {
        size_t one = 0;
        int rc;

        while (one < len && text[one] != '+')
            one++;
        if (*n == FROM_MAX || !one)
            return bny_fail(BANYAN_EINVAL,
                            "codec auto: from wants 1 to %d names with + between them",
                            FROM_MAX);
        rc = known(&from[*n], FROM, text, one);
        if (rc)
            return rc;
        for (int i = 0; i < *n; i++)
            if (from[i] == from[*n])
                return bny_fail(BANYAN_EINVAL, "codec auto: from has %.*s twice; name it once",
                                (int)one, text);
        ++*n;
        if (one == len)
            return 0;
        text += one + 1;
        len -= one + 1;
    }
}

/* All pairs; of those that lose nothing only one codec for both directions, as its gain is
 * small.
 */
static int make_pairs(struct bny_budget *b, const struct bny_codec *const *from, int n,
                      int force)
{
    int rc = 0;

    for (int i = 0; i < n * n && rc == 0; i++) {
        const struct bny_codec *up = from[i / n], *down = from[i % n], *made;

        if ((!up && !down) ||
            (up != down && !bny_codec_is_lossy(up) && !bny_codec_is_lossy(down)))
            continue;
        rc = bny_levels_make(&made, up, down, force);
        if (rc == 0 && !bny_codec_is_lossy(up) && !bny_codec_is_lossy(down) && !b->exact)
            b->exact = made;
        if (rc == 0)
            b->pairs[b->npairs++] = made;
    }
    return rc;
}

/* ---- all of it ---- */

/* The canonical text, which tells two budgets apart. 0 or -BANYAN_EINVAL. */
static int budget_name(struct bny_codec *c, const struct bny_budget *b, const char *from,
                       size_t len)
{
    char text[256]; /* known() bounds the names, take_from() how many there are */
    size_t at = (size_t)snprintf(text, sizeof text, "auto");

    if (isfinite(b->max))
        at += (size_t)bny_snprintf(text + at, sizeof text - at, ":max=%.10g", b->max);
    if (isfinite(b->nmse))
        at += (size_t)bny_snprintf(text + at, sizeof text - at, "%cnmse=%.10g",
                                   at > 4 ? ',' : ':', b->nmse);
    if (len != strlen(FROM_DEFAULT) || memcmp(from, FROM_DEFAULT, len) != 0)
        at += (size_t)snprintf(text + at, sizeof text - at, ",from=%.*s", (int)len, from);
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%s",
                           b->feedback ? ",feedback=1" : "", c->force ? ",force=1" : "");
    assert(at < sizeof text);
    if (at >= sizeof c->spec)
        return bny_fail(BANYAN_EINVAL,
                        "codec auto: \"%s\" has more than %zu characters; name fewer codecs in "
                        "from=",
                        text, sizeof c->spec - 1);
    memcpy(c->spec, text, at + 1);
    return 0;
}

/* The pairs of value that the text gives. */
static int read_keys(struct bny_pair given[KEYS], const char *text)
{
    int rc = bny_codec_keys(given, key_name, "auto",
                            "max=, nmse= or like=CODEC for what may be lost, "
                            "from=raw+bf16+int8 for the codecs, feedback=1, force=1",
                            text);

    for (size_t i = 0; i < KEYS && rc == 0; i++) {
        const struct bny_pair *p = &given[i];

        if (p->key && !p->value)
            rc = bny_fail(BANYAN_EINVAL, "codec auto: %s has no value; write %s=...",
                          key_name(i), key_name(i));
        else if (p->key && i >= FEEDBACK && (p->value_len != 1 || *p->value != '1'))
            rc = bny_fail(BANYAN_EINVAL, "codec auto: %s wants 1", key_name(i));
    }
    return rc;
}

static int take_limits(struct bny_budget *b, const struct bny_pair given[KEYS])
{
    const struct bny_codec *like;
    double q, h;
    int rc = 0;

    if (given[MAX].key && given[FEEDBACK].key)
        return bny_fail(BANYAN_EINVAL,
                        "codec auto: with feedback=1 a result also has what earlier calls "
                        "lost, so no max= bounds its error; write nmse= in its place, or leave "
                        "feedback=1 out");
    if (!given[MAX].key && !given[NMSE].key && !given[LIKE].key &&
        (given[FROM].key || given[FEEDBACK].key))
        return bny_fail(BANYAN_EINVAL,
                        "codec auto: %s= names no budget; add max=, nmse= or like=CODEC",
                        key_name(given[FROM].key ? FROM : FEEDBACK));
    if (given[LIKE].key && given[NMSE].key)
        return bny_fail(BANYAN_EINVAL, "codec auto: like= is an nmse; give one of both");
    if (given[MAX].key)
        rc = number(&b->max, &given[MAX]);
    if (rc == 0 && given[NMSE].key)
        rc = number(&b->nmse, &given[NMSE]);
    if (rc == 0 && given[LIKE].key) {
        rc = known(&like, LIKE, given[LIKE].value, given[LIKE].value_len);
        if (rc == 0) {
            bny_codec_loss(like, &q, &h);
            b->nmse = 2 * q;
        }
    }
    if (!given[MAX].key && !given[NMSE].key && !given[LIKE].key)
        b->max = 0; /* nothing may be lost */
    return rc;
}

int bny_budget_parse(const struct bny_codec **out, const char *text)
{
    struct bny_pair given[KEYS] = { { .key = NULL } };
    const struct bny_codec *from[FROM_MAX] = { NULL };
    struct bny_budget b = { .max = INFINITY, .nmse = INFINITY }, *kept;
    struct bny_codec c = { .is_levels = 1 };
    const char *names = FROM_DEFAULT;
    size_t len = strlen(FROM_DEFAULT);
    int n, rc = read_keys(given, text);

    if (rc == 0)
        rc = take_limits(&b, given);
    if (rc)
        return rc;
    b.feedback = given[FEEDBACK].key != NULL;
    c.force = given[FORCE].key != NULL;
    if (given[FROM].key) {
        names = given[FROM].value;
        len = given[FROM].value_len;
    }
    rc = take_from(from, &n, names, len);
    if (rc == 0)
        rc = make_pairs(&b, from, n, c.force);
    if (rc)
        return rc;
    if (!b.npairs)
        return bny_codec_parse(out, "none");
    for (int i = 0; i < b.npairs && !bny_codec_is_lossy(c.up); i++)
        c.up = c.down = b.pairs[i];
    c.ops = c.up->ops;
    memcpy(c.param, c.up->param, sizeof c.param);
    rc = budget_name(&c, &b, names, len);
    if (rc)
        return rc;
    kept = malloc(sizeof *kept);
    if (!kept)
        return bny_fail(BANYAN_ENOMEM, "no memory for codec %s", c.spec);
    *kept = b;
    c.budget = kept;
    rc = bny_codec_intern(out, &c);
    if (rc || (*out)->budget != kept)
        free(kept);
    return rc;
}
