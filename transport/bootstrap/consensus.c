/* SPDX-License-Identifier: BSD-3-Clause */
/* Lattice agreement with sticky decisions: consensus.h has the rules. */
#include "transport/bootstrap/consensus.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/err.h"
#include "transport/bootstrap/failures.h"

/* tests/transport/bootstrap/test_agree.c builds this file with one rule broken at a time, to
 * check that its model detects it. */
#ifndef AGREE_MUTANT
#define AGREE_MUTANT 0
#endif
enum agree_mutant { NOT_STICKY = 1, LOCK_EARLY, NO_RULE_4, LOCKS_STAY, FEW_EXCLUDE };

struct agree_head { /* of a message; then the sets, `each` bytes per rank in has, records */
    uint32_t kind, comm, seq, nranks;
    uint64_t key, bits;
    uint16_t decided, each, nrecords, zero;
    uint32_t zeros[6];
};
_Static_assert(sizeof(struct agree_head) == 64, "wire format");

#define SETS       7                                        /* has to members */
#define SETS_KEY   5                                        /* has to late */
#define RECORD_MIN (offsetof(struct bny_failure, text) + 2) /* and the length of the text */

int bny_failure_compare(const struct bny_failure *a, const struct bny_failure *b)
{
    if (a->cause != b->cause)
        return a->cause < b->cause ? -1 : 1;
    if (a->blamed != b->blamed)
        return a->blamed < b->blamed ? -1 : 1;
    if (a->comm != b->comm)
        return a->comm < b->comm ? -1 : 1;
    if (a->call != b->call)
        return a->call < b->call ? -1 : 1;
    if (a->reporter != b->reporter)
        return a->reporter < b->reporter ? -1 : 1;
    if (a->code != b->code)
        return a->code < b->code ? -1 : 1;
    return strcmp(a->text, b->text);
}

/* ---- sets ---- */

/* Returns 1 when the set grew. */
static int set_add(uint64_t *set, const uint64_t *more, int words)
{
    int grew = 0;

    for (int i = 0; i < words; i++) {
        uint64_t add = more[i] & ~set[i];

        set[i] |= add;
        grew |= add != 0;
    }
    return grew;
}

/* Is the rank left out? Not if the ranks that left it out are gone: the rest must go on. */
static int is_late(const struct bny_consensus *a, const struct bny_instance *it, int rank)
{
    if (!bny_bit(it->late, rank))
        return 0;
    for (int r = 0; r < a->nranks; r++)
        if (!bny_bit(it->late, r) && !bny_bit(it->gone, r))
            return 1;
    return 0;
}

/* Is the rank needed for the set (has or locks) and missing? Members contribute; all lock. */
static int is_missing(const struct bny_consensus *a, const struct bny_instance *it,
                      const uint64_t *set, int rank)
{
    return !bny_bit(set, rank) && !bny_bit(it->gone, rank) && !is_late(a, it, rank) &&
           (set == it->locks || bny_bit(it->members, rank));
}

static int any_missing(const struct bny_consensus *a, const struct bny_instance *it,
                       const uint64_t *set)
{
    for (int r = 0; r < a->nranks; r++)
        if (is_missing(a, it, set, r))
            return 1;
    return 0;
}

/* ---- instances ---- */

static struct bny_instance *instance_new(const struct bny_consensus *a, unsigned each)
{
    size_t words = (size_t)a->words, bytes = SETS * words * sizeof(uint64_t);
    struct bny_instance *it = calloc(1, sizeof *it + bytes + (size_t)a->nranks * each);

    if (!it)
        return NULL;
    it->has = (uint64_t *)(it + 1);
    it->gone = it->has + words;
    it->left = it->gone + words;
    it->proven = it->left + words;
    it->late = it->proven + words;
    it->locks = it->late + words;
    it->members = it->locks + words;
    it->given = (uint8_t *)(it->members + words);
    it->each = each;
    it->bits = ~(uint64_t)0;
    return it;
}

static void instance_free(struct bny_instance *it)
{
    if (it)
        free(it->records);
    free(it);
}

