/* SPDX-License-Identifier: BSD-3-Clause */
/* Completion and point to point. While nothing of ours is in flight each call goes straight to
 * the MPI library, mostly without coming here; else what blocks becomes a loop of its testing
 * form. */
#include "integrations/mpi/shim.h"

/* The MPI library's own call, where nothing else needs us. */
#define STRAIGHT(call)                                                                         \
    do {                                                                                       \
        if (!shim.in_flight || shim_inside()) {                                                \
            shim_go_straight();                                                                \
            return real.call;                                                                  \
        }                                                                                      \
    } while (0)

/* Progress of ours, then one look. */
#define LOOK(call)                                                                             \
    do {                                                                                       \
        if (shim.in_flight && !shim_inside()) {                                                \
            shim_lock();                                                                       \
            shim_progress();                                                                   \
            shim_unlock();                                                                     \
            shim_raise_now();                                                                  \
        } else {                                                                               \
            shim_go_straight();                                                                \
        }                                                                                      \
        return real.call;                                                                      \
    } while (0)

/* Until `flag`, set by the call, or an error. */
#define LOOP(call)                                                                             \
    do {                                                                                       \
        unsigned turns_ = 0;                                                                   \
        int rc_;                                                                               \
        for (;;) {                                                                             \
            shim_turn(&turns_);                                                                \
            rc_ = real.call;                                                                   \
            if (rc_ != MPI_SUCCESS || flag)                                                    \
                return rc_;                                                                    \
        }                                                                                      \
    } while (0)

int MPI_Wait(MPI_Request *req, MPI_Status *status)
{
    int flag = 0;

    STRAIGHT(Wait(req, status));
    LOOP(Test(req, &flag, status));
}

/* One after another: MPI_Testall of MPICH 4.0.2 is an error while a persistent collective is
 * under way. */
int MPI_Waitall(int n, MPI_Request reqs[], MPI_Status statuses[])
{
    int all = statuses != MPI_STATUSES_IGNORE, failed = 0;
    unsigned turns = 0;

    STRAIGHT(Waitall(n, reqs, statuses));
    for (int i = 0; i < n; i++) {
        int flag = 0, rc;
        for (;;) {
            rc = real.Test(&reqs[i], &flag, all ? &statuses[i] : MPI_STATUS_IGNORE);
            if (rc != MPI_SUCCESS || flag)
                break;
            shim_turn(&turns);
        }
        for (int k = 0; k < i && all && rc != MPI_SUCCESS && !failed; k++)
            statuses[k].MPI_ERROR = MPI_SUCCESS; /* not told while all is well */
        failed |= rc != MPI_SUCCESS;
        if (all && failed)
            statuses[i].MPI_ERROR = rc;
    }
    return failed ? MPI_ERR_IN_STATUS : MPI_SUCCESS;
}

int MPI_Waitany(int n, MPI_Request reqs[], int *index, MPI_Status *status)
{
    int flag = 0;

    STRAIGHT(Waitany(n, reqs, index, status));
    LOOP(Testany(n, reqs, index, &flag, status));
}

int MPI_Waitsome(int n, MPI_Request reqs[], int *count, int indices[], MPI_Status statuses[])
{
    unsigned turns = 0;
    int rc;

    STRAIGHT(Waitsome(n, reqs, count, indices, statuses));
    do {
        shim_turn(&turns);
        rc = real.Testsome(n, reqs, count, indices, statuses);
    } while (rc == MPI_SUCCESS && *count == 0);
    return rc;
}

int MPI_Test(MPI_Request *req, int *flag, MPI_Status *status)
{
    LOOK(Test(req, flag, status));
}

int MPI_Testall(int n, MPI_Request reqs[], int *flag, MPI_Status statuses[])
{
    LOOK(Testall(n, reqs, flag, statuses));
}

int MPI_Testany(int n, MPI_Request reqs[], int *index, int *flag, MPI_Status *status)
{
    LOOK(Testany(n, reqs, index, flag, status));
}

