/* SPDX-License-Identifier: BSD-3-Clause */
/* The data path: records in, records out, in the order in which a message meets the functions.
 * No system call and no allocation here, except process_vm_readv in pull(), doorbells for a
 * sleeping peer, and polling the sockets after many polls without an event. */
#include "transport/shm/shm_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"

#define MASK            (SHM_RING - 1)
#define IDLE_POLLS      32u       /* polls without an event between two clock reads */
#define BUSY_POLLS      0xffffu   /* the same if there are always events */
#define SERVICE_NS_MIN  20000u    /* between socket polls: while they have events, */
#define SERVICE_NS_MAX  1000000u  /* if they have none, */
#define SERVICE_NS_BUSY 50000000u /* and while messages flow */

/* ---- sending ---- */

int bny_shm_has_room(struct shm_ep *ep)
{
    uint32_t head;

    if (SHM_LIKELY(ep->out_pos - ep->out_head + ep->out_reserved < SHM_RING))
        return 1;
    head = atomic_load_explicit(&ep->out->head, memory_order_acquire);
    if (head - ep->out_head > ep->out_pos - ep->out_head)
        return bny_shm_ep_fail(ep, BANYAN_EPROTO, "released records that were never sent");
    if (head != ep->out_head) {
        ep->out_head = head;
        ep->data_head = ep->data_end[(head - 1) & MASK];
    }
    return ep->out_pos - ep->out_head + ep->out_reserved < SHM_RING;
}

void bny_shm_post(struct shm_ep *ep, const struct bny_hdr *hdr, uint32_t info, uint64_t word)
{
    uint32_t at = ep->out_pos & MASK;
    struct shm_rec *rec = &ep->out->ring[at];

    rec->info = info;
    rec->hdr = *hdr;
    rec->word = word;
    ep->data_end[at] = ep->data_tail;
    if (SHM_UNLIKELY(ep->base.tp->cpu != ep->base.cpu_told)) {
        ep->base.cpu_told = ep->base.tp->cpu;
        atomic_store_explicit(&ep->out->tx_cpu, ep->base.cpu_told, memory_order_relaxed);
    }
    /* Release: a reader that sees seq also sees the record and the payload written before. */
    atomic_store_explicit(&rec->seq, ++ep->out_pos, memory_order_release);
    bny_counter_add(&ep->base.tp->messages, 1);
    /* No fence: this may miss a receiver that falls asleep now; it wakes within 1 ms (arm). */
    if (SHM_UNLIKELY(atomic_load_explicit(&ep->out->rx_sleeping, memory_order_relaxed)))
        bny_shm_doorbell(ep);
}

/* The cold half of every send: connected, alive? 0, BNY_AGAIN or an error. */
static int shm_path_prepare(struct shm_ep *ep)
{
    if (ep->fate != SHM_ALIVE)
        return bny_shm_ep_gone(ep);
    return ep->out ? 0 : bny_shm_open_out(ep);
}

static int no_channel(const struct shm_ep *ep, const struct bny_hdr *hdr)
{
    return bny_fail(BANYAN_EINVAL, "shm: message to rank %d on channel %u; there are %d",
                    ep->base.peer, hdr->chan, BNY_CHANNELS);
}

static inline int shm_path_begin(struct shm_ep *ep)
{
    int rc;

    if (SHM_UNLIKELY(!ep->out || ep->fate != SHM_ALIVE)) {
        rc = shm_path_prepare(ep);
        if (rc != 0)
            return rc;
    }
    rc = bny_shm_has_room(ep);
    return SHM_LIKELY(rc == 1) ? 0 : rc == 0 ? BNY_AGAIN : rc;
}

/* Finds len contiguous bytes of the data area. Returns 1 and moves data_tail past them, or
 * 0. */
static int data_take(struct shm_ep *ep, uint32_t len, uint32_t *at)
{
    uint32_t need = (len + 63) & ~63u, tail = ep->data_tail;
    uint32_t rest = ep->data_bytes - (tail & (ep->data_bytes - 1));

    if (need > rest)
        tail += rest;
    if (tail + need - ep->data_head > ep->data_bytes)
        return 0;
    *at = tail & (ep->data_bytes - 1);
    ep->data_tail = tail + need;
    return 1;
}