int bny_consensus_init(struct bny_consensus *a, int rank, int nranks)
{
    *a = (struct bny_consensus){ .rank = rank, .nranks = nranks, .words = (nranks + 63) / 64 };
    a->gone = calloc(3 * (size_t)a->words, sizeof *a->gone);
    a->got = instance_new(a, BNY_CONSENSUS_EACH);
    if (a->got)
        a->got->records = calloc(BNY_CONSENSUS_RECORDS, sizeof *a->got->records);
    if (!a->gone || !a->got || !a->got->records) {
        bny_consensus_finish(a);
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory to agree on failures", rank);
    }
    a->left = a->gone + a->words;
    a->proven = a->left + a->words;
    return 0;
}

void bny_consensus_finish(struct bny_consensus *a)
{
    while (a->first) {
        struct bny_instance *it = a->first;

        a->first = it->next;
        instance_free(it);
    }
    instance_free(a->got);
    free(a->gone);
    *a = (struct bny_consensus){ 0 };
}

struct bny_instance *bny_consensus_find(const struct bny_consensus *a,
                                        struct bny_consensus_id id)
{
    struct bny_instance *it = a->first;

    while (it && (it->id.kind != id.kind || it->id.comm != id.comm || it->id.seq != id.seq))
        it = it->next;
    return it;
}

struct bny_instance *bny_consensus_next_view(const struct bny_consensus *a)
{
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW, .seq = a->view + 1 };
    struct bny_instance *it = a->excluded || a->leaving ? NULL : bny_consensus_find(a, id);

    return it && !it->entered && !it->decided ? it : NULL;
}

/* Can no rank ask for it any more? A communicator keeps its last two, since a rank enters
 * number i only after number i - 1. Positions are asked for in any order. */
static int outdated(const struct bny_consensus *a, struct bny_consensus_id old,
                    struct bny_consensus_id now)
{
    if (old.kind == BNY_CONSENSUS_VIEW)
        return old.seq + BNY_CONSENSUS_VIEWS <= a->view;
    if (old.kind == BNY_CONSENSUS_WHERE)
        return 0;
    return old.kind == now.kind && old.comm == now.comm && (int32_t)(now.seq - old.seq) >= 2;
}

static void consensus_make_room(struct bny_consensus *a, struct bny_consensus_id now)
{
    for (struct bny_instance **at = &a->first; *at;) {
        struct bny_instance *it = *at;

        if (it->decided && (outdated(a, it->id, now) || (a->count >= BNY_CONSENSUS_KEPT &&
                                                         it->id.kind != BNY_CONSENSUS_VIEW))) {
            *at = it->next;
            a->count--;
            instance_free(it);
        } else {
            at = &it->next;
        }
    }
}

/* Returns 1 when the instance's state grew. */
static int see_gone(const struct bny_consensus *a, struct bny_instance *it)
{
    return set_add(it->gone, a->gone, a->words) | set_add(it->left, a->left, a->words) |
           set_add(it->proven, a->proven, a->words);
}

/* members NULL: all. */
static struct bny_instance *instance_get(struct bny_consensus *a, struct bny_consensus_id id,
                                         const uint64_t *members, unsigned each)
{
    struct bny_instance *it = bny_consensus_find(a, id), **end = &a->first;

    if (it)
        return it;
    consensus_make_room(a, id);
    it = instance_new(a, each);
    if (it && id.kind != BNY_CONSENSUS_CALL &&
        !(it->records = calloc(BNY_CONSENSUS_RECORDS, sizeof *it->records))) {
        instance_free(it);
        it = NULL;
    }
    if (!it) {
        a->starved = 1;
        return NULL;
    }
    it->id = id;
    for (int r = 0; r < a->nranks; r++)
        if (!members || bny_bit(members, r))
            bny_bit_set(it->members, r);
    it->entered = members && !bny_bit(members, a->rank);
    see_gone(a, it);
    while (*end)
        end = &(*end)->next;
    *end = it;
    a->count++;
    return it;
}

/* ---- states ---- */

static void hash_more(uint64_t key[2], const void *data, size_t len)
{
    uint8_t out[crypto_shorthash_BYTES];

    crypto_shorthash(out, data, len, (const uint8_t *)key);
    memcpy(key, out, sizeof out);
}

