/* SPDX-License-Identifier: BSD-3-Clause */
/* The event-driven simulator (simulate.h): a heap of events, links that serve one chunk at a
 * time in order of arrival or of step. */
#include "topo/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/sim_net.h"

enum kind { HEAD, FREE, ARRIVE, ADDED, WORKED };

struct event {
    double at;
    uint64_t seq;  /* ties: in order of scheduling */
    double tail;   /* HEAD: earliest arrival of the last byte at this link */
    uint32_t part; /* HEAD, ARRIVE; ADDED: the transfer; FREE: the link */
    uint32_t chunk;
    int hop;
    enum kind kind;
};

struct waiter {
    uint64_t key; /* see key_of */
    double tail;
    uint32_t part, chunk;
    int hop;
};

struct queue { /* a heap by key */
    int n, cap;
    struct waiter *heap;
};

struct link {
    double free_at, busy;
    int waking; /* a FREE event is scheduled */
    struct queue queue;
};

struct processor {
    int is_busy;
    struct queue queue; /* ready work; waiter.part is the transfer */
};

struct channel { /* chunks from one rank to another, of one wire channel */
    uint64_t pair;
    int on_way;
    struct queue queue; /* chunks waiting for a slot; waiter.part is the transfer */
};

struct run {
    const struct bny_sim_net *net;
    struct bny_sim_result *out;
    struct event *heap;
    size_t n, cap;
    uint64_t seq, arrivals;
    struct link *links;
    uint32_t *waits;                  /* [transfers * chunks] */
    uint8_t *parts;                   /* [transfers * chunks] parts not yet arrived */
    double *adder_free, *sender_free; /* [nranks] */
    double *core_free;                /* [nranks] of the processor that sends and receives */
    struct processor *processors;     /* [nprocessors + 1] */
    uint64_t *step_left;              /* [nsteps] unfinished chunks */
    uint32_t step;                    /* lock-step: the open step */
    struct channel *channels;         /* hashed by pair */
    size_t nchannels;
    uint64_t done, cells;
    double now;
    int failed;
};

/* ---- the heap of events -------------------------------------------------------------------
 */

static int earlier(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at == b->at && a->seq < b->seq);
}

static void simulate_push(struct run *r, struct event e)
{
    size_t i = r->n;

    if (r->n == r->cap) {
        size_t cap = 2 * r->cap + 1024;
        struct event *more = reallocarray(r->heap, cap, sizeof *more);

        if (!more) {
            r->failed = 1;
            return;
        }
        r->heap = more;
        r->cap = cap;
    }
    e.seq = r->seq++;
    for (r->n++; i && earlier(&e, &r->heap[(i - 1) / 4]); i = (i - 1) / 4)
        r->heap[i] = r->heap[(i - 1) / 4];
    r->heap[i] = e;
}

static struct event pop(struct run *r)
{
    struct event top = r->heap[0], last = r->heap[--r->n];
    size_t i = 0;

    for (;;) {
        size_t child = 4 * i + 1, least = child;

        if (child >= r->n)
            break;
        for (size_t c = child + 1; c < child + 4 && c < r->n; c++)
            if (earlier(&r->heap[c], &r->heap[least]))
                least = c;
        if (!earlier(&r->heap[least], &last))
            break;
        r->heap[i] = r->heap[least];
        i = least;
    }
    r->heap[i] = last;
    return top;
}

/* ---- links --------------------------------------------------------------------------------
 */

static const struct bny_transfer *transfer_of(const struct run *r, uint32_t part)
{
    return &r->net->job->transfers[r->net->parts[part].transfer];
}

