/* SPDX-License-Identifier: BSD-3-Clause */
/* The agreement as a random model: ranks that die with half of their output sent, that stop and
 * wake, links in any order, messages twice, a full mesh or a ring that is repaired. Whatever
 * happens, those who live decide the same, soon, and only what is true. And the same with one
 * rule broken at a time: the model has to notice. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "support.h"

/* Our own copy of the file, with the mistake of this moment. */
static int mutant;
#define AGREE_MUTANT mutant
#include "transport/bootstrap/consensus.c"

TestSuite(agree, .timeout = 120);

#define RANKS   8
#define CALLS   3
#define RECORDS 4
#define COMM    5

struct frame {
    struct frame *next;
    enum { FRAME_AGREE, FRAME_FAREWELL, FRAME_EOF } kind;
    size_t len;
    uint8_t data[];
};
struct model_rank {
    struct bny_consensus a;
    int alive, stopped, was_stopped, left;
    int nrecords; /* reported */
    struct bny_failure records[RECORDS];
    int told[RECORDS]; /* it is in a view */
    uint32_t next_call;
    uint64_t bits[CALLS + 1];
};
struct model {
    int n, ring;
    uint64_t s; /* random */
    struct model_rank r[RANKS];
    uint64_t members[1];
    int up[RANKS][RANKS];
    struct frame *q[RANKS][RANKS]; /* from, to */
    const char *why;
    uint64_t messages, answers;
};

static uint64_t below(struct model *m, uint64_t n)
{
    return bny_rng_below(&m->s, n);
}

static void push(struct model *m, int from, int to, int kind, const void *data, size_t len)
{
    struct frame *f = malloc(sizeof *f + len), **end = &m->q[from][to];

    f->next = NULL;
    f->kind = (unsigned)kind;
    f->len = len;
    if (len)
        memcpy(f->data, data, len);
    while (*end)
        end = &(*end)->next;
    *end = f;
    m->messages++;
}

static void cut(struct frame **at)
{
    while (*at) {
        struct frame *f = *at;

        *at = f->next;
        free(f);
    }
}

/* ---- a rank's owner: what control.c does ---- */

static void pump(struct model *m, int r)
{
    uint8_t buf[8192];
    size_t len;

    for (int q = 0; q < m->n; q++)
        while (m->up[r][q] && (len = bny_consensus_next(&m->r[r].a, q, buf)))
            push(m, r, q, FRAME_AGREE, buf, len);
}

static void die(struct model *m, int r, int whole)
{
    m->r[r].alive = 0;
    for (int q = 0; q < m->n; q++) {
        struct frame **at = &m->q[r][q];

        if (!m->up[r][q])
            continue;
        while (*at && (whole || below(m, 3)))
            at = &(*at)->next;
        cut(at);
        push(m, r, q, FRAME_EOF, NULL, 0);
    }
}

/* On a ring: to the next who are not gone. A link to the dead is refused, which tells. */
static void repair(struct model *m, int r)
{
    for (int dir = -1; dir <= 1; dir += 2) {
        int q = (r + dir + m->n) % m->n;

        while (q != r && bny_bit(m->r[r].a.gone, q))
            q = (q + dir + m->n) % m->n;
        if (q == r || m->up[r][q] || bny_bit(m->r[q].a.gone, r))
            continue;
        if (!m->r[q].alive) {
            bny_consensus_gone(&m->r[r].a, q, 0);
            dir -= 2; /* once more */
            continue;
        }
        m->up[r][q] = m->up[q][r] = 1;
        bny_consensus_again(&m->r[r].a, q);
        bny_consensus_again(&m->r[q].a, r);
        pump(m, q);
    }
}

/* Records that no decided view has. */
static int pending(struct model_rank *r, struct bny_failure *out)
{
    int n = 0;

    for (int i = 0; i < r->nrecords; i++) {
        for (const struct bny_instance *it = r->a.first; it; it = it->next)
            for (int k = 0; it->decided && k < it->nrecords; k++)
                r->told[i] |= bny_failure_same(&it->records[k], &r->records[i]);
        if (!r->told[i])
            out[n++] = r->records[i];
    }
    return n;
}