/* A 64-bit hash: equal keys count as equal states. */
static uint64_t state_key(const struct bny_consensus *a, const struct bny_instance *it)
{
    uint64_t key[2] = { it->bits, 0 };

    hash_more(key, it->has, SETS_KEY * (size_t)a->words * sizeof *it->has);
    if (it->each)
        hash_more(key, it->given, (size_t)a->nranks * it->each);
    for (int i = 0; i < it->nrecords; i++) {
        const struct bny_failure *f = &it->records[i];

        hash_more(key, f, offsetof(struct bny_failure, text) + strlen(f->text));
    }
    return key[0];
}

static void consensus_changed(struct bny_instance *it)
{
    it->changes++;
    it->unsent = ~(uint64_t)0;
}

static void state_grew(const struct bny_consensus *a, struct bny_instance *it)
{
    if (AGREE_MUTANT != LOCKS_STAY)
        memset(it->locks, 0, (size_t)a->words * sizeof *it->locks);
    it->key = state_key(a, it);
    consensus_changed(it);
}

/* Locks and decides if possible. */
static void consensus_settle(struct bny_consensus *a, struct bny_instance *it)
{
    if (it->decided || !it->entered || a->excluded || a->leaving || is_late(a, it, a->rank))
        return;
    if (!bny_bit(it->locks, a->rank) &&
        (AGREE_MUTANT == LOCK_EARLY || !any_missing(a, it, it->has))) {
        bny_bit_set(it->locks, a->rank);
        consensus_changed(it);
        it->pressing = 1;
    }
    if (AGREE_MUTANT == LOCK_EARLY) {
        for (int r = 0; r < a->nranks; r++)
            if (bny_bit(it->has, r) && !bny_bit(it->gone, r) && !bny_bit(it->locks, r))
                return;
    } else if (any_missing(a, it, it->locks)) {
        return;
    }
    it->decided = 1;
    consensus_changed(it);
    if (it->id.kind == BNY_CONSENSUS_VIEW)
        a->view = it->id.seq;
}

/* Merges one record. Returns 1 when the state grew. */
static int add_record(struct bny_instance *it, const struct bny_failure *f)
{
    int at = 0;

    if (!it->records) /* of a call */
        return 0;
    while (at < it->nrecords && !bny_failure_same(&it->records[at], f) &&
           bny_failure_compare(&it->records[at], f) < 0)
        at++;
    if (at < it->nrecords && bny_failure_same(&it->records[at], f)) {
        if (bny_failure_compare(f, &it->records[at]) >= 0)
            return 0;
        it->records[at] = *f;
        return 1;
    }
    if (at == BNY_CONSENSUS_RECORDS)
        return 0;
    if (it->nrecords == BNY_CONSENSUS_RECORDS)
        it->nrecords--;
    memmove(it->records + at + 1, it->records + at,
            (size_t)(it->nrecords - at) * sizeof *it->records);
    it->records[at] = *f;
    it->nrecords++;
    return 1;
}

static int add_given(const struct bny_consensus *a, struct bny_instance *it,
                     const struct bny_instance *from)
{
    int grew = 0;

    for (int r = 0; r < a->nranks && it->each; r++)
        if (bny_bit(from->has, r) && !bny_bit(it->has, r)) {
            memcpy(it->given + (size_t)r * it->each, from->given + (size_t)r * it->each,
                   it->each);
            grew = 1;
        }
    return grew;
}

static int merge(const struct bny_consensus *a, struct bny_instance *it,
                 const struct bny_instance *from)
{
    int grew = add_given(a, it, from);

    grew |= set_add(it->has, from->has, a->words);
    grew |= set_add(it->gone, from->gone, a->words);
    grew |= set_add(it->left, from->left, a->words);
    grew |= set_add(it->proven, from->proven, a->words);
    grew |= set_add(it->late, from->late, a->words);
    grew |= (it->bits & from->bits) != it->bits;
    it->bits &= from->bits;
    for (int i = 0; i < from->nrecords; i++)
        grew |= add_record(it, &from->records[i]);
    return grew;
}

