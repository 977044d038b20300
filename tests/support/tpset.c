/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of one transport in one process; see tpset.h. */
#include "tests/support/key.h"
#include "tests/support/tpset.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"

#ifdef BNY_HAVE_VERBS
#include "tests/support/verbs_sim.h"
#endif

static const uint8_t secret[32] = "a secret of the tests, 32 bytes";

/* BANYAN_TEST_IFNAMES=a,b: interfaces for the ranks by turns (a machine with a real device);
 * a+c,b+d: two for each. Else verbs runs over a simulated device, over two with
 * BANYAN_TEST_RAILS=2. Returns text that the next call overwrites. */
static const char *choose_device(const struct bny_transport_ops *ops, int rank)
{
    const char *names = getenv("BANYAN_TEST_IFNAMES"),
               *comma = names ? strchr(names, ',') : NULL;
    static char first[64];

    if (strcmp(ops->name, "verbs") != 0 && strcmp(ops->name, "ud") != 0)
        return "";
    set_key("BANYAN_VERBS=rnr",
            "0"); /* a receiver that is not ready is a mistake in the credits */
    if (comma) {
        if (rank & 1)
            snprintf(first, sizeof first, "%s", comma + 1);
        else
            snprintf(first, sizeof first, "%.*s", (int)(comma - names), names);
        for (char *p = first; *p; p++)
            *p = *p == '+' ? ',' : *p;
        return first;
    }
#ifdef BNY_HAVE_VERBS
    if (rank == 0)
        verbs_sim_use();
    if (getenv("BANYAN_TEST_REORDERS"))
        verbs_sim.reorders = 1;
    if (getenv("BANYAN_TEST_LOSSY")) {
        verbs_sim.ud_loss = verbs_sim.ud_double = 0.05;
        verbs_sim.ud_late = 0.2;
        verbs_sim.seed = strtoull(getenv("BANYAN_TEST_LOSSY"), NULL, 0);
    }
    if (getenv("BANYAN_TEST_SRD")) {
        verbs_sim.srd = verbs_sim.link_ib = 1;
        verbs_sim.ud_late = 0.5;
        verbs_sim.gids[0] = (struct verbs_sim_gid){ .raw = { 0xfe, 0x80, [15] = 7 } };
    }
    if (getenv("BANYAN_TEST_SMALL")) { /* the smallest device that serves */
        verbs_sim.max_send_wr = 64;
        verbs_sim.max_cqe = 128;
        verbs_sim.max_sge = 1;
        verbs_sim.max_inline = UINT32_MAX;
    }
    if (getenv("BANYAN_TEST_RAILS"))
        verbs_sim.devices = atoi(getenv("BANYAN_TEST_RAILS"));
    if (verbs_sim.unnamed)
        return "";
    if (verbs_sim.devices > 1) {
        first[0] = 0;
        for (int i = 0; i < (rank & 1 && verbs_sim.uneven ? 1 : verbs_sim.devices); i++)
            snprintf(first + strlen(first), sizeof first - strlen(first), "%ssim%d",
                     i ? "," : "", i);
        return first;
    }
#endif
    return "lo";
}

void tpset_open(struct tpset *s, const struct bny_transport_ops *ops, int n,
                const struct bny_loop_faults *faults)
{
    memset(s, 0, sizeof *s);
    s->ops = ops;
    s->n = n;
    if (!strcmp(ops->name, "loop"))
        s->fabric = bny_loop_fabric_create(n, faults);
    for (int r = 0; r < n; r++) {
        struct bny_tp_config cfg = { .rank = r,
                                     .nranks = n,
                                     .nlocal = n,
                                     .secret = secret,
                                     .ifname = choose_device(ops, r),
                                     .port_range = "",
                                     .fabric = s->fabric };
        int rc = ops->create(&s->tp[r], &cfg);

        if (rc == -BANYAN_ENOTSUP && r == 0)
            cr_skip_test("%s: %s", ops->name, banyan_last_error());
        cr_assert_eq(rc, 0, "%s create: %s", ops->name, banyan_last_error());
        s->events[r] = calloc(TPSET_EVENTS, sizeof *s->events[r]);
        s->blob_len[r] = ops->address(s->tp[r], s->blob[r], BNY_ADDR_MAX);
        cr_assert_gt(s->blob_len[r], 0, "%s address: %s", ops->name, banyan_last_error());
    }
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            if (a == b)
                continue;
            cr_assert_eq(ops->reachable(s->tp[a], b, s->blob[b], (size_t)s->blob_len[b]), 1,
                         "%s: rank %d does not reach %d", ops->name, a, b);
            cr_assert_eq(
                ops->connect(s->tp[a], b, s->blob[b], (size_t)s->blob_len[b], &s->ep[a][b]), 0,
                "%s connect: %s", ops->name, banyan_last_error());
        }
}

