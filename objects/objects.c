/* SPDX-License-Identifier: BSD-3-Clause */
/* The public functions of banyan/objects.h: arguments, locks, waiting. */
#include "banyan/objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "collectives/api/arguments.h"
#include "collectives/api/job.h"
#include "objects/store.h"
#include "collectives/progress/progress.h"

#define MARK 0x726f7473u

struct banyan_objects {
    struct bny_store store; /* begins with the handle */
};
static struct bny_handles handles = BNY_HANDLES(MARK, struct banyan_objects);

static int objects_check(const struct banyan_objects *s, const char *what)
{
    int rc = bny_inside_refuses(what);

    if (rc)
        return rc;
    if (!s)
        return bny_fail(BANYAN_EINVAL, "%s: the store must not be NULL", what);
    if (!bny_handle_is(&s->store.handle, MARK))
        return bny_fail(BANYAN_EINVAL, "%s: the store was finalized or destroyed already",
                        what);
    return bny_comm_check(s->store.comm, what);
}

/* Of calls that need other ranks, or that bring on those that do: a group waits for its end. */
static int enter(const struct banyan_objects *s, const char *what)
{
    int rc = objects_check(s, what);

    return rc ? rc : banyan_comm_may_wait(s->store.comm, what);
}

static int check_id(const struct banyan_objects *s, const struct banyan_object_id *id,
                    struct bny_name *name, const char *what)
{
    int rc = enter(s, what);

    if (rc)
        return rc;
    if (!id)
        return bny_fail(BANYAN_EINVAL, "%s: id must not be NULL", what);
    memcpy(name, id, sizeof *name);
    return 0;
}

static uint64_t deadline_of(const struct bny_store *st, double timeout_s)
{
    uint64_t now = bny_now_ns();

    if (timeout_s < 0)
        return bny_deadline_after(now, st->timeout_s);
    return timeout_s > 0 ? bny_deadline_after(now, timeout_s) : now;
}

/* ---- life ---- */

static void init_settings(struct bny_store *st, const struct banyan_objects_config *cfg,
                          const struct banyan_comm *comm)
{
    st->limit = cfg->memory_bytes;
    st->timeout_s = cfg->timeout_s > 0 ? cfg->timeout_s : comm->op_timeout_s;
}

static int config_take(struct banyan_objects_config *out,
                       const struct banyan_objects_config *given)
{
    int rc;

    *out = (struct banyan_objects_config)BANYAN_OBJECTS_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, given, "banyan_objects_create",
                        "BANYAN_OBJECTS_CONFIG_INIT");
    if (rc == 0 && !(out->timeout_s >= 0))
        rc = bny_fail(BANYAN_EINVAL, "banyan_objects_create: cfg->timeout_s must be >= 0");
    return rc;
}

static int keeps_order(const struct banyan_comm *comm)
{
    for (int r = 0; r < comm->n; r++)
        if (comm->peers[r].ep && (comm->peers[r].ep->ops->caps & BNY_TP_UNORDERED))
            return 0;
    return 1;
}

/* Nobody sends before all can take it: the barrier is the parent's. Whoever fails comes to it
 * all the same. */
int banyan_objects_create(struct banyan_comm *comm, const struct banyan_objects_config *cfg,
                          struct banyan_objects **out)
{
    struct banyan_objects_config c;
    struct banyan_objects *s = NULL;
    struct banyan_comm *own = NULL;
    int32_t well = 0;
    int rc = banyan_comm_may_wait(comm, "banyan_objects_create"), failed;

    if (rc)
        return rc;
    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_objects_create: out must not be NULL");
    *out = NULL;
    rc = banyan_comm_dup(comm, &own);
    if (rc)
        return rc;
    rc = config_take(&c, cfg);
    if (rc == 0 && !keeps_order(comm))
        rc = bny_fail(BANYAN_ENOTSUP,
                      "banyan_objects_create: a store needs a transport that keeps order; loop "
                      "does not");
    if (rc == 0 && !(s = bny_handle_new(&handles)))
        rc = bny_fail(BANYAN_ENOMEM, "banyan_objects_create: no memory");
    if (rc == 0) {
        bny_world_lock(own->world);
        init_settings(&s->store, &c, comm);
        rc = bny_store_begin(&s->store, own);
        if (rc == 0)
            rc = bny_world_thread(own->world, c.progress_cpu - 1);
        if (rc && own->service)
            bny_store_end(&s->store);
        bny_world_unlock(own->world);
    }
    well = rc == 0;
    failed = banyan_allreduce(&well, &well, 1, BANYAN_I32, BANYAN_MIN, comm, NULL);
    if (rc == 0 && failed == 0 && well) {
        *out = s;
        return 0;
    }
    if (rc == 0) {
        bny_world_lock(own->world);
        bny_store_end(&s->store);
        bny_world_unlock(own->world);
        rc = failed ? failed
                    : bny_fail(BANYAN_EABORTED,
                               "banyan_objects_create: it failed at another rank");
    }
    if (s)
        bny_handle_free(&handles, &s->store.handle);
    bny_comm_discard(&own);
    return rc;
}

