/* SPDX-License-Identifier: BSD-3-Clause */
/* The board of restarted ranks: whatever a rank writes there, or does to the file, the launcher
 * and the others read only what is theirs. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "tests/support/dumped.h"
#include "transport/bootstrap/board.h"

enum { RANKS = 3, COUNT_AT = 8, BYTES = 4096 };

/* A rank's own view of the file. */
static uint8_t *view(int fd)
{
    uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    cr_assert_neq(p, MAP_FAILED);
    return p;
}

static void inherit(int fd)
{
    char text[16];

    snprintf(text, sizeof text, "%d", fd);
    setenv("BANYAN_BOARD_FD", text, 1);
    setenv("BANYAN_RANK", "1", 1);
}

static void break_count(int fd, uint32_t nranks)
{
    uint8_t *p = view(fd);
    uint32_t was;

    memcpy(&was, p + COUNT_AT, sizeof was);
    cr_assert_eq(was, RANKS);
    memcpy(p + COUNT_AT, &nranks, sizeof nranks);
    munmap(p, BYTES);
}

Test(board, a_rank_that_breaks_it_harms_nobody)
{
    struct bny_board *launcher, *rank;
    struct bny_id id = { .job = "job" }, got;
    uint32_t post = 0;
    int fd;

    launcher = bny_board_make(RANKS, &fd);
    cr_assert(launcher, "%s", banyan_last_error());
    inherit(fd);
    rank = bny_board_get();
    cr_assert(rank);
    for (int r = 0; r < RANKS; r++)
        bny_board_set_alive(launcher, r, 1);
    bny_board_set_waiting(rank, 1);
    bny_board_post(rank, &id);
    break_count(fd, UINT32_MAX);
    cr_assert_eq(bny_board_waiting(launcher), 1);
    cr_assert_eq(bny_board_waiting(rank), 1);
    cr_assert_eq(bny_board_latest(rank), 1);
    cr_assert_eq(bny_board_await(rank, &post, &got), 0);
    cr_assert_eq(memcmp(&got, &id, sizeof id), 0);
    cr_assert_lt(ftruncate(fd, 0), 0, "the file shrinks under its readers");
    cr_assert_lt(ftruncate(fd, 1 << 20), 0);
    bny_board_free(launcher);
    close(fd);
}

/* Newcomers prove to know the secret of an id there. */
Test(board, no_core_dump_has_an_id)
{
    struct bny_board *launcher;
    struct bny_id *id;
    int fd;

    launcher = bny_board_make(RANKS, &fd);
    cr_assert(launcher, "%s", banyan_last_error());
    inherit(fd);
    id = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(id != MAP_FAILED && madvise(id, BYTES, MADV_DONTDUMP) == 0);
    for (size_t i = 0; i < sizeof id->secret; i++)
        id->secret[i] = (uint8_t)(i * 53 + 7);
    bny_board_post(bny_board_get(), id);
    cr_assert_eq(bny_board_latest(launcher), 1);
    cr_assert_eq(dumped(id->secret, sizeof id->secret), 0);
    munmap(id, BYTES);
    bny_board_free(launcher);
    close(fd);
}

Test(board, a_file_that_may_shrink_is_none)
{
    struct bny_board *launcher;
    int fd, other = memfd_create("other", MFD_CLOEXEC);
    uint8_t *p;

    launcher = bny_board_make(RANKS, &fd);
    cr_assert(launcher, "%s", banyan_last_error());
    p = view(fd);
    cr_assert_eq(ftruncate(other, lseek(fd, 0, SEEK_END)), 0);
    memcpy(view(other), p, 16);
    inherit(other);
    cr_assert_null(bny_board_get());
    bny_board_free(launcher);
}

Test(board, a_count_that_the_file_has_no_room_for_is_none)
{
    struct bny_board *launcher;
    int fd;

    launcher = bny_board_make(RANKS, &fd);
    cr_assert(launcher, "%s", banyan_last_error());
    break_count(fd, RANKS + 1);
    inherit(fd);
    cr_assert_null(bny_board_get());
    bny_board_free(launcher);
}