/* The chunk occupies the link now; its head continues after the link's latency. */
static void simulate_serve(struct run *r, int link, const struct waiter *w)
{
    const struct bny_sim_part *p = &r->net->parts[w->part];
    double lasts =
        transfer_of(r, w->part)->bytes * p->share / r->net->chunks * r->net->s_per_byte[link];
    double idle = r->now - r->net->opts->burst_s, latency = r->net->latency_s[link], tail;
    struct event e = { .part = w->part, .chunk = w->chunk, .hop = w->hop + 1, .kind = HEAD };

    if (idle < r->links[link].free_at) /* a token bucket: saved time, burst_s at most */
        idle = r->links[link].free_at;
    r->links[link].free_at = idle + lasts;
    tail = r->links[link].free_at > r->now ? r->links[link].free_at : r->now;
    r->links[link].busy += lasts;
    e.tail = (tail > w->tail ? tail : w->tail) + latency;
    e.at = r->now + latency;
    if (e.hop == bny_sim_hops(r->net, p)) {
        e.kind = ARRIVE;
        e.at = e.tail;
    }
    simulate_push(r, e);
}

static void simulate_enqueue(struct run *r, struct queue *l, struct waiter w)
{
    int i = l->n;

    if (l->n == l->cap) {
        int cap = 2 * l->cap + 4;
        struct waiter *more = reallocarray(l->heap, (size_t)cap, sizeof *more);

        if (!more) {
            r->failed = 1;
            return;
        }
        l->heap = more;
        l->cap = cap;
    }
    for (l->n++; i && w.key < l->heap[(i - 1) / 2].key; i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = w;
}

static struct waiter dequeue(struct queue *l)
{
    struct waiter top = l->heap[0], last = l->heap[--l->n];
    int i = 0;

    for (int child; (child = 2 * i + 1) < l->n; i = child) {
        child += child + 1 < l->n && l->heap[child + 1].key < l->heap[child].key;
        if (l->heap[child].key >= last.key)
            break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = last;
    return top;
}

/* FIFO: in order of arrival. PRIORITY: the oldest chunk first, among those the earliest step:
 * by step alone, the deep ends of trees would starve until all chunks had passed the shallow
 * ones. */
static uint64_t simulate_key_of(struct run *r, uint32_t id, uint32_t chunk)
{
    uint64_t came = r->arrivals++;

    if (r->net->opts->order != BNY_SIM_PRIORITY)
        return came;
    return ((uint64_t)chunk * r->net->nsteps + r->net->job->transfers[id].step) << 36 | came;
}

static void on_head(struct run *r, const struct event *e)
{
    const struct bny_sim_part *p = &r->net->parts[e->part];
    int link = bny_sim_link(r->net, p, e->hop);
    struct link *l = &r->links[link];
    struct waiter w = { simulate_key_of(r, p->transfer, e->chunk), e->tail, e->part, e->chunk,
                        e->hop };

    if (l->queue.n == 0 && l->free_at <= r->now) {
        simulate_serve(r, link, &w);
        return;
    }
    simulate_enqueue(r, &l->queue, w);
    if (l->queue.n > r->out->max_queue)
        r->out->max_queue = l->queue.n;
    if (!l->waking)
        simulate_push(r,
                      (struct event){ .at = l->free_at, .part = (uint32_t)link, .kind = FREE });
    l->waking = 1;
}

static void on_free(struct run *r, int link)
{
    struct link *l = &r->links[link];
    struct waiter w = dequeue(&l->queue);

    l->waking = l->queue.n > 0;
    simulate_serve(r, link, &w);
    if (l->waking)
        simulate_push(r,
                      (struct event){ .at = l->free_at, .part = (uint32_t)link, .kind = FREE });
}

/* ---- transfers ----------------------------------------------------------------------------
 */

static size_t simulate_cell_of(const struct run *r, uint32_t id, uint32_t chunk)
{
    return (size_t)id * (size_t)r->net->chunks + chunk;
}

/* The rank's processor is busy until then. */
static double simulate_handle(struct run *r, int rank, double message_s, double bytes)
{
    double at = r->core_free[rank] > r->now ? r->core_free[rank] : r->now;

    r->core_free[rank] = at + message_s + r->net->opts->copy_s_per_byte * bytes;
    return r->core_free[rank];
}

static int has_cores(const struct run *r)
{
    const struct bny_sim_opts *o = r->net->opts;

    return o->send_s > 0 || o->recv_s > 0 || o->copy_s_per_byte > 0;
}

static double chunk_bytes(const struct run *r, uint32_t id)
{
    return r->net->job->transfers[id].bytes / r->net->chunks;
}

static void inject(struct run *r, uint32_t id, uint32_t chunk)
{
    const struct bny_sim_opts *o = r->net->opts;
    int from = r->net->job->transfers[id].from;
    double at = r->now;

    if (o->overhead_s > 0) {
        at = (at > r->sender_free[from] ? at : r->sender_free[from]) + o->overhead_s;
        r->sender_free[from] = at;
    }
    if (has_cores(r))
        at = fmax(at, simulate_handle(r, from, o->send_s, chunk_bytes(r, id)));
    r->out->messages++;
    if (r->out->spans && chunk == 0)
        r->out->spans[id].began_s = at;
    r->parts[simulate_cell_of(r, id, chunk)] =
        (uint8_t)(r->net->first_part[id + 1] - r->net->first_part[id]);
    for (uint32_t p = r->net->first_part[id]; p < r->net->first_part[id + 1]; p++)
        simulate_push(r, (struct event){
                             .at = at + o->alpha_s, .part = p, .chunk = chunk, .kind = HEAD });
}

static struct channel *channel_of(struct run *r, uint32_t id)
{
    const struct bny_transfer *t = &r->net->job->transfers[id];
    uint64_t pair =
        ((uint64_t)t->channel << 48 | (uint64_t)t->from << 24 | (uint32_t)t->to) + 1;
    size_t i = pair * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (r->nchannels - 1);

    while (r->channels[i].pair && r->channels[i].pair != pair)
        i = (i + 1) & (r->nchannels - 1);
    if (!r->channels[i].pair)
        r->channels[i].pair = pair;
    return &r->channels[i];
}

static void done(struct run *r, uint32_t id, uint32_t chunk);

/* The first chunk of work represents all of it. */
static void begin_work(struct run *r, uint32_t id, uint32_t chunk)
{
    const struct bny_transfer *t = &r->net->job->transfers[id];

    if (r->out->spans && chunk == 0)
        r->out->spans[id].began_s = r->now;
    simulate_push(r, (struct event){ .at = r->now + (chunk == 0 ? t->work_s : 0),
                                     .part = id,
                                     .chunk = chunk,
                                     .kind = WORKED });
}

static void work(struct run *r, uint32_t id, uint32_t chunk)
{
    const struct bny_transfer *t = &r->net->job->transfers[id];
    struct processor *p = &r->processors[t->processor];

    if (t->processor && p->is_busy) {
        uint64_t key = r->arrivals++ | (uint64_t)(t->is_last != 0) << 63;

        simulate_enqueue(r, &p->queue, (struct waiter){ key, 0, id, chunk, 0 });
        return;
    }
    p->is_busy = t->processor != 0;
    begin_work(r, id, chunk);
}

/* All dependencies of the chunk are done. */
static void ready(struct run *r, uint32_t id, uint32_t chunk)
{
    const struct bny_transfer *t = &r->net->job->transfers[id];

    if (t->from == t->to) {
        if (t->processor || t->work_s > 0)
            work(r, id, chunk);
        else
            done(r, id, chunk);
        return;
    }
    if (r->net->opts->slots) {
        struct channel *channel = channel_of(r, id);

        if (channel->on_way == r->net->opts->slots) {
            simulate_enqueue(r, &channel->queue,
                             (struct waiter){ simulate_key_of(r, id, chunk), 0, id, chunk, 0 });
            return;
        }
        channel->on_way++;
    }
    inject(r, id, chunk);
}

static void give_slot_back(struct run *r, uint32_t id)
{
    struct channel *channel = channel_of(r, id);
    struct waiter next;

    if (channel->queue.n == 0) {
        channel->on_way--;
        return;
    }
    next = dequeue(&channel->queue);
    inject(r, next.part, next.chunk);
}

/* Lock-step: opens the steps that may run now. */
static void open_steps(struct run *r)
{
    const struct bny_sim_net *net = r->net;

    while (r->step + 1 < net->nsteps && r->step_left[r->step] == 0) {
        r->step++;
        for (uint32_t i = net->first_of_step[r->step]; i < net->first_of_step[r->step + 1]; i++)
            for (uint32_t c = 0; c < (uint32_t)net->chunks; c++)
                if (r->waits[simulate_cell_of(r, net->by_step[i], c)] == 0)
                    ready(r, net->by_step[i], c);
    }
}

/* The receiver has the chunk, added or stored. */
static void done(struct run *r, uint32_t id, uint32_t chunk)
{
    const struct bny_sim_net *net = r->net;
    const struct bny_transfer *t = &net->job->transfers[id];
    int lockstep = net->opts->lockstep;

    r->done++;
    if (r->out->spans)
        r->out->spans[id].ended_s = r->now;
    if (net->opts->slots && t->from != t->to)
        give_slot_back(r, id);
    for (uint32_t i = net->first_next[id]; i < net->first_next[id + 1]; i++) {
        uint32_t to = net->next[i];

        if (--r->waits[simulate_cell_of(r, to, chunk)] == 0 &&
            (!lockstep || net->job->transfers[to].step <= r->step))
            ready(r, to, chunk);
    }
    if (lockstep)
        r->step_left[t->step]--;
}

/* Its successors are ready before the processor selects its next work. */
static void on_worked(struct run *r, const struct event *e)
{
    int k = r->net->job->transfers[e->part].processor;
    struct processor *p = &r->processors[k];
    struct waiter next;

    done(r, e->part, e->chunk);
    if (!k)
        return;
    p->is_busy = p->queue.n > 0;
    if (!p->is_busy)
        return;
    next = dequeue(&p->queue);
    begin_work(r, next.part, next.chunk);
}

static void on_arrive(struct run *r, const struct event *e)
{
    uint32_t id = r->net->parts[e->part].transfer;
    const struct bny_transfer *t = transfer_of(r, e->part);
    double gamma = t->adds ? r->net->opts->gamma_s_per_byte : 0, at = r->now;

    if (--r->parts[simulate_cell_of(r, id, e->chunk)])
        return;
    if (has_cores(r))
        at = simulate_handle(r, t->to, r->net->opts->recv_s, chunk_bytes(r, id));
    else if (gamma == 0) {
        done(r, id, e->chunk);
        return;
    }
    if (gamma > 0) {
        at = fmax(at, r->adder_free[t->to]) + gamma * chunk_bytes(r, id);
        r->adder_free[t->to] = at;
    }
    simulate_push(r, (struct event){ .at = at, .part = id, .chunk = e->chunk, .kind = ADDED });
}

/* ---- a run --------------------------------------------------------------------------------
 */

static int run_prepare(struct run *r)
{
    const struct bny_sim_net *net = r->net;
    size_t ranks = (size_t)net->g->nranks, chunks = (size_t)net->chunks;

    r->cells = (uint64_t)net->job->n * chunks;
    if (r->cells >= UINT32_MAX)
        return bny_fail(BANYAN_EINVAL,
                        "a simulation of %llu chunks; 2^32 are the most: use "
                        "fewer chunks",
                        (unsigned long long)r->cells);
    r->links = calloc((size_t)net->nlinks + 1, sizeof *r->links);
    r->waits = malloc(((size_t)r->cells + 1) * sizeof *r->waits);
    r->parts = malloc((size_t)r->cells + 1);
    r->adder_free = calloc(ranks, sizeof *r->adder_free);
    r->sender_free = calloc(ranks, sizeof *r->sender_free);
    r->core_free = calloc(ranks, sizeof *r->core_free);
    r->processors = calloc((size_t)net->job->nprocessors + 1, sizeof *r->processors);
    if (net->opts->spans)
        r->out->spans = calloc((size_t)net->job->n + 1, sizeof *r->out->spans);
    r->step_left = calloc((size_t)net->nsteps + 1, sizeof *r->step_left);
    for (r->nchannels = 64; net->opts->slots && r->nchannels < 2 * (size_t)net->job->n;)
        r->nchannels *= 2;
    r->channels = calloc(r->nchannels, sizeof *r->channels);
    if (!r->links || !r->waits || !r->parts || !r->adder_free || !r->sender_free ||
        !r->core_free || !r->processors || !r->step_left || !r->channels ||
        (net->opts->spans && !r->out->spans))
        return bny_fail(BANYAN_ENOMEM, "no memory to simulate %u transfers", net->job->n);
    for (int l = 0; l < net->nlinks; l++)
        r->links[l].free_at = net->opts->free_s ? net->opts->free_s[l] : -net->opts->burst_s;
    for (uint32_t i = 0; i < net->job->n; i++)
        for (size_t c = 0; c < chunks; c++)
            r->waits[i * chunks + c] = net->waits[i];
    for (uint32_t s = 0; s < net->nsteps; s++)
        r->step_left[s] = (net->first_of_step[s + 1] - net->first_of_step[s]) * chunks;
    return 0;
}

static void run_events(struct run *r)
{
    const struct bny_sim_net *net = r->net;

    for (uint32_t i = 0; i < net->job->n; i++)
        for (uint32_t c = 0; c < (uint32_t)net->chunks; c++)
            if (net->waits[i] == 0 &&
                (!net->opts->lockstep || net->job->transfers[i].step == 0))
                ready(r, i, c);
    if (net->opts->lockstep)
        open_steps(r);
    while (r->n && !r->failed) {
        struct event e = pop(r);

        r->out->events++;
        r->now = e.at;
        switch (e.kind) {
        case HEAD: on_head(r, &e); break;
        case FREE: on_free(r, (int)e.part); break;
        case ARRIVE: on_arrive(r, &e); break;
        case ADDED: done(r, e.part, e.chunk); break;
        case WORKED: on_worked(r, &e); break;
        }
        if (net->opts->lockstep)
            open_steps(r);
    }
}

static int run_result(struct run *r)
{
    const struct bny_sim_net *net = r->net;

    if (r->failed)
        return bny_fail(BANYAN_ENOMEM, "no memory to simulate %u transfers", net->job->n);
    if (r->done != r->cells)
        return bny_fail(BANYAN_EINVAL,
                        "the simulation stalls after %llu of %llu chunks: its "
                        "transfers wait for each other",
                        (unsigned long long)r->done, (unsigned long long)r->cells);
    r->out->seconds = r->now;
    r->out->busy_s = calloc((size_t)net->g->nlinks + 1, sizeof *r->out->busy_s);
    if (!r->out->busy_s)
        return bny_fail(BANYAN_ENOMEM, "no memory to simulate %u transfers", net->job->n);
    for (int l = 0; l < net->g->nlinks; l++) {
        r->out->busy_s[l] = r->links[l].busy;
        if (r->now > 0 && r->links[l].busy / r->now > r->out->utilisation)
            r->out->utilisation = r->links[l].busy / r->now;
    }
    return 0;
}

int bny_sim_run(struct bny_sim_result *out, const struct bny_graph *g,
                const struct bny_sim_job *job, const struct bny_sim_opts *opts)
{
    struct bny_sim_net net;
    struct run r = { .net = &net, .out = out };
    int e;

    memset(out, 0, sizeof *out);
    e = bny_sim_net_make(&net, g, job, opts);
    if (!e && opts->order == BNY_SIM_FAIR) {
        e = bny_sim_run_fair(out, &net);
        bny_sim_net_free(&net);
        return e;
    }
    if (!e)
        e = run_prepare(&r);
    if (!e) {
        run_events(&r);
        e = run_result(&r);
        for (int l = 0; opts->free_s && l < net.nlinks; l++)
            opts->free_s[l] = r.links[l].free_at;
    }
    for (int l = 0; r.links && l < net.nlinks; l++)
        free(r.links[l].queue.heap);
    for (int p = 0; r.processors && p <= job->nprocessors; p++)
        free(r.processors[p].queue.heap);
    for (size_t l = 0; r.channels && l < r.nchannels; l++)
        free(r.channels[l].queue.heap);
    free(r.links);
    free(r.heap);
    free(r.waits);
    free(r.parts);
    free(r.adder_free);
    free(r.sender_free);
    free(r.core_free);
    free(r.processors);
    free(r.step_left);
    free(r.channels);
    bny_sim_net_free(&net);
    return e;
}

void bny_sim_result_free(struct bny_sim_result *r)
{
    free(r->busy_s);
    free(r->spans);
    r->busy_s = NULL;
    r->spans = NULL;
}
