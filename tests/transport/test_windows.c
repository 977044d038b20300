/* SPDX-License-Identifier: BSD-3-Clause */
/* Windows, put and transport memory, for the transports whose caps promise them. The others
 * pass at once: what they do not promise is asserted in test_conformance.c. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/tpset.h"

struct param {
    int index;
    char name[16];
};

static struct criterion_test_params with_cap(unsigned cap)
{
    static struct param params[16];
    const char *only = getenv("BANYAN_TEST_TRANSPORT");
    size_t n = 0;

    for (size_t i = 0; bny_transports[i] && n < 16; i++)
        if ((bny_transports[i]->caps & cap) &&
            !(only && strcmp(only, bny_transports[i]->name))) {
            params[n].index = (int)i;
            strcpy(params[n++].name, bny_transports[i]->name);
        }
    if (n == 0) /* Criterion wants one at least */
        params[n++].index = -1;
    return cr_make_param_array(struct param, params, n);
}

#define FOR_CAP(test, cap)                                                                     \
    ParameterizedTestParameters(windows, test)                                                 \
    {                                                                                          \
        return with_cap(cap);                                                                  \
    }                                                                                          \
    ParameterizedTest(struct param *p, windows, test, .timeout = 60)

#define SKIP_IF_NONE(p, cap)                                                                   \
    if ((p)->index < 0)                                                                        \
    cr_skip_test("no transport of this build has " #cap)

/* Devices read and write only what they know. */
static void known(struct tpset *s, int rank, void *mem, size_t bytes)
{
    if (s->ops->caps & BNY_TP_ATTACH)
        cr_assert_eq(s->ops->attach(s->tp[rank], mem, bytes), 0, "%s", banyan_last_error());
}

static void put(struct tpset *s, const struct bny_hdr *hdr, const void *src, uint32_t len,
                const struct bny_window *win, uint64_t offset, void *cookie)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    int rc;

    while ((rc = s->ops->put(s->ep[0][1], hdr, src, len, win, offset, cookie)) == BNY_AGAIN) {
        cr_assert(!bny_deadline_passed(deadline), "put answers BNY_AGAIN for ever");
        tpset_step(s);
    }
    cr_assert_eq(rc, 0, "put: %s", banyan_last_error());
}

static void close_window(struct tpset *s, struct bny_window *win)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    int rc;

    while ((rc = s->ops->window_close(s->ep[1][0], win)) == BNY_AGAIN) {
        cr_assert(!bny_deadline_passed(deadline), "close answers BNY_AGAIN for ever");
        tpset_step(s);
    }
    cr_assert_eq(rc, 0);
}

FOR_CAP(put_lands_before_its_message, BNY_TP_PUT)
{
    struct tpset s;
    struct bny_window win;
    uint32_t bytes = 1 << 20;
    uint8_t *dst = malloc(bytes + 128), *src = malloc(bytes);

    SKIP_IF_NONE(p, BNY_TP_PUT);
    tpset_open(&s, bny_transports[p->index], 2, NULL);
    memset(dst, 0xa5, bytes + 128);
    known(&s, 0, src, bytes);
    known(&s, 1, dst, bytes + 128);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst + 64, bytes, &win), 0, "%s",
                 banyan_last_error());
    cr_assert_eq(win.bytes, bytes);
    for (uint32_t seq = 0, off = 0; seq < 8; seq++, off += bytes / 8) {
        uint32_t len = bytes / 8 - (seq == 3 ? 13 : 0);
        struct bny_hdr hdr = tpset_hdr((int)seq % BNY_CHANNELS, seq, 0);
        struct bny_msg *msg;

        hdr.kind = BNY_MSG_PUT;
        hdr.codec_len_raw = len;
        tpset_fill(src, len, 0, 1, seq);
        put(&s, &hdr, src, len, &win, off, src);
        msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
        cr_assert_eq(memcmp(&msg->hdr, &hdr, sizeof hdr), 0);
        cr_assert_eq(tpset_check(dst + 64 + off, len, 0, 1, seq), -1, "put %u", seq);
        s.ops->release(msg);
        cr_assert_eq(tpset_wait(&s, 0, BNY_EV_SENT).cookie, src);
    }
    for (int i = 0; i < 64; i++)
        cr_assert(dst[i] == 0xa5 && dst[64 + bytes + (uint32_t)i] == 0xa5, "guard %d", i);
    cr_assert_eq(dst[64 + bytes / 2 - 1], 0xa5, "put wrote beyond its length");
    close_window(&s, &win);
    tpset_close(&s);
    free(dst);
    free(src);
}

FOR_CAP(put_outside_the_window_is_refused, BNY_TP_PUT)
{
    static const struct {
        uint64_t offset;
        uint32_t len;
    } bad[] = {
        { 0, 4097 }, { 4096, 1 }, { 1, 4096 }, { UINT64_MAX, 1 }, { UINT64_MAX - 3, 8 },
    };
    struct tpset s;
    struct bny_window win;
    uint8_t *dst = malloc(8192), src[8192] = { 0 };

    SKIP_IF_NONE(p, BNY_TP_PUT);
    tpset_open(&s, bny_transports[p->index], 2, NULL);
    memset(dst, 0xa5, 8192);
    known(&s, 0, src, sizeof src);
    known(&s, 1, dst, 8192);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 4096, &win), 0, "%s", banyan_last_error());
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bny_hdr hdr = tpset_hdr(0, 1, 0);
        int rc;

        hdr.kind = BNY_MSG_PUT;
        hdr.codec_len_raw = bad[i].len;
        rc = s.ops->put(s.ep[0][1], &hdr, src, bad[i].len, &win, bad[i].offset, src);
        cr_assert(rc < 0 && rc != BNY_AGAIN, "put %zu answers %d", i, rc);
    }
    for (int i = 0; i < 8192; i++)
        cr_assert_eq(dst[i], 0xa5);
    close_window(&s, &win);
    tpset_close(&s);
    free(dst);
}

