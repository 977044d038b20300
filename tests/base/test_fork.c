/* SPDX-License-Identifier: BSD-3-Clause */
/* A child of fork, while another thread of its parent has a lock of the process. */
#include <criterion/criterion.h>
#include <sys/wait.h>
#include <unistd.h>

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
