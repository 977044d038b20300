/* SPDX-License-Identifier: BSD-3-Clause */
/* Compiles a forest to one rank's program (program.h, bny_compile).
 *
 * A message is one tree's edge in one phase, or, joined, several trees' edges with consecutive
 * blocks. Both ends find the same messages in the same order: the list for a pair (from, to) is
 * a pure function of the forest, sorted by (phase, time, block), and is joined where the
 * operands of both ends agree. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/program/program.h"
#include "collectives/program/writer.h"
#include "transport/wire.h"

enum phase { REDUCING, KEEPING, SPREADING };

struct message {
    uint32_t phase, time;
    int from, to; /* both the rank itself for a KEEP */
    uint32_t block, nblocks;
    uint8_t send_src;           /* sender's operand */
    uint8_t recv_src, recv_dst; /* receiver's operands */
    uint8_t chan;
};

struct families { /* the children of rank v in tree t: child[at[t * (nranks + 1) + v]] to before
                     [... + v + 1] */
    size_t *at;
    int *child;
};

/* The same for all ranks, and only read by those that compile. */
struct bny_compiler {
    const struct bny_forest *f;
    _Atomic unsigned checked; /* bits of collectives that it was found to serve */
    int *first, *last; /* [ntrees * nranks] first and last child to be added, -1 for leaves */
    uint8_t *relays;   /* [nranks] 1: holds partial sums of other ranks' blocks (scattered) */
    struct families up, down; /* down.at NULL: as up */
};

struct compilation { /* of a rank */
    const struct bny_compiler *k;
    const struct bny_forest *f;
    enum bny_collective collective;
    int rank, coalesce;
    struct message *msgs;
    size_t nmsgs, cap;
};

/* The rank that sends the result to v. */
static int spread_parent(const struct bny_tree *tree, int v)
{
    return tree->down_parent ? tree->down_parent[v] : tree->parent[v];
}

static const int *parents(const struct bny_tree *tree, int down)
{
    return down && tree->down_parent ? tree->down_parent : tree->parent;
}

/* Children by parent, tree by tree; down: where results travel. */
static int find_families(struct families *to, const struct bny_forest *f, int down)
{
    size_t n = (size_t)f->nranks, row = n + 1, cells = (size_t)f->ntrees * row, next = 0;

    to->at = calloc(cells + 1, sizeof *to->at);
    to->child = malloc((cells + 1) * sizeof *to->child);
    if (!to->at || !to->child)
        return -1;
    for (int t = 0; t < f->ntrees; t++) {
        const int *parent = parents(&f->trees[t], down);
        size_t *at = to->at + (size_t)t * row;

        for (size_t v = 0; v < n; v++)
            if (parent[v] >= 0)
                at[parent[v] + 1]++;
        at[0] = next;
        for (size_t v = 0; v < n; v++)
            at[v + 1] += at[v];
        next = at[n];
        for (size_t v = n;
             v-- > 0;) /* fills from the back, which leaves the ends of families in at */
            if (parent[v] >= 0)
                to->child[--at[parent[v] + 1]] = (int)v;
        memmove(at, at + 1, n * sizeof *at);
        at[n] = next;
    }
    return 0;
}

/* Children are added in order of (step, rank). */
static int set_children(struct bny_compiler *k)
{
    const struct bny_forest *f = k->f;
    size_t cells = (size_t)f->ntrees * (size_t)f->nranks;

    k->first = malloc(cells * sizeof *k->first);
    k->last = malloc(cells * sizeof *k->last);
    k->relays = calloc((size_t)f->nranks, 1);
    if (!k->first || !k->last || !k->relays || find_families(&k->up, f, 0))
        return -1;
    for (int t = 0; t < f->ntrees && !k->down.at; t++)
        if (f->trees[t].down_parent && find_families(&k->down, f, 1))
            return -1;
    memset(k->first, 0xff, cells * sizeof *k->first);
    memset(k->last, 0xff, cells * sizeof *k->last);
    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];
        int *first = k->first + (size_t)t * (size_t)f->nranks;
        int *last = k->last + (size_t)t * (size_t)f->nranks;

        for (int v = 0; v < f->nranks; v++) {
            int p = tree->parent[v];

            if (p < 0)
                continue;
            if (first[p] < 0 || tree->step[v] < tree->step[first[p]])
                first[p] = v;
            if (last[p] < 0 || tree->step[v] >= tree->step[last[p]])
                last[p] = v;
            k->relays[p] |= p != tree->root;
        }
    }
    return 0;
}

