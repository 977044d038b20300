/* SPDX-License-Identifier: BSD-3-Clause */
/* A model's tensors: copied from the user's description, compared with rank 0's. */
#include "training/tensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/err.h"

#define NAME_MAX_BYTES 128

const struct banyan_opts bny_exact = {
    .size = sizeof bny_exact, .codec = "none", .timeout_s = -1, .deterministic = -1
};

static int tensors_check(const struct banyan_tensor *t, size_t i, unsigned dtypes)
{
    if (!t->name || !*t->name || strlen(t->name) >= NAME_MAX_BYTES)
        return bny_fail(BANYAN_EINVAL, "tensor %zu needs a name of 1 to %d bytes", i,
                        NAME_MAX_BYTES - 1);
    if (t->dtype >= BNY_DTYPE_COUNT || !(dtypes & 1u << t->dtype))
        return bny_fail(BANYAN_EINVAL, "tensor %s has type %s, which is not supported here",
                        t->name,
                        t->dtype < BNY_DTYPE_COUNT ? banyan_dtype_name(t->dtype) : "?");
    if (t->ndim < 0 || t->ndim > BNY_TENSOR_DIMS || (t->ndim > 0 && !t->shape))
        return bny_fail(BANYAN_EINVAL, "tensor %s has %d dimensions; 0 to %d, with their shape",
                        t->name, t->ndim, BNY_TENSOR_DIMS);
    if (!t->grad)
        return bny_fail(BANYAN_EINVAL, "tensor %s has no gradient: grad is NULL", t->name);
    return 0;
}

static int tensors_copy(struct bny_tensor *out, const struct banyan_tensor *t)
{
    size_t elem = banyan_dtype_bytes(t->dtype);

    out->dtype = t->dtype;
    out->ndim = t->ndim;
    out->grad = t->grad;
    out->count = 1;
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] <= 0 || (size_t)t->shape[d] > (size_t)PTRDIFF_MAX / elem / out->count)
            return bny_fail(BANYAN_EINVAL, "tensor %s has length %" PRId64 " in dimension %d",
                            t->name, t->shape[d], d);
        out->shape[d] = t->shape[d];
        out->count *= (size_t)t->shape[d];
    }
    out->bytes = out->count * elem;
    out->name = strdup(t->name);
    return out->name ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for tensor %s", t->name);
}

static uint64_t tensors_mix(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return hash;
}

static uint64_t hash_of(const struct bny_tensor *t)
{
    uint64_t hash = tensors_mix(14695981039346656037u, t->name, strlen(t->name) + 1);
    int32_t head[2] = { (int32_t)t->dtype, t->ndim };

    hash = tensors_mix(hash, head, sizeof head);
    return tensors_mix(hash, t->shape, (size_t)t->ndim * sizeof t->shape[0]);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int names_differ(const struct bny_tensors *t)
{
    char **names = malloc((t->n ? t->n : 1) * sizeof *names);
    int rc = 0;

    if (!names)
        return bny_fail(BANYAN_ENOMEM, "no memory for the names of %zu tensors", t->n);
    for (size_t i = 0; i < t->n; i++)
        names[i] = t->at[i].name;
    qsort(names, t->n, sizeof *names, by_name);
    for (size_t i = 1; i < t->n && rc == 0; i++)
        if (!strcmp(names[i - 1], names[i]))
            rc = bny_fail(BANYAN_EINVAL, "two tensors are called %s; names must be unique",
                          names[i]);
    free(names);
    return rc;
}

int bny_tensors_copy(struct bny_tensors *out, const struct banyan_tensor *tensors, size_t n,
                     unsigned dtypes)
{
    int rc = 0;

    memset(out, 0, sizeof *out);
    if (n && !tensors)
        return bny_fail(BANYAN_EINVAL, "%zu tensors, but the array is NULL", n);
    out->at = calloc(n ? n : 1, sizeof *out->at);
    if (!out->at)
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu tensors", n);
    out->hash = n;
    for (size_t i = 0; i < n && rc == 0; i++) {
        uint64_t one;

        rc = tensors_check(&tensors[i], i, dtypes);
        if (rc == 0)
            rc = tensors_copy(&out->at[i], &tensors[i]);
        if (rc < 0)
            break;
        out->n++;
        out->at[i].before = out->count;
        out->count += out->at[i].count;
        one = hash_of(&out->at[i]);
        out->hash = tensors_mix(out->hash, &one, sizeof one);
    }
    if (rc == 0)
        rc = names_differ(out);
    if (rc < 0)
        bny_tensors_free(out);
    return rc;
}

void bny_tensors_free(struct bny_tensors *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->at[i].name);
    free(t->at);
    memset(t, 0, sizeof *t);
}

