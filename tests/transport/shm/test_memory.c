/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises: memory of mem_alloc reaches the peer without a copy, registered memory too; a
 * window takes puts inside its bounds while it is open and none after; it does not close
 * under a writer; freed memory is never mistaken for new. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "tests/transport/shm/pair.h"

#define BYTES (1u << 20)

/* Sends [mem, +len) from end 0 to end 1, where it must arrive as shared memory. */
static struct bny_msg *send_shared(struct pair *p, const void *mem, uint32_t len,
                                   uint32_t number)
{
    struct bny_hdr h = header(len, number);
    struct bny_event ev;

    cr_assert_eq(bny_shm_ops.send(p->ep[0], &h, mem, &h), 0, "%s", banyan_last_error());
    cr_assert(next_event(p->tp[1], &ev) && ev.kind == BNY_EV_MSG);
    cr_assert_not_null(ev.msg->data);
    return ev.msg;
}

static void give_back(struct pair *p, struct bny_msg *m)
{
    struct bny_event ev;

    bny_shm_ops.release(m);
    cr_assert(next_event(p->tp[0], &ev) && ev.kind == BNY_EV_SENT);
}

Test(shm_memory, allocated_memory_is_seen_by_the_peer_itself)
{
    struct bny_msg *m;
    struct pair p;
    const void *ptr;
    void *mem;

    pair_open(&p, "0");
    cr_assert_eq(bny_shm_ops.mem_alloc(p.tp[0], BYTES, &mem), 0);
    cr_assert_eq((uintptr_t)mem % 4096, 0);
    for (uint32_t i = 0; i < BYTES; i++)
        cr_assert_eq(((uint8_t *)mem)[i], 0, "not zeroed");
    fill(mem, BYTES, 3);
    m = send_shared(&p, (uint8_t *)mem + 64, BYTES - 64, 3);
    cr_assert(is_filled(m->data, 64, BYTES - 64, 3));
    cr_assert_neq(m->data, (uint8_t *)mem + 64, "a mapping of its own");
    cr_assert_eq(bny_shm_ops.view(m, 0, BYTES - 64, NULL, &ptr), (long)BYTES - 64);
    cr_assert_eq(ptr, m->data);
    ((uint8_t *)mem)[64] ^= 0xff; /* seen at once: no copy was made */
    cr_assert(!is_filled(m->data, 64, 1, 3));
    give_back(&p, m);
    cr_assert_eq(bny_shm_ops.mem_free(p.tp[0], (uint8_t *)mem + 1), -BANYAN_EINVAL);
    cr_assert_eq(bny_shm_ops.mem_free(p.tp[0], mem), 0);
    cr_assert_eq(bny_shm_ops.mem_free(p.tp[0], mem), -BANYAN_EINVAL);
    cr_assert_eq(bny_shm_ops.mem_free(p.tp[0], NULL), 0);
    pair_close(&p);
}

Test(shm_memory, freed_and_allocated_again_is_new_memory)
{
    struct pair p;

    pair_open(&p, "1");
    for (uint32_t k = 0; k < 600; k++) { /* more than there are places for arenas */
        struct bny_msg *m;
        void *mem;

        cr_assert_eq(bny_shm_ops.mem_alloc(p.tp[0], 8192, &mem), 0, "%s", banyan_last_error());
        fill(mem, 8192, k);
        m = send_shared(&p, mem, 8192, k);
        cr_assert(is_filled(m->data, 0, 8192, k), "allocation %u", k);
        give_back(&p, m);
        cr_assert_eq(bny_shm_ops.mem_free(p.tp[0], mem), 0);
    }
    pair_close(&p);
}

Test(shm_memory, too_many_allocations_are_an_error)
{
    struct pair p;
    void *mem;
    int rc = 0;

    pair_open(&p, "1");
    for (uint32_t k = 0; k <= SHM_ARENAS && rc == 0; k++)
        rc = bny_shm_ops.mem_alloc(p.tp[0], 1, &mem);
    cr_assert_eq(rc, -BANYAN_ENOMEM);
    pair_close(&p);
}

