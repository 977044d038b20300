/* SPDX-License-Identifier: BSD-3-Clause */
/* Saving and loading what LGC keeps between steps. */
#include "base/err.h"
#include "methods/lgc/lgc.h"
#include "training/saved.h"

/* After the counters, which have the identity of what they belong to. */
static void walk_arrays(struct bny_saved *s, struct banyan_lgc *lgc)
{
    bny_saved_bytes(s, lgc->residuals, lgc->nresiduals * sizeof *lgc->residuals);
    bny_saved_bytes(s, lgc->net->weights, lgc->net->nweights * sizeof *lgc->net->weights);
    if (lgc->net->moments)
        bny_saved_bytes(s, lgc->net->moments, 2 * lgc->net->nweights * sizeof(float));
}

static void lgc_state_walk(struct bny_saved *s, const struct banyan_lgc *lgc)
{
    struct bny_lgc_vars v = lgc->v;

    v.updates = lgc->net->updates;
    bny_saved_bytes(s, &v, sizeof v);
    walk_arrays(s, (struct banyan_lgc *)(uintptr_t)lgc);
}

size_t banyan_lgc_bytes(const struct banyan_lgc *lgc)
{
    struct bny_saved s;
    size_t bytes = 0;

    if (bny_object_check(lgc, BNY_LGC_KIND, "banyan_lgc_bytes") < 0)
        return 0;
    bny_saved_count(&s, BNY_LGC_KIND);
    lgc_state_walk(&s, lgc);
    bny_saved_end(&s, &bytes);
    return bytes;
}

int banyan_lgc_save(const struct banyan_lgc *lgc, void *buf, size_t cap)
{
    struct bny_saved s;
    int rc = bny_object_check(lgc, BNY_LGC_KIND, "banyan_lgc_save");

    if (rc == 0)
        rc = bny_saved_write(&s, BNY_LGC_KIND, buf, cap, banyan_lgc_bytes(lgc));
    if (rc < 0)
        return rc;
    lgc_state_walk(&s, lgc);
    return bny_saved_end(&s, NULL);
}

int banyan_lgc_load(struct banyan_lgc *lgc, const void *buf, size_t bytes)
{
    struct bny_lgc_vars v;
    struct bny_saved s;
    int rc = bny_object_check(lgc, BNY_LGC_KIND, "banyan_lgc_load");

    if (rc == 0)
        rc = bny_saved_read(&s, BNY_LGC_KIND, buf, bytes, "banyan_lgc_load");
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, &v, sizeof v);
    if (s.short_of || v.id != lgc->v.id || bytes != banyan_lgc_bytes(lgc))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_lgc_load: at rank %d of %d the state is of other tensors or "
                        "settings, of another rank, or of another number of ranks",
                        lgc->rank, lgc->n);
    walk_arrays(&s, lgc);
    lgc->v = v;
    lgc->net->updates = v.updates;
    rc = bny_saved_end(&s, NULL);
    if (rc == 0 && lgc->ops->pack(lgc->net))
        rc = bny_fail(BANYAN_ESYSTEM, "rank %d: LGC: %s", lgc->rank, lgc->net->text);
    return rc;
}
