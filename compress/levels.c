/* SPDX-License-Identifier: BSD-3-Clause */
/* "levels:up=raw,down=int8": a codec for each direction between hosts. Contributions go up, to
 * the owner of a sum; results go down, and what is no sum. Ranks end with the same bits, as
 * there is one code of a result. Within a host all is raw. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/nearest.h"
#include "base/text.h"
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

static int levels_unknown(const char *word, size_t len)
{
    char text[32];

    snprintf(text, sizeof text, "%.*s", (int)(len < sizeof text ? len : sizeof text - 1), word);
    return bny_fail(
        BANYAN_EINVAL,
        "codec levels: \"%s\" is unknown%s; write up=CODEC and down=CODEC, or net=CODEC "
        "for both; between the ranks of a host data is raw (host=raw)",
        text, bny_did_you_mean(text, key_name, NULL));
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

static int is_lossy(const struct bny_codec *c)
{
    return c && c->ops->family != BNY_CODEC_EXACT;
}

int bny_levels_make(const struct bny_codec **out, const struct bny_codec *up,
                    const struct bny_codec *down, int force)
{
    const struct bny_codec *both[] = { up, down }, *main = is_lossy(down) || !up ? down : up;
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
    const struct bny_codec *codec[KEYS] = { NULL };
    struct bny_pair pair;
    unsigned seen = 0;

    while (bny_pair_next(&text, &pair)) {
        size_t i = 0;
        int rc;

        while (i < KEYS && (strlen(key_name(i)) != pair.key_len ||
                            memcmp(key_name(i), pair.key, pair.key_len) != 0))
            i++;
        if (i == KEYS)
            return levels_unknown(pair.key, pair.key_len);
        if (seen & 1u << i)
            return bny_fail(BANYAN_EINVAL, "codec levels: %s is given twice; give it once",
                            key_name(i));
        seen |= 1u << i;
        if (i == FORCE && (pair.value_len != 1 || *pair.value != '1'))
            return bny_fail(BANYAN_EINVAL, "codec levels: force wants 1");
        if (i != FORCE && (rc = named(&codec[i], &pair)) != 0)
            return rc;
    }
    if (codec[HOST])
        return bny_fail(
            BANYAN_EINVAL,
            "codec levels: between the ranks of a host data is raw; leave host=%s out",
            codec[HOST]->ops->name);
    if (seen & 1u << NET && seen & (1u << UP | 1u << DOWN))
        return bny_fail(
            BANYAN_EINVAL,
            "codec levels: net= is both directions; give either net=, or up= and down=");
    if (!(seen & (1u << NET | 1u << UP | 1u << DOWN)))
        return levels_unknown("", 0);
    return bny_levels_make(out, codec[seen & 1u << NET ? NET : UP],
                           codec[seen & 1u << NET ? NET : DOWN], seen >> FORCE & 1);
}
