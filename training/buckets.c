/* SPDX-License-Identifier: BSD-3-Clause */
/* Buckets: made of tensors and settings that all ranks share, and freed. */
#include "training/buckets.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sized.h"

#define DTYPES (1u << BANYAN_F32 | 1u << BANYAN_F64 | 1u << BANYAN_F16 | 1u << BANYAN_BF16)
/* Within what 8 of them, in bytes, fit. */
#define BUCKET_MOST  (SIZE_MAX / 64)
#define PROFILE_MOST 10000

static struct bny_handles handles = BNY_HANDLES(BNY_BUCKETS_KIND, struct banyan_buckets);

static int take_config(struct banyan_buckets_config *out,
                       const struct banyan_buckets_config *given)
{
    int rc;

    *out = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, given, "banyan_buckets_create",
                        "BANYAN_BUCKETS_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (out->bucket_bytes < 1 || out->bucket_bytes > BUCKET_MOST || out->first_bytes < 1)
        return bny_fail(BANYAN_EINVAL,
                        "bucket_bytes (%zu) and first_bytes (%zu) must be 1 or more",
                        out->bucket_bytes, out->first_bytes);
    if (out->op != BANYAN_AVG && out->op != BANYAN_SUM)
        return bny_fail(BANYAN_EINVAL, "op: buckets take BANYAN_AVG or BANYAN_SUM");
    if (out->accumulate < 1)
        return bny_fail(BANYAN_EINVAL, "accumulate: %d micro-steps; 1 or more",
                        out->accumulate);
    if (out->profile < 0 || out->profile > PROFILE_MOST)
        return bny_fail(BANYAN_EINVAL, "profile: %d steps; from 0 to %d", out->profile,
                        PROFILE_MOST);
    if (out->unused != BANYAN_UNUSED_ERROR && out->unused != BANYAN_UNUSED_ZERO)
        return bny_fail(BANYAN_EINVAL, "unused: %d is none of BANYAN_UNUSED_*",
                        (int)out->unused);
    return 0;
}

/* ---- codecs and schedules ---- */

static int text_copy(char **out, const char *text)
{
    *out = text ? strdup(text) : NULL;
    return text && !*out ? bny_fail(BANYAN_ENOMEM, "no memory for buckets") : 0;
}

static int apply_rules(struct banyan_buckets *b, const struct bny_rules *rules)
{
    const char *other = b->cfg.codec;
    int rc = 0;

    if (other && (!*other || !strcmp(other, "none")))
        other = NULL;
    for (size_t i = 0; i < b->model.n && rc == 0; i++) {
        const struct bny_rule *r = bny_rules_find(rules, &b->model.at[i]);
        struct bny_bucketed *k = &b->tensor[i];
        rc = text_copy(&k->codec, r ? r->codec : other);
        if (rc == 0)
            rc = text_copy(&k->schedule, r ? r->schedule : NULL);
        if (rc == 0 && k->codec)
            rc = bny_buckets_make_state(b, i);
    }
    return rc;
}

/* ---- agreement ---- */

enum { BUCKET_BYTES, FIRST_BYTES, OP, CODECS, ACCUMULATE, UNUSED, DETERMINISTIC, SEED, NSET };
static const char *const set_names[NSET] = { "bucket_bytes",
                                             "first_bytes",
                                             "op",
                                             "codec or rules, as tensors have them",
                                             "accumulate",
                                             "unused",
                                             "deterministic",
                                             "seed" };

static uint64_t buckets_mix(uint64_t hash, const char *text) /* FNV-1a, the end included */
{
    for (const char *s = text ? text : "";; s++) {
        hash = (hash ^ (unsigned char)*s) * 1099511628211u;
        if (!*s)
            return hash;
    }
}

static void buckets_settings(const struct banyan_buckets *b, uint64_t set[NSET])
{
    set[BUCKET_BYTES] = b->cfg.bucket_bytes;
    set[FIRST_BYTES] = b->cfg.first_bytes;
    set[OP] = b->cfg.op;
    set[ACCUMULATE] = (uint64_t)b->cfg.accumulate;
    set[UNUSED] = b->cfg.unused;
    set[DETERMINISTIC] = (uint64_t)(int64_t)b->cfg.deterministic;
    set[SEED] = b->cfg.seed;
    set[CODECS] = 14695981039346656037u;
    for (size_t i = 0; i < b->model.n; i++)
        set[CODECS] =
            buckets_mix(buckets_mix(set[CODECS], b->tensor[i].codec), b->tensor[i].schedule);
}

static int settings_agree(const struct banyan_buckets *b)
{
    int n = banyan_comm_count(b->comm), rc;
    uint64_t mine[NSET], *all = malloc((size_t)n * sizeof mine);

    if (!all)
        return bny_fail(BANYAN_ENOMEM, "no memory to compare settings of %d ranks", n);
    buckets_settings(b, mine);
    rc = banyan_allgather(mine, all, NSET, BANYAN_U64, b->comm, &bny_exact);
    for (int r = 1; r < n && rc == 0; r++)
        for (int k = 0; k < NSET && rc == 0; k++)
            if (all[r * NSET + k] != all[k])
                rc = bny_fail(BANYAN_EMISMATCH,
                              "buckets: rank %d has another %s than rank 0; all ranks must "
                              "make them alike",
                              r, set_names[k]);
    free(all);
    return rc;
}

