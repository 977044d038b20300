/* SPDX-License-Identifier: BSD-3-Clause */
/* Profiles: what buckets write is what was marked, read back as the same; what is wrong in a
 * file is named. And buckets are cut as bny_cut says, for the predictor cuts by it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "banyan/training.h"
#include "base/rng.h"
#include "training/cut.h"
#include "training/profile.h"

#define MOST 40

static uint64_t test_seed(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);

    fprintf(stderr, "# BANYAN_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* ---- a model, on a communicator of one rank ---- */

struct model {
    struct banyan_comm *comm;
    struct banyan_tensor at[MOST];
    char name[MOST][16];
    int64_t shape[MOST];
    size_t n;
};

static void make_model(struct model *m, uint64_t *s)
{
    static const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_F64, BANYAN_F16,
                                               BANYAN_BF16 };

    cr_assert_eq(banyan_comm_init_env(&m->comm, NULL), 0, "%s", banyan_last_error());
    m->n = 1 + bny_rng_below(s, MOST - 1);
    for (size_t i = 0; i < m->n; i++) {
        enum banyan_dtype type = types[bny_rng_below(s, 6) < 4 ? 0 : bny_rng_below(s, 4)];

        m->shape[i] = 1 + (int64_t)bny_rng_below(s, bny_rng_below(s, 4) ? 300 : 60000);
        snprintf(m->name[i], sizeof m->name[i], "t%zu", i);
        m->at[i] = (struct banyan_tensor){ m->name[i], type, 1, &m->shape[i],
                                           calloc((size_t)m->shape[i], 8) };
    }
}

static void free_model(struct model *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->at[i].grad);
    cr_assert_eq(banyan_comm_finalize(m->comm), 0);
}

static void step(struct banyan_buckets *b, const uint32_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(banyan_buckets_ready(b, order[i]), 0, "%s", banyan_last_error());
    cr_assert_eq(banyan_buckets_wait(b), 0, "%s", banyan_last_error());
}

static void shuffle(uint32_t *order, size_t n, uint64_t *s)
{
    for (size_t i = 0; i < n; i++) {
        size_t k = bny_rng_below(s, i + 1);

        order[i] = order[k];
        order[k] = (uint32_t)i;
    }
}

static char *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);

    cr_assert(f && text, "%s", path);
    *len = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

/* ---- cutting ---- */

static void check_cut(struct banyan_buckets *b, const struct model *m, const uint32_t *order,
                      const struct banyan_buckets_config *cfg, int all_int8)
{
    struct bny_cut_tensor t[MOST] = { { 0 } };
    struct banyan_buckets_stats st = { .size = sizeof st };
    struct bny_cut c;

    for (size_t i = 0; i < m->n; i++)
        t[i] = (struct bny_cut_tensor){ .count = (size_t)m->shape[i],
                                        .elem = banyan_dtype_bytes(m->at[i].dtype),
                                        .kind = m->at[i].dtype,
                                        .alone = all_int8 && m->at[i].dtype == BANYAN_F32 };
    cr_assert_eq(bny_cut(&c, t, m->n, order, cfg->bucket_bytes, cfg->first_bytes), 0);
    cr_assert_eq(banyan_buckets_stats(b, &st), 0);
    cr_assert_eq(c.nbuckets, st.buckets, "%zu buckets, not %llu", c.nbuckets,
                 (unsigned long long)st.buckets);
    for (size_t i = 0; i < m->n; i++) {
        struct banyan_buckets_tensor_stats one = { .size = sizeof one };

        cr_assert_eq(banyan_buckets_tensor_stats(b, i, &one), 0);
        cr_assert_eq(t[i].first, one.bucket, "tensor %zu in bucket %zu, not %llu", i,
                     t[i].first, (unsigned long long)one.bucket);
    }
}

Test(profile, buckets_are_cut_as_the_function_says, .timeout = 60)
{
    static const size_t bytes[] = { 1, 1000, 10000, 100000, 1 << 20 };
    uint64_t s = test_seed();

    for (int round = 0; round < 30; round++) {
        struct banyan_buckets_config cfg;
        struct banyan_buckets *b;
        struct model m;
        uint32_t order[MOST] = { 0 };
        char rules[64 * MOST] = "";
        int all_int8 = (int)bny_rng_below(&s, 2);

        make_model(&m, &s);
        cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
        cfg.bucket_bytes = bytes[bny_rng_below(&s, 5)];
        cfg.first_bytes = bytes[bny_rng_below(&s, 5)];
        for (size_t i = 0; all_int8 && i < m.n; i++)
            if (m.at[i].dtype == BANYAN_F32)
                snprintf(rules + strlen(rules), 64, "%s=int8;", m.name[i]);
        cfg.rules = rules;
        cr_assert_eq(banyan_buckets_create(&b, m.comm, m.at, m.n, &cfg), 0, "%s",
                     banyan_last_error());
        shuffle(order, m.n, &s);
        step(b, order, m.n); /* its order is that of the next cut */
        step(b, order, m.n);
        check_cut(b, &m, order, &cfg, all_int8);
        banyan_buckets_free(b);
        free_model(&m);
    }
}

