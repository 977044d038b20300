/* SPDX-License-Identifier: BSD-3-Clause */
/* Adaptive waiting: spin while that is likely to pay, then yield, then sleep on the transports'
 * descriptors. With more ranks than CPUs the peer we wait for may need our CPU: spin little,
 * yield early. Where other programs keep the CPUs busy a yield costs their time slice, so the
 * waiter sleeps almost at once. Once in a while a turn is a tick: deadlines and the control
 * plane, the only part of a short wait that makes system calls. */
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "base/cpu.h"
#include "collectives/progress/progress.h"

#define TICK_NS 500000u /* between ticks */
/* Spins, or turns that found something, between looks at the clock. */
#define CHECK_EVERY   256u
#define SPINS         20000u /* turns of up to 16 looks: 5-20 ms with a CPU of one's own */
#define SPINS_SHARED  0u     /* when CPUs are shared: whom we wait for may need this one */
#define SPINS_ASIDE   100u   /* behind what was found, as the peer's answer may be near */
#define YIELDS        2000u
#define YIELDS_SHARED 1000u /* as long as they pay: see bny_wait_found */
#define YIELDS_MIN    8u
/* The first sleep of a wait, and the longest: each is twice as long as the one before, so that
 * what no descriptor tells is seen when half as much time has passed again. */
#define NAP_MIN_NS  50000u
#define NAP_MAX_NS  2000000u
#define CONTROL_FDS 8 /* of the descriptors of a sleeper, at least */
/* Turns between calls of the hook, over waits, as each of them may be short: with shared CPUs,
 * where an MPI's own progress may yield as well, and in a wait's first spins, as a call takes
 * as long as a short wait. Later ones, and all while the hook is urgent, call it in each turn.
 */
#define HOOK_EVERY       8u
#define HOOK_SPINS_EVERY 16u
#define HOOK_SPINS       8u
#define HOOK_QUICK_EVERY 256u /* calls that need no turn */
#define TICK_EVERY       256u /* yields between ticks, over waits: some hundred microseconds */

/* A yield that takes this long gave the CPU to a program that keeps it for its time slice
 * (milliseconds). A sleeper that is woken has its CPU back in some ten microseconds. With more
 * ranks than CPUs it may have been a rank that adds a long vector. */
#define YIELD_DEAR_NS        50000u
#define YIELD_DEAR_SHARED_NS 1500000u
#define YIELDS_LATEST        0xffu    /* of which two that were dear end the yields */
#define SPINS_DEAR           4u       /* turns before a sleep, while yields are dear */
#define TRIAL_NS_MIN         1000000u /* until yields are tried again; doubles each time */
#define TRIAL_NS_MAX         100000000u
#define TRIAL_YIELDS         8

#define LOOKS         16
#define LOOKS_CROWDED 20 /* with shared CPUs, at memory that peers write */
#define MOVES_MAX     64 /* of one operation, until others and other threads have a turn */
/* With shared CPUs, at peers that run on others; some microseconds. */
#define LOOKS_SHARED 60

void bny_wait_init(struct bny_waiter *wt)
{
    *wt = (struct bny_waiter){ 0 };
}

/* ---- what a yield costs ---- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Was it dear? With more ranks than CPUs every turn is a yield: the kernel's tick tells a time
 * slice for a fifth of what the exact clock costs. */
static int timed_yield(const struct bny_world *w)
{
    clockid_t clock = w->oversubscribed ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
    uint64_t before = clock_ns(clock);

    sched_yield();
    return clock_ns(clock) - before >=
           (w->oversubscribed ? YIELD_DEAR_SHARED_NS : YIELD_DEAR_NS);
}

static void no_yields_for(struct bny_yields *y, uint64_t now, uint64_t ns)
{
    ns = ns < TRIAL_NS_MIN ? TRIAL_NS_MIN : ns > TRIAL_NS_MAX ? TRIAL_NS_MAX : ns;
    atomic_store_explicit(&y->pause_ns, ns, memory_order_relaxed);
    atomic_store_explicit(&y->trial_ns, now + ns, memory_order_relaxed);
}

