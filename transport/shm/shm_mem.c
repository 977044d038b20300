/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared arenas (memory that peers map), windows and puts.
 *
 * The owner's connection carries a packet with the arena's descriptor before the first message
 * that names the arena. Ids have a generation, so that freed and reallocated memory is never
 * taken for the old.
 *
 * A window is open while its key is in a guard word of the owner's outgoing segment. The putter
 * stores `writing`, then reads the guard; the owner clears the guard, then reads `writing`;
 * both sequentially consistent, so at least one of them sees the other. */
#include "transport/shm/shm_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/filesize.h"
#include "base/log.h"
#include "base/memcheck.h"

#define PAGE      4096u
#define HUGE_PAGE (2u << 20)

/* ---- our arenas ---- */

struct shm_arena *bny_shm_arena_find(struct shm_tp *tp, const void *addr, size_t len)
{
    uintptr_t at = (uintptr_t)addr;

    for (uint32_t i = 0, k = tp->last_arena; i < tp->narenas; i++, k++) {
        struct shm_arena *a;

        if (k >= tp->narenas)
            k = 0;
        a = &tp->arenas[k];
        if (a->mem && a->fd >= 0 && at - (uintptr_t)a->mem < a->bytes &&
            len <= a->bytes - (at - (uintptr_t)a->mem)) {
            tp->last_arena = k;
            return a;
        }
    }
    return NULL;
}

int bny_shm_mem_is_shared(struct bny_tp *tp, const void *at, size_t bytes)
{
    return bny_shm_arena_find((struct shm_tp *)tp, at, bytes) != NULL;
}

static struct shm_arena *arena_new(struct shm_tp *tp)
{
    for (uint32_t i = 0; i < SHM_ARENAS; i++)
        if (!tp->arenas[i].mem) {
            struct shm_arena *a = &tp->arenas[i];

            /* 13 bits of generation: an id fits in 21 bits of a record, and is never 0. */
            tp->arena_gen[i] = tp->arena_gen[i] % 8191 + 1;
            a->id = tp->arena_gen[i] << SHM_ARENA_BITS | i;
            if (i >= tp->narenas)
                tp->narenas = i + 1;
            return a;
        }
    return NULL;
}

/* A sealed memfd of the given size, mapped; huge pages on request. Returns the descriptor or
 * -1. */
