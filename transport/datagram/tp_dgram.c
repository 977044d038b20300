/* SPDX-License-Identifier: BSD-3-Clause */
/* The dpdk transport: the table, set-up, polling, life and death of endpoints. dgram.h has the
 * design. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/text.h"
#include "transport/datagram/dgram.h"

void bny_dgram_destroy(struct bny_tp *tp);

/* ---- memory ---- */

enum { MEM_OURS, MEM_ATTACHED };

static int mem_add(struct dp_tp *t, void *at, size_t bytes, int kind)
{
    struct dp_mem *m = malloc(sizeof *m);

    if (!m)
        return bny_fail(BANYAN_ENOMEM, "no memory to keep account of %p", at);
    *m = (struct dp_mem){ .next = t->mem, .at = at, .bytes = bytes, .kind = kind };
    t->mem = m;
    return 0;
}

/* ud counts pinned memory: the drivers of other kinds have hugepages, or a bus's mappings. */
static int map(struct dp_tp *t, struct dp_mem *m, void *from, size_t bytes, char *text)
{
    if (t->drv->map(t->port, from, bytes, text) != 0)
        return -1;
    m->lo = from;
    m->hi = m->lo + bytes;
    if (t->set.kind == BNY_DGRAM_UD)
        bny_counter_add(&t->tp.pinned_bytes, bytes);
    return 0;
}

static void unmap(struct dp_tp *t, const struct dp_mem *m)
{
    size_t bytes = (size_t)(m->hi - m->lo);

    t->drv->unmap(t->port, m->lo, bytes);
    if (t->set.kind == BNY_DGRAM_UD)
        bny_counter_add(&t->tp.pinned_bytes, -(uint64_t)bytes);
}

/* Returns 0, or an error if a card keeps reading. */
static int withdraw(struct dp_tp *t, struct dp_mem *m)
{
    if (bny_dgram_held_settle(t, m->at, m->bytes) != 0)
        return bny_fail(BANYAN_ETIMEDOUT,
                        "rank %d: the driver of %s does not give back frames that point into "
                        "%p: this memory stays borrowed",
                        t->tp.rank, t->set.device, (void *)m->at);
    if (m->lo < m->hi)
        unmap(t, m);
    m->lo = m->hi = NULL;
    return 0;
}

static int mem_drop(struct dp_tp *t, void *at, int kind)
{
    for (struct dp_mem **p = &t->mem; *p; p = &(*p)->next)
        if ((*p)->at == at && (*p)->kind == kind) {
            struct dp_mem *m = *p;
            int rc = withdraw(t, m);

            if (rc)
                return rc;
            *p = m->next;
            free(m);
            if (kind == MEM_OURS)
                t->drv->release(at);
            return 0;
        }
    return bny_fail(BANYAN_EINVAL,
                    "ptr: %p was not allocated by banyan_mem_alloc with this communicator", at);
}

int bny_dgram_mem_alloc(struct bny_tp *tp, size_t bytes, void **out)
{
    struct dp_tp *t = (struct dp_tp *)tp;
    char text[BNY_DGRAM_TEXT] = "";
    int rc;

    *out = t->drv->alloc(bytes);
    if (!*out)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no %zu bytes of memory left%s", tp->rank,
                        bytes, bny_dgram_more(t));
    memset(*out, 0, bytes);
    rc = mem_add(t, *out, bytes, MEM_OURS);
    if (rc == 0 && t->set.kind == BNY_DGRAM_UD && map(t, t->mem, *out, bytes, text) != 0) {
        mem_drop(t, *out, MEM_OURS);
        *out = NULL;
        return bny_fail(BANYAN_ENOMEM, "rank %d: device %s does not register %zu bytes: %s",
                        tp->rank, t->set.device, bytes, text);
    }
    if (rc) {
        t->drv->release(*out);
        *out = NULL;
    }
    return rc;
}

int bny_dgram_mem_free(struct bny_tp *tp, void *ptr)
{
    return mem_drop((struct dp_tp *)tp, ptr, MEM_OURS);
}

/* Its whole pages, for a card to read. Partial pages are copied: the card would reach other
 * data in them. */
