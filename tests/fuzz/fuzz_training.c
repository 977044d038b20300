/* SPDX-License-Identifier: BSD-3-Clause */
/* Any bytes as the rules of buckets, or in a state that an object of the training layer or a
 * codec saved, with a checksum that is right: refused, or loaded, used, and saved again. */
#include "input.h"

#include <math.h>

#include "banyan/methods.h"
#include "base/cpu.h"
#include "base/crc32c.h"
#include "compress/codec.h"
#include "compress/state.h"

enum { N = 70 };
static float grad[N], out[65];
static const int64_t shape[] = { 5, 13 };
static const struct banyan_tensor tensors[] = {
    { "w", BANYAN_F32, 2, shape, grad },
    { "b", BANYAN_F32, 1, shape, grad + 65 },
};
static struct banyan_comm *comm;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const outside[] = { "RANK", "WORLD_SIZE", "BANYAN_RANK", "PMI_RANK",
                                           "SLURM_PROCID" };

    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        unsetenv(outside[i]);
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    EXPECT(banyan_comm_init_env(&comm, NULL) == 0);
    return 0;
}

struct object {
    struct banyan_accordion *accordion;
    struct banyan_outer *outer;
    struct banyan_shared_mask *mask;
    struct banyan_lazy *lazy;
    struct banyan_buckets *buckets;
    struct banyan_gossip *gossip;
    struct banyan_rows *rows;
    struct banyan_sketch *sketch;
    struct banyan_stale *stale;
};

/* A rank that sends five rows to itself, where they changed. */
static int make_rows(struct object *o)
{
    static const size_t count = 5;
    static const uint32_t which[] = { 3, 1, 4, 1, 2 };
    const struct banyan_rows_plan plan = { sizeof plan, "rows", 13, 5, &count, which, &count };
    struct banyan_rows_config cfg = BANYAN_ROWS_CONFIG_INIT;

    cfg.mode = BANYAN_ROWS_CACHED;
    cfg.bits = 8;
    return banyan_rows_create(&o->rows, comm, &plan, &cfg);
}

static int make_sketch(struct object *o)
{
    struct banyan_sketch_config cfg = BANYAN_SKETCH_CONFIG_INIT;

    cfg.mode = BANYAN_SKETCH_ADAM;
    return banyan_sketch_create(&o->sketch, comm, tensors, 2, &cfg);
}

static void make(struct object *o, unsigned kind)
{
    struct banyan_lazy_config lazy;

    memset(o, 0, sizeof *o);
    lazy = (struct banyan_lazy_config)BANYAN_LAZY_CONFIG_INIT;
    lazy.alpha = 0.1;
    if (kind == 0)
        EXPECT(banyan_accordion_create(&o->accordion, comm, tensors, 2, NULL) == 0);
    else if (kind == 1)
        EXPECT(banyan_outer_create(&o->outer, comm, tensors, 2, NULL) == 0);
    else if (kind == 2)
        EXPECT(banyan_shared_mask_create(&o->mask, comm, tensors, 2, NULL) == 0);
    else if (kind == 3)
        EXPECT(banyan_lazy_create(&o->lazy, comm, N, &lazy) == 0);
    else if (kind == 4)
        EXPECT(banyan_buckets_create(&o->buckets, comm, tensors, 2, NULL) == 0);
    else if (kind == 5)
        EXPECT(banyan_gossip_create(&o->gossip, comm, tensors, 2, NULL) == 0);
    else if (kind == 6)
        EXPECT(make_rows(o) == 0);
    else if (kind == 7)
        EXPECT(make_sketch(o) == 0);
    else
        EXPECT(banyan_stale_create(&o->stale, comm, tensors, 2, NULL) == 0);
}

static size_t bytes_of(const struct object *o)
{
    return o->accordion ? banyan_accordion_bytes(o->accordion)
           : o->outer   ? banyan_outer_bytes(o->outer)
           : o->mask    ? banyan_shared_mask_bytes(o->mask)
           : o->lazy    ? banyan_lazy_bytes(o->lazy)
           : o->gossip  ? banyan_gossip_bytes(o->gossip)
           : o->rows    ? banyan_rows_bytes(o->rows)
           : o->sketch  ? banyan_sketch_bytes(o->sketch)
           : o->stale   ? banyan_stale_bytes(o->stale)
                        : banyan_buckets_bytes(o->buckets);
}

