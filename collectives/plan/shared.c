/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of plans that ranks of one process share (shared.h). */
#include "collectives/plan/shared.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/fork.h"

#define RECORDS_MAX 256 /* of a key; what comes later is not shared */
#define SAID_MAX    64  /* of a forest: what the simulator said */

struct bny_record {
    struct bny_record *next;
    char schedule[BNY_NAME_MAX];
    enum bny_forest_use use;
    int root, rc, height;
    struct bny_topology_cost cost;
    int nsaid;
    struct bny_simulated said[SAID_MAX];
    struct bny_forest *forest;     /* NULL: not kept, or of an error */
    struct bny_forest *large;      /* for as long as programs are made of it */
    struct bny_compiler *compiler; /* of large */
    int compiling, compiled;       /* ranks: are at it; have done so */
};

struct bny_share {
    struct bny_share *next;
    uint8_t key[32];
    int holders, nrecords;
    struct bny_record *records;
};

struct shelf { /* zeros are its beginning */
    struct bny_lock lock;
    struct bny_share *shares;
};

static struct shelf own;

static struct shelf *shelf(void)
{
    void *common = bny_common_place ? bny_common_place(sizeof own) : NULL;

    return common ? common : &own;
}

/* ---- sharing ---- */

static void shared_add(crypto_generichash_state *h, const void *p, size_t n)
{
    crypto_generichash_update(h, p, n);
}

/* Of all that forests are made of. */
static void make_key(uint8_t *key, const struct bny_topology *t)
{
    const struct bny_graph *g = t->graph;
    int64_t head[] = { sizeof(struct bny_record), t->nranks,         t->nhosts, t->grouped,
                       g ? g->nnodes : -1,        g ? g->nlinks : -1 };
    crypto_generichash_state h;

    crypto_generichash_init(&h, NULL, 0, 32);
    shared_add(&h, head, sizeof head);
    shared_add(&h, t->host_of, (size_t)t->nranks * sizeof *t->host_of);
    if (g) {
        shared_add(&h, &g->unit_Bps, sizeof g->unit_Bps);
        shared_add(&h, g->rank_node, (size_t)g->nranks * sizeof *g->rank_node);
    }
    for (int v = 0; g && v < g->nnodes; v++) {
        const struct bny_node *n = &g->nodes[v];
        int64_t of[] = { n->kind, n->rank, n->host, n->x, n->y, n->z };

        shared_add(&h, of, sizeof of);
    }
    for (int l = 0; g && l < g->nlinks; l++) {
        const struct bny_link *k = &g->links[l];
        int64_t of[] = { k->from, k->to, k->cap, k->lat_ns, k->lanes };

        shared_add(&h, of, sizeof of);
    }
    crypto_generichash_final(&h, key, 32);
}

void bny_shared_join(struct bny_topology *t, const struct bny_topology *job)
{
    struct bny_share *fresh = calloc(1, sizeof *fresh), *share;
    struct shelf *s = shelf();

    if (!fresh)
        return;
    make_key(fresh->key, t);
    bny_lock_take(&s->lock);
    for (share = s->shares; share && memcmp(share->key, fresh->key, sizeof share->key) != 0;)
        share = share->next;
    if (!share) {
        share = fresh;
        fresh = NULL;
        share->next = s->shares;
        s->shares = share;
    }
    share->holders++;
    t->share = share;
    t->job_share = job ? job->share : share;
    bny_lock_give(&s->lock);
    free(fresh);
}

/* Topologies of the process that have use for what t has made, t among them. With the lock. */
static int users(const struct bny_topology *t)
{
    int n = t->job_share ? t->job_share->holders : 1;

    return n < t->nranks ? n : t->nranks;
}

static void record_free(struct bny_record *r)
{
    bny_forest_free(r->forest);
    bny_compiler_free(r->compiler);
    bny_forest_free(r->large);
    free(r);
}

void bny_shared_leave(struct bny_topology *t)
{
    struct bny_share *share = t->share, **at;
    struct shelf *s = shelf();

    if (!share)
        return;
    t->share = NULL;
    bny_lock_take(&s->lock);
    if (--share->holders > 0)
        share = NULL;
    for (at = &s->shares; share && *at != share;)
        at = &(*at)->next;
    if (share)
        *at = share->next;
    bny_lock_give(&s->lock);
    while (share && share->records) {
        struct bny_record *r = share->records;

        share->records = r->next;
        record_free(r);
    }
    free(share);
}

/* ---- what is shared ---- */

static int is_shared(const struct bny_topology *t, const struct bny_made *m)
{
    return t->share && strncmp(m->schedule, "file:", 5) != 0; /* a file is no part of the key */
}

static struct bny_record *shared_find(const struct bny_share *share, const struct bny_made *m)
{
    struct bny_record *r = share ? share->records : NULL;

    while (r &&
           (r->use != m->use || r->root != m->root || strcmp(r->schedule, m->schedule) != 0))
        r = r->next;
    return r;
}