static int death_untold(const struct bny_consensus *a)
{
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW, .seq = a->view };
    const struct bny_instance *it = bny_consensus_find(a, id);

    return (a->gone[0] & ~a->left[0] & (it ? ~it->gone[0] : ~(uint64_t)0)) != 0;
}

static void owner(struct model *m, int r)
{
    struct model_rank *me = &m->r[r];
    struct bny_failure records[RECORDS];
    int n;

    if (!me->alive)
        return;
    if (me->a.excluded) {
        die(m, r, 1);
        return;
    }
    if (m->ring)
        repair(m, r);
    n = pending(me, records);
    while (bny_consensus_next_view(&me->a) || n || death_untold(&me->a)) {
        struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW, .seq = me->a.view + 1 };
        struct bny_contribution c = { .bits = ~0ull, .records = records, .nrecords = n };
        uint32_t view = me->a.view;

        bny_consensus_enter(&me->a, id, &c);
        if (me->a.view == view)
            break;
        n = pending(me, records);
    }
    pump(m, r);
}

static void call(struct model *m, int r)
{
    struct model_rank *me = &m->r[r];
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_CALL,
                                   .comm = COMM,
                                   .seq = me->next_call };
    struct bny_contribution c = { .members = m->members, .each = 8 };
    const struct bny_instance *it;
    uint64_t mine = (uint64_t)r * 1000 + me->next_call;

    if (!bny_bit(m->members, r) || me->next_call > CALLS)
        return;
    it = bny_consensus_find(&me->a, id);
    if (it && it->decided) { /* perhaps without us */
        me->next_call++;
        return;
    }
    if (it && it->entered)
        return;
    c.bits = me->bits[id.seq] = bny_rng_next(&m->s) | bny_rng_next(&m->s);
    c.mine = &mine;
    bny_consensus_enter(&me->a, id, &c);
    owner(m, r);
}

static void report(struct model *m, int r)
{
    struct model_rank *me = &m->r[r];
    struct bny_failure *f = &me->records[me->nrecords];

    if (me->nrecords == RECORDS)
        return;
    memset(f, 0, sizeof *f);
    f->cause = 1 + (uint32_t)below(m, 5);
    f->code = 1;
    f->blamed = (int32_t)below(m, (uint64_t)m->n);
    f->reporter = r;
    f->comm = (uint32_t)below(m, 2) * COMM;
    snprintf(f->text, sizeof f->text, "rank %d saw %u", r, f->cause);
    me->nrecords++;
    owner(m, r);
}

/* Everything was flushed before. */
static void leave(struct model *m, int r)
{
    m->r[r].left = 1;
    m->r[r].a.leaving = 1;
    for (int q = 0; q < m->n; q++)
        if (m->up[r][q])
            push(m, r, q, FRAME_FAREWELL, NULL, 0);
    die(m, r, 1);
}

/* ---- what must hold ---- */

static int is_true(const struct model *m, const struct bny_instance *it)
{
    uint64_t bits = ~0ull;

    for (int r = 0; r < m->n; r++) {
        const struct model_rank *p = &m->r[r];
        uint64_t given = 0;

        if (bny_bit(it->gone, r) && p->alive)
            return 0;
        if (bny_bit(it->left, r) && !p->left)
            return 0;
        /* On a ring those who sleep cut off others. */
        if (bny_bit(it->late, r) && p->alive && !p->was_stopped && !m->ring)
            return 0;
        if (it->id.kind == BNY_CONSENSUS_CALL && bny_bit(it->has, r)) {
            bits &= p->bits[it->id.seq];
            memcpy(&given, it->given + 8 * (size_t)r, 8);
            if (given != (uint64_t)r * 1000 + it->id.seq)
                return 0;
        }
    }
    for (int i = 0; i < it->nrecords; i++) {
        const struct model_rank *p = &m->r[it->records[i].reporter];
        int found = 0;

        for (int k = 0; k < p->nrecords; k++)
            found |= !bny_failure_compare(&p->records[k], &it->records[i]);
        if (!found)
            return 0;
    }
    return it->id.kind == BNY_CONSENSUS_VIEW || it->bits == bits;
}

