/* SPDX-License-Identifier: BSD-3-Clause */
/* Rank 1 of 2 in a process of its own. Its address goes to stdout, its peer's comes from stdin.
 *   echo      sends every message back, each in another way, until killed
 *   putter    puts into every window that it hears of until it is closed, until killed
 *   farewell  sends one message and leaves in order
 *   slow      sends five messages with pauses, and leaves in order */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "transport/shm/shm.h"
#include "transport/shm/shm_impl.h"

static struct bny_tp *tp;
static struct bny_ep *ep;

static void check(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "worker: %s: %d %s\n", what, rc, banyan_last_error());
    exit(1);
}

static void start(void)
{
    static const uint8_t secret[32] = "a secret of the tests' own job";
    struct bny_tp_config cfg = { .rank = 1, .nranks = 2, .secret = secret };
    uint8_t blob[BNY_ADDR_MAX];
    ssize_t n;
    int len;

    check(bny_shm_ops.create(&tp, &cfg), "create");
    len = bny_shm_ops.address(tp, blob, sizeof blob);
    check(send(1, blob, (size_t)len, 0) != len, "send");
    n = recv(0, blob, sizeof blob, 0);
    check(bny_shm_ops.connect(tp, 0, blob, (size_t)n, &ep), "connect");
}

static void say(uint32_t number)
{
    struct bny_hdr h = { .kind = BNY_MSG_DATA, .len = 100, .chunk = number };
    uint8_t bytes[100];

    for (uint32_t i = 0; i < 100; i++)
        bytes[i] = (uint8_t)((number * 2654435761u >> 9) + i * 7 + (i >> 8));
    check(bny_shm_ops.eager(ep, &h, bytes), "eager");
}

/* Sends copy[len] back; takes it. BNY_AGAIN: not now. */
static int reply(const struct bny_hdr *h, uint8_t *copy)
{
    struct bny_slot slot;
    int rc;

    if (h->chunk % 3 == 0 && h->len <= ep->eager_max) {
        rc = bny_shm_ops.eager(ep, h, copy);
    } else if (h->chunk % 3 == 1 && h->len <= ep->slot_max) {
        rc = bny_shm_ops.reserve(ep, h->len, &slot);
        if (rc == 0) {
            memcpy(slot.mem, copy, h->len);
            rc = bny_shm_ops.commit(ep, &slot, h);
        }
    } else {
        return bny_shm_ops.send(ep, h, copy, copy);
    }
    if (rc == 0)
        free(copy);
    return rc;
}

static void echo(void)
{
    struct bny_msg *queue[SHM_RING];
    unsigned from = 0, n = 0; /* of the queue */

    for (;;) {
        struct bny_event ev;
        const void *ptr;

        if (n < SHM_RING && bny_shm_ops.poll(tp, &ev, 1) == 1) {
            check(ev.kind == BNY_EV_DOWN, "peer");
            if (ev.kind == BNY_EV_SENT) {
                free(ev.cookie);
                continue;
            }
            ev.msg->user = malloc(ev.msg->hdr.len + 1);
            if (ev.msg->hdr.len)
                check(bny_shm_ops.view(ev.msg, 0, ev.msg->hdr.len, ev.msg->user, &ptr) !=
                          (long)ev.msg->hdr.len,
                      "view");
            queue[(from + n++) % SHM_RING] = ev.msg;
        }
        if (n > 0) {
            struct bny_msg *m = queue[from % SHM_RING];
            int rc = reply(&m->hdr, m->user);

            if (rc == BNY_AGAIN)
                continue;
            check(rc, "reply");
            bny_shm_ops.release(m);
            from++;
            n--;
        }
    }
}

static void putter(void)
{
    static uint8_t src[4 << 20];
    struct bny_window win = { 0 };
    struct bny_event ev;

    for (;;) {
        struct bny_hdr h = { .kind = BNY_MSG_PUT, .codec_len_raw = sizeof src };
        int rc;

        if (bny_shm_ops.poll(tp, &ev, 1) == 1) {
            check(ev.kind != BNY_EV_MSG, "event");
            memcpy(&win, ev.msg->data, sizeof win);
            bny_shm_ops.release(ev.msg);
        }
        if (win.bytes == 0)
            continue;
        memset(src, src[0] + 1, sizeof src);
        rc = bny_shm_ops.put(ep, &h, src, sizeof src, &win, 0, NULL);
        if (rc == -BANYAN_EABORTED)
            win.bytes = 0;
        else if (rc != BNY_AGAIN)
            check(rc, "put");
    }
}

static void slow(void)
{
    for (uint32_t k = 0; k < 5; k++) {
        struct timespec pause = { 0, 20000000 };

        nanosleep(&pause, NULL);
        say(k);
    }
}

int main(int argc, char **argv)
{
    alarm(15); /* nothing of a test outlives it */
    start();
    if (argc == 2 && !strcmp(argv[1], "echo"))
        echo();
    if (argc == 2 && !strcmp(argv[1], "putter"))
        putter();
    if (argc == 2 && !strcmp(argv[1], "slow"))
        slow();
    else
        say(5);
    check(bny_shm_ops.farewell(tp), "farewell");
    bny_shm_ops.destroy(tp);
    return 0;
}
