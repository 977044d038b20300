/* SPDX-License-Identifier: BSD-3-Clause */
/* Amazon EFA's own calls, from libefa.so.1, loaded at run time. Never tested on a card. */
#include <dlfcn.h>
#include <string.h>

#include "transport/verbs/ibv_symbols.h"

#ifdef BNY_HAVE_EFADV
#include <infiniband/efadv.h>

static int (*query_device)(struct ibv_context *, struct efadv_device_attr *, uint32_t);
static struct ibv_qp *(*create_driver_qp)(struct ibv_pd *, struct ibv_qp_init_attr *, uint32_t);

/* Returns 0; else it is no EFA. */
static int query(struct ibv_context *ctx, struct vb_efa *out)
{
    struct efadv_device_attr a;
    int rc;

    memset(&a, 0, sizeof a);
    rc = query_device(ctx, &a, sizeof a);
    if (rc)
        return rc;
    *out = (struct vb_efa){ .max_send = a.max_sq_wr,
                            .max_recv = a.max_rq_wr,
                            .max_send_sge = a.max_sq_sge,
                            .retries_rnr =
                                (a.device_caps & EFADV_DEVICE_ATTR_CAPS_RNR_RETRY) != 0 };
    return 0;
}

/* An SRD queue pair, to which ibv_post_send() posts. */
static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    return create_driver_qp(pd, attr, EFADV_QP_DRIVER_TYPE_SRD);
}

void bny_verbs_efa_load(struct vb_fn *fn)
{
    void *lib = dlopen("libefa.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (!lib)
        return;
    *(void **)(void *)&query_device = dlsym(lib, "efadv_query_device");
    *(void **)(void *)&create_driver_qp = dlsym(lib, "efadv_create_driver_qp");
    if (!query_device || !create_driver_qp)
        return;
    fn->efa_query = query;
    fn->efa_create_qp = create_qp;
}
#else
void bny_verbs_efa_load(struct vb_fn *fn)
{
}
#endif
