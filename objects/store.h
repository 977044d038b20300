/* SPDX-License-Identifier: BSD-3-Clause */
/* The object store of one rank: banyan/objects.h. It rides on a communicator of its own, whose
 * messages all come here (struct bny_service), and which may fail: deaths are taken from the
 * agreed views of the control plane alone, so that all survivors see them in one order.
 *
 * Three parts:
 *   entries    copies of objects at this rank, whole or coming (store.c, transfer.c). Bytes are
 *              pulled: the receiver says from where on, the sender sends what it has.
 *   records    the directory (directory.c). An object's home is the first rank that lives at or
 *              after a hash of its name, its replica the next one. The home knows who holds it
 *              and who waits, and gives each waiting rank a source. Holders know what they
 *              hold, too: if a home dies they tell the next one (view.c). The replica has what
 *              only the home would know: that the object exists, the bytes of small objects,
 *              that it was deleted.
 *   sums       reductions (object_reduce.c).
 *
 * All is guarded by the world's lock. Ranks are the communicator's. Messages are foreign input:
 * object_wire.c checks their form, the parts what they mean. */
#ifndef BNY_OBJECTS_STORE_H
#define BNY_OBJECTS_STORE_H

#include "banyan/objects.h"
#include "collectives/call/redop.h"
#include "collectives/op/op.h"

struct bny_name {
    uint64_t w[2];
};

/* ---- tables by name: store.c ---- */

struct bny_node {
    struct bny_node *next;
    struct bny_name name;
};
struct bny_names {
    struct bny_node **buckets;
    size_t mask, count; /* buckets are mask + 1, once there are any */
};
uint64_t bny_name_hash(const struct bny_name *name);
struct bny_node *bny_names_find(const struct bny_names *t, const struct bny_name *name);
int bny_names_add(struct bny_names *t, struct bny_node *node); /* 0 or -BANYAN_ENOMEM */
void bny_names_remove(struct bny_names *t, struct bny_node *node);

/* ---- messages: object_wire.c ---- */

enum bny_object_msg {
    /* to an object's home */
    BNY_OBJ_PUT =
        1,          /* its sender has, or writes, this new object; small ones: with the bytes */
    BNY_OBJ_WANT,   /* wants a source; rank: the former one, which does not serve, or -1 */
    BNY_OBJ_WATCH,  /* wants to hear when it is there */
    BNY_OBJ_FORGET, /* wants neither any more */
    BNY_OBJ_DONE,   /* its sender's copy is whole */
    BNY_OBJ_HOLD,   /* a new home: its sender has a copy (whole or not); rank: its source */
    BNY_OBJ_DELETE,
    /* from a home */
    BNY_OBJ_SOURCE, /* pull it from rank */
    BNY_OBJ_INLINE, /* here it is */
    BNY_OBJ_FOUND,  /* to the watchers */
    BNY_OBJ_LOST,   /* there is none any more; code: why */
    BNY_OBJ_ACK,    /* of PUT and DELETE; also from a replica */
    BNY_OBJ_COPY,   /* to the replica: the record as it is; rank: whom it is to acknowledge */
    /* between copies */
    BNY_OBJ_PULL, /* send from offset on */
    BNY_OBJ_STOP, /* no more of it */
    BNY_OBJ_NONE, /* there is no such copy here; code: there is, but no memory to send it */
    BNY_OBJ_DATA, /* not struct bny_obj_wire: transfer.c */
    BNY_OBJ_PART, /* the same, of a partial sum */
    /* of a reduction's partial sums: partial.c */
    BNY_OBJ_ADD,    /* make one: struct bny_add follows; rank: who has the sum before, or -1 */
    BNY_OBJ_DROP,   /* it is not needed any more */
    BNY_OBJ_BROKEN, /* it cannot be made; code: why */
    /* among all */
    BNY_OBJ_SYNC, /* its sender has said all that it had to because of this view */
    BNY_OBJ_BYE,  /* it needs nothing any more */
    BNY_OBJ_MSG_COUNT
};

enum bny_obj_flag {
    BNY_OBJ_WHOLE = 1,   /* HOLD, PUT: a copy that needs no source (COPY: bytes follow) */
    BNY_OBJ_EXISTS = 2,  /* COPY */
    BNY_OBJ_GONE = 4,    /* COPY: deleted or lost; DELETE: it cannot be made: lost */
    BNY_OBJ_WATCHED = 8, /* FORGET: of what WATCH asked for */
    BNY_OBJ_PARTIAL = 16 /* PULL, STOP, NONE: of a partial sum */
};

