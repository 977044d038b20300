/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises: what was measured is written and read again; later runs add to it only what is
 * better, some time apart and so many at most; what is no such file, of another
 * host, cut or changed in any byte, is measured anew and replaced; where nothing can be written
 * nothing is, and defaults hold; jobs that start at once agree on one file; thresholds follow
 * the numbers. And of slots: the receiver writes what it read, and nothing else. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/rng.h"
#include "tests/transport/shm/pair.h"
#include "transport/shm/shm_tune.h"

/* A measurement has 20 ms, which is not enough while other programs have the CPUs. */
#define TRIES 1000

static char folder[64], path[96];

static void folder_make(void)
{
    snprintf(folder, sizeof folder, "/tmp/banyan-tune-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tune", folder);
    setenv("BANYAN_TUNE", path, 1);
}

static void folder_drop(void)
{
    unlink(path);
    cr_assert_eq(rmdir(folder), 0, "something else was left in %s", folder);
}

static void put(const char *text, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, len), (ssize_t)len);
    close(fd);
}

static size_t get(char *text)
{
    int fd = open(path, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, text, SHM_TUNE_TEXT) : 0;

    if (fd >= 0)
        close(fd);
    return n > 0 ? (size_t)n : 0;
}

/* Numbers that no measurement gives. */
static struct shm_tune sample(void)
{
    return (struct shm_tune){ .host = bny_shm_tune_host(),
                              .hand_ns = 77,
                              .ring_ns = { 1001, 2002, 900000003 },
                              .plain_ns = { 1003, 2003, 900000001 },
                              .single_ns = { 1002, 2001, 900000002 } };
}

static int same(const struct shm_tune *a, const struct shm_tune *b)
{
    char x[SHM_TUNE_TEXT], y[SHM_TUNE_TEXT];
    size_t n = bny_shm_tune_format(a, x, sizeof x);

    return n == bny_shm_tune_format(b, y, sizeof y) && !memcmp(x, y, n);
}

static int can_measure(void)
{
    struct shm_tune t;

    for (int i = 0; i < TRIES; i++)
        if (bny_shm_tune_measure(&t))
            return 1;
    return 0;
}

Test(shm_tune, a_file_is_read_and_not_measured_again, .init = folder_make, .fini = folder_drop)
{
    struct shm_tune t = sample(), got;
    char text[SHM_TUNE_TEXT];

    put(text, bny_shm_tune_format(&t, text, sizeof text));
    cr_assert_eq(bny_shm_tune(&got), 1);
    cr_assert(same(&got, &t));
}

Test(shm_tune, what_is_measured_is_kept, .init = folder_make, .fini = folder_drop)
{
    struct shm_tune a, b;

    if (!can_measure())
        cr_skip_test("one CPU, or process_vm_readv is not permitted");
    for (int i = 0; i < TRIES && !bny_shm_tune(&a); i++)
        ;
    cr_assert_eq(access(path, R_OK), 0);
    cr_assert_eq(bny_shm_tune(&b), 1);
    cr_assert(same(&a, &b));
    for (int i = 0; i < SHM_TUNE_SIZES; i++)
        cr_assert(a.ring_ns[i] > 0 && a.plain_ns[i] > 0 && a.single_ns[i] > 0);
}

static void grow_old(void)
{
    struct timespec when[2] = { { .tv_nsec = UTIME_OMIT },
                                { .tv_sec = time(NULL) - SHM_TUNE_AGE_S - 1 } };

    cr_assert_eq(utimensat(AT_FDCWD, path, when, 0), 0);
}

/* A file of numbers of a busy moment, until it has had all its runs. Returns whether each has
 * been replaced: a run that is out of time adds nothing. */
static int grown_old(void)
{
    struct shm_tune t = sample(), got, before;
    char text[SHM_TUNE_TEXT];
    int replaced = 1;

    t.runs = 1;
    for (int i = 0; i < SHM_TUNE_SIZES; i++)
        t.ring_ns[i] = t.plain_ns[i] = t.single_ns[i] = 900000000;
    t.single_ns[0] = 1;
    put(text, bny_shm_tune_format(&t, text, sizeof text));
    cr_assert_eq(bny_shm_tune(&got), 1);
    cr_assert(same(&got, &t), "a new file is not added to");
    for (uint32_t run = 2; run <= SHM_TUNE_RUNS; run++) {
        grow_old();
        before = got;
        cr_assert_eq(bny_shm_tune(&got), 1);
        cr_assert_eq(got.runs, run);
        cr_assert_eq(got.single_ns[0], 1, "the best is kept");
        for (int i = 0; i < SHM_TUNE_SIZES; i++)
            cr_assert(got.ring_ns[i] <= before.ring_ns[i] &&
                      got.plain_ns[i] <= before.plain_ns[i] &&
                      got.single_ns[i] <= before.single_ns[i]);
        bny_shm_tune_parse(&before, text, get(text), bny_shm_tune_host());
        cr_assert(same(&got, &before), "it is what the file has");
    }
    for (int i = 0; i < SHM_TUNE_SIZES; i++)
        replaced &= got.ring_ns[i] < 900000000;
    grow_old();
    before = got;
    cr_assert_eq(bny_shm_tune(&got), 1);
    cr_assert(same(&got, &before), "more than enough runs");
    return replaced;
}

