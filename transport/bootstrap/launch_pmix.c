/* SPDX-License-Identifier: BSD-3-Clause */
/* A launcher that offers PMIx (Open MPI's mpirun, srun --mpi=pmix): rank 0's id goes through
 * it. libpmix is loaded at run time; only its headers are needed to build.
 *
 * PMIx_Init counts its callers, so an MPI library in this process may use PMIx too, before or
 * after us. We release our count at exit: a process that releases the last one cannot start
 * again. */
#include "transport/bootstrap/launch.h"

#include "base/err.h"
#include "base/log.h"

#ifdef BNY_HAVE_PMIX

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmix.h>

#include "base/clock.h"

static struct {
    void *lib;
    pid_t pid; /* 0: not begun */
    unsigned round;
    pmix_proc_t me;
    pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t);
    pmix_status_t (*finalize)(const pmix_info_t *, size_t);
    pmix_status_t (*put)(pmix_scope_t, const char *, pmix_value_t *);
    pmix_status_t (*commit)(void);
    pmix_status_t (*fence_nb)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t,
                              pmix_op_cbfunc_t, void *);
    pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t,
                         pmix_value_t **);
    const char *(*error_string)(pmix_status_t);
} px;

static int load_symbol(void *where, const char *name)
{
    *(void **)where = dlsym(px.lib, name);
    return *(void **)where ? 0 : -1;
}

/* 1: loaded, 0: not installed. */
static int launch_pmix_load(void)
{
    if (px.lib)
        return 1;
    px.lib = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (!px.lib) {
        bny_info("PMIx cannot be used: %s", dlerror());
        return 0;
    }
    if (load_symbol(&px.init, "PMIx_Init") || load_symbol(&px.finalize, "PMIx_Finalize") ||
        load_symbol(&px.put, "PMIx_Put") || load_symbol(&px.commit, "PMIx_Commit") ||
        load_symbol(&px.fence_nb, "PMIx_Fence_nb") || load_symbol(&px.get, "PMIx_Get") ||
        load_symbol(&px.error_string, "PMIx_Error_string")) {
        dlclose(px.lib);
        px.lib = NULL;
        bny_info("PMIx cannot be used: libpmix.so.2 lacks functions");
        return 0;
    }
    return 1;
}

static int launch_pmix_fail(const char *what, pmix_status_t st)
{
    return bny_fail(BANYAN_ESYSTEM,
                    "%s failed: %s; start the ranks with mpirun or srun --mpi=pmix, or unset "
                    "PMIX_RANK and PMIX_NAMESPACE where another launcher starts them",
                    what, px.error_string(st));
}

static void finalize_at_exit(void)
{
    if (getpid() == px.pid)
        px.finalize(NULL, 0);
}

static int launch_pmix_begin(void)
{
    pmix_status_t st;

    if (px.pid == getpid())
        return 0;
    st = px.init(&px.me, NULL, 0);
    if (st != PMIX_SUCCESS)
        return launch_pmix_fail("PMIx_Init", st);
    px.pid = getpid();
    atexit(finalize_at_exit);
    return 0;
}

/* A value of the job; the caller frees it and its string. */
static int launch_pmix_get(pmix_rank_t rank, const char *key, pmix_value_t **v)
{
    pmix_proc_t who = px.me;
    pmix_status_t st;

    who.rank = rank;
    st = px.get(&who, key, NULL, 0, v);
    return st == PMIX_SUCCESS ? 0 : launch_pmix_fail("PMIx_Get", st);
}

/* PMIx's thread completes the fence. If we stop waiting earlier that thread frees it. */
struct fence {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int done, abandoned;
    pmix_status_t status;
};

