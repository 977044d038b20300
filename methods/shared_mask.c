/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared-mask coordinate descent: this step's blocks, the same on all ranks, are packed, summed
 * by an ordinary allreduce, and unpacked. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/sized.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/tensors.h"

#define KIND 0x4b534d53u /* "SMSK" */

struct banyan_shared_mask {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_shared_mask_config cfg;
    struct bny_tensors tensors;
    size_t nblocks, nchosen; /* of cfg.block elements, the last may be shorter; a step's */
    float *memory;  /* [count] gradients that wait; after choosing zero where they go */
    float *values;  /* [nchosen * block] */
    size_t *chosen; /* [nchosen] blocks, ascending in RANDOM */
    uint64_t step;
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_shared_mask);

static int shared_mask_settings(struct banyan_shared_mask_config *out,
                                const struct banyan_shared_mask_config *cfg)
{
    int rc;

    *out = (struct banyan_shared_mask_config)BANYAN_SHARED_MASK_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, cfg, "banyan_shared_mask_create",
                        "BANYAN_SHARED_MASK_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (!(out->delta > 0 && out->delta <= 1) || !out->block || out->order > BANYAN_MASK_BAND)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_shared_mask_create: delta is %g (above 0, at most 1), block "
                        "%zu (1 or more), order %d (0 or 1)",
                        out->delta, out->block, (int)out->order);
    return 0;
}

static int shared_mask_allocate(struct banyan_shared_mask *m)
{
    size_t n = m->tensors.count;

    m->cfg.block = m->cfg.block < n ? m->cfg.block : n ? n : 1;
    m->nblocks = (n + m->cfg.block - 1) / m->cfg.block;
    m->nchosen = (size_t)ceil(m->cfg.delta * (double)m->nblocks);
    m->memory = calloc(n ? n : 1, sizeof *m->memory);
    m->values = calloc(m->nchosen ? m->nchosen * m->cfg.block : 1, sizeof *m->values);
    m->chosen = calloc(m->nchosen ? m->nchosen : 1, sizeof *m->chosen);
    if (!m->memory || !m->values || !m->chosen)
        return bny_fail(BANYAN_ENOMEM, "no memory for the gradients of %zu elements", n);
    return 0;
}

/* Do all ranks choose alike? */
static int shared_mask_agree(const struct banyan_shared_mask *m)
{
    uint64_t v[8] = { m->nchosen, m->cfg.block,
                      (uint64_t)m->cfg.order << 1 | (uint64_t)(m->cfg.memory != 0),
                      m->cfg.seed };
    static const char *const names[] = { "delta", "block", "order or memory", "seed" };
    int rc;

    for (int k = 0; k < 4; k++)
        v[4 + k] = ~v[k];
    rc = banyan_allreduce(v, v, 8, BANYAN_U64, BANYAN_MAX, m->comm, &bny_exact);
    for (int k = 0; k < 4 && rc == 0; k++)
        if (v[k] != ~v[4 + k])
            rc = bny_fail(BANYAN_EMISMATCH,
                          "banyan_shared_mask_create: %s differs between ranks", names[k]);
    return rc;
}

int banyan_shared_mask_create(struct banyan_shared_mask **out, struct banyan_comm *comm,
                              const struct banyan_tensor *tensors, size_t n,
                              const struct banyan_shared_mask_config *cfg)
{
    struct banyan_shared_mask *m;
    int rc;

    m = bny_object_new(&handles, out, comm, "banyan_shared_mask_create", &rc);
    if (!m)
        return rc;
    m->comm = comm;
    rc = shared_mask_settings(&m->cfg, cfg);
    if (rc == 0)
        rc = bny_tensors_copy(&m->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0)
        rc = shared_mask_allocate(m);
    rc = bny_all_can(comm, rc, "banyan_shared_mask_create");
    if (rc == 0)
        rc = bny_tensors_agree(&m->tensors, comm);
    if (rc == 0)
        rc = shared_mask_agree(m);
    if (rc < 0)
        banyan_shared_mask_free(m);
    else
        *out = m;
    return rc;
}

int banyan_shared_mask_free(struct banyan_shared_mask *m)
{
    int rc = bny_object_may_free(m, KIND, "banyan_shared_mask_free");

    if (rc <= 0)
        return rc;
    bny_tensors_free(&m->tensors);
    free(m->memory);
    free(m->values);
    free(m->chosen);
    bny_handle_free(&handles, &m->object.handle);
    return 0;
}

/* This step's blocks: of seed and step alone. Random: each block in turn with the chance that
 * leaves exactly nchosen (Knuth, TAOCP 3.4.2, algorithm S). */
static void shared_mask_choose(struct banyan_shared_mask *m)
{
    uint64_t state = m->cfg.seed * 0x9e3779b97f4a7c15u + m->step;
    size_t left = m->nchosen;

    if (m->cfg.order == BANYAN_MASK_BAND) {
        for (size_t k = 0; k < m->nchosen; k++)
            m->chosen[k] =
                (size_t)((m->step % m->nblocks * (m->nchosen % m->nblocks) + k) % m->nblocks);
        return;
    }
    for (size_t b = 0; b < m->nblocks && left; b++)
        if (bny_rng_below(&state, m->nblocks - b) < left)
            m->chosen[m->nchosen - left--] = b;
}

static size_t block_len(const struct banyan_shared_mask *m, size_t block)
{
    size_t rest = m->tensors.count - block * m->cfg.block;

    return rest < m->cfg.block ? rest : m->cfg.block;
}

