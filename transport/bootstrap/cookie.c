/* SPDX-License-Identifier: BSD-3-Clause */
/* The user's cookie, a file of 64 hexadecimal digits: ~/.banyan-cookie or, if the user has no
 * writable home (containers), /tmp/.banyan-cookie-UID, which serves jobs on one host. Like
 * Erlang's ~/.erlang.cookie, but 256 bits long and never sent. */
#include "transport/bootstrap/cookie.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sodium.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/filesize.h"
#include "base/log.h"

#define DIGITS (2 * BNY_COOKIE_BYTES)
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
#define TRIES 20 /* other processes may create or remove it all the time */

static const char remedy[] =
    "remove it, and copy the file of rank 0's host here if there are several hosts; or set "
    "BANYAN_SECRET or BANYAN_SECRET_FILE alike on all ranks";

/* Is this the user's own file, unreadable to others? */
static int cookie_check(const char *path, const struct stat *st)
{
    if (!S_ISREG(st->st_mode))
        return bny_fail(BANYAN_ECONFIG, "the cookie %s is no ordinary file: %s", path, remedy);
    if (st->st_uid != geteuid())
        return bny_fail(BANYAN_ECONFIG, "the cookie %s belongs to uid %u, not to you (%u): %s",
                        path, (unsigned)st->st_uid, (unsigned)geteuid(), remedy);
    if (st->st_mode & 077)
        return bny_fail(BANYAN_ECONFIG,
                        "the cookie %s has mode %03o, so that others may have read it: %s",
                        path, (unsigned)st->st_mode & 0777, remedy);
    return 0;
}

/* Returns 0, an error, or 1: there is no such file. */
static int cookie_take(const char *path, uint8_t out[BNY_COOKIE_BYTES])
{
    /* Never blocks, whatever type of file is there. */
    int fd = bny_fd_high(open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)),
        rc;
    char text[DIGITS + 2];
    struct stat st;
    ssize_t n = 0;
    size_t got = 0;

    if (fd < 0 && errno == ENOENT)
        return 1;
    if (fd < 0 && errno == ELOOP)
        return bny_fail(BANYAN_ECONFIG, "the cookie %s is a symbolic link: %s", path, remedy);
    if (fd < 0)
        return bny_fail(BANYAN_ECONFIG, "the cookie %s cannot be read (%s): %s", path,
                        strerror(errno), remedy);
    rc = fstat(fd, &st) == 0 ? cookie_check(path, &st) : bny_fail_errno("the cookie %s", path);
    if (rc == 0)
        n = read(fd, text, sizeof text);
    close(fd);
    if (rc == 0 &&
        (n < DIGITS || n > DIGITS + 1 || (n == DIGITS + 1 && text[DIGITS] != '\n') ||
         sodium_hex2bin(out, BNY_COOKIE_BYTES, text, DIGITS, NULL, &got, NULL) != 0 ||
         got != BNY_COOKIE_BYTES))
        rc = bny_fail(BANYAN_ECONFIG, "the cookie %s is not %d hexadecimal digits: %s", path,
                      DIGITS, remedy);
    sodium_memzero(text, sizeof text);
    return rc;
}

/* Links the file to its name unless that exists: others may have read that file already.
 * Returns 0 or errno. */
static int name_it(const char *made, const char *path)
{
    if (link(made, path) == 0)
        return 0;
    /* For file systems without hard links. */
    if (errno != EEXIST &&
        syscall(SYS_renameat2, AT_FDCWD, made, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EEXIST ? 0 : errno;
}

/* Writes a new cookie under a temporary name, then links it: no process reads half of it.
 * Returns 0, also if another process was first, else errno. */
static int cookie_make(const char *path)
{
    uint8_t random[BNY_COOKIE_BYTES];
    char made[BNY_COOKIE_PATH + 20], text[DIGITS + 2];
    int fd, err = 0;

    snprintf(made, sizeof made, "%s.%08x", path, randombytes_random());
    fd = bny_fd_high(open(made, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0)
        return errno;
    randombytes_buf(random, sizeof random);
    sodium_bin2hex(text, sizeof text, random, sizeof random);
    text[DIGITS] = '\n';
    errno = ENOSPC; /* for a short write */
    if (fchmod(fd, 0600) != 0 || bny_file_write(fd, text, DIGITS + 1) != DIGITS + 1 ||
        fsync(fd) != 0)
        err = errno;
    if (close(fd) != 0 && !err)
        err = errno;
    if (!err)
        err = name_it(made, path);
    unlink(made);
    sodium_memzero(random, sizeof random);
    sodium_memzero(text, sizeof text);
    return err;
}

/* Returns 0, an error, or 1: it cannot be created there, *why is errno. */
static int take_or_make(const char *path, uint8_t out[BNY_COOKIE_BYTES], int *why)
{
    for (int i = 0; i < TRIES; i++) {
        int rc = cookie_take(path, out);

        if (rc <= 0)
            return rc;
        *why = cookie_make(path);
        if (*why)
            return 1;
    }
    return bny_fail(BANYAN_ECONFIG, "the cookie %s is removed as often as it is made", path);
}

int bny_cookie_read(uint8_t out[BNY_COOKIE_BYTES], char path[BNY_COOKIE_PATH])
{
    const char *home = secure_getenv("HOME");
    int why = ENOENT, rc = 1;
    struct stat st;

    /* In another user's home (sudo) our file would be in its owner's way. */
    if (home && home[0] == '/' && strlen(home) < BNY_COOKIE_PATH - 40 && stat(home, &st) == 0 &&
        S_ISDIR(st.st_mode) && st.st_uid == geteuid()) {
        snprintf(path, BNY_COOKIE_PATH, "%s%s.banyan-cookie", home, home[1] ? "/" : "");
        rc = take_or_make(path, out, &why);
    }
    if (rc == 1) {
        snprintf(path, BNY_COOKIE_PATH, "/tmp/.banyan-cookie-%u", (unsigned)geteuid());
        rc = take_or_make(path, out, &why);
    }
    if (rc == 1)
        return bny_fail(BANYAN_ECONFIG,
                        "no file for the job's secret can be made, neither .banyan-cookie in "
                        "HOME=%.100s nor %s (%s): set HOME to a folder of yours, or "
                        "BANYAN_SECRET or BANYAN_SECRET_FILE alike on all ranks; or "
                        "BANYAN_INSECURE=1 where everybody who reaches the ports may join",
                        home ? home : "", path, strerror(why));
    if (rc == 0)
        bny_debug("the job's secret comes from %s", path);
    return rc;
}