static int eager_long(struct shm_ep *ep, const struct bny_hdr *hdr, const void *buf)
{
    uint32_t at, head;

    if (hdr->len > SHM_EAGER_MAX)
        return bny_fail(BANYAN_EINVAL,
                        "shm: eager message of %u bytes to rank %d; the most is %u", hdr->len,
                        ep->base.peer, SHM_EAGER_MAX);
    if (!data_take(ep, hdr->len, &at)) {
        head = atomic_load_explicit(&ep->out->head, memory_order_acquire);
        if (head - ep->out_head > ep->out_pos - ep->out_head)
            return bny_shm_ep_fail(ep, BANYAN_EPROTO, "released records that were never sent");
        if (head == ep->out_head)
            return BNY_AGAIN;
        ep->out_head = head;
        ep->data_head = ep->data_end[(head - 1) & MASK];
        if (!data_take(ep, hdr->len, &at))
            return BNY_AGAIN;
    }
    memcpy(ep->out->data + at, buf, hdr->len);
    bny_tp_staged(ep->base.tp, hdr->len);
    bny_counter_add(&ep->base.tp->wire_bytes, hdr->len);
    bny_shm_post(ep, hdr, SHM_REC_EAGER | (at / 64) << 3, 0);
    return 0;
}

int bny_shm_eager(struct bny_ep *bep, const struct bny_hdr *hdr, const void *buf)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    uint64_t word = 0;
    int rc = shm_path_begin(ep);

    if (SHM_UNLIKELY(rc != 0))
        return rc;
    if (SHM_UNLIKELY(hdr->chan >= BNY_CHANNELS))
        return no_channel(ep, hdr);
    if (hdr->len > SHM_INLINE)
        return eager_long(ep, hdr, buf);
    if (SHM_LIKELY(hdr->len == 4))
        memcpy(&word, buf, 4);
    else if (hdr->len)
        memcpy(&word, buf, hdr->len);
    bny_counter_add(&ep->base.tp->wire_bytes, hdr->len);
    bny_shm_post(ep, hdr, SHM_REC_INLINE, word);
    return 0;
}

/* Collects the slots that the receiver has released. */
static void slots_reclaim(struct shm_ep *ep)
{
    for (uint32_t i = 0; i < SHM_SLOTS; i++)
        if (ep->slot_sent[i] & 1u << 31) {
            uint32_t want = ep->slot_sent[i] & ~(1u << 31);
            uint32_t done = atomic_load_explicit(&ep->out->slot_done[i], memory_order_acquire);

            if ((done & ~(1u << 31)) == want) {
                ep->slot_sent[i] = want;
                ep->slots_free |= 1u << i;
            }
        }
}

int bny_shm_reserve(struct bny_ep *bep, uint32_t cap, struct bny_slot *slot)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    uint32_t i;
    int rc = shm_path_begin(ep);

    if (rc != 0)
        return rc;
    if (cap > SHM_SLOT_BYTES)
        return bny_fail(BANYAN_EINVAL,
                        "shm: reservation of %u bytes for rank %d; the most is %u", cap,
                        bep->peer, SHM_SLOT_BYTES);
    if (!ep->slots_free)
        slots_reclaim(ep);
    if (!ep->slots_free)
        return BNY_AGAIN;
    i = (uint32_t)__builtin_ctz(ep->slots_free); /* the lowest: most likely in cache */
    ep->slots_free &= ~(1u << i);
    ep->out_reserved++; /* commit must not find the ring full */
    slot->mem = ep->out->slots[i];
    slot->cap = SHM_SLOT_BYTES;
    slot->index = i;
    slot->impl = NULL;
    return 0;
}

static inline int is_reserved(const struct shm_ep *ep, const struct bny_slot *slot)
{
    return slot->index < SHM_SLOTS && !(ep->slots_free >> slot->index & 1) &&
           !(ep->slot_sent[slot->index] & 1u << 31) && ep->out_reserved > 0;
}

void bny_shm_cancel(struct bny_ep *bep, struct bny_slot *slot)
{
    struct shm_ep *ep = (struct shm_ep *)bep;

    BNY_ASSERT(is_reserved(ep, slot));
    ep->out_reserved--;
    ep->slots_free |= 1u << slot->index;
}

