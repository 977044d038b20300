/* SPDX-License-Identifier: BSD-3-Clause */
/* The board of banyan_run --restart. */
#include "transport/bootstrap/board.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/filesize.h"
#include "base/param.h"

#define BOARD_MAGIC 0x64726f6279616e62u
#define RANKS_MAX   4096

struct slot {
    _Atomic uint32_t alive, waits;
    _Atomic uint32_t post; /* its number; 0: none, or being written */
    struct bny_id id;
};

struct shared { /* the memfd's; any rank may write anything there */
    uint64_t magic;
    uint32_t nranks;
    _Atomic uint32_t posts;   /* so far */
    _Atomic uint32_t changes; /* of anything that waiting ranks check: they sleep on this */
    struct slot slot[];
};

struct bny_board {
    struct shared *shared;
    struct slot *slot;
    uint32_t nranks; /* as the size of the file, which is sealed */
};

static size_t bytes_of(uint32_t nranks)
{
    return sizeof(struct shared) + nranks * sizeof(struct slot);
}

static void board_changed(struct bny_board *b)
{
    atomic_fetch_add(&b->shared->changes, 1);
    syscall(SYS_futex, &b->shared->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- ranks ---- */

static struct bny_board inherited; /* .shared NULL: none */
static uint32_t own;

static void board_look(void)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    const char *text = bny_param_str("BANYAN_RANK");
    int64_t fd = bny_param_int("BANYAN_BOARD_FD"), rank = *text ? strtol(text, NULL, 10) : -1;
    struct shared *m;
    struct stat st;
    uint32_t nranks;
    int have;

    if (fd <= STDERR_FILENO || fd > INT_MAX || rank < 0)
        return;
    have = fcntl((int)fd, F_GET_SEALS); /* another file by now? */
    if (have < 0 || (have & seals) != seals || fstat((int)fd, &st) != 0 ||
        (size_t)st.st_size < sizeof *m || (size_t)st.st_size > bytes_of(RANKS_MAX))
        return;
    nranks = (uint32_t)(((size_t)st.st_size - sizeof *m) / sizeof m->slot[0]);
    m = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    if (m == MAP_FAILED)
        return;
    if (m->magic != BOARD_MAGIC || m->nranks != nranks ||
        (size_t)st.st_size != bytes_of(nranks) || rank >= nranks) {
        munmap(m, (size_t)st.st_size);
        return;
    }
    madvise(m, (size_t)st.st_size, MADV_DONTDUMP);
    fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    own = (uint32_t)rank;
    inherited = (struct bny_board){ m, m->slot, nranks };
}

struct bny_board *bny_board_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, board_look);
    return inherited.shared ? &inherited : NULL;
}

void bny_board_post(struct bny_board *b, const struct bny_id *id)
{
    struct slot *s = b ? &b->slot[own] : NULL;

    if (!s)
        return;
    atomic_store(&s->post, 0);
    s->id = *id;
    atomic_store(&s->post, atomic_fetch_add(&b->shared->posts, 1) + 1);
    board_changed(b);
}

void bny_board_unpost(struct bny_board *b, const struct bny_id *id)
{
    if (!b || !atomic_load(&b->slot[own].post) || memcmp(&b->slot[own].id, id, sizeof *id) != 0)
        return;
    atomic_store(&b->slot[own].post, 0);
    board_changed(b);
}

void bny_board_set_waiting(struct bny_board *b, int waits)
{
    if (!b || atomic_exchange(&b->slot[own].waits, waits != 0) == (waits != 0))
        return;
    board_changed(b);
}

int bny_board_waiting(struct bny_board *b)
{
    int n = 0;

    for (uint32_t r = 0; b && r < b->nranks; r++)
        n += atomic_load(&b->slot[r].alive) && atomic_load(&b->slot[r].waits);
    return n;
}

static struct slot *latest(struct bny_board *b)
{
    struct slot *best = NULL;
    uint32_t post = 0;

    for (uint32_t r = 0; r < b->nranks; r++) {
        uint32_t p = atomic_load(&b->slot[r].post);

        if (p > post) {
            post = p;
            best = &b->slot[r];
        }
    }
    return best;
}

uint32_t bny_board_latest(struct bny_board *b)
{
    struct slot *s = b ? latest(b) : NULL;

    return s ? atomic_load(&s->post) : 0;
}

static int nobody_else(struct bny_board *b)
{
    for (uint32_t r = 0; r < b->nranks; r++)
        if (atomic_load(&b->slot[r].alive) && !atomic_load(&b->slot[r].waits))
            return 0;
    return 1;
}

int bny_board_await(struct bny_board *b, uint32_t *post, struct bny_id *id)
{
    for (;;) {
        uint32_t seen = atomic_load(&b->shared->changes), p;
        struct timespec most = { .tv_sec = 1 };
        struct slot *s = latest(b);

        p = s ? atomic_load(&s->post) : 0;
        if (p && p != *post) {
            *id = s->id;
            if (atomic_load(&s->post) == p) { /* it was not rewritten meanwhile */
                *post = p;
                return 0;
            }
            continue;
        }
        if (nobody_else(b))
            return bny_fail(BANYAN_ERANKDEAD,
                            "banyan_comm_join: no member of the job is left that could let "
                            "this process in: the job has ended");
        syscall(SYS_futex, &b->shared->changes, FUTEX_WAIT, seen, &most, NULL, 0);
    }
}

/* ---- the launcher ---- */

struct bny_board *bny_board_make(int nranks, int *fd)
{
    size_t bytes = bytes_of((uint32_t)nranks);
    struct bny_board *b = malloc(sizeof *b);
    struct shared *m = MAP_FAILED;

    *fd = bny_fd_high(memfd_create("banyan-board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (b && *fd >= 0 && bny_file_resize(*fd, (off_t)bytes) == 0 &&
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (m == MAP_FAILED) {
        bny_fail_errno("a board for restarted ranks");
        if (*fd >= 0)
            close(*fd);
        free(b);
        return NULL;
    }
    madvise(m, bytes, MADV_DONTDUMP); /* ids have secrets */
    m->magic = BOARD_MAGIC;
    m->nranks = (uint32_t)nranks;
    *b = (struct bny_board){ m, m->slot, (uint32_t)nranks };
    return b;
}

void bny_board_set_alive(struct bny_board *b, int r, int alive)
{
    if (!b)
        return;
    atomic_store(&b->slot[r].post, 0);
    atomic_store(&b->slot[r].waits, 0);
    atomic_store(&b->slot[r].alive, alive != 0);
    board_changed(b);
}

void bny_board_free(struct bny_board *b)
{
    if (b)
        munmap(b->shared, bytes_of(b->nranks));
    free(b);
}