struct bny_obj_wire { /* the payload of a message; small objects' bytes follow */
    struct bny_name name;
    uint64_t bytes;  /* of the object */
    uint64_t offset; /* what its sender has of it */
    uint32_t number; /* of the request, by who asked; in answers, too */
    uint32_t view;   /* SYNC */
    int32_t rank, code, owner;
    uint32_t flags;
};
_Static_assert(sizeof(struct bny_obj_wire) == 56, "wire format");
#define BNY_OBJ_INLINE_MAX 3968 /* a message with them is eager everywhere (4096) */

struct bny_add {
    struct bny_name own, before; /* the object to add, and the partial sum to add it to */
    uint64_t count;
    int32_t dtype, op;
};
_Static_assert(sizeof(struct bny_add) == 48, "wire format");

struct bny_store;
enum { BNY_SPARES = 2 }; /* sizes of what is kept for want of memory */
struct bny_spare {
    struct bny_spare *next;
};
/* Reserve memory for what this rank owes to others (messages, entries of the directory):
 * without it they would wait for this rank until their deadlines. Zeroed, freed by free. NULL:
 * that is used up, too. */
void *bny_spare_alloc(struct bny_store *st, size_t bytes);
/* Queues a message, which is lost if the peer dies. data[len]: bytes behind it. */
void bny_obj_send(struct bny_store *st, int to, enum bny_object_msg kind,
                  const struct bny_obj_wire *m, const void *data, size_t len);
/* 1: the payload [len] is a message of that kind from a peer of n; *m is a copy of its head. */
int bny_obj_parse(enum bny_object_msg kind, int n, const void *payload, size_t len,
                  struct bny_obj_wire *m);
/* Sends what is queued. Returns whether something went. */
int bny_obj_flush(struct bny_store *st);
/* Messages to oneself: at the end of whatever may have made some. */
void bny_obj_drain(struct bny_store *st);
void bny_obj_outbox_free(struct bny_store *st, int peer);

/* ---- copies ---- */

enum bny_entry_state {
    BNY_ENTRY_WANTED,  /* nothing of it is here: its home will say who has it */
    BNY_ENTRY_COMING,  /* its memory is here, its first `have` bytes */
    BNY_ENTRY_WRITING, /* made here: by a program, or a reduction */
    BNY_ENTRY_WHOLE,
    BNY_ENTRY_DEAD /* in no table any more; code says why */
};

struct bny_sum;
struct bny_entry {
    struct bny_node node;
    struct bny_store *store;
    enum bny_entry_state state;
    int code; /* DEAD: what waiting gets */
    char *data;
    uint64_t bytes, have;
    uint32_t refs;    /* views, and reductions that read it */
    uint32_t sending; /* messages that borrow its memory (cookies) */
    uint32_t nout;    /* transfers to others */
    int source;       /* -1: none yet */
    uint32_t number;  /* of the latest request to its home, and of the transfer by its answer */
    struct bny_link waiters; /* futures */
    struct bny_link link;    /* of the store's copies, live and dead */
    struct bny_link moving;  /* something of it has come and is not taken */
    struct bny_msg_list incoming;
    uint64_t taken;      /* of the first message there */
    struct bny_sum *sum; /* it is a reduction's target */
    uint8_t is_lost;     /* its home said so, for code */
    uint8_t published;   /* its home knows it as that object's */
    uint8_t partial;     /* a partial sum, in a table of its own */
    uint8_t arriving;    /* partial: another rank's, on its way into a sum; nobody pulls it */
    struct bny_entry *lender; /* partial: whose memory it has; NULL: its own */
};

struct bny_transfer { /* to a peer */
    struct bny_link link;
    struct bny_entry *entry;
    int peer;
    uint32_t number; /* the peer's */
    uint64_t offset;
};

/* A waiter for a copy. In banyan_request of object requests, and on the stack. */
struct bny_future {
    struct bny_link link, timed; /* its entry's, the store's */
    struct bny_store *store;
    struct bny_entry *entry;
    struct bny_op *op; /* its request's; NULL */
    struct banyan_object *out;
    uint64_t until; /* bytes; UINT64_MAX: all; 0: size and memory */
    uint64_t deadline_ns;
    uint64_t still_ns,
        still_have; /* while a rank lacks connections: since when nothing comes */
    int done, code;
    char why[256];
    struct bny_name name;
};

