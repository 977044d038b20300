/* SPDX-License-Identifier: BSD-3-Clause */
/* "topk:delta=0.01" -> a configured codec. Codecs are interned: they are few, and compared by
 * pointer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fork.h"
#include "base/nearest.h"
#include "base/text.h"
#include "compress/parse.h"

struct entry {
    struct bny_codec codec;
    struct entry *next;
};

static struct bny_lock lock = BNY_LOCK(NULL);
static struct entry *known; /* never freed: codecs live as long as the process */

const char *bny_codec_list(void)
{
    static _Thread_local char text[600];
    const struct bny_codec_ops *ops;
    size_t at = 0;

    for (size_t i = 0; (ops = bny_codec_at(i)) && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? ", " : "", ops->name);
    return text;
}

static const char *name_at(size_t i)
{
    const struct bny_codec_ops *ops = bny_codec_at(i);

    return ops ? ops->name : NULL;
}

static int nparams(const struct bny_codec_ops *ops)
{
    int n = 0;

    while (n < BNY_CODEC_PARAMS && ops->params[n].name[0])
        n++;
    return n;
}

static int find_param(const struct bny_codec_ops *ops, const char *name, size_t len)
{
    for (int i = 0; i < nparams(ops); i++)
        if (strlen(ops->params[i].name) == len && !memcmp(ops->params[i].name, name, len))
            return i;
    return -1;
}

double bny_codec_get(const struct bny_codec *c, const char *param)
{
    int i = find_param(c->ops, param, strlen(param));

    return i < 0 ? NAN : c->param[i];
}

static int unknown_param(const struct bny_codec_ops *ops, const char *name, size_t len)
{
    char list[200] = "";
    size_t at = 0;

    for (int i = 0; i < nparams(ops) && at < sizeof list; i++)
        at += (size_t)bny_snprintf(list + at, sizeof list - at, "%s%s (%g to %g, default %g)",
                                   i ? ", " : "", ops->params[i].name, ops->params[i].min,
                                   ops->params[i].max, ops->params[i].def);
    return bny_fail(BANYAN_EINVAL, "codec %s has no parameter \"%.*s\"; %s%s", ops->name,
                    (int)(len < 40 ? len : 40), name, *list ? "it has: " : "it has none", list);
}

static int given_twice(const struct bny_codec_ops *ops, const char *param)
{
    return bny_fail(BANYAN_EINVAL, "codec %s: parameter %s is given twice; give it once",
                    ops->name, param);
}

/* Reads "param=value,param=value" into c. */
static int params_parse(struct bny_codec *c, const char *text)
{
    struct bny_pair pair;
    unsigned seen = 0; /* bit i: parameter i */

    while (bny_pair_next(&text, &pair)) {
        int i = find_param(c->ops, pair.key, pair.key_len);
        const struct bny_codec_param *p = &c->ops->params[i < 0 ? 0 : i];
        char *end, digits[32];
        double v;

        if (i < 0 && pair.value_len == 1 && !strncmp(pair.key, "force=1", 7)) {
            if (c->force)
                return given_twice(c->ops, "force");
            c->force = 1;
            continue;
        }
        if (i < 0)
            return unknown_param(c->ops, pair.key, pair.key_len);
        if (seen & 1u << i)
            return given_twice(c->ops, p->name);
        seen |= 1u << i;
        if (!pair.value)
            return bny_fail(BANYAN_EINVAL, "codec %s: parameter %s has no value; write %s=%g",
                            c->ops->name, p->name, p->name, p->def);
        v = bny_strtod(pair.value, &end);
        bny_snprintf(digits, sizeof digits, "%.10g",
                     v); /* as in the canonical text, which ranks compare */
        v = bny_strtod(digits, NULL);
        if (!pair.value_len || end != pair.value + pair.value_len ||
            !(v >= p->min && v <= p->max) || (p->integer && v != floor(v)))
            return bny_fail(BANYAN_EINVAL, "codec %s: %s=%.*s must be %s from %g to %g",
                            c->ops->name, p->name, (int)pair.value_len, pair.value,
                            p->integer ? "an integer" : "a number", p->min, p->max);
        c->param[i] = v;
    }
    return 0;
}

/* The canonical text. */
static void name_it(struct bny_codec *c)
{
    size_t at = (size_t)snprintf(c->spec, sizeof c->spec, "%s", c->ops->name);
    char sep = ':';

    for (int i = 0; i < nparams(c->ops) && at < sizeof c->spec; i++)
        if (c->param[i] != c->ops->params[i].def) {
            at += (size_t)bny_snprintf(c->spec + at, sizeof c->spec - at, "%c%s=%.10g", sep,
                                       c->ops->params[i].name, c->param[i]);
            sep = ',';
        }
    if (c->force && at < sizeof c->spec)
        snprintf(c->spec + at, sizeof c->spec - at, "%cforce=1", sep);
}

static int is_same(const struct bny_codec *a, const struct bny_codec *b)
{
    return a->ops == b->ops && a->force == b->force && a->is_levels == b->is_levels &&
           !memcmp(a->param, b->param, sizeof a->param) &&
           (!a->is_levels || (a->up == b->up && a->down == b->down)) &&
           !a->budget == !b->budget && (!a->budget || !strcmp(a->spec, b->spec));
}

int bny_codec_intern(const struct bny_codec **out, const struct bny_codec *c)
{
    struct entry *e;

    bny_lock_take(&lock);
    for (e = known; e && !is_same(&e->codec, c); e = e->next)
        ;
    if (!e && (e = malloc(sizeof *e))) {
        e->codec = *c;
        if (!c->is_levels)
            e->codec.up = e->codec.down = &e->codec;
        e->codec.hash = 2166136261u; /* FNV-1a */
        for (const char *s = c->spec; *s; s++)
            e->codec.hash = (e->codec.hash ^ (uint8_t)*s) * 16777619u;
        e->next = known;
        known = e;
    }
    bny_lock_give(&lock);
    if (!e)
        return bny_fail(BANYAN_ENOMEM, "no memory for codec %s", c->spec);
    *out = &e->codec;
    return 0;
}

int bny_codec_parse(const struct bny_codec **out, const char *text)
{
    size_t len = strcspn(text, ":");
    struct bny_codec c = { 0 };
    char name[16];
    int rc;

    snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), text);
    if (bny_levels_is_name(name))
        return (name[0] == 'l' ? bny_levels_parse
                               : bny_budget_parse)(out, text + len + (text[len] != 0));
    c.ops = len < sizeof name ? bny_codec_find(name) : NULL;
    if (!c.ops && !strcmp(name, "gtopk"))
        return bny_fail(BANYAN_EINVAL, "codec: gtopk is an option of topk; write "
                                       "topk:reselect=1, and schedule binomial for its trees");
    if (!c.ops)
        return bny_fail(BANYAN_EINVAL,
                        "codec: \"%.32s\" is unknown%s; there are: %s; levels:up=...,"
                        "down=... and auto:max=... choose of them",
                        text, bny_did_you_mean(name, name_at, NULL), bny_codec_list());
    for (int i = 0; i < nparams(c.ops); i++)
        c.param[i] = c.ops->params[i].def;
    if (text[len] && (rc = params_parse(&c, text + len + 1)) != 0)
        return rc;
    if (c.ops->check && (rc = c.ops->check(&c)) != 0)
        return rc;
    name_it(&c);
    return bny_codec_intern(out, &c);
}
