/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions to a root as passes (pass.h). The vector has a part for each rank but the root.
 *   in    each of these copies its input to the others' parts into its own slots
 *   add   the owner of a part adds the inputs of all but the root, in the order of the ranks,
 *         and stores the sum in one of the root's slots
 *   out   the root adds its own input to what lies in its slots
 * So the root adds once, whatever the number of ranks, and between two ranks the other one
 * copies and the root adds. Not for operations that do not commute.
 *
 * A rank that lends its input has no in. A root that lends both vectors has no out: owners add
 * its input, too, as the last one, and store the result there. */
#include "collectives/local/local.h"
#include "collectives/pipeline/pass.h"
#include "transport/transport.h"

/* The part of rank r, which is not the root; and whose part q is. */
static int pipeline_reduce_part_of(const struct bny_pass *p, int r)
{
    return r < p->root ? r : r - 1;
}

static int owner_of(const struct bny_pass *p, int q)
{
    return q < p->root ? q : q + 1;
}

static int is_root(const struct bny_pass *p)
{
    return p->rank == p->root;
}

void bny_reduce_cut(struct bny_pass *p, size_t chunk)
{
    bny_pass_cut_parts(p, p->n - 1, chunk);
}

void bny_reduce_begin(struct bny_pass *p)
{
    if (p->lends)
        bny_pass_tell_filled(p, 0, p->nchunks);
    if (is_root(p)) /* which owns no part */
        bny_pass_tell_added(p, p->nchunks);
}

void bny_reduce_in(struct bny_pass *p, uint32_t c)
{
    size_t at, len;

    for (int i = 1; i < p->n && !is_root(p); i++) {
        int q = bny_pass_nth(p, i);

        if (q == p->root)
            continue;
        len = bny_pass_chunk_of(p, pipeline_reduce_part_of(p, q), c, &at) * p->esz;
        bny_local_place(bny_pass_slot(p, p->rank, c, q), bny_in_at(p->in, at * p->esz), len);
        p->copied += len;
        p->handed += len;
    }
    bny_pass_tell_filled(p, c, c + 1);
}

/* ---- add ---- */

/* Where `len` elements of our part come from and go to. 0: not now. */
static int pipeline_reduce_gather(struct bny_pass *p, uint32_t c, size_t at, size_t len)
{
    struct bny_pass_peer *root = &p->peers[p->root];
    char *unused;

    for (int r = 0; r < p->n; r++) {
        struct bny_pass_peer *peer = &p->peers[r];

        if (r == p->rank)
            peer->src = bny_in_at(p->in, at * p->esz);
        else if (r == p->root)
            continue;
        else if (!peer->lends)
            peer->src = bny_pass_slot(p, r, c, p->rank);
        else if (p->borrow(p->ctx, r, at * p->esz, len * p->esz, &peer->src, &unused))
            return 0;
    }
    root->dst = bny_pass_slot(p, p->root, c, p->rank);
    root->src = NULL;
    return !root->lends ||
           !p->borrow(p->ctx, p->root, at * p->esz, len * p->esz, &root->src, &root->dst);
}

/* len elements, which fit the tile, from `from` on. */
static void add_tile(struct bny_pass *p, size_t from, size_t len)
{
    const struct bny_pass_peer *root = &p->peers[p->root];
    size_t off = from * p->esz;
    const void *in[BNY_PASS_RANKS_MAX];
    char *out = root->dst + off;
    int k;

    in[0] = p->peers[owner_of(p, 0)].src + off;
    for (k = 1; k < p->n - 1; k++)
        in[k] = p->peers[owner_of(p, k)].src + off;
    if (root->src)
        in[k++] = root->src + off;
    if (k > 1)
        bny_local_reduce_all(&p->redop, p->dtype, out, p->tile, in, k, len);
    else
        bny_local_place(out, in[0], len * p->esz);
    if (root->src && p->averages)
        bny_divide(out, out, len, p->dtype, p->n);
}

int bny_reduce_add(struct bny_pass *p, uint32_t c)
{
    size_t at, len = bny_pass_chunk_of(p, pipeline_reduce_part_of(p, p->rank), c, &at);

    if (len && !pipeline_reduce_gather(p, c, at, len))
        return 0;
    for (size_t from = 0; from < len; from += p->tile_elems)
        add_tile(p, from, len - from < p->tile_elems ? len - from : p->tile_elems);
    if (len && p->peers[p->root].lends)
        p->give_back(p->ctx, p->root);
    p->handed += len * p->esz;
    bny_pass_tell_added(p, c + 1);
    return 1;
}

/* ---- out ---- */

/* The reader of a slot's line writes it, too: the line changes hands faster next time. */
static void add_own(struct bny_pass *p, char *slot, size_t at, size_t len)
{
    int twice = p->touches && bny_redop_twice(&p->redop, p->dtype);
    const char *in = bny_in_at(p->in, at * p->esz);
    char *out = bny_out_at(p->out, at * p->esz);

    if (twice) {
        bny_redop_run_twice(&p->redop, p->dtype, out, slot, slot, in, len);
    } else {
        bny_local_reduce(&p->redop, p->dtype, out, slot, in, len);
        if (p->touches)
            bny_touch(slot, len * p->esz);
    }
    if (p->averages)
        bny_divide(out, out, len, p->dtype, p->n);
}

void bny_reduce_out(struct bny_pass *p, uint32_t c)
{
    size_t at, len;

    for (int q = 0; q < p->n - 1 && is_root(p) && !p->lends; q++) {
        char *slot = bny_pass_slot(p, p->rank, c, owner_of(p, q));

        len = bny_pass_chunk_of(p, q, c, &at);
        for (size_t from = 0; from < len; from += p->tile_elems)
            add_own(p, slot + from * p->esz, at + from,
                    len - from < p->tile_elems ? len - from : p->tile_elems);
        p->copied += len * p->esz;
    }
}
