/* SPDX-License-Identifier: BSD-3-Clause */
/* A profile of steps as this rank's own: when each tensor is ready, without the time that the
 * rank spent in buckets. So a profile of one rank, or of a job on any network, says what the
 * step is on every network. Times of the latest cfg.profile steps are kept; the file has their
 * medians. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/filesize.h"
#include "training/buckets.h"
#include "training/profile.h"

int bny_buckets_profile_make(struct banyan_buckets *b)
{
    struct bny_profiled *p;
    size_t keep = (size_t)b->cfg.profile;

    if (!keep)
        return 0;
    p = b->profile = calloc(1, sizeof *p);
    if (p)
        p->ready_ns = calloc(keep * b->model.n + 1, sizeof *p->ready_ns);
    if (p && p->ready_ns)
        p->own_ns = calloc(2 * keep, sizeof *p->own_ns);
    if (!p || !p->ready_ns || !p->own_ns)
        return bny_fail(BANYAN_ENOMEM, "no memory for times of %zu steps of %zu tensors", keep,
                        b->model.n);
    p->step_ns = p->own_ns + keep;
    return 0;
}

void bny_buckets_profile_free(struct banyan_buckets *b)
{
    if (b->profile) {
        free(b->profile->ready_ns);
        free(b->profile->own_ns);
    }
    free(b->profile);
}

/* ---- in a step ---- */

void bny_buckets_profile_enter(struct banyan_buckets *b)
{
    if (b->profile)
        b->profile->entered_ns = bny_now_ns();
}

void bny_buckets_profile_leave(struct banyan_buckets *b)
{
    if (b->profile)
        b->profile->inside_ns += bny_now_ns() - b->profile->entered_ns;
}

static uint64_t own_ns(const struct bny_profiled *p)
{
    return p->entered_ns - p->began_ns - p->inside_ns;
}

void bny_buckets_profile_ready(struct banyan_buckets *b, size_t i)
{
    struct bny_profiled *p = b->profile;

    if (p && p->began_ns)
        p->ready_ns[i * (size_t)b->cfg.profile + p->next] = own_ns(p);
}

/* The first step began before anybody looked at the clock: it is not kept. */
void bny_buckets_profile_step(struct banyan_buckets *b)
{
    struct bny_profiled *p = b->profile;
    uint64_t now;

    if (!p)
        return;
    now = bny_now_ns();
    if (p->began_ns) {
        p->own_ns[p->next] = own_ns(p);
        p->step_ns[p->next] = now - p->began_ns;
        p->next = (p->next + 1) % (size_t)b->cfg.profile;
        if (p->have < (size_t)b->cfg.profile)
            p->have++;
    }
    p->began_ns = p->entered_ns = now;
    p->inside_ns = 0;
}

/* ---- the file ---- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Seconds. tmp: [n]. */
static double median(const uint64_t *ns, size_t n, uint64_t *tmp)
{
    memcpy(tmp, ns, n * sizeof *tmp);
    qsort(tmp, n, sizeof *tmp, by_size);
    return 1e-9 * (double)tmp[n / 2];
}

/* p's pointers are borrowed from b, but for the list itself. */
static void buckets_profile_fill(struct bny_profile *p, const struct banyan_buckets *b,
                                 uint64_t *tmp)
{
    const struct bny_profiled *k = b->profile;
    double first = 0, last = 0;

    *p = (struct bny_profile){ .ranks = banyan_comm_count(b->comm),
                               .steps = (int)k->have,
                               .compute_s = median(k->own_ns, k->have, tmp),
                               .step_s = median(k->step_ns, k->have, tmp),
                               .bucket_bytes = b->cfg.bucket_bytes,
                               .first_bytes = b->cfg.first_bytes,
                               .progress = b->cfg.progress,
                               .n = b->model.n,
                               .tensors = p->tensors };
    for (size_t at = 0; at < p->n; at++) {
        size_t i = b->order[at];
        const struct bny_bucketed *t = &b->tensor[i];
        double ready = median(k->ready_ns + i * (size_t)b->cfg.profile, k->have, tmp);

        p->tensors[at] = (struct bny_profile_tensor){
            .name = b->model.at[i].name,
            .dtype = b->model.at[i].dtype,
            .count = b->model.at[i].count,
            .ready_s = ready,
            .codec = t->codec ? t->codec : (char *)(uintptr_t) "none",
            .schedule = t->schedule ? t->schedule : (char *)(uintptr_t) "auto"
        };
        first = at == 0 || ready < first ? ready : first;
        last = ready > last ? ready : last;
    }
    if (p->compute_s < last) /* medians of different steps */
        p->compute_s = last;
    p->forward_s = first;
    p->backward_s = last - first;
}

static int write_file(const struct bny_profile *p, const char *path)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    int rc = f ? bny_profile_write(p, f) : -1;

    if (f && fclose(f) != 0)
        rc = -1;
    if (rc == 0)
        rc = bny_file_save(path, text, len);
    free(text);
    return rc ? bny_fail(BANYAN_ESYSTEM, "banyan_buckets_profile: %.200s cannot be written: %s",
                         path, strerror(errno))
              : 0;
}

int banyan_buckets_profile(const struct banyan_buckets *b, const char *path)
{
    struct bny_profile p = { 0 };
    uint64_t *tmp;
    int rc = bny_buckets_check_idle(b, "banyan_buckets_profile");

    if (rc < 0)
        return rc;
    if (!path)
        return bny_fail(BANYAN_EINVAL, "banyan_buckets_profile: path must not be NULL");
    if (!b->profile)
        return bny_fail(BANYAN_EINVAL, "banyan_buckets_profile: no times are kept; set "
                                       "banyan_buckets_config.profile to a number of steps");
    if (!b->profile->have || !b->model.n)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_buckets_profile: %s; the first step is not counted",
                        b->model.n ? "fewer than two steps have ended" : "there is no tensor");
    p.tensors = calloc(b->model.n, sizeof *p.tensors);
    tmp = calloc(b->profile->have, sizeof *tmp);
    if (p.tensors && tmp) {
        buckets_profile_fill(&p, b, tmp);
        rc = write_file(&p, path);
    } else {
        rc = bny_fail(BANYAN_ENOMEM, "no memory for a profile of %zu tensors", b->model.n);
    }
    free(p.tensors);
    free(tmp);
    return rc;
}