/* Where rank v keeps its partial sum of tree t. In reduce_scatter the own block is summed in
 * SCRATCH too where v relays other blocks, so that a message of both is one operand; its last
 * addition goes to OUT. */
static uint8_t partial(const struct compilation *c, int t, int v)
{
    int root = c->f->trees[t].root;

    if (c->collective == BNY_REDUCE)
        return v == (c->f->present ? c->f->sink : root) ? BNY_OUT : BNY_SCRATCH;
    if (c->collective == BNY_REDUCE_SCATTER)
        return v == root && !c->k->relays[v] ? BNY_OUT : BNY_SCRATCH;
    return BNY_OUT;
}

static int compile_push(struct compilation *c, const struct message *m)
{
    if (c->nmsgs == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 64;
        struct message *msgs = realloc(c->msgs, cap * sizeof *msgs);

        if (!msgs)
            return -1;
        c->msgs = msgs;
        c->cap = cap;
    }
    c->msgs[c->nmsgs++] = *m;
    return 0;
}

static int push_edge(struct compilation *c, int t, int child, enum phase phase)
{
    const struct bny_tree *tree = &c->f->trees[t];
    int parent = tree->parent[child];
    size_t row = (size_t)t * (size_t)c->f->nranks;
    struct message m = {
        .phase = phase,
        .block = (uint32_t)t,
        .nblocks = 1,
        .chan = (uint8_t)(tree->pipeline % BNY_CHANNELS),
        .from = child,
        .to = parent,
        .time = tree->step[child],
        .send_src = BNY_OUT,
        .recv_src = BNY_NOWHERE,
        .recv_dst = BNY_OUT,
    };

    if (phase == SPREADING) {
        m.from = spread_parent(tree, child);
        m.to = child;
        m.time =
            tree->down_parent ? tree->down_step[child] : c->f->nsteps - 1 - tree->step[child];
        if (c->collective == BNY_REDUCE)
            m.send_src = BNY_SCRATCH;
        return compile_push(c, &m);
    }
    m.send_src = c->k->first[row + (size_t)child] < 0 ? BNY_IN : partial(c, t, child);
    m.recv_src = c->k->first[row + (size_t)parent] == child ? BNY_IN : partial(c, t, parent);
    m.recv_dst = partial(c, t, parent);
    if (c->collective == BNY_REDUCE_SCATTER && parent == tree->root &&
        c->k->last[row + (size_t)parent] == child)
        m.recv_dst = BNY_OUT;
    return compile_push(c, &m);
}

static int push_keep(struct compilation *c, int t)
{
    int gathers = c->collective == BNY_ALLGATHER;
    int reduces = !gathers && c->collective != BNY_BROADCAST, me = c->rank;
    uint8_t home = c->collective == BNY_REDUCE ? partial(c, t, me) : BNY_OUT;
    int adds = c->k->first[(size_t)t * (size_t)c->f->nranks + (size_t)me] >= 0;
    struct message m = {
        .phase = KEEPING,
        .from = me,
        .to = me,
        .block = (uint32_t)t,
        .nblocks = 1,
        .recv_src = gathers || (reduces && !adds) ? BNY_IN : home,
        .recv_dst = home,
    };

    return compile_push(c, &m);
}

/* A rank's own edge in a tree, and those of its children. */
static int push_edges(struct compilation *c, int t, enum phase phase)
{
    const struct families *fam = phase == SPREADING && c->k->down.at ? &c->k->down : &c->k->up;
    const size_t *at = fam->at + (size_t)t * ((size_t)c->f->nranks + 1) + c->rank;
    const struct bny_tree *tree = &c->f->trees[t];
    int e = 0;

    if ((phase == SPREADING ? spread_parent(tree, c->rank) : tree->parent[c->rank]) >= 0)
        e = push_edge(c, t, c->rank, phase);
    for (size_t i = at[0]; i < at[1] && !e; i++)
        e = push_edge(c, t, fam->child[i], phase);
    return e;
}

static int compile_collect(struct compilation *c)
{
    int reduces = c->collective != BNY_ALLGATHER && c->collective != BNY_BROADCAST;
    int e = 0;

    for (int t = 0; t < c->f->ntrees && !e; t++) {
        int spreads = !reduces || c->collective == BNY_ALLREDUCE ||
                      (c->f->present && c->f->trees[t].down_parent);

        if (c->f->trees[t].root == c->rank)
            e = push_keep(c, t);
        if (reduces && !e)
            e = push_edges(c, t, REDUCING);
        if (spreads && !e)
            e = push_edges(c, t, SPREADING);
    }
    return e;
}