static void destroy(struct banyan_objects *s)
{
    struct banyan_comm *own = s->store.comm;
    struct bny_world *w = own->world;

    bny_world_lock(w);
    bny_store_end(&s->store);
    bny_orphans_end(w, own->id);
    bny_comm_free(own);
    bny_world_unlock(w);
    bny_handle_free(&handles, &s->store.handle);
    bny_world_unref(w);
}

int banyan_objects_destroy(struct banyan_objects *s)
{
    int rc = s ? objects_check(s, "banyan_objects_destroy") : 0;

    if (s && rc == 0)
        destroy(s);
    return rc;
}

/* The first rank that lives and has not said goodbye; -1: none. */
static int who_is_missing(const struct bny_store *st)
{
    for (int r = 0; r < st->n; r++)
        if (r != st->rank && !st->dead[r] && !st->bye[r])
            return r;
    return -1;
}

/* Partial sums are wanted by nobody who has said goodbye. */
static int everything_went(const struct bny_store *st)
{
    for (const struct bny_link *l = st->transfers.next; l && l != &st->transfers; l = l->next)
        if (!BNY_LINK_OF(l, const struct bny_transfer, link)->entry->partial)
            return 0;
    return st->nposts == 0;
}

static void turn(struct bny_waiter *wt, struct bny_world *w)
{
    bny_wait_turn(wt, w, NULL);
    bny_completed_call();
    if (bny_world_trylock(w)) {
        int n = bny_world_progress(w);
        bny_world_unlock(w);
        if (n > 0)
            bny_wait_found(wt, w);
    }
}

#define GOODBYE_S 1.0

int banyan_objects_finalize(struct banyan_objects *s)
{
    struct bny_obj_wire bye = { .rank = -1, .owner = -1 };
    struct bny_store *st;
    struct bny_waiter wt;
    uint64_t deadline, goodbye = 0;
    int rc = enter(s, "banyan_objects_finalize"), missing = -1, done = 0;
    char why[256] = "";

    if (rc)
        return rc;
    st = &s->store;
    bny_world_lock(st->world);
    if (st->handles)
        rc = bny_fail(BANYAN_EBUSY,
                      "banyan_objects_finalize: %u views or requests of objects were not given "
                      "back",
                      st->handles);
    st->finalizes = rc == 0;
    st->hopeless = 0; /* nobody may have looked for long: again, and at once */
    st->look_ns = 0;
    for (int r = 0; rc == 0 && r < st->n; r++)
        if (r != st->rank)
            bny_obj_send(st, r, BNY_OBJ_BYE, &bye, NULL, 0);
    bny_world_unlock(st->world);
    if (rc)
        return rc;
    deadline = deadline_of(st, -1);
    bny_wait_init(&wt);
    while (!done) {
        bny_world_lock(st->world);
        missing = who_is_missing(st);
        done = (missing < 0 && everything_went(st)) || bny_deadline_passed(deadline);
        /* Reachable ranks are told first that this rank sends nothing more. */
        if (!done && st->hopeless && !goodbye)
            goodbye = bny_deadline_in(GOODBYE_S);
        if (!done && st->hopeless && (st->nposts == 0 || bny_deadline_passed(goodbye))) {
            done = rc = st->hopeless;
            snprintf(why, sizeof why, "%s", st->hopeless_why);
        }
        bny_world_unlock(st->world);
        if (!done)
            turn(&wt, st->world);
    }
    destroy(s);
    if (rc)
        return bny_fail((enum banyan_error) - rc, "banyan_objects_finalize: %s", why);
    return missing < 0
               ? 0
               : bny_fail(BANYAN_ETIMEDOUT,
                          "banyan_objects_finalize: rank %d did not call it in time", missing);
}

/* ---- waiting ---- */