int bny_shm_commit(struct bny_ep *bep, struct bny_slot *slot, const struct bny_hdr *hdr)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    uint32_t i = slot->index;

    BNY_ASSERT(is_reserved(ep, slot));
    if (hdr->chan >= BNY_CHANNELS) {
        bny_shm_cancel(bep, slot);
        return no_channel(ep, hdr);
    }
    if (hdr->len > slot->cap) {
        bny_shm_cancel(bep, slot);
        return bny_fail(BANYAN_EINVAL, "shm: commit of %u bytes to rank %d in a slot of %u",
                        hdr->len, bep->peer, slot->cap);
    }
    if (ep->fate != SHM_ALIVE) {
        bny_shm_cancel(bep, slot);
        return bny_shm_ep_gone(ep);
    }
    ep->out_reserved--;
    ep->slot_sent[i] = (ep->slot_sent[i] + 1) | 1u << 31; /* top bit: the receiver has it */
    bny_counter_add(&ep->base.tp->wire_bytes, hdr->len);
    bny_shm_post(ep, hdr, SHM_REC_SLOT | i << 3, 0);
    return 0;
}

int bny_shm_send(struct bny_ep *bep, const struct bny_hdr *hdr, const void *buf, void *cookie)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    struct shm_arena *a;
    uint64_t word = (uintptr_t)buf;
    uint32_t segment = 0, i;
    int rc = shm_path_begin(ep);

    if (rc != 0)
        return rc;
    if (hdr->chan >= BNY_CHANNELS)
        return no_channel(ep, hdr);
    if (ep->nsends == SHM_RING)
        return BNY_AGAIN;
    a = bny_shm_arena_find((struct shm_tp *)bep->tp, buf, hdr->len);
    if (a) {
        rc = bny_shm_arena_tell(ep, a);
        if (rc != 0)
            return rc;
        segment = a->id;
        word = (uint64_t)((const uint8_t *)buf - a->mem);
    } else if (ep->copy == SHM_COPY_NONE) {
        return bny_fail(BANYAN_ENOTSUP,
                        "shm: rank %d may not read this process's memory; use "
                        "reserve(), or memory of banyan_mem_alloc",
                        bep->peer);
    }
    i = ep->free_sends[SHM_RING - 1 - ep->nsends++];
    BNY_ASSERT(!ep->send_busy[i]);
    ep->send_busy[i] = 1;
    ep->send_cookie[i] = cookie;
    bny_counter_add(&ep->base.tp->wire_bytes, hdr->len);
    bny_shm_post(ep, hdr, SHM_REC_DESC | i << 3 | segment << 11, word);
    return 0;
}

/* ---- receiving ---- */

/* Marks a record as released, and moves the head past all released ones. */
static void ring_release(struct shm_ep *ep, uint32_t pos, uint32_t lines)
{
    BNY_ASSERT(!ep->released[pos & MASK] && pos - ep->in_head < SHM_RING);
    ep->released[pos & MASK] = (uint16_t)(1 + lines);
    while (ep->released[ep->in_head & MASK]) {
        ep->in_lines += ep->released[ep->in_head & MASK] - 1u;
        ep->released[ep->in_head++ & MASK] = 0;
    }
    if (SHM_UNLIKELY(ep->in_head - ep->in_published >= SHM_RING / 4 ||
                     ep->in_lines >= ep->data_bytes / 64 / 4)) {
        ep->in_published = ep->in_head;
        ep->in_lines = 0;
        atomic_store_explicit(&ep->in->head, ep->in_head, memory_order_release);
        if (atomic_load_explicit(&ep->in->tx_sleeping, memory_order_relaxed))
            bny_shm_doorbell(ep);
    }
}

/* Each word by one load: the peer may write it meanwhile, and what is checked must be what is
 * used. */
static inline void copy_header(struct bny_hdr *to, const struct bny_hdr *from)
{
    typedef uint64_t __attribute__((may_alias)) word;
    const word *src = (const word *)from;
    word *dst = (word *)to;

    _Static_assert(sizeof *to % sizeof *dst == 0, "whole words");
    for (size_t i = 0; i < sizeof *to / sizeof *dst; i++)
        dst[i] = __atomic_load_n(&src[i], __ATOMIC_RELAXED);
}

