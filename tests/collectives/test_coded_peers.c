/* SPDX-License-Identifier: BSD-3-Clause */
/* A peer that lies about a coded chunk, or encodes in another way, is named, and spoils
 * nothing. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "compress/linear.h"
#include "tests/collectives/coded_rig.h"

/* Spoils one encoded chunk on its way from rank 1 to rank 0. 1: done. */
static int spoil(struct rig *g, enum lie lie, uint32_t chunk)
{
    for (struct bny_loop_packet *p = bny_loop_link(g->fabric, 1, 0)->head; p; p = p->next) {
        struct bny_hdr *h = p->out ? &p->out->hdr : NULL;
        unsigned char *bytes = p->out ? p->out->copy : NULL;
        if (!h || !bytes || h->kind != BNY_MSG_DATA || h->len <= sizeof(struct bny_coded_hdr) ||
            h->chunk != chunk)
            continue;
        switch (lie) {
        case FLIP_PAYLOAD:
            bytes[sizeof(struct bny_coded_hdr) +
                  bny_rng_below(&g->rng, h->len - sizeof(struct bny_coded_hdr))] ^=
                (unsigned char)(1 << bny_rng_below(&g->rng, 8));
            break;
        case FLIP_HEADER:
            bytes[bny_rng_below(&g->rng, sizeof(struct bny_coded_hdr))] ^=
                (unsigned char)(1 << bny_rng_below(&g->rng, 8));
            break;
        case TRUNCATE: h->len = (uint32_t)bny_rng_below(&g->rng, h->len); break;
        default:
            for (uint32_t i = sizeof(struct bny_coded_hdr); i < h->len; i++)
                bytes[i] = (unsigned char)bny_rng_next(&g->rng);
        }
        return 1;
    }
    return 0;
}

/* The chunk's place in rank 0's output is as it was. */
static void check_untouched(struct rig *g, uint32_t chunk, size_t elems, const char *what)
{
    const unsigned char *at = (const unsigned char *)(g->out[0] + chunk * elems);

    for (size_t i = 0; i < 4 * elems; i++)
        cr_assert_eq(at[i], 0x55, "%s: byte %zu of the chunk was written", what, i);
}

int coded_lie(const struct bny_codec_ops *codec, const char *schedule, enum lie lie, int crc,
              int round)
{
    enum { ELEMS = 1024 };
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t chunk = (uint32_t)round % 3;
    struct rig g;
    char what[100];
    int d = 0, rc = 0, lied = 0;

    snprintf(what, sizeof what, "%s, %s, lie %d, crc %d, round %d", codec->name, schedule,
             (int)lie, crc, round);
    setenv("BANYAN_CODEC_CRC", crc ? "1" : "0", 1);
    rig_open(&g, 2, 8 * ELEMS, NULL);
    unsetenv("BANYAN_CODEC_CRC");
    g.rng += (uint64_t)round * 77;
    fill(&g);
    memset(g.out[0], 0x55, 4 * g.count);
    o.codec = codec->name;
    o.chunk_bytes = 4 * ELEMS;
    o.schedule = schedule;
    for (int r = 0; r < 2; r++) {
        o.codec_state = codec->flags & BNY_CODEC_FEEDBACK ? g.state[r] : NULL;
        cr_assert_eq(banyan_allreduce_init(g.in[r], g.out[r], g.count, BANYAN_F32, BANYAN_SUM,
                                           g.comm[r], &o, &g.req[r]),
                     0, "%s: %s", what, banyan_last_error());
        cr_assert_eq(banyan_start(g.req[r]), 0);
    }
    for (int turn = 0; turn < 20000 && !d; turn++) {
        banyan_progress(g.comm[1]);
        lied = lied || spoil(&g, lie, chunk);
        rc = banyan_test(g.req[0], &d);
    }
    cr_assert(d, "%s: rank 0 does not end", what);
    cr_assert(rc == 0 || rc == -BANYAN_EPROTO || rc == -BANYAN_EMISMATCH, "%s: %d, %s", what,
              rc, banyan_last_error());
    if (lied && (crc || lie == TRUNCATE))
        cr_assert_neq(rc, 0, "%s: nobody noticed", what);
    if (rc == -BANYAN_EPROTO) {
        char name[40];
        unsigned bad = 99;
        cr_assert(strstr(banyan_last_error(), "rank 1"), "%s: %s", what, banyan_last_error());
        if (sscanf(banyan_last_error(), "%39[a-z]: chunk %u of ", name, &bad) == 2)
            cr_assert_eq(bad, chunk, "%s: %s", what, banyan_last_error());
        else /* a length that cannot be */
            cr_assert(!strcmp(schedule, "arrival") && lie == TRUNCATE, "%s: %s", what,
                      banyan_last_error());
        check_untouched(&g, chunk, ELEMS, what);
    }
    for (int r = 0; r < 2; r++) { /* the other one is still in it */
        banyan_abort(g.comm[r], "end of test");
        for (int i = 0; i < 100; i++)
            banyan_test(g.req[r], &d);
        cr_assert_eq(banyan_request_free(g.req[r]), 0);
    }
    rig_close(&g);
    return lied;
}

