/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan's object store: immutable byte strings with names, for task systems (parameter
 * servers, serving, reinforcement learning), where who needs what, and when, is known only as
 * the program runs. Compiles alone as C11 and as C++17; part of libbanyan.
 *
 * A rank puts an object; any rank gets it, before or after. Objects move from copy to copy:
 * each copy sends to one rank at a time, copies that are still arriving send on what they have,
 * and whoever comes later is led to the end of the shortest chain (Hoplite: Zhuang et al.,
 * SIGCOMM 2021, section 4). All ranks serve while their program computes: the store has the
 * library's progress thread started. docs/objects.md is the guide.
 *
 * Conventions are banyan.h's: errors are negative BANYAN_E* codes with a sentence in
 * banyan_last_error(). Besides:
 *   Threads    any thread, any number at a time, on any store but for create, finalize and
 *              destroy. A request is its caller's, as banyan.h's.
 *   Groups     inside banyan_group_start and _end all but _release, _stats and _destroy return
 *              -BANYAN_EBUSY.
 *   Deadlines  timeout_s < 0: the store's (config); 0 or more: that many seconds. What passes
 *              its deadline returns -BANYAN_ETIMEDOUT and fails nothing else.
 *   Failures   ranks that die or leave cost what they alone held. Others go on; no call of the
 *              store fails its communicator, and a communicator that failed does not hinder it.
 *              A rank that has no descriptors or memory for its connections to others gets
 *              -BANYAN_ESYSTEM or -BANYAN_ENOMEM for all that it waits for, and should end.
 *   Names      a name is used for one object ever: a deleted one is not put again.
 */
#ifndef BANYAN_OBJECTS_H
#define BANYAN_OBJECTS_H

#include <banyan/banyan.h>