void bny_tensors_get(const struct bny_tensors *t, float *flat)
{
    for (size_t i = 0; i < t->n; flat += t->at[i++].count)
        memcpy(flat, t->at[i].grad, t->at[i].bytes);
}

void bny_tensors_put(const struct bny_tensors *t, const float *flat)
{
    for (size_t i = 0; i < t->n; flat += t->at[i++].count)
        memcpy(t->at[i].grad, flat, t->at[i].bytes);
}

size_t bny_tensors_nonfinite(const struct bny_tensors *t, const float *flat)
{
    for (size_t i = 0; i < t->n; flat += t->at[i++].count)
        for (size_t k = 0; k < t->at[i].count; k++)
            if (!isfinite(flat[k]))
                return i;
    return t->n;
}

int bny_tensors_blame(const struct bny_tensors *t, struct banyan_comm *comm, size_t bad,
                      const char *what)
{
    uint64_t first =
        bad < t->n ? (uint64_t)banyan_comm_rank(comm) << 32 | (uint64_t)bad : UINT64_MAX;
    int rc = banyan_allreduce(&first, &first, 1, BANYAN_U64, BANYAN_MIN, comm, &bny_exact);

    if (rc < 0)
        return rc;
    if (first == UINT64_MAX)
        return bny_fail(BANYAN_EINVAL,
                        "a sum of the %ss of all ranks is no finite number: they grew "
                        "too large",
                        what);
    return bny_fail(BANYAN_EINVAL,
                    "the %s of tensor %s at rank %d has a value that is no finite number", what,
                    t->at[(size_t)(first & UINT32_MAX) < t->n ? first & UINT32_MAX : 0].name,
                    (int)(first >> 32));
}

int bny_all_can(struct banyan_comm *comm, int rc, const char *what)
{
    int n = banyan_comm_count(comm), rank = banyan_comm_rank(comm), e;
    uint64_t failed;
    char why[512];

    if (rank < 0)
        return rank;
    failed = rc < 0 ? (uint64_t)(n - rank) << 8 | (uint64_t)-rc : 0; /* the lowest rank's */
    snprintf(why, sizeof why, "%s", rc < 0 ? banyan_last_error() : "");
    e = banyan_allreduce(&failed, &failed, 1, BANYAN_U64, BANYAN_MAX, comm, &bny_exact);
    if (rc < 0)
        return bny_fail((enum banyan_error) - rc, "%s", why);
    if (e < 0 || failed == 0)
        return e;
    e = (int)(failed & 255);
    return bny_fail((enum banyan_error)e, "%s: rank %d could not (%s); its own error says why",
                    what, n - (int)(failed >> 8), banyan_strerror(e));
}

/* Rank 0's values, with which the others compare theirs. */
struct described {
    int32_t dtype, ndim;
    int64_t shape[BNY_TENSOR_DIMS];
    char name[NAME_MAX_BYTES];
};

static void tensors_describe(struct described *d, const struct bny_tensor *t)
{
    memset(d, 0, sizeof *d);
    d->dtype = (int32_t)t->dtype;
    d->ndim = t->ndim;
    memcpy(d->shape, t->shape, sizeof d->shape);
    snprintf(d->name, sizeof d->name, "%s", t->name);
}