Test(coded, a_lying_peer_is_named, .timeout = 200)
{
    int lied = 0, tried = 0;

    fprintf(stderr, "seed %llu\n", (unsigned long long)seed_of_run());
    for (size_t i = 0; bny_codecs[i]; i++)
        for (int lie = 0; lie < LIES && !coded_is_linear(i); lie++)
            for (int round = 0; round < 16; round++, tried++)
                lied += coded_lie(bny_codecs[i], round < 8 ? "star" : "arrival", (enum lie)lie,
                                  round & 1, round);
    cr_assert_gt(lied, tried / 2, "%d of %d lies were told", lied, tried);
}

/* Two ranks call sums that differ: each is told so, in words that have both of these. */
static void check_differ(const char *const codecs[2], const size_t counts[2],
                         const char *const words[2])
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct rig g;
    int d[2] = { 0 };

    rig_open(&g, 2, 5000, NULL);
    for (int r = 0; r < 2; r++) {
        o.codec = codecs[r];
        cr_assert_eq(banyan_allreduce_init(g.in[r], g.out[r], counts[r], BANYAN_F32, BANYAN_SUM,
                                           g.comm[r], &o, &g.req[r]),
                     0);
        cr_assert_eq(banyan_start(g.req[r]), 0);
    }
    for (int turn = 0; turn < 20000 && !(d[0] && d[1]); turn++)
        for (int r = 0; r < 2; r++) {
            int rc = d[r] ? -BANYAN_EMISMATCH : banyan_test(g.req[r], &d[r]);
            if (!d[r])
                continue;
            cr_assert_eq(rc, -BANYAN_EMISMATCH, "rank %d: %d", r, rc);
            cr_assert(strstr(banyan_last_error(), words[0]) &&
                          strstr(banyan_last_error(), words[1]),
                      "%s", banyan_last_error());
        }
    cr_assert(d[0] && d[1], "%d %d", d[0], d[1]);
    for (int r = 0; r < 2; r++)
        banyan_request_free(g.req[r]);
    rig_close(&g);
}

Test(coded, different_codecs_are_both_named)
{
    check_differ((const char *[]){ "int8:block=128", "bf16" }, (size_t[]){ 5000, 5000 },
                 (const char *[]){ "codec int8:block=128", "codec bf16" });
}

/* Their codes are of the same length, so that only the operations' own counts differ. */
Test(coded, different_counts_of_a_sketch_are_both_named)
{
    check_differ((const char *[]){ "sketch", "sketch" }, (size_t[]){ 5000, 4999 },
                 (const char *[]){ "count 5000", "count 4999" });
}