Test(shm_memory, registered_file_is_shared_at_its_offset)
{
    struct bny_msg *m;
    struct pair p;
    uint8_t *mem;
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    pair_open(&p, "0");
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    mem = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_eq(bny_shm_ops.shared->mem_register(p.tp[0], mem + 100, BYTES, fd, 100),
                 -BANYAN_EINVAL);
    cr_assert_eq(bny_shm_ops.shared->mem_register(p.tp[0], mem + 5100, 70000, fd, 5200),
                 -BANYAN_EINVAL, "another place of the file");
    cr_assert_eq(bny_shm_ops.shared->mem_register(p.tp[0], mem, BYTES, 99999, 0),
                 -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "fd 99999 of"), "%s", banyan_last_error());
    cr_assert_eq(bny_shm_ops.shared->mem_register(p.tp[0], &p, 64, fd, 0), -BANYAN_EINVAL,
                 "no mapping");
    cr_assert_eq(bny_shm_ops.shared->mem_register(p.tp[0], mem + 5100, 70000, fd, 5100), 0);
    cr_assert_lt(ftruncate(fd, 0), 0, "what peers map may shrink");
    close(fd);
    fill(mem + 5200, 1000, 8);
    m = send_shared(&p, mem + 5200, 1000, 8);
    cr_assert(is_filled(m->data, 0, 1000, 8));
    give_back(&p, m);
    cr_assert_eq(bny_shm_ops.shared->mem_deregister(p.tp[0], mem + 5100), 0);
    cr_assert_eq(bny_shm_ops.shared->mem_register(p.tp[0], mem, BYTES, -1, 0), 0,
                 "without a file");
    cr_assert_eq(bny_shm_ops.shared->mem_deregister(p.tp[0], mem), 0);
    munmap(mem, BYTES);
    pair_close(&p);
}

/* It is memory as any other then: a peer that mapped it would die when it shrinks. */
Test(shm_memory, a_registered_file_that_may_shrink_is_not_mapped)
{
    struct bny_hdr h = header(1000, 4);
    struct bny_event ev;
    struct pair p;
    uint8_t *mem;
    int fd = memfd_create("test", MFD_CLOEXEC);

    pair_open(&p, "1");
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    mem = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_eq(bny_shm_ops.shared->mem_register(p.tp[0], mem, BYTES, fd, 0), 0, "%s",
                 banyan_last_error());
    cr_assert_not(bny_shm_ops.shared->is_shared(p.tp[0], mem, BYTES));
    fill(mem, 1000, 4);
    cr_assert_eq(bny_shm_ops.send(p.ep[0], &h, mem, &h), 0, "%s", banyan_last_error());
    cr_assert(next_event(p.tp[1], &ev) && ev.kind == BNY_EV_MSG);
    cr_assert_eq(((struct shm_msg *)ev.msg)->segment, 0u);
    bny_shm_ops.release(ev.msg);
    cr_assert_eq(bny_shm_ops.shared->mem_deregister(p.tp[0], mem), 0);
    munmap(mem, BYTES);
    close(fd);
    pair_close(&p);
}

/* A peer says that it shares a file, and can make it shorter whenever we read it. */
Test(shm_memory, a_peers_file_that_may_shrink_is_refused)
{
    struct shm_packet packet = { .type = SHM_PKT_ARENA, .id = 1 << 8, .bytes = BYTES };
    struct bny_hdr h = header(BYTES, 4);
    struct bny_event ev;
    struct shm_ep *ep;
    struct pair p;
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    pair_open(&p, "1");
    ep = (struct shm_ep *)p.ep[0];
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    cr_assert_eq(bny_shm_open_out(ep), 0);
    cr_assert_eq(bny_shm_packet(ep, &packet, fd), 0);
    bny_shm_post(ep, &h, SHM_REC_DESC | (1u << 8) << 11, 0);
    cr_assert(next_event(p.tp[1], &ev));
    if (ev.kind == BNY_EV_MSG) {
        cr_assert_eq(ftruncate(fd, 0), 0);
        cr_assert_eq(((const volatile uint8_t *)ev.msg->data)[0], 0); /* dies here */
    }
    cr_assert_eq(ev.kind, BNY_EV_DOWN);
    cr_assert_eq(bny_shm_ops.eager(p.ep[1], &h, NULL), -BANYAN_EPROTO);
    close(fd);
    pair_close(&p);
}

