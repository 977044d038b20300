/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan's object store: named immutable byte strings, for task systems (parameter servers,
 * serving, reinforcement learning), where the program learns only at run time which rank needs
 * which data. Compiles alone as C11 and as C++17; part of libbanyan.
 *
 * A rank puts an object; any rank gets it, before or after. Objects move from copy to copy:
 * each copy sends to one rank at a time, copies still arriving forward what they have, and a
 * later rank joins the end of the shortest chain (Hoplite: Zhuang et al., SIGCOMM 2021, section
 * 4). All ranks serve while their program computes: the store starts the library's progress
 * thread. docs/objects.md is the guide.
 *
 * Conventions are banyan.h's: errors are negative BANYAN_E* codes with a sentence in
 * banyan_last_error(). Besides:
 *   Threads    any thread, any number at a time, on any store, except for create, finalize and
 *              destroy. A request belongs to its caller, as in banyan.h.
 *   Groups     inside banyan_group_start and _end all but _release, _stats and _destroy return
 *              -BANYAN_EBUSY.
 *   Deadlines  timeout_s < 0: the store's (config); 0 or more: that many seconds. A call that
 *              passes its deadline returns -BANYAN_ETIMEDOUT and fails nothing else.
 *   Failures   when ranks die or leave, only the objects that they alone held are lost. Others
 *              continue; no call of the store fails its communicator, and a failed communicator
 *              does not affect the store. A rank without descriptors or memory for its
 *              connections gets -BANYAN_ESYSTEM or -BANYAN_ENOMEM for all that it waits for,
 *              and should end.
 *   Names      a name is for one object ever: a deleted one cannot be put again. */
#ifndef BANYAN_OBJECTS_H
#define BANYAN_OBJECTS_H

#include <banyan/banyan.h>

