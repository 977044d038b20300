/* SPDX-License-Identifier: BSD-3-Clause */
/* The agreements over the links: failures, in views of the world, and users' calls.
 *
 * A view is an instance of the agreement (consensus.h) that every rank enters by itself, with
 * the failures that it knows and no view contains yet. So all survivors have the same list of
 * failures in the same order, and a communicator fails with the first that concerns it. Ranks
 * act on a failure only after its view, so any consequence follows the decision, to which every
 * rank has contributed. Clocks only set when a view begins: some ms after the first known
 * failure, as failures seldom come alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/bootstrap/control.h"

#define MS      1000000u
#define SOON_NS (2u * MS)
/* For a failure that is mostly the consequence of another, which is on its way. */
#define LATER_NS (30u * MS)
/* An instance that has not changed for this long leaves out its missing ranks: they are stopped
 * or too slow. A computing rank answers by its thread. */
#define LATE_NS       (2000ull * MS)
#define LATE_AGAIN_NS (100ull * MS) /* for a rank left out last time and silent since */
/* By then messages of ranks that begin at the same moment have arrived. No deadline leaves out
 * a member earlier, or each rank would decide alone. */
#define HEARD_NS (1000ull * MS)
#define LOG_CAP  16
/* In large jobs a rank does not forward its state for each rank that comes: N ranks in sequence
 * would cause N messages over each link. */
#define PACED_RANKS  128
#define PACE_NS      (1ull * MS)
#define AWAKE_MAX_NS (300ull * MS) /* between two checks; more: we were stopped */

int view_init(struct bny_control *c)
{
    int rc = bny_consensus_init(&c->agree, c->rank, c->nranks);

    c->log = rc == 0 ? malloc(LOG_CAP * sizeof *c->log) : NULL;
    c->log_cap = LOG_CAP;
    c->frame = rc == 0 ? malloc(bny_consensus_message_max(c->nranks)) : NULL;
    c->sleepers = rc == 0 ? calloc((size_t)c->agree.words, sizeof *c->sleepers) : NULL;
    if (rc == 0 && !(c->log && c->frame && c->sleepers))
        rc = bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the control plane", c->rank);
    return rc;
}

void view_finish(struct bny_control *c)
{
    bny_consensus_finish(&c->agree);
    free(c->frame);
    free(c->sleepers);
    free(c->log);
}

/* ---- what was decided ---- */

static void tell_waiters(struct bny_control *c)
{
    uint64_t one = 1;

    if (c->told_fd < 0 || atomic_exchange(&c->seen.told, 1))
        return;
    if (write(c->told_fd, &one, sizeof one) != sizeof one)
        bny_debug("rank %d: an eventfd cannot be written", c->rank);
}

static void log_add(struct bny_control *c, const struct bny_failure *f, uint32_t view)
{
    if (c->nlog == c->log_cap) {
        int cap = 2 * c->log_cap;
        struct log_entry *more = realloc(c->log, (size_t)cap * sizeof *more);

        if (!more) {
            c->agree.starved = 1;
            return;
        }
        c->log = more;
        c->log_cap = cap;
    }
    c->log[c->nlog].f = *f;
    c->log[c->nlog++].view = view;
    bny_info("view %u: %s", view, f->text);
}

/* Records of views are marked, whichever rank brought them. */
static void mark_told(struct bny_control *c, const struct bny_failure *f)
{
    for (int i = 0; i < c->known.count; i++) {
        struct bny_record *r = &c->known.list[i];

        r->told |= bny_failure_same(&r->f, f);
    }
}