static void fence_free(struct fence *f)
{
    pthread_cond_destroy(&f->cond);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static void fence_done(pmix_status_t status, void *arg)
{
    struct fence *f = arg;
    int abandoned;

    pthread_mutex_lock(&f->lock);
    f->done = 1;
    f->status = status;
    abandoned = f->abandoned;
    pthread_cond_signal(&f->cond);
    pthread_mutex_unlock(&f->lock);
    if (abandoned)
        fence_free(f);
}

/* Waits until every rank is here and all values put are visible everywhere. */
static int fence(uint64_t deadline_ns)
{
    struct fence *f = calloc(1, sizeof *f);
    struct timespec until = { .tv_sec = (time_t)(deadline_ns / 1000000000),
                              .tv_nsec = (long)(deadline_ns % 1000000000) };
    pmix_info_t collect = { .value = { .type = PMIX_BOOL } };
    pthread_condattr_t attr;
    pmix_status_t st;
    int expired = 0;

    if (!f)
        return bny_fail(BANYAN_ENOMEM, "no memory for a PMIx fence");
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&f->cond, &attr);
    pthread_condattr_destroy(&attr);
    snprintf(collect.key, sizeof collect.key, "%s", PMIX_COLLECT_DATA);
    collect.value.data.flag = true;
    st = px.fence_nb(NULL, 0, &collect, 1, fence_done, f);
    if (st != PMIX_SUCCESS) {
        fence_free(f);
        return st == PMIX_OPERATION_SUCCEEDED ? 0 : launch_pmix_fail("PMIx_Fence", st);
    }
    pthread_mutex_lock(&f->lock);
    while (!f->done && !expired) {
        if (deadline_ns)
            expired = pthread_cond_timedwait(&f->cond, &f->lock, &until) != 0;
        else
            pthread_cond_wait(&f->cond, &f->lock);
    }
    st = f->status;
    expired = !f->done;
    f->abandoned = expired;
    pthread_mutex_unlock(&f->lock);
    if (expired)
        return bny_fail(BANYAN_ETIMEDOUT,
                        "rank %u: not every rank reached the PMIx fence before the deadline; "
                        "do all ranks call init?",
                        px.me.rank);
    fence_free(f);
    return st == PMIX_SUCCESS ? 0 : launch_pmix_fail("PMIx_Fence", st);
}

static int put_id(const struct bny_launch *out, const char *key)
{
    char hex[BNY_ID_HEX];
    pmix_value_t v = { .type = PMIX_STRING };
    pmix_status_t st;

    bny_id_to_hex(&out->id, hex);
    v.data.string = hex;
    st = px.put(PMIX_GLOBAL, key, &v);
    if (st != PMIX_SUCCESS)
        return launch_pmix_fail("PMIx_Put", st);
    st = px.commit();
    return st == PMIX_SUCCESS ? 0 : launch_pmix_fail("PMIx_Commit", st);
}

static int get_id(struct bny_launch *out, const char *key)
{
    pmix_value_t *v = NULL;
    int rc = launch_pmix_get(0, key, &v);

    if (rc != 0)
        return rc;
    if (v->type != PMIX_STRING || !v->data.string ||
        bny_id_from_hex(&out->id, v->data.string) != 0)
        rc = bny_fail(BANYAN_ESYSTEM, "rank %d: PMIx gave no id of rank 0", out->rank);
    if (v->type == PMIX_STRING)
        free(v->data.string);
    free(v);
    return rc;
}

int bny_launch_pmix(struct bny_launch *out, const struct bny_launch_in *in)
{
    pmix_value_t *v = NULL;
    char key[32];
    int rc;

    if (!bny_launch_get("PMIX_RANK") || !bny_launch_get("PMIX_NAMESPACE") ||
        !launch_pmix_load())
        return 0;
    out->how = bny_launch_get("OMPI_COMM_WORLD_RANK") ? "openmpi" : "pmix";
    rc = launch_pmix_begin();
    if (rc == 0)
        rc = launch_pmix_get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &v);
    if (rc != 0)
        return rc;
    out->rank = (int)px.me.rank;
    out->nranks = v->type == PMIX_UINT32 ? (int)v->data.uint32 : 0;
    free(v);
    if (out->nranks < 1 || out->rank < 0 || out->rank >= out->nranks)
        return bny_fail(BANYAN_ECONFIG,
                        "PMIX_RANK=%d is out of range of a job of %d ranks; start the ranks "
                        "with mpirun or srun --mpi=pmix",
                        out->rank, out->nranks);
    snprintf(key, sizeof key, "banyan.id.%u", px.round++);
    if (out->rank == 0) {
        rc = bny_id_create(&out->id,
                           bny_launch_ifname(in, "OMPI_COMM_WORLD_LOCAL_SIZE", out->nranks),
                           in->port_range, out->nranks > 1);
        if (rc == 0 && out->nranks > 1)
            rc = put_id(out, key);
    }
    if (rc == 0 && out->nranks > 1)
        rc = fence(in->deadline_ns);
    if (rc == 0 && out->rank != 0)
        rc = get_id(out, key);
    return rc == 0 ? 1 : rc;
}

#else

int bny_launch_pmix(struct bny_launch *out, const struct bny_launch_in *in)
{
    (void)out;
    (void)in;
    if (bny_launch_get("PMIX_RANK"))
        bny_info("PMIX_RANK is set, but this library was built without PMIx (libpmix-dev)");
    return 0;
}

#endif
