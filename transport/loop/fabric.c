/* SPDX-License-Identifier: BSD-3-Clause */
/* Links, faults and the life of packets; see fabric.h. */
#include "transport/loop/fabric.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/rng.h"

struct bny_loop_fabric *bny_loop_fabric_create(int nranks, const struct bny_loop_faults *faults)
{
    struct bny_loop_fabric *f = calloc(1, sizeof *f);
    size_t n = (size_t)nranks;

    if (!f)
        return NULL;
    f->nranks = nranks;
    randombytes_buf(&f->id, sizeof f->id);
    f->states = calloc(n, sizeof *f->states);
    f->links = calloc(n * n, sizeof *f->links);
    if (!f->states || !f->links) {
        free(f->states);
        free(f->links);
        free(f);
        return NULL;
    }
    if (faults)
        f->faults = *faults;
    if (f->faults.queue_max == 0)
        f->faults.queue_max = 64;
    f->faulty = f->faults.loss > 0 || f->faults.duplicate > 0 || f->faults.reorder > 0 ||
                f->faults.delay_polls_max > 0;
    for (size_t i = 0; i < n * n; i++) {
        f->links[i].tail = &f->links[i].head;
        f->links[i].rng = f->faults.seed * 0x9e3779b97f4a7c15u + i;
        f->links[i].slots_free = BNY_LOOP_SLOTS;
    }
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

static void empty_link(struct bny_loop_link *link)
{
    while (link->head) {
        struct bny_loop_packet *p = link->head;

        link->head = p->next;
        if (p->out)
            bny_loop_drop(p->out);
        free(p);
    }
    link->tail = &link->head;
    link->count = 0;
}

void bny_loop_fabric_destroy(struct bny_loop_fabric *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < (size_t)f->nranks * (size_t)f->nranks; i++)
        empty_link(&f->links[i]);
    pthread_mutex_destroy(&f->lock);
    free(f->states);
    free(f->links);
    free(f);
}

void bny_loop_fabric_kill(struct bny_loop_fabric *f, int rank)
{
    pthread_mutex_lock(&f->lock);
    bny_loop_set_state(f, rank, BNY_LOOP_DEAD);
    pthread_mutex_unlock(&f->lock);
}

struct bny_loop_link *bny_loop_link(struct bny_loop_fabric *f, int src, int dst)
{
    return &f->links[(size_t)src * (size_t)f->nranks + (size_t)dst];
}

/* Appends; a reordered packet overtakes up to four that were sent before it. */
static void fabric_put(struct bny_loop_fabric *f, struct bny_loop_link *link,
                       const struct bny_loop_packet *packet)
{
    struct bny_loop_packet *p = malloc(sizeof *p);
    struct bny_loop_packet **at = link->tail;

    if (!p)
        return; /* counts as a lost packet; the sender retries */
    *p = *packet;
    p->due = link->polls;
    if (f->faults.delay_polls_max)
        p->due += bny_rng_below(&link->rng, (uint64_t)f->faults.delay_polls_max + 1);
    if (f->faults.reorder > 0 && bny_rng_unit(&link->rng) < f->faults.reorder) {
        uint32_t skip = (uint32_t)bny_rng_below(&link->rng, 4) + 1;

        at = &link->head;
        for (uint32_t i = skip; i < link->count; i++)
            at = &(*at)->next;
    }
    p->next = *at;
    *at = p;
    if (at == link->tail)
        link->tail = &p->next;
    link->count++;
    if (p->out)
        p->out->flying++;
}

void bny_loop_transmit(struct bny_loop_fabric *f, int src, int dst,
                       const struct bny_loop_packet *packet)
{
    struct bny_loop_link *link = bny_loop_link(f, src, dst);
    int copies = 1;

    if (f->states[src] != BNY_LOOP_ALIVE || f->states[dst] != BNY_LOOP_ALIVE)
        return;
    if (f->faults.loss > 0 && bny_rng_unit(&link->rng) < f->faults.loss)
        return;
    if (f->faults.duplicate > 0 && bny_rng_unit(&link->rng) < f->faults.duplicate)
        copies = 2;
    /* Twice the window holds all data, and as many duplicates and acknowledgements. */
    for (int i = 0; i < copies && link->count < 4 * f->faults.queue_max + 16; i++)
        fabric_put(f, link, packet);
}

int bny_loop_take(struct bny_loop_fabric *f, int src, int dst, int data,
                  struct bny_loop_packet *packet)
{
    struct bny_loop_link *link = bny_loop_link(f, src, dst);

    for (struct bny_loop_packet **at = &link->head; *at; at = &(*at)->next) {
        struct bny_loop_packet *p = *at;

        if (p->due > link->polls || (p->out && !data))
            continue;
        *packet = *p;
        *at = p->next;
        if (!p->next)
            link->tail = at;
        link->count--;
        free(p);
        return 1;
    }
    return 0;
}

static void free_unused(struct bny_loop_out *out)
{
    if (out->flying == 0 && out->acked) {
        free(out->copy);
        free(out);
    }
}

void bny_loop_drop(struct bny_loop_out *out)
{
    out->flying--;
    free_unused(out);
}

void bny_loop_retire(struct bny_loop_out *out)
{
    out->acked = 1;
    free_unused(out);
}

void bny_loop_set_state(struct bny_loop_fabric *f, int rank, enum bny_loop_state state)
{
    if (f->states[rank] != BNY_LOOP_DEAD)
        f->states[rank] = state;
    if (state != BNY_LOOP_DEAD)
        return;
    for (int peer = 0; peer < f->nranks; peer++) {
        empty_link(bny_loop_link(f, rank, peer));
        empty_link(bny_loop_link(f, peer, rank));
    }
}
