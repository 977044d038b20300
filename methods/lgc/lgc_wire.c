/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives of LGC, counted by what their bytes are: sent, each rank's contribution once, and
 * what this rank handed to transports. All of them are exact, whatever the communicator's
 * codec. */
#include "methods/lgc/lgc.h"

static uint64_t handed_over(const struct banyan_lgc *lgc)
{
    struct banyan_stats s = { .size = sizeof s };

    return banyan_comm_stats(lgc->comm, &s) < 0 ? 0 : s.wire_bytes;
}

static void lgc_wire_count(struct banyan_lgc *lgc, enum banyan_lgc_kind kind, uint64_t before,
                           uint64_t sent)
{
    lgc->v.wire[kind] += handed_over(lgc) - before;
    lgc->v.sent[kind] += sent;
}

int bny_lgc_allreduce(struct banyan_lgc *lgc, enum banyan_lgc_kind kind, void *buf, size_t n,
                      enum banyan_dtype dtype, enum banyan_op_kind op)
{
    uint64_t before = handed_over(lgc);
    int rc = banyan_allreduce(buf, buf, n, dtype, op, lgc->comm, &lgc->opts);

    lgc_wire_count(lgc, kind, before, n * banyan_dtype_bytes(dtype) * (uint64_t)lgc->n);
    return rc;
}

int bny_lgc_broadcast(struct banyan_lgc *lgc, enum banyan_lgc_kind kind, void *buf, size_t n,
                      enum banyan_dtype dtype, int root)
{
    uint64_t before = handed_over(lgc);
    int rc = banyan_broadcast(buf, n, dtype, root, lgc->comm, &lgc->opts);

    lgc_wire_count(lgc, kind, before, n * banyan_dtype_bytes(dtype));
    return rc;
}

int bny_lgc_exchange_pairs(struct banyan_lgc *lgc, const uint32_t *send, uint32_t *recv,
                           size_t n)
{
    uint64_t before = handed_over(lgc), bytes;
    int rc = banyan_allgather(send, recv, 2 * n, BANYAN_U32, lgc->comm, &lgc->opts);

    bytes = handed_over(lgc) - before;
    lgc->v.wire[BANYAN_LGC_INDICES] += bytes / 2;
    lgc->v.wire[BANYAN_LGC_VALUES] += bytes - bytes / 2;
    lgc->v.sent[BANYAN_LGC_INDICES] += 4 * n * (uint64_t)lgc->n;
    lgc->v.sent[BANYAN_LGC_VALUES] += 4 * n * (uint64_t)lgc->n;
    return rc;
}

int bny_lgc_gather(struct banyan_lgc *lgc, enum banyan_lgc_kind kind, const void *send,
                   void *recv)
{
    uint64_t before = handed_over(lgc), sent = 0;
    int rc = banyan_gatherv(send, lgc->counts[lgc->rank], recv, lgc->counts, NULL, BANYAN_U32,
                            lgc->cfg.root, lgc->comm, &lgc->opts);

    for (int r = 0; r < lgc->n; r++)
        sent += 4 * lgc->counts[r];
    lgc_wire_count(lgc, kind, before, sent);
    return rc;
}
