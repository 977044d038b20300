/* SPDX-License-Identifier: BSD-3-Clause */
/* MSCCL XML: programs that were written are read again and proven; algorithms in the manner of
 * msccl-tools (in place, fused steps, scratch chunks) become programs; files that are wrong are
 * refused with file and line; bytes that somebody changed never do harm. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "program_sets.h"
#include "tools/msccl_write.h"

static char *text_of(struct program_set *s, size_t *len)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, len);

    cr_assert_eq(msccl_write(to, s->p, s->n), 0, "%s: %s", s->name, banyan_last_error());
    fclose(to);
    return text;
}

/* A rank's blocks sent, as shares of the whole. */
static double sent(const struct bny_program *p)
{
    double all = 0;

    for (uint32_t i = 0; i < p->nsteps; i++)
        for (uint32_t b = 0; b < p->steps[i].nblocks; b++)
            if (p->steps[i].kind == BNY_SEND || p->steps[i].kind == BNY_FORWARD)
                all += p->weight_num ? (double)p->weight_num[p->steps[i].block + b] /
                                           p->weight_den[p->steps[i].block + b]
                                     : 1.0 / p->nblocks;
    return all;
}

Test(msccl, what_is_written_is_read_again)
{
    struct program_kind kind;
    int read = 0;

    for (int k = 0; program_kind_at(k, &kind); k++) {
        if (kind.collective != BNY_ALLREDUCE && kind.collective != BNY_ALLGATHER &&
            kind.collective != BNY_REDUCE_SCATTER)
            continue;
        for (int n = 2; n <= 9; n++) {
            struct program_set s;
            struct bny_program_set back;
            size_t len;
            char *text;

            if (kind.direct >= 0 || program_set_build(&s, &kind, n, 0) != 0)
                continue;
            text = text_of(&s, &len);
            cr_assert_eq(bny_msccl_parse(&back, text, len, "memory"), 0, "%s: %s\n%s", s.name,
                         banyan_last_error(), text);
            cr_assert(back.n == n && back.collective == (enum bny_collective)kind.collective);
            for (int r = 0; r < n; r++)
                cr_assert_float_eq(sent(s.p[r]), sent(back.p[r]), 1e-9, "%s rank %d", s.name,
                                   r);
            bny_program_set_free(&back);
            program_set_free(&s);
            free(text);
            read++;
        }
    }
    cr_assert_gt(read, 100);
}

/* ---- hand-made files ---- */

/* A ring in place, as msccl-tools writes it: one tb a rank, which sends to the next and
 * receives from the one before; reduce-scatter by rrs, then rrcs and rcs for the way back. */
static char *ring_in_place(int n, size_t *len)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, len);

    fprintf(to,
            "<algo name=\"hand ring\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"%d\" "
            "ngpus=\"%d\" "
            "coll=\"allreduce\" inplace=\"1\">\n",
            n, n);
    for (int r = 0; r < n; r++) {
        int s = 0, chunk = r;

        fprintf(to,
                "<gpu id=\"%d\" i_chunks=\"%d\" o_chunks=\"0\" s_chunks=\"0\">\n"
                "<tb id=\"0\" send=\"%d\" recv=\"%d\" chan=\"0\">\n",
                r, n, (r + 1) % n, (r + n - 1) % n);
        for (; s < 2 * n - 1; s++, chunk = (chunk + n - 1) % n) {
            const char *type = s == 0          ? "s"
                               : s < n - 1     ? "rrs"
                               : s == n - 1    ? "rrcs"
                               : s < 2 * n - 2 ? "rcs"
                                               : "r";

            fprintf(to,
                    "<step s=\"%d\" type=\"%s\" srcbuf=\"i\" srcoff=\"%d\" dstbuf=\"i\" "
                    "dstoff=\"%d\" cnt=\"1\" "
                    "depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>\n",
                    s, type, chunk, chunk);
        }
        fputs("</tb></gpu>\n", to);
    }
    fputs("</algo>\n", to);
    fclose(to);
    return text;
}

Test(msccl, a_ring_in_place_is_proven)
{
    for (int n = 2; n <= 16; n++) {
        struct bny_program_set set;
        size_t len;
        char *text = ring_in_place(n, &len);

        cr_assert_eq(bny_msccl_parse(&set, text, len, "ring.xml"), 0, "n=%d: %s\n%s", n,
                     banyan_last_error(), text);
        for (int r = 0; r < n; r++)
            cr_assert_float_eq(sent(set.p[r]), 2.0 * (n - 1) / n, 1e-9);
        bny_program_set_free(&set);
        free(text);
    }
}

