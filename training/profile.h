/* SPDX-License-Identifier: BSD-3-Clause */
/* Profiles: what one rank knows of its training step without the network, as a JSON file. It is
 * what banyan_buckets_profile() writes and banyan_topo predict reads; README.md has the fields.
 */
#ifndef BNY_TRAINING_PROFILE_H
#define BNY_TRAINING_PROFILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <banyan/banyan.h>

#define BNY_PROFILE_BYTES_MAX ((size_t)64 << 20)

struct bny_profile_tensor {
    char *name;
    enum banyan_dtype dtype; /* any floating type */
    uint64_t count;          /* elements, > 0 */
    double ready_s;          /* its gradient is complete; of the step's own time */
    char *codec, *schedule;  /* "none" and "auto" where it has none of its own */
};

/* Of a codec on this machine, for an element; measured, so a profile may have none. */
struct bny_profile_codec {
    char *codec;
    double encode_s, decode_s, wire_bytes;
};

/* Times are the rank's own: what it spent in the library is left out. */
struct bny_profile {
    int ranks, steps;             /* of the job; that the medians are of */
    double forward_s, backward_s; /* to the first tensor that was ready, from there to the last
                                   */
    double compute_s, step_s;     /* all own time of a step; by the clock */
    uint64_t bucket_bytes, first_bytes;
    int progress;
    size_t n, ncodecs;
    struct bny_profile_tensor *tensors; /* in the order in which buckets fill */
    struct bny_profile_codec *codecs;
};

/* 0, or -BANYAN_ESYSTEM. */
int bny_profile_write(const struct bny_profile *p, FILE *to);
/* text: of `len` bytes and a zero behind them, foreign. name: for messages. 0; -BANYAN_EINVAL
 * naming the field; -BANYAN_ENOMEM; -BANYAN_ENOTSUP: no cJSON. bny_profile_free in any case. */
int bny_profile_parse(struct bny_profile *out, const char *text, size_t len, const char *name);
void bny_profile_free(struct bny_profile *p); /* what it points at */

#endif