/* A rank reported this one as dead or silent. */
static void excluded_words(const struct bny_control *c, char *text, size_t cap)
{
    for (int i = 0; i < c->known.count; i++) {
        const struct bny_failure *f = &c->known.list[i].f;

        if (f->cause == BNY_CAUSE_DEATH && f->blamed == c->rank) {
            snprintf(text, cap,
                     "rank %d lives, and was excluded by the others, which received: %.200s",
                     c->rank, f->text);
            return;
        }
    }
    snprintf(text, cap,
             "rank %d was excluded by the others, which had heard nothing of it for too long; "
             "was it stopped, or its network cut?",
             c->rank);
}

static void exclude(struct bny_control *c)
{
    struct bny_failure f = { .cause = BNY_CAUSE_RESET,
                             .code = BANYAN_ERANKDEAD,
                             .blamed = c->rank,
                             .reporter = c->rank };

    excluded_words(c, f.text, sizeof f.text);
    c->excluded_told = 1;
    log_add(c, &f, c->agree.view + 1);
}

/* Ranks that this one could not connect to at all were never heard: that is the cause. */
static int unreached_words(struct bny_control *c)
{
    for (int i = 0; i < c->known.count; i++) {
        const struct bny_failure *f = &c->known.list[i].f;

        if (f->cause == BNY_CAUSE_RESET && f->code == BANYAN_ERANKDEAD &&
            f->reporter == c->rank && f->blamed != c->rank) {
            snprintf(c->out_why, sizeof c->out_why, "%s", f->text);
            return 1;
        }
    }
    return 0;
}

/* All ranks that decided this view come to the same result. After a cut the minority must not
 * go on, or both parts would. */
static void ask_quorum(struct bny_control *c, const struct bny_instance *it)
{
    struct bny_failure f = {
        .cause = BNY_CAUSE_SILENT, .code = BANYAN_ERANKDEAD, .blamed = -1, .reporter = c->rank
    };
    int cut, all;

    if (c->quorum < 0 || c->out_why[0] ||
        bny_consensus_quorum(&c->agree, it, c->quorum, &cut, &all))
        return;
    if (!unreached_words(c))
        bny_snprintf(c->out_why, sizeof c->out_why,
                     "rank %d is cut off from %d of %d ranks, which may go on without it: "
                     "nothing was heard "
                     "of them for %.3g s (BANYAN_SILENT_S); BANYAN_QUORUM=any goes on anyway",
                     c->rank, cut, all, (double)c->silent_ns * 1e-9);
    c->out_code = BANYAN_ERANKDEAD;
    snprintf(f.text, sizeof f.text, "%s", c->out_why);
    log_add(c, &f, it->id.seq);
}

/* Makes the log entries from `before` on visible to all threads. */
static void publish_log(struct bny_control *c, int before)
{
    if (c->nlog == before)
        return;
    atomic_store_explicit(&c->seen.suspect, 1, memory_order_release);
    atomic_store_explicit(&c->seen.logged, c->nlog, memory_order_release);
    tell_waiters(c);
}

void view_leave(struct bny_control *c, const struct bny_failure *f)
{
    int before = c->nlog;

    if (c->nlog == c->log_cap) /* no memory for more: the latest makes room */
        before = --c->nlog;
    snprintf(c->out_why, sizeof c->out_why, "%s", f->text);
    c->out_code = (enum banyan_error)f->code;
    c->agree.excluded = c->excluded_told = 1;
    log_add(c, f, c->agree.view + 1);
    publish_log(c, before);
}

static void log_views(struct bny_control *c)
{
    int before = c->nlog;

    while (c->view_logged < c->agree.view) {
        struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW, .seq = ++c->view_logged };
        const struct bny_instance *it = bny_consensus_find(&c->agree, id);

        if (it)
            ask_quorum(c, it);
        for (int i = 0; it && i < it->nrecords; i++) {
            if (bny_failures_add(&c->known, &it->records[i], 0, -1) < 0)
                c->agree.starved = 1;
            mark_told(c, &it->records[i]);
            log_add(c, &it->records[i], id.seq);
        }
    }
    for (int i = 0; i < c->known.count && c->agree.excluded; i++)
        c->known.list[i].told = 1;
    if (c->agree.excluded && !c->excluded_told)
        exclude(c);
    publish_log(c, before);
}

