/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather of peer infos: public functions. gather.h describes the protocol. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/wire_pack.h"

#define MS 1000000u
/* How long a failure waits for an unresponsive root that must receive it. */
#define TELL_SILENT_NS (5000ull * MS)
#define ABORT_NOW_NS   (100ull * MS)

int gather_fail(struct bny_bootstrap *b, enum banyan_error code, const char *fmt, ...)
{
    va_list ap;

    if (b->error)
        return b->error;
    va_start(ap, fmt);
    bny_vsnprintf(b->text, sizeof b->text, fmt, ap);
    va_end(ap);
    b->error = -(int)code;
    return b->error;
}

int gather_word_due(struct bny_bootstrap *b)
{
    static const uint64_t after_ns[] = { 5000000000u, 15000000000u };

    if (b->words == sizeof after_ns / sizeof after_ns[0] ||
        bny_now_ns() - b->start_ns < after_ns[b->words])
        return 0;
    b->words++;
    return 1;
}

int gather_strange(struct gather_strange *s, const struct bny_conn *c, uint64_t patience_ns)
{
    uint64_t now = bny_now_ns();

    if (!s->times)
        s->first_ns = now;
    s->times += s->times < GATHER_STRANGE_TIMES;
    if (s->times < GATHER_STRANGE_TIMES || now - s->first_ns < patience_ns)
        return 0;
    s->times = 0; /* the kernel is asked at intervals, whatever the number of attempts */
    return !(c->client ? c->others : bny_conn_is_another_users(c));
}

const char *gather_strange_remedy(const struct bny_id *id)
{
    if (id->key_from == BNY_KEY_COOKIE)
        return "copy ~/.banyan-cookie of rank 0's host to the home on every host (mode 600), "
               "or "
               "set BANYAN_SECRET or BANYAN_SECRET_FILE alike on all ranks";
    if (id->key_from == BNY_KEY_WORDS)
        return "set BANYAN_INSECURE=1 on all ranks or on none";
    return "set BANYAN_SECRET or BANYAN_SECRET_FILE alike on all ranks";
}

/* ---- public ---- */

static int check_args(const struct bny_id *id, int nranks, int rank, size_t info_bytes)
{
    if (nranks < 1)
        return bny_fail(BANYAN_EINVAL, "a job has at least one rank, not %d", nranks);
    if (rank < 0 || rank >= nranks)
        return bny_fail(BANYAN_EINVAL, "rank %d is out of range: this job has ranks 0 to %d",
                        rank, nranks - 1);
    if (info_bytes < 1 || info_bytes > BNY_PEER_INFO_MAX)
        return bny_fail(BANYAN_EINVAL, "rank %d: a peer info has 1 to %d bytes, not %zu", rank,
                        BNY_PEER_INFO_MAX, info_bytes);
    if (nranks > 1 && bny_id_check(id) != 0)
        return -BANYAN_EINVAL;
    if (nranks > 1 && !id->port)
        return bny_fail(BANYAN_EINVAL,
                        "rank %d of %d: the id names no root; make it with banyan_id_create "
                        "in the process of rank 0",
                        rank, nranks);
    return 0;
}

static int allgather_start(struct bny_bootstrap **out, const struct bny_id *id, int nranks,
                           int rank, const void *info, size_t info_bytes,
                           enum bny_conn_purpose purpose, const char *ifname,
                           const char *port_range, uint64_t deadline_ns)
{
    struct bny_bootstrap *b;
    int rc, fd;

    *out = NULL;
    rc = check_args(id, nranks, rank, info_bytes);
    if (rc == 0)
        rc = bny_id_sodium();
    if (rc != 0)
        return rc;
    b = calloc(1, sizeof *b);
    if (!b)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the bootstrap", rank);
    if (id) {
        b->id = *id;
        b->listening = bny_id_first_use(id) && id->listening;
    }
    b->nranks = nranks;
    b->rank = rank;
    b->info_bytes = info_bytes;
    b->start_ns = bny_now_ns();
    b->deadline_ns = deadline_ns;
    b->below.listen_fd = b->below.near_fd = b->epfd = -1;
    b->tree = purpose == BNY_CONN_BOOTSTRAP && nranks >= bny_param_int("BANYAN_INIT_TREE");
    if (b->tree)
        bny_near_get(&b->near, rank, nranks);
    b->table = calloc((size_t)nranks, info_bytes);
    if (!b->table) {
        rc = bny_fail(BANYAN_ENOMEM, "rank %d: no memory for %d peer infos", rank, nranks);
        goto fail;
    }
    if (info)
        bny_bootstrap_peer_info(b, info);
    bny_conn_self_init(&b->self, purpose, b->id.secret, b->id.job, rank, nranks);
    b->self.tally = &b->tally;
    if (nranks == 1) {
        fd = id ? bny_id_take_fd(id) : -1; /* no rank will connect */
        if (fd >= 0)
            close(fd);
        b->done = 1;
        *out = b;
        return 0;
    }
    b->epfd = bny_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (b->epfd < 0) {
        rc = bny_fail_errno("rank %d: epoll_create1", rank);
        goto fail;
    }
    rc = rank == 0 ? gather_root_start(b) : gather_client_start(b, ifname, port_range);
    if (rc != 0)
        goto fail;
    if (rank != 0)
        gather_client_progress(b);
    *out = b;
    return 0;
fail:
    bny_bootstrap_destroy(b);
    if (rank == 0 && (fd = bny_id_take_fd(id)) >= 0)
        close(fd); /* no rank answers there: the others need not wait */
    return rc;
}