static void shared_lend(struct bny_made *m, const struct bny_record *r)
{
    m->rc = r->rc;
    m->height = r->height;
    m->cost = r->cost;
    m->forest = r->forest;
    m->shared = r->forest != NULL;
}

int bny_shared_find(struct bny_topology *t, struct bny_made *m)
{
    struct shelf *s = shelf();
    const struct bny_record *r;

    if (!is_shared(t, m))
        return 0;
    bny_lock_take(&s->lock);
    r = shared_find(t->share, m);
    if (r)
        shared_lend(m, r);
    bny_lock_give(&s->lock);
    return r != NULL;
}

void bny_shared_tell(struct bny_topology *t, struct bny_made *m, int keep)
{
    struct bny_record *r = is_shared(t, m) ? calloc(1, sizeof *r) : NULL;
    struct bny_share *share = t->share;
    struct bny_forest *twice = NULL;
    const struct bny_record *had;
    struct shelf *s = shelf();

    if (!r)
        return;
    memcpy(r->schedule, m->schedule, sizeof r->schedule);
    r->use = m->use;
    r->root = m->root;
    r->rc = m->rc;
    r->height = m->height;
    r->cost = m->cost;
    bny_lock_take(&s->lock);
    had = shared_find(share, m);
    if (had && keep) { /* made at the same time */
        twice = m->forest;
        shared_lend(m, had);
    } else if (!had && users(t) > 1 && share->nrecords < RECORDS_MAX) {
        r->forest = keep ? m->forest : NULL;
        m->shared = r->forest != NULL;
        r->next = share->records;
        share->records = r;
        share->nrecords++;
        r = NULL;
    }
    bny_lock_give(&s->lock);
    bny_forest_free(twice);
    free(r);
}

static struct bny_simulated *find_said(struct bny_record *r, const struct bny_simulated *q)
{
    for (int i = 0; r && i < r->nsaid; i++)
        if (r->said[i].phases == q->phases && r->said[i].bytes == q->bytes &&
            r->said[i].chunk == q->chunk && r->said[i].alpha_s == q->alpha_s)
            return &r->said[i];
    return NULL;
}

int bny_shared_simulated(struct bny_topology *t, const struct bny_made *m,
                         struct bny_simulated *q)
{
    const struct bny_simulated *said;
    struct shelf *s = shelf();

    if (!is_shared(t, m))
        return 0;
    bny_lock_take(&s->lock);
    said = find_said(shared_find(t->share, m), q);
    if (said)
        q->seconds = said->seconds;
    bny_lock_give(&s->lock);
    return said != NULL;
}

void bny_shared_say(struct bny_topology *t, const struct bny_made *m,
                    const struct bny_simulated *q)
{
    struct shelf *s = shelf();
    struct bny_record *r;

    if (!is_shared(t, m))
        return;
    bny_lock_take(&s->lock);
    r = shared_find(t->share, m);
    if (r && r->nsaid < SAID_MAX && !find_said(r, q))
        r->said[r->nsaid++] = *q;
    bny_lock_give(&s->lock);
}

/* ---- large forests ---- */

struct bny_compiler *bny_shared_borrow(struct bny_topology *t, const struct bny_made *m)
{
    struct bny_compiler *k = NULL;
    struct shelf *s = shelf();
    struct bny_record *r;

    if (!is_shared(t, m))
        return NULL;
    bny_lock_take(&s->lock);
    r = shared_find(t->share, m);
    if (r && r->large) {
        k = r->compiler;
        r->compiling++;
    }
    bny_lock_give(&s->lock);
    return k;
}

int bny_shared_lend(struct bny_topology *t, const struct bny_made *m, struct bny_forest *f,
                    struct bny_compiler *k)
{
    struct shelf *s = shelf();
    struct bny_record *r;
    int taken = 0;

    if (!is_shared(t, m))
        return 0;
    bny_lock_take(&s->lock);
    r = shared_find(t->share, m);
    if (r && !r->large && users(t) > 1) {
        r->large = f;
        r->compiler = k;
        r->compiling = 1;
        r->compiled = 0;
        taken = 1;
    }
    /* One of a key is enough: others that nobody is at can be made again. */
    for (struct bny_record *o = taken ? t->share->records : NULL; o; o = o->next)
        if (o != r && o->large && !o->compiling) {
            bny_compiler_free(o->compiler);
            bny_forest_free(o->large);
            o->compiler = NULL;
            o->large = NULL;
        }
    bny_lock_give(&s->lock);
    return taken;
}

void bny_shared_give_back(struct bny_topology *t, const struct bny_made *m)
{
    struct bny_forest *done = NULL;
    struct bny_compiler *idle = NULL;
    struct shelf *s = shelf();
    struct bny_record *r;

    bny_lock_take(&s->lock);
    r = shared_find(t->share, m);
    r->compiling--;
    r->compiled++;
    if (!r->compiling && r->compiled >= users(t)) {
        done = r->large;
        idle = r->compiler;
        r->large = NULL;
        r->compiler = NULL;
    }
    bny_lock_give(&s->lock);
    bny_compiler_free(idle);
    bny_forest_free(done);
}
