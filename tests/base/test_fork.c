/* SPDX-License-Identifier: BSD-3-Clause */
/* A child of fork, while another thread of its parent has a lock of the process. */
#include <criterion/criterion.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fork.h"

static int broken, in_children;
static void mend(struct bny_lock *l)
{
    broken = 0;
    in_children++;
}

static struct bny_lock one = BNY_LOCK(NULL), other = BNY_LOCK(mend), unused = BNY_LOCK(mend);
static int pipes[2][2]; /* the thread has them; it may give them back */

static void *holder(void *arg)
{
    char c = 0;

    bny_lock_take(&one);
    bny_lock_take(&other);
    broken = 1;
    cr_assert_eq(write(pipes[0][1], &c, 1), 1);
    cr_assert_eq(read(pipes[1][0], &c, 1), 1);
    bny_lock_give(&other);
    bny_lock_give(&one);
    return NULL;
}

/* The number of the check that failed. */
static int child(unsigned generation)
{
    alarm(20);
    if (bny_process_generation() == generation)
        return 1;
    if (in_children != 1 || broken)
        return 2;
    for (int i = 0; i < 2; i++) {
        if (!bny_lock_try(&one))
            return 3;
        bny_lock_take(&other);
        bny_lock_take(&unused);
        bny_lock_give(&unused);
        bny_lock_give(&other);
        bny_lock_give(&one);
    }
    return 0;
}

Test(fork, locks_of_other_threads_are_free_in_a_child)
{
    pthread_t thread;
    char c = 0;

    cr_assert_eq(pipe(pipes[0]), 0);
    cr_assert_eq(pipe(pipes[1]), 0);
    cr_assert_eq(pthread_create(&thread, NULL, holder, NULL), 0);
    cr_assert_eq(read(pipes[0][0], &c, 1), 1);
    for (int i = 0; i < 3; i++) {
        unsigned generation = bny_process_generation();
        int status;
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(generation));
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "fork %d: status %x", i,
                  status);
        cr_assert_eq(generation, bny_process_generation());
    }
    cr_assert_not(bny_lock_try(&one));
    cr_assert_eq(write(pipes[1][1], &c, 1), 1);
    pthread_join(thread, NULL);
    cr_assert(bny_lock_try(&one));
    bny_lock_give(&one);
    cr_assert(broken && in_children == 0, "the parent's memory was changed");
}

/* The child answers, and lives on. */
static pid_t fork_and_stay(int owned, int number)
{
    int back[2];
    pid_t pid;
    char c = 0;

    cr_assert_eq(pipe(back), 0);
    pid = fork();
    if (pid == 0) {
        alarm(20);
        /* The library's is nothing any more, and its number nobody else's; others work. */
        c = send(owned, "x", 1, MSG_NOSIGNAL) < 0 && dup(back[0]) != owned && owned == number;
        bny_fd_close(owned);
        if (write(back[1], &c, 1) == 1)
            pause();
        _exit(0);
    }
    close(back[1]);
    cr_assert_eq(read(back[0], &c, 1), 1);
    cr_assert_eq(c, 1);
    close(back[0]);
    return pid;
}

static void check_end_is_seen(int wanted)
{
    int pair[2], fd;
    char c;
    pid_t pid;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fd = wanted ? dup2(pair[0], wanted) : pair[0];
    if (fd != pair[0])
        close(pair[0]);
    cr_assert_eq(bny_fd_own(fd), fd);
    pid = fork_and_stay(fd, fd);
    cr_assert_eq(recv(pair[1], &c, 1, MSG_DONTWAIT), -1, "it is open here");
    bny_fd_close(fd);
    cr_expect_eq(recv(pair[1], &c, 1, MSG_DONTWAIT), 0, "the child holds the connection open");
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    close(pair[1]);
}

Test(fork, a_child_does_not_hold_connections_open)
{
    struct rlimit most;

    check_end_is_seen(0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &most), 0);
    if (most.rlim_max > 5000) { /* in a page of the table other than the first */
        most.rlim_cur = 5000;
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &most), 0);
        check_end_is_seen(4900);
    }
}

/* What was closed is forgotten: the number may be the program's own. */
Test(fork, a_child_keeps_what_is_not_the_librarys)
{
    int pair[2], status;
    pid_t pid;

    bny_fd_close(bny_fd_own(dup(0)));
    cr_assert_eq(bny_fd_own(-5), -5);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid = fork();
    if (pid == 0)
        _exit(send(pair[0], "x", 1, MSG_NOSIGNAL) != 1);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0);
    close(pair[0]);
    close(pair[1]);
}
