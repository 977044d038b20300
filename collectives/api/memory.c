/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that is shared or registered: the transport's that can, else ordinary memory, of which
 * the world keeps a list, so that a pointer that is not from here is refused and not freed. */
#include <stdlib.h>
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/progress/progress.h"

static struct bny_tp *mem_tp(struct banyan_comm *comm)
{
    for (int i = 0; i < comm->world->ntps; i++)
        if (comm->world->tps[i]->ops->caps & BNY_TP_MEM)
            return comm->world->tps[i];
    return NULL;
}

static int plain_add(struct bny_world *w, void *ptr, int owned)
{
    struct bny_plain *p = malloc(sizeof *p);

    if (!p)
        return bny_fail(BANYAN_ENOMEM, "no memory to keep account of %p", ptr);
    *p = (struct bny_plain){ .next = w->plain, .ptr = ptr, .owned = owned };
    w->plain = p;
    return 0;
}

static int plain_drop(struct bny_world *w, void *ptr, int owned)
{
    for (struct bny_plain **at = &w->plain; *at; at = &(*at)->next)
        if ((*at)->ptr == ptr && (*at)->owned == owned) {
            struct bny_plain *p = *at;
            *at = p->next;
            if (owned)
                free(ptr);
            free(p);
            return 0;
        }
    return bny_fail(BANYAN_EINVAL, "ptr: %p was not %s with this communicator", ptr,
                    owned ? "allocated by banyan_mem_alloc"
                          : "registered by banyan_mem_register");
}

static int plain_alloc(struct bny_world *w, size_t bytes, void **out)
{
    int rc;

    if (posix_memalign(out, 4096, bytes) != 0) {
        *out = NULL;
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu bytes", bytes);
    }
    memset(*out, 0, bytes);
    rc = plain_add(w, *out, 1);
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

/* Network devices learn of the memory too. One that does not take it still works, with a copy:
 * a warning. */
static void attach(struct bny_world *w, void *ptr, size_t bytes)
{
    for (int i = 0; i < w->ntps; i++)
        if ((w->tps[i]->ops->caps & BNY_TP_ATTACH) &&
            w->tps[i]->ops->attach(w->tps[i], ptr, bytes) != 0)
            bny_warn("%s; messages from and to that memory are copied", banyan_last_error());
}

static void detach(struct bny_world *w, void *ptr)
{
    for (int i = 0; i < w->ntps; i++)
        if (w->tps[i]->ops->caps & BNY_TP_ATTACH)
            w->tps[i]->ops->detach(w->tps[i], ptr);
}

int banyan_mem_alloc(struct banyan_comm *comm, size_t bytes, void **out)
{
    struct bny_tp *tp;
    int rc = bny_comm_enter(comm, "banyan_mem_alloc");

    if (rc)
        return rc;
    if (!out || bytes == 0)
        return bny_fail(BANYAN_EINVAL, "banyan_mem_alloc: out must not be NULL, bytes not 0");
    tp = mem_tp(comm);
    bny_world_lock(comm->world);
    rc = tp ? tp->ops->mem_alloc(tp, bytes, out) : plain_alloc(comm->world, bytes, out);
    if (rc == 0)
        attach(comm->world, *out, bytes);
    bny_world_unlock(comm->world);
    return rc;
}

int banyan_mem_free(struct banyan_comm *comm, void *ptr)
{
    struct bny_tp *tp;
    int rc = bny_comm_enter(comm, "banyan_mem_free");

    if (rc)
        return rc;
    if (!ptr)
        return 0;
    tp = mem_tp(comm);
    bny_world_lock(comm->world);
    rc = tp ? tp->ops->mem_free(tp, ptr) : plain_drop(comm->world, ptr, 1);
    if (rc == 0) /* refused memory keeps its registration */
        detach(comm->world, ptr);
    bny_world_unlock(comm->world);
    return rc;
}

int banyan_mem_register(struct banyan_comm *comm, void *ptr, size_t bytes, int fd,
                        uint64_t offset)
{
    struct bny_tp *tp;
    int rc = bny_comm_enter(comm, "banyan_mem_register");

    if (rc)
        return rc;
    if (!ptr || bytes == 0)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_mem_register: ptr must not be NULL, bytes not 0");
    tp = mem_tp(comm);
    bny_world_lock(comm->world);
    rc = tp && tp->ops->shared ? tp->ops->shared->mem_register(tp, ptr, bytes, fd, offset)
                               : plain_add(comm->world, ptr, 0);
    if (rc == 0)
        attach(comm->world, ptr, bytes);
    bny_world_unlock(comm->world);
    return rc;
}

int banyan_mem_deregister(struct banyan_comm *comm, void *ptr)
{
    struct bny_tp *tp;
    int rc = bny_comm_enter(comm, "banyan_mem_deregister");

    if (rc)
        return rc;
    if (!ptr)
        return bny_fail(BANYAN_EINVAL, "banyan_mem_deregister: ptr must not be NULL");
    tp = mem_tp(comm);
    bny_world_lock(comm->world);
    rc = tp && tp->ops->shared ? tp->ops->shared->mem_deregister(tp, ptr)
                               : plain_drop(comm->world, ptr, 0);
    if (rc == 0)
        detach(comm->world, ptr);
    bny_world_unlock(comm->world);
    return rc;
}
