/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of a lane that the kernel has and the peer's kernel has not acknowledged: they must
 * be sent again if the connection is lost. Messages still in the ring are not copied; bytes
 * written past the ring, and those of released messages, are kept here, in blocks that
 * acknowledgements free. */
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/assert.h"
#include "transport/tcp/tcp.h"

#define ASK_BLOCKS 4  /* blocks kept before the kernel is queried again */
#define FREE_MAX   64 /* free blocks that a transport holds */

_Static_assert(sizeof(struct tcp_kept) + TCP_KEPT_BYTES == 16384, "a block");
_Static_assert(sizeof(struct tcp_kept) + TCP_LITTLE_BYTES == 1024, "a little one");

static void drop_first(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;
    struct tcp_kept *k = c->kept;

    c->kept = k->next;
    c->nkept--;
    if (k == c->little)
        return;
    if (t->nfree_kept == FREE_MAX) {
        free(k);
        return;
    }
    t->nfree_kept++;
    k->next = t->free_kept;
    t->free_kept = k;
}

void bny_tcp_drop_kept(struct tcp_conn *c)
{
    while (c->kept)
        drop_first(c);
}

void bny_tcp_acked(struct tcp_conn *c, uint64_t at)
{
    if (at <= c->acked)
        return;
    c->acked = at;
    while (c->kept && c->kept->from + c->kept->len <= at)
        drop_first(c);
    c->ask_at = c->nkept + ASK_BLOCKS;
}

/* The socket's count includes the proof of the handshake: then it reports less than was
 * acknowledged. */
void bny_tcp_ask_acked(struct tcp_conn *c)
{
    int unacked = 0;

    if (c->state != TCP_OPEN || ioctl(c->fd, SIOCOUTQ, &unacked) != 0 || unacked < 0 ||
        (uint64_t)unacked > c->pos)
        return;
    bny_tcp_acked(c, c->pos - (uint64_t)unacked);
}

static uint64_t room_in_newest(const struct tcp_conn *c)
{
    return c->kept ? c->newest->room - c->newest->len : 0;
}

static struct tcp_kept *block_new(uint32_t room)
{
    struct tcp_kept *k = malloc(sizeof *k + room);

    if (k)
        k->room = room;
    return k;
}

static int make_ready(struct tcp_tp *t, uint64_t blocks)
{
    while (t->nfree_kept < blocks) {
        struct tcp_kept *k = block_new(TCP_KEPT_BYTES);

        if (!k)
            return -1;
        k->next = t->free_kept;
        t->free_kept = k;
        t->nfree_kept++;
    }
    return 0;
}

/* A large job sends little to most of its ranks. */
static int fits_little(struct tcp_conn *c, uint64_t len)
{
    if (c->kept || len > TCP_LITTLE_BYTES)
        return 0;
    if (!c->little)
        c->little = block_new(TCP_LITTLE_BYTES);
    return c->little != NULL;
}

/* Allocates the blocks that it needs, so that bny_tcp_keep cannot fail. */
int bny_tcp_may_keep(struct tcp_conn *c, uint64_t len)
{
    uint64_t blocks;

    if (len <= room_in_newest(c))
        return 1;
    /* Before more memory is taken: idle lanes are not queried otherwise. */
    if (c->nkept >= c->ask_at || (c->nkept && (!c->tp->free_kept || c->newest == c->little))) {
        c->ask_at = c->nkept + ASK_BLOCKS;
        bny_tcp_ask_acked(c);
    }
    if (len <= room_in_newest(c) || fits_little(c, len))
        return 1;
    blocks = (len - room_in_newest(c) + TCP_KEPT_BYTES - 1) / TCP_KEPT_BYTES;
    return c->nkept + blocks <= TCP_KEPT_MAX && make_ready(c->tp, blocks) == 0;
}

static void add_block(struct tcp_conn *c)
{
    struct tcp_kept *k = c->kept ? NULL : c->little;

    if (!k) {
        k = c->tp->free_kept;
        BNY_ASSERT(k);
        c->tp->free_kept = k->next;
        c->tp->nfree_kept--;
    }
    k->next = NULL;
    k->from = c->held_from;
    k->len = 0;
    if (c->kept)
        c->newest->next = k;
    else
        c->kept = k;
    c->newest = k;
    c->nkept++;
}

void bny_tcp_keep(struct tcp_conn *c, const void *data, size_t len)
{
    const uint8_t *at = data;

    if (c->acked > c->held_from) { /* nothing older is kept then */
        size_t skip = c->acked - c->held_from < len ? (size_t)(c->acked - c->held_from) : len;

        c->held_from += skip;
        at += skip;
        len -= skip;
    }
    while (len) {
        size_t n = room_in_newest(c) < len ? (size_t)room_in_newest(c) : len;

        if (n == 0) {
            add_block(c);
            continue;
        }
        memcpy(c->newest->data + c->newest->len, at, n);
        c->newest->len += (uint32_t)n;
        c->held_from += n;
        at += n;
        len -= n;
    }
}

uint8_t *bny_tcp_keep_room(struct tcp_conn *c, uint32_t len)
{
    if (room_in_newest(c) >= len)
        return c->newest->data + c->newest->len;
    if (c->nkept >= c->ask_at || c->nkept >= TCP_SEALED_MAX) {
        c->ask_at = c->nkept + ASK_BLOCKS;
        bny_tcp_ask_acked(c);
    }
    if (c->nkept >= TCP_SEALED_MAX || make_ready(c->tp, 1) != 0)
        return NULL;
    add_block(c);
    return c->newest->data;
}

void bny_tcp_keep_filled(struct tcp_conn *c, uint32_t len)
{
    c->newest->len += len;
    c->held_from += len;
    c->resend += len;
}

uint64_t bny_tcp_kept_iov(const struct tcp_conn *c, struct iovec *iov, int max, int *n)
{
    uint64_t at = c->held_from - c->resend, bytes = 0;

    for (struct tcp_kept *k = c->kept; k && *n < max && bytes < c->resend; k = k->next) {
        uint64_t skip = at + bytes > k->from ? at + bytes - k->from : 0;

        if (skip >= k->len)
            continue;
        iov[*n].iov_base = k->data + skip;
        iov[*n].iov_len = (size_t)(k->len - skip);
        bytes += iov[(*n)++].iov_len;
    }
    BNY_ASSERT(bytes <= c->resend);
    return bytes;
}