static void check(struct model *m)
{
    for (int r = 0; r < m->n && !m->why; r++) {
        const struct bny_consensus *a = &m->r[r].a;

        if (!m->r[r].alive || a->excluded)
            continue;
        if (a->conflicts)
            m->why = "it heard of another decision";
        for (const struct bny_instance *it = a->first; it; it = it->next) {
            if (!it->decided)
                continue;
            if (!is_true(m, it))
                m->why = "it decided what is not true";
            for (int q = r + 1; q < m->n; q++) {
                const struct bny_instance *other = bny_consensus_find(&m->r[q].a, it->id);

                /* Who slept may have decided otherwise, until it hears so. */
                if (m->r[q].alive && other && other->decided && other->key != it->key &&
                    !bny_bit(it->late, q) && !bny_bit(other->late, r))
                    m->why = "two decisions";
            }
        }
    }
}

/* Nothing is under way: everybody has decided everything, and knows of every death. */
static void check_end(struct model *m)
{
    uint64_t dead = 0;

    for (int r = 0; r < m->n; r++)
        if (!m->r[r].alive && !m->r[r].left)
            dead |= (uint64_t)1 << r;
    for (int r = 0; r < m->n && !m->why; r++) {
        const struct bny_consensus *a = &m->r[r].a;
        struct bny_failure records[RECORDS];

        if (!m->r[r].alive)
            continue;
        if (bny_bit(m->members, r) && m->r[r].next_call <= CALLS)
            m->why = "a call did not end";
        if (dead & ~a->gone[0])
            m->why = "it does not know of a death";
        if (death_untold(a) || pending(&m->r[r], records))
            m->why = "a failure is in no view";
        for (const struct bny_instance *it = a->first; it; it = it->next)
            if (!it->decided && it->entered)
                m->why = "undecided";
    }
}

/* ---- steps ---- */

static void deliver(struct model *m, int from, int to)
{
    struct frame *f = m->q[from][to];
    struct model_rank *me = &m->r[to];
    int again = f->kind == FRAME_AGREE && below(m, 20) == 0;

    if (!again)
        m->q[from][to] = f->next;
    if (me->alive) {
        if (f->kind == FRAME_AGREE) {
            if (bny_consensus_take(&me->a, from, from, f->data, f->len) != 0)
                m->why = "a good message was refused";
        } else {
            bny_consensus_gone(&me->a, from, f->kind == FRAME_FAREWELL);
        }
        owner(m, to);
    }
    if (!again)
        free(f);
    check(m);
}

/* Returns 0 when no link has anything for somebody who listens. */
static int deliver_some(struct model *m)
{
    int at = (int)below(m, (uint64_t)(m->n * m->n));

    for (int i = 0; i < m->n * m->n; i++, at++) {
        int from = at / m->n % m->n, to = at % m->n;

        if (m->q[from][to] && !m->r[to].stopped) {
            deliver(m, from, to);
            return 1;
        }
    }
    return 0;
}

/* Has nothing been heard for long of somebody that it needs? In a call members may take their
 * time; and who sleeps may have made others late. */
static int is_overdue(const struct model *m, const struct bny_instance *it)
{
    int asleep = it->late[0] != 0;

    for (int r = 0; r < m->n; r++) {
        const struct model_rank *p = &m->r[r];

        if (p->alive && !p->stopped && is_missing(&m->r[0].a, it, it->has, r))
            return 0;
        asleep |= p->stopped;
    }
    return !it->decided && it->entered && asleep;
}

static int some_late(struct model *m)
{
    int at = (int)below(m, (uint64_t)m->n);

    for (int i = 0; i < m->n; i++, at++) {
        struct model_rank *me = &m->r[at % m->n];

        for (struct bny_instance *it = me->a.first; it; it = it->next)
            if (me->alive && !me->stopped && is_overdue(m, it) &&
                bny_consensus_late(&me->a, it)) {
                owner(m, at % m->n);
                check(m);
                return 1;
            }
    }
    return 0;
}

