/* SPDX-License-Identifier: BSD-3-Clause */
/* One bit for each descriptor, in pages that are never freed: a fork may come at any time. */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fork.h"

#define PAGES      256 /* the kernel's own limit, fs.nr_open, is 2^20 by default */
#define PAGE_WORDS 64
#define PAGE_FDS   (PAGE_WORDS * 64)

struct page {
    _Atomic uint64_t bits[PAGE_WORDS];
};

static struct page *_Atomic pages[PAGES];

/* The page of fd; NULL: none, or no memory for one. */
static struct page *page_of(int fd, int make)
{
    struct page *p, *none = NULL;

    if (fd < 0 || fd >= PAGES * PAGE_FDS)
        return NULL;
    p = atomic_load(&pages[fd / PAGE_FDS]);
    if (p || !make)
        return p;
    p = calloc(1, sizeof *p);
    if (p && !atomic_compare_exchange_strong(&pages[fd / PAGE_FDS], &none, p)) {
        free(p);
        p = none;
    }
    return p;
}

int bny_fd_high(int fd)
{
    int high, err;

    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    err = errno;
    close(fd);
    errno = err;
    return high;
}

int bny_fd_own(int fd)
{
    struct page *p;

    fd = bny_fd_high(fd);
    p = page_of(fd, 1);
    bny_fork_watch();
    if (p)
        atomic_fetch_or(&p->bits[fd % PAGE_FDS / 64], (uint64_t)1 << fd % 64);
    return fd;
}

/* Cleared first: after close() another thread may get the number at once. */
void bny_fd_close(int fd)
{
    struct page *p = page_of(fd, 0);

    if (p)
        atomic_fetch_and(&p->bits[fd % PAGE_FDS / 64], ~((uint64_t)1 << fd % 64));
    close(fd);
}

void bny_fds_in_child(void)
{
    int saved = errno, none = -1;

    for (int i = 0; i < PAGES * PAGE_WORDS; i++) {
        struct page *p = atomic_load(&pages[i / PAGE_WORDS]);
        uint64_t bits = p ? atomic_load(&p->bits[i % PAGE_WORDS]) : 0;

        if (bits && none < 0)
            none = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        for (; bits; bits &= bits - 1) {
            int fd = i * 64 + __builtin_ctzll(bits);

            if (none < 0 || dup3(none, fd, O_CLOEXEC) < 0)
                close(fd);
        }
    }
    if (none >= 0)
        close(none);
    errno = saved;
}

FILE *bny_fd_new_file(const char *path)
{
    FILE *f = NULL;
    int fd;

    unlink(path);
    fd = bny_fd_high(open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (fd >= 0)
        f = fdopen(fd, "w");
    if (fd >= 0 && !f)
        close(fd);
    return f;
}
