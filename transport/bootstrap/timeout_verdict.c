/* SPDX-License-Identifier: BSD-3-Clause */
/* The rank to blame for an operation that missed its deadline, or that takes long: not simply
 * the one that a rank waits for. The members agree on the position of each (an instance that
 * the control planes enter, so a computing rank answers, too), and from the same vector all
 * derive the same verdict, in this order: a gone rank; one that does not answer; one that has
 * not begun the operation; of those that have, the one at the end of the chain of waiting
 * ranks. If the chain is a circle the network between them is to blame. At the deadline the
 * verdict fails the communicator; before, it is a warning. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/bootstrap/control.h"

#define FRESH_NS 20000000u /* a rank inside the library polls every 2 ms at least */
/* A rank whose own threads were not seen in the library for so long is not in another call,
 * though its progress thread answers. */
#define INSIDE_NS 200000000u
#define TELLS     3 /* warnings of a communicator */

struct where { /* the wire layout */
    uint32_t started, active, waits;
    uint32_t flags;
    uint64_t away_ms; /* since it was last seen waiting inside the library */
};
enum {
    WHERE_KNOWN = 1,
    WHERE_INSIDE = 2
}; /* it has the communicator; it is inside the library */
_Static_assert(sizeof(struct where) == 24 && sizeof(struct where) <= BNY_CONSENSUS_EACH,
               "wire");

void bny_control_position_add(struct bny_control *c, struct bny_position *p)
{
    pthread_mutex_lock(&c->lock);
    p->next = c->positions;
    c->positions = p;
    pthread_mutex_unlock(&c->lock);
}