static void act(struct model *m, int deaths, int stops, int *died, int *stopped)
{
    int r = (int)below(m, (uint64_t)m->n);
    struct model_rank *me = &m->r[r];

    if (!me->alive)
        return;
    if (me->stopped) {
        if (below(m, 10) == 0)
            me->stopped = 0;
        return;
    }
    switch (below(m, 40)) {
    case 0:
    case 1:
        if (*died < deaths) {
            ++*died;
            die(m, r, 0);
        }
        break;
    case 2:
        if (*stopped < stops) {
            ++*stopped;
            me->stopped = me->was_stopped = 1;
        }
        break;
    case 3: report(m, r); break;
    case 4:
        if (below(m, 4) == 0 && me->next_call > CALLS)
            leave(m, r);
        break;
    default: call(m, r); break;
    }
    check(m);
}

static void model_start(struct model *m, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->s = seed;
    m->n = 2 + (int)below(m, RANKS - 1);
    m->ring = (int)below(m, 2);
    for (int r = 0; r < m->n; r++) {
        cr_assert_eq(bny_consensus_init(&m->r[r].a, r, m->n), 0);
        m->r[r].alive = 1;
        m->r[r].next_call = 1;
        if (below(m, 4))
            bny_bit_set(m->members, r);
    }
    for (int r = 0; r < m->n; r++)
        for (int q = 0; q < m->n; q++)
            m->up[r][q] = r != q && (!m->ring || (r + 1) % m->n == q || (q + 1) % m->n == r);
}

/* Returns NULL, or what went wrong. */
static const char *model_run(uint64_t seed, int stops)
{
    struct model m;
    int died = 0, stopped = 0, deaths;

    model_start(&m, seed);
    deaths = (int)below(&m, (uint64_t)m.n);
    stops = stops ? (int)below(&m, (uint64_t)m.n) : 0;
    for (int step = 0; step < 100000 && !m.why; step++) {
        int moved = below(&m, 8) ? deliver_some(&m) : 1;

        if (step < 400 && (!moved || below(&m, 4) == 0))
            act(&m, deaths, stops, &died, &stopped);
        else if (!moved && some_late(&m))
            continue;
        else if (!moved || step > 50000) { /* the end: all wake, and go on */
            int idle = !moved;

            for (int r = 0; r < m.n; r++) {
                idle &= !m.r[r].stopped;
                m.r[r].stopped = 0;
                if (m.r[r].alive && m.r[r].next_call <= CALLS) {
                    uint32_t before = m.r[r].next_call;
                    uint64_t messages = m.messages;

                    call(&m, r);
                    idle &= before == m.r[r].next_call && messages == m.messages;
                }
            }
            if (idle)
                break;
        }
    }
    while (!m.why && deliver_some(&m))
        ;
    if (!m.why)
        check_end(&m);
    for (int r = 0; r < m.n; r++) {
        bny_consensus_finish(&m.r[r].a);
        for (int q = 0; q < m.n; q++)
            cut(&m.q[r][q]);
    }
    return m.why;
}

/* Seeds in which something went wrong, of n; stops at the first when `first`. */
static int wrong(uint64_t seed, int n, int stops, int first)
{
    int bad = 0;

    for (int i = 0; i < n; i++) {
        uint64_t s = seed + (uint64_t)i;
        const char *why;
        alarm(20); /* it goes round for ever */
        why = model_run(s, stops);

        if (why && !mutant)
            fprintf(stderr, "# seed %llu: %s\n", (unsigned long long)s, why);
        bad += why != NULL;
        if (bad && first)
            break;
    }
    return bad;
}

static int seeds(int n)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");

    return scale ? (int)(n * strtod(scale, NULL)) : n;
}

Test(agree, all_who_live_decide_the_same)
{
    cr_assert_eq(wrong(test_seed(), seeds(10000), 0, 0), 0);
}

Test(agree, all_who_live_decide_the_same_with_some_asleep)
{
    cr_assert_eq(wrong(test_seed() + 1000000, seeds(10000), 1, 0), 0);
}