struct bny_tp *tpset_another(struct tpset *s, int rank, const char *port_range)
{
    struct bny_tp_config cfg = { .rank = rank,
                                 .nranks = s->n,
                                 .nlocal = s->n,
                                 .secret = secret,
                                 .ifname = choose_device(s->ops, rank),
                                 .port_range = port_range };
    struct bny_tp *tp;

    return s->ops->create(&tp, &cfg) == 0 ? tp : NULL;
}

void tpset_destroy_rank(struct tpset *s, int rank)
{
    if (s->tp[rank])
        s->ops->destroy(s->tp[rank]);
    s->tp[rank] = NULL;
}

void tpset_close(struct tpset *s)
{
    for (int r = 0; r < s->n; r++) {
        tpset_destroy_rank(s, r);
        free(s->events[r]);
    }
    bny_loop_fabric_destroy(s->fabric);
}

static void tell_lack(struct tpset *s)
{
    if (s->lacked++)
        return;
    snprintf(s->lack_why, sizeof s->lack_why, "%s", banyan_last_error());
    for (int r = 0; r < s->n; r++)
        if (s->tp[r])
            s->events[r][s->nevents[r]++] = (struct bny_event){ .kind = BNY_EV_DOWN,
                                                                .ep = s->ep[r][r ? 0 : 1],
                                                                .reason = s->lack_why };
}

static void take(struct tpset *s, int rank, const struct bny_event *ev, int n)
{
    if (s->lack_is_down && (n == -BANYAN_ENOMEM || n == -BANYAN_ESYSTEM)) {
        tell_lack(s);
        return;
    }
    cr_assert_geq(n, 0, "%s: rank %d: poll: %s", s->ops->name, rank, banyan_last_error());
    for (int i = 0; i < n; i++) {
        if (s->sink && s->sink(s, rank, &ev[i]))
            continue;
        cr_assert_lt(s->nevents[rank], TPSET_EVENTS, "the test's event queue is full");
        s->events[rank][s->nevents[rank]++] = ev[i];
    }
}

void tpset_step(struct tpset *s)
{
    struct bny_event ev[8];

    s->steps++;
    for (int r = 0; r < s->n; r++) {
        if (!s->tp[r] || s->paused[r])
            continue;
        take(s, r, ev, s->ops->poll(s->tp[r], ev, 1 + (int)(s->steps % 8)));
        for (int p = 0; p < s->n && s->steps % 3 == 0; p++)
            if (s->ep[r][p])
                take(s, r, ev, s->ops->poll_ep(s->ep[r][p], ev, 2));
    }
}

int tpset_count(const struct tpset *s, int rank, enum bny_event_kind kind)
{
    int count = 0;

    for (int i = 0; i < s->nevents[rank]; i++)
        count += s->events[rank][i].kind == kind;
    return count;
}

struct bny_event tpset_wait(struct tpset *s, int rank, enum bny_event_kind kind)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    struct bny_event ev;
    int i;

    while (tpset_count(s, rank, kind) == 0) {
        cr_assert(!bny_deadline_passed(deadline), "%s: no event of kind %d at rank %d",
                  s->ops->name, kind, rank);
        tpset_step(s);
    }
    for (i = 0; s->events[rank][i].kind != kind; i++)
        continue;
    ev = s->events[rank][i];
    s->nevents[rank]--;
    memmove(&s->events[rank][i], &s->events[rank][i + 1],
            (size_t)(s->nevents[rank] - i) * sizeof ev);
    return ev;
}