static void objects_wait_for(struct bny_store *st, const int *done)
{
    struct bny_waiter wt;
    int is_done = 0;

    bny_wait_init(&wt);
    while (!is_done) {
        turn(&wt, st->world);
        bny_world_lock(st->world);
        is_done = *done;
        bny_world_unlock(st->world);
    }
}

/* Lock held when it is called, not when it returns. */
static int wait_pending(struct bny_store *st, struct bny_pending *p, const char *what)
{
    uint64_t deadline = deadline_of(st, -1);
    struct bny_waiter wt;
    int done = p->done, code, owner;

    bny_world_unlock(st->world);
    bny_wait_init(&wt);
    while (!done) {
        turn(&wt, st->world);
        bny_world_lock(st->world);
        if (!p->done && bny_deadline_passed(deadline))
            bny_pending_end(p, -BANYAN_ETIMEDOUT);
        done = p->done;
        bny_world_unlock(st->world);
    }
    code = p->code;
    owner = p->m.owner;
    if (code == -BANYAN_ETIMEDOUT)
        bny_fail(BANYAN_ETIMEDOUT,
                 "%s: rank %d, which has the directory of this object, did not answer in time",
                 what, p->home);
    else if (code == -BANYAN_EBUSY)
        bny_fail(BANYAN_EBUSY, "%s: an object of this name exists: rank %d put it", what,
                 owner);
    else if (code == -BANYAN_EINVAL)
        bny_fail(BANYAN_EINVAL, "%s: %s", what,
                 p->kind == BNY_OBJ_DELETE ? "there is no object of this name"
                                           : "an object of this name was deleted or lost");
    else if (code)
        bny_fail((enum banyan_error) - code, "%s: %s", what,
                 code == st->world->broken ? st->world->broken_why : bny_why(code));
    free(p);
    return code;
}

/* ---- put ---- */

/* A new copy, here and not told to anybody. Lock held. */
static int new_copy(struct bny_store *st, const struct bny_name *name, size_t bytes,
                    const char *what, struct bny_entry **out)
{
    struct bny_entry *e = bny_entry_find(st, name);
    int rc;

    *out = NULL;
    if (e && e->state != BNY_ENTRY_WANTED)
        return bny_fail(BANYAN_EBUSY, "%s: an object of this name exists, with a copy here",
                        what);
    if (!e)
        e = bny_entry_new(st, name, BNY_ENTRY_WANTED);
    if (!e)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", what);
    rc = bny_entry_room(e, bytes);
    if (rc) {
        if (bny_ring_is_empty(&e->waiters) && !e->refs)
            bny_entry_end(e, rc);
        return rc;
    }
    e->state = BNY_ENTRY_WRITING;
    e->published = 0;
    *out = e;
    return 0;
}

/* Its home hears of it. Lock held; not when it returns. */
static int publish(struct bny_entry *e, const char *what)
{
    struct bny_store *st = e->store;
    struct bny_pending *p = bny_pending_new(st, BNY_OBJ_PUT, &e->node.name, e);
    int rc = -BANYAN_ENOMEM;

    e->refs++;
    if (p) {
        bny_pending_send(st, p);
        bny_obj_drain(st);
        rc = wait_pending(st, p, what);
    } else {
        bny_world_unlock(st->world);
    }
    bny_world_lock(st->world);
    if (rc == -BANYAN_EBUSY)
        bny_entry_yield(e);
    else if (rc)
        bny_entry_end(e, rc);
    e->refs--;
    bny_entry_reap(e);
    bny_obj_drain(st);
    bny_world_unlock(st->world);
    return rc;
}

/* A new copy of that name, to be written to. 0: the lock is held then. missing: there is no
 * data. */
static int begin_copy(struct banyan_objects *s, const struct banyan_object_id *id, size_t bytes,
                      int missing, const char *what, struct bny_entry **e)
{
    struct bny_name name;
    int rc = check_id(s, id, &name, what);

    if (rc == 0 && missing)
        rc = bny_fail(BANYAN_EINVAL, "%s: data must not be NULL", what);
    if (rc)
        return rc;
    bny_world_lock(s->store.world);
    rc = new_copy(&s->store, &name, bytes, what, e);
    if (rc)
        bny_world_unlock(s->store.world);
    return rc;
}

