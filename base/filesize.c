/* SPDX-License-Identifier: BSD-3-Clause */
/* File size limits; see filesize.h. */
#include "base/filesize.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"

struct held {
    sigset_t before;
    int pending;
};

static int is_pending(void)
{
    sigset_t now;

    return sigpending(&now) == 0 && sigismember(&now, SIGXFSZ) == 1;
}

static void hold(struct held *x)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    x->pending = is_pending();
    pthread_sigmask(SIG_BLOCK, &set, &x->before);
}

static void filesize_release(const struct held *x)
{
    const struct timespec now = { 0 };
    int err = errno;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    if (!x->pending && is_pending())
        while (sigtimedwait(&set, NULL, &now) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &x->before, NULL);
    errno = err;
}

int bny_file_resize(int fd, off_t bytes)
{
    struct held x;
    int rc;

    hold(&x);
    rc = ftruncate(fd, bytes);
    filesize_release(&x);
    return rc;
}

ssize_t bny_file_write(int fd, const void *data, size_t len)
{
    struct held x;
    ssize_t n;

    hold(&x);
    n = write(fd, data, len);
    filesize_release(&x);
    return n;
}

int bny_file_save(const char *path, const char *text, size_t len)
{
    int fd = bny_fd_high(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666));
    int err = 0;

    if (fd < 0)
        return -1;
    while (len && !err) {
        ssize_t n = bny_file_write(fd, text, len);

        if (n >= 0) {
            text += n;
            len -= (size_t)n;
        } else if (errno != EINTR) {
            err = errno;
        }
    }
    if (close(fd) != 0 && !err)
        err = errno;
    errno = err;
    return err ? -1 : 0;
}

const char *bny_file_remedy(int err)
{
    return err == EFBIG ? "; ulimit -f limits the size of files, and shared memory counts as "
                          "one: raise it, or set BANYAN_TRANSPORT=tcp, which needs none"
                        : "";
}

int bny_file_may_have(off_t bytes)
{
    struct rlimit most;

    return getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur == RLIM_INFINITY ||
           most.rlim_cur >= (rlim_t)bytes;
}
