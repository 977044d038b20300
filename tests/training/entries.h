/* SPDX-License-Identifier: BSD-3-Clause */
/* Every public function, called by name with what a test gives it. */
#ifndef BNY_TEST_ENTRIES_H
#define BNY_TEST_ENTRIES_H

#include "banyan/extend.h"
#include "banyan/methods.h"
#include "banyan/objects.h"

/* What is handed over. Handles may be live, freed or NULL; so may pointers, but for freed. */
struct given {
    struct banyan_comm *comm;
    struct banyan_request *req;
    struct banyan_codec_state *state;
    struct banyan_objects *store;
    struct banyan_accordion *accordion;
    struct banyan_outer *outer;
    struct banyan_shared_mask *mask;
    struct banyan_buckets *buckets;
    struct banyan_lgc *lgc; /* NULL where there is no oneDNN */
    struct banyan_lazy *lazy;
    struct banyan_gossip *gossip;
    struct banyan_rows *rows;
    struct banyan_sketch *sketch;
    struct banyan_stale *stale;
    banyan_op op;
    void *buf, *to;       /* [BUF_BYTES] each */
    void *out;            /* where a pointer goes */
    int *done;            /* a number */
    const size_t *counts; /* of one rank */
    const char *name;
    struct banyan_tensor *tensors; /* one */
    const void *settings;          /* of a create's; NULL: the default ones */
    void *stats;                   /* size set */
    struct banyan_object *view;
};
enum { BUF_BYTES = 1 << 16, COUNT = 400 };

enum entry_kind {
    ENTRY_UNKNOWN, /* there is no row for it */
    ENTRY_CODE,    /* returns 0 or an error, which a call without handles gets */
    ENTRY_WAITS,   /* the same, and communicates: it is refused inside a group */
    ENTRY_SIZE,    /* returns bytes; 0 without a handle */
    ENTRY_POINTER, /* returns a pointer; NULL without a handle */
    ENTRY_NUMBER,  /* returns a number, whatever it is given */
    ENTRY_VOID,
    ENTRY_FREE, /* returns 0 for NULL; of a freed handle -BANYAN_EINVAL */
};
struct entry {
    const char *name;
    enum entry_kind kind;
    long rc;
    int only_kind; /* 1: looks it up and does not call */
};
/* Calls e->name with g. */
void entry_call(struct entry *e, struct given *g);

#endif