/* The copy is made without the lock: nobody knows of this one yet. */
int banyan_object_put(struct banyan_objects *s, const struct banyan_object_id *id,
                      const void *data, size_t bytes)
{
    static const char what[] = "banyan_object_put";
    struct bny_entry *e;
    int rc = begin_copy(s, id, bytes, !data && bytes, what, &e);

    if (rc)
        return rc;
    e->refs++;
    bny_world_unlock(s->store.world);
    if (bytes)
        memcpy(e->data, data, bytes);
    bny_world_lock(s->store.world);
    e->refs--;
    e->have = bytes;
    bny_entry_grew(e);
    return publish(e, what);
}

int banyan_object_create(struct banyan_objects *s, const struct banyan_object_id *id,
                         size_t bytes, void **data)
{
    static const char what[] = "banyan_object_create";
    struct bny_entry *e;
    int rc;

    if (data)
        *data = NULL;
    rc = begin_copy(s, id, bytes, !data, what, &e);
    if (rc)
        return rc;
    *data = e->data;
    rc = publish(e, what);
    if (rc)
        *data = NULL;
    return rc;
}

int banyan_object_fill(struct banyan_objects *s, const struct banyan_object_id *id,
                       size_t bytes)
{
    struct bny_entry *e;
    struct bny_name name;
    int rc = check_id(s, id, &name, "banyan_object_fill");

    if (rc)
        return rc;
    bny_world_lock(s->store.world);
    e = bny_entry_find(&s->store, &name);
    if (!e || e->sum || (e->state != BNY_ENTRY_WRITING && e->state != BNY_ENTRY_WHOLE))
        rc = bny_fail(BANYAN_EINVAL, "banyan_object_fill: this rank creates no such object, or "
                                     "it was deleted");
    else if (bytes < e->have || bytes > e->bytes)
        rc = bny_fail(BANYAN_EINVAL,
                      "banyan_object_fill: bytes: %zu is not in [%llu, %llu], what was filled "
                      "and all",
                      bytes, (unsigned long long)e->have, (unsigned long long)e->bytes);
    if (rc == 0) {
        e->have = bytes;
        bny_entry_grew(e);
        bny_obj_drain(&s->store);
    }
    bny_world_unlock(s->store.world);
    return rc;
}

/* ---- get ---- */

static int future_begin(struct bny_store *st, const struct bny_name *name, struct bny_future *f)
{
    struct bny_entry *e = bny_entry_get(st, name);

    if (!e)
        return bny_fail(BANYAN_ENOMEM, "no memory for a copy of an object");
    bny_future_add(f, e);
    bny_obj_drain(st);
    return 0;
}

static int future_wait(struct bny_store *st, struct bny_future *f)
{
    if (!f->done) {
        bny_world_unlock(st->world);
        objects_wait_for(st, &f->done);
    } else {
        bny_world_unlock(st->world);
    }
    if (f->code)
        bny_fail((enum banyan_error) - f->code, "%s", f->why);
    return f->code;
}

static int objects_get(struct banyan_objects *s, const struct banyan_object_id *id,
                       double timeout_s, uint64_t until, struct banyan_object *out,
                       const char *what)
{
    struct bny_future f = { .out = out, .until = until };
    struct bny_name name;
    int rc = check_id(s, id, &name, what);

    if (rc == 0 && !out)
        rc = bny_fail(BANYAN_EINVAL, "%s: out must not be NULL", what);
    if (rc == 0)
        rc = bny_check_seconds("timeout_s", timeout_s);
    if (rc)
        return rc;
    memset(out, 0, sizeof *out);
    f.deadline_ns = deadline_of(&s->store, timeout_s);
    bny_world_lock(s->store.world);
    rc = future_begin(&s->store, &name, &f);
    if (rc == 0)
        return future_wait(&s->store, &f);
    bny_world_unlock(s->store.world);
    return rc;
}

int banyan_object_get(struct banyan_objects *s, const struct banyan_object_id *id,
                      double timeout_s, struct banyan_object *out)
{
    return objects_get(s, id, timeout_s, UINT64_MAX, out, "banyan_object_get");
}

int banyan_object_open(struct banyan_objects *s, const struct banyan_object_id *id,
                       double timeout_s, struct banyan_object *out)
{
    return objects_get(s, id, timeout_s, 0, out, "banyan_object_open");
}

static int check_view(const struct banyan_objects *s, const struct banyan_object *view,
                      const char *what)
{
    int rc = objects_check(s, what);

    if (rc == 0 && !view)
        rc = bny_fail(BANYAN_EINVAL, "%s: the view must not be NULL", what);
    return rc;
}

