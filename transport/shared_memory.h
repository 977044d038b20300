/* SPDX-License-Identifier: BSD-3-Clause */
/* The additional table of a transport whose ranks work on the same memory: windows and memory
 * of peers that are mapped here, and areas. All of it is called as the transport is
 * (transport.h). */
#ifndef BNY_TRANSPORT_SHARED_MEMORY_H
#define BNY_TRANSPORT_SHARED_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct bny_tp;
struct bny_ep;
struct bny_window;

struct bny_shared_memory {
    /* Memory of the user that the send, view and put of other ranks access by loads and stores:
     * a shared mapping of fd at offset; fd -1: any memory, of which only account is kept. */
    int (*mem_register)(struct bny_tp *tp, void *ptr, size_t bytes, int fd, uint64_t offset);
    int (*mem_deregister)(struct bny_tp *tp, void *ptr);
    /* 1: [at, at + bytes) is such memory, or of mem_alloc. A send() of it is read by plain
     * loads, so it beats a copy whatever zcopy_min is. */
    int (*is_shared)(struct bny_tp *tp, const void *at, size_t bytes);

    /* Maps [offset, offset + len) of the peer's window into this process until unmap, to read
     * it or to store results straight into it. NULL: not mapped here, or closed; use put(). At
     * most one range of an endpoint at a time. */
    void *(*map)(struct bny_ep *ep, const struct bny_window *win, uint64_t offset,
                 uint32_t len);
    void (*unmap)(struct bny_ep *ep);
    /* Writes src[len] into the peer's window at offset, without a message, mapped or not.
     * Returns 0, BNY_AGAIN: closed, or an error. Works if ep->zcopy_min is not UINT32_MAX, or
     * the window is mapped. */
    int (*store)(struct bny_ep *ep, const struct bny_window *win, uint64_t offset,
                 const void *src, uint32_t len);

    /* Areas: memory of this rank that peers map once and then access by plain loads and stores
     * at any time, without a message. make: zeroed, for `readers` peers, each of which is told
     * once; *mem is valid until area_free. tell: the peer can take it from the next message on;
     * returns 0, BNY_AGAIN or an error. take: the area of `bytes` that the peer announced as
     * `id`; the caller owns the mapping until area_give, even if the peer dies; NULL: no such
     * area. Bytes that other ranks write there are untrusted input. */
    int (*area_make)(struct bny_tp *tp, size_t bytes, int readers, void **mem, uint32_t *id);
    int (*area_tell)(struct bny_ep *ep, uint32_t id);
    void *(*area_take)(struct bny_ep *ep, uint32_t id, size_t bytes);
    void (*area_give)(struct bny_ep *ep, void *mem, size_t bytes);
    void (*area_free)(struct bny_tp *tp, uint32_t id);
    /* bny_ep_wake() calls it: the peer sleeps, or is to know this rank's CPU. */
    void (*area_wake)(struct bny_ep *ep);
};

#endif