int MPI_Testsome(int n, MPI_Request reqs[], int *count, int indices[], MPI_Status statuses[])
{
    LOOK(Testsome(n, reqs, count, indices, statuses));
}

int MPI_Request_get_status(MPI_Request req, int *flag, MPI_Status *status)
{
    LOOK(Request_get_status(req, flag, status));
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    LOOK(Iprobe(source, tag, comm, flag, status));
}

int MPI_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message,
                MPI_Status *status)
{
    LOOK(Improbe(source, tag, comm, flag, message, status));
}

/* MPICH looks first and makes progress then, so the first look misses what came while the
 * program was in a collective of ours: a barrier of the MPI's would have made that progress. */
int MPI_Win_test(MPI_Win win, int *flag)
{
    int rc = real.Win_test(win, flag);

    if (rc != MPI_SUCCESS || *flag || !shim.ready || shim_inside())
        return rc;
    LOOK(Win_test(win, flag));
}

int MPI_Send(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
    MPI_Request req;
    int rc;

    STRAIGHT(Send(buf, count, type, to, tag, comm));
    rc = real.Isend(buf, count, type, to, tag, comm, &req);
    return rc == MPI_SUCCESS ? shim_wait_native(&req) : rc;
}

int MPI_Ssend(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
    MPI_Request req;
    int rc;

    STRAIGHT(Ssend(buf, count, type, to, tag, comm));
    rc = real.Issend(buf, count, type, to, tag, comm, &req);
    return rc == MPI_SUCCESS ? shim_wait_native(&req) : rc;
}

int MPI_Rsend(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
    MPI_Request req;
    int rc;

    STRAIGHT(Rsend(buf, count, type, to, tag, comm));
    rc = real.Irsend(buf, count, type, to, tag, comm, &req);
    return rc == MPI_SUCCESS ? shim_wait_native(&req) : rc;
}

int MPI_Recv(void *buf, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status *status)
{
    MPI_Request req;
    int flag = 0, rc;

    STRAIGHT(Recv(buf, count, type, from, tag, comm, status));
    rc = real.Irecv(buf, count, type, from, tag, comm, &req);
    if (rc != MPI_SUCCESS)
        return rc;
    LOOP(Test(&req, &flag, status));
}

int MPI_Mrecv(void *buf, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status)
{
    MPI_Request req;
    int flag = 0, rc;

    STRAIGHT(Mrecv(buf, count, type, message, status));
    rc = real.Imrecv(buf, count, type, message, &req);
    if (rc != MPI_SUCCESS)
        return rc;
    LOOP(Test(&req, &flag, status));
}

int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status *status)
{
    int flag = 0;

    STRAIGHT(Probe(from, tag, comm, status));
    LOOP(Iprobe(from, tag, comm, &flag, status));
}

int MPI_Mprobe(int from, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status)
{
    int flag = 0;

    STRAIGHT(Mprobe(from, tag, comm, message, status));
    LOOP(Improbe(from, tag, comm, &flag, message, status));
}

int MPI_Sendrecv(const void *send, int scount, MPI_Datatype stype, int to, int stag, void *recv,
                 int rcount, MPI_Datatype rtype, int from, int rtag, MPI_Comm comm,
                 MPI_Status *status)
{
    MPI_Request req[2];
    int flag = 0, rc;

    STRAIGHT(
        Sendrecv(send, scount, stype, to, stag, recv, rcount, rtype, from, rtag, comm, status));
    rc = real.Irecv(recv, rcount, rtype, from, rtag, comm, &req[0]);
    if (rc == MPI_SUCCESS)
        rc = real.Isend(send, scount, stype, to, stag, comm, &req[1]);
    if (rc == MPI_SUCCESS)
        rc = shim_wait_native(&req[1]);
    if (rc != MPI_SUCCESS)
        return rc;
    LOOP(Test(&req[0], &flag, status));
}