/* Adds the gone ranks to all undecided instances. */
static void spread_gone(struct bny_consensus *a)
{
    for (struct bny_instance *it = a->first; it; it = it->next) {
        if (!it->decided && see_gone(a, it)) {
            state_grew(a, it);
            consensus_settle(a, it);
        }
    }
}

void bny_consensus_gone(struct bny_consensus *a, int rank, enum bny_gone how)
{
    if (rank == a->rank)
        return;
    bny_bit_set(a->gone, rank);
    if (how != BNY_GONE_SILENT)
        bny_bit_set(how == BNY_GONE_LEFT ? a->left : a->proven, rank);
    spread_gone(a);
}

int bny_consensus_quorum(const struct bny_consensus *a, const struct bny_instance *it,
                         int least, int *cut, int *all)
{
    struct bny_consensus_id before_id = { .kind = BNY_CONSENSUS_VIEW, .seq = it->id.seq - 1 };
    const struct bny_instance *before = bny_consensus_find(a, before_id);
    int live = 0, silent = 0, first = -1;

    *cut = *all = 0;
    for (int r = 0; r < a->nranks; r++) {
        int gone = bny_bit(it->gone, r), lives = !gone && !bny_bit(it->late, r);

        if (before && bny_bit(before->gone, r))
            continue;
        ++*all;
        if (bny_bit(it->proven, r) || bny_bit(it->left, r))
            continue;
        first = first < 0 ? lives : first;
        live += lives;
        *cut += !lives;
        silent += gone;
    }
    if (!silent)
        return 1;
    return least > 0 ? live >= least : live > *cut || (live == *cut && first == 1);
}

struct bny_instance *bny_consensus_enter(struct bny_consensus *a, struct bny_consensus_id id,
                                         const struct bny_contribution *c)
{
    struct bny_instance *it = instance_get(a, id, c->members, c->each);

    if (!it || it->entered || it->decided)
        return it;
    it->entered = 1;
    bny_bit_set(it->has, a->rank);
    it->bits &= c->bits;
    if (it->each && c->mine && it->each == c->each)
        memcpy(it->given + (size_t)a->rank * it->each, c->mine, it->each);
    for (int i = 0; i < c->nrecords; i++)
        add_record(it, &c->records[i]);
    state_grew(a, it);
    consensus_settle(a, it);
    return it;
}

int bny_consensus_late(struct bny_consensus *a, struct bny_instance *it)
{
    const uint64_t *set = it->has;
    int n = 0;

    if (it->decided || !it->entered || is_late(a, it, a->rank))
        return 0;
    if (!any_missing(a, it, set))
        set = it->locks;
    for (int r = 0; r < a->nranks; r++)
        if (r != a->rank && is_missing(a, it, set, r) && !bny_bit(it->late, r)) {
            bny_bit_set(it->late, r);
            n++;
        }
    if (n) {
        state_grew(a, it);
        consensus_settle(a, it);
    }
    return n;
}

/* ---- messages ---- */

size_t bny_consensus_message_max(int nranks)
{
    size_t words = ((size_t)nranks + 63) / 64;

    return sizeof(struct agree_head) + SETS * words * sizeof(uint64_t) +
           (size_t)nranks * BNY_CONSENSUS_EACH +
           BNY_CONSENSUS_RECORDS * (sizeof(struct bny_failure) + 2);
}

static uint8_t *consensus_put(uint8_t *at, const void *data, size_t len)
{
    memcpy(at, data, len);
    return at + len;
}