int bny_shm_memfd(size_t bytes, unsigned flags, uint8_t **mem)
{
    int fd = bny_fd_high(memfd_create("banyan-mem", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    void *p;

    if (fd < 0)
        return -1;
    p = MAP_FAILED;
    if (bny_file_resize(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        close(fd);
        return -1;
    }
    *mem = p;
    return fd;
}

int bny_shm_mem_alloc(struct bny_tp *btp, size_t bytes, void **out)
{
    struct shm_tp *tp = (struct shm_tp *)btp;
    struct shm_arena *a = arena_new(tp);
    size_t room = (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);

    *out = NULL;
    if (!a)
        return bny_fail(BANYAN_ENOMEM,
                        "shm: %u shared allocations exist already; free some, or make "
                        "larger ones",
                        SHM_ARENAS);
    if (room < bytes || bytes == 0)
        room = bytes ? SIZE_MAX : PAGE;
    a->fd = -1;
    if (room >= HUGE_PAGE && room < SIZE_MAX - HUGE_PAGE) {
        size_t huge = (room + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);

        a->bytes = huge; /* reserved by mmap, which fails at once if there are too few pages */
        a->fd = bny_fd_own(bny_shm_memfd(huge, MFD_HUGETLB, &a->mem));
    }
    if (a->fd < 0) {
        a->bytes = room;
        a->fd = bny_fd_own(bny_shm_memfd(room, 0, &a->mem));
        if (a->fd >= 0)
            madvise(a->mem, a->bytes, MADV_HUGEPAGE); /* a hint: many kernels refuse it */
    }
    if (a->fd < 0)
        return bny_fail(BANYAN_ENOMEM, "shm: no shared memory of %zu bytes: %s%s", bytes,
                        strerror(errno), bny_file_remedy(errno));
    a->offset = 0;
    a->owned = 1;
    *out = a->mem;
    return 0;
}

/* Is ptr a shared mapping of file st at offset, which peers can map too? Otherwise they would
 * silently see other bytes than we do. */
static int is_mapping(const void *ptr, int fd, const struct stat *st, uint64_t offset)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], perms[8];
    unsigned long from, to, at, ino;
    void *try;
    int found = 0;

    while (maps && !found && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s %lx %*s %lu", &from, &to, perms, &at, &ino) == 5 &&
            (uintptr_t)ptr >= from && (uintptr_t)ptr < to)
            found =
                perms[3] == 's' && ino == st->st_ino && at + ((uintptr_t)ptr - from) == offset;
    if (maps)
        fclose(maps);
    try = found ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (try == MAP_FAILED)
        return 0;
    munmap(try, PAGE);
    return 1;
}

/* Can the file never shrink? Reading a mapping beyond the end of a file kills the reader, and
 * only memfds can be sealed: pages of other files may never come. */
static int is_lasting(int fd)
{
    int have = fcntl(fd, F_GET_SEALS);

    return have >= 0 && (have & F_SEAL_SHRINK);
}

int bny_shm_mem_register(struct bny_tp *btp, void *ptr, size_t bytes, int fd, uint64_t offset)
{
    struct shm_tp *tp = (struct shm_tp *)btp;
    struct shm_arena *a;
    struct stat st;
    int copy = -1;

    if (!ptr || bytes == 0)
        return bny_fail(BANYAN_EINVAL, "shm: registering no memory");
    if (fd >= 0 && fstat(fd, &st) != 0)
        return bny_fail(BANYAN_EINVAL, "shm: fd %d of the registration is no open file: %s", fd,
                        strerror(errno));
    if (fd >= 0 && (offset > (uint64_t)st.st_size || bytes > (uint64_t)st.st_size - offset))
        return bny_fail(BANYAN_EINVAL,
                        "shm: the file of the registration is shorter than offset %llu "
                        "+ %zu bytes",
                        (unsigned long long)offset, bytes);
    if (fd >= 0 && !is_mapping(ptr, fd, &st, offset))
        return bny_fail(BANYAN_EINVAL,
                        "shm: %p is no shared mapping of the registration's file at offset "
                        "%llu, or the file is not open for writing",
                        ptr, (unsigned long long)offset);
    if (fd >= 0 && !is_lasting(fd) && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        bny_info("shm: peers do not map the registered file, as it cannot be sealed against "
                 "shrinking (make it by memfd_create with MFD_ALLOW_SEALING)");
        fd = -1;
    }
    a = arena_new(tp);
    if (!a)
        return bny_fail(BANYAN_ENOMEM, "shm: %u arenas are registered already", SHM_ARENAS);
    if (fd >= 0) {
        copy = bny_fd_own(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
        if (copy < 0)
            return bny_fail_errno("shm: duplicating the descriptor of a registration");
    }
    *a = (struct shm_arena){
        .mem = ptr, .bytes = bytes, .offset = offset, .id = a->id, .fd = copy
    };
    return 0;
}

static int arena_drop(struct shm_tp *tp, void *ptr, int owned)
{
    for (uint32_t i = 0; i < tp->narenas; i++) {
        struct shm_arena *a = &tp->arenas[i];

        if (a->mem != ptr || a->owned != owned)
            continue;
        for (int e = 0; e < tp->neps; e++) {
            struct shm_ep *ep = tp->eps[e];

            if (ep->told[i] == SHM_TOLD)
                ep->told[i] = SHM_TELL_GONE;
        }
        bny_shm_arena_flush(tp);
        if (owned)
            munmap(a->mem, a->bytes);
        if (a->fd >= 0)
            bny_fd_close(a->fd);
        a->mem = NULL;
        return 0;
    }
    return bny_fail(BANYAN_EINVAL, "shm: %p was not %s here", ptr,
                    owned ? "allocated" : "registered");
}

int bny_shm_mem_free(struct bny_tp *tp, void *ptr)
{
    return ptr ? arena_drop((struct shm_tp *)tp, ptr, 1) : 0;
}

int bny_shm_mem_deregister(struct bny_tp *tp, void *ptr)
{
    return arena_drop((struct shm_tp *)tp, ptr, 0);
}

int bny_shm_arena_tell(struct shm_ep *ep, const struct shm_arena *a)
{
    uint32_t i = a->id & (SHM_ARENAS - 1);
    struct shm_packet p = {
        .type = SHM_PKT_ARENA, .id = a->id, .bytes = a->bytes, .offset = a->offset
    };
    int rc;

    if (ep->told[i] == SHM_TOLD)
        return 0;
    rc = bny_shm_packet(ep, &p, a->fd); /* replaces the peer's mapping at this index */
    if (rc == 0)
        ep->told[i] = SHM_TOLD;
    else if (rc != BNY_AGAIN)
        return bny_shm_ep_fail(ep, BANYAN_ERANKDEAD, "died (it closed the connection)");
    return rc;
}

void bny_shm_arena_flush(struct shm_tp *tp)
{
    tp->gone_pending = 0;
    for (int e = 0; e < tp->neps; e++)
        for (uint32_t i = 0; i < tp->narenas; i++) {
            struct shm_ep *ep = tp->eps[e];
            struct shm_packet p = { .type = SHM_PKT_ARENA_GONE, .id = tp->arenas[i].id };

            if (ep->told[i] != SHM_TELL_GONE)
                continue;
            if (bny_shm_packet(ep, &p, -1) == BNY_AGAIN)
                tp->gone_pending = 1;
            else
                ep->told[i] = SHM_UNTOLD;
        }
}

/* ---- peers' arenas ---- */

static void peer_arena_unmap(struct shm_peer_arena *a)
{
    if (a->id)
        munmap(a->map, a->map_bytes);
    a->id = 0;
}

int bny_shm_arena_packet(struct shm_ep *ep, const struct shm_packet *p, int fd)
{
    uint64_t skip = p->offset % PAGE, start = p->offset - skip;
    struct shm_peer_arena *a;
    struct stat st;
    void *map = MAP_FAILED;
    int rc = EPROTO;

    if (!ep->peer_arenas)
        ep->peer_arenas = calloc(SHM_ARENAS, sizeof *ep->peer_arenas);
    if (!ep->peer_arenas)
        rc = ENOMEM;
    else if (p->id >> SHM_ARENA_BITS && p->bytes && is_lasting(fd) && fstat(fd, &st) == 0 &&
             p->offset <= (uint64_t)st.st_size &&
             p->bytes <= (uint64_t)st.st_size - p->offset) {
        map = mmap(NULL, p->bytes + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
        rc = errno == ENOMEM ? ENOMEM : EPROTO;
    }
    close(fd);
    if (map == MAP_FAILED)
        return rc;
    madvise(map, p->bytes + skip, MADV_HUGEPAGE);
    a = &ep->peer_arenas[p->id & (SHM_ARENAS - 1)];
    peer_arena_unmap(a);
    *a = (struct shm_peer_arena){ .id = p->id,
                                  .map = map,
                                  .mem = (uint8_t *)map + skip,
                                  .map_bytes = p->bytes + skip,
                                  .bytes = p->bytes };
    return 0;
}

void bny_shm_arena_gone(struct shm_ep *ep, uint32_t id)
{
    if (ep->peer_arenas && ep->peer_arenas[id & (SHM_ARENAS - 1)].id == id)
        peer_arena_unmap(&ep->peer_arenas[id & (SHM_ARENAS - 1)]);
}

static const struct shm_peer_arena *peer_arena_find(const struct shm_ep *ep, uint32_t id)
{
    const struct shm_peer_arena *a =
        ep->peer_arenas ? &ep->peer_arenas[id & (SHM_ARENAS - 1)] : NULL;

    return a && a->id == id && id ? a : NULL;
}

uint8_t *bny_shm_peer_arena(struct shm_ep *ep, uint32_t id, uint64_t offset, uint64_t len)
{
    const struct shm_peer_arena *a = peer_arena_find(ep, id);

    if (SHM_UNLIKELY(!a)) {
        bny_shm_drain(ep); /* its packet came before the message */
        a = peer_arena_find(ep, id);
    }
    if (!a || offset > a->bytes || len > a->bytes - offset)
        return NULL;
    return a->mem + offset;
}

/* ---- windows ---- */

int bny_shm_window_open(struct bny_ep *bep, void *addr, size_t bytes, struct bny_window *out)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    struct shm_arena *a;
    int rc;

    if (ep->fate != SHM_ALIVE)
        return bny_shm_ep_gone(ep);
    rc = ep->out ? 0 : bny_shm_open_out(ep);
    if (rc != 0)
        return rc;
    a = bny_shm_arena_find((struct shm_tp *)bep->tp, addr, bytes);
    if (a)
        rc = bny_shm_arena_tell(ep, a);
    else if (ep->copy == SHM_COPY_NONE)
        rc = bny_fail(BANYAN_ENOTSUP,
                      "shm: rank %d may not write this process's memory; use memory "
                      "of banyan_mem_alloc",
                      bep->peer);
    if (rc != 0)
        return rc;
    /* At open and not at close: received data may be sent on before. */
    bny_memcheck_written(addr, bytes);
    for (uint32_t i = 0; i < SHM_GUARDS; i++)
        if (!(ep->guards_open >> i & 1)) {
            ep->guards_open |= 1ull << i;
            ep->next_key = ep->next_key % UINT32_MAX + 1;
            *out = (struct bny_window){ .addr = (uintptr_t)addr,
                                        .bytes = bytes,
                                        .slot = i,
                                        .key = ep->next_key,
                                        .segment = a ? a->id : 0,
                                        .offset = a ? (uintptr_t)addr - (uintptr_t)a->mem : 0 };
            atomic_store_explicit(&ep->out->guard[i], ep->next_key, memory_order_release);
            return 0;
        }
    return BNY_AGAIN;
}

int bny_shm_window_close(struct bny_ep *bep, struct bny_window *win)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    uint32_t i = win->slot;

    if (i >= SHM_GUARDS || !ep->out || !(ep->guards_open >> i & 1))
        return bny_fail(BANYAN_EINVAL, "shm: closing a window that is not open");
    atomic_store_explicit(&ep->out->guard[i], 0, memory_order_seq_cst);
    if (atomic_load_explicit(&ep->out->writing, memory_order_seq_cst) == i + 1) {
        /* Is it dead? This case is rare and short, so a system call each time is fine. */
        bny_shm_service((struct shm_tp *)bep->tp);
        if (!ep->ended)
            return BNY_AGAIN;
    }
    ep->guards_open &= ~(1ull << i);
    return 0;
}

/* Copies into an open window. Returns 0 or an error. */
static int window_write(struct shm_ep *ep, const struct bny_window *win, uint64_t offset,
                        const void *src, uint32_t len)
{
    void *at = (void *)(uintptr_t)(win->addr + offset);
    struct iovec local = { (void *)(uintptr_t)src, len }, remote = { at, len };
    ssize_t n;

    if (win->segment) {
        uint8_t *mem = bny_shm_peer_arena(ep, win->segment, win->offset + offset, len);

        if (!mem || win->offset + offset < win->offset)
            return bny_shm_ep_fail(ep, BANYAN_EPROTO,
                                   "opened a window outside of what it shares");
        memcpy(mem, src, len);
        return 0;
    }
    if (ep->copy == SHM_COPY_DIRECT) {
        memcpy(at, src, len);
        return 0;
    }
    if (ep->copy == SHM_COPY_NONE)
        return bny_fail(BANYAN_ENOTSUP, "shm: this process may not write rank %d's memory",
                        ep->base.peer);
    n = process_vm_writev(ep->pid, &local, 1, &remote, 1, 0);
    if (n == (ssize_t)len)
        return 0;
    if (n < 0 && errno == ESRCH)
        return bny_shm_ep_process_gone(ep);
    if (n >= 0 || errno == EFAULT)
        return bny_fail(BANYAN_EPROTO,
                        "shm: rank %d opened a window that is not writable memory (any more), "
                        "or src is not readable here",
                        ep->base.peer);
    return bny_fail_errno("shm: process_vm_writev to rank %d; BANYAN_CMA=0 on all ranks does "
                          "without",
                          ep->base.peer);
}

/* The peer does not close the window until put_unmap. Returns 0, or BNY_AGAIN: closed. */
static int enter(struct shm_ep *ep, const struct bny_window *win)
{
    atomic_store_explicit(&ep->in->writing, win->slot + 1, memory_order_seq_cst);
    if (atomic_load_explicit(&ep->in->guard[win->slot], memory_order_seq_cst) == win->key)
        return 0;
    bny_shm_put_unmap(&ep->base);
    return BNY_AGAIN;
}

int bny_shm_window_store(struct bny_ep *bep, const struct bny_window *win, uint64_t offset,
                         const void *src, uint32_t len)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    int rc;

    if (ep->ended) /* another process may have its pid by now */
        return bny_shm_ep_gone(ep);
    if (win->slot >= SHM_GUARDS || offset > win->bytes || len > win->bytes - offset)
        return bny_fail(
            BANYAN_EPROTO, "shm: rank %d lends %llu bytes, but the put needs %u at %llu",
            bep->peer, (unsigned long long)win->bytes, len, (unsigned long long)offset);
    if (!ep->in || ep->fate != SHM_ALIVE || enter(ep, win) != 0)
        return BNY_AGAIN;
    rc = window_write(ep, win, offset, src, len);
    bny_shm_put_unmap(bep);
    if (rc == 0)
        bny_counter_add(&bep->tp->copied_bytes, len);
    return rc;
}