void bny_control_position_remove(struct bny_control *c, struct bny_position *p)
{
    pthread_mutex_lock(&c->lock);
    for (struct bny_position **at = &c->positions; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pthread_mutex_unlock(&c->lock);
}

/* ---- where we are ---- */

static struct bny_position *position_of(const struct bny_control *c, uint32_t comm)
{
    struct bny_position *p = c->positions;

    while (p && p->comm != comm)
        p = p->next;
    return p;
}

static struct where where_are_we(struct bny_control *c, struct bny_position *p)
{
    uint64_t here = atomic_load(&c->here_ns), now = bny_now_ns();
    struct where w = { 0 };

    if (!p)
        return w;
    w.flags = WHERE_KNOWN;
    w.started = atomic_load(&p->started);
    if (atomic_load(&p->fresh)) {
        w.flags |= here && now - here < INSIDE_NS ? WHERE_INSIDE : 0;
        w.active = atomic_load(&p->active);
        w.waits = atomic_load(&p->waits);
    }
    w.away_ms = here && now > here ? (now - here) / 1000000u : 0;
    return w;
}

/* 1: published, or there is nothing to ask. The owner publishes within some ms unless it
 * computes. */
static int published(struct bny_position *p)
{
    uint64_t now = bny_now_ns();

    if (!p)
        return 1;
    if (!p->asked_ns) {
        p->asked_ns = now;
        atomic_store(&p->fresh, 0);
        atomic_store(&p->wanted, 1);
    }
    if (!atomic_load(&p->fresh) && now < p->asked_ns + FRESH_NS)
        return 0;
    p->asked_ns = 0;
    return 1;
}

static void timeout_verdict_tell(struct bny_control *c, struct bny_instance *it)
{
    struct bny_position *p = position_of(c, it->id.comm);
    struct where w;
    struct bny_contribution mine = {
        .members = it->members, .bits = ~(uint64_t)0, .each = sizeof w, .mine = &w
    };

    if (!published(p))
        return;
    w = where_are_we(c, p);
    bny_consensus_enter(&c->agree, it->id, &mine);
}

/* Is there a warning of this communicator that its members have not agreed on? */
static int asks_already(const struct bny_control *c, uint32_t comm)
{
    for (const struct bny_instance *it = c->agree.first; it; it = it->next)
        if (it->id.kind == BNY_CONSENSUS_WHERE && it->id.comm == comm && !it->decided)
            return 1;
    return 0;
}

/* Enters the instance. 0: not yet. */
static int ask(struct bny_control *c, struct bny_consensus_id id, const uint64_t *members,
               const char *what)
{
    struct bny_failure f = { .cause = BNY_CAUSE_DEADLINE,
                             .code = BANYAN_ETIMEDOUT,
                             .blamed = -1,
                             .reporter = c->rank,
                             .comm = id.comm };
    struct where w;
    struct bny_position *p = position_of(c, id.comm);
    const struct bny_instance *it = bny_consensus_find(&c->agree, id);
    struct bny_contribution mine = { .members = members,
                                     .bits = ~(uint64_t)0,
                                     .records = &f,
                                     .nrecords = 1,
                                     .each = sizeof w,
                                     .mine = &w };

    if (c->agree.leaving || c->agree.excluded || (it && (it->entered || it->decided)))
        return 1;
    if (!published(p))
        return 0;
    snprintf(f.text, sizeof f.text, "%s", what);
    w = where_are_we(c, p);
    bny_consensus_enter(&c->agree, id, &mine);
    c->busy = 1;
    return 1;
}

void bny_control_blame(struct bny_control *c, uint32_t comm, uint32_t seq,
                       const uint64_t *members, const char *what)
{
    struct bny_consensus_id id = { BNY_CONSENSUS_BLAME, comm, seq };

    pthread_mutex_lock(&c->lock);
    ask(c, id, members, what);
    pthread_mutex_unlock(&c->lock);
    bny_control_wake(c);
}

int bny_control_ask_where(struct bny_control *c, uint32_t comm, uint32_t seq,
                          const uint64_t *members, const char *what)
{
    struct bny_consensus_id id = { BNY_CONSENSUS_WHERE, comm, seq };
    const struct bny_position *p;
    int asked = 1;

    pthread_mutex_lock(&c->lock);
    p = position_of(c, comm);
    if (p && p->told < TELLS)
        asked = !asks_already(c, comm) && ask(c, id, members, what);
    pthread_mutex_unlock(&c->lock);
    bny_control_wake(c);
    return asked;
}

static int asks_where(const struct bny_instance *it)
{
    return it->id.kind == BNY_CONSENSUS_BLAME || it->id.kind == BNY_CONSENSUS_WHERE;
}

int blame_asked(const struct bny_control *c)
{
    for (const struct bny_instance *it = c->agree.first; it; it = it->next)
        if (asks_where(it) && !it->decided && !it->entered)
            return 1;
    return 0;
}

/* ---- the verdict ---- */

static struct where where_is(const struct bny_instance *it, int rank)
{
    struct where w = { 0 };

    if (it->each == sizeof w)
        memcpy(&w, it->given + (size_t)rank * sizeof w, sizeof w);
    return w;
}

/* The rank that it waits for, as it says; -1: none. */
static int waits_for(const struct bny_control *c, struct where w)
{
    uint32_t rank = w.waits - 1;

    return rank < (uint32_t)c->nranks ? (int)rank : -1;
}

/* The member that has begun the fewest operations, of those that have not begun this one; -1:
 * none. Numbers wrap around. */
static int not_begun(const struct bny_control *c, const struct bny_instance *it)
{
    int least = -1;

    for (int r = 0; r < c->nranks; r++) {
        struct where w = where_is(it, r);

        if (!bny_bit(it->has, r) || (int32_t)(w.started - it->id.seq) > 0)
            continue;
        if (least < 0 || (int32_t)(w.started - where_is(it, least).started) < 0)
            least = r;
    }
    return least;
}

/* Follows the waiting ranks, from the smallest that has not completed. */
static int end_of_chain(const struct bny_control *c, const struct bny_instance *it, char *text,
                        size_t cap)
{
    int r = 0, next;

    while (r < c->nranks && !(bny_bit(it->has, r) && where_is(it, r).active))
        r++;
    if (r == c->nranks) {
        snprintf(text, cap, "all have begun it, and none is in it any more");
        return -1;
    }
    for (int steps = 0; steps <= c->nranks; steps++) {
        next = waits_for(c, where_is(it, r));
        if (next < 0 || !bny_bit(it->has, next)) {
            snprintf(text, cap, "all have begun it; rank %d waits for nobody and does not end",
                     r);
            return r;
        }
        if (waits_for(c, where_is(it, next)) == r) {
            snprintf(text, cap,
                     "all have begun it; ranks %d and %d wait for each other: no bytes move "
                     "between them; " BNY_NET_DOCTOR,
                     r < next ? r : next, r < next ? next : r);
            return -1;
        }
        r = next;
    }
    snprintf(text, cap, "all have begun it, and wait for each other in a circle (rank %d)", r);
    return -1;
}

static int smallest(const struct bny_control *c, const struct bny_instance *it,
                    const uint64_t *set, const uint64_t *less)
{
    for (int r = 0; r < c->nranks; r++)
        if (bny_bit(it->members, r) && bny_bit(set, r) && !(less && bny_bit(less, r)))
            return r;
    return -1;
}

static int verdict(const struct bny_control *c, const struct bny_instance *it, char *text,
                   size_t cap)
{
    const char *lives = it->id.kind == BNY_CONSENSUS_BLAME ? "nobody is dead: " : "";
    int r = smallest(c, it, it->gone, NULL), waits;
    char at[BNY_WHERE_TEXT], for_at[BNY_WHERE_TEXT];
    struct where w;

    if (r >= 0) {
        snprintf(text, cap, "rank %d%s %s", r, bny_control_where(c, r, at),
                 bny_bit(it->left, r) ? "has left" : "has died");
        return r;
    }
    r = smallest(c, it, it->late, it->has);
    if (r >= 0) {
        snprintf(text, cap, "rank %d%s does not answer: its process is stopped, or gets no CPU",
                 r, bny_control_where(c, r, at));
        return r;
    }
    r = not_begun(c, it);
    if (r < 0)
        return end_of_chain(c, it, text, cap);
    w = where_is(it, r);
    waits = waits_for(c, w);
    bny_control_where(c, r, at);
    if (!(w.flags & WHERE_KNOWN))
        snprintf(text, cap, "%srank %d%s does not have this communicator", lives, r, at);
    else if (!(w.flags & WHERE_INSIDE))
        bny_snprintf(
            text, cap,
            "%srank %d%s has not called it, and last waited in the library %.3g s ago; "
            "gdb -p or py-spy dump --pid shows where it is",
            lives, r, at, (double)w.away_ms * 1e-3);
    else if (waits >= 0)
        snprintf(
            text, cap,
            "%srank %d%s has not called it; it is in another call, and waits for rank %d%s",
            lives, r, at, waits, bny_control_where(c, waits, for_at));
    else
        snprintf(text, cap, "%srank %d%s has not called it; it is in another call", lives, r,
                 at);
    return r;
}

/* "what; why" */
static void append(struct bny_failure *f, const char *why)
{
    size_t len = strlen(f->text), most = sizeof f->text - strlen(why) - 3;

    len = len > most ? most : len;
    snprintf(f->text + len, sizeof f->text - len, "; %s", why);
}

/* Two ranks warn: the blamed one, and of the others the first. */
static int is_teller(const struct bny_control *c, const struct bny_instance *it, int blamed)
{
    int r = 0;

    while (r < c->nranks && (!bny_bit(it->has, r) || r == blamed))
        r++;
    return c->rank == blamed || c->rank == r;
}

/* A warning, if a member keeps the others waiting. Where all have called it, it may just be
 * long. */
static void tell_where(struct bny_control *c, const struct bny_instance *it,
                       const struct bny_failure *f)
{
    struct bny_position *p = position_of(c, it->id.comm);
    int is_late = smallest(c, it, it->gone, NULL) >= 0 ||
                  smallest(c, it, it->late, it->has) >= 0 || not_begun(c, it) >= 0;

    if (!p || !bny_bit(it->members, c->rank))
        return;
    if (!is_late) {
        bny_info("%s; all members have called it", it->records[0].text);
        return;
    }
    p->told++;
    banyan_log(is_teller(c, it, f->blamed) ? BANYAN_LOG_WARN : BANYAN_LOG_INFO, "%s%s", f->text,
               f->blamed == c->rank ? " (this rank)" : "");
}

static void judge(struct bny_control *c, struct bny_instance *it)
{
    struct bny_failure f;
    char why[240];

    it->judged = 1;
    if (!it->nrecords)
        return;
    f = it->records[0];
    f.blamed = verdict(c, it, why, sizeof why);
    append(&f, why);
    if (it->id.kind == BNY_CONSENSUS_BLAME)
        control_add(c, &f, -1);
    else
        tell_where(c, it, &f);
}

void blame_run(struct bny_control *c)
{
    for (struct bny_instance *it = c->agree.first; it; it = it->next) {
        if (!asks_where(it) || it->judged)
            continue;
        if (it->decided)
            judge(c, it);
        else if (!it->entered && !c->agree.leaving && !c->agree.excluded &&
                 it->each == sizeof(struct where))
            timeout_verdict_tell(c, it);
    }
}