/* A rank that aborts may end at once: if its abort is a cause, its end is not another. */
static int follows_abort(const struct bny_control *c, int i, uint32_t comm)
{
    const struct bny_failure *f = &c->log[i].f;

    if (f->cause != BNY_CAUSE_DEATH && f->cause != BNY_CAUSE_SILENT &&
        f->cause != BNY_CAUSE_LEFT)
        return 0;
    for (int k = 0; k < c->nlog; k++) {
        const struct bny_failure *a = &c->log[k].f;

        if (c->log[k].view == c->log[i].view && a->cause == BNY_CAUSE_ABORT &&
            a->blamed == f->blamed && bny_failure_concerns(a, comm))
            return 1;
    }
    return 0;
}

int bny_control_failure_among(struct bny_control *c, uint32_t comm,
                              int (*has)(const void *ctx, int rank), const void *ctx,
                              struct bny_failure *out)
{
    int found = 0;

    if (!atomic_load_explicit(&c->seen.logged, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->nlog && !found; i++) {
        const struct bny_failure *f = &c->log[i].f;

        found = bny_failure_concerns(f, comm) && !follows_abort(c, i, comm) &&
                (f->comm || f->blamed < 0 || !has || has(ctx, f->blamed) ||
                 c->log[i].view > c->agree.view);
        if (found)
            *out = *f;
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

int bny_control_not_made(struct bny_control *c, uint32_t parent, uint32_t call,
                         struct bny_failure *out)
{
    int found = 0;

    if (!parent || !atomic_load_explicit(&c->seen.logged, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->nlog && !found; i++) {
        const struct bny_failure *f = &c->log[i].f;

        found = f->cause == BNY_CAUSE_NOT_MADE && f->comm == parent && f->call <= call;
        if (found)
            *out = *f;
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

int bny_control_lacking(struct bny_control *c, int (*has)(const void *ctx, int rank),
                        const void *ctx, struct bny_failure *out)
{
    int found = 0;

    if (!atomic_load_explicit(&c->seen.logged, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->nlog && !found; i++) {
        const struct bny_failure *f = &c->log[i].f;

        found = !f->comm && f->cause == BNY_CAUSE_RESET && f->blamed >= 0 &&
                (f->code == BANYAN_ENOMEM || f->code == BANYAN_ESYSTEM) && has(ctx, f->blamed);
        if (found)
            *out = *f;
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

int bny_control_failure_of(struct bny_control *c, uint32_t comm, struct bny_failure *out)
{
    return bny_control_failure_among(c, comm, NULL, NULL, out);
}

int bny_control_failure(struct bny_control *c, struct bny_failure *out)
{
    return bny_control_failure_of(c, BNY_ALL_COMMS, out);
}

int bny_control_pending(struct bny_control *c, uint32_t comm)
{
    int pending = 0;

    if (!bny_control_suspect(c))
        return 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->known.count; i++)
        pending |= !c->known.list[i].told && bny_failure_concerns(&c->known.list[i].f, comm);
    pthread_mutex_unlock(&c->lock);
    return pending;
}

uint32_t bny_control_gone(struct bny_control *c, uint64_t *gone)
{
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW };
    const struct bny_instance *it;

    pthread_mutex_lock(&c->lock);
    id.seq = c->agree.view;
    it = bny_consensus_find(&c->agree, id);
    memset(gone, 0, (size_t)c->agree.words * sizeof *gone);
    if (it)
        memcpy(gone, it->gone, (size_t)c->agree.words * sizeof *gone);
    pthread_mutex_unlock(&c->lock);
    return id.seq;
}

int bny_control_left(struct bny_control *c, int rank)
{
    int left;

    pthread_mutex_lock(&c->lock);
    left = bny_bit(c->agree.left, rank);
    pthread_mutex_unlock(&c->lock);
    return left;
}

/* ---- what is to be decided ---- */

static const struct bny_instance *last_view(const struct bny_control *c)
{
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW, .seq = c->agree.view };

    return bny_consensus_find(&c->agree, id);
}

/* Is there a dead rank that the last view does not record? */
static int death_untold(const struct bny_control *c)
{
    const struct bny_consensus *a = &c->agree;
    const struct bny_instance *it = last_view(c);

    for (int i = 0; i < a->words; i++)
        if (a->gone[i] & ~a->left[i] & (it ? ~it->gone[i] : ~(uint64_t)0))
            return 1;
    return 0;
}

/* When do the known failures become a view? 0: there are none. */
static uint64_t due(struct bny_control *c, uint64_t now)
{
    uint64_t first = 0;

    for (int i = 0; i < c->known.count; i++) {
        const struct bny_record *r = &c->known.list[i];
        uint64_t at = r->known_ns + (r->f.cause <= BNY_CAUSE_ABORT ? SOON_NS : LATER_NS);

        if (!r->told && (!first || at < first))
            first = at;
    }
    if (death_untold(c) && (!first || now + SOON_NS < first))
        first =
            c->view_due_ns && c->view_due_ns <= now + SOON_NS ? c->view_due_ns : now + SOON_NS;
    return first && c->nranks == 1 ? now : first;
}

static void enter_view(struct bny_control *c)
{
    struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW, .seq = c->agree.view + 1 };
    struct bny_contribution mine = { .bits = ~(uint64_t)0 };
    struct bny_failure *list =
        calloc((size_t)(c->known.count ? c->known.count : 1), sizeof *list);

    if (!list)
        return; /* the next check retries */
    for (int i = 0; i < c->known.count; i++)
        if (!c->known.list[i].told)
            list[mine.nrecords++] = c->known.list[i].f;
    mine.records = list;
    bny_consensus_enter(&c->agree, id, &mine);
    free(list);
}

static void enter_views(struct bny_control *c, uint64_t now)
{
    if (c->agree.leaving || c->agree.excluded || (c->nranks > 1 && !c->connected)) {
        c->view_due_ns = 0; /* there will be none: no need to stay awake */
        return;
    }
    for (;;) {
        uint32_t view = c->agree.view;
        struct bny_consensus_id id = { .kind = BNY_CONSENSUS_VIEW, .seq = view + 1 };
        const struct bny_instance *it;

        c->view_due_ns = due(c, now);
        it = bny_consensus_find(&c->agree, id);
        if (it && it->entered) {
            c->view_due_ns = 0; /* it waits for the others */
            return;
        }
        if (!bny_consensus_next_view(&c->agree) && (!c->view_due_ns || now < c->view_due_ns))
            return;
        enter_view(c);
        log_views(c);
        if (c->agree.view == view)
            return;
    }
}

static int contributions_missing(const struct bny_control *c, const struct bny_instance *it)
{
    for (int i = 0; i < c->agree.words; i++)
        if (it->members[i] & ~it->has[i] & ~it->gone[i] & ~it->late[i])
            return 1;
    return 0;
}

/* Was every rank whose contribution, or then lock, is missing left out of the latest decision,
 * too? */
static int only_sleepers(const struct bny_control *c, const struct bny_instance *it)
{
    int missing = contributions_missing(c, it);

    for (int r = 0; r < c->nranks; r++) /* all lock, only members contribute */
        if ((!missing || bny_bit(it->members, r)) &&
            !bny_bit(missing ? it->has : it->locks, r) && !bny_bit(it->gone, r) &&
            !bny_bit(it->late, r) && !bny_bit(c->sleepers, r))
            return 0;
    return 1;
}

/* A rank that gives up the parent communicator may not enter any more. */
static int is_given_up(const struct bny_control *c, const struct bny_instance *it)
{
    for (int i = it->log_from; i < c->nlog && it->parent; i++)
        if (c->log[i].f.cause == BNY_CAUSE_ABORT && c->log[i].f.comm == it->parent)
            return 1;
    return 0;
}

/* The deadline leaves out ranks that have not entered. A rank that has entered gets further
 * time to lock; otherwise each rank would decide alone at its deadline. A hasty rank does not
 * wait for those that missed the last decision and were silent since. */
static void leave_out_the_late(struct bny_control *c, uint64_t now)
{
    for (struct bny_instance *it = c->agree.first; it; it = it->next) {
        int user = it->id.kind == BNY_CONSENSUS_CALL, missing, heard;
        uint64_t most, still;

        if (it->decided || !it->entered)
            continue;
        if (!it->begun_ns)
            it->begun_ns = c->awake_ns;
        if (it->seen_changes != it->changes) {
            it->seen_changes = it->changes;
            it->since_ns = c->awake_ns;
        }
        most = only_sleepers(c, it) ? LATE_AGAIN_NS : LATE_NS;
        still = c->awake_ns - it->since_ns;
        missing = contributions_missing(c, it);
        heard = c->awake_ns - it->begun_ns > HEARD_NS;
        if ((missing && heard && it->deadline_ns && now >= it->deadline_ns) ||
            (missing && heard && is_given_up(c, it)) || (!(user && missing) && still > most) ||
            (it->hasty && most == LATE_AGAIN_NS && still > LATE_NS))
            bny_consensus_late(&c->agree, it);
    }
}

/* ---- links to those who are gone ---- */

static void close_links(struct bny_control *c)
{
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        if (l->state == LINK_GONE || !bny_bit(c->agree.gone, l->peer))
            continue;
        if (l->state != LINK_UP) {
            link_close(l);
        } else if (!bny_bit(c->agree.left, l->peer)) {
            link_read(c, l); /* its reports before its end */
            if (silence_may_begin(l)) {
                bny_conn_break(l->conn); /* an orderly end would mean that we died */
                l->conn = NULL;
            } else if (l->state == LINK_UP) {
                bny_conn_send(l->conn, CONTROL_EXCLUDED, NULL, 0);
            }
            link_close(l);
        }
    }
}

/* Without a full mesh: links to the next live ranks, so that survivors stay connected whichever
 * ranks died. */
static void repair(struct bny_control *c)
{
    if (c->nranks <= FULL_MESH || !c->connected || c->agree.leaving || c->agree.excluded)
        return;
    for (int dir = -1; dir <= 1; dir += 2) {
        int peer = c->rank;

        do
            peer = (peer + dir + c->nranks) % c->nranks;
        while (peer != c->rank && bny_bit(c->agree.gone, peer));
        if (peer != c->rank && !control_link_to(c, peer)) {
            struct link *l = control_add_link(c, peer);

            if (l) {
                l->repaired = 1;
                l->lost_ns = c->awake_ns;
                l->heard_ns = bny_now_ns();
            }
        }
    }
}

int view_active(const struct bny_control *c)
{
    for (const struct bny_instance *it = c->agree.first; it; it = it->next)
        if (!it->decided)
            return 1;
    return 0;
}

void view_run(struct bny_control *c)
{
    uint64_t now = bny_now_ns(), passed = now - c->looked_ns;

    c->awake_ns += passed < AWAKE_MAX_NS ? passed : AWAKE_MAX_NS;
    c->looked_ns = now;
    close_links(c);
    log_views(c);
    enter_views(c, now);
    if (view_active(c)) {
        repair(c);
        leave_out_the_late(c, now);
        log_views(c);
    }
    blame_run(c);
    for (struct bny_instance *it = c->agree.first; it; it = it->next) {
        if (!it->decided || it->answered)
            continue;
        it->answered = 1;
        if (it->id.kind != BNY_CONSENSUS_WHERE)
            memcpy(c->sleepers, it->late, (size_t)c->agree.words * sizeof *c->sleepers);
        if (it->asked)
            tell_waiters(c);
    }
}

/* Of the ranks that must contribute, or then lock: how many have, and how many have not. */
static void count_ranks(const struct bny_control *c, const struct bny_instance *it, int *have,
                        int *lack)
{
    const uint64_t *set = contributions_missing(c, it) ? it->has : it->locks;

    *have = 0;
    *lack = set == it->has ? 0 : c->nranks - 64 * c->agree.words; /* no ranks */
    for (int i = 0; i < c->agree.words; i++) {
        uint64_t all = set == it->has ? it->members[i] : ~(uint64_t)0;

        *have += __builtin_popcountll(set[i]);
        *lack += __builtin_popcountll(all & ~set[i] & ~it->gone[i] & ~it->late[i]);
    }
}

/* A message that helps others is sent at once: the first, one with twice as many ranks as the
 * last, one that halves the missing ranks, our lock, a decision. So ranks that enter together
 * proceed at full speed, and the last one never waits, but no link carries a message for each
 * rank. */
void view_hold(struct bny_control *c)
{
    uint64_t now = c->nranks > PACED_RANKS ? bny_now_ns() : 0;

    for (struct bny_instance *it = c->agree.first; it && now; it = it->next) {
        int have, lack;

        it->held = 0;
        if (it->decided || it->pressing || now - it->sent_ns >= PACE_NS)
            continue;
        count_ranks(c, it, &have, &lack);
        it->held = have < 2 * it->sent_have && 2 * lack > it->sent_lack;
    }
}

void view_sent(struct bny_control *c)
{
    uint64_t now = c->nranks > PACED_RANKS ? bny_now_ns() : 0;

    for (struct bny_instance *it = c->agree.first; it && now; it = it->next) {
        if (it->held || it->sent_changes == it->changes)
            continue;
        count_ranks(c, it, &it->sent_have, &it->sent_lack);
        it->sent_changes = it->changes;
        it->sent_ns = now;
        it->pressing = 0;
    }
}

int view_wait_ms(const struct bny_control *c)
{
    uint64_t now = bny_now_ns();
    int ms = c->nhalf ? 1000 : -1;

    if (c->view_due_ns)
        ms = now >= c->view_due_ns ? 0 : (int)((c->view_due_ns - now) / MS) + 1;
    else if (view_active(c))
        ms = blame_asked(c) ? 2 : 50;
    for (const struct bny_instance *it = c->agree.first; it; it = it->next)
        ms = it->held && it->unsent && (ms < 0 || ms > 1) ? 1 : ms;
    for (int i = 0; i < c->nlinks; i++) {
        const struct link *l = &c->links[i];
        int soon = l->state == LINK_TRYING || l->state == LINK_WAITING ? 10
                   : control_has_news(c, l)                            ? 50
                                                                       : ms;

        ms = soon >= 0 && (ms < 0 || ms > soon) ? soon : ms;
    }
    return ms;
}

/* ---- farewells ---- */

size_t view_farewell_make(const struct bny_control *c, uint8_t *out)
{
    size_t bytes = (size_t)c->agree.words * sizeof(uint64_t);

    memcpy(out, c->agree.gone, bytes);
    memcpy(out + bytes, c->agree.left, bytes);
    return 2 * bytes;
}

void view_farewell(struct bny_control *c, struct link *l, const uint8_t *data, size_t len)
{
    size_t bytes = (size_t)c->agree.words * sizeof(uint64_t);

    l->left = 1;
    atomic_store_explicit(&c->seen.some_left, 1, memory_order_release);
    bny_consensus_gone(&c->agree, l->peer, BNY_GONE_LEFT);
    for (int r = 0; len == 2 * bytes && r < c->nranks; r++)
        if (data[bytes + (size_t)r / 8] >> (r % 8) & 1)
            bny_consensus_gone(&c->agree, r, BNY_GONE_LEFT);
}

/* ---- users' calls ---- */

/* Sets the sentence and returns the error if this rank takes no part any more; 0: it does. */
static int out_of_it(const struct bny_control *c)
{
    char text[sizeof(struct bny_failure)];

    if (c->agree.leaving)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d has left", c->rank);
    if (c->out_why[0])
        return bny_fail(c->out_code, "%s", c->out_why);
    if (!c->agree.excluded)
        return 0;
    excluded_words(c, text, sizeof text);
    return bny_fail(BANYAN_ERANKDEAD, "%s", text);
}

int bny_control_out(struct bny_control *c)
{
    int rc;

    pthread_mutex_lock(&c->lock);
    rc = c->agree.leaving ? 0 : out_of_it(c);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Is there a view that covers the gone ranks of this decision? Only then is it known whether
 * the ranks that decided it may go on. */
static int is_viewed(const struct bny_control *c, const struct bny_instance *it)
{
    const struct bny_instance *view = last_view(c);

    for (int i = 0; i < c->agree.words; i++)
        if (it->gone[i] & ~it->left[i] & ~c->agree.left[i] &
            (view ? ~view->gone[i] : ~(uint64_t)0))
            return 0;
    return 1;
}

int bny_control_quorum(const struct bny_control *c)
{
    return c->quorum;
}

int bny_control_agree_start(struct bny_control *c, uint32_t comm, uint32_t call,
                            const struct bny_contribution *mine, uint64_t deadline_ns)
{
    struct bny_consensus_id id = { BNY_CONSENSUS_CALL, comm, call };
    struct bny_instance *it;
    int rc;

    pthread_mutex_lock(&c->lock);
    rc = out_of_it(c);
    it = rc == 0 ? bny_consensus_enter(&c->agree, id, mine) : NULL;
    if (it) {
        it->deadline_ns = deadline_ns;
        it->hasty = mine->hasty;
        it->parent = mine->parent;
        it->log_from = mine->told;
        it->asked = 1;
        control_progress_locked(c);
    } else if (rc == 0) {
        rc = bny_fail(BANYAN_ENOMEM, "rank %d: no memory to agree", c->rank);
    }
    pthread_mutex_unlock(&c->lock);
    bny_control_wake(c);
    return rc;
}

int bny_control_agree_test(struct bny_control *c, uint32_t comm, uint32_t call,
                           const struct bny_agreed *out)
{
    struct bny_consensus_id id = { BNY_CONSENSUS_CALL, comm, call };
    size_t bytes = (size_t)c->agree.words * sizeof(uint64_t);
    const struct bny_instance *it;
    int rc = 0;

    pthread_mutex_lock(&c->lock);
    it = bny_consensus_find(&c->agree, id);
    if (it && it->decided && is_viewed(c, it) && !c->out_why[0]) {
        rc = 1;
        if (out->bits)
            *out->bits = it->bits;
        if (out->has)
            memcpy(out->has, it->has, bytes);
        if (out->gone)
            memcpy(out->gone, it->gone, bytes);
        if (out->late)
            memcpy(out->late, it->late, bytes);
        if (it->each != out->each)
            rc = bny_fail(BANYAN_EMISMATCH,
                          "rank %d: another rank made a different call: calls that agree "
                          "(shrink, grow, agree) must come in the same order on all ranks",
                          c->rank);
        else if (out->given)
            memcpy(out->given, it->given, (size_t)c->nranks * it->each);
    }
    if (rc == 0 || (it->excluded && c->agree.excluded))
        rc = out_of_it(c);
    if (rc == 0 && !it)
        rc = bny_fail(BANYAN_EINVAL, "rank %d: call %u was never begun", c->rank, call);
    pthread_mutex_unlock(&c->lock);
    return rc;
}