/* Copies a record out and checks it. Returns NULL, or its fault. */
static const char *shm_path_decode(struct shm_ep *ep, const struct shm_rec *rec,
                                   struct shm_msg *m)
{
    uint32_t info = __atomic_load_n(&rec->info, __ATOMIC_RELAXED), at;
    struct bny_hdr *h = &m->base.hdr;

    copy_header(h, &rec->hdr);
    m->word = __atomic_load_n(&rec->word, __ATOMIC_RELAXED);
    m->kind = info & 7;
    m->lines = 0;
    m->base.descriptor = m->kind == SHM_REC_DESC;
    m->base.touch = 0;
    switch (m->kind) {
    case SHM_REC_INLINE:
        m->base.data = &m->word;
        return h->len <= SHM_INLINE ? NULL : "sent an inline message that is too long";
    case SHM_REC_EAGER:
        at = info >> 3;
        if (h->len > SHM_EAGER_MAX || at >= SHM_DATA / 64 || at * 64 + h->len > SHM_DATA)
            return "sent an eager message outside of its memory";
        m->lines = (uint16_t)((h->len + 63) / 64);
        m->base.data = ep->in->data + (size_t)at * 64;
        m->base.touch = h->len >= SHM_TOUCH_MIN && ep->base.tp->touches;
        return NULL;
    case SHM_REC_SLOT:
        m->index = (uint8_t)(info >> 3);
        if (m->index >= SHM_SLOTS || h->len > SHM_SLOT_BYTES)
            return "sent a slot that does not exist";
        m->base.data = ep->in->slots[m->index];
        m->base.touch = ep->base.tp->touches != 0;
        return NULL;
    case SHM_REC_DESC:
        m->index = (uint8_t)(info >> 3);
        m->segment = info >> 11;
        m->base.data = NULL;
        if (m->segment) {
            m->base.data = bny_shm_peer_arena(ep, m->segment, m->word, h->len);
            return m->base.data ? NULL : "sent memory outside of what it shares";
        }
        if (ep->copy == SHM_COPY_DIRECT)
            m->base.data = (const void *)(uintptr_t)m->word;
        return NULL;
    default: return "sent a record of unknown kind";
    }
}

/* A never used one; NULL: none left. */
static struct shm_msg *fresh(struct shm_ep *ep)
{
    struct shm_msg *m;

    if (ep->nmsgs == SHM_MSGS)
        return NULL;
    m = &ep->msgs[ep->nmsgs++];
    m->base.ep = &ep->base;
    bny_msg_list_push_front(&ep->free_msgs, &m->base);
    return m;
}

static int take_messages(struct shm_ep *ep, struct bny_event *ev, int n)
{
    int got = 0;

    while (got < n) {
        struct shm_rec *rec = &ep->in->ring[ep->in_pos & MASK];
        struct shm_msg *m = (struct shm_msg *)ep->free_msgs.first;
        const char *wrong;

        if (atomic_load_explicit(&rec->seq, memory_order_acquire) != ep->in_pos + 1)
            break;
        if (SHM_UNLIKELY(!m) && !(m = fresh(ep)))
            break; /* all messages are held: back-pressure until some are released */
        /* A peer that overruns the ring overwrites records that are still held. */
        wrong = ep->in_pos - ep->in_head >= SHM_RING ? "overran its ring"
                                                     : shm_path_decode(ep, rec, m);
        if (SHM_UNLIKELY(wrong != NULL)) {
            bny_shm_ep_fail(ep, BANYAN_EPROTO, "%s", wrong);
            break;
        }
        bny_msg_list_pop_front(&ep->free_msgs);
        m->pos = ep->in_pos++;
        /* Only the data of longer eager messages stays in ring order until its release. The
         * rest has been copied into the message, so holding it blocks nothing. */
        if (m->kind != SHM_REC_EAGER)
            ring_release(ep, m->pos, 0);
        ev[got].kind = BNY_EV_MSG;
        ev[got].ep = &ep->base;
        ev[got].msg = &m->base;
        got++;
    }
    return got;
}