#define GPU(id, i, o, s)                                                                       \
    "<gpu id=\"" #id "\" i_chunks=\"" #i "\" o_chunks=\"" #o "\" s_chunks=\"" #s "\">"
#define TB(id, send, recv)                                                                     \
    "<tb id=\"" #id "\" send=\"" #send "\" recv=\"" #recv "\" chan=\"0\">"
#define STEP(s, type, sb, so, db, dof, depid, deps)                                            \
    "<step s=\"" #s "\" type=\"" #type "\" srcbuf=\"" #sb "\" srcoff=\"" #so                   \
    "\" dstbuf=\"" #db "\" dstoff=\"" #dof "\" cnt=\"1\" depid=\"" #depid "\" deps=\"" #deps   \
    "\" hasdep=\"0\"/>\n"
#define ALGO(coll, n, chunks, inplace)                                                         \
    "<algo name=\"t\" proto=\"LL\" nchannels=\"1\" nchunksperloop=\"" #chunks "\" ngpus=\"" #n \
    "\" coll=\"" #coll "\" inplace=\"" #inplace "\">\n"

/* Both send what they have to the other's scratch memory... which then only needs to be in the
 * right place: allgather. */
#define ALLGATHER_BY_SCRATCH                                                                   \
    ALGO(allgather, 2, 2, 0)                                                                   \
    GPU(0, 1, 2, 1)                                                                            \
    TB(0, 1, -1)                                                                               \
    STEP(0, s, i, 0, i, 0, -1, -1)                                                             \
    "</tb>" TB(1, -1, 1) STEP(0, r, i, 0, s, 0, -1, -1)                                        \
        STEP(1, cpy, s, 0, o, 1, -1, -1) "</tb>" TB(2, -1, -1)                                 \
            STEP(0, cpy, i, 0, o, 0, -1, -1) "</tb></gpu>\n" GPU(1, 1, 2, 1) TB(0, 0, -1)      \
                STEP(0, s, i, 0, i, 0, -1, -1) "</tb>" TB(1, -1, 0)                            \
                    STEP(0, r, i, 0, s, 0, -1, -1)                                             \
                        STEP(1, cpy, s, 0, o, 0, -1, -1) "</tb>" TB(2, -1, -1)                 \
                            STEP(0, cpy, i, 0, o, 1, -1, -1) "</tb></gpu>\n</algo>"

Test(msccl, scratch_chunks_and_copies_find_their_place)
{
    static const char text[] = ALLGATHER_BY_SCRATCH;
    struct bny_program_set set;
    int e = bny_msccl_parse(&set, text, sizeof text - 1, "ag.xml");

    cr_assert_eq(e, 0, "%s", banyan_last_error());
    cr_assert_eq(set.p[0]->nsteps, 3);
    bny_program_set_free(&set);
}

#define PAIR(zero, one)                                                                        \
    ALGO(allreduce, 2, 1, 1)                                                                   \
    GPU(0, 1, 1, 1)                                                                            \
    TB(0, 1, 1) zero "</tb></gpu>\n" GPU(1, 1, 1, 1) TB(0, 0, 0) one "</tb></gpu></algo>"