static int save(const struct object *o, void *buf, size_t cap)
{
    return o->accordion ? banyan_accordion_save(o->accordion, buf, cap)
           : o->outer   ? banyan_outer_save(o->outer, buf, cap)
           : o->mask    ? banyan_shared_mask_save(o->mask, buf, cap)
           : o->lazy    ? banyan_lazy_save(o->lazy, buf, cap)
           : o->gossip  ? banyan_gossip_save(o->gossip, buf, cap)
           : o->rows    ? banyan_rows_save(o->rows, buf, cap)
           : o->sketch  ? banyan_sketch_save(o->sketch, buf, cap)
           : o->stale   ? banyan_stale_save(o->stale, buf, cap)
                        : banyan_buckets_save(o->buckets, buf, cap);
}

static int load(struct object *o, const void *buf, size_t bytes)
{
    return o->accordion ? banyan_accordion_load(o->accordion, buf, bytes)
           : o->outer   ? banyan_outer_load(o->outer, buf, bytes)
           : o->mask    ? banyan_shared_mask_load(o->mask, buf, bytes)
           : o->lazy    ? banyan_lazy_load(o->lazy, buf, bytes)
           : o->gossip  ? banyan_gossip_load(o->gossip, buf, bytes)
           : o->rows    ? banyan_rows_load(o->rows, buf, bytes)
           : o->sketch  ? banyan_sketch_load(o->sketch, buf, bytes)
           : o->stale   ? banyan_stale_load(o->stale, buf, bytes)
                        : banyan_buckets_load(o->buckets, buf, bytes);
}

/* What it does then may fail, as of numbers that are not finite. */
static void use(struct object *o)
{
    for (int i = 0; i < N; i++)
        grad[i] = (float)i / N;
    if (o->accordion) {
        (void)banyan_accordion_observe(o->accordion, 0);
        (void)banyan_accordion_step(o->accordion, 0.1);
        (void)banyan_accordion_codec(o->accordion, 1);
    } else if (o->outer) {
        (void)banyan_outer_step(o->outer, 1, 1);
        (void)banyan_outer_finish(o->outer);
    } else if (o->mask) {
        (void)banyan_shared_mask_step(o->mask);
    } else if (o->lazy) {
        (void)banyan_lazy_exchange(o->lazy, grad, NULL);
        (void)banyan_lazy_moved(o->lazy, 0.01);
    } else if (o->gossip) {
        (void)banyan_gossip_step(o->gossip);
        (void)banyan_gossip_finish(o->gossip);
    } else if (o->rows) {
        (void)banyan_rows_exchange(o->rows, grad, out);
        (void)banyan_rows_adapt(o->rows, 0.5);
    } else if (o->sketch) {
        (void)banyan_sketch_step(o->sketch);
    } else if (o->stale) {
        (void)banyan_stale_step(o->stale);
        (void)banyan_stale_settle(o->stale);
    } else {
        (void)banyan_buckets_ready(o->buckets, 1);
        (void)banyan_buckets_ready(o->buckets, 0);
        (void)banyan_buckets_wait(o->buckets);
    }
}

static void free_object(struct object *o)
{
    banyan_accordion_free(o->accordion);
    banyan_outer_free(o->outer);
    banyan_shared_mask_free(o->mask);
    banyan_lazy_free(o->lazy);
    banyan_buckets_free(o->buckets);
    banyan_gossip_free(o->gossip);
    banyan_rows_free(o->rows);
    banyan_sketch_free(o->sketch);
    banyan_stale_free(o->stale);
}

