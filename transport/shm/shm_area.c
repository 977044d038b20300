/* SPDX-License-Identifier: BSD-3-Clause */
/* Areas: memory that a rank shares with some peers for good. Its descriptor goes over each
 * peer's connection, once, before the message that names the area. The peer maps it when the
 * packet comes, and the caller that takes the mapping owns it: neither a packet nor the end of
 * the peer unmaps it. So unlike an arena, which is looked up for each message, an area works
 * without messages. Nothing has a name in the file system, so nothing remains when all
 * processes are gone. */
#include "transport/shm/shm_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/filesize.h"
#include "base/fd.h"

/* ---- ours ---- */

int bny_shm_area_make(struct bny_tp *btp, size_t bytes, int readers, void **mem, uint32_t *id)
{
    struct shm_tp *tp = (struct shm_tp *)btp;
    struct shm_area *a = calloc(1, sizeof *a);
    uint8_t *at;

    if (!a)
        return bny_fail(BANYAN_ENOMEM, "shm: no memory for an area");
    a->fd = bny_fd_own(bny_shm_memfd(bytes, 0, &at));
    if (a->fd < 0) {
        free(a);
        return bny_fail(BANYAN_ENOMEM, "shm: no shared memory of %zu bytes: %s%s", bytes,
                        strerror(errno), bny_file_remedy(errno));
    }
    tp->area_id = tp->area_id % UINT32_MAX + 1;
    a->id = *id = tp->area_id;
    a->mem = *mem = at;
    a->bytes = bytes;
    a->untold = readers;
    a->next = tp->areas;
    tp->areas = a;
    return 0;
}

int bny_shm_area_tell(struct bny_ep *bep, uint32_t id)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    struct shm_area *a = ((struct shm_tp *)bep->tp)->areas;
    struct shm_packet p = { .type = SHM_PKT_AREA, .id = id };
    int rc;

    if (ep->fate != SHM_ALIVE)
        return bny_shm_ep_gone(ep);
    rc = ep->out ? 0 : bny_shm_open_out(ep);
    if (rc != 0)
        return rc;
    while (a && a->id != id)
        a = a->next;
    if (!a || a->untold == 0)
        return bny_fail(BANYAN_EINVAL, "shm: announcing an area that does not exist");
    p.bytes = a->bytes;
    rc = bny_shm_packet(ep, &p, a->fd);
    if (rc == BNY_AGAIN)
        return rc;
    if (rc != 0)
        return bny_shm_ep_fail(ep, BANYAN_ERANKDEAD, "died (it closed the connection)");
    if (--a->untold == 0) {
        bny_fd_close(a->fd);
        a->fd = -1;
    }
    return 0;
}

static void area_end(struct shm_area *a)
{
    munmap(a->mem, a->bytes);
    if (a->fd >= 0)
        bny_fd_close(a->fd);
    free(a);
}

void bny_shm_area_free(struct bny_tp *btp, uint32_t id)
{
    struct shm_tp *tp = (struct shm_tp *)btp;

    for (struct shm_area **at = &tp->areas; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            struct shm_area *a = *at;

            *at = a->next;
            area_end(a);
            return;
        }
}

void bny_shm_areas_destroy(struct shm_tp *tp)
{
    while (tp->areas)
        bny_shm_area_free(&tp->base, tp->areas->id);
}

/* No fence, as in bny_shm_post: a peer that falls asleep at this moment wakes within 1 ms. */
void bny_shm_area_wake(struct bny_ep *bep)
{
    struct shm_ep *ep = (struct shm_ep *)bep;

    if (bep->tp->cpu != bep->cpu_told) {
        bep->cpu_told = bep->tp->cpu;
        atomic_store_explicit(&ep->out->tx_cpu, bep->cpu_told, memory_order_relaxed);
    }
    if (atomic_load_explicit(bep->asleep, memory_order_relaxed))
        bny_shm_doorbell(ep);
}

/* ---- peers' ---- */

int bny_shm_area_packet(struct shm_ep *ep, const struct shm_packet *p, int fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    int have = fcntl(fd, F_GET_SEALS);
    struct shm_area *a = calloc(1, sizeof *a);
    struct stat st;
    void *map = MAP_FAILED;
    int rc = a ? EPROTO : ENOMEM;

    if (a && ep->nareas < SHM_AREAS_TOLD && have >= 0 && (have & seals) == seals &&
        fstat(fd, &st) == 0 && p->bytes && p->bytes == (uint64_t)st.st_size) {
        map = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        rc = errno == ENOMEM ? ENOMEM : EPROTO;
    }
    close(fd);
    if (map == MAP_FAILED) {
        free(a);
        return rc;
    }
    *a = (struct shm_area){
        .next = ep->areas, .mem = map, .bytes = p->bytes, .id = p->id, .fd = -1
    };
    ep->areas = a;
    ep->nareas++;
    return 0;
}

static struct shm_area *shm_area_take_out(struct shm_ep *ep, uint32_t id, size_t bytes)
{
    for (struct shm_area **at = &ep->areas; *at; at = &(*at)->next)
        if ((*at)->id == id && (*at)->bytes == bytes) {
            struct shm_area *a = *at;

            *at = a->next;
            ep->nareas--;
            return a;
        }
    return NULL;
}

void *bny_shm_area_take(struct bny_ep *bep, uint32_t id, size_t bytes)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    struct shm_area *a = shm_area_take_out(ep, id, bytes);
    void *mem;

    if (!a) {
        bny_shm_drain(ep); /* its packet came before the message */
        a = shm_area_take_out(ep, id, bytes);
    }
    if (!a)
        return NULL;
    mem = a->mem;
    free(a);
    return mem;
}

void bny_shm_area_give(struct bny_ep *ep, void *mem, size_t bytes)
{
    (void)ep;
    munmap(mem, bytes);
}

void bny_shm_areas_forget(struct shm_ep *ep)
{
    while (ep->areas) {
        struct shm_area *a = ep->areas;

        ep->areas = a->next;
        area_end(a);
    }
    ep->nareas = 0;
}
