/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs: elements <-> wire bytes. One codec per file, with a row in codecs.h. A codec keeps no
 * state of its own, does not wait and does not allocate: the caller owns memory that must
 * outlive an operation (residuals, thresholds; state.h).
 *
 * The law of error feedback. A rank encodes every element of a tensor once per operation: its
 * contribution to another rank's sum or, as the owner of a block, the block's sum. So one
 * residual per element suffices:
 *     v = src + ef_scale * ef;    wire = encode(v);    ef' = v - decode(wire)
 * and sum(inputs) + sum(old residuals) = result + sum(new residuals), for any owners and any
 * forest. With a residual encode() contracts: the part of v that it omits is shorter than v, in
 * the mean over seeds, or residuals would grow without bound; codes that do not are shrunk if
 * ef is not NULL (feedback.h: bny_shrunk). Sums, not averages, are encoded: AVG is applied when
 * the result is decoded (bny_dec.scale), with the same bits on all ranks. */
#ifndef BNY_COMPRESS_CODEC_H
#define BNY_COMPRESS_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "banyan/banyan.h"

enum bny_codec_family {
    BNY_CODEC_RAW,    /* "none": the engine moves the bytes itself and calls nothing here */
    BNY_CODEC_EXACT,  /* decode restores the bits: any forest, any operation; encoded again at
                         each hop */
    BNY_CODEC_BLOCK,  /* fixed rate, lossy: inner nodes and owners decode, add, encode again */
    BNY_CODEC_SPARSE, /* variable rate, lossy: some elements are sent, the residual keeps the
                         others */
    BNY_CODEC_LINEAR, /* codes are summed: stages of ordinary allreduces (bny_linear_ops) */
};

enum bny_codec_flag {
    BNY_CODEC_FEEDBACK = 1 << 0, /* needs a residual; converges badly without */
    BNY_CODEC_UNBIASED = 1 << 1, /* E[decode(encode(v))] = v over seeds */
    BNY_CODEC_FIXED = 1 << 2,    /* encode writes exactly bound(n) bytes */
    BNY_CODEC_TRACKED = 1 << 3,  /* has begin() and end() */
};

#define BNY_CODEC_PARAMS 6

struct bny_codec_param {
    char name[16]; /* "" ends the list */
    double def, min, max;
    int integer;
    const char *doc;
};

struct bny_codec_ops;

/* A configured codec, immutable; bny_codec_parse makes it, and it lives until the process ends
 * (they are few and interned: the same spec gives the same pointer). */
struct bny_codec {
    const struct bny_codec_ops *ops;
    double param[BNY_CODEC_PARAMS];
    /* "levels:up=bf16,down=int8": the codecs of contributions on their way to the owner of a
     * sum, and of results and what is no sum; NULL: raw. Then ops and param are those of one of
     * them, one that loses something if any does. Of all others: the codec itself. */
    const struct bny_codec *up, *down;
    int is_levels;
    /* "auto:max=1e-2": the plan chooses; NULL: it does not. Then ops and param are those of one
     * of the codecs to choose from, one that loses something if any does; up and down mean
     * nothing. */
    const struct bny_budget *budget;
    int force; /* "force=1", which every codec accepts: use it even if it is predicted to lose
                */
    char spec[112]; /* canonical: "topk:delta=0.01", without parameters at their default */
    uint32_t hash;  /* of spec: ranks compare it */
};

/* What a call may lose. Immutable, as codecs. */
#define BNY_BUDGET_PAIRS 36
struct bny_budget {
    double nmse;  /* mean squared error over the energy of the result; INFINITY: any */
    double max;   /* largest error over the sum of the largest values of the ranks' inputs in a
                   * block, from 2^-100 to 2^127; INFINITY: any */
    int feedback; /* residuals keep what is lost: nmse bounds nothing, max is INFINITY, as a
                   * result also has what earlier calls lost */
    int npairs;
    const struct bny_codec *pairs[BNY_BUDGET_PAIRS]; /* is_levels: to choose from */
    const struct bny_codec *exact; /* of them, that loses nothing; NULL: none does but raw */
};