static size_t consensus_encode(const struct bny_consensus *a, const struct bny_instance *it,
                               uint8_t *buf)
{
    struct agree_head h = { .kind = it->id.kind,
                            .comm = it->id.comm,
                            .seq = it->id.seq,
                            .nranks = (uint32_t)a->nranks,
                            .key = it->key,
                            .bits = it->bits,
                            .decided = (uint16_t)it->decided,
                            .each = (uint16_t)it->each,
                            .nrecords = (uint16_t)it->nrecords };
    uint8_t *at = consensus_put(buf, &h, sizeof h);

    at = consensus_put(at, it->has, SETS * (size_t)a->words * sizeof *it->has);
    for (int r = 0; r < a->nranks && it->each; r++)
        if (bny_bit(it->has, r))
            at = consensus_put(at, it->given + (size_t)r * it->each, it->each);
    for (int i = 0; i < it->nrecords; i++) {
        const struct bny_failure *f = &it->records[i];
        uint16_t len = (uint16_t)strlen(f->text);

        at = consensus_put(at, f, offsetof(struct bny_failure, text));
        at = consensus_put(at, &len, sizeof len);
        at = consensus_put(at, f->text, len);
    }
    return (size_t)(at - buf);
}

struct reader {
    const uint8_t *at;
    size_t left;
};

/* 0, or -1: the message is too short. */
static int consensus_get(struct reader *in, void *to, size_t len)
{
    if (in->left < len)
        return -1;
    memcpy(to, in->at, len);
    in->at += len;
    in->left -= len;
    return 0;
}

static int get_records(const struct bny_consensus *a, struct reader *in, int n)
{
    struct bny_instance *g = a->got;

    for (int i = 0; i < n; i++) {
        struct bny_failure *f = &g->records[i];
        uint16_t len;

        memset(f, 0, sizeof *f);
        if (consensus_get(in, f, offsetof(struct bny_failure, text)) ||
            consensus_get(in, &len, sizeof len) || len >= sizeof f->text ||
            consensus_get(in, f->text, len) || strlen(f->text) != len ||
            !bny_failure_valid(f, a->nranks))
            return -1;
        if (i && (bny_failure_same(f - 1, f) || bny_failure_compare(f - 1, f) >= 0))
            return -1;
        g->nrecords = i + 1;
    }
    return 0;
}

/* Do the sets contain only members, and all ranks for a view? */
static int sets_valid(const struct bny_consensus *a, const struct bny_instance *g)
{
    uint64_t last = a->nranks % 64 ? ((uint64_t)1 << (a->nranks % 64)) - 1 : ~(uint64_t)0;

    for (int i = 0; i < a->words; i++) {
        uint64_t all = i + 1 < a->words ? ~(uint64_t)0 : last, m = g->members[i];

        if ((m & ~all) || ((g->left[i] | g->proven[i]) & ~g->gone[i]) ||
            (g->id.kind == BNY_CONSENSUS_VIEW && m != all) || (g->has[i] & ~m) ||
            ((g->gone[i] | g->late[i] | g->locks[i]) & ~all))
            return 0;
    }
    return 1;
}

/* Into a->got. */
static int consensus_decode(struct bny_consensus *a, const uint8_t *data, size_t len)
{
    struct reader in = { data, len };
    struct bny_instance *g = a->got;
    struct agree_head h;

    g->nrecords = 0;
    memset(g->given, 0, (size_t)a->nranks * BNY_CONSENSUS_EACH);
    if (consensus_get(&in, &h, sizeof h) || h.kind < BNY_CONSENSUS_VIEW ||
        h.kind > BNY_CONSENSUS_WHERE || h.nranks != (uint32_t)a->nranks || h.decided > 1 ||
        h.each > BNY_CONSENSUS_EACH || h.nrecords > BNY_CONSENSUS_RECORDS || h.zero ||
        (h.kind == BNY_CONSENSUS_VIEW && h.comm) ||
        consensus_get(&in, g->has, SETS * (size_t)a->words * sizeof *g->has))
        return -1;
    for (int i = 0; i < 6; i++)
        if (h.zeros[i])
            return -1;
    g->id = (struct bny_consensus_id){ h.kind, h.comm, h.seq };
    g->decided = h.decided;
    g->bits = h.bits;
    g->each = h.each;
    if (!sets_valid(a, g))
        return -1;
    for (int r = 0; r < a->nranks && g->each; r++)
        if (bny_bit(g->has, r) && consensus_get(&in, g->given + (size_t)r * g->each, g->each))
            return -1;
    if (get_records(a, &in, h.nrecords) != 0 || in.left)
        return -1;
    g->key = state_key(a, g);
    return h.key == g->key ? 0 : -1;
}