/* ---- life ---- */

static int make_arrays(struct banyan_buckets *b)
{
    size_t n = b->model.n;

    b->tensor = calloc(n + 1, sizeof *b->tensor);
    b->order = calloc(n + 1, sizeof *b->order);
    b->seen = calloc(n + 1, sizeof *b->seen);
    if (!b->tensor || !b->order || !b->seen)
        return bny_fail(BANYAN_ENOMEM, "no memory for buckets of %zu tensors", n);
    for (size_t i = 0; i < n; i++) /* backward comes to the last layer first */
        b->order[i] = (uint32_t)(n - 1 - i);
    return 0;
}

static int make_verdict(struct banyan_buckets *b)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_request_stats times = { .size = sizeof times };
    int rc;

    o.codec = "none";
    o.timeout_s = b->cfg.timeout_s;
    rc = banyan_allreduce_init(b->verdict, b->verdict, 3, BANYAN_U64, BANYAN_MAX, b->comm, &o,
                               &b->verdict_req);
    return rc ? rc : banyan_request_stats(b->verdict_req, &times);
}

static int buckets_make(struct banyan_buckets *b, const struct banyan_tensor *tensors, size_t n,
                        const struct bny_rules *given)
{
    struct bny_rules rules = { 0 };
    int rc = given ? 0 : bny_rules_parse(&rules, b->cfg.rules);

    if (rc == 0)
        rc = n >= UINT32_MAX ? bny_fail(BANYAN_EINVAL, "%zu tensors are too many", n)
                             : bny_tensors_copy(&b->model, tensors, n, DTYPES);
    if (rc == 0)
        rc = make_arrays(b);
    if (rc == 0)
        rc = apply_rules(b, given ? given : &rules);
    if (rc == 0)
        rc = bny_buckets_profile_make(b);
    rc = bny_all_can(b->comm, rc, "banyan_buckets_create");
    if (rc == 0)
        rc = bny_tensors_agree(&b->model, b->comm);
    if (rc == 0)
        rc = settings_agree(b);
    if (rc == 0)
        bny_rules_tell_idle(&rules, 0, &b->model, b->comm);
    if (rc == 0)
        rc = make_verdict(b);
    if (rc == 0)
        rc = bny_buckets_cut(b);
    bny_rules_free(&rules);
    b->cfg.codec = b->cfg.rules = NULL; /* the caller's memory */
    return rc;
}

int bny_buckets_create(struct banyan_buckets **out, struct banyan_comm *comm,
                       const struct banyan_tensor *tensors, size_t n,
                       const struct banyan_buckets_config *cfg, const struct bny_rules *rules)
{
    char why[512];
    struct banyan_buckets *b;
    int rc;

    b = bny_object_new(&handles, out, comm, "banyan_buckets_create", &rc);
    if (!b)
        return rc;
    b->comm = comm;
    rc = take_config(&b->cfg, cfg);
    if (rc == 0)
        rc = buckets_make(b, tensors, n, rules);
    if (rc == 0) {
        *out = b;
        return 0;
    }
    snprintf(why, sizeof why, "%s", banyan_last_error());
    banyan_buckets_free(b);
    return bny_fail((enum banyan_error) - rc, "%s", why);
}

int banyan_buckets_create(struct banyan_buckets **out, struct banyan_comm *comm,
                          const struct banyan_tensor *tensors, size_t n,
                          const struct banyan_buckets_config *cfg)
{
    return bny_buckets_create(out, comm, tensors, n, cfg, NULL);
}

int banyan_buckets_free(struct banyan_buckets *b)
{
    int rc = bny_object_may_free(b, BNY_BUCKETS_KIND, "banyan_buckets_free");

    if (rc <= 0)
        return rc;
    for (size_t j = b->oldest; j < b->next; j++)
        if (!b->bucket[j].is_done)
            banyan_wait(b->bucket[j].req, -1);
    bny_buckets_uncut(b);
    if (b->verdict_req)
        banyan_wait(b->verdict_req, -1); /* a step that failed may have left it in flight */
    banyan_request_free(b->verdict_req);
    for (size_t i = 0; b->tensor && i < b->model.n; i++) {
        banyan_codec_state_free(b->tensor[i].state);
        free(b->tensor[i].codec);
        free(b->tensor[i].schedule);
        free(b->tensor[i].parts);
    }
    bny_buckets_profile_free(b);
    free(b->tensor);
    free(b->order);
    free(b->seen);
    bny_tensors_free(&b->model);
    bny_handle_free(&handles, &b->object.handle);
    return 0;
}