Test(agree, the_model_notices_a_broken_rule)
{
    static const struct {
        int mutant, seeds;
        const char *name;
    } broken[] = {
        { NOT_STICKY, 20000, "a decision is forgotten" },
        { LOCK_EARLY, 1000, "locks before has and gone cover" },
        { LOCKS_STAY, 20000, "locks outlive the state" },
        { NO_RULE_4, 200000, "the dead are still heard" },
    };

    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        int bad;

        mutant = broken[i].mutant;
        bad = wrong(test_seed(), broken[i].seeds, 0, 1);
        mutant = 0;
        cr_assert(bad, "%s: not noticed in %d seeds", broken[i].name, broken[i].seeds);
    }
}

/* ---- two ranks by hand ---- */

static void enter(struct bny_consensus *a, uint32_t seq, unsigned each)
{
    static const uint8_t mine[BNY_CONSENSUS_EACH];
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_CALL, .comm = COMM, .seq = seq };
    struct bny_contribution c = { .bits = 1, .each = each, .mine = mine };

    cr_assert_not_null(bny_consensus_enter(a, id, &c));
}

/* All that `from` has to say, or the first `most` of it. The answer to the last. */
static int carry(struct bny_consensus *from, struct bny_consensus *to, int most)
{
    static uint8_t buf[1 << 16];
    size_t len;
    int rc = 0;

    cr_assert_leq(bny_consensus_message_max(2), sizeof buf);
    while (most-- && (len = bny_consensus_next(from, 0, buf)) != 0)
        rc = bny_consensus_take(to, from->rank, 0, buf, len);
    return rc;
}

/* Rank 0 decides, and stops before it says so. Rank 1 waits for long, decides without it, and
 * goes another way. What rank 0 says when it wakes is not broken: it is told that it is out. */
Test(agree, who_was_left_behind_is_told_so)
{
    struct bny_consensus a[2];

    for (int r = 0; r < 2; r++) {
        cr_assert_eq(bny_consensus_init(&a[r], r, 2), 0);
        enter(&a[r], 1, 4);
    }
    carry(&a[0], &a[1], 1); /* its state, in which rank 1 locks it */
    carry(&a[1], &a[0], -1);
    cr_assert(a[0].first->decided && !a[1].first->decided);
    cr_assert_eq(bny_consensus_late(&a[1], a[1].first), 1);
    cr_assert(a[1].first->decided);
    bny_consensus_again(&a[1], 0); /* a new connection, on which rank 0 is the first to speak */
    bny_consensus_again(&a[0], 0);
    enter(&a[0], 2, 12);
    enter(&a[1], 2, 4);
    cr_assert_eq(carry(&a[0], &a[1], -1), 0);
    cr_assert_eq(carry(&a[1], &a[0], -1), 0);
    cr_assert(a[0].excluded && !a[1].excluded);
    for (int r = 0; r < 2; r++)
        bny_consensus_finish(&a[r]);
}

/* Where nobody was left out, two ways at once are a mistake of the peer's. */
Test(agree, another_call_of_the_same_number_is_broken)
{
    struct bny_consensus a[2];

    for (int r = 0; r < 2; r++) {
        cr_assert_eq(bny_consensus_init(&a[r], r, 2), 0);
        enter(&a[r], 1, r ? 4 : 12);
    }
    cr_assert_eq(carry(&a[0], &a[1], -1), -BANYAN_EPROTO);
    for (int r = 0; r < 2; r++)
        bny_consensus_finish(&a[r]);
}

#define PARTS 5

/* What each has to say to the others whom it reaches, until nobody has any more. */
static void carry_all(struct bny_consensus *a, int (*reaches)(int from, int to))
{
    static uint8_t buf[1 << 16];
    size_t len;

    for (int said = 1; said;) {
        said = 0;
        for (int i = 0; i < PARTS * PARTS; i++) {
            int from = i / PARTS, to = i % PARTS;

            while (from != to && (len = bny_consensus_next(&a[from], to, buf)) != 0) {
                said = 1;
                if (reaches(from, to))
                    cr_assert_eq(bny_consensus_take(&a[to], from, from, buf, len), 0);
            }
        }
    }
}

static int all_ways(int from, int to)
{
    (void)from;
    (void)to;
    return 1;
}

static int few; /* ranks below it */