/* One encoding. */
struct bny_enc {
    const struct bny_codec *codec;
    unsigned cpu_flags;      /* enum bny_cpu_flag: selects kernels */
    enum banyan_dtype dtype; /* of src: for EXACT any in ops->dtypes, for others F32 */
    float *ef;      /* [n] residuals of these elements, updated; NULL: losses are final */
    float ef_scale; /* 1, or the ratio of learning rates since the last operation */
    float *more;    /* ops->elem_floats further floats per element (DGC's velocity): the k-th of
                       element i is more[k * more_stride + i]; NULL: no state */
    size_t more_stride;
    uint64_t seed;     /* of the tensor; the same on all ranks */
    uint32_t step;     /* number of this tensor's operation; the same on all ranks */
    uint32_t rank;     /* for random choices that differ between ranks */
    uint32_t nsum;     /* contributions summed in src: 1, or more at inner nodes and owners */
    uint64_t index;    /* of src[0] in the tensor: random choices are functions of (seed, step,
                          rank, index) */
    const void *track; /* [ops->track_bytes] set by begin(); NULL: no state */
    void *stats;       /* [ops->stats_bytes] of this call, zeroed, for end(); NULL: no state */
};

struct bny_dec {
    const struct bny_codec *codec;
    unsigned cpu_flags;
    enum banyan_dtype dtype;
    float scale;   /* decode() multiplies by it if it is not 1 (not EXACT) */
    uint64_t seed; /* as in bny_enc, of the encoder */
    uint32_t step, rank;
    uint64_t index;
    int need_crc; /* messages without a checksum are refused */
};

struct bny_codec_ops {
    char name[16];
    enum bny_codec_family family;
    unsigned flags;  /* enum bny_codec_flag */
    unsigned dtypes; /* bits 1 << enum banyan_dtype; 0: F32 only */
    const char *doc; /* one line: what it is, paper */
    int recommended; /* 1: perf/RESULTS.md has a table in which it pays; 0: research, for
                      * comparisons */
    /* The choice of plans depends on these numbers. They are constants, so that all ranks
     * choose alike. ns an element, with a residual, of one core with AVX2 or better and data
     * from memory (banyan_codec --where dram shows this machine's); > 0, but for RAW. */
    double encode_ns, decode_ns;
    double wire_bytes; /* bytes an element, where far fewer than bound() are usual; 0: not so */
    /* What one encoding loses, with default parameters; 0: unknown. nmse: mean squared error
     * over energy, the larger one of Gauss' and Laplace's distributions (Student's t of 3
     * degrees loses up to 3 times as much). max: over the largest value of a block, of at least
     * 2^-100. */
    double nmse, max;
    struct bny_codec_param params[BNY_CODEC_PARAMS];
    /* Rejects combinations of parameters that single ranges allow; NULL: none. -BANYAN_EINVAL
     * with its sentence. */
    int (*check)(const struct bny_codec *c);

    /* ---- EXACT, BLOCK, SPARSE: chunks. LINEAR, RAW: NULL. ---- */
    /* Largest payload for n elements: exact with BNY_CODEC_FIXED. At most 4 n + 64 (raw is
     * always possible instead). */
    size_t (*bound)(const struct bny_codec *c, size_t n, enum banyan_dtype dtype);
    /* Encodes src[n] (any alignment) to wire (any alignment). cap >= bound(n); SPARSE with a
     * residual accepts any cap >= 64 and keeps the rest in the residual. Returns bytes written;
     * or -BANYAN_ENOTSUP if this chunk is better sent raw (NaN or infinity that the format
     * lacks, no gain): then wire may be written, ef is not. Never writes past cap. Any thread;
     * several chunks of one tensor at the same time. */
    long (*encode)(const struct bny_enc *e, void *wire, size_t cap, const void *src, size_t n);
    /* dst[i] = decoded[i] (* scale). wire is untrusted input, any alignment: returns 0, or
     * -BANYAN_EPROTO with its sentence if these bytes cannot come from encode() of n elements;
     * dst is unchanged then, and nothing outside wire[len] and dst[n] is ever touched. */
    int (*decode)(const struct bny_dec *d, void *dst, const void *wire, size_t len, size_t n);
    /* dst[i] = acc[i] + decoded[i], added in f32; dst may be acc (exactly). Otherwise like
     * decode; ignores scale. NULL for EXACT codecs: the engine decodes and reduces, for any
     * operation. */
    int (*decode_add)(const struct bny_dec *d, float *dst, const float *acc, const void *wire,
                      size_t len, size_t n);