#define ORDER(a, b)                                                                            \
    if ((a) != (b))                                                                            \
    return (a) < (b) ? -1 : 1

static int by_pair(const void *x, const void *y)
{
    const struct message *a = x, *b = y;

    ORDER(a->from, b->from);
    ORDER(a->to, b->to);
    ORDER(a->phase, b->phase);
    ORDER(a->time, b->time);
    ORDER(a->block, b->block);
    return 0;
}

static int joinable(const struct message *a, const struct message *b)
{
    return a->phase != KEEPING && a->phase == b->phase && a->time == b->time &&
           a->from == b->from && a->to == b->to && a->block + a->nblocks == b->block &&
           a->send_src == b->send_src && a->recv_src == b->recv_src &&
           a->recv_dst == b->recv_dst && a->chan == b->chan;
}

static void coalesce(struct compilation *c)
{
    size_t kept = 0;

    for (size_t i = 0; i < c->nmsgs; i++) {
        if (kept && joinable(&c->msgs[kept - 1], &c->msgs[i]))
            c->msgs[kept - 1].nblocks++;
        else
            c->msgs[kept++] = c->msgs[i];
    }
    c->nmsgs = kept;
}

/* A rank's order: time step by time step, sends (which depend on earlier steps only) before
 * receives. Sends start at the next rank, so that not all ranks begin with the same receiver;
 * receives are in rank order, which is the order of additions. */
static int by_program(const void *x, const void *y, void *arg)
{
    const struct message *a = x, *b = y;
    const struct compilation *c = arg;
    int a_in = a->to == c->rank, b_in = b->to == c->rank;
    int a_peer = a_in ? a->from : a->to, b_peer = b_in ? b->from : b->to;

    ORDER(a->phase, b->phase);
    ORDER(a->time, b->time);
    ORDER(a_in, b_in);
    if (!a_in) {
        a_peer = (a_peer - c->rank + c->f->nranks) % c->f->nranks;
        b_peer = (b_peer - c->rank + c->f->nranks) % c->f->nranks;
    }
    ORDER(a_peer, b_peer);
    ORDER(a->block, b->block);
    return 0;
}

static enum bny_code code_of(const struct compilation *c, const struct message *m)
{
    const int *host_of = c->f->host_of;

    if (m->phase == KEEPING || (host_of && host_of[m->from] == host_of[m->to]))
        return BNY_CODE_NONE;
    return m->phase == REDUCING ? BNY_CODE_UP : BNY_CODE_DOWN;
}

/* The operand of a message that spreads: allgather's own block comes from IN when it goes
 * alone; but within a host as the others decode it, which KEEP puts into OUT. */
static uint8_t spread_src(const struct compilation *c, const struct message *m)
{
    if (c->collective == BNY_ALLGATHER && m->nblocks == 1 &&
        c->f->trees[m->block].root == c->rank && (c->coalesce || code_of(c, m)))
        return BNY_IN;
    return m->send_src;
}

/* made: [ntrees] the step that made a block final here, for FORWARD. */
static void emit(struct compilation *c, struct bny_writer *w, const struct message *m,
                 uint32_t *made)
{
    int in = m->to == c->rank, keep = m->phase == KEEPING;
    uint32_t step;
    struct bny_step s = {
        .chan = m->chan,
        .src = m->recv_src,
        .dst = m->recv_dst,
        .peer = keep ? -1
                : in ? m->from
                     : m->to,
        .block = m->block,
        .nblocks = m->nblocks,
        .from = UINT32_MAX,
        .flags = m->phase == SPREADING && c->collective != BNY_REDUCE ? BNY_STEP_PLACE : 0,
        .code = (uint8_t)code_of(c, m),
        .kind = keep                    ? BNY_KEEP
                : m->phase == SPREADING ? BNY_RECV_COPY
                                        : BNY_RECV_ADD,
    };

    if (!in) {
        s.kind = BNY_SEND;
        s.src = m->phase == SPREADING ? spread_src(c, m) : m->send_src;
        s.dst = BNY_NOWHERE;
        if (m->phase == SPREADING && !c->coalesce) {
            s.kind = BNY_FORWARD;
            s.from = made[m->block];
            if (!w->failed && w->p->steps[s.from].kind == BNY_KEEP && s.code)
                w->p->steps[s.from].code = s.code;
        }
    }
    step = bny_writer_add(w, &s);
    if (in && m->phase != REDUCING)
        for (uint32_t b = 0; b < m->nblocks; b++)
            made[m->block + b] = step;
}