int bny_dgram_attach(struct bny_tp *tp, void *at, size_t bytes)
{
    struct dp_tp *t = (struct dp_tp *)tp;
    char text[BNY_DGRAM_TEXT] = "";
    uintptr_t page = t->drv->page, from = (uintptr_t)at, to = from + bytes;
    int rc;

    if (!t->port || !(t->info.caps & BNY_DGRAM_EXT_EAL) || t->drv->owns(at, bytes))
        return 0;
    from = (from + page - 1) & ~(page - 1);
    to &= ~(page - 1);
    if (from >= to)
        return 0;
    rc = mem_add(t, at, bytes, MEM_ATTACHED);
    if (rc)
        return rc;
    if (map(t, t->mem, (void *)from, to - from, text) != 0) {
        mem_drop(t, at, MEM_ATTACHED);
        return bny_fail(BANYAN_ENOMEM, "rank %d: the card %s cannot read %zu bytes at %p: %s",
                        tp->rank, t->set.device, bytes, at, text);
    }
    return 0;
}

int bny_dgram_detach(struct bny_tp *tp, void *at)
{
    struct dp_tp *t = (struct dp_tp *)tp;

    for (const struct dp_mem *m = t->mem; m; m = m->next)
        if (m->at == at && m->kind == MEM_ATTACHED)
            return mem_drop(t, at, MEM_ATTACHED);
    return 0;
}

/* ---- set-up ---- */

#define NO_MEMORY "rank %d: no memory for transport %s"

static int dgram_start(struct dp_tp *t, const struct bny_tp_config *cfg)
{
    char text[BNY_DGRAM_TEXT] = "";
    int rc;

    if (t->drv->start(t->set.args, t->set.kind == BNY_DGRAM_PCI ? t->set.device : NULL,
                      bny_log_enabled(BANYAN_LOG_INFO), text) != 0)
        return bny_fail(BANYAN_ENOTSUP, "rank %d: %s", cfg->rank, text);
    randombytes_buf(&t->blob.nonce, sizeof t->blob.nonce);
    memcpy(t->blob.magic, "bdp3", 4);
    t->blob.rank = cfg->rank;
    t->blob.kind = (uint8_t)t->set.kind;
    t->blob.checks = (uint8_t)t->set.checks;
    rc = bny_dgram_place(t->set.kind, t->blob.place);
    if (rc == 0)
        rc = bny_dgram_open_device(t, cfg->ifname ? cfg->ifname : "");
    if (rc)
        return rc;
    if (t->set.fault.on) {
        t->faults = bny_dgram_faults_new(&t->set.fault, (uint64_t)cfg->rank);
        if (!t->faults)
            return bny_fail(BANYAN_ENOMEM, NO_MEMORY, cfg->rank, t->tp.ops->name);
        bny_warn("rank %d: BANYAN_%s has faults: packets are lost, doubled, delayed or "
                 "changed on purpose",
                 cfg->rank, t->set.kind == BNY_DGRAM_UD ? "UD" : "DPDK");
    }
    bny_info("%s: port %s, frames up to %u bytes%s%s", t->tp.ops->name, t->set.device,
             t->blob.frame, t->info.notes[0] ? "; " : "", t->info.notes);
    return 0;
}