Test(msccl, wrong_files_are_refused_with_file_and_line)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        { "", "f.xml" },
        { "<algo", "f.xml:1" },
        { "<!DOCTYPE algo [<!ENTITY a \"aaaa\">]><algo/>", "document type" },
        { "<algo coll=\"alltoall\"/>", "coll=\"alltoall\"" },
        { "<algo coll=\"allreduce\" ngpus=\"1\" nchunksperloop=\"1\"/>", "ngpus" },
        { "<algo coll=\"allreduce\" ngpus=\"2\" nchunksperloop=\"99999999999999999999\"/>",
          "nchunksperloop" },
        { "<algo coll=\"allreduce\" ngpus=\"2\" nchunksperloop=\"1\"><tb/></algo>",
          "<gpu> is expected" },
        { ALGO(allreduce, 2, 1, 1) GPU(0, 1, 1, 1) "</gpu></algo>", "1 of 2 gpus" },
        { ALGO(allreduce, 2, 1, 1) GPU(1, 1, 1, 1) "</gpu></algo>", "f.xml:2: gpu 1 stands" },
        { ALGO(allreduce, 2, 1, 1) GPU(0, 1, 1, 1) TB(0, 0, 1) "</tb></gpu></algo>",
          "sends to itself" },
        { PAIR(STEP(0, s, i, 1, i, 0, -1, -1), ""), "srcoff" },
        { PAIR(STEP(0, s, x, 0, i, 0, -1, -1), ""), "srcbuf" },
        { PAIR(STEP(1, s, i, 0, i, 0, -1, -1), ""), "this is step 0" },
        { PAIR(STEP(0, re, i, 0, i, 0, -1, -1), ""), "type=\"re\"" },
        { PAIR(STEP(0, s, i, 0, i, 0, 3, 0), ""), "waits for step 0 of tb 3" },
        { PAIR(STEP(0, s, s, 0, i, 0, -1, -1), ""), "nothing was stored" },
        { PAIR(STEP(0, s, i, 0, i, 0, -1, -1), ""), "does not receive" },
        { PAIR(STEP(0, r, i, 0, i, 0, -1, -1), STEP(0, r, i, 0, i, 0, -1, -1)),
          "waits for ever" },
        { PAIR(STEP(0, rrc, i, 0, i, 0, -1, -1), STEP(0, s, i, 0, i, 0, -1, -1)),
          "no correct allreduce" },
        /* 0 adds 1's, sends the sum, and 1 adds it again */
        { PAIR(STEP(0, rrcs, i, 0, i, 0, -1, -1),
               STEP(0, s, i, 0, i, 0, -1, -1) STEP(1, rrc, i, 0, i, 0, -1, -1)),
          "no correct allreduce" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bny_program_set set;

        cr_assert_lt(bny_msccl_parse(&set, cases[i].text, strlen(cases[i].text), "f.xml"), 0,
                     "%zu", i);
        cr_assert_null(set.p);
        cr_assert_not_null(strstr(banyan_last_error(), "f.xml"), "%zu: %s", i,
                           banyan_last_error());
        cr_assert_not_null(strstr(banyan_last_error(), cases[i].why), "%zu: %s", i,
                           banyan_last_error());
    }
}

/* Short files that stand for hundreds of GB. */
static char *enormous(int gpus, int steps, size_t *len)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, len);

    fprintf(to,
            "<algo nchunksperloop=\"65536\" ngpus=\"%d\" coll=\"allreduce\" inplace=\"1\">\n",
            gpus);
    for (int r = 0; r < gpus; r++) {
        fprintf(to,
                "<gpu id=\"%d\" i_chunks=\"65536\" o_chunks=\"0\" s_chunks=\"0\"><tb id=\"0\" "
                "send=\"%d\" recv=\"-1\" "
                "chan=\"0\">\n",
                r, (r + 1) % gpus);
        for (int s = 0; s < steps; s++)
            fprintf(to,
                    "<step s=\"%d\" type=\"s\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"i\" "
                    "dstoff=\"0\" cnt=\"65536\"/>\n",
                    s);
        fputs("</tb></gpu>\n", to);
    }
    fputs("</algo>\n", to);
    fclose(to);
    return text;
}

Test(msccl, short_files_for_enormous_programs_are_refused)
{
    static const int cases[][2] = { { 1024, 0 }, { 2, 200 } };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bny_program_set set;
        size_t len;
        char *text = enormous(cases[i][0], cases[i][1], &len);

        cr_assert_eq(bny_msccl_parse(&set, text, len, "f.xml"), -BANYAN_ENOTSUP, "%zu", i);
        cr_assert_not_null(strstr(banyan_last_error(), "too many"), "%s", banyan_last_error());
        free(text);
    }
}

Test(msccl, changed_bytes_do_no_harm)
{
    uint64_t rng = 11;
    size_t len;
    char *good = ring_in_place(3, &len), *text = malloc(len);
    int accepted = 0;

    for (int i = 0; i < 10000; i++) {
        struct bny_program_set set;
        int changes = 1 + (int)bny_rng_below(&rng, 3);

        memcpy(text, good, len);
        for (int k = 0; k < changes; k++) {
            char *at = text + bny_rng_below(&rng, len);
            int digit = *at >= '0' && *at <= '9';

            *at =
                digit ? (char)('0' + bny_rng_below(&rng, 10)) : good[bny_rng_below(&rng, len)];
        }
        if (bny_msccl_parse(&set, text, len, "memory") != 0) {
            cr_assert_null(set.p);
            continue;
        }
        cr_assert_eq(bny_program_verify(set.p, set.n, 8, NULL, 0), 0);
        bny_program_set_free(&set);
        accepted++;
    }
    cr_assert_gt(accepted, 0);
    free(good);
    free(text);
}
