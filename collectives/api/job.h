/* SPDX-License-Identifier: BSD-3-Clause */
/* Between the files of the public functions: communicators and worlds as they are made, joined
 * and left; calls as they are submitted. */
#ifndef BNY_COLLECTIVES_JOB_H
#define BNY_COLLECTIVES_JOB_H

#include "base/fork.h"
#include "base/thread_context.h"
#include "collectives/op/op.h"

/* ---- job.c ---- */

void bny_world_free(struct bny_world *w); /* takes NULL */
/* A communicator less; the last one leaves the job. */
void bny_world_unref(struct bny_world *w);
/* How long the goodbye of a world may take, as things stand. */
uint64_t bny_farewell_ns(const struct bny_world *w);
struct bny_loop_fabric *bny_fabric_join(const uint8_t *job, int nranks);

/* ---- join.c ---- */

struct bny_loop_fabric;
/* World over a loop fabric, for tests: one rank's communicator, no bootstrap, no control plane.
 */
int bny_comm_loop(struct banyan_comm **out, struct bny_loop_fabric *fabric, int nranks,
                  int rank, const struct banyan_config *cfg);
/* Init has failed before bny_init_start(), with the last error, of code rc: tells the other
 * ranks. The sentence stays. */
void bny_init_refuse(const struct bny_id *id, int nranks, int rank, int rc,
                     uint64_t deadline_ns);
/* Joins: allocates a communicator that is not usable until bny_init_progress says 1. */
int bny_init_start(struct banyan_comm **out, const struct bny_id *id, int nranks, int rank,
                   const struct banyan_config *cfg);
int bny_init_progress(struct banyan_comm *comm); /* 1 done, 0 not yet, or an error */
int bny_init_fds(struct banyan_comm *comm, int *fds, int cap);
/* It will not join, for the last error, of code rc: the others are told, where they are there.
 * The sentence stays. */
void bny_init_give_up(struct banyan_comm *comm, int rc);

/* ---- config.c ---- */

/* A whole and checked config of what a program gave. 0 or -BANYAN_EINVAL. */
int bny_config_take(struct banyan_config *out, const struct banyan_config *given);

/* ---- comm.c ---- */

/* banyan_comm_init, given up as soon as `from` fails, where it is not NULL. */
int bny_comm_enter_world(struct banyan_comm **out, const struct banyan_id *id, int nranks,
                         int rank, const struct banyan_config *cfg, struct banyan_comm *from);

/* ---- comm_core.c ---- */

struct banyan_comm *bny_comm_alloc(struct bny_world *w, uint32_t id, int n, int rank,
                                   const int *world_ranks);
void bny_comm_free(struct banyan_comm *comm);
/* Endpoints are known: derives what depends on them, and delivers messages that came before. */
void bny_comm_settle(struct banyan_comm *comm);
/* Ends and frees it, and the world with its last communicator. */
void bny_comm_end(struct banyan_comm *comm);
/* Ends and forgets it; takes NULL in *comm. The last error stays. */
void bny_comm_discard(struct banyan_comm **comm);

/* Fails it at all ranks, with -BANYAN_EABORTED: rank 3 `did` the communicator: why. Any thread,
 * also while another one finalizes or destroys it. what: the function that is called. */
int bny_comm_give_up(struct banyan_comm *comm, const char *what, const char *did,
                     const char *why);
/* A program may give a communicator up, or ask for its failure, by one thread while another
 * finalizes it: held while the handle goes, before which the world is there. */
extern struct bny_lock bny_comm_ending;

/* A split in pieces, for callers whose members agree on an id by other means (the MPI
 * interposer: any subset of the ranks, while the others are elsewhere). `ranks` are the members
 * as the parent numbers them, this rank among them. Local: 0 and *out, which can do nothing
 * before bny_comm_name, or -BANYAN_ENOMEM. */
int bny_comm_among(struct banyan_comm *parent, const int *ranks, int n,
                   struct banyan_comm **out);
