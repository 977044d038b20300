/* SPDX-License-Identifier: BSD-3-Clause */
/* MPI 4's sessions: without MPI_Init, beside it, several at once, and ended in any order.
 * Usage: sessions CASE; a line "ok" from the first process. test_mpi.py and
 * scripts/mpi-versions bound the time. An MPI without sessions says so. */
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)

#define CALLS 8 /* beyond BANYAN_MPI=after, which the test sets to 1 or 3 */

static void check(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "sessions: %s\n", what);
        exit(1);
    }
}

static MPI_Session begin(void)
{
    MPI_Session session;
    MPI_Info info;

    MPI_Info_create(&info);
    MPI_Info_set(info, "thread_level", "MPI_THREAD_MULTIPLE");
    check(MPI_Session_init(info, MPI_ERRORS_ARE_FATAL, &session) == MPI_SUCCESS, "no session");
    MPI_Info_free(&info);
    return session;
}

static MPI_Comm all_of(MPI_Session session, const char *tag)
{
    MPI_Group group;
    MPI_Comm comm;

    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    MPI_Group_free(&group);
    return comm;
}

/* Of all ranks but the last; MPI_COMM_NULL there. */
static MPI_Comm some_of(MPI_Session session, const char *tag)
{
    MPI_Group group, some;
    MPI_Comm comm = MPI_COMM_NULL;
    int n, rank, last;

    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Group_size(group, &n);
    MPI_Group_rank(group, &rank);
    last = n - 1;
    MPI_Group_excl(group, 1, &last, &some);
    if (rank != last)
        MPI_Comm_create_from_group(some, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    MPI_Group_free(&group);
    MPI_Group_free(&some);
    return comm;
}

/* Sums, broadcasts and non-blocking sums, each looked at. */
static void use(MPI_Comm comm)
{
    int n, rank;

    if (comm == MPI_COMM_NULL)
        return;
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &rank);
    for (int i = 0; i < CALLS; i++) {
        int x = rank + i, sum = 0, later = 0, root = rank == i % n ? 7 * i : -1;
        MPI_Request req;
        MPI_Iallreduce(&x, &later, 1, MPI_INT, MPI_SUM, comm, &req);
        MPI_Allreduce(&x, &sum, 1, MPI_INT, MPI_SUM, comm);
        MPI_Bcast(&root, 1, MPI_INT, i % n, comm);
        MPI_Wait(&req, MPI_STATUS_IGNORE);
        check(sum == n * (n - 1) / 2 + n * i, "wrong sum");
        check(later == sum, "wrong later sum");
        check(root == 7 * i, "wrong broadcast");
        MPI_Sendrecv(&x, 1, MPI_INT, (rank + 1) % n, 5, &root, 1, MPI_INT, (rank + n - 1) % n,
                     5, comm, MPI_STATUS_IGNORE);
        check(root == (rank + n - 1) % n + i, "wrong message");
    }
}

/* What is made from it, too. */
static void use_all(MPI_Comm comm)
{
    MPI_Comm dup, half, later;
    MPI_Request req;
    int rank;

    use(comm);
    if (comm == MPI_COMM_NULL)
        return;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_dup(comm, &dup);
    MPI_Comm_split(comm, rank % 2, -rank, &half);
    MPI_Comm_idup(dup, &later, &req);
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    use(half);
    use(later);
    use(dup);
    MPI_Comm_free(&half);
    MPI_Comm_free(&dup);
    use(later);
    MPI_Comm_free(&later);
}

static void leave(MPI_Comm comm)
{
    if (comm != MPI_COMM_NULL)
        MPI_Comm_free(&comm);
}

/* ---- cases ---- */

static void alone(void)
{
    MPI_Session session = begin();
    MPI_Comm comm = all_of(session, "alone"), some = some_of(session, "some");

    use_all(comm);
    use_all(some);
    leave(some);
    leave(comm);
    MPI_Session_finalize(&session);
}

/* All are at an end before the next begins. */
static void again(void)
{
    for (int i = 0; i < 3; i++)
        alone();
}

/* The first to begin is the first to end. */
static void several(void)
{
    MPI_Session one = begin(), two = begin();
    MPI_Comm first = all_of(one, "first"), second = some_of(two, "second");

    use_all(first);
    use_all(second);
    leave(first);
    MPI_Session_finalize(&one);
    use_all(second);
    first = all_of(two, "third");
    use_all(first);
    leave(first);
    leave(second);
    MPI_Session_finalize(&two);
}

/* A session inside MPI_Init ... MPI_Finalize; communicators of both by turns. */
static void inside(void)
{
    MPI_Session session;
    MPI_Comm comm, some;

    MPI_Init(NULL, NULL);
    use(MPI_COMM_WORLD);
    session = begin();
    comm = all_of(session, "inside");
    some = some_of(session, "some");
    for (int i = 0; i < 3; i++) {
        use_all(comm);
        use_all(MPI_COMM_WORLD);
        use_all(some);
    }
    leave(some);
    leave(comm);
    MPI_Session_finalize(&session);
    use_all(MPI_COMM_WORLD);
    MPI_Finalize();
}

/* A session around them: its communicators are used before, between and after. */
static void around(void)
{
    MPI_Session session = begin(), other;
    MPI_Comm comm = all_of(session, "around"), dup, third;

    use_all(comm);
    MPI_Comm_dup(comm, &dup);
    MPI_Init(NULL, NULL);
    use_all(comm);
    use_all(MPI_COMM_WORLD);
    use(dup);
    other = begin();
    third = all_of(other, "other");
    use_all(third);
    MPI_Finalize();
    use_all(comm);
    use_all(third);
    leave(third);
    MPI_Session_finalize(&other);
    use(dup);
    leave(dup);
    leave(comm);
    MPI_Session_finalize(&session);
}

static atomic_int initialised;

/* Until all ranks have come out of MPI_Init, and a while longer. */
static void *busy(void *arg)
{
    MPI_Comm *comm = arg;
    int all = 0;

    while (!all) {
        int own = initialised;
        use(*comm);
        MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, *comm);
    }
    for (int i = 0; i < 5; i++)
        use(*comm);
    return NULL;
}

/* Another thread uses a session's communicator while this one is in MPI_Init, so how many calls
 * it has had by then is not the same at all ranks. */
static void threads(void)
{
    MPI_Session session = begin();
    MPI_Comm comm = all_of(session, "threads");
    pthread_t thread;
    int level;

    pthread_create(&thread, NULL, busy, &comm);
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    initialised = 1;
    if (level == MPI_THREAD_MULTIPLE)
        use_all(MPI_COMM_WORLD);
    pthread_join(thread, NULL);
    use_all(comm);
    MPI_Finalize();
    leave(comm);
    MPI_Session_finalize(&session);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    { "alone", alone },   { "again", again },   { "several", several },
    { "inside", inside }, { "around", around }, { "threads", threads },
};

int main(int argc, char **argv)
{
    const char *rank = getenv("PMI_RANK");
    size_t n = sizeof cases / sizeof *cases, i = 0;

    if (!rank)
        rank = getenv("OMPI_COMM_WORLD_RANK");
    while (i < n && (argc < 2 || strcmp(argv[1], cases[i].name) != 0))
        i++;
    if (i == n)
        return 2;
    cases[i].run();
    if (!rank || atoi(rank) == 0)
        printf("ok\n");
    return 0;
}

#else

int main(void)
{
    printf("no sessions\n");
    return 0;
}

#endif