/* A window of end 1 that end 0 has heard of. */
static struct bny_window open_window(struct pair *p, void *mem, size_t bytes)
{
    struct bny_hdr h = header(sizeof(struct bny_window), 0);
    struct bny_window win, got;
    struct bny_event ev;

    cr_assert_eq(bny_shm_ops.window_open(p->ep[1], mem, bytes, &win), 0, "%s",
                 banyan_last_error());
    cr_assert_eq(bny_shm_ops.eager(p->ep[1], &h, &win), 0);
    cr_assert(next_event(p->tp[0], &ev));
    memcpy(&got, ev.msg->data, sizeof got);
    bny_shm_ops.release(ev.msg);
    return got;
}

static int put(struct pair *p, const struct bny_window *win, uint64_t offset, uint32_t len)
{
    static uint8_t src[4096];
    struct bny_hdr h = { .kind = BNY_MSG_PUT, .codec_len_raw = len };

    fill(src, len < sizeof src ? len : 0, 1);
    return bny_shm_ops.put(p->ep[0], &h, src, len, win, offset, src);
}

Test(shm_memory, window_takes_puts_inside_and_only_while_open)
{
    uint8_t *mem = calloc(1, 4096 + 128);
    struct bny_window win;
    struct bny_event ev;
    struct pair p;

    pair_open(&p, "1");
    win = open_window(&p, mem + 64, 4096);
    cr_assert_eq(put(&p, &win, 96, 4000), 0, "%s", banyan_last_error());
    cr_assert(next_event(p.tp[1], &ev) && ev.kind == BNY_EV_MSG &&
              ev.msg->hdr.kind == BNY_MSG_PUT);
    cr_assert(is_filled(mem + 160, 0, 4000, 1));
    bny_shm_ops.release(ev.msg);
    cr_assert(next_event(p.tp[0], &ev) && ev.kind == BNY_EV_SENT && ev.cookie);
    memset(mem, 0x5a, 4096 + 128);
    cr_assert_eq(put(&p, &win, 97, 4000), -BANYAN_EINVAL);
    cr_assert_eq(put(&p, &win, UINT64_MAX - 10, 100), -BANYAN_EINVAL);
    cr_assert_eq(bny_shm_ops.window_close(p.ep[1], &win), 0);
    cr_assert_eq(put(&p, &win, 0, 64), -BANYAN_EABORTED, "closed");
    cr_assert_eq(bny_shm_ops.window_close(p.ep[1], &win), -BANYAN_EINVAL);
    for (int i = 0; i < 4096 + 128; i++)
        cr_assert_eq(mem[i], 0x5a, "byte %d was written", i);
    pair_close(&p);
    free(mem);
}

Test(shm_memory, window_does_not_close_under_a_writer)
{
    static uint8_t mem[256];
    struct bny_window win;
    struct shm_ep *putter;
    struct pair p;

    pair_open(&p, "1");
    win = open_window(&p, mem, sizeof mem);
    putter = (struct shm_ep *)p.ep[0];
    atomic_store(&putter->in->writing, win.slot + 1); /* as in the middle of a put */
    for (int k = 0; k < 3; k++)
        cr_assert_eq(bny_shm_ops.window_close(p.ep[1], &win), BNY_AGAIN);
    atomic_store(&putter->in->writing, 0);
    cr_assert_eq(bny_shm_ops.window_close(p.ep[1], &win), 0);
    win = open_window(&p, mem, sizeof mem);
    atomic_store(&putter->in->writing, win.slot + 1);
    cr_assert_eq(bny_shm_ops.window_close(p.ep[1], &win), BNY_AGAIN);
    bny_shm_ops.destroy(p.tp[0]); /* dies in the middle */
    cr_assert_eq(bny_shm_ops.window_close(p.ep[1], &win), 0, "the dead do not write");
    bny_shm_ops.destroy(p.tp[1]);
}