void *bny_shm_put_map(struct bny_ep *bep, const struct bny_window *win, uint64_t offset,
                      uint32_t len)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    uint8_t *mem;

    if (!win->segment || !ep->in || ep->fate != SHM_ALIVE || win->slot >= SHM_GUARDS ||
        offset > win->bytes || len > win->bytes - offset || win->offset + offset < win->offset)
        return NULL;
    mem = bny_shm_peer_arena(ep, win->segment, win->offset + offset, len);
    if (!mem)
        return NULL;
    return enter(ep, win) == 0 ? mem : NULL;
}

void bny_shm_put_unmap(struct bny_ep *bep)
{
    atomic_store_explicit(&((struct shm_ep *)bep)->in->writing, 0, memory_order_release);
}

int bny_shm_put(struct bny_ep *bep, const struct bny_hdr *hdr, const void *src, uint32_t len,
                const struct bny_window *win, uint64_t offset, void *cookie)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    int rc;

    if (ep->fate != SHM_ALIVE)
        return bny_shm_ep_gone(ep);
    rc = ep->out ? 0 : bny_shm_open_out(ep);
    if (rc != 0)
        return rc;
    rc = bny_shm_has_room(ep);
    if (rc < 0)
        return rc;
    if (rc == 0 || ep->nsent == SHM_SENT)
        return BNY_AGAIN;
    if (hdr->len != 0 || hdr->chan >= BNY_CHANNELS || win->slot >= SHM_GUARDS ||
        offset > win->bytes || len > win->bytes - offset)
        return bny_fail(BANYAN_EINVAL,
                        "shm: put of %u bytes at %llu of rank %d's window of %llu", len,
                        (unsigned long long)offset, bep->peer, (unsigned long long)win->bytes);
    if (!ep->in) /* its guard words are in the segment of its hello */
        return BNY_AGAIN;
    if (enter(ep, win) != 0)
        return bny_fail(BANYAN_EABORTED, "shm: rank %d has closed the window", bep->peer);
    rc = len ? window_write(ep, win, offset, src, len) : 0;
    bny_shm_put_unmap(bep);
    if (rc != 0)
        return rc;
    bny_counter_add(&bep->tp->wire_bytes, len);
    bny_counter_add(&bep->tp->copied_bytes, len);
    if (cookie)
        ep->sent[(ep->sent_at + ep->nsent++) % SHM_SENT] = cookie;
    bny_shm_post(ep, hdr, SHM_REC_INLINE, 0);
    return 0;
}

/* ---- end ---- */

void bny_shm_ep_unmap(struct shm_ep *ep)
{
    if (ep->in)
        munmap(ep->in, sizeof *ep->in);
    if (ep->out)
        munmap(ep->out, sizeof *ep->out);
    munmap(ep->tiles, (size_t)BNY_CHANNELS * SHM_TILE);
    for (uint32_t i = 0; ep->peer_arenas && i < SHM_ARENAS; i++)
        peer_arena_unmap(&ep->peer_arenas[i]);
    free(ep->peer_arenas);
}

void bny_shm_mem_destroy(struct shm_tp *tp)
{
    for (uint32_t i = 0; i < tp->narenas; i++) {
        struct shm_arena *a = &tp->arenas[i];

        if (!a->mem)
            continue;
        if (a->owned)
            munmap(a->mem, a->bytes);
        if (a->fd >= 0)
            bny_fd_close(a->fd);
    }
}