static struct bny_event end_send(struct shm_ep *ep, uint32_t i)
{
    ep->send_busy[i] = 0;
    ep->free_sends[SHM_RING - ep->nsends--] = (uint8_t)i;
    return (
        struct bny_event){ .kind = BNY_EV_SENT, .ep = &ep->base, .cookie = ep->send_cookie[i] };
}

/* SENT events: of descriptors that the peer has released, or never will, and of puts. */
static int take_sent(struct shm_ep *ep, struct bny_event *ev, int n)
{
    int got = 0;

    while (got < n && ep->nsent) {
        ev[got++] = (struct bny_event){ .kind = BNY_EV_SENT,
                                        .ep = &ep->base,
                                        .cookie = ep->sent[ep->sent_at % SHM_SENT] };
        ep->sent_at++;
        ep->nsent--;
    }
    while (got < n && ep->nsends) {
        uint32_t word =
            atomic_load_explicit(&ep->out->done[ep->done_pos & MASK], memory_order_acquire);
        uint32_t i = word & 0xff;

        if (word >> 8 != ((ep->done_pos + 1) & 0xffffff))
            break;
        if (!ep->send_busy[i]) {
            bny_shm_ep_fail(ep, BANYAN_EPROTO, "finished a send that was not in progress");
            break;
        }
        ep->done_pos++;
        ev[got++] = end_send(ep, i);
    }
    for (uint32_t i = 0; SHM_UNLIKELY(ep->ended) && i < SHM_RING && got < n; i++)
        if (ep->send_busy[i])
            ev[got++] = end_send(ep, i);
    return got;
}

static int ep_events(struct shm_ep *ep, struct bny_event *ev, int n)
{
    int got = 0;

    /* Messages that a peer wrote before its death count; those of a peer that broke the
     * protocol do not. */
    if (SHM_LIKELY(ep->in != NULL) && !ep->liar)
        got = take_messages(ep, ev, n);
    if (ep->nsends | ep->nsent)
        got += take_sent(ep, ev + got, n - got);
    if (SHM_UNLIKELY(ep->fate == SHM_DEAD) && got < n && !ep->reported) {
        ep->reported = 1;
        ev[got++] =
            (struct bny_event){ .kind = BNY_EV_DOWN, .ep = &ep->base, .reason = ep->reason };
    }
    return got;
}

/* After polls without events: polls the sockets if it is time. */
static void shm_path_look(struct shm_tp *tp, uint64_t period)
{
    uint64_t now = bny_now_ns();

    if (now - tp->serviced_ns < period)
        return;
    tp->serviced_ns = now;
    if (bny_shm_service(tp) > 0)
        tp->period_ns = SERVICE_NS_MIN;
    else if (tp->period_ns < SERVICE_NS_MAX)
        tp->period_ns = tp->period_ns ? 2 * tp->period_ns : SERVICE_NS_MIN;
}

static inline void maybe_look(struct shm_tp *tp, int got, uint32_t *idle)
{
    if (SHM_UNLIKELY(!(++tp->polls & BUSY_POLLS)))
        shm_path_look(tp, SERVICE_NS_BUSY);
    if (got)
        *idle = 0;
    else if (SHM_UNLIKELY(!(++*idle % IDLE_POLLS)))
        shm_path_look(tp, tp->period_ns);
}

int bny_shm_poll_ep(struct bny_ep *bep, struct bny_event *ev, int n)
{
    struct shm_ep *ep = (struct shm_ep *)bep;
    int got = ep_events(ep, ev, n);

    maybe_look((struct shm_tp *)bep->tp, got, &ep->idle);
    return got;
}

int bny_shm_poll(struct bny_tp *btp, struct bny_event *ev, int n)
{
    struct shm_tp *tp = (struct shm_tp *)btp;
    int got = 0, first = tp->next_ep;

    for (int i = 0; i < tp->neps && got < n; i++) {
        int e = first + i < tp->neps ? first + i : first + i - tp->neps;

        got += ep_events(tp->eps[e], ev + got, n - got);
        tp->next_ep =
            e + 1 < tp->neps ? e + 1 : 0; /* the one after the last served has waited longest */
    }
    maybe_look(tp, got, &tp->idle);
    return SHM_UNLIKELY(got == 0 && tp->starved) ? bny_shm_starves(tp) : got;
}