static void shape_text(char *buf, size_t cap, const struct described *d)
{
    size_t at = (size_t)snprintf(buf, cap, "%s [",
                                 d->dtype >= 0 && d->dtype < BNY_DTYPE_COUNT
                                     ? banyan_dtype_name((enum banyan_dtype)d->dtype)
                                     : "?");

    for (int i = 0; i < d->ndim && i < BNY_TENSOR_DIMS && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%" PRId64, i ? "," : "", d->shape[i]);
    if (at < cap)
        snprintf(buf + at, cap - at, "]");
}

/* first: of all ranks, the first tensor that one of them has otherwise than rank 0; who: the
 * lowest rank that has. */
static int tensors_tell(const struct bny_tensors *t, struct banyan_comm *comm, uint64_t first,
                        uint64_t who)
{
    struct described d[2];
    char text[2][128];
    int rc;

    for (int k = 0; k < 2; k++) {
        int root = k ? (int)who : 0;

        memset(&d[k], 0, sizeof d[k]);
        if (banyan_comm_rank(comm) == root && first < t->n)
            tensors_describe(&d[k], &t->at[first]);
        rc = banyan_broadcast(&d[k], sizeof d[k], BANYAN_U8, root, comm, &bny_exact);
        if (rc < 0)
            return rc;
        d[k].name[NAME_MAX_BYTES - 1] = 0;
        shape_text(text[k], sizeof text[k], &d[k]);
    }
    if (!*d[0].name || !*d[1].name)
        return bny_fail(BANYAN_EMISMATCH,
                        "rank %d has %s tensor %" PRIu64 " (%s), rank 0 has %s; all ranks must "
                        "register the same tensors in the same order",
                        (int)who, *d[1].name ? "a" : "no", first,
                        *d[1].name ? d[1].name : d[0].name, *d[0].name ? "it" : "no more");
    return bny_fail(BANYAN_EMISMATCH,
                    "tensor %" PRIu64 " is %s, %s at rank 0 and %s, %s at rank %d; all ranks "
                    "must register the same tensors in the same order",
                    first, d[0].name, text[0], d[1].name, text[1], (int)who);
}

/* Rank 0's hashes, and the first of ours that is not like them. */
static int first_difference(const struct bny_tensors *t, struct banyan_comm *comm,
                            uint64_t *out)
{
    uint64_t n = t->n, *hash;
    int rc = banyan_broadcast(&n, 1, BANYAN_U64, 0, comm, &bny_exact);

    *out = UINT64_MAX;
    if (rc < 0)
        return rc;
    hash = calloc(n ? n : 1, sizeof *hash);
    if (!hash)
        return bny_fail(BANYAN_ENOMEM, "no memory to compare %" PRIu64 " tensors", n);
    for (size_t i = 0; i < n && i < t->n; i++)
        hash[i] = hash_of(&t->at[i]);
    rc = banyan_broadcast(hash, n, BANYAN_U64, 0, comm, &bny_exact);
    for (uint64_t i = 0; i < n && *out == UINT64_MAX; i++)
        if (i >= t->n || hash[i] != hash_of(&t->at[i]))
            *out = i;
    if (*out == UINT64_MAX && t->n > n)
        *out = n;
    free(hash);
    return rc;
}

int bny_tensors_agree(const struct bny_tensors *t, struct banyan_comm *comm)
{
    uint64_t v[2] = { t->hash, ~t->hash }, mine, first, who;
    int rc = banyan_allreduce(v, v, 2, BANYAN_U64, BANYAN_MAX, comm, &bny_exact);

    if (rc < 0 || v[0] == ~v[1])
        return rc;
    rc = first_difference(t, comm, &mine);
    first = mine;
    if (rc == 0)
        rc = banyan_allreduce(&first, &first, 1, BANYAN_U64, BANYAN_MIN, comm, &bny_exact);
    who = mine == first ? (uint64_t)banyan_comm_rank(comm) : UINT64_MAX;
    if (rc == 0)
        rc = banyan_allreduce(&who, &who, 1, BANYAN_U64, BANYAN_MIN, comm, &bny_exact);
    return rc < 0 ? rc : tensors_tell(t, comm, first, who);
}
