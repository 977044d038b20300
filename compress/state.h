/* SPDX-License-Identifier: BSD-3-Clause */
/* A tensor's data between operations: residuals, a codec's further floats per element, its
 * statistics, its matrices. The user owns it (banyan_codec_state), and lends it to one
 * operation at a time. */
#ifndef BNY_COMPRESS_STATE_H
#define BNY_COMPRESS_STATE_H

#include "base/handle.h"
#include "compress/codec.h"

struct bny_state_kept; /* data for undo */

struct banyan_codec_state {
    struct bny_handle handle;
    size_t count;                  /* elements of the tensor */
    uint64_t seed;                 /* the same on all ranks */
    uint32_t step;                 /* operations so far: the same on all ranks */
    unsigned planes;               /* 1 + further floats an element */
    float *ef;                     /* [planes][count]: residuals, then the codec's own */
    float ef_scale;                /* for the next operation; 1 */
    const struct bny_codec *codec; /* of the latest operation; NULL: none yet */
    void *track;                   /* [codec->ops->track_bytes] */
    void *keep;                    /* [keep_bytes] linear codecs' */
    size_t track_bytes, keep_bytes;
    int64_t rows, cols;          /* for which keep was made */
    int busy;                    /* lent to an operation */
    struct bny_state_kept *kept; /* NULL: undo is not enabled */
};

#define BNY_STATE_MARK 0x74617473u
/* Returns 0, or -BANYAN_EINVAL if it is NULL or was freed. what: the called function. */
int bny_state_check(const struct banyan_codec_state *st, const char *what);
/* Lends the state to an operation: memory for this codec, residuals times ef_scale, the step's
 * begin(). Clears the data of another codec, except for the residuals. rows, cols: of linear
 * codecs. takes_part 0: this rank has no input, its residuals stay, and so does their pending
 * factor. Returns 0, -BANYAN_EBUSY, -BANYAN_ENOMEM. */
int bny_state_begin(struct banyan_codec_state *st, const struct bny_codec *codec, int64_t rows,
                    int64_t cols, int takes_part);
/* The operation has ended: the next step's number. */
void bny_state_end(struct banyan_codec_state *st);

#endif