/* No host is as slow, or the single copy as fast. */
Test(shm_tune, numbers_of_a_busy_moment_do_not_stay, .init = folder_make, .fini = folder_drop,
     .timeout = 600)
{
    int replaced = 0;

    if (!can_measure())
        cr_skip_test("one CPU, or process_vm_readv is not permitted");
    for (int i = 0; i < TRIES && !replaced; i++)
        replaced = grown_old();
    cr_assert(replaced);
}

Test(shm_tune, each_number_is_the_least)
{
    struct shm_tune a = sample(), b = sample(), failed = { .host = a.host };

    b.hand_ns = 5;
    b.ring_ns[1] = 1;
    b.single_ns[2]++;
    bny_shm_tune_merge(&a, &b);
    b.runs++;
    b.single_ns[2]--;
    cr_assert(same(&a, &b));
    bny_shm_tune_merge(&a, &failed);
    b.runs++;
    cr_assert(same(&a, &b));
    for (int i = 0; i < 20; i++)
        bny_shm_tune_merge(&a, &failed);
    cr_assert_eq(a.runs, SHM_TUNE_RUNS);
}

/* Each byte changed to any other one, each length: refused, or it says the same numbers of this
 * host that format() would write so. */
Test(shm_tune, changed_and_cut_files_are_refused, .init = folder_make, .fini = folder_drop)
{
    struct shm_tune t = sample(), got;
    char text[SHM_TUNE_TEXT], again[SHM_TUNE_TEXT];
    size_t n = bny_shm_tune_format(&t, text, sizeof text);
    uint64_t rng = 17;

    cr_assert_eq(bny_shm_tune_parse(&got, text, n, t.host), 1);
    cr_assert_eq(bny_shm_tune_parse(&got, text, n, t.host ^ 1), 0, "another host's");
    for (size_t cut = 0; cut < n; cut++)
        cr_assert_eq(bny_shm_tune_parse(&got, text, cut, t.host), 0, "%zu bytes of it", cut);
    for (size_t at = 0; at < n; at++)
        for (int c = 0; c < 256; c++) {
            char was = text[at];

            text[at] = (char)c;
            if (bny_shm_tune_parse(&got, text, n, t.host)) {
                cr_assert_eq(bny_shm_tune_format(&got, again, sizeof again), n);
                cr_assert_arr_eq(again, text, n);
            }
            text[at] = was;
        }
    for (int i = 0; i < 1000; i++) {
        char junk[SHM_TUNE_TEXT];
        size_t len = bny_rng_next(&rng) % sizeof junk;

        for (size_t k = 0; k < len; k++)
            junk[k] = (char)bny_rng_next(&rng);
        cr_assert_eq(bny_shm_tune_parse(&got, junk, len, t.host), 0);
    }
}

Test(shm_tune, garbage_is_replaced, .init = folder_make, .fini = folder_drop)
{
    struct shm_tune t = sample(), got;
    char text[SHM_TUNE_TEXT];
    size_t n;

    if (!can_measure())
        cr_skip_test("one CPU, or process_vm_readv is not permitted");
    t.host ^= 1;
    for (int kind = 0; kind < 3; kind++) {
        n = bny_shm_tune_format(&t, text, sizeof text);
        put(kind == 0 ? "garbage" : text, kind == 0 ? 7 : kind == 1 ? n / 2 : n);
        for (int i = 0; i < TRIES && !bny_shm_tune(&got); i++)
            ;
        n = get(text);
        cr_assert_eq(bny_shm_tune_parse(&got, text, n, bny_shm_tune_host()), 1, "kind %d",
                     kind);
    }
}

/* A folder in the place of the file is nobody's garbage. */
Test(shm_tune, what_cannot_be_replaced_is_left, .init = folder_make, .fini = folder_drop)
{
    struct shm_tune t;

    cr_assert_eq(mkdir(path, 0700), 0);
    bny_shm_tune(&t);
    cr_assert_eq(rmdir(path), 0);
}

