/* SPDX-License-Identifier: BSD-3-Clause */
/* "levels:up=raw,down=int8": a codec for each direction between hosts. Contributions go up, to
 * the owner of a sum; results go down, and what is no sum. Ranks end with the same bits, as
 * there is one code of a result. Within a host all is raw. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/nearest.h"
#include "compress/parse.h"

enum key { HOST, NET, UP, DOWN, FORCE, KEYS };

static const char *key_name(size_t i)
{
    static const char *const names[KEYS] = { "host", "net", "up", "down", "force" };

    return i < KEYS ? names[i] : NULL;
}

int bny_levels_is_name(const char *name)
{
    return !strcmp(name, "levels") || !strcmp(name, "auto");
}

static int unknown_key(const char *(*name_of)(size_t), const char *kind, const char *write,
                       const char *word, size_t len)
{
    char text[32];

    snprintf(text, sizeof text, "%.*s", (int)(len < sizeof text ? len : sizeof text - 1), word);
    return bny_fail(BANYAN_EINVAL, "codec %s: \"%s\" is unknown%s; write %s", kind, text,
                    bny_did_you_mean(text, name_of, NULL), write);
}

int bny_codec_keys(struct bny_pair given[], const char *(*name_of)(size_t), const char *kind,
                   const char *write, const char *text)
{
    struct bny_pair pair;

    while (bny_pair_next(&text, &pair)) {
        size_t i = 0;

        while (name_of(i) && (strlen(name_of(i)) != pair.key_len ||
                              memcmp(name_of(i), pair.key, pair.key_len) != 0))
            i++;
        if (!name_of(i))
            return unknown_key(name_of, kind, write, pair.key, pair.key_len);
        if (given[i].key)
            return bny_fail(BANYAN_EINVAL, "codec %s: %s is given twice; give it once", kind,
                            name_of(i));
        given[i] = pair;
    }
    return 0;
}

/* A codec by its name; *out NULL: raw. */
static int named(const struct bny_codec **out, const struct bny_pair *pair)
{
    char name[16];
    int rc;

    if (!pair->value || pair->value_len >= sizeof name ||
        memchr(pair->value, ':', pair->value_len))
        return bny_fail(BANYAN_EINVAL,
                        "codec levels: %.*s wants the name of a codec, without parameters",
                        (int)pair->key_len, pair->key);
    snprintf(name, sizeof name, "%.*s", (int)pair->value_len, pair->value);
    if (bny_levels_is_name(name))
        return bny_fail(BANYAN_EINVAL, "codec levels: %s is no codec of one direction", name);
    rc = bny_codec_parse(out, strcmp(name, "raw") ? name : "none");
    if (rc == 0 && (*out)->ops->family == BNY_CODEC_RAW)
        *out = NULL;
    if (rc == 0 && *out && (*out)->ops->linear)
        rc = bny_fail(
            BANYAN_EINVAL,
            "codec levels: codes of %s are summed in stages of all ranks; name it alone", name);
    return rc;
}

/* Whether a codec keeps no more of a tensor than a residual. */
static int is_simple(const struct bny_codec *c)
{
    return !c || (c->ops->family != BNY_CODEC_SPARSE && !c->ops->track_bytes &&
                  !c->ops->stats_bytes && !c->ops->elem_floats);
}

int bny_levels_make(const struct bny_codec **out, const struct bny_codec *up,
                    const struct bny_codec *down, int force)
{
    const struct bny_codec *both[] = { up, down },
                           *main = bny_codec_is_lossy(down) || !up ? down : up;
    struct bny_codec c = { .is_levels = 1, .up = up, .down = down, .force = force };

    for (int i = 0; up != down && i < 2; i++)
        if (!is_simple(both[i]))
            return bny_fail(
                BANYAN_EINVAL,
                "codec levels: %s sends some elements, or keeps more than a residual, "
                "so it goes both ways; write net=%s",
                both[i]->ops->name, both[i]->ops->name);
    if (!main)
        return bny_codec_parse(out, "none");
    c.ops = main->ops;
    memcpy(c.param, main->param, sizeof c.param);
    snprintf(c.spec, sizeof c.spec, "levels:up=%s,down=%s%s", up ? up->ops->name : "raw",
             down ? down->ops->name : "raw", force ? ",force=1" : "");
    return bny_codec_intern(out, &c);
}

int bny_levels_parse(const struct bny_codec **out, const char *text)
{
    static const char write[] =
        "up=CODEC and down=CODEC, or net=CODEC for both; between the ranks of a host data is "
        "raw (host=raw)";
    const struct bny_codec *codec[KEYS] = { NULL };
    struct bny_pair given[KEYS] = { { .key = NULL } };
    int rc = bny_codec_keys(given, key_name, "levels", write, text);

    for (size_t i = 0; i < FORCE && rc == 0; i++)
        rc = given[i].key ? named(&codec[i], &given[i]) : 0;
    if (rc)
        return rc;
    if (given[FORCE].key && (given[FORCE].value_len != 1 || *given[FORCE].value != '1'))
        return bny_fail(BANYAN_EINVAL, "codec levels: force wants 1");
    if (codec[HOST])
        return bny_fail(
            BANYAN_EINVAL,
            "codec levels: between the ranks of a host data is raw; leave host=%s out",
            codec[HOST]->ops->name);
    if (given[NET].key && (given[UP].key || given[DOWN].key))
        return bny_fail(
            BANYAN_EINVAL,
            "codec levels: net= is both directions; give either net=, or up= and down=");
    if (!given[NET].key && !given[UP].key && !given[DOWN].key)
        return unknown_key(key_name, "levels", write, "", 0);
    return bny_levels_make(out, codec[given[NET].key ? NET : UP],
                           codec[given[NET].key ? NET : DOWN], given[FORCE].key != NULL);
}