/* A number for it that this rank has never given out; 0: none is left. One member draws it. */
uint32_t bny_comm_draw(struct banyan_comm *parent);
/* All members give it that number. Messages that came before are delivered. */
void bny_comm_name(struct banyan_comm *comm, uint32_t id);
/* The next id that this rank may give, or 0: all are in use. The caller holds the lock. */
uint32_t bny_comm_draw_id(struct bny_world *w);
/* Does this rank know a communicator of that id, or a message meant for one? The caller holds
 * the lock. */
int bny_comm_id_is_used(struct bny_world *w, uint32_t id);
/* Gives comm the parent's settings. */
void bny_comm_inherit(struct banyan_comm *comm, const struct banyan_comm *parent);

#define BNY_COMM_MARK 0x6d6d6f63u
/* Of a communicator that a program hands us: 0, -BANYAN_EINVAL when it is NULL or was finalized
 * or destroyed, -BANYAN_EFORK when it is of a parent of this process. what: the function
 * called. Any thread. */
int bny_comm_refuse(const struct banyan_comm *comm, const char *what);
static inline int bny_comm_is_usable(const struct banyan_comm *comm)
{
    return comm && bny_handle_is(&comm->handle, BNY_COMM_MARK) &&
           comm->world->generation == bny_process_generation();
}
static inline int bny_comm_check(const struct banyan_comm *comm, const char *what)
{
    return bny_comm_is_usable(comm) ? 0 : bny_comm_refuse(comm, what);
}
/* The same for calls that need a lock: -BANYAN_EBUSY inside a user operation. */
static inline int bny_comm_enter(const struct banyan_comm *comm, const char *what)
{
    int rc = bny_inside ? bny_inside_refuses(what) : 0;

    return rc ? rc : bny_comm_check(comm, what);
}

/* ---- submit.c ---- */

/* In place of a request's address: run the call now. */
#define BNY_RUN ((struct banyan_request **)1)
/* Runs n checked calls together (req BNY_RUN; inside a group they wait for its end), or makes a
 * request of one. 0 or an error. */
int bny_submit(struct banyan_comm *comm, const struct bny_call *calls, size_t n,
               struct banyan_request **req);

/* ---- run.c ---- */

/* Prepared operations that were taken from their communicators' pools, a list by ->behind,
 * begin in this order, and it waits for all; then they are given back, and so is the lock of
 * the first one's world, which the caller holds. 0 or the first error. */
int bny_run(struct bny_op *first);

/* ---- call_cache.c ---- */

struct bny_cached {
    struct bny_call_shape *shape; /* all but tag, deterministic and is_set: these are added */
    const void *send;
    void *recv;
};
/* A blocking call, where the communicator has the operation of one that differs in its buffers
 * alone: 1, it ran and *rc is its result; op beyond the built-in ones: 0. */
int bny_cached_call(struct banyan_comm *comm, const struct banyan_opts *opts,
                    struct bny_call_shape *shape, const void *send, void *recv, int *rc);
/* The same for two calls that run together, neither a receive from this rank itself. */
int bny_cached_pair(struct banyan_comm *comm, const struct banyan_opts *opts,
                    const struct bny_cached calls[2], int *rc);

/* Requests that are no operations, but borrow one's state to be waited for. */
struct bny_request_kind {
    int (*start)(struct banyan_request *req);    /* lock held; 0 or an error */
    void (*explain)(struct banyan_request *req); /* sets the last error, of op.result */
    void (*free)(struct banyan_request *req);    /* it is not active; no lock */
};
struct banyan_request {
    struct bny_handle handle;
    uint64_t comm_serial; /* of the communicator's handle */
    struct bny_op op;
    const struct bny_request_kind *kind; /* NULL: an operation */
    void *of_kind;
    uint8_t is_once;        /* it frees itself: banyan_start_once() */
    uint8_t was_started;    /* at least once */
    const void *started_by; /* the thread that started it last: an address of its own */
    banyan_done_fn done;    /* NULL: none */
    void *done_ctx;
};
/* request.c: an inactive request, or NULL. */
struct banyan_request *bny_request_new(const struct banyan_comm *comm);
void bny_request_drop(struct banyan_request *req); /* its memory; its operation's is freed */

#endif