int banyan_object_wait(struct banyan_objects *s, const struct banyan_object *view, size_t bytes,
                       double timeout_s, size_t *have)
{
    struct bny_future f = { .until = bytes };
    const char *what = "banyan_object_wait";
    struct bny_entry *e;
    int rc = check_view(s, view, what);

    if (rc == 0)
        rc = banyan_comm_may_wait(s->store.comm, what);
    if (rc == 0 && (!view->ref || !have || bytes > view->bytes))
        rc = bny_fail(BANYAN_EINVAL,
                      "%s: view and have must not be NULL, bytes not beyond the object", what);
    if (rc == 0)
        rc = bny_check_seconds("timeout_s", timeout_s);
    if (rc)
        return rc;
    e = view->ref;
    f.deadline_ns = deadline_of(&s->store, timeout_s);
    bny_world_lock(s->store.world);
    if (e->have >= bytes) {
        f.done = 1;
    } else {
        bny_future_add(&f, e);
        bny_obj_drain(&s->store);
    }
    rc = future_wait(&s->store, &f);
    bny_world_lock(s->store.world);
    *have = (size_t)e->have;
    bny_world_unlock(s->store.world);
    return rc;
}

int banyan_object_release(struct banyan_objects *s, struct banyan_object *view)
{
    struct bny_entry *e;
    int rc = check_view(s, view, "banyan_object_release");

    if (rc || !view->ref)
        return rc;
    e = view->ref;
    memset(view, 0, sizeof *view);
    bny_world_lock(s->store.world);
    e->refs--;
    s->store.handles--;
    bny_entry_reap(e);
    bny_world_unlock(s->store.world);
    return 0;
}

/* ---- requests ---- */

struct object_request {
    struct bny_store *store;
    struct bny_name name;
    struct bny_future future;
    struct banyan_object *out;
    int was_started;
};

static int request_start(struct banyan_request *req)
{
    struct object_request *r = req->of_kind;
    int rc;

    if (r->was_started && r->out->ref)
        return bny_fail(BANYAN_EBUSY, "banyan_start: the view that this get has lent is not "
                                      "given back; call banyan_object_release first");
    r->was_started = 1;
    r->future = (struct bny_future){ .op = &req->op, .out = r->out, .until = UINT64_MAX };
    memset(r->out, 0, sizeof *r->out);
    req->op.result = 0;
    req->op.deadline_ns = bny_deadline_after(bny_now_ns(), r->store->timeout_s);
    atomic_store_explicit(&req->op.state, BNY_OP_ACTIVE, memory_order_relaxed);
    rc = future_begin(r->store, &r->name, &r->future);
    if (rc)
        atomic_store_explicit(&req->op.state, BNY_OP_IDLE, memory_order_relaxed);
    return rc;
}

static void request_explain(struct banyan_request *req)
{
    const struct object_request *r = req->of_kind;

    bny_fail((enum banyan_error) - req->op.result, "%s", r->future.why);
}

/* Its store may be gone: then so is its communicator, which the caller has looked at. */
static void request_free(struct banyan_request *req)
{
    struct object_request *r = req->of_kind;

    if (req->op.comm->handle.serial == req->comm_serial) {
        bny_world_lock(r->store->world);
        r->store->handles--;
        bny_world_unlock(r->store->world);
    }
    free(r);
    req->of_kind = NULL;
}

static const struct bny_request_kind request_kind = { .start = request_start,
                                                      .explain = request_explain,
                                                      .free = request_free };
static const struct bny_way no_way = { 0 };

int banyan_object_get_init(struct banyan_objects *s, const struct banyan_object_id *id,
                           struct banyan_object *out, struct banyan_request **req)
{
    static const char what[] = "banyan_object_get_init";
    struct object_request *r;
    struct bny_name name = { { 0 } };
    int rc = check_id(s, id, &name, what);

    if (rc == 0 && (!out || !req))
        rc = bny_fail(BANYAN_EINVAL, "%s: out and req must not be NULL", what);
    if (rc)
        return rc;
    *req = NULL;
    r = calloc(1, sizeof *r);
    if (r)
        *req = bny_request_new(s->store.comm);
    if (!r || !*req) {
        free(r);
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", what);
    }
    r->store = &s->store;
    r->name = name;
    r->out = out;
    (*req)->kind = &request_kind;
    (*req)->of_kind = r;
    (*req)->op.comm = s->store.comm;
    (*req)->op.way = &no_way;
    bny_world_lock(s->store.world);
    s->store.handles++;
    bny_world_unlock(s->store.world);
    return 0;
}