/* Ranks below `few` do not hear the others, who hear them. */
static int one_way(int from, int to)
{
    return from < few || to >= few;
}

/* A call in which all have come; ranks below `few` are cut off behind that, leave out the
 * others, and then the way is back. Returns how many are excluded. */
static int cut_for_a_while(int below, int also_dead)
{
    struct bny_consensus a[PARTS];
    int excluded = 0;

    few = below;
    for (int r = 0; r < PARTS; r++) {
        cr_assert_eq(bny_consensus_init(&a[r], r, PARTS), 0);
        enter(&a[r], 1, 4);
    }
    for (int r = 0; r < few; r++) /* they know of all contributions, and lock */
        for (int q = 0; q < PARTS; q++) {
            static uint8_t buf[1 << 16];
            size_t len = r == q ? 0 : bny_consensus_next(&a[q], r, buf);

            if (len)
                cr_assert_eq(bny_consensus_take(&a[r], q, q, buf, len), 0);
        }
    carry_all(a, one_way);
    if (also_dead)
        for (int r = 0; r < few; r++)
            bny_consensus_gone(&a[r], PARTS - 1, BNY_GONE_PROVEN);
    for (int r = 0; r < few; r++) {
        bny_consensus_late(&a[r], a[r].first);
        carry_all(a, one_way);
    }
    for (int r = 0; r < PARTS; r++) {
        cr_assert(a[r].first->decided, "rank %d", r);
        for (int q = 0; q < PARTS; q++)
            bny_consensus_again(&a[r], q);
    }
    carry_all(a, all_ways);
    for (int r = 0; r < PARTS; r++) {
        cr_assert_eq(a[r].conflicts, 0);
        excluded += a[r].excluded;
        bny_consensus_finish(&a[r]);
    }
    return excluded;
}

Test(agree, fewer_that_heard_nothing_do_not_exclude_the_others)
{
    for (int below = 1; below <= 2; below++)
        cr_assert_eq(cut_for_a_while(below, 0), 0, "%d of %d", below, PARTS);
    mutant = FEW_EXCLUDE;
    cr_assert_eq(cut_for_a_while(2, 0), 3);
    mutant = 0;
}

Test(agree, more_that_went_on_exclude_who_was_left_out)
{
    cr_assert_eq(cut_for_a_while(3, 0), 2);
}

Test(agree, fewer_that_decided_something_else_exclude_the_others)
{
    cr_assert_eq(cut_for_a_while(2, 1), 3);
}

static int but_the_last(int from, int to)
{
    (void)to;
    return from < PARTS - 1;
}

/* A call of all but the last rank, which stops when it has heard all of them: it has decided,
 * as nobody else has, who lack its lock, and leave it out. That is no reason to end it. */
Test(agree, who_is_no_member_and_slept_is_not_excluded)
{
    static const uint8_t mine[4];
    uint64_t members = (1u << (PARTS - 1)) - 1;
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_CALL, .comm = COMM, .seq = 1 };
    struct bny_contribution c = { .members = &members, .bits = 1, .each = 4, .mine = mine };
    struct bny_consensus a[PARTS];

    for (int r = 0; r < PARTS; r++) {
        cr_assert_eq(bny_consensus_init(&a[r], r, PARTS), 0);
        cr_assert(r == PARTS - 1 || bny_consensus_enter(&a[r], id, &c));
    }
    carry_all(a, but_the_last);
    for (int r = 0; r < PARTS; r++)
        cr_assert_eq(a[r].first->decided, r == PARTS - 1, "rank %d", r);
    for (int r = 0; r < PARTS - 1; r++) {
        bny_consensus_late(&a[r], a[r].first);
        carry_all(a, but_the_last);
    }
    for (int r = 0; r < PARTS; r++) {
        cr_assert(a[r].first->decided, "rank %d", r);
        for (int q = 0; q < PARTS; q++)
            bny_consensus_again(&a[r], q);
    }
    carry_all(a, all_ways);
    for (int r = 0; r < PARTS; r++) {
        cr_assert(!a[r].excluded && a[r].conflicts == 0, "rank %d", r);
        bny_consensus_finish(&a[r]);
    }
}