/* A state as saved, with the input in the place of what follows the head; longer or shorter. */
static void state(struct input *in)
{
    enum { HEAD = 24 }; /* kind, version, bytes, crc, 0: training/saved.c */
    struct object o;
    size_t bytes, len;
    const uint8_t *body;
    uint64_t total;
    uint32_t crc;
    unsigned at;
    char *buf;

    make(&o, input_byte(in) % 9);
    use(&o);
    bytes = bytes_of(&o);
    buf = calloc(1, bytes + in->left + HEAD);
    EXPECT(save(&o, buf, bytes) == 0);
    at = (unsigned)(HEAD + input_byte(in) % (bytes - HEAD + 1));
    body = input_take(in, in->left, &len);
    if (len)
        memcpy(buf + at, body, len);
    total = at + len > bytes ? at + len : bytes;
    memcpy(buf + 8, &total, sizeof total);
    memset(buf + 16, 0, 4);
    crc = bny_crc32c(bny_crc32c(0, buf, HEAD), buf + HEAD, (size_t)total - HEAD);
    memcpy(buf + 16, &crc, sizeof crc);
    if (load(&o, buf, (size_t)total) == 0) {
        use(&o);
        use(&o);
        free(buf);
        bytes = bytes_of(&o);
        buf = calloc(1, bytes);
        if (!o.buckets || banyan_buckets_micro(o.buckets) == 0) { /* not within a step */
            EXPECT(save(&o, buf, bytes) == 0);
            EXPECT(load(&o, buf, bytes) == 0);
        }
    }
    free(buf);
    free_object(&o);
}

/* An operation of one rank over the state's elements. */
static void operate(struct banyan_codec_state *st, const struct bny_codec *c)
{
    const struct bny_codec_ops *ops = c->ops;
    struct bny_enc e = { .codec = c, .seed = 1, .nsum = 1, .cpu_flags = bny_cpu_flags() };
    static char wire[1 << 14];

    for (int i = 0; i < N; i++)
        grad[i] = (float)((i * 7919) % 101) - 50;
    if (bny_state_begin(st, c, 7, N / 7, 1) != 0)
        return;
    e.ef_scale = st->ef_scale;
    e.ef = st->ef;
    e.more = ops->elem_floats ? st->ef + N : NULL;
    e.more_stride = N;
    e.track = st->track;
    e.step = st->step;
    e.stats = calloc(1, ops->stats_bytes + 1);
    (void)ops->encode(&e, wire, sizeof wire, grad, N);
    if (ops->end)
        ops->end(c, st->track, e.stats, 1);
    free(e.stats);
    bny_state_end(st);
}

/* A codec's state as it saved it, with a part of the input over any of its bytes. */
static void codec_state(struct input *in)
{
    enum { CRC_AT = 36 };
    struct banyan_codec_state *st;
    const struct bny_codec *c;
    size_t count = 0, bytes, at, len;
    const uint8_t *over;
    uint32_t crc;
    char *buf;

    while (bny_codecs[count])
        count++;
    EXPECT(bny_codec_parse(&c, bny_codecs[input_byte(in) % count]->name) == 0);
    if (!c->ops->encode)
        return;
    EXPECT(banyan_codec_state_create(&st, N, 3) == 0);
    operate(st, c);
    bytes = banyan_codec_state_bytes(st);
    buf = malloc(bytes);
    EXPECT(buf && banyan_codec_state_save(st, buf, bytes) == 0);
    at = (input_byte(in) | input_byte(in) << 8) % bytes;
    over = input_take(in, bytes - at, &len);
    memcpy(buf + at, over, len);
    memset(buf + CRC_AT, 0, 4);
    crc = bny_crc32c(0, buf, bytes);
    memcpy(buf + CRC_AT, &crc, 4);
    if (banyan_codec_state_load(st, buf, bytes) == 0) {
        operate(st, c);
        operate(st, c);
        free(buf);
        bytes = banyan_codec_state_bytes(st);
        buf = malloc(bytes);
        EXPECT(buf && banyan_codec_state_save(st, buf, bytes) == 0);
    }
    free(buf);
    banyan_codec_state_free(st);
}

static void rules(struct input *in)
{
    struct banyan_buckets_config cfg;
    struct banyan_buckets *b = NULL;
    size_t len;
    const uint8_t *text = input_take(in, 300, &len);
    char copy[301] = { 0 };

    memcpy(copy, text, len);
    cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg.rules = copy;
    if (banyan_buckets_create(&b, comm, tensors, 2, &cfg) == 0) {
        EXPECT(banyan_buckets_codec(b, 0) && banyan_buckets_codec(b, 1));
        (void)banyan_buckets_ready(b, 0);
        (void)banyan_buckets_ready(b, 1);
        EXPECT(banyan_buckets_wait(b) == 0);
    } else {
        EXPECT(!b && *banyan_last_error());
    }
    banyan_buckets_free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };

    switch (input_byte(&in) % 3) {
    case 0: rules(&in); break;
    case 1: state(&in); break;
    default: codec_state(&in);
    }
    return 0;
}
