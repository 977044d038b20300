/* SPDX-License-Identifier: BSD-3-Clause */
/* A launcher that speaks PMI-1 (MPICH's hydra, also Slurm's pmi2): rank 0's id goes through its
 * key-value space. The protocol is lines of "cmd=... key=value" over the inherited descriptor
 * PMI_FD.
 *
 * An MPI library in this process shares the descriptor, so use it before MPI_Init only: the two
 * would read each other's answers. "finalize" is sent at exit, so that MPI_Init may follow; if
 * it did, MPI sends it. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "transport/bootstrap/launch.h"

#define LINE_MAX_BYTES 2048

static struct {
    int fd, rank;
    pid_t pid;      /* 0: not begun */
    unsigned round; /* of keys: a process may call init several times */
} pmi;

static int mpi_is_running(void)
{
    int (*initialized)(int *) = NULL, flag = 0;

    *(void **)&initialized = dlsym(RTLD_DEFAULT, "MPI_Initialized");
    return initialized && initialized(&flag) == 0 && flag;
}

/* Waits for events on the descriptor until the deadline. */
static int wait_fd(short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = { .fd = pmi.fd, .events = events };
        uint64_t now = bny_now_ns();
        int ms = !deadline_ns         ? -1
                 : now >= deadline_ns ? 0
                                      : (int)((deadline_ns - now) / 1000000 + 1);
        int rc = poll(&p, 1, ms);

        if (rc > 0)
            return 0;
        if (rc == 0)
            return bny_fail(BANYAN_ETIMEDOUT,
                            "rank %d: the launcher's PMI did not answer before the deadline; "
                            "do all ranks call init?",
                            pmi.rank);
        if (errno != EINTR)
            return bny_fail_errno("rank %d: poll on PMI_FD", pmi.rank);
    }
}

/* Of a line, what a sentence may show: not the value, which may be an id with its secret. */
static int shown(const char *line)
{
    const char *value = strstr(line, " value=");
    size_t len = value ? (size_t)(value - line) : strlen(line);

    return (int)(len < 100 ? len : 100);
}

/* Sends one line and reads the answer, which must begin with "cmd=<expect>". */
static int ask(const char *request, const char *expect, char answer[LINE_MAX_BYTES],
               uint64_t deadline_ns)
{
    size_t len = strlen(request), at = 0;
    char want[40];

    while (at < len) {
        ssize_t n = write(pmi.fd, request + at, len - at);

        if (n > 0)
            at += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            return bny_fail(BANYAN_ESYSTEM,
                            "rank %d: PMI_FD=%d cannot be written (%s): start the ranks with "
                            "mpirun, or unset PMI_FD where another launcher starts them",
                            pmi.rank, pmi.fd, strerror(errno));
        else if (wait_fd(POLLOUT, deadline_ns) != 0)
            return -BANYAN_ETIMEDOUT;
    }
    /* Byte by byte: an MPI library may be the next reader of what follows the line. */
    for (at = 0; at + 1 < LINE_MAX_BYTES && (at == 0 || answer[at - 1] != '\n');) {
        int rc = wait_fd(POLLIN, deadline_ns);
        ssize_t n;

        if (rc != 0)
            return rc;
        n = read(pmi.fd, answer + at, 1);
        if (n == 1)
            at++;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return bny_fail(BANYAN_ESYSTEM,
                            "rank %d: the launcher closed PMI_FD; start the ranks with a "
                            "working mpirun",
                            pmi.rank);
    }
    answer[at] = '\0';
    answer[strcspn(answer, "\n")] = '\0';
    snprintf(want, sizeof want, "cmd=%s", expect);
    if (strncmp(answer, want, strlen(want)) != 0 || strstr(answer, " rc=-"))
        return bny_fail(BANYAN_ESYSTEM,
                        "rank %d: the launcher's PMI answered \"%.*s\" instead of %s", pmi.rank,
                        shown(answer), answer, want);
    return 0;
}

/* The value of " key=" in a line, up to the next blank. */
static int field(const char *line, const char *key, char *out, size_t cap)
{
    char want[40];
    const char *at;
    size_t len;

    snprintf(want, sizeof want, " %s=", key);
    at = strstr(line, want);
    if (!at)
        return -1;
    at += strlen(want);
    len = strcspn(at, " ");
    if (len >= cap)
        return -1;
    memcpy(out, at, len);
    out[len] = '\0';
    return 0;
}