int bny_dgram_create(struct bny_tp **out, const struct bny_tp_config *cfg,
                     const struct bny_transport_ops *ops,
                     const struct bny_dgram_driver *(*driver)(void),
                     int (*settings)(struct dp_settings *s))
{
    struct dp_settings set;
    struct dp_tp *t;
    int rc = settings(&set);

    *out = NULL;
    if (rc)
        return rc;
    if (sodium_init() < 0)
        return bny_fail(BANYAN_ESYSTEM, "rank %d: libsodium does not start", cfg->rank);
    if (cfg->nranks > UINT16_MAX)
        return bny_fail(BANYAN_ENOTSUP, "transport %s: %d ranks are more than 65535", ops->name,
                        cfg->nranks);
    t = calloc(1, sizeof *t);
    if (t) {
        t->eps = calloc((size_t)cfg->nranks, sizeof(void *));
        t->active = calloc((size_t)cfg->nranks, 1);
    }
    if (!t || !t->eps || !t->active) {
        if (t) {
            free(t->eps);
            free(t->active);
        }
        free(t);
        return bny_fail(BANYAN_ENOMEM, NO_MEMORY, cfg->rank, ops->name);
    }
    t->tp.ops = ops;
    t->tp.rank = cfg->rank;
    t->tp.nranks = cfg->nranks;
    t->tp.integrity = set.kind == BNY_DGRAM_MEMIF || set.kind == BNY_DGRAM_RING ? BNY_NO_WIRE
                      : set.checks == BNY_DGRAM_MAC                             ? BNY_MAC
                                                                                : BNY_PLAIN;
    t->tp.eager_max = DP_EAGER_MAX;
    t->tp.slot_max = DP_SLOT_MAX;
    t->guard = -1;
    t->eth = BNY_DGRAM_ETH;
    t->set = set;
    t->now = bny_now_ns();
    t->secret = cfg->secret;
    t->drv = driver();
    rc = t->drv ? dgram_start(t, cfg) : -BANYAN_ENOTSUP;
    if (rc) {
        bny_dgram_destroy(&t->tp);
        return rc;
    }
    t->tp.whole_max = bny_dgram_fragment(t, 0, t->blob.frame);
    t->tp.mbps = t->info.mbps;
    bny_snprintf(t->tp.at, sizeof t->tp.at, "%s", t->info.name);
    *out = &t->tp;
    return 0;
}

int bny_dgram_address(struct bny_tp *tp, void *blob, size_t cap)
{
    const struct dp_tp *t = (struct dp_tp *)tp;
    int more = 0;

    if (cap >= sizeof t->blob) {
        memcpy(blob, &t->blob, sizeof t->blob);
        if (t->drv->address)
            more = t->drv->address(t->port, (uint8_t *)blob + sizeof t->blob,
                                   cap - sizeof t->blob);
    }
    if (cap < sizeof t->blob || more < 0)
        return bny_fail(BANYAN_EINVAL, "%zu bytes do not hold an address of transport %s", cap,
                        tp->ops->name);
    return (int)sizeof t->blob + more;
}

/* One job has one family: a rank with both addresses uses that of the settings. */
static int is_family(const struct dp_tp *t, const struct dp_blob *peer)
{
    char ours[BNY_DGRAM_IP_TEXT], theirs[BNY_DGRAM_IP_TEXT];

    if (bny_dgram_ip_is4(&peer->ip) == bny_dgram_ip_is4(&t->blob.ip))
        return 1;
    bny_fail(BANYAN_ENOTSUP,
             "rank %d's DPDK port has an %s address, %s, and that of rank %d an %s one, %s: "
             "set BANYAN_DPDK_ADDR on all ranks to addresses of one family",
             t->tp.rank, bny_dgram_ip_is4(&t->blob.ip) ? "IPv4" : "IPv6",
             bny_dgram_ip_text(&t->blob.ip, ours), peer->rank,
             bny_dgram_ip_is4(&peer->ip) ? "IPv4" : "IPv6",
             bny_dgram_ip_text(&peer->ip, theirs));
    return 0;
}

int bny_dgram_reachable(struct bny_tp *tp, int peer, const void *blob, size_t len)
{
    const struct dp_tp *t = (struct dp_tp *)tp;
    struct dp_blob b;

    if (len < sizeof b || (len != sizeof b && !t->drv->reaches) || peer < 0 ||
        peer >= tp->nranks)
        return 0;
    memcpy(&b, blob, sizeof b);
    if (t->drv->reaches &&
        !t->drv->reaches(t->port, (const uint8_t *)blob + sizeof b, len - sizeof b))
        return 0;
    return !memcmp(b.magic, "bdp3", 4) && b.rank == peer && b.kind == t->blob.kind &&
           b.checks == t->blob.checks && b.frame >= 256 && b.frame <= 65535 &&
           !bny_dgram_ip_none(&b.ip) && !bny_dgram_ip_is(&b.ip, &t->blob.ip) &&
           !memcmp(b.place, t->blob.place, sizeof b.place) && is_family(t, &b);
}