/* Several trees a rank in a scattered use: each is a block of its root's part. */
static int own_several(struct bny_writer *w, const struct bny_forest *f)
{
    struct bny_program *p = w->p;
    size_t n = (size_t)f->ntrees;

    p->weight_num = malloc(n * sizeof *p->weight_num);
    p->weight_den = malloc(n * sizeof *p->weight_den);
    p->owned_first = calloc((size_t)f->nranks + 1, sizeof *p->owned_first);
    if (!p->weight_num || !p->weight_den || !p->owned_first)
        return -1;
    for (int t = 0; t < f->ntrees; t++) {
        p->weight_num[t] = f->trees[t].weight_num;
        p->weight_den[t] = f->trees[t].weight_den;
        p->owned_first[f->trees[t].root + 1]++;
    }
    for (int r = 0; r < f->nranks; r++)
        p->owned_first[r + 1] += p->owned_first[r];
    return 0;
}

static int write_program(struct compilation *c, struct bny_program **out)
{
    const struct bny_forest *f = c->f;
    int scattered = c->collective == BNY_REDUCE_SCATTER || c->collective == BNY_ALLGATHER;
    int rooted = c->collective == BNY_REDUCE || c->collective == BNY_BROADCAST;
    uint32_t *made = calloc((size_t)f->ntrees, sizeof *made);
    struct bny_writer w;

    if (!made)
        return bny_fail(BANYAN_ENOMEM, "no memory to compile forest %s", f->name);
    bny_writer_init(&w, f->name, c->collective, f->nranks, c->rank,
                    !rooted      ? -1
                    : f->present ? f->sink
                                 : f->trees[0].root,
                    (uint32_t)f->ntrees, !scattered);
    if (!w.failed && f->present) {
        w.p->present = malloc((size_t)f->nranks);
        w.failed = !w.p->present;
        if (w.p->present)
            memcpy(w.p->present, f->present, (size_t)f->nranks);
    }
    if (!w.failed) {
        w.p->owned_only = scattered;
        w.p->contiguous |= c->coalesce;
        for (int t = 0; t < f->ntrees && !scattered; t++) {
            w.p->weight_num[t] = f->trees[t].weight_num;
            w.p->weight_den[t] = f->trees[t].weight_den;
        }
    }
    if (!w.failed && scattered && f->ntrees != f->nranks)
        w.failed = own_several(&w, f) != 0;
    bny_writer_reserve(&w, (uint32_t)c->nmsgs);
    for (size_t i = 0; i < c->nmsgs; i++)
        emit(c, &w, &c->msgs[i], made);
    free(made);
    return bny_writer_finish(&w, out);
}

/* Trees in which rank v has the parent that most of them give it; their edges are messages of
 * one pair. */
static uint32_t most_of_a_pair(const struct bny_forest *f, int v, int down, uint32_t *count)
{
    uint32_t most = 0;

    memset(count, 0, (size_t)f->nranks * sizeof *count);
    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];
        int p = down && tree->down_parent ? tree->down_parent[v] : tree->parent[v];

        if (p >= 0 && ++count[p] > most)
            most = count[p];
    }
    return most;
}

/* Each rank compiles its own program only, and all must refuse alike: so all pairs are counted,
 * where there are trees enough, and before messages are joined. An allreduce may use an edge up
 * in one tree and down in another. */
static int check_messages(const struct bny_forest *f, enum bny_collective collective)
{
    uint32_t most = BNY_MESSAGES_MAX / (collective == BNY_ALLREDUCE ? 2 : 1), *count;
    int rc = 0;

    if ((uint32_t)f->ntrees <= most)
        return 0;
    count = malloc((size_t)f->nranks * sizeof *count);
    if (!count)
        return bny_fail(BANYAN_ENOMEM, "no memory to compile forest %s", f->name);
    for (int v = 0; v < f->nranks && rc == 0; v++)
        for (int down = 0; down < 2 && rc == 0; down++)
            if (most_of_a_pair(f, v, down, count) > most)
                rc = bny_fail(
                    BANYAN_ENOTSUP,
                    "forest %s has more than %u trees with one edge at rank %d: too many "
                    "messages of a pair in one %s; use fewer trees",
                    f->name, most, v, bny_collective_name(collective));
    free(count);
    return rc;
}

