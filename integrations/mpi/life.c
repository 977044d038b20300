/* SPDX-License-Identifier: BSD-3-Clause */
/* MPI_Init to MPI_Finalize: settings, the agreement that every rank has this interposer,
 * errors. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/counts.h"
#include "base/param.h"
#include "base/text.h"
#include "integrations/mpi/shim.h"

/* Nobody else has sent anything yet. */
#define TAG_AGREE 32766
/* Non-blocking calls of fewer bytes are the MPI's. With 2 ranks that share memory an Iallreduce
 * of 4 bytes costs 1 to 10 us there and some 50 us here (a generalised request, and progress in
 * every call that waits); of 4 MiB banyan's is faster under both, of 1 MiB only MPICH's is
 * slower. */
#define NONBLOCKING_MPICH (1 << 20)
#define NONBLOCKING_OPEN  (4 << 20)

struct shim_state shim;
_Thread_local int shim_nested;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void shim_lock(void)
{
    if (shim.multiple)
        pthread_mutex_lock(&lock);
}

void shim_unlock(void)
{
    if (shim.multiple)
        pthread_mutex_unlock(&lock);
}

/* ---- errors ---- */

void shim_say(const char *fmt, ...)
{
    char text[700];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "banyan-mpi: rank %d: %s\n", shim.rank, text);
}

static int class_of(int rc)
{
    switch (-rc) {
    case BANYAN_EINVAL: return MPI_ERR_ARG;
    case BANYAN_ENOMEM: return MPI_ERR_NO_MEM;
    case BANYAN_EMISMATCH: return MPI_ERR_TRUNCATE;
    case BANYAN_EPROTO: return MPI_ERR_INTERN;
    default: return MPI_ERR_OTHER;
    }
}

/* A code of this class with this text, or the class itself. MPICH (4.0.2) tells texts of its
 * own for codes that were added to its own classes ("Network type AF_INET invalid"): there, the
 * code belongs to a class of ours. */
static int add_code(int class, const char *text)
{
    char told[MPI_MAX_ERROR_STRING] = "";
    int code, ours, len;

    if (real.Add_error_code(class, &code) != MPI_SUCCESS)
        return class;
    real.Add_error_string(code, text);
    if (real.Error_string(code, told, &len) == MPI_SUCCESS && !strcmp(told, text))
        return code;
    if (real.Add_error_class(&ours) != MPI_SUCCESS)
        return class;
    real.Add_error_string(ours, text);
    return real.Add_error_code(ours, &code) == MPI_SUCCESS ? code : ours;
}

int shim_code(int rc)
{
    static int codes[BNY_ERROR_COUNT]; /* by banyan's code: the MPI's codes are few; the text
                                             is the last one's */
    int kind = -rc, class = class_of(rc);
    char text[MPI_MAX_ERROR_STRING];

    if (rc >= 0)
        return MPI_SUCCESS;
    if (kind >= BNY_ERROR_COUNT)
        return class;
    snprintf(text, sizeof text, "banyan: %.200s", banyan_last_error());
    if (!codes[kind])
        codes[kind] = add_code(class, text);
    if (codes[kind] != class)
        real.Add_error_string(codes[kind], text);
    return codes[kind];
}

int shim_raise(MPI_Comm comm, int code)
{
    real.Comm_call_errhandler(comm, code);
    return code;
}

static MPI_Comm raise_comm;
static int raise_code;

void shim_raise_soon(MPI_Comm comm, int code)
{
    raise_comm = comm;
    raise_code = code;
    shim.raise = 1;
}

void shim_raise_late(void)
{
    MPI_Comm comm;
    int code, due;

    shim_lock();
    comm = raise_comm;
    code = raise_code;
    due = atomic_exchange(&shim.raise, 0);
    shim_unlock();
    if (due)
        shim_raise(comm, code);
}

/* ---- init ---- */

/* The settings that all ranks must share, as a number. */
static unsigned settings_hash(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 200];
    unsigned h = 2166136261u;
    size_t len;
    int unused;

    real.Get_library_version(text, &unused);
    len = strlen(text); /* Open MPI's own count has the terminator */
    snprintf(text + len, sizeof text - len, "|%s|%s|%d|%zu", banyan_version_string(),
             shim.codec, shim.after, shim.nonblocking);
    for (const char *p = text; *p; p++)
        h = (h ^ (unsigned char)*p) * 16777619u;
    return h;
}

/* The greatest of all ranks' pairs, by messages to the ranks 1, 2, 4, ... further: Open MPI
 * polls for non-blocking collectives in every call as long as a communicator is there that had
 * one. Returns 1; 0: some rank does not answer; or -1. */