/* One more turn of a retry loop: 1 when rc says to try again. */
static int retry(struct tpset *s, int rc, uint64_t deadline, const char *what)
{
    if (rc == 0)
        return 0;
    cr_assert_eq(rc, BNY_AGAIN, "%s %s: %s", s->ops->name, what, banyan_last_error());
    cr_assert(!bny_deadline_passed(deadline), "%s %s: BNY_AGAIN for ever", s->ops->name, what);
    tpset_step(s);
    return 1;
}

void tpset_eager(struct tpset *s, int from, int to, const struct bny_hdr *hdr, const void *buf)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    while (retry(s, s->ops->eager(s->ep[from][to], hdr, buf), deadline, "eager"))
        continue;
}

void tpset_send(struct tpset *s, int from, int to, const struct bny_hdr *hdr, const void *buf,
                void *cookie)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    while (retry(s, s->ops->send(s->ep[from][to], hdr, buf, cookie), deadline, "send"))
        continue;
}

void tpset_reserve(struct tpset *s, int from, int to, uint32_t cap, struct bny_slot *slot)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    while (retry(s, s->ops->reserve(s->ep[from][to], cap, slot), deadline, "reserve"))
        continue;
    cr_assert_geq(slot->cap, cap);
}

void tpset_read(struct tpset *s, const struct bny_msg *msg, uint8_t *buf, uint32_t piece,
                int to_dst)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    uint32_t off = 0, total = msg->hdr.len;

    if (msg->data && total)
        memcpy(buf, msg->data, total);
    while (!msg->data && off < total) {
        uint32_t len = total - off < piece ? total - off : piece;
        const void *ptr = NULL;
        long n = s->ops->view((struct bny_msg *)msg, off, len, to_dst ? buf + off : NULL, &ptr);

        if (n == BNY_AGAIN) {
            cr_assert(!bny_deadline_passed(deadline), "%s view: BNY_AGAIN for ever",
                      s->ops->name);
            tpset_step(s);
            continue;
        }
        cr_assert(n > 0 && n <= (long)len, "%s view: %ld of %u: %s", s->ops->name, n, len,
                  banyan_last_error());
        cr_assert(n % 64 == 0 || n == (long)len, "%s view: %ld of %u", s->ops->name, n, len);
        if (to_dst)
            cr_assert_eq(ptr, (const void *)(buf + off));
        else
            memcpy(buf + off, ptr, (size_t)n);
        off += (uint32_t)n;
    }
}

struct bny_hdr tpset_hdr(int chan, uint32_t seq, uint32_t len)
{
    return (struct bny_hdr){ .comm = 7,
                             .seq = seq,
                             .step = (uint16_t)~seq,
                             .kind = BNY_MSG_DATA,
                             .chan = (uint8_t)chan,
                             .chunk = seq * 3,
                             .len = len,
                             .codec_len_raw = len,
                             .sig.count = len };
}

static uint64_t pattern_seed(int from, int to, uint32_t seq)
{
    return (uint64_t)seq * 1000003u + (uint64_t)(from * 64 + to);
}

void tpset_fill(uint8_t *buf, uint32_t len, int from, int to, uint32_t seq)
{
    uint64_t state = pattern_seed(from, to, seq);

    for (uint32_t i = 0; i < len; i += 8) {
        uint64_t v = bny_rng_next(&state);

        memcpy(buf + i, &v, len - i < 8 ? len - i : 8);
    }
}

long tpset_check(const uint8_t *buf, uint32_t len, int from, int to, uint32_t seq)
{
    uint64_t state = pattern_seed(from, to, seq);

    for (uint32_t i = 0; i < len; i += 8) {
        uint64_t v = bny_rng_next(&state);

        if (memcmp(buf + i, &v, len - i < 8 ? len - i : 8) != 0)
            return (long)i;
    }
    return -1;
}