#ifdef __cplusplus
extern "C" {
#endif

struct banyan_objects; /* a store, opaque: this rank's part */

/* A name: any 16 bytes. Random bytes, a counter and a rank, a hash: all are distributed
 * evenly. */
struct banyan_object_id {
    unsigned char bytes[16];
};

/* Settings: start from BANYAN_OBJECTS_CONFIG_INIT. */
struct banyan_objects_config {
    size_t size;           /* sizeof(struct banyan_objects_config) of the caller */
    uint64_t memory_bytes; /* most memory for objects on this rank; 0: no limit */
    double timeout_s;      /* deadline of calls without their own; 0: the communicator's */
    int progress_cpu;      /* 1 + the CPU to bind the progress thread to; 0: unbound */
};
#define BANYAN_OBJECTS_CONFIG_INIT                                                             \
    {                                                                                          \
        sizeof(struct banyan_objects_config), 0, 0.0, 0                                        \
    }

/* A store over the ranks of comm, which can be used and destroyed independently. Collective.
 * cfg: may differ between ranks; NULL: defaults. Starts a progress thread if the process has
 * none for this job. Returns 0 and *out; -BANYAN_EINVAL, -BANYAN_ENOMEM, -BANYAN_ENOTSUP (the
 * loop transport keeps no order), or comm's failure. */
BANYAN_API int banyan_objects_create(struct banyan_comm *comm,
                                     const struct banyan_objects_config *cfg,
                                     struct banyan_objects **out);
/* Serves the others until every live rank has called it, then destroys. Returns 0;
 * -BANYAN_ETIMEDOUT with a rank that did not call within the store's deadline, or
 * -BANYAN_ESYSTEM, -BANYAN_ENOMEM with the sentence of a rank that lacks resources for
 * connections, or comm's failure: all these destroy the store; -BANYAN_EBUSY if views or
 * requests are not released: it stays. */
BANYAN_API int banyan_objects_finalize(struct banyan_objects *store);
/* Frees it, even if others need it: for a rank that ends. Takes NULL. Views become invalid.
 * Returns 0, -BANYAN_EINVAL. */
BANYAN_API int banyan_objects_destroy(struct banyan_objects *store);

/* A view of an object's copy on this rank. Lent until released, even after a delete. */
struct banyan_object {
    const void *data; /* 64-byte aligned; read-only */
    size_t bytes;     /* of the whole object */
    void *ref;        /* the library's */
};

/* Puts a copy of data[bytes] (borrowed until return). On return two ranks know the name (the
 * object's directory and its replica), and keep the data of small objects. Returns 0;
 * -BANYAN_EBUSY: an object of that name exists; -BANYAN_EINVAL: one did, or arguments;
 * -BANYAN_ENOMEM: no memory, or over the limit, with the biggest object here;
 * -BANYAN_ETIMEDOUT. Blocks. */
BANYAN_API int banyan_object_put(struct banyan_objects *store,
                                 const struct banyan_object_id *id, const void *data,
                                 size_t bytes);
/* The same in place and incrementally: the caller writes *data [bytes] front to back until fill
 * declares all of it final. Readers get the filled part while the rest is still written. Errors
 * as from put. */
BANYAN_API int banyan_object_create(struct banyan_objects *store,
                                    const struct banyan_object_id *id, size_t bytes,
                                    void **data);
/* Declares the first `bytes` bytes final. Never less than before; all of them: the object is
 * complete. -BANYAN_EINVAL: this rank is not creating such an object, it was deleted, or bytes
 * exceeds its size. */
BANYAN_API int banyan_object_fill(struct banyan_objects *store,
                                  const struct banyan_object_id *id, size_t bytes);

/* Waits until the object is put, and has arrived. *out is lent. Returns 0; -BANYAN_ETIMEDOUT:
 * the sentence says whether it was put at all; -BANYAN_ERANKDEAD, at once: all ranks that held
 * it are dead; -BANYAN_EINVAL: it was deleted, or arguments; -BANYAN_ENOMEM as put. Blocks. */
BANYAN_API int banyan_object_get(struct banyan_objects *store,
                                 const struct banyan_object_id *id, double timeout_s,
                                 struct banyan_object *out);
/* The same as a request: use banyan_start, banyan_test, banyan_wait, banyan_wait_any (also
 * among other requests) and banyan_request_free of banyan.h; banyan_progress_fd signals
 * progress. Its result is that of get; *out is borrowed until then, and lent if it is 0. It may
 * be started again once *out is released: -BANYAN_EBUSY before. */
BANYAN_API int banyan_object_get_init(struct banyan_objects *store,
                                      const struct banyan_object_id *id,
                                      struct banyan_object *out, struct banyan_request **req);
/* As get, but returns as soon as the object's size is known and its bytes begin to arrive. */
BANYAN_API int banyan_object_open(struct banyan_objects *store,
                                  const struct banyan_object_id *id, double timeout_s,
                                  struct banyan_object *out);
/* Waits until the first `bytes` bytes of a view have arrived (0: only checks). *have: number of
 * arrived bytes, possibly more. Errors as from get; arrived bytes stay readable. Blocks. */
BANYAN_API int banyan_object_wait(struct banyan_objects *store,
                                  const struct banyan_object *view, size_t bytes,
                                  double timeout_s, size_t *have);
/* Releases a view and clears it. A cleared view is allowed. */
BANYAN_API int banyan_object_release(struct banyan_objects *store, struct banyan_object *view);

/* Deletes the object everywhere. Its memory is free once its last view is released and no
 * transfer runs; waiting gets return -BANYAN_EINVAL. Returns 0 once the directory knows, also
 * if it was deleted before; -BANYAN_EINVAL: no such object; -BANYAN_ETIMEDOUT. Blocks. */
BANYAN_API int banyan_object_delete(struct banyan_objects *store,
                                    const struct banyan_object_id *id);

/* Puts `target`, the reduction of the k objects that appear first of the n named ones (each of
 * count elements), on this rank. Returns as put does, once target's name is known: get target
 * to wait for its bytes. k = n: all of them. Another object replaces one that is lost before it
 * was added; if fewer than k are left target is lost, too, as it is if this rank dies. The
 * ranks that hold big objects add them, and need the memory of one more. op: a built-in one;
 * AVG divides by k. The order of float additions may vary from run to run. If the reduction
 * fails, before or after a get, target's gets on all ranks return it: -BANYAN_EMISMATCH: an
 * object has another size; -BANYAN_ENOMEM: no memory on this rank. Errors as from put. */
BANYAN_API int banyan_object_reduce(struct banyan_objects *store,
                                    const struct banyan_object_id *target,
                                    const struct banyan_object_id *ids, size_t n, size_t k,
                                    size_t count, enum banyan_dtype dtype, banyan_op op);
/* Which of the n objects are in a target of this rank, in the order of the call: in[n] becomes
 * 1 or 0. Returns their number; -BANYAN_EBUSY: target is incomplete; -BANYAN_EINVAL. */
BANYAN_API int banyan_object_contributors(struct banyan_objects *store,
                                          const struct banyan_object_id *target, uint8_t *in,
                                          size_t n);

/* State and counters of this rank. */
struct banyan_objects_stats {
    size_t size;       /* sizeof of the caller; set before the call */
    uint64_t objects;  /* copies here, complete or not */
    uint64_t bytes;    /* their memory */
    uint64_t records;  /* objects with this rank as directory, or replica */
    uint64_t sent;     /* bytes of objects sent to other ranks */
    uint64_t received; /* and received from them */
};
BANYAN_API int banyan_objects_stats(struct banyan_objects *store,
                                    struct banyan_objects_stats *out);

#ifdef __cplusplus
}
#endif
#endif