int bny_bootstrap_start(struct bny_bootstrap **out, const struct bny_id *id, int nranks,
                        int rank, const void *info, size_t info_bytes, const char *ifname,
                        const char *port_range, uint64_t deadline_ns)
{
    return allgather_start(out, id, nranks, rank, info, info_bytes, BNY_CONN_BOOTSTRAP, ifname,
                           port_range, deadline_ns);
}

void bny_bootstrap_peer_info(struct bny_bootstrap *b, const void *info)
{
    memcpy(b->table + (size_t)b->rank * b->info_bytes, info, b->info_bytes);
    b->has_peer_info = 1;
}

/* Sends the failure to the ranks below and above. 1: sent. */
static int relay_failure(struct bny_bootstrap *b)
{
    /* The root learns of our host's ranks from us alone. */
    if (!b->client.told && (gather_client_reaches(b) || b->near.count > 1)) {
        gather_client_tell(b, b->deadline_ns, TELL_SILENT_NS);
        b->client.told = 1;
    }
    gather_look_around(b);
    return gather_tell_all(b);
}

int bny_bootstrap_progress(struct bny_bootstrap *b, void *infos)
{
    int over = b->done || b->error;

    if (b->nranks > 1 && b->rank == 0) {
        over = gather_root_progress(b);
    } else if (!over) {
        gather_client_progress(b);
        over = b->done || b->error;
    }
    if (b->error && b->rank != 0 && b->below.ranks)
        over = relay_failure(b);
    if (!over)
        return 0;
    if (b->error) {
        bny_set_last_error(b->text);
        return b->error;
    }
    if (infos && b->nranks == 1)
        memcpy(infos, b->table, b->info_bytes);
    else if (infos)
        bny_cards_unpack(infos, (size_t)b->nranks, b->info_bytes, b->packed, b->npacked);
    return 1;
}

int bny_bootstrap_peer_table(const struct bny_bootstrap *b, struct bny_peer_table *out)
{
    return bny_peer_table_open(out, b->packed, b->npacked, (size_t)b->nranks, b->info_bytes);
}

int bny_bootstrap_settle(struct bny_bootstrap *b, int ready)
{
    int over = b->settled || b->nranks == 1;

    if (!over && b->rank == 0) {
        over = gather_root_settle(b, ready);
    } else if (!over) {
        if (!b->error)
            gather_client_settle(b, ready);
        over = b->settled || b->error;
    }
    if (b->error && b->rank != 0 && b->below.ranks)
        over = relay_failure(b);
    if (!over)
        return 0;
    if (b->error)
        bny_set_last_error(b->text);
    return b->error ? b->error : 1;
}

void bny_bootstrap_abort(struct bny_bootstrap *b, enum banyan_error code, const char *text)
{
    struct gather_client *k = &b->client;

    if (b->nranks == 1 || b->settled || k->told)
        return;
    if (b->rank == 0 && !b->error) { /* else all know of it */
        gather_fail(b, code, "%s", text);
        while (!gather_root_tell(b)) {
            struct pollfd p = { .fd = b->epfd, .events = POLLIN };

            poll(&p, 1, 20);
        }
    } else if (b->rank != 0 && (!b->error || gather_client_reaches(b))) {
        gather_fail(b, code, "%s", text);
        if (b->below.ranks)
            gather_tell_all(b);
        gather_client_tell(b, b->deadline_ns, TELL_SILENT_NS);
    }
    k->told = 1;
}

void bny_bootstrap_abort_now(struct bny_bootstrap *b, enum banyan_error code, const char *text)
{
    if (b->rank == 0 && !b->below.linger_until)
        b->below.linger_until = bny_now_ns() + ABORT_NOW_NS;
    bny_bootstrap_abort(b, code, text);
}

void bny_bootstrap_report(const struct bny_id *id, int nranks, int rank, enum banyan_error code,
                          const char *text, uint64_t deadline_ns)
{
    struct bny_bootstrap *b;

    /* For another rank the root listens. */
    if (rank == 0 || allgather_start(&b, id, nranks, rank, NULL, 1, BNY_CONN_ABORT, "", "",
                                     deadline_ns) != 0)
        return;
    gather_fail(b, code, "%s", text);
    gather_client_tell(b, deadline_ns, UINT64_MAX);
    bny_bootstrap_destroy(b);
}

int bny_bootstrap_fds(struct bny_bootstrap *b, int *fds, int cap)
{
    if (b->epfd < 0 || cap < 1)
        return 0;
    fds[0] = b->epfd; /* readable when any of the sockets is ready */
    return 1;
}

void bny_bootstrap_destroy(struct bny_bootstrap *b)
{
    if (!b)
        return;
    gather_below_finish(b);
    gather_client_finish(b);
    free(b->packed);
    if (b->epfd >= 0)
        bny_fd_close(b->epfd);
    free(b->table);
    sodium_memzero(b, sizeof *b);
    free(b);
}
