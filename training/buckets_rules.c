/* SPDX-License-Identifier: BSD-3-Clause */
/* Rules as text: which tensor has which codec and schedule. The grammar is in training.h. */
#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/nearest.h"
#include "training/buckets.h"

static int buckets_rules_wrong(const char *text, const char *at, const char *what)
{
    return bny_fail(BANYAN_EINVAL,
                    "rules: character %zu, at \"%.20s\": %s; a rule is "
                    "pattern[:>=elements]=codec[@schedule], rules are separated by \";\"",
                    (size_t)(at - text) + 1, at, what);
}

static char *copy_of(const char *from, const char *end)
{
    char *copy;

    while (from < end && isspace((unsigned char)*from))
        from++;
    while (end > from && isspace((unsigned char)end[-1]))
        end--;
    copy = calloc((size_t)(end - from) + 1, 1);
    if (copy)
        memcpy(copy, from, (size_t)(end - from));
    return copy;
}

/* "<", "<=", ">" or ">=" and a number, up to the next ":" or "=". */
static int test_parse(struct bny_rule *r, const char *text, const char **at)
{
    const char *s = *at;
    int less = *s == '<', strict;
    unsigned long long v;
    char *end;

    if (*s != '<' && *s != '>')
        return buckets_rules_wrong(text, s, "a test begins with <, <=, > or >=");
    s++;
    strict = *s != '=';
    s += !strict;
    if (!isdigit((unsigned char)*s))
        return buckets_rules_wrong(text, s, "a number of elements is missing");
    errno = 0;
    v = strtoull(s, &end, 10);
    if (errno || v > PTRDIFF_MAX)
        return buckets_rules_wrong(text, s, "no tensor has so many elements");
    if (less && strict && v == 0)
        return buckets_rules_wrong(text, s, "no tensor has fewer than 0 elements");
    if (less && v - (unsigned)strict < r->most)
        r->most = (size_t)v - (unsigned)strict;
    if (!less && v + (unsigned)strict > r->least)
        r->least = (size_t)v + (unsigned)strict;
    if (*end != ':' && *end != '=')
        return buckets_rules_wrong(text, end, "\"=\" and a codec are missing");
    *at = end;
    return 0;
}

/* A name that exists: its parameters are read where a tensor takes it. */
static int codec_check(const char *text, const char *at, const char *codec)
{
    size_t len = strcspn(codec, ":");
    const char *name;

    for (size_t i = 0; (name = banyan_codec_name(i)); i++)
        if (strlen(name) == len && !memcmp(name, codec, len))
            return 0;
    return bny_fail(BANYAN_EINVAL, "rules: character %zu: there is no codec \"%.*s\"%s",
                    (size_t)(at - text) + 1, (int)(len < 40 ? len : 40), codec,
                    bny_did_you_mean(codec, banyan_codec_name, NULL));
}

/* "codec@schedule", from at to end. */
static int takes_parse(struct bny_rule *r, const char *text, const char *at, const char *end)
{
    const char *sep = memchr(at, '@', (size_t)(end - at));
    int rc;

    r->codec = copy_of(at, sep ? sep : end);
    r->schedule = sep ? copy_of(sep + 1, end) : NULL;
    if (!r->codec || (sep && !r->schedule))
        return bny_fail(BANYAN_ENOMEM, "no memory for rules");
    if (sep && !*r->schedule)
        return buckets_rules_wrong(text, sep, "a schedule is missing after \"@\"");
    rc = *r->codec ? codec_check(text, at, r->codec) : 0;
    if (rc == 0 && (!*r->codec || !strcmp(r->codec, "none"))) {
        free(r->codec);
        r->codec = NULL;
    }
    return rc;
}

/* One rule, up to its ";" or the end. */
static int rule_parse(struct bny_rule *r, const char *text, const char *at, const char *end)
{
    const char *head = at + strcspn(at, ":=;");
    int rc;

    r->most = SIZE_MAX;
    if (head >= end)
        return buckets_rules_wrong(text, at, "\"=\" is missing");
    r->pattern = copy_of(at, head);
    if (!r->pattern)
        return bny_fail(BANYAN_ENOMEM, "no memory for rules");
    if (!*r->pattern)
        return buckets_rules_wrong(text, at, "a pattern is missing");
    while (*head == ':') {
        head++;
        rc = test_parse(r, text, &head);
        if (rc < 0)
            return rc;
    }
    if (r->least > r->most)
        return buckets_rules_wrong(text, at, "no tensor passes all its tests");
    return takes_parse(r, text, head + 1, end);
}

int bny_rules_parse(struct bny_rules *out, const char *text)
{
    size_t cap = 1;
    int rc = 0;

    *out = (struct bny_rules){ 0 };
    if (!text)
        return 0;
    for (const char *s = text; *s; s++)
        cap += *s == ';';
    out->at = calloc(cap, sizeof *out->at);
    if (!out->at)
        return bny_fail(BANYAN_ENOMEM, "no memory for rules");
    for (const char *s = text; rc == 0;) {
        const char *end;
        while (isspace((unsigned char)*s) || *s == ';')
            s++;
        end = s + strcspn(s, ";");
        if (!*s)
            break;
        rc = rule_parse(&out->at[out->n++], text, s, end);
        s = end;
    }
    if (rc < 0)
        bny_rules_free(out);
    return rc;
}

void bny_rules_free(struct bny_rules *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->at[i].pattern);
        free(r->at[i].codec);
        free(r->at[i].schedule);
    }
    free(r->at);
    *r = (struct bny_rules){ 0 };
}

const struct bny_rule *bny_rules_find(const struct bny_rules *r, const struct bny_tensor *t)
{
    for (size_t i = 0; i < r->n; i++)
        if (t->count >= r->at[i].least && t->count <= r->at[i].most &&
            fnmatch(r->at[i].pattern, t->name, 0) == 0)
            return &r->at[i];
    return NULL;
}

/* A name mistyped in a rule is found here or never. */
void bny_rules_tell_idle(const struct bny_rules *r, size_t first, const struct bny_tensors *t,
                         struct banyan_comm *comm)
{
    for (size_t k = first; k < r->n && banyan_comm_rank(comm) == 0; k++) {
        size_t i = 0;

        while (i < t->n && fnmatch(r->at[k].pattern, t->at[i].name, 0) != 0)
            i++;
        if (i == t->n && i)
            bny_warn("no tensor has a name like the rule's \"%s\"", r->at[k].pattern);
    }
}