int bny_shm_ready(struct shm_ep *ep)
{
    if (ep->fate == SHM_DEAD && !ep->reported)
        return 1;
    if (ep->in && atomic_load_explicit(&ep->in->ring[ep->in_pos & MASK].seq,
                                       memory_order_acquire) == ep->in_pos + 1)
        return 1;
    if (ep->nsent || (ep->nsends && ep->ended))
        return 1;
    return ep->nsends &&
           atomic_load_explicit(&ep->out->done[ep->done_pos & MASK], memory_order_acquire) >>
                   8 ==
               ((ep->done_pos + 1) & 0xffffff);
}

/* Single copy from the sender's memory. */
static long pull(struct shm_msg *m, uint32_t off, uint32_t len, void *dst, const void **ptr)
{
    struct shm_ep *ep = (struct shm_ep *)m->base.ep;
    struct iovec local, remote;
    ssize_t n;

    if (SHM_UNLIKELY(ep->ended)) /* another process may have its pid by now */
        return bny_shm_ep_gone(ep);
    if (!dst) {
        dst = ep->tiles + (size_t)(m->base.hdr.chan % BNY_CHANNELS) * SHM_TILE;
        len = len < SHM_TILE ? len : SHM_TILE;
    }
    local = (struct iovec){ dst, len };
    remote = (struct iovec){ (void *)(uintptr_t)(m->word + off), len };
    n = process_vm_readv(ep->pid, &local, 1, &remote, 1, 0);
    if (SHM_UNLIKELY(n != (ssize_t)len)) {
        int e = n < 0 ? errno : EFAULT;

        if (e == ESRCH)
            return bny_shm_ep_process_gone(ep);
        if (e == EPERM || e == ENOSYS)
            return bny_fail(BANYAN_ENOTSUP,
                            "shm: reading rank %d's memory: %s; set BANYAN_CMA=0 "
                            "on all ranks",
                            ep->base.peer, strerror(e));
        /* No DOWN: its user may have freed the memory after a failure that is not known here
         * yet. */
        if (e == EFAULT)
            return bny_fail(BANYAN_EPROTO, "shm: rank %d sent memory that is not mapped there",
                            ep->base.peer);
        return bny_fail(BANYAN_ESYSTEM, "shm: process_vm_readv from rank %d: %s", ep->base.peer,
                        strerror(e));
    }
    bny_counter_add(&ep->base.tp->copied_bytes, len);
    *ptr = dst;
    return len;
}

long bny_shm_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr)
{
    struct shm_msg *m = (struct shm_msg *)msg;
    const uint8_t *src = msg->data;

    if (len == 0 || off > msg->hdr.len || len > msg->hdr.len - off)
        return bny_fail(BANYAN_EINVAL, "shm: view of bytes [%u, +%u) of a message of %u", off,
                        len, msg->hdr.len);
    if (!src)
        return pull(m, off, len, dst, ptr);
    if (!dst) {
        *ptr = src + off;
        return len;
    }
    memcpy(dst, src + off, len);
    bny_counter_add(&msg->ep->tp->copied_bytes, len);
    *ptr = dst;
    return len;
}

void bny_shm_release(struct bny_msg *msg)
{
    struct shm_msg *m = (struct shm_msg *)msg;
    struct shm_ep *ep = (struct shm_ep *)msg->ep;
    int wake = 0;

    if (msg->touch)
        bny_touch(msg->data, msg->hdr.len);
    /* Release order: our reads of the payload precede the word that returns it. */
    if (m->kind == SHM_REC_SLOT) {
        atomic_store_explicit(&ep->in->slot_done[m->index], ++ep->slot_done[m->index],
                              memory_order_release);
        wake = 1;
    } else if (m->kind == SHM_REC_DESC) {
        uint32_t at = ep->in_done++;

        atomic_store_explicit(&ep->in->done[at & MASK], ep->in_done << 8 | m->index,
                              memory_order_release);
        wake = 1;
    }
    if (m->kind == SHM_REC_EAGER)
        ring_release(ep, m->pos, m->lines);
    bny_msg_list_push_front(&ep->free_msgs, msg);
    if (wake && SHM_UNLIKELY(atomic_load_explicit(&ep->in->tx_sleeping, memory_order_relaxed)))
        bny_shm_doorbell(ep);
}