static void drop_messages(struct tpset *s, int rank)
{
    while (tpset_count(s, rank, BNY_EV_MSG))
        s->ops->release(tpset_wait(s, rank, BNY_EV_MSG).msg);
}

/* Puts as long as the window takes it, and polls. */
static void put_on(struct tpset *s, const struct bny_hdr *hdr, const uint8_t *src,
                   const struct bny_window *win)
{
    for (int i = 0; i < 3; i++) {
        int rc = s->ops->put(s->ep[0][1], hdr, src, hdr->codec_len_raw, win, 0, (void *)src);

        cr_assert(rc == 0 || rc == BNY_AGAIN || rc == -BANYAN_ENOTSUP, "put: %s",
                  banyan_last_error());
    }
    tpset_step(s);
    drop_messages(s, 1);
    s->nevents[0] = 0;
}

/* Where a window's key cannot be taken back, fence() is what keeps the peer out; a peer that
 * lives and looks is not cut off for it. */
static void check_fence(const struct bny_transport_ops *ops)
{
    struct tpset s;
    struct bny_window win, next;
    uint8_t *dst = malloc(200000), *src = calloc(1, 200000);
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    uint64_t deadline;

    tpset_open(&s, ops, 2, NULL);
    hdr.kind = BNY_MSG_PUT;
    hdr.codec_len_raw = 200000;
    known(&s, 0, src, 200000);
    known(&s, 1, dst, 200000);
    for (int round = 0; round < 40; round++) {
        cr_assert_eq(ops->window_open(s.ep[1][0], dst, 200000, &win), 0);
        for (int i = 0; i < round; i++)
            put_on(&s, &hdr, src, &win);
        deadline = bny_deadline_in(TPSET_DEADLINE_S);
        ops->fence(s.ep[1][0], &win);
        while (ops->window_close(s.ep[1][0], &win) == BNY_AGAIN) {
            cr_assert(!bny_deadline_passed(deadline), "close answers BNY_AGAIN for ever");
            put_on(&s, &hdr, src, &win);
            ops->fence(s.ep[1][0], &win);
        }
        memset(dst, 0xa5, 200000);
        for (int i = 0; i < 50; i++)
            put_on(&s, &hdr, src, &win);
        for (int k = 0; k < 200000; k++)
            cr_assert_eq(dst[k], 0xa5, "a put landed after the fence");
        /* and the next operation goes on */
        cr_assert_eq(ops->window_open(s.ep[1][0], dst, 200000, &next), 0);
        put(&s, &hdr, src, 200000, &next, 0, src);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        cr_assert_eq(memcmp(dst, src, 200000), 0);
        tpset_wait(&s, 0, BNY_EV_SENT);
        close_window(&s, &next);
        cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN) + tpset_count(&s, 1, BNY_EV_DOWN), 0,
                     "a living peer was cut off");
    }
    tpset_close(&s);
    free(dst);
    free(src);
}

FOR_CAP(nothing_lands_after_close, BNY_TP_PUT)
{
    struct tpset s;
    struct bny_window win;
    uint8_t *dst = malloc(65536), *src = calloc(1, 65536);
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);

    SKIP_IF_NONE(p, BNY_TP_PUT);
    if (bny_transports[p->index]->fence) {
        check_fence(bny_transports[p->index]);
        free(dst);
        free(src);
        return;
    }
    tpset_open(&s, bny_transports[p->index], 2, NULL);
    hdr.kind = BNY_MSG_PUT;
    hdr.codec_len_raw = 65536;
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 65536, &win), 0, "%s",
                     banyan_last_error());
        s.ops->put(s.ep[0][1], &hdr, src, 65536, &win, 0, src);
        close_window(&s, &win);
        memset(dst, 0xa5, 65536);
        s.ops->put(s.ep[0][1], &hdr, src, 65536, &win, 0, src);
        for (int k = 0; k < 20; k++)
            tpset_step(&s);
        for (int k = 0; k < 65536; k++)
            cr_assert_eq(dst[k], 0xa5, "a put landed after close");
        while (tpset_count(&s, 1, BNY_EV_MSG))
            s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        s.nevents[0] = 0;
    }
    tpset_close(&s);
    free(dst);
    free(src);
}

FOR_CAP(library_memory_is_aligned_zeroed_and_travels, BNY_TP_MEM)
{
    struct tpset s;
    void *mem;
    uint8_t *dst;
    uint32_t len = 200000;
    struct bny_hdr hdr = tpset_hdr(0, 1, len);
    struct bny_msg *msg;

    SKIP_IF_NONE(p, BNY_TP_MEM);
    tpset_open(&s, bny_transports[p->index], 2, NULL);
    cr_assert_eq(s.ops->mem_alloc(s.tp[0], len, &mem), 0, "%s", banyan_last_error());
    cr_assert_eq((uintptr_t)mem % 4096, 0);
    for (uint32_t i = 0; i < len; i++)
        cr_assert_eq(((uint8_t *)mem)[i], 0);
    tpset_fill(mem, len, 0, 1, 1);
    tpset_send(&s, 0, 1, &hdr, mem, mem);
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    dst = malloc(len);
    tpset_read(&s, msg, dst, 4096, 0);
    cr_assert_eq(tpset_check(dst, len, 0, 1, 1), -1);
    s.ops->release(msg);
    tpset_wait(&s, 0, BNY_EV_SENT);
    cr_assert_eq(s.ops->mem_free(s.tp[0], mem), 0);
    free(dst);
    tpset_close(&s);
}