/* The gradients are added to the memory. */
static void remember(struct banyan_shared_mask *m)
{
    for (size_t i = 0; i < m->tensors.n; i++) {
        const struct bny_tensor *t = &m->tensors.at[i];
        const float *grad = t->grad;
        float *to = m->memory + t->before;

        for (size_t k = 0; k < t->count; k++)
            to[k] += grad[k];
    }
}

/* Packs the chosen blocks; returns elements. */
static size_t shared_mask_pack(struct banyan_shared_mask *m)
{
    size_t at = 0;

    for (size_t k = 0; k < m->nchosen; k++) {
        size_t len = block_len(m, m->chosen[k]);

        memcpy(m->values + at, m->memory + m->chosen[k] * m->cfg.block, len * sizeof(float));
        at += len;
    }
    return at;
}

/* The tensor that has an element. */
static size_t tensor_of(const struct banyan_shared_mask *m, size_t element)
{
    size_t first = 0, beyond = m->tensors.n;

    while (beyond - first > 1) {
        size_t middle = (first + beyond) / 2;

        if (m->tensors.at[middle].before <= element)
            first = middle;
        else
            beyond = middle;
    }
    return first;
}

/* The memory gives what the gradients become: sums where chosen, zero elsewhere. With a memory,
 * elements that are not sent wait there. */
static void shared_mask_unpack(struct banyan_shared_mask *m)
{
    float scale = m->cfg.memory ? 1 : (float)m->nblocks / (float)m->nchosen;
    size_t at = 0;

    for (size_t i = 0; i < m->tensors.n; i++)
        memset(m->tensors.at[i].grad, 0, m->tensors.at[i].bytes);
    for (size_t k = 0; k < m->nchosen; k++) {
        size_t first = m->chosen[k] * m->cfg.block, len = block_len(m, m->chosen[k]);
        size_t i = tensor_of(m, first);

        memset(m->memory + first, 0, len * sizeof(float));
        for (size_t e = first; e < first + len; e++, at++) {
            while (e >= m->tensors.at[i].before + m->tensors.at[i].count)
                i++;
            ((float *)m->tensors.at[i].grad)[e - m->tensors.at[i].before] =
                scale * m->values[at];
        }
    }
    if (!m->cfg.memory)
        memset(m->memory, 0, m->tensors.count * sizeof *m->memory);
}

int banyan_shared_mask_step(struct banyan_shared_mask *m)
{
    size_t n;
    int rc, finite = 1;

    rc = bny_object_enter(m, KIND, "banyan_shared_mask_step");
    if (rc < 0)
        return rc;
    if (!m->nblocks)
        return 0;
    shared_mask_choose(m);
    remember(m);
    n = shared_mask_pack(m);
    rc = banyan_allreduce(m->values, m->values, n, BANYAN_F32, BANYAN_AVG, m->comm, &bny_exact);
    for (size_t i = 0; i < n && rc == 0; i++)
        finite &= isfinite(m->values[i]) != 0;
    if (rc == 0 && !finite)
        rc = bny_tensors_blame(&m->tensors, m->comm,
                               bny_tensors_nonfinite(&m->tensors, m->memory), "gradient");
    if (rc < 0)
        return rc;
    shared_mask_unpack(m);
    m->step++;
    return 0;
}

int banyan_shared_mask_scale(struct banyan_shared_mask *m, double factor)
{
    int rc = bny_object_check(m, KIND, "banyan_shared_mask_scale");

    if (rc < 0)
        return rc;
    if (!isfinite(factor))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_shared_mask_scale: the factor must be a finite number");
    for (size_t i = 0; i < m->tensors.count; i++)
        m->memory[i] *= (float)factor;
    return 0;
}

static void shared_mask_walk(struct bny_saved *s, struct banyan_shared_mask *m)
{
    bny_saved_bytes(s, &m->step, sizeof m->step);
    bny_saved_bytes(s, m->memory, m->tensors.count * sizeof *m->memory);
}

size_t banyan_shared_mask_bytes(const struct banyan_shared_mask *m)
{
    struct bny_saved s;

    if (bny_object_check(m, KIND, "banyan_shared_mask_bytes") < 0)
        return 0;
    bny_saved_count(&s, KIND);
    bny_saved_bytes(&s, NULL, sizeof m->tensors.hash);
    shared_mask_walk(&s,
                     (struct banyan_shared_mask *)(uintptr_t)m); /* counting changes nothing */
    return s.len;
}

int banyan_shared_mask_save(const struct banyan_shared_mask *m, void *buf, size_t cap)
{
    struct bny_saved s;
    uint64_t hash;
    int rc = bny_object_check(m, KIND, "banyan_shared_mask_save");

    if (rc == 0)
        rc = bny_saved_write(&s, KIND, buf, cap, banyan_shared_mask_bytes(m));
    if (rc < 0)
        return rc;
    hash = m->tensors.hash;
    bny_saved_bytes(&s, &hash, sizeof hash);
    shared_mask_walk(&s, (struct banyan_shared_mask *)(uintptr_t)m);
    return bny_saved_end(&s, NULL);
}

int banyan_shared_mask_load(struct banyan_shared_mask *m, const void *buf, size_t bytes)
{
    uint64_t hash;
    struct bny_saved s;
    int rc = bny_object_check(m, KIND, "banyan_shared_mask_load");

    if (rc == 0)
        rc = bny_saved_read(&s, KIND, buf, bytes, "banyan_shared_mask_load");
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, &hash, sizeof hash);
    if (bytes != banyan_shared_mask_bytes(m) || hash != m->tensors.hash)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_shared_mask_load: the state is of other tensors");
    shared_mask_walk(&s, m);
    return bny_saved_end(&s, NULL);
}