/* ---- the rest ---- */

int banyan_object_delete(struct banyan_objects *s, const struct banyan_object_id *id)
{
    struct bny_pending *p;
    struct bny_name name;
    int rc = check_id(s, id, &name, "banyan_object_delete");

    if (rc)
        return rc;
    bny_world_lock(s->store.world);
    p = bny_pending_new(&s->store, BNY_OBJ_DELETE, &name, NULL);
    if (!p) {
        bny_world_unlock(s->store.world);
        return -BANYAN_ENOMEM;
    }
    bny_pending_send(&s->store, p);
    bny_obj_drain(&s->store);
    return wait_pending(&s->store, p, "banyan_object_delete");
}

static int check_sum(const struct banyan_object_id *ids, struct bny_sum_call *call,
                     banyan_op op)
{
    const char *what = "banyan_object_reduce";
    size_t esz = banyan_dtype_bytes(call->dtype);
    int rc;

    if (!ids || call->n < 1 || call->n > 1u << 20 || call->k < 1 || call->k > call->n)
        return bny_fail(
            BANYAN_EINVAL,
            "%s: ids must not be NULL, n in [1, 2^20] (is %zu), k in [1, n] (is %zu)", what,
            call->n, call->k);
    if (!esz || call->count > SIZE_MAX / 2 / esz)
        return bny_fail(BANYAN_EINVAL, "%s: dtype or count are wrong", what);
    rc = bny_redop_get(&call->op, op, call->dtype);
    if (rc == 0 && (call->op.user || call->op.wire == 0xfd))
        rc = bny_fail(BANYAN_EINVAL, "%s: op must be a built-in one", what);
    return rc;
}

int banyan_object_reduce(struct banyan_objects *s, const struct banyan_object_id *target,
                         const struct banyan_object_id *ids, size_t n, size_t k, size_t count,
                         enum banyan_dtype dtype, banyan_op op)
{
    static const char what[] = "banyan_object_reduce";
    struct bny_sum_call call = { .n = n, .k = k, .count = count, .dtype = dtype };
    struct bny_entry *e;
    struct bny_name name;
    int rc = check_id(s, target, &name, what);

    if (rc == 0)
        rc = check_sum(ids, &call, op);
    if (rc)
        return rc;
    call.names = malloc(n * sizeof *call.names);
    if (!call.names)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", what);
    memcpy((void *)(uintptr_t)call.names, ids, n * sizeof *call.names);
    bny_world_lock(s->store.world);
    rc = new_copy(&s->store, &name, count * banyan_dtype_bytes(dtype), what, &e);
    if (rc) {
        bny_world_unlock(s->store.world);
    } else {
        e->refs++;
        rc = publish(e, what);
        bny_world_lock(s->store.world);
        if (rc == 0 && e->state == BNY_ENTRY_WRITING)
            rc = bny_sum_start(e, &call);
        if (rc)
            bny_entry_end(e, rc);
        e->refs--;
        bny_entry_reap(e);
        bny_obj_drain(&s->store);
        bny_world_unlock(s->store.world);
    }
    free((void *)(uintptr_t)call.names);
    return rc;
}

int banyan_object_contributors(struct banyan_objects *s, const struct banyan_object_id *target,
                               uint8_t *in, size_t n)
{
    struct bny_name name;
    int rc = check_id(s, target, &name, "banyan_object_contributors");

    if (rc == 0 && !in)
        rc = bny_fail(BANYAN_EINVAL, "banyan_object_contributors: in must not be NULL");
    if (rc)
        return rc;
    bny_world_lock(s->store.world);
    rc = bny_sum_contributors(bny_entry_find(&s->store, &name), in, n);
    bny_world_unlock(s->store.world);
    return rc;
}

int banyan_objects_stats(struct banyan_objects *s, struct banyan_objects_stats *out)
{
    struct banyan_objects_stats v = { 0 };
    int rc = objects_check(s, "banyan_objects_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_objects_stats");
    if (rc)
        return rc;
    bny_world_lock(s->store.world);
    v.objects = s->store.entries.count;
    v.records = s->store.records.count - s->store.nended;
    v.bytes = s->store.bytes;
    v.sent = s->store.sent;
    v.received = s->store.received;
    bny_world_unlock(s->store.world);
    bny_sized_give(out, &v, sizeof v);
    return 0;
}