static void adopt(struct bny_consensus *a, struct bny_instance *it,
                  const struct bny_instance *g)
{
    memcpy(it->has, g->has, SETS_KEY * (size_t)a->words * sizeof *it->has);
    memcpy(it->given, g->given, (size_t)a->nranks * it->each);
    it->bits = g->bits;
    it->nrecords = 0;
    for (int i = 0; i < g->nrecords; i++)
        add_record(it, &g->records[i]);
    it->key = g->key;
    it->decided = 1;
    consensus_changed(it);
    if (it->id.kind == BNY_CONSENSUS_VIEW)
        a->view = it->id.seq;
}

static int takes_part(const struct bny_instance *it, int rank)
{
    return !bny_bit(it->gone, rank) && !bny_bit(it->late, rank);
}

/* Two decisions that each leave the other rank out, as after a long cut of the network: the one
 * of more ranks counts, of equally many the one with the smallest rank. Is that theirs? */
static int theirs_counts(const struct bny_consensus *a, const struct bny_instance *ours,
                         const struct bny_instance *theirs)
{
    int more = 0, smallest = 0;

    for (int r = 0; r < a->nranks; r++) {
        int step = takes_part(theirs, r) - takes_part(ours, r);

        more += step;
        smallest = smallest ? smallest : step;
    }
    return more > 0 || (more == 0 && smallest > 0);
}

/* Do two decisions differ only in the ranks left out? Then the result is the same for the
 * caller. */
static int says_same(const struct bny_consensus *a, const struct bny_instance *x,
                     const struct bny_instance *y)
{
    size_t sets = (size_t)(x->late - x->has) * sizeof *x->has;
    int same = memcmp(x->has, y->has, sets) == 0 && x->bits == y->bits &&
               memcmp(x->given, y->given, (size_t)a->nranks * x->each) == 0 &&
               x->nrecords == y->nrecords;

    for (int i = 0; i < x->nrecords && same; i++)
        same = !bny_failure_compare(&x->records[i], &y->records[i]);
    return same;
}

/* Does this decision leave out more ranks than made it, as in the minority of a cut network? */
static int leaves_out_most(const struct bny_consensus *a, const struct bny_instance *it)
{
    int more = 0;

    for (int r = 0; r < a->nranks; r++)
        if (!bny_bit(it->gone, r))
            more += bny_bit(it->late, r) ? 1 : -1;
    return more > 0;
}

/* Marks this instance and all similar ones to be sent again. */
static void tell_again(struct bny_instance *it, int link)
{
    for (struct bny_instance *i = it; i; i = i->next)
        if (i == it || i->id.kind == it->id.kind)
            i->unsent |= (uint64_t)1 << link;
}

/* Answers a message about an instance that is decided here. */
static void answer(struct bny_consensus *a, struct bny_instance *it, int from, int link)
{
    const struct bny_instance *g = a->got;
    int without_us = bny_bit(g->late, a->rank), without_it = bny_bit(it->late, from);

    if (!g->decided) {
        tell_again(it, link);
    } else if (g->key != it->key) {
        if (it->id.kind == BNY_CONSENSUS_WHERE)
            return;
        if (without_us && AGREE_MUTANT != FEW_EXCLUDE && leaves_out_most(a, g) &&
            says_same(a, it, g))
            return; /* both stand */
        if (without_us && !bny_bit(it->members, a->rank))
            return; /* no call of ours used our decision */
        if (without_us && (!without_it || theirs_counts(a, it, g)))
            it->excluded = a->excluded = 1;
        else if (without_it)
            tell_again(it, link);
        else
            a->conflicts++;
    }
}

/* Was `from` left out of a decision of the same communicator? It may have decided otherwise and
 * gone on: the decision is sent to it and excludes it. */
static int left_behind(const struct bny_consensus *a, int from, int link)
{
    const struct bny_consensus_id *id = &a->got->id;

    for (struct bny_instance *it = a->first; it; it = it->next)
        if (it->decided && it->id.kind == id->kind && it->id.comm == id->comm &&
            bny_bit(it->late, from)) {
            tell_again(it, link);
            return 1;
        }
    return 0;
}

