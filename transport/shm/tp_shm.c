/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared-memory transport: creation, addresses, endpoints, sleeping, and the table. shm_path.c
 * has the data path, shm_link.c sockets, shm_mem.c arenas and windows; shm_impl.h explains a
 * segment. */
#include "transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/filesize.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/shm/shm_impl.h"
#include "transport/shm/shm_tune.h"

/* Longest useful sleep: the cost of a missed doorbell (see bny_shm_post). */
#define SLEEP_NS 1000000u

/* The transports of this process. Each change is one store, so that a child of fork finds a
 * list. */
static struct bny_lock live_lock = BNY_LOCK(NULL);
static struct shm_tp *live;

static void live_add(struct shm_tp *tp)
{
    bny_lock_take(&live_lock);
    tp->next_live = live;
    live = tp;
    bny_lock_give(&live_lock);
}

static void live_remove(const struct shm_tp *tp)
{
    bny_lock_take(&live_lock);
    for (struct shm_tp **at = &live; *at; at = &(*at)->next_live)
        if (*at == tp) {
            *at = tp->next_live;
            break;
        }
    bny_lock_give(&live_lock);
}

/* First bytes of a small file, NUL-terminated, without the newline; "" if it cannot be read. */
static void read_line(const char *path, char *buf, size_t cap)
{
    int fd = bny_fd_high(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t n = fd >= 0 ? read(fd, buf, cap - 1) : -1;

    if (fd >= 0)
        close(fd);
    buf[n > 0 ? n : 0] = '\0';
    buf[strcspn(buf, "\n")] = '\0';
}

/* May other processes of this user read our memory? If Yama restricts ptrace, only root may. A
 * peer's own probe decides. */
static int may_be_read(void)
{
    char scope[8];

    if (!bny_param_int("BANYAN_CMA") || prctl(PR_GET_DUMPABLE) != 1)
        return 0;
    read_line("/proc/sys/kernel/yama/ptrace_scope", scope, sizeof scope);
    return scope[0] == '\0' || scope[0] == '0' || (geteuid() == 0 && scope[0] != '3');
}

/* A hash of the attributes that the kernel compares before a process may access another one's
 * memory. If they differ, only one direction may be allowed, and a rank can test only its
 * own. */
static uint32_t rights(void)
{
    struct {
        char users[64], label[128]; /* the user namespace; AppArmor's or SELinux' */
        uint32_t permitted[2], ids[2];
        int filtered;
    } r = { .filtered = prctl(PR_GET_SECCOMP, 0, 0, 0, 0) };
    struct __user_cap_header_struct h = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct d[2] = { { 0 } };
    uint32_t hash;
    uint8_t whole[16];

    if (readlink("/proc/self/ns/user", r.users, sizeof r.users) < 0)
        r.users[0] = '\0';
    read_line("/proc/self/attr/current", r.label, sizeof r.label);
    syscall(SYS_capget, &h, d);
    if (d[0].effective >> CAP_SYS_PTRACE & 1) { /* may access all */
        r.permitted[0] = r.permitted[1] = UINT32_MAX;
    } else {
        r.permitted[0] = d[0].permitted;
        r.permitted[1] = d[1].permitted;
        r.ids[0] = getuid();
        r.ids[1] = getgid();
    }
    crypto_generichash(whole, sizeof whole, (const uint8_t *)&r, sizeof r, NULL, 0);
    memcpy(&hash, whole, sizeof hash);
    return hash;
}

static void shm_destroy(struct bny_tp *btp)
{
    struct shm_tp *tp = (struct shm_tp *)btp;

    if (!tp)
        return;
    live_remove(tp);
    bny_shm_link_destroy(tp);
    bny_shm_mem_destroy(tp);
    bny_shm_areas_destroy(tp);
    for (int r = 0; tp->peers && r < tp->base.nranks; r++)
        if (tp->peers[r]) {
            bny_shm_areas_forget(tp->peers[r]);
            bny_shm_ep_unmap(tp->peers[r]);
            bny_shm_peer_free(tp->peers[r]);
        }
    free(tp->peers);
    free(tp->eps);
    free(tp);
}

/* Total for a rank of a small job: a segment for each peer, areas of short operations. */
#define SHM_FILE_BYTES (8 << 20)

static int shm_create(struct bny_tp **out, const struct bny_tp_config *cfg)
{
    struct shm_tp *tp;
    int rc;

    *out = NULL;
    if (!bny_file_may_have(SHM_FILE_BYTES))
        return bny_fail(BANYAN_ENOTSUP, "shm: %s%s", strerror(EFBIG), bny_file_remedy(EFBIG));
    tp = calloc(1, sizeof *tp);
    if (!tp)
        return bny_fail(BANYAN_ENOMEM, "shm: no memory for the transport");
    tp->epfd = -1;
    tp->base = (struct bny_tp){ .ops = &bny_shm_ops,
                                .rank = cfg->rank,
                                .nranks = cfg->nranks,
                                .integrity = BNY_NO_WIRE,
                                .eager_max = SHM_EAGER_MAX,
                                .slot_max = SHM_SLOT_BYTES,
                                .touches = 1 };
    tp->peers = calloc((size_t)cfg->nranks, sizeof *tp->peers);
    tp->eps = calloc((size_t)cfg->nranks, sizeof *tp->eps);
    tp->secret = cfg->secret;
    tp->may_be_read = may_be_read();
    tp->rights = rights();
    if (!tp->peers || !tp->eps)
        rc = bny_fail(BANYAN_ENOMEM, "shm: no memory for %d ranks", cfg->nranks);
    else if (sodium_init() < 0)
        rc = bny_fail(BANYAN_ESYSTEM, "shm: libsodium finds no source of randomness");
    else
        rc = bny_shm_listen(tp);
    if (rc == 0)
        rc = bny_place_get(&tp->at);
    if (rc != 0) {
        shm_destroy(&tp->base);
        return rc;
    }
    live_add(tp);
    *out = &tp->base;
    return 0;
}

/* The facts that must agree for two ranks to share this transport, and our socket's name. */
static void shm_describe(struct shm_tp *tp, struct shm_blob *b)
{
    memset(b, 0, sizeof *b);
    b->magic = SHM_MAGIC;
    b->version = SHM_VERSION;
    b->at = tp->at;
    b->pid = (uint32_t)getpid();
    b->probe = (uintptr_t)tp->nonce;
    memcpy(b->nonce, tp->nonce, sizeof b->nonce);
    b->cma = (uint32_t)tp->may_be_read;
    b->rights = tp->rights;
    memcpy(b->name, tp->name, sizeof b->name);
}

static int shm_address(struct bny_tp *btp, void *blob, size_t cap)
{
    struct shm_blob b;

    if (cap < sizeof b)
        return bny_fail(BANYAN_EINVAL, "shm: an address needs %zu bytes, room is for %zu",
                        sizeof b, cap);
    shm_describe((struct shm_tp *)btp, &b);
    memcpy(blob, &b, sizeof b);
    return (int)sizeof b;
}

/* 1, with a copy of the blob, if it is a peer's on this host. */
static int shm_parse(struct shm_tp *tp, const void *blob, size_t len, struct shm_blob *b)
{
    struct shm_blob own;

    if (len != sizeof *b)
        return 0;
    memcpy(b, blob, sizeof *b);
    shm_describe(tp, &own);
    return b->magic == own.magic && b->version == own.version &&
           memcmp(&b->at, &own.at, sizeof b->at) == 0 &&
           memchr(b->name, 0, sizeof b->name) != NULL && b->name[0] != '\0';
}

static int shm_reachable(struct bny_tp *tp, int peer, const void *blob, size_t len)
{
    struct shm_blob b;

    return shm_parse((struct shm_tp *)tp, blob, len, &b);
}

/* Is it the address of another transport of this process? The address alone proves nothing, as
 * every rank sees ours. */
static int is_own(const struct shm_tp *tp, const struct shm_blob *b)
{
    int own = 0;

    if (b->pid != (uint32_t)getpid())
        return 0;
    bny_lock_take(&live_lock);
    for (const struct shm_tp *t = live; t && !own; t = t->next_live)
        own = t != tp && memcmp(t->nonce, b->nonce, sizeof t->nonce) == 0 &&
              strcmp(t->name, b->name) == 0;
    bny_lock_give(&live_lock);
    return own;
}

/* How bytes get from one rank's private memory to the other's. The nonce proves that the pid
 * names the same process here as there (pid namespaces may differ); the kernel's word about the
 * peer's connections must agree (bny_shm_ep_check). */
static enum shm_copy probe(const struct shm_tp *tp, const struct shm_blob *b)
{
    uint8_t seen[sizeof b->nonce];
    struct iovec local = { seen, sizeof seen };
    struct iovec remote = { (void *)(uintptr_t)b->probe, sizeof seen };
    int own = is_own(tp, b);

    if (b->pid == (uint32_t)getpid() && !own)
        return SHM_COPY_NONE;
    if (tp->may_be_read && b->cma && b->rights == tp->rights &&
        process_vm_readv((pid_t)b->pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof seen &&
        memcmp(seen, b->nonce, sizeof seen) == 0)
        return SHM_COPY_CMA;
    return own ? SHM_COPY_DIRECT : SHM_COPY_NONE;
}

/* Smallest size that peers pull: this host's own number, looked up with the others at the first
 * peer that can pull. */
static uint32_t zcopy_min(struct shm_tp *tp)
{
    struct shm_tune t;

    if (!tp->zcopy_min) {
        bny_shm_tune(&t);
        tp->zcopy_min = bny_shm_tune_zcopy_min(&t, SHM_ZCOPY_MIN);
        tp->base.touches = (uint32_t)bny_shm_tune_touches(&t);
    }
    return tp->zcopy_min;
}

static int shm_connect(struct bny_tp *btp, int peer, const void *blob, size_t len,
                       struct bny_ep **out)
{
    struct shm_tp *tp = (struct shm_tp *)btp;
    struct shm_blob b;
    struct shm_ep *ep;

    *out = NULL;
    if (peer < 0 || peer >= btp->nranks || !shm_parse(tp, blob, len, &b))
        return bny_fail(BANYAN_EINVAL, "shm: rank %d's address is not one of this host", peer);
    ep = bny_shm_peer(tp, peer);
    if (!ep)
        return bny_fail(BANYAN_ENOMEM, "shm: no memory for the endpoint of rank %d", peer);
    *out = &ep->base;
    if (ep->opened)
        return 0;
    memcpy(ep->name, b.name, sizeof ep->name);
    ep->card_pid = (pid_t)b.pid;
    ep->copy = (uint8_t)probe(tp, &b);
    if (ep->in) /* its hello came first */
        bny_shm_ep_check(ep, ep->pid);
    if (!ep->pid)
        ep->pid = (pid_t)b.pid;
    ep->base.zcopy_min = ep->copy == SHM_COPY_NONE ? UINT32_MAX : zcopy_min(tp);
    if (ep->copy == SHM_COPY_NONE)
        bny_info(
            "shm: no single copy between this rank and rank %d (ptrace rules, other namespaces "
            "or capabilities, or BANYAN_CMA=0)",
            peer);
    ep->opened = 1;
    bny_shm_enlist(ep);
    tp->period_ns = 0; /* its connection may be waiting */
    return 0;
}

static int shm_farewell(struct bny_tp *btp)
{
    struct shm_tp *tp = (struct shm_tp *)btp;

    bny_shm_service(tp); /* a later connection is refused, which is not a death either */
    for (int r = 0; r < btp->nranks; r++) {
        struct shm_ep *ep = tp->peers[r];

        if (ep && ep->out)
            atomic_store_explicit(&ep->out->tx_left, 1, memory_order_release);
        if (ep && ep->in)
            atomic_store_explicit(&ep->in->rx_left, 1, memory_order_release);
    }
    return 0;
}

/* Peers that see the flags ring; if a peer sees a flag too late it costs us SLEEP_NS. */
static void set_sleeping(struct shm_tp *tp, uint32_t value)
{
    for (int i = 0; i < tp->neps; i++) {
        if (tp->eps[i]->in)
            atomic_store_explicit(&tp->eps[i]->in->rx_sleeping, value, memory_order_relaxed);
        if (tp->eps[i]->out)
            atomic_store_explicit(&tp->eps[i]->out->tx_sleeping, value, memory_order_relaxed);
    }
    atomic_thread_fence(memory_order_seq_cst);
}

static uint64_t shm_arm(struct bny_tp *btp, int *fds, int cap, int *nfds)
{
    struct shm_tp *tp = (struct shm_tp *)btp;

    *nfds = 0;
    set_sleeping(tp, 1);
    for (int i = 0; i < tp->neps; i++)
        if (bny_shm_ready(tp->eps[i]))
            return 0;
    if (cap > 0)
        fds[(*nfds)++] = tp->epfd;
    return SLEEP_NS;
}

static void shm_disarm(struct bny_tp *btp)
{
    struct shm_tp *tp = (struct shm_tp *)btp;

    set_sleeping(tp, 0);
    bny_shm_service(tp); /* consumes the doorbells, so that the next sleep is a real one */
}

static const struct bny_shared_memory shared_memory = {
    .mem_register = bny_shm_mem_register,
    .mem_deregister = bny_shm_mem_deregister,
    .is_shared = bny_shm_mem_is_shared,
    .map = bny_shm_put_map,
    .unmap = bny_shm_put_unmap,
    .store = bny_shm_window_store,
    .area_make = bny_shm_area_make,
    .area_tell = bny_shm_area_tell,
    .area_take = bny_shm_area_take,
    .area_give = bny_shm_area_give,
    .area_free = bny_shm_area_free,
    .area_wake = bny_shm_area_wake,
};

const struct bny_transport_ops bny_shm_ops = {
    .name = "shm",
    .caps = BNY_TP_DESC | BNY_TP_PUT | BNY_TP_LOCAL | BNY_TP_MEM,
    .shared = &shared_memory,
    .create = shm_create,
    .address = shm_address,
    .reachable = shm_reachable,
    .connect = shm_connect,
    .destroy = shm_destroy,
    .farewell = shm_farewell,
    .eager = bny_shm_eager,
    .reserve = bny_shm_reserve,
    .commit = bny_shm_commit,
    .cancel = bny_shm_cancel,
    .send = bny_shm_send,
    .window_open = bny_shm_window_open,
    .window_close = bny_shm_window_close,
    .put = bny_shm_put,
    .poll = bny_shm_poll,
    .poll_ep = bny_shm_poll_ep,
    .view = bny_shm_view,
    .release = bny_shm_release,
    .arm = shm_arm,
    .disarm = shm_disarm,
    .mem_alloc = bny_shm_mem_alloc,
    .mem_free = bny_shm_mem_free,
};