Test(shm_memory, window_outside_of_an_arena_is_refused_by_the_putter)
{
    struct bny_window win;
    struct bny_event ev;
    struct pair p;
    void *mem;

    pair_open(&p, "1");
    cr_assert_eq(bny_shm_ops.mem_alloc(p.tp[1], 4096, &mem), 0);
    win = open_window(&p, mem, 4096);
    cr_assert_neq(win.segment, 0);
    win.offset = UINT64_MAX - 63; /* what a liar would send */
    cr_assert_eq(put(&p, &win, 64, 64), -BANYAN_EPROTO);
    cr_assert(next_event(p.tp[0], &ev) && ev.kind == BNY_EV_DOWN);
    pair_close(&p);
}

Test(shm_memory, windows_run_out_and_come_back)
{
    static uint8_t mem[64];
    struct bny_window win[SHM_GUARDS + 1];
    struct pair p;

    pair_open(&p, "1");
    for (uint32_t i = 0; i < SHM_GUARDS; i++)
        cr_assert_eq(bny_shm_ops.window_open(p.ep[1], mem, 64, &win[i]), 0);
    cr_assert_eq(bny_shm_ops.window_open(p.ep[1], mem, 64, &win[SHM_GUARDS]), BNY_AGAIN);
    cr_assert_eq(bny_shm_ops.window_close(p.ep[1], &win[7]), 0);
    cr_assert_eq(bny_shm_ops.window_open(p.ep[1], mem, 64, &win[SHM_GUARDS]), 0);
    pair_close(&p);
}

Test(shm_memory, an_area_is_its_takers_whatever_becomes_of_its_owner)
{
    struct bny_hdr h = header(4, 1);
    struct bny_event ev;
    uint32_t id, other;
    struct pair p;
    void *mem, *more, *seen;

    pair_open(&p, "0");
    cr_assert_eq(bny_shm_ops.shared->area_make(p.tp[0], BYTES, 1, &mem, &id), 0);
    cr_assert_eq(bny_shm_ops.shared->area_make(p.tp[0], 4096, 1, &more, &other), 0);
    cr_assert_neq(id, other);
    cr_assert_null(bny_shm_ops.shared->area_take(p.ep[1], id, BYTES), "before it was told");
    cr_assert_eq(bny_shm_ops.shared->area_tell(p.ep[0], id), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_shm_ops.shared->area_tell(p.ep[0], other), 0);
    cr_assert_eq(bny_shm_ops.shared->area_tell(p.ep[0], id), -BANYAN_EINVAL,
                 "its readers have it");
    cr_assert_eq(bny_shm_ops.eager(p.ep[0], &h, &h), 0);
    cr_assert(next_event(p.tp[1], &ev) && ev.kind == BNY_EV_MSG);
    bny_shm_ops.release(ev.msg);
    cr_assert_null(bny_shm_ops.shared->area_take(p.ep[1], id, BYTES + 4096), "another length");
    seen = bny_shm_ops.shared->area_take(p.ep[1], id, BYTES);
    cr_assert(seen && seen != mem);
    cr_assert_null(bny_shm_ops.shared->area_take(p.ep[1], id, BYTES), "taken twice");
    for (uint32_t i = 0; i < BYTES; i++)
        cr_assert_eq(((uint8_t *)seen)[i], 0);
    ((uint8_t *)seen)[BYTES - 1] = 7;
    cr_assert_eq(((uint8_t *)mem)[BYTES - 1], 7);
    bny_shm_ops.shared->area_free(p.tp[0], id);
    ((uint8_t *)seen)[0] = 8; /* it is still there */
    cr_assert_eq(((uint8_t *)seen)[BYTES - 1], 7);
    bny_shm_ops.shared->area_give(p.ep[1], seen, BYTES);
    pair_close(&p); /* the other one goes with its transports, taken or not */
}
