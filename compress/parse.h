/* SPDX-License-Identifier: BSD-3-Clause */
/* Between the files that read the text of a codec: parse.c (of one), levels.c (of both
 * directions), budget.c (of a budget). */
#ifndef BNY_COMPRESS_PARSE_H
#define BNY_COMPRESS_PARSE_H

#include "base/text.h"
#include "compress/codec.h"

/* The codec that is configured like c, whose text is set. 0 or -BANYAN_ENOMEM. */
int bny_codec_intern(const struct bny_codec **out, const struct bny_codec *c);

/* The pairs of "key=value,..." of codec `kind`, by the index of their key. A key that is
 * unknown (the sentence goes on with `write`) or given twice is -BANYAN_EINVAL. */
int bny_codec_keys(struct bny_pair given[], const char *(*name_of)(size_t), const char *kind,
                   const char *write, const char *text);
/* NULL: raw. */
static inline int bny_codec_is_lossy(const struct bny_codec *c)
{
    return c && c->ops->family != BNY_CODEC_EXACT;
}

/* What follows "levels:". As bny_codec_parse. */
int bny_levels_parse(const struct bny_codec **out, const char *text);
/* These two; NULL: raw, both: "none". As bny_codec_parse. */
int bny_levels_make(const struct bny_codec **out, const struct bny_codec *up,
                    const struct bny_codec *down, int force);
/* What follows "auto:". As bny_codec_parse. */
int bny_budget_parse(const struct bny_codec **out, const char *text);
/* Is a codec of several? No codec of one has such a name. */
int bny_levels_is_name(const char *name);

#endif