static int ep_new(struct dp_tp *t, int peer, const void *blob, struct dp_ep **out)
{
    struct dp_ep *e = calloc(1, sizeof *e);
    int rc;

    if (e)
        e->key = bny_secret_new();
    if (!e || !e->key) {
        free(e);
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the endpoint of rank %d",
                        t->tp.rank, peer);
    }
    e->ep = (struct bny_ep){ .tp = &t->tp,
                             .ops = t->tp.ops,
                             .peer = peer,
                             .eager_max = DP_EAGER_MAX,
                             .slot_max = DP_SLOT_MAX,
                             .zcopy_min = DP_EAGER_MAX + 1 };
    memcpy(&e->blob, blob, sizeof e->blob);
    for (int c = 0; c < BNY_CHANNELS; c++)
        e->queue[c].tail = &e->queue[c].head;
    e->sent_tail = &e->sent;
    bny_dgram_derive(e);
    if (t->port) {
        e->port = t->port;
        e->info = t->info;
        e->frame_wanted = e->blob.frame < t->info.frame_max ? e->blob.frame : t->info.frame_max;
        e->frame = t->eth == BNY_DGRAM_ETH6 ? DP_SAFE_FRAME6 : DP_SAFE_FRAME;
        if (e->frame_wanted < e->frame)
            e->frame = e->frame_wanted;
        e->resolved = t->set.kind == BNY_DGRAM_UD;
        rc = 0;
    } else {
        rc = bny_dgram_open_pair(e);
        e->port_is_own = rc == 0;
    }
    e->lanes = t->port && (e->blob.queues > 1 || t->info.queues > 1) ? BNY_CHANNELS : 1;
    e->ep.whole_max = bny_dgram_fragment(t, 0, e->frame_wanted);
    if (rc == 0)
        rc = bny_dgram_ep_memory(e);
    bny_flow_tx_init(&e->tx, (e->info.caps & BNY_DGRAM_LOSSLESS) && !t->faults,
                     BNY_DGRAM_WINDOW, e->frame_wanted);
    e->limit_told = BNY_DGRAM_WINDOW;
    e->tx.patient = t->set.kind == BNY_DGRAM_UD;
    if ((e->info.caps & BNY_DGRAM_UNORDERED) && !t->faults)
        bny_flow_unordered(&e->tx);
    if (rc == 0)
        rc = bny_dgram_grants_new(e);
    *out = e;
    return rc;
}

/* Ports close first: until then the driver may hold packets that refer to an endpoint's memory,
 * and count them there; but held buffers must be returned before. */
static void ep_close(struct dp_ep *e)
{
    bny_dgram_give_up(e);
    bny_dgram_forget(e);
    if (e->port_is_own)
        dp_tp_of(e)->drv->close(e->port);
    e->port_is_own = 0;
}