/* An answer that a PUT or DELETE waits for, of home and replica. */
struct bny_pending {
    struct bny_link link;
    enum bny_object_msg kind;
    struct bny_obj_wire m;
    struct bny_entry *entry; /* PUT */
    int home, replica;       /* that it was sent to */
    uint8_t home_said, replica_said;
    int done, code;
    int detached;      /* nobody waits */
    uint64_t still_ns; /* as a future's */
};

struct bny_record;
struct bny_store {
    struct bny_handle handle;
    struct bny_service service;
    struct banyan_comm *comm;
    struct bny_world *world;
    int rank, n;
    uint64_t limit;
    double timeout_s;
    struct bny_names entries, records, partials;
    struct bny_link all;       /* entries, live and dead */
    struct bny_link moving;    /* entries that take what has come */
    struct bny_link transfers; /* to others */
    struct bny_link pendings, timed;
    struct bny_link sums;
    struct bny_link partials_here; /* made for sums of any rank */
    uint64_t partial_names;
    int sums_stirred;
    int sums_short;                              /* of memory: at the next tick */
    struct bny_record *ended_first, *ended_last; /* records of objects that are no more */
    size_t nended;
    struct bny_outbox *outboxes; /* [n] */
    struct bny_spare *spares[BNY_SPARES];
    int nspares[BNY_SPARES];
    size_t nposts; /* in all of them */
    int draining;
    uint32_t numbers;
    uint64_t orders;
    uint64_t *gone; /* set of the world's ranks, scratch */
    uint8_t *dead;  /* [n] */
    uint8_t *bye;   /* [n] */
    uint32_t ndead; /* the view: how many are dead; all survivors see the same sets */
    uint32_t *synced;
    uint32_t views;   /* of the control plane */
    uint64_t look_ns; /* no look before that at what views do not tell of */
    int finalizes;
    uint64_t lacks_ns; /* since when a rank is known to lack connections; 0: none is */
    int hopeless;      /* 0, or why nothing is waited for as things are: */
    char hopeless_why[256];
    uint64_t bytes, sent, received;
    struct bny_op carrier; /* of cookies: what transports borrow */
    int sweep;             /* a transport has given memory back */
    unsigned handles;      /* requests and views that programs have */
};

/* store.c */
struct bny_entry *bny_entry_find(const struct bny_store *st, const struct bny_name *name);
/* A new one, in the table. NULL: no memory. */
struct bny_entry *bny_entry_new(struct bny_store *st, const struct bny_name *name,
                                enum bny_entry_state state);
/* The same of a partial sum: among those. */
struct bny_entry *bny_entry_new_partial(struct bny_store *st, const struct bny_name *name,
                                        enum bny_entry_state state);
/* Gives it memory. 0, or -BANYAN_ENOMEM with a sentence. */
int bny_entry_room(struct bny_entry *e, uint64_t bytes);
/* The copy here, or a request to its home for one. NULL: no memory. */
struct bny_entry *bny_entry_get(struct bny_store *st, const struct bny_name *name);
/* More of it is here (e->have): tells waiters, its home, transfers. */
void bny_entry_grew(struct bny_entry *e);
/* It is no more: waiting gets code. Its memory goes when nobody reads it. */
void bny_entry_end(struct bny_entry *e, int code);
/* The same, if another rank's object has its name: waiters here then wait for that one. */
void bny_entry_yield(struct bny_entry *e);
/* Drops a reference. The home need not look for a copy that has not come if nobody waits for it
 * any more. */
void bny_entry_drop(struct bny_entry *e);
/* Frees a dead one that nobody uses. */
void bny_entry_reap(struct bny_entry *e);
/* Drops the bytes that have come and are not taken. */
void bny_entry_forget_incoming(struct bny_entry *e);
/* Asks its home for a source; bad: the former one, which does not serve, or -1. */
void bny_entry_want(struct bny_entry *e, int bad);
void bny_future_add(struct bny_future *f, struct bny_entry *e);
void bny_future_end(struct bny_future *f, int code); /* idempotent */
struct bny_pending *bny_pending_new(struct bny_store *st, enum bny_object_msg kind,
                                    const struct bny_name *name, struct bny_entry *e);
void bny_pending_send(struct bny_store *st, struct bny_pending *p);
void bny_pending_end(struct bny_pending *p, int code);
/* "0123...ef" */
#define BNY_NAME_HEX 33
void bny_name_text(char out[BNY_NAME_HEX], const struct bny_name *name);