static void yield(struct bny_world *w)
{
    struct bny_yields *y = &w->yields;
    int is_dear = timed_yield(w);
    uint32_t was = atomic_load_explicit(&y->dear, memory_order_relaxed);
    uint64_t now, pause;

    if (!(is_dear | (int)was))
        return;
    atomic_store_explicit(&y->dear, (was << 1 | (uint32_t)is_dear) & YIELDS_LATEST,
                          memory_order_relaxed);
    if (!is_dear || !was)
        return;
    now = bny_now_ns();
    pause = atomic_load_explicit(&y->pause_ns, memory_order_relaxed);
    if (now - atomic_load_explicit(&y->trial_ns, memory_order_relaxed) > TRIAL_NS_MAX)
        pause = 0; /* a long time has passed since */
    no_yields_for(y, now, pause);
    atomic_store_explicit(&y->are_dear, 1, memory_order_relaxed);
}

/* The other programs may have ended: then some yields return at once. Where they have not, the
 * trial costs a time slice, so trials become rare. */
static int yields_are_dear(struct bny_world *w)
{
    struct bny_yields *y = &w->yields;
    uint64_t now;

    if (!atomic_load_explicit(&y->are_dear, memory_order_relaxed))
        return 0;
    now = bny_now_ns();
    if (now < atomic_load_explicit(&y->trial_ns, memory_order_relaxed))
        return 1;
    for (int i = 0; i < TRIAL_YIELDS; i++)
        if (timed_yield(w)) {
            no_yields_for(y, bny_now_ns(),
                          2 * atomic_load_explicit(&y->pause_ns, memory_order_relaxed));
            return 1;
        }
    atomic_store_explicit(&y->dear, 0, memory_order_relaxed);
    atomic_store_explicit(&y->are_dear, 0, memory_order_relaxed);
    return 0;
}

static void tick_if_due(struct bny_waiter *wt, struct bny_world *w)
{
    uint64_t now = bny_now_ns();

    if (now - wt->last_tick_ns < TICK_NS)
        return;
    wt->last_tick_ns = now;
    if (bny_world_trylock(w)) {
        bny_world_tick(w);
        bny_world_unlock(w);
    }
    bny_worlds_progress(w);
}

/* As many CPUs as ranks, and yet two of them may be on one: another program has the other. They
 * would wait for the end of each other's time slice, so spinning yields once in a while, and
 * the oftener the more often just that brought what was waited for. */
#define YIELD_OFTEN_MAX 6u

static uint32_t yield_every(const struct bny_world *w)
{
    return CHECK_EVERY >> atomic_load_explicit(&w->yield_often, memory_order_relaxed);
}

static void learn_to_yield(const struct bny_waiter *wt, struct bny_world *w)
{
    uint32_t often = atomic_load_explicit(&w->yield_often, memory_order_relaxed), next = often;

    if (wt->yielded)
        next = often + 2 < YIELD_OFTEN_MAX ? often + 2 : YIELD_OFTEN_MAX;
    else if (often)
        next = often - 1;
    if (next != often)
        atomic_store_explicit(&w->yield_often, next, memory_order_relaxed);
}

/* On shared CPUs yields keep others from what they could do, so a wait that outlasted them
 * makes the next ones fewer: links slow enough that every chunk is worth a nap would else cost
 * a whole CPU. A wait that finds something at every turn has its deadline too. */
void bny_wait_found(struct bny_waiter *wt, struct bny_world *w)
{
    if (++wt->finds % CHECK_EVERY == 0)
        tick_if_due(wt, w);
    if (wt->napped)
        wt->yields_max = wt->yields_max / 4 > YIELDS_MIN ? wt->yields_max / 4 : YIELDS_MIN;
    else if (wt->yields)
        wt->yields_max *= 2;
    learn_to_yield(wt, w);
    wt->spins = wt->yields = wt->nap_ns = 0;
    wt->napped = wt->yielded = 0;
}

static int has_hook(const struct banyan_comm *comm)
{
    return comm && comm->progress_hook;
}

static void call_hook(struct banyan_comm *comm)
{
    if (has_hook(comm))
        comm->progress_hook(comm->progress_hook_ctx);
}

/* A paced send's time is told by no descriptor. */
static uint64_t until_due(const struct bny_world *w, uint64_t longest)
{
    uint64_t now = w->due_ns ? bny_now_ns() : 0;

    if (!w->due_ns || w->due_ns > now + longest)
        return longest;
    return w->due_ns > now ? w->due_ns - now : 0;
}