static int greatest(unsigned *most, double until)
{
    for (int far = 1; far < shim.n; far *= 2) {
        unsigned theirs[2], mine[2] = { most[0], most[1] };
        int to = (shim.rank + far) % shim.n, from = (shim.rank - far + shim.n) % shim.n;
        MPI_Request req[2];
        MPI_Status unused[2];
        int done = 0;

        if (real.Irecv(theirs, 2, MPI_UNSIGNED, from, TAG_AGREE, MPI_COMM_WORLD, &req[0]) ||
            real.Isend(mine, 2, MPI_UNSIGNED, to, TAG_AGREE, MPI_COMM_WORLD, &req[1]))
            return -1;
        while (!done && shim_now() < until)
            if (real.Testall(2, req, &done, unused) != MPI_SUCCESS)
                return -1;
        if (!done)
            return 0;
        for (int i = 0; i < 2; i++)
            most[i] = theirs[i] > most[i] ? theirs[i] : most[i];
    }
    return 1;
}

/* A rank without this interposer does not take part: the others say so, instead of waiting for
 * it later in a collective that it runs by other means. */
static int life_agree(void)
{
    const int limit = (int)bny_param_int("BANYAN_MPI=join");
    unsigned most[2];
    int heard;

    most[0] = settings_hash();
    most[1] = ~most[0];
    heard = greatest(most, shim_now() + limit);
    if (heard < 0)
        return 0;
    if (!heard) {
        shim_say("not every rank has this library: %d s after MPI_Init some have not answered; "
                 "give LD_PRELOAD to all "
                 "ranks (mpirun -x LD_PRELOAD) or to none",
                 limit);
        usleep(300000); /* MPICH's launcher drops what it has not read when a job is aborted */
        real.Abort(MPI_COMM_WORLD, 1);
    }
    if (most[0] == (unsigned)~most[1])
        return 1;
    if (shim.rank == 0)
        shim_say(
            "ranks differ in the version of banyan or MPI, or in BANYAN_MPI_CODEC, or in after "
            "or nonblocking of BANYAN_MPI: all "
            "collectives stay on MPI");
    return 0;
}

static int is_open_mpi(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int unused;

    real.Get_library_version(text, &unused);
    return strstr(text, "Open MPI") != NULL;
}

static void life_start(void)
{
    int64_t nonblocking = bny_param_int("BANYAN_MPI=nonblocking");
    int level = MPI_THREAD_SINGLE;

    shim.open_mpi = is_open_mpi();
    real.Query_thread(&level);
    shim.multiple = level == MPI_THREAD_MULTIPLE;
    real.Comm_rank(MPI_COMM_WORLD, &shim.rank);
    real.Comm_size(MPI_COMM_WORLD, &shim.n);
    shim.stats = (int)bny_param_int("BANYAN_MPI=stats");
    shim.after = (int)bny_param_int("BANYAN_MPI=after");
    shim.nonblocking = nonblocking >= 0 ? (size_t)nonblocking
                       : shim.open_mpi  ? NONBLOCKING_OPEN
                                        : NONBLOCKING_MPICH;
    snprintf(shim.codec, sizeof shim.codec, "%s", bny_param_str("BANYAN_MPI_CODEC"));
    shim_types_start();
    shim.ready = life_agree() && shim_progress_start() == 0 && shim_comms_start() == 0;
    if (shim.ready)
        shim_world_join();
    if (shim_world)
        shim_comms_first();
    shim_world_joined();
}

int MPI_Init(int *argc, char ***argv)
{
    int rc;

    shim_real_find();
    rc = real.Init(argc, argv);
    if (rc == MPI_SUCCESS)
        life_start();
    return rc;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int rc;

    shim_real_find();
    rc = real.Init_thread(argc, argv, required, provided);
    if (rc == MPI_SUCCESS)
        life_start();
    return rc;
}

int MPI_Finalize(void)
{
    if (shim.ready) {
        if (shim.stats)
            shim_report();
        shim_comms_stop();
        shim_guard_stop();
        shim.ready = 0;
        shim.ended = 1;
        shim_progress_stop();
    }
    return real.Finalize();
}

/* ---- handles that an operation in flight still needs ---- */

int MPI_Op_free(MPI_Op *op)
{
    if ((shim.in_flight || shim.persistent) && op && shim_free_op_later(*op)) {
        *op = MPI_OP_NULL;
        return MPI_SUCCESS;
    }
    return real.Op_free(op);
}

int MPI_Type_free(MPI_Datatype *type)
{
    if ((shim.in_flight || shim.persistent) && type && shim_free_type_later(*type)) {
        *type = MPI_DATATYPE_NULL;
        return MPI_SUCCESS;
    }
    return real.Type_free(type);
}