static void ep_free(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);

    ep_close(e);
    if (e->memory && t->port && t->set.kind == BNY_DGRAM_UD && !e->is_unmapped) {
        t->drv->unmap(t->port, e->memory, DP_EP_BYTES);
        bny_counter_add(&t->tp.pinned_bytes, -(uint64_t)DP_EP_BYTES);
    }
    if (e->memory && !t->held)
        t->drv->release(e->memory);
    for (struct dp_sent *s = e->sent, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    for (struct dp_sent *s = e->free_sent, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    free(e->wide);
    free(e->outs);
    bny_secret_free(e->key);
    free(e);
}

int bny_dgram_connect(struct bny_tp *tp, int peer, const void *blob, size_t len,
                      struct bny_ep **out)
{
    struct dp_tp *t = (struct dp_tp *)tp;
    char text[BNY_DGRAM_TEXT] = "";
    struct dp_ep *e = NULL;
    int rc;

    *out = NULL;
    if (!bny_dgram_reachable(tp, peer, blob, len) || peer == tp->rank || t->eps[peer])
        return bny_fail(
            BANYAN_EINVAL,
            "rank %d: peer %d has no %s address that is reached from here, or was connected "
            "before",
            tp->rank, peer, tp->ops->name);
    if (t->drv->peer &&
        t->drv->peer(t->port, peer, (const uint8_t *)blob + sizeof(struct dp_blob),
                     len - sizeof(struct dp_blob), text) != 0)
        return bny_fail(BANYAN_EINVAL, "rank %d: rank %d: %s", tp->rank, peer, text);
    rc = ep_new(t, peer, blob, &e);
    if (rc) {
        if (e)
            ep_free(e);
        return rc;
    }
    t->eps[peer] = e;
    bny_dgram_watch(e);
    *out = &e->ep;
    return 0;
}

/* Counters for diagnosis. */
static void dgram_tell(const struct dp_ep *e)
{
    const struct bny_flow_tx *f = &e->tx;

    bny_debug("%s: to rank %d: %u packets, %llu again, %llu timeouts; %u "
              "under way, %u lost, "
              "credit %u, window %.0f, "
              "round trip %llu ns; %u messages wait; from it: %u packets, %u twice, %u held; "
              "frames of up to %u bytes",
              e->ep.ops->name, e->ep.peer, f->next, (unsigned long long)f->resent,
              (unsigned long long)f->timeouts, f->flying, f->lost, f->limit - f->una, f->cwnd,
              (unsigned long long)f->srtt, e->queued, e->rx.cum, e->rx.twice, e->held,
              e->frame);
}

static void tell_drops(const struct dp_tp *t)
{
    static const char *const names[BNY_DGRAM_DROPS] = {
        "",           "foreign",      "cut",          "impossible headers",
        "wrong tags", "wrong checks", "out of place", "beyond the credit"
    };

    if (t->port && t->drv->missed && t->drv->missed(t->port))
        bny_info("%s: port %s missed %llu frames (a full ring, no buffer) or refused them (in "
                 "pieces, damaged, another VLAN's)",
                 t->tp.ops->name, t->set.device, (unsigned long long)t->drv->missed(t->port));
    for (int i = 1; i < BNY_DGRAM_DROPS; i++)
        if (t->drops[i])
            bny_info("%s: %llu frames dropped: %s", t->tp.ops->name,
                     (unsigned long long)t->drops[i], names[i]);
}

static void say_goodbye(struct dp_tp *t)
{
    for (int r = 0; r < t->tp.nranks; r++) {
        struct dp_ep *e = t->eps[r];

        for (int i = 0; e && e->up && !e->down && !e->bye && i < 3;
             i++) /* it is not acknowledged */
            bny_dgram_control(e, BNY_DGRAM_ABORT, 0, 0);
    }
}

void bny_dgram_destroy(struct bny_tp *tp)
{
    struct dp_tp *t = (struct dp_tp *)tp;

    say_goodbye(t);
    tell_drops(t);
    if (bny_counter_read(&tp->wire_bytes))
        bny_info("%s: %llu payload bytes were sent, %llu of them copied first", tp->ops->name,
                 (unsigned long long)bny_counter_read(&tp->wire_bytes),
                 (unsigned long long)bny_counter_read(&tp->staged_bytes));
    for (int r = 0; r < tp->nranks; r++)
        if (t->eps[r]) {
            dgram_tell(t->eps[r]);
            ep_close(t->eps[r]);
        }
    bny_dgram_faults_free(t->faults);
    for (struct dp_mem *m = t->mem; m; m = m->next)
        if (m->lo < m->hi && withdraw(t, m) != 0)
            bny_warn("%s", banyan_last_error());
    if (t->port)
        t->drv->close(t->port);
    t->port = NULL;
    bny_dgram_held_free(t);
    for (int r = 0; r < tp->nranks; r++)
        if (t->eps[r])
            ep_free(t->eps[r]);
    if (t->guard >= 0)
        bny_fd_close(t->guard);
    while (t->all_msgs) {
        struct dp_msg *m = t->all_msgs;

        t->all_msgs = m->all;
        free(m->flat);
        free(m);
    }
    while (t->blocks) {
        struct dp_block *b = t->blocks;

        t->blocks = b->next;
        free(b);
    }
    while (t->mem) {
        struct dp_mem *m = t->mem;

        t->mem = m->next;
        if (m->kind == MEM_OURS && !t->held)
            t->drv->release(m->at);
        free(m);
    }
    free(t->active);
    free(t->eps);
    free(t);
}

/* ---- polling ---- */

void bny_dgram_down(struct dp_ep *e, const char *fmt, ...)
{
    va_list ap;

    if (e->down)
        return;
    va_start(ap, fmt);
    bny_vsnprintf(e->reason, sizeof e->reason, fmt, ap);
    va_end(ap);
    bny_dgram_give_up(e);
    e->down = 1;
    dp_wake(e);
}

static int events(struct dp_ep *e, struct bny_event *ev, int n)
{
    int got = 0;

    while (e->sent && got < n) {
        struct dp_sent *s = e->sent;

        e->sent = s->next;
        if (!e->sent)
            e->sent_tail = &e->sent;
        ev[got++] =
            (struct bny_event){ .kind = BNY_EV_SENT, .ep = &e->ep, .cookie = s->cookie };
        s->next = e->free_sent;
        e->free_sent = s;
    }
    while (!bny_msg_list_is_empty(&e->ready) && got < n)
        ev[got++] = (struct bny_event){ .kind = BNY_EV_MSG,
                                        .ep = &e->ep,
                                        .msg = bny_msg_list_pop_front(&e->ready) };
    if (e->down == 1 && got < n && bny_msg_list_is_empty(&e->ready) && !e->ending) {
        e->down = 2;
        ev[got++] =
            (struct bny_event){ .kind = BNY_EV_DOWN, .ep = &e->ep, .reason = e->reason };
    }
    return got;
}

/* Receives frames of a port; e NULL: for any endpoint. Returns their number. */
static int receive(struct dp_tp *t, struct bny_dgram_port *port, struct dp_ep *e)
{
    struct bny_dgram_rx rx[BNY_DGRAM_BURST];
    void *back[BNY_DGRAM_BURST];
    int n = t->drv->rx(port, rx, BNY_DGRAM_BURST), nback = 0;

    for (int i = 0; i < n; i++)
        if (!bny_dgram_frame(t, e, &rx[i]))
            back[nback++] = rx[i].buf;
    if (nback)
        t->drv->free(back, nback);
    return n;
}

/* Handles what packets and time make due. */
static void tend(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    uint32_t told = e->limit_told - e->rx.cum;
    int rc;

    if (e->starved && e->down < 2) /* no further frame need come */
        bny_dgram_retry(e);
    if (e->down)
        return;
    if (e->link_lost_ns)
        return;
    if (e->queued) {
        rc = bny_flow_tick(&e->tx, t->now);
        if (rc < 0) {
            bny_dgram_down(e, "has acknowledged nothing for 300 s");
            return;
        }
        bny_dgram_reap(e);
        bny_dgram_push(e);
    }
    if (e->acks_due >= DP_ACK_EVERY || (e->acks_due && t->now - e->ack_since_ns >= DP_ACK_NS) ||
        (told < dp_window(e) / 4 && bny_dgram_credit(e) >= dp_window(e) / 2))
        bny_dgram_ack(e);
    bny_dgram_grants_ask(e);
}

static int poll_one(struct dp_ep *e, struct bny_event *ev, int n)
{
    struct dp_tp *t = dp_tp_of(e);

    /* Waiting messages come first, so that no queue grows without bound. */
    if (bny_msg_list_is_empty(&e->ready)) {
        if (e->port_is_own)
            receive(t, e->port, e);
        else
            receive(t, t->port, NULL);
    }
    bny_dgram_grants_run(t);
    tend(e);
    bny_dgram_held_run(t);
    return events(e, ev, n);
}

static int is_active(const struct dp_ep *e)
{
    return e->queued || e->acks_due || e->starved || e->sent || e->ending || e->down == 1 ||
           !bny_msg_list_is_empty(&e->ready);
}

int bny_dgram_poll(struct bny_tp *tp, struct bny_event *ev, int n)
{
    struct dp_tp *t = (struct dp_tp *)tp;
    int got = 0, look = t->polls++ % DP_LINK_EVERY == 0, waiting = 0;

    t->now = bny_now_ns();
    for (int r = 0; r < tp->nranks && t->port; r++)
        waiting |= t->active[r] && !bny_msg_list_is_empty(&t->eps[r]->ready);
    if (t->port && !waiting)
        receive(t, t->port, NULL);
    bny_dgram_grants_run(t);
    bny_dgram_held_run(t);
    for (int i = 0, r = t->first; i < tp->nranks; i++, r++) {
        struct dp_ep *e;

        r = r < tp->nranks ? r : 0;
        e = t->eps[r];
        if (!e || (!look && !t->active[r] && !e->port_is_own))
            continue;
        if (look)
            bny_dgram_watch(e);
        if (e->port_is_own && bny_msg_list_is_empty(&e->ready))
            receive(t, e->port, e);
        tend(e);
        if (got < n)
            got += events(e, ev + got, n - got);
        t->active[r] = (uint8_t)is_active(e);
    }
    t->first = t->first + 1 < tp->nranks ? t->first + 1 : 0;
    if (t->faults)
        bny_dgram_faults_flush(t);
    return got;
}

int bny_dgram_poll_ep(struct bny_ep *ep, struct bny_event *ev, int n)
{
    struct dp_ep *e = (struct dp_ep *)ep;
    struct dp_tp *t = dp_tp_of(e);

    t->now = bny_now_ns();
    if (t->polls++ % DP_LINK_EVERY == 0)
        bny_dgram_watch(e);
    if (t->faults)
        bny_dgram_faults_flush(t);
    return poll_one(e, ev, n);
}

/* Events without a frame: our acknowledgements soon, the peers' timers later. */
static uint64_t sleep_ns(const struct dp_tp *t)
{
    uint64_t ns = t->held || t->faults ? DP_NAP_NS : DP_SLEEP_NS;

    for (int r = 0; r < t->tp.nranks && ns > DP_NAP_NS; r++) {
        const struct dp_ep *e = t->eps[r];

        if (!e || e->down)
            continue;
        if (e->acks_due || e->starved)
            ns = DP_NAP_NS;
        else if (e->queued)
            ns = BNY_FLOW_RTO_MIN;
    }
    return ns;
}

/* DPDK's drivers have no wake-ups. */
uint64_t bny_dgram_arm(struct bny_tp *tp, int *fds, int cap, int *nfds)
{
    struct dp_tp *t = (struct dp_tp *)tp;
    int fd;

    *nfds = 0;
    for (int r = 0; r < tp->nranks; r++)
        if (t->eps[r] && (!bny_msg_list_is_empty(&t->eps[r]->ready) || t->eps[r]->sent ||
                          t->eps[r]->down == 1))
            return 0;
    fd = t->drv->arm && cap > 0 ? t->drv->arm(t->port) : -1;
    if (fd < 0)
        return DP_NAP_NS;
    t->now = bny_now_ns();
    if (receive(t, t->port, NULL) > 0) /* they came before, and cause no event */
        return 0;
    fds[(*nfds)++] = fd;
    return sleep_ns(t);
}

void bny_dgram_disarm(struct bny_tp *tp)
{
    struct dp_tp *t = (struct dp_tp *)tp;

    if (t->drv->disarm)
        t->drv->disarm(t->port);
}

int bny_dgram_farewell(struct bny_tp *tp)
{
    struct dp_tp *t = (struct dp_tp *)tp;
    int rc = 0;

    t->now = bny_now_ns();
    for (int r = 0; r < tp->nranks; r++) {
        struct dp_ep *e = t->eps[r];

        if (!e || e->down || (!e->port_is_own && !e->used && !e->rx.cum))
            continue;
        if (bny_dgram_bye(e) == BNY_AGAIN)
            rc = BNY_AGAIN;
        else if (e->bye == 1 && !e->down && (!e->left || t->now - e->left_ns < DP_LINGER_NS))
            rc = BNY_AGAIN; /* our goodbye, and the answer to the peer's, may both be lost */
    }
    return rc;
}