static int check_arguments(const struct bny_forest *f, enum bny_collective collective, int rank)
{
    enum bny_forest_use use;
    int rc;

    switch (collective) {
    case BNY_ALLREDUCE: use = BNY_FOREST_ALLREDUCE; break;
    case BNY_REDUCE_SCATTER:
    case BNY_ALLGATHER: use = BNY_FOREST_SCATTERED; break;
    case BNY_REDUCE:
    case BNY_BROADCAST: use = BNY_FOREST_ROOTED; break;
    default:
        return bny_fail(BANYAN_EINVAL, "%s is no collective of forests; use a direct program",
                        bny_collective_name(collective));
    }
    if (f->present && (collective != BNY_REDUCE || f->sink < 0) &&
        (collective != BNY_ALLREDUCE || f->sink >= 0))
        return bny_fail(BANYAN_EINVAL, "a forest of some ranks serves no %s%s",
                        bny_collective_name(collective),
                        f->sink < 0 ? " without a sink" : " with a sink");
    if (rank < 0 || rank >= f->nranks)
        return bny_fail(BANYAN_EINVAL, "rank %d is not in forest %s of %d ranks", rank, f->name,
                        f->nranks);
    rc = bny_forest_check(f, use, f->ntrees ? f->trees[0].root : -1, NULL, 0);
    return rc ? rc : check_messages(f, collective);
}

static int compile_rank(struct compilation *c, struct bny_program **out, int rank)
{
    c->rank = rank;
    c->nmsgs = 0;
    if (compile_collect(c))
        return bny_fail(BANYAN_ENOMEM, "no memory to compile forest %s", c->f->name);
    if (!c->nmsgs) /* of a part's reduce: nothing to do here */
        return write_program(c, out);
    qsort(c->msgs, c->nmsgs, sizeof *c->msgs, by_pair);
    if (c->coalesce)
        coalesce(c);
    qsort_r(c->msgs, c->nmsgs, sizeof *c->msgs, by_program, c);
    return write_program(c, out);
}

int bny_compiler_new(struct bny_compiler **out, const struct bny_forest *forest,
                     enum bny_collective collective)
{
    struct bny_compiler *k;
    int e = check_arguments(forest, collective, 0);

    *out = NULL;
    if (e)
        return e;
    k = calloc(1, sizeof *k);
    if (k) {
        k->f = forest;
        k->checked = 1u << collective;
    }
    if (!k || set_children(k) != 0) {
        bny_compiler_free(k);
        return bny_fail(BANYAN_ENOMEM, "no memory to compile forest %s", forest->name);
    }
    *out = k;
    return 0;
}

void bny_compiler_free(struct bny_compiler *k)
{
    if (!k)
        return;
    free(k->first);
    free(k->last);
    free(k->relays);
    free(k->up.at);
    free(k->up.child);
    free(k->down.at);
    free(k->down.child);
    free(k);
}

/* Ranks [first, end) to out[0], out[1], ... */
static int compile_some(struct bny_compiler *k, struct bny_program **out,
                        enum bny_collective collective, int first, int end, int coalesce_flag)
{
    struct compilation c = {
        .k = k, .f = k->f, .collective = collective, .coalesce = coalesce_flag
    };
    int e = 0;

    memset(out, 0, (size_t)(end - first) * sizeof *out);
    for (int r = first; r < end && !e; r++)
        e = compile_rank(&c, &out[r - first], r);
    free(c.msgs);
    return e;
}

int bny_compiler_run(struct bny_compiler *k, struct bny_program **out,
                     enum bny_collective collective, int rank, int coalesce_flag)
{
    unsigned bit = 1u << collective;

    *out = NULL;
    if (!(atomic_load(&k->checked) & bit) || rank < 0 || rank >= k->f->nranks) {
        int e = check_arguments(k->f, collective, rank);

        if (e)
            return e;
        atomic_fetch_or(&k->checked, bit);
    }
    return compile_some(k, out, collective, rank, rank + 1, coalesce_flag);
}

int bny_compile(struct bny_program **out, const struct bny_forest *forest,
                enum bny_collective collective, int rank, int coalesce_flag)
{
    struct bny_compiler *k;
    int e = bny_compiler_new(&k, forest, collective);

    *out = NULL;
    if (e == 0)
        e = bny_compiler_run(k, out, collective, rank, coalesce_flag);
    bny_compiler_free(k);
    return e;
}

int bny_compile_all(struct bny_program **out, const struct bny_forest *forest,
                    enum bny_collective collective, int coalesce_flag)
{
    struct bny_compiler *k;
    int e = bny_compiler_new(&k, forest, collective);

    memset(out, 0, (size_t)forest->nranks * sizeof *out);
    if (e == 0)
        e = compile_some(k, out, collective, 0, forest->nranks, coalesce_flag);
    bny_compiler_free(k);
    return e;
}