static void finalize_at_exit(void)
{
    char answer[LINE_MAX_BYTES];

    if (getpid() == pmi.pid && !mpi_is_running())
        ask("cmd=finalize\n", "finalize_ack", answer, bny_deadline_in(2));
}

static int launch_pmi1_begin(char *kvs, size_t cap, uint64_t deadline_ns)
{
    char line[LINE_MAX_BYTES], max[16];
    int rc = 0;

    if (pmi.pid != getpid())
        rc = ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init", line,
                 deadline_ns);
    if (rc == 0 && pmi.pid != getpid()) {
        pmi.pid = getpid();
        atexit(finalize_at_exit);
    }
    if (rc == 0)
        rc = ask("cmd=get_maxes\n", "maxes", line, deadline_ns);
    if (rc == 0 && (field(line, "vallen_max", max, sizeof max) != 0 || atoi(max) < BNY_ID_HEX))
        rc = bny_fail(BANYAN_ENOTSUP,
                      "rank %d: the launcher's PMI accepts no values of %d bytes: %.100s",
                      pmi.rank, BNY_ID_HEX, line);
    if (rc == 0)
        rc = ask("cmd=get_my_kvsname\n", "my_kvsname", line, deadline_ns);
    if (rc == 0 && field(line, "kvsname", kvs, cap) != 0)
        rc = bny_fail(BANYAN_ESYSTEM,
                      "rank %d: the launcher's PMI names no key-value space: %.100s", pmi.rank,
                      line);
    return rc;
}

/* Rank 0 puts the id, all ranks meet, the others get it. */
static int launch_pmi1_exchange(struct bny_launch *out, const struct bny_launch_in *in)
{
    char kvs[300], hex[BNY_ID_HEX + 8], request[1200], line[LINE_MAX_BYTES];
    unsigned round = pmi.round++;
    int rc = launch_pmi1_begin(kvs, sizeof kvs, in->deadline_ns);

    if (rc == 0 && out->rank == 0) {
        rc = bny_id_create(&out->id, bny_launch_ifname(in, "MPI_LOCALNRANKS", out->nranks),
                           in->port_range, 1);
        if (rc != 0)
            return rc;
        bny_id_to_hex(&out->id, hex);
        snprintf(request, sizeof request, "cmd=put kvsname=%s key=banyan-id-%u value=%s\n", kvs,
                 round, hex);
        rc = ask(request, "put_result", line, in->deadline_ns);
    }
    if (rc == 0)
        rc = ask("cmd=barrier_in\n", "barrier_out", line, in->deadline_ns);
    if (rc != 0 || out->rank == 0)
        return rc;
    snprintf(request, sizeof request, "cmd=get kvsname=%s key=banyan-id-%u\n", kvs, round);
    rc = ask(request, "get_result", line, in->deadline_ns);
    if (rc == 0 &&
        (field(line, "value", hex, sizeof hex) != 0 || bny_id_from_hex(&out->id, hex) != 0))
        rc = bny_fail(BANYAN_ESYSTEM, "rank %d: the launcher's PMI gave no id: %.*s", out->rank,
                      shown(line), line);
    return rc;
}

int bny_launch_pmi1(struct bny_launch *out, const struct bny_launch_in *in)
{
    static const char remedy[] =
        "MPICH's mpirun sets PMI_FD, PMI_RANK and PMI_SIZE together: start the ranks "
        "with it, or unset them";
    int rc;

    if (!bny_launch_get("PMI_FD"))
        return 0;
    out->how = "mpich";
    rc = bny_launch_ranks("PMI_RANK", "PMI_SIZE", remedy, out);
    if (rc == 0)
        rc = bny_launch_int("PMI_FD", 0, INT32_MAX, remedy, &pmi.fd);
    if (rc != 0)
        return rc;
    pmi.rank = out->rank;
    if (out->nranks == 1) {
        rc = bny_id_create(&out->id, "", "", 0);
        return rc == 0 ? 1 : rc;
    }
    if (mpi_is_running())
        return bny_fail(
            BANYAN_ECONFIG,
            "rank %d: MPI_Init has taken over the launcher's PMI_FD; either call "
            "banyan_comm_init_env before MPI_Init, or make an id with banyan_id_create on rank "
            "0, broadcast it with MPI and call banyan_comm_init",
            out->rank);
    rc = launch_pmi1_exchange(out, in);
    return rc == 0 ? 1 : rc;
}