    /* ---- TRACKED: statistics of a tensor from one operation to the next ---- */
    size_t track_bytes, stats_bytes;
    unsigned elem_floats; /* further floats per element that persist with the residual
                             (bny_enc.more); at most 3 */
    /* Before an operation's first chunk. track is zero before the first operation of a tensor.
     */
    void (*begin)(const struct bny_codec *c, void *track, uint32_t step);
    /* After its last chunk: stats of the nchunks encodings, stats_bytes apart, in order of
     * index. */
    void (*end)(const struct bny_codec *c, void *track, const void *stats, size_t nchunks);
    /* Can these bytes, of a file, any alignment, be what operations left in track? */
    int (*track_ok)(const void *track);

    const struct bny_linear_ops *linear; /* LINEAR only: linear.h */
};

/* NULL-terminated; the first is "none" with NULL functions. */
extern const struct bny_codec_ops *const bny_codecs[];
const struct bny_codec_ops *bny_codec_find(const char *name);
/* Adds a codec of the program, for the life of the process; its functions are trusted. Returns
 * 0, -BANYAN_EINVAL (the name is taken, or that of codecs of several), -BANYAN_ENOMEM. Any
 * thread. */
#define BNY_CODECS_ADDED 16
int bny_codec_add(const struct bny_codec_ops *ops);
const struct bny_codec_ops *bny_codec_at(size_t i); /* of both sorts; NULL past the end */
/* "name" or "name:param=value,param=value"; or "levels:up=name,down=name"
 * (levels.c), or "auto:max=1e-2" (budget.c). Returns 0
 * and the interned codec; -BANYAN_EINVAL: unknown names and parameters (the sentence lists the
 * known ones), values out of range; -BANYAN_ENOMEM. Any thread. */
int bny_codec_parse(const struct bny_codec **out, const char *text);
/* "none, f16, bf16, ..." for messages. */
const char *bny_codec_list(void);
/* The value of a parameter, which the codec must have. */
double bny_codec_get(const struct bny_codec *c, const char *param);

/* ---- messages: what travels (message.c)
 * -------------------------------------------------------------------------- A chunk on the
 * wire: this header, then the payload. Self-describing, so that raw is always a legal
 * substitute. */
#define BNY_CODED_MAGIC 0x4342 /* "BC" */

enum bny_coded_flag {
    BNY_CODED_RAW = 1 << 0,       /* the payload is the elements */
    BNY_CODED_CRC = 1 << 1,       /* crc is set */
    BNY_CODED_NONFINITE = 1 << 2, /* raw because of NaN or infinity */
};

struct bny_coded_hdr { /* little endian */
    uint16_t magic;
    uint8_t version, flags;
    uint32_t codec;        /* hash of the configured codec and of the tensor's seed */
    uint32_t nelem, bytes; /* elements; payload bytes */
    uint64_t index;        /* of the first element in the tensor */
    uint32_t step,
        crc; /* crc32c of this header with crc 0, then the payload; 0 without BNY_CODED_CRC */
};
_Static_assert(sizeof(struct bny_coded_hdr) == 32, "wire format");

/* Largest message for n elements: header and bound(n); with room_for_raw, enough for raw as
 * well. */
size_t bny_message_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype,
                         int room_for_raw);
/* Encodes a chunk with its header. If the codec declines, sends raw if cap allows (v = src +
 * ef_scale * ef, residual 0; with NaN or infinity in src: v = src, and the residuals stay),
 * else returns -BANYAN_ENOTSUP with nothing changed. with_crc: adds the checksum. Returns
 * bytes. */
long bny_message_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n, int with_crc);
/* Checks everything (codec, n, index, step, lengths, crc), then decodes. Returns 0 or
 * -BANYAN_EPROTO, dst unchanged. */
int bny_message_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n);
int bny_message_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n);

#endif