/* ---- written and read ---- */

static void parse_file(struct bny_profile *p, const char *path)
{
    size_t len;
    char *text = slurp(path, &len);

    cr_assert_eq(bny_profile_parse(p, text, len, path), 0, "%s", banyan_last_error());
    free(text);
}

static void check_profile(const struct bny_profile *p, const struct model *m,
                          const uint32_t *order)
{
    double last = 0;

    cr_assert_eq(p->ranks, 1);
    cr_assert_eq(p->steps, 4);
    cr_assert_eq(p->bucket_bytes, 1 << 20);
    cr_assert_eq(p->n, m->n);
    for (size_t i = 0; i < m->n; i++) {
        const struct banyan_tensor *t = &m->at[order[i]];

        cr_assert_str_eq(p->tensors[i].name, t->name);
        cr_assert_eq(p->tensors[i].dtype, t->dtype);
        cr_assert_eq(p->tensors[i].count, (uint64_t)t->shape[0]);
        cr_assert_str_eq(p->tensors[i].codec, order[i] == 0 ? "lossless" : "none");
        last = fmax(last, p->tensors[i].ready_s);
    }
    cr_assert_geq(p->compute_s, last);
    cr_assert_lt(fabs(p->forward_s + p->backward_s - last), 1e-6);
    cr_assert_geq(p->step_s, 1.9e-2);
}

static void same_profile(const struct bny_profile *a, const struct bny_profile *b)
{
    cr_assert(a->n == b->n && a->ncodecs == b->ncodecs && a->ranks == b->ranks &&
              a->steps == b->steps && a->bucket_bytes == b->bucket_bytes &&
              a->progress == b->progress);
    for (size_t i = 0; i < a->n; i++) {
        cr_assert_str_eq(a->tensors[i].name, b->tensors[i].name);
        cr_assert_float_eq(a->tensors[i].ready_s, b->tensors[i].ready_s, 1e-8);
    }
    for (size_t i = 0; i < a->ncodecs; i++) {
        cr_assert_str_eq(a->codecs[i].codec, b->codecs[i].codec);
        cr_assert_float_eq(a->codecs[i].encode_s, b->codecs[i].encode_s, 1e-15);
    }
}

/* The last tensor comes 20 ms late: that is the model's own time, as no step can be shorter. */
static void late_step(struct banyan_buckets *b, const uint32_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i == n - 1)
            usleep(20000);
        cr_assert_eq(banyan_buckets_ready(b, order[i]), 0, "%s", banyan_last_error());
        if (i == 0)
            cr_assert_eq(banyan_buckets_profile(b, "no"), -BANYAN_EBUSY);
    }
    cr_assert_eq(banyan_buckets_wait(b), 0, "%s", banyan_last_error());
}

Test(profile, says_when_tensors_were_ready, .timeout = 60)
{
    static struct bny_profile_codec codec = { (char *)(uintptr_t) "int8", 1e-9, 5e-10, 1.02 };
    char path[] = "/tmp/banyan-profile-XXXXXX";
    struct banyan_buckets_config cfg;
    struct banyan_buckets *b;
    struct bny_profile p, again;
    uint64_t s = test_seed();
    uint32_t order[MOST] = { 0 };
    struct model m;
    FILE *f;

    cr_assert_geq(close(mkstemp(path)), 0);
    make_model(&m, &s);
    m.at[0].dtype = BANYAN_F32;
    shuffle(order, m.n, &s);
    cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg.profile = 4;
    cfg.rules = "t0=lossless";
    cr_assert_eq(banyan_buckets_create(&b, m.comm, m.at, m.n, &cfg), 0, "%s",
                 banyan_last_error());
    cr_assert_eq(banyan_buckets_profile(b, path), -BANYAN_EINVAL);
    late_step(b, order, m.n);
    cr_assert_eq(banyan_buckets_profile(b, path),
                 -BANYAN_EINVAL); /* of one step there is none */
    for (int k = 0; k < 6; k++)
        late_step(b, order, m.n);
    cr_assert_eq(banyan_buckets_profile(b, path), 0, "%s", banyan_last_error());
    parse_file(&p, path);
    check_profile(&p, &m, order);
    cr_assert_geq(p.tensors[m.n - 1].ready_s, 1.9e-2);
    cr_assert_eq(banyan_buckets_profile(b, "/nowhere/at/all"), -BANYAN_ESYSTEM);
    cr_assert(strstr(banyan_last_error(), "/nowhere/at/all"), "%s", banyan_last_error());
    cr_assert_eq(banyan_buckets_profile(b, NULL), -BANYAN_EINVAL);
    free(p.codecs);
    p.codecs = &codec;
    p.ncodecs = 1;
    f = fopen(path, "w");
    cr_assert_eq(bny_profile_write(&p, f), 0);
    fclose(f);
    parse_file(&again, path);
    same_profile(&p, &again);
    p.codecs = NULL;
    p.ncodecs = 0;
    bny_profile_free(&again);
    bny_profile_free(&p);
    banyan_buckets_free(b);
    free_model(&m);
    unlink(path);
}

