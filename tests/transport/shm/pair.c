/* SPDX-License-Identifier: BSD-3-Clause */
/* See pair.h. */
#include "tests/transport/shm/pair.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

const uint8_t pair_secret[32] = "a secret of the tests' own job";

struct bny_tp *end_open(int rank, int nranks)
{
    struct bny_tp_config cfg = {
        .rank = rank, .nranks = nranks, .secret = pair_secret, .ifname = "", .port_range = ""
    };
    struct bny_tp *tp;

    cr_assert_eq(bny_shm_ops.create(&tp, &cfg), 0, "%s", banyan_last_error());
    return tp;
}

void pair_open(struct pair *p, const char *cma)
{
    uint8_t blob[2][BNY_ADDR_MAX];
    int len[2];

    setenv("BANYAN_CMA", cma, 1);
    for (int i = 0; i < 2; i++) {
        p->tp[i] = end_open(i, 2);
        len[i] = bny_shm_ops.address(p->tp[i], blob[i], sizeof blob[i]);
        cr_assert_gt(len[i], 0);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(bny_shm_ops.reachable(p->tp[i], !i, blob[!i], (size_t)len[!i]), 1);
        cr_assert_eq(bny_shm_ops.connect(p->tp[i], !i, blob[!i], (size_t)len[!i], &p->ep[i]), 0,
                     "%s", banyan_last_error());
    }
}

void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++)
        bny_shm_ops.destroy(p->tp[i]);
}

int next_event(struct bny_tp *tp, struct bny_event *ev)
{
    uint64_t deadline = bny_deadline_in(PAIR_DEADLINE_S);

    while (!bny_deadline_passed(deadline)) {
        int n = bny_shm_ops.poll(tp, ev, 1);

        cr_assert_geq(n, 0, "%s", banyan_last_error());
        if (n == 1)
            return 1;
    }
    return 0;
}

struct bny_hdr header(uint32_t len, uint32_t number)
{
    return (struct bny_hdr){
        .kind = BNY_MSG_DATA, .len = len, .codec_len_raw = len, .chunk = number
    };
}

static uint8_t byte_of(uint32_t i, uint32_t number)
{
    return (uint8_t)((number * 2654435761u >> 9) + i * 7 + (i >> 8));
}

void fill(void *buf, uint32_t len, uint32_t number)
{
    for (uint32_t i = 0; i < len; i++)
        ((uint8_t *)buf)[i] = byte_of(i, number);
}

int is_filled(const void *buf, uint32_t off, uint32_t len, uint32_t number)
{
    for (uint32_t i = 0; i < len; i++)
        if (((const uint8_t *)buf)[i] != byte_of(off + i, number))
            return 0;
    return 1;
}