/* st: zero. Rides on comm from now on. 0 or -BANYAN_ENOMEM. */
int bny_store_begin(struct bny_store *st, struct banyan_comm *comm);
void bny_store_message(struct bny_store *st, int from, enum bny_object_msg kind,
                       const struct bny_obj_wire *m, const char *data);
void bny_store_end(struct bny_store *st); /* its tables; store's own memory is the caller's */
static inline void bny_store_mark_runnable(struct bny_store *st)
{
    st->world->has_work = 1;
}

/* ---- directory.c ---- */

int bny_home_of(const struct bny_store *st, const struct bny_name *name);
int bny_replica_of(const struct bny_store *st, const struct bny_name *name); /* -1: none */
void bny_directory_message(struct bny_store *st, int from, enum bny_object_msg kind,
                           const struct bny_obj_wire *m, const char *data);
/* These ranks are gone besides those that were: was_dead [n]. */
void bny_directory_deaths(struct bny_store *st, const uint8_t *was_dead);
/* All that survivors know was said: what nobody holds is lost; waiters get a source. */
void bny_directory_settle(struct bny_store *st);
int bny_is_synced(const struct bny_store *st);
void bny_directory_prune(struct bny_store *st); /* forgets the oldest names that are no more */
void bny_directory_free(struct bny_store *st);

/* ---- transfer.c ---- */

#define BNY_OBJ_CHUNK (256u << 10) /* of a message by reference */
void bny_transfer_data(struct bny_store *st, int from, struct bny_msg *msg); /* takes msg */
void bny_transfer_pull(struct bny_store *st, int from, const struct bny_obj_wire *m);
void bny_transfer_stop(struct bny_store *st, int from, const struct bny_obj_wire *m);
int bny_transfers_run(struct bny_store *st); /* whether something moved */
void bny_transfers_deaths(struct bny_store *st);
void bny_transfer_free(struct bny_transfer *t);
void bny_transfers_end(const struct bny_entry *e); /* it will never be whole */

/* ---- view.c ---- */

void bny_view_look(struct bny_store *st);
void bny_view_sync(struct bny_store *st, int from, const struct bny_obj_wire *m);

/* ---- object_reduce.c ---- */

struct bny_sum_call {
    const struct bny_name *names; /* [n], copied */
    size_t n, k, count;
    enum banyan_dtype dtype;
    struct bny_redop op;
};
/* Makes target (WRITING, with memory) the sum. 0 or -BANYAN_ENOMEM. */
int bny_sum_start(struct bny_entry *target, const struct bny_sum_call *call);
void bny_sum_found(struct bny_store *st, const struct bny_obj_wire *m);
void bny_sum_lost(struct bny_store *st, const struct bny_obj_wire *m);
/* Copies have become whole or have ended: bny_sums_run() looks at them. */
void bny_sum_progress(struct bny_store *st);
int bny_sums_run(struct bny_store *st);
void bny_sums_view(struct bny_store *st);
void bny_sum_stop(struct bny_sum *s);    /* its target is no more, or complete; takes NULL */
void bny_sum_free(struct bny_sum *s);    /* takes NULL */
void bny_sums_end(struct bny_store *st); /* all of them */
/* A partial sum of one of this rank's cannot be made at that rank. */
void bny_sum_broken(struct bny_store *st, int from, const struct bny_obj_wire *m);
/* 1: it is the last partial sum of one, on its way here, and something is wrong with it. */
int bny_sum_trouble(struct bny_store *st, const struct bny_entry *in, int code);
int bny_sum_contributors(const struct bny_entry *e, uint8_t *in, size_t n);

/* ---- partial.c ---- */

struct bny_entry *bny_partial_find(const struct bny_store *st, const struct bny_name *name);
void bny_partial_add(struct bny_store *st, int from, const struct bny_obj_wire *m,
                     const struct bny_add *add);
void bny_partial_drop(struct bny_store *st, int from, const struct bny_name *name);
/* The partial sum of that name, which rank has or will have, on its way into the memory of
 * `into`. NULL: no memory, or it is on its way already. */
struct bny_entry *bny_partial_pull(struct bny_store *st, const struct bny_name *name, int rank,
                                   struct bny_entry *into);
void bny_partial_unpull(struct bny_entry *in); /* takes NULL */
/* The incoming bytes are wrong, or will not come. Afterwards `in` may be gone. */
void bny_partial_trouble(struct bny_entry *in, int code);
int bny_partials_run(struct bny_store *st); /* whether something was added */
void bny_partials_view(struct bny_store *st);
void bny_partials_end(struct bny_store *st);

#endif