/* NULL: the message is ignored. */
static struct bny_instance *instance_of_message(struct bny_consensus *a, int from, int link,
                                                int *rc)
{
    struct bny_instance *g = a->got, *it = bny_consensus_find(a, g->id);
    struct bny_consensus_id want = { .kind = BNY_CONSENSUS_VIEW, .seq = a->view + 1 };

    *rc = 0;
    if (!it && g->id.kind == BNY_CONSENSUS_VIEW) {
        if (g->id.seq <= a->view)
            return NULL;
        if (g->id.seq >
            want.seq) { /* we missed one: a rank that receives ours answers with it */
            it = bny_consensus_find(a, want);
            if (!it && (it = instance_get(a, want, NULL, 0)))
                state_grew(a, it);
            if (it)
                it->unsent |= (uint64_t)1 << link;
            return NULL;
        }
    }
    for (const struct bny_instance *i = it ? NULL : a->first; i; i = i->next)
        if (g->id.kind != BNY_CONSENSUS_VIEW && outdated(a, g->id, i->id))
            return NULL;
    if (!it && g->id.kind == BNY_CONSENSUS_WHERE && a->count >= BNY_CONSENSUS_KEPT) {
        return NULL; /* a warning less */
    } else if (!it &&
               a->count >= 2 * BNY_CONSENSUS_KEPT) { /* no rank has that many in progress */
        *rc = -BANYAN_EPROTO;
    } else if (!it) {
        it = instance_get(a, g->id, g->members, g->each);
        if (it)
            state_grew(a, it);
        else
            *rc = -BANYAN_ENOMEM;
    } else if (it->each != g->each ||
               memcmp(it->members, g->members, (size_t)a->words * sizeof *g->members) != 0) {
        *rc = left_behind(a, from, link) ? 0 : -BANYAN_EPROTO;
        it = NULL;
    }
    return it;
}

int bny_consensus_take(struct bny_consensus *a, int from, int link, const uint8_t *data,
                       size_t len)
{
    struct bny_instance *g = a->got, *it;
    int rc;

    if (AGREE_MUTANT != NO_RULE_4 && bny_bit(a->gone, from))
        return 0;
    if (consensus_decode(a, data, len) != 0)
        return -BANYAN_EPROTO;
    if (bny_bit(g->gone, a->rank))
        a->excluded = a->excluded || !a->leaving;
    if (a->excluded || a->leaving)
        return 0;
    it = instance_of_message(a, from, link, &rc);
    if (!it)
        return rc;
    if (AGREE_MUTANT == NOT_STICKY && it->decided && !g->decided && g->key != it->key)
        it->decided = 0;
    if (it->decided) {
        answer(a, it, from, link);
        return 0;
    }
    if (is_late(a, it, from) && !(g->decided && bny_bit(g->late, a->rank)))
        return 0;
    set_add(a->gone, g->gone, a->words);
    set_add(a->left, g->left, a->words);
    set_add(a->proven, g->proven, a->words);
    if (g->decided) {
        adopt(a, it, g);
        it->unsent &= ~((uint64_t)1 << link);
    } else {
        if (merge(a, it, g))
            state_grew(a, it);
        if (it->key == g->key) {
            if (set_add(it->locks, g->locks, a->words))
                consensus_changed(it);
            if (memcmp(it->locks, g->locks, (size_t)a->words * sizeof *g->locks) == 0)
                it->unsent &= ~((uint64_t)1 << link);
        }
        consensus_settle(a, it);
    }
    spread_gone(a);
    return 0;
}

size_t bny_consensus_next(struct bny_consensus *a, int link, uint8_t *buf)
{
    for (struct bny_instance *it = a->first; it; it = it->next)
        if (!it->held && it->unsent >> link & 1) {
            it->unsent &= ~((uint64_t)1 << link);
            return consensus_encode(a, it, buf);
        }
    return 0;
}

void bny_consensus_again(struct bny_consensus *a, int link)
{
    for (struct bny_instance *it = a->first; it; it = it->next)
        it->unsent |= (uint64_t)1 << link;
}