#ifdef __cplusplus
extern "C" {
#endif

struct banyan_objects; /* a store, opaque: this rank's part of it */

/* A name: any 16 bytes. Random ones, a counter and a rank, a hash: all are spread alike. */
struct banyan_object_id {
    unsigned char bytes[16];
};

/* Settings. Zero, but for size, are the defaults. Members may be added at the end. */
struct banyan_objects_config {
    size_t size;           /* sizeof(struct banyan_objects_config) of the caller */
    uint64_t memory_bytes; /* the most that objects take at this rank; 0: no limit */
    double timeout_s;      /* deadline of calls without their own; 0: the communicator's */
    int progress_cpu;      /* 1 + the CPU to bind the progress thread to; 0: unbound */
};

/* A store over the ranks of comm, which may be used and destroyed beside it. Collective.
 * cfg: may differ between ranks; NULL: defaults. Starts a progress thread where the process has
 * none for this job. Returns 0 and *out; -BANYAN_EINVAL, -BANYAN_ENOMEM, -BANYAN_ENOTSUP (the
 * loop transport keeps no order), or comm's failure. */
BANYAN_API int banyan_objects_create(struct banyan_comm *comm,
                                     const struct banyan_objects_config *cfg,
                                     struct banyan_objects **out);
/* Serves the others until every rank that lives has called it, then destroys. Returns 0;
 * -BANYAN_ETIMEDOUT naming a rank that did not come within the store's deadline, or
 * -BANYAN_ESYSTEM, -BANYAN_ENOMEM with the sentence of one that lacks what connections need, or
 * comm's failure: the store is destroyed all the same; -BANYAN_EBUSY where views or requests
 * are not given back: it is not. */
BANYAN_API int banyan_objects_finalize(struct banyan_objects *store);
/* Frees it, whatever others need of it: for a rank that ends. Takes NULL. Views are void. */
BANYAN_API void banyan_objects_destroy(struct banyan_objects *store);

/* A view of an object's copy at this rank. Lent: valid until it is released, also when the
 * object is deleted meanwhile. */
struct banyan_object {
    const void *data; /* 64-byte aligned; not to be written to */
    size_t bytes;     /* of the whole object */
    void *ref;        /* the library's */
};

/* Puts a copy of data[bytes] (borrowed until return). Behind its return the name is known to
 * two ranks (the object's directory and its replica), and small objects are kept there
 * themselves. Returns 0; -BANYAN_EBUSY: an object of that name exists; -BANYAN_EINVAL: one did,
 * or arguments; -BANYAN_ENOMEM: no memory, or over the limit, naming the biggest object here;
 * -BANYAN_ETIMEDOUT. Blocks. */
BANYAN_API int banyan_object_put(struct banyan_objects *store,
                                 const struct banyan_object_id *id, const void *data,
                                 size_t bytes);
/* The same in place and bit by bit: *data [bytes] is the caller's to write, front to back,
 * until fill has said that all of it is there. Readers get what has been filled while the rest
 * is still written. Errors as put's. */
BANYAN_API int banyan_object_create(struct banyan_objects *store,
                                    const struct banyan_object_id *id, size_t bytes,
                                    void **data);
/* Its first `bytes` bytes are final. Never less than before; all of them: the object is whole.
 * -BANYAN_EINVAL: this rank creates no such object, it was deleted, or that many do not fit. */
BANYAN_API int banyan_object_fill(struct banyan_objects *store,
                                  const struct banyan_object_id *id, size_t bytes);

/* Waits until the object is put, and is here. *out is lent. Returns 0; -BANYAN_ETIMEDOUT: says
 * whether it was put at all; -BANYAN_ERANKDEAD, at once: all ranks that held it are dead;
 * -BANYAN_EINVAL: it was deleted, or arguments; -BANYAN_ENOMEM as put. Blocks. */
BANYAN_API int banyan_object_get(struct banyan_objects *store,
                                 const struct banyan_object_id *id, double timeout_s,
                                 struct banyan_object *out);
/* The same as a request: banyan_start, banyan_test, banyan_wait, banyan_wait_any (also among
 * other requests) and banyan_request_free of banyan.h; banyan_progress_fd tells when to look.
 * Its result is get's; where that is 0 *out, which is borrowed until then, is lent. It may be
 * started again when *out was released: -BANYAN_EBUSY before. */
BANYAN_API int banyan_object_get_init(struct banyan_objects *store,
                                      const struct banyan_object_id *id,
                                      struct banyan_object *out, struct banyan_request **req);
/* As get, but returns as soon as the object's size is known and its bytes begin to come. */
BANYAN_API int banyan_object_open(struct banyan_objects *store,
                                  const struct banyan_object_id *id, double timeout_s,
                                  struct banyan_object *out);
/* Waits until the first `bytes` bytes of a view are there (0: only looks). *have: how many are,
 * maybe more. Errors as get's: what had come by then stays readable. Blocks. */
BANYAN_API int banyan_object_wait(struct banyan_objects *store,
                                  const struct banyan_object *view, size_t bytes,
                                  double timeout_s, size_t *have);
/* Gives a view back and clears it. A cleared one is fine. */
BANYAN_API int banyan_object_release(struct banyan_objects *store, struct banyan_object *view);

/* Deletes the object everywhere. Its memory is free again when the last view of it is given
 * back and nothing is being sent; gets that wait return -BANYAN_EINVAL. Returns 0 when the
 * directory knows, also where it was deleted before; -BANYAN_EINVAL: there is no such object;
 * -BANYAN_ETIMEDOUT. Blocks. */
BANYAN_API int banyan_object_delete(struct banyan_objects *store,
                                    const struct banyan_object_id *id);

/* Puts `target`, the reduction of the k objects that appear first of the n named ones (each of
 * count elements), at this rank. Returns as put does, when target's name is known: get target
 * to wait for its bytes. k = n: all of them. Objects that are lost before they were added are
 * replaced by others that appear; where fewer than k are left target is lost too, and so where
 * this rank dies. Big objects are added at the ranks that have them, which need the memory of
 * one more for that. op: a built-in one; AVG divides by k. Floats are added in an order that
 * may differ from run to run. A reduction that fails, before or after a get, is told to
 * target's gets at all ranks: -BANYAN_EMISMATCH: an object has another size; -BANYAN_ENOMEM:
 * this rank has no memory for it. Errors as put's. */
BANYAN_API int banyan_object_reduce(struct banyan_objects *store,
                                    const struct banyan_object_id *target,
                                    const struct banyan_object_id *ids, size_t n, size_t k,
                                    size_t count, enum banyan_dtype dtype, banyan_op op);
/* Which of the n objects are in a target of this rank, in the order of the call: in[n] becomes
 * 1 or 0. Returns how many; -BANYAN_EBUSY: target is not whole yet; -BANYAN_EINVAL. */
BANYAN_API int banyan_object_contributors(struct banyan_objects *store,
                                          const struct banyan_object_id *target, uint8_t *in,
                                          size_t n);

/* What this rank has and has done. Members may be added at the end, and only those that the
 * caller's size has are written. */
struct banyan_objects_stats {
    size_t size;       /* sizeof of the caller; set before the call */
    uint64_t objects;  /* copies here, whole or not */
    uint64_t bytes;    /* their memory */
    uint64_t records;  /* objects of which this rank is the directory, or its replica */
    uint64_t sent;     /* bytes of objects sent to others */
    uint64_t received; /* and received */
};
BANYAN_API int banyan_objects_stats(struct banyan_objects *store,
                                    struct banyan_objects_stats *out);

#ifdef __cplusplus
}
#endif
#endif