Test(profile, is_refused_where_no_times_are_kept)
{
    struct banyan_buckets_config cfg;
    struct banyan_buckets *b;
    uint64_t s = test_seed();
    uint32_t order[MOST];
    struct model m;

    make_model(&m, &s);
    for (uint32_t i = 0; i < m.n; i++)
        order[i] = i;
    cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg.profile = -1;
    cr_assert_eq(banyan_buckets_create(&b, m.comm, m.at, m.n, &cfg), -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "profile"), "%s", banyan_last_error());
    cr_assert_eq(banyan_buckets_create(&b, m.comm, m.at, m.n, NULL), 0);
    step(b, order, m.n);
    step(b, order, m.n);
    cr_assert_eq(banyan_buckets_profile(b, "no"), -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "profile"), "%s", banyan_last_error());
    banyan_buckets_free(b);
    free_model(&m);
}

/* ---- wrong files ---- */

#define HEAD                                                                                   \
    "{\"banyan_profile\":1,\"ranks\":1,\"steps\":2,\"forward_s\":0,\"backward_s\":0,"          \
    "\"compute_s\":0,\"step_s\":0,\"bucket_bytes\":1,\"first_bytes\":1,\"progress\":1,"
#define TENSOR "{\"name\":\"a\",\"dtype\":\"f32\",\"count\":1,\"ready_s\":0}"

/* The parser sees exactly the text: a sanitizer sees one byte too many. */
static int parse(const char *text)
{
    size_t len = strlen(text);
    char *copy = malloc(len + 1);
    struct bny_profile p;
    int rc;

    memcpy(copy, text, len + 1);
    rc = bny_profile_parse(&p, copy, len, "file.json");
    bny_profile_free(&p);
    free(copy);
    return rc;
}

Test(profile, errors_name_the_field)
{
    static const char *const wrong[][2] = {
        { "", "JSON" },
        { "[]", "object" },
        { "{}", "banyan_profile" },
        { "{\"banyan_profile\":2}", "banyan_profile" },
        { "{\"banyan_profile\":1}", "ranks" },
        { HEAD "\"tensors\":[]}", "tensors" },
        { HEAD "\"tensors\":{}}", "tensors" },
        { HEAD "\"tensors\":[1]}", "tensors[0]" },
        { HEAD "\"tensors\":[" TENSOR ",{\"name\":\"\"}]}", "tensors[1]: name" },
        { HEAD "\"tensors\":[{\"name\":\"a\",\"dtype\":\"i8\"}]}", "dtype" },
        { HEAD "\"tensors\":[{\"name\":\"a\",\"dtype\":\"f32\",\"count\":0.5}]}", "count" },
        { HEAD "\"tensors\":[{\"name\":\"a\",\"dtype\":\"f32\",\"count\":1.5}]}", "whole" },
        { HEAD "\"tensors\":[{\"name\":\"a\",\"dtype\":\"f32\",\"count\":1,"
               "\"ready_s\":-1}]}",
          "ready_s" },
        { HEAD "\"tensors\":[" TENSOR "],\"codecs\":[{}]}", "codecs[0]: codec" },
        { HEAD "\"tensors\":[" TENSOR "],\"codecs\":[{\"codec\":\"int8\",\"encode_s\":\"x\"}]}",
          "encode_s" },
        { HEAD "\"tensors\":[" TENSOR, "JSON" },
    };

    cr_assert_eq(parse(HEAD "\"tensors\":[" TENSOR "]}"), 0, "%s", banyan_last_error());
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert_eq(parse(wrong[i][0]), -BANYAN_EINVAL, "%s", wrong[i][0]);
        cr_assert(strstr(banyan_last_error(), wrong[i][1]), "%s: %s", wrong[i][0],
                  banyan_last_error());
        cr_assert(strstr(banyan_last_error(), "file.json"));
    }
}