int bny_world_arm(struct bny_world *w, int *fds, uint64_t *longest_ns)
{
    int nfds = 0;

    BNY_ASSERT_LOCKED(w);
    w->nappers++;
    for (int i = 0; i < w->ntps; i++) {
        int n = 0;
        uint64_t ns = w->tps[i]->ops->arm(w->tps[i], fds + nfds,
                                          BNY_DESCRIPTORS_MAX - CONTROL_FDS - nfds, &n);

        nfds += n;
        *longest_ns = ns < *longest_ns ? ns : *longest_ns;
    }
    if (w->control)
        nfds += bny_control_fds(w->control, fds + nfds, BNY_DESCRIPTORS_MAX - nfds);
    return nfds;
}

/* Only the last to wake disarms: peers would else find no sleeper while one sleeps on. */
void bny_world_disarm(struct bny_world *w)
{
    BNY_ASSERT_LOCKED(w);
    if (--w->nappers == 0)
        for (int i = 0; i < w->ntps; i++)
            w->tps[i]->ops->disarm(w->tps[i]);
}

static void nap(struct bny_waiter *wt, struct bny_world *w)
{
    struct pollfd pfd[BNY_DESCRIPTORS_MAX];
    int fds[BNY_DESCRIPTORS_MAX], nfds;
    uint64_t longest = wt->nap_ns < NAP_MIN_NS ? NAP_MIN_NS : wt->nap_ns;
    struct timespec ts;

    if (!bny_world_trylock(w)) {
        sched_yield();
        return;
    }
    if (w->jobs_out) { /* no descriptor tells when a thread has encoded */
        bny_world_unlock(w);
        sched_yield();
        return;
    }
    wt->nap_ns = 2 * longest < NAP_MAX_NS ? (uint32_t)(2 * longest) : NAP_MAX_NS;
    nfds = bny_world_arm(w, fds, &longest);
    w->due_ns = 0;
    if (longest && bny_world_progress(w) == 0 && (longest = until_due(w, longest)) != 0) {
        bny_world_unlock(w);
        for (int i = 0; i < nfds; i++)
            pfd[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
        ts = (struct timespec){ .tv_nsec = (long)longest };
        atomic_fetch_add_explicit(&w->sleeps, 1, memory_order_relaxed);
        ppoll(pfd, (nfds_t)nfds, &ts, NULL);
        bny_world_lock(w);
    }
    bny_world_disarm(w);
    bny_world_unlock(w);
}

/* From 1. Threads that wait at the same time may lose some. */
static uint32_t count_turn(struct banyan_comm *comm)
{
    uint32_t turns;

    if (!comm)
        return 1;
    turns = atomic_load_explicit(&comm->hook_turns, memory_order_relaxed) + 1;
    atomic_store_explicit(&comm->hook_turns, turns, memory_order_relaxed);
    return turns;
}

static void spin(struct bny_waiter *wt, struct bny_world *w, struct banyan_comm *comm)
{
    int urgent = bny_hook_is_urgent(comm);
    uint32_t every = urgent || wt->spins >= HOOK_SPINS ? 1 : HOOK_SPINS_EVERY;

    wt->spins++;
    bny_pause();
    wt->yielded = wt->spins % yield_every(w) == 0 && !urgent;
    if (wt->spins % CHECK_EVERY == 0)
        tick_if_due(wt, w);
    if (count_turn(comm) % every == 0)
        call_hook(comm); /* the peer we wait for may wait for what the hook drives */
    if (wt->yielded) {   /* to other threads of this CPU, for as long as they run */
        yield(w);
        tick_if_due(wt, w);
    }
}

/* A thread that waits aside sleeps, but for a while behind what it found. While another thread
 * waits, that one makes the progress. */
static void turn_aside(struct bny_waiter *wt, struct bny_world *w)
{
    struct timespec ts = { .tv_nsec = NAP_MIN_NS };

    if (atomic_load_explicit(&w->waiters, memory_order_relaxed) > 0) {
        nanosleep(&ts, NULL);
        return;
    }
    if (wt->finds && wt->spins < SPINS_ASIDE) {
        wt->spins++;
        bny_pause();
        return;
    }
    tick_if_due(wt, w);
    wt->napped = 1;
    nap(wt, w);
}

void bny_wait_turn(struct bny_waiter *wt, struct bny_world *w, struct banyan_comm *comm)
{
    /* Threads that wait at the same time: one of them can look, and others, of this process or
     * of the peers, may need its CPU. */
    int shared =
        w->oversubscribed || atomic_load_explicit(&w->waiters, memory_order_relaxed) > 1;
    uint32_t turns, spins_max = shared ? SPINS_SHARED : SPINS;
    uint32_t yields_max = shared ? YIELDS_SHARED : YIELDS;
    int urgent = bny_hook_is_urgent(comm), dear = !urgent && yields_are_dear(w);
    /* No descriptor tells of what the hook drives. */
    int stays_awake = urgent || (has_hook(comm) && !shared && !dear);

    if (wt->aside) {
        call_hook(comm);
        turn_aside(wt, w);
        return;
    }
    if (!shared || !wt->yields_max || wt->yields_max > yields_max)
        wt->yields_max = yields_max;

    if (urgent && !shared)
        spins_max = UINT32_MAX; /* a yield may cost a time slice, in which nothing drives */
    else if (w->spin_us >= 0)
        spins_max = (uint32_t)(w->spin_us > 1000000 ? 1000000 : w->spin_us) * 30;
    else if (dear)
        spins_max = SPINS_DEAR;
    if (wt->spins < spins_max) {
        spin(wt, w, comm);
        return;
    }
    if (stays_awake || (wt->yields < wt->yields_max && !dear)) {
        wt->yields++;
        yield(w);
        turns = count_turn(comm);
        if (stays_awake || turns % HOOK_EVERY == 0)
            call_hook(comm);
        /* Also where every wait is short: else ranks whose calls go on succeeding never hear of
         * an abort. And once a failure is decided: with more ranks than CPUs sixteen turns can
         * be tens of milliseconds. */
        if (wt->yields % 16 == 0 || turns % TICK_EVERY == 0 ||
            (w->control && bny_control_told(w->control)))
            tick_if_due(wt, w);
        return;
    }
    call_hook(comm);
    tick_if_due(wt, w);
    wt->napped = 1;
    nap(wt, w);
}

void bny_wait_skipped(struct banyan_comm *comm)
{
    uint32_t every = bny_hook_is_urgent(comm) ? 1 : HOOK_QUICK_EVERY;

    if (count_turn(comm) % every == 0)
        call_hook(comm);
}

/* ---- operations ---- */

/* The progress of an operation that lacks only messages of known peers: looks at these alone.
 */
static int poll_peers(struct bny_op *op)
{
    struct bny_event ev[4];
    int n = 0;

    for (int r = 0; r < op->comm->n; r++) {
        struct bny_ep *ep = op->comm->peers[r].ep;
        int k;
        if (!ep || !(op->way->pending(op, r) & BNY_PENDING_MESSAGE))
            continue;
        k = ep->ops->poll_ep(ep, ev, 4);
        for (int i = 0; i < k; i++)
            bny_world_event(op->comm->world, &ev[i]);
        n += k > 0 ? k : 0;
    }
    if (bny_link_is_in(&op->runnable) && bny_op_is_active(op)) {
        bny_link_out(&op->runnable);
        bny_op_advance(op);
    }
    return n;
}

/* Do all ranks that it lacks something of run on other CPUs, as far as is known? */
static int waits_elsewhere(const struct bny_op *op)
{
    const unsigned both = BNY_PENDING_MESSAGE | BNY_PENDING_WAITS;

    for (int r = 0; r < op->comm->n; r++) {
        const struct bny_ep *ep = op->comm->peers[r].ep;
        unsigned pending = op->way->pending(op, r);
        uint32_t cpu;

        if (pending & BNY_PENDING_UNSENT)
            return 0;
        if (!ep || (pending & both) != both)
            continue;
        cpu = ep->cpu ? atomic_load_explicit(ep->cpu, memory_order_relaxed) : 0;
        if (!cpu || cpu == op->comm->world->cpu)
            return 0;
    }
    return 1;
}

/* Memory that peers write shows what has come, and nothing else does. If CPUs are shared the
 * peer may need this one: poll a few times, or once if the peer is known to run here. */
static int look_at_memory(struct bny_op *op, int tries)
{
    int moves = 0;

    if (op->comm->world->oversubscribed)
        tries = !(op->traits & BNY_WAY_LOOKS) ? LOOKS_CROWDED
                : waits_elsewhere(op)         ? LOOKS_SHARED
                                              : 1;
    for (int i = 0; i < tries && moves < MOVES_MAX; i++) {
        if (bny_op_advance(op)) {
            if (bny_op_is_done(op))
                return 1;
            moves++;
            i = 0;
        }
        bny_pause();
    }
    return moves == MOVES_MAX;
}

/* The operation that a wait for op looks at, where nothing else of its communicator is under
 * way: op, or its child, which is then all that op waits for. NULL: something else is. */
static struct bny_op *alone(struct bny_op *op)
{
    if (op->comm->active_first != op || op->comm->world->held.draining)
        return NULL;
    if (op->next && op->next->parent == op)
        op = op->next;
    return op->next ? NULL : op;
}

/* Some looks under one lock: a lock operation costs as much as several of them. With shared
 * CPUs, one look, unless all that are missing run elsewhere: then they come without this CPU.
 */
int bny_op_look(struct bny_op *op, int tries)
{
    struct bny_world *w = op->comm->world;
    struct bny_op *sole = alone(op);

    BNY_ASSERT_LOCKED(w);
    if (sole && (sole->traits & BNY_WAY_POLLED)) {
        if (look_at_memory(sole, tries) && (sole == op || !bny_op_is_done(sole)))
            return 1;
        return bny_world_progress(w);
    }
    if (w->oversubscribed)
        tries = LOOKS_SHARED;
    if (sole && (sole->traits & BNY_WAY_LOOKS)) {
        for (int i = 0; i < tries && !bny_op_is_done(sole); i++) {
            if (poll_peers(sole) && bny_op_is_done(sole))
                break;
            if (w->oversubscribed && !waits_elsewhere(sole))
                break;
            bny_pause();
        }
        if (bny_op_is_done(op))
            return 1;
    }
    return bny_world_progress(w);
}

/* Where are we after having let others run? Peers want to know with our next message. */
static void note_cpu(struct bny_world *w)
{
    uint32_t cpu = (uint32_t)sched_getcpu() + 1;

    if (cpu == w->cpu)
        return;
    w->cpu = cpu;
    for (int i = 0; i < w->ntps; i++)
        w->tps[i]->cpu = cpu;
}

void bny_op_set_deadline(struct bny_op *op, uint64_t deadline_ns)
{
    uint64_t now;

    if (!deadline_ns)
        return;
    now = bny_now_ns();
    bny_world_lock(op->comm->world);
    op->deadline_ns = deadline_ns;
    op->allowed_ns = deadline_ns > now ? deadline_ns - now : 0;
    bny_world_unlock(op->comm->world);
}

int bny_op_wait_until(struct bny_op *op, uint64_t until_ns, int aside)
{
    struct bny_world *w = op->comm->world;
    struct bny_waiter wt;

    bny_wait_init(&wt);
    wt.aside = aside;
    if (!aside)
        atomic_fetch_add_explicit(&w->waiters, 1, memory_order_relaxed);
    while (bny_op_is_under_way(op) && (!until_ns || !bny_deadline_passed(until_ns))) {
        int n = 0;
        bny_wait_turn(
            &wt, w,
            op->comm); /* callers have just looked: with shared CPUs, let others run first */
        if (bny_world_trylock(w)) {
            if (w->oversubscribed)
                note_cpu(w);
            if (!bny_op_is_done(op))
                n = bny_op_look(op, bny_hook_is_urgent(op->comm) ? 1 : LOOKS);
            bny_world_unlock(w);
        }
        bny_completed_call();
        if (n > 0)
            bny_wait_found(&wt, w);
    }
    if (!aside)
        atomic_fetch_sub_explicit(&w->waiters, 1, memory_order_relaxed);
    return !bny_op_is_under_way(op);
}

int bny_op_wait(struct bny_op *op, uint64_t deadline_ns)
{
    if (!bny_op_is_under_way(op))
        return op->result;
    bny_op_set_deadline(op, deadline_ns);
    bny_op_wait_until(op, 0, 0);
    if (op->result)
        bny_comm_error(op->comm);
    return op->result;
}