Test(shm_tune, where_nothing_can_be_written_nothing_is)
{
    static const char *const values[] = { "0", "/nonexistent/folder/tune", "/proc/self/tune",
                                          "no-slash" };
    struct shm_tune t;

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        setenv("BANYAN_TUNE", values[i], 1);
        cr_assert_eq(bny_shm_tune(&t), 0, "%s", values[i]);
        cr_assert_eq(bny_shm_tune_zcopy_min(&t, SHM_ZCOPY_MIN), SHM_ZCOPY_MIN);
    }
}

Test(shm_tune, jobs_that_start_at_once_leave_one_whole_file, .init = folder_make,
     .fini = folder_drop, .timeout = 60)
{
    char text[SHM_TUNE_TEXT];
    struct shm_tune t;
    pid_t pid[8];
    int status;

    if (!can_measure())
        cr_skip_test("one CPU, or process_vm_readv is not permitted");
    for (int i = 0; i < 8; i++)
        if ((pid[i] = fork()) == 0) {
            for (int k = 0; k < 50; k++)
                bny_shm_tune(&t);
            _exit(0);
        }
    kill(pid[3], SIGKILL); /* it may have had the lock */
    for (int i = 0; i < 8; i++)
        cr_assert_eq(waitpid(pid[i], &status, 0), pid[i]);
    cr_assert_eq(bny_shm_tune_parse(&t, text, get(text), bny_shm_tune_host()), 1);
}

Test(shm_tune, the_threshold_is_where_the_single_copy_begins_to_win)
{
    struct shm_tune t = sample();
    const uint32_t *size = bny_shm_tune_sizes;

    for (int wins = 0; wins < 8; wins++) {
        uint32_t want = !(wins & 4)   ? SHM_TUNE_NEVER
                        : !(wins & 2) ? size[2]
                        : !(wins & 1) ? size[1]
                                      : size[0];

        for (int i = 0; i < 3; i++)
            t.single_ns[i] = t.ring_ns[i] / 5 * 4 + (wins >> i & 1 ? -8u : 8u);
        cr_assert_eq(bny_shm_tune_zcopy_min(&t, 5), want, "wins %d", wins);
    }
}

Test(shm_tune, lines_are_touched_but_where_that_costs_a_twentieth)
{
    struct shm_tune t = sample(), none = { 0 };

    cr_assert_eq(bny_shm_tune_touches(&none), 1, "not measured");
    t.ring_ns[2] = 2000;
    t.plain_ns[2] = 1901;
    cr_assert_eq(bny_shm_tune_touches(&t), 1);
    t.plain_ns[2] = 1900;
    cr_assert_eq(bny_shm_tune_touches(&t), 0);
    t.single_ns[2] = 1519; /* by a quarter faster than the way that is taken */
    cr_assert_eq(bny_shm_tune_zcopy_min(&t, 5), bny_shm_tune_sizes[2]);
    t.single_ns[2] = 1521;
    cr_assert_eq(bny_shm_tune_zcopy_min(&t, 5), SHM_TUNE_NEVER);
}

/* ---- what the receiver writes ---- */

Test(shm_tune, a_slot_is_touched_within_its_message_and_nowhere_else)
{
    static const uint32_t lens[] = {
        1, 63, 64, 65, 4096, 4097, SHM_SLOT_BYTES - 1, SHM_SLOT_BYTES
    };
    struct pair p;

    pair_open(&p, "0");
    for (size_t k = 0; k < 2 * sizeof lens / sizeof *lens; k++) {
        uint32_t len = lens[k / 2];
        struct bny_hdr h = header(len, (uint32_t)k);
        struct bny_slot slot;
        struct bny_event ev;
        uint8_t *mem, touched = k % 2 ? 0xa5 : 0;

        p.tp[1]->touches = k % 2 == 0; /* else nothing is written */

        while (bny_shm_ops.reserve(p.ep[0], len, &slot) == BNY_AGAIN)
            ;
        mem = slot.mem;
        memset(mem, 0xa5, SHM_SLOT_BYTES);
        cr_assert_eq(bny_shm_ops.commit(p.ep[0], &slot, &h), 0);
        cr_assert(next_event(p.tp[1], &ev) && ev.kind == BNY_EV_MSG);
        for (uint32_t i = 0; i < len; i++)
            cr_assert_eq(((const uint8_t *)ev.msg->data)[i], 0xa5, "written before it is read");
        bny_shm_ops.release(ev.msg);
        for (uint32_t i = 0; i < SHM_SLOT_BYTES; i++)
            cr_assert_eq(mem[i], i % 64 || i >= len ? 0xa5 : touched, "byte %u of %u", i, len);
    }
    pair_close(&p);
}
