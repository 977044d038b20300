/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators. Each MPI communicator has an object of ours as an attribute, which its freeing
 * takes along. All whose ranks are the job's share the one world that MPI_Init has joined: what
 * each has of its own is a line, an order of operations among its ranks. MPI makes
 * communicators from any subset of ranks, so a line is made by its members alone, in a blocking
 * collective (a non-blocking call may wait for nobody): the `after`th on this communicator, as
 * one that is made for a few broadcasts should cost nothing. Non-blocking calls have a line of
 * their own, made at the same time. A line outlives its communicator,
 * and serves the next one of the same ranks: what is in flight on it comes before what that
 * starts, at all ranks alike. */
#include <stdlib.h>
#include <string.h>

#include "collectives/api/job.h"
#include "integrations/mpi/shim.h"

/* At MPI_Finalize: for ranks that come later, or hold an operation that we have left. */
#define CLOSE_S 20.0

/* Lines that a process may have for communicators, two each, and for persistent requests;
 * beyond, those stay on the MPI library. Rank 0 of each decides; the others bear more, as they
 * are rank 0 elsewhere. */
#define LINES_MAX      1024
#define PERSISTENT_MAX 512

struct line {
    struct banyan_comm *banyan;
    uint32_t id;
    int n, *ranks; /* of MPI_COMM_WORLD */
    atomic_int refs;
    struct line *next;
};

_Atomic(struct shim_comm *) shim_cache[SHIM_CACHE];
static struct shim_comm *all;
static struct line *lines;
static int nlines;
static int keyval = MPI_KEYVAL_INVALID;

/* ---- freeing ---- */

static void reset(struct shim_comm *c)
{
    shim_line_put(c);
    c->banyan = NULL;
    c->state = SHIM_FRESH;
    c->handle = MPI_COMM_NULL;
}

static void recycle(struct shim_comm *c)
{
    reset(c->later);
    reset(c);
}

/* The attribute's end: MPI_Comm_free was called here. Operations may be in flight. The MPI
 * library may hold a lock of its own in this callback, and shim_lock is taken before that one
 * elsewhere: so this only marks. */
static int forget(MPI_Comm comm, int key, void *value, void *extra)
{
    struct shim_comm *c = value, *cached = c;

    atomic_compare_exchange_strong(&shim_cache[shim_hash((uintptr_t)comm)], &cached, NULL);
    c->state = c->later->state = SHIM_FREED;
    shim_comm_settle(c);
    return MPI_SUCCESS;
}

void shim_comm_settle(struct shim_comm *c)
{
    if (c->of)
        c = c->of;
    if (c->state == SHIM_FREED && c->later->in_flight == 0 && c->holds == 0)
        recycle(c);
}

/* ---- lines ---- */

static void line_free(struct line *l)
{
    if (!l)
        return;
    banyan_comm_destroy(l->banyan);
    free(l->ranks);
    free(l);
}

/* Members by their ranks in MPI_COMM_WORLD; NULL: some are of another job (MPI_Comm_spawn), so
 * all of them see some that are, or there is no memory, which *out_of_memory says. */
static int *members(const struct shim_comm *c, int *out_of_memory)
{
    int *from = malloc(2 * (size_t)c->n * sizeof *from), *to = from + c->n, foreign = 0;
    MPI_Group ours, world;

    *out_of_memory = !from;
    if (!from)
        return NULL;
    for (int i = 0; i < c->n; i++)
        from[i] = i;
    real.Comm_group(c->handle, &ours);
    real.Comm_group(MPI_COMM_WORLD, &world);
    real.Group_translate_ranks(ours, c->n, from, world, to);
    real.Group_free(&ours);
    real.Group_free(&world);
    for (int i = 0; i < c->n; i++) {
        from[i] = to[i];
        foreign |= to[i] == MPI_UNDEFINED;
    }
    if (!foreign)
        return from;
    free(from);
    return NULL;
}

static struct line *idle_line(const int *ranks, int n)
{
    for (struct line *l = lines; l; l = l->next)
        if (l->n == n && l->refs == 0 && !memcmp(l->ranks, ranks, (size_t)n * sizeof *ranks) &&
            banyan_async_error(l->banyan, NULL, NULL, 0) == 0)
            return l;
    return NULL;
}

/* Takes ranks. */
static struct line *new_line(int *ranks, int n)
{
    struct line *l = ranks ? calloc(1, sizeof *l) : NULL;

    if (!l) {
        free(ranks);
        return NULL;
    }
    l->ranks = ranks;
    l->n = n;
    if (bny_comm_among(shim_world, ranks, n, &l->banyan) == 0)
        return l;
    line_free(l);
    return NULL;
}

/* This rank's word to the others: the line's number, which rank 0 decides, and whether this
 * rank failed. */
enum { ID, CANNOT, WORDS };

/* A line for these ranks, in `made` if it is new. most: lines, where this rank decides. */
static void propose(const struct shim_comm *c, int most, int *ranks, struct line **made,
                    unsigned said[WORDS])
{
    struct line *idle = ranks && c->rank == 0 ? idle_line(ranks, c->n) : NULL;

    said[ID] = said[CANNOT] = 0;
    *made = NULL;
    if (idle) {
        said[ID] = idle->id;
        free(ranks);
    } else if (nlines < (c->rank ? 2 * LINES_MAX : most)) {
        *made = new_line(ranks, c->n);
        if (c->rank == 0)
            said[ID] = bny_comm_draw(shim_world);
        said[CANNOT] = !*made || (c->rank == 0 && said[ID] == 0);
    } else {
        said[CANNOT] = 1;
        free(ranks);
    }
}

/* The line that the ranks agreed on: an existing one, or the new one. */
static struct line *comms_take(struct line *made, uint32_t id)
{
    struct line *l = lines;

    while (l && l->id != id)
        l = l->next;
    if (l) {
        line_free(made);
    } else if (made) {
        l = made;
        l->id = id;
        bny_comm_name(l->banyan, id);
        l->next = lines;
        lines = l;
        nlines++;
    }
    if (l)
        l->refs++;
    return l;
}

/* All members are in the same call. NULL at all of them: there is none. */
static struct line *agree_on_line(const struct shim_comm *c, int most, int cannot)
{
    unsigned mine[WORDS], sum[WORDS] = { 0, 1 };
    int out_of_memory, *ranks = members(c, &out_of_memory);
    struct line *made, *line = NULL;
    MPI_Request req;

    if (!ranks && !out_of_memory)
        return NULL;
    shim_lock();
    propose(c, most, ranks, &made, mine);
    mine[CANNOT] |= (unsigned)cannot;
    shim_unlock();
    /* A sum, as MPICH takes the maximum of unsigned numbers for signed ones. */
    if (real.Iallreduce(mine, sum, WORDS, MPI_UNSIGNED, MPI_SUM, c->handle, &req) !=
            MPI_SUCCESS ||
        shim_wait_native(&req) != MPI_SUCCESS)
        sum[CANNOT] = 1;
    shim_lock();
    if (sum[CANNOT])
        line_free(made);
    else
        line = comms_take(made, sum[ID]);
    shim_unlock();
    return line;
}

/* Lock held. */
static void use(struct shim_comm *c, struct line *line)
{
    c->line = line;
    c->banyan = line ? line->banyan : NULL;
    c->state = line ? SHIM_READY : SHIM_PASS;
}

static void comms_join(struct shim_comm *c)
{
    struct line *line = agree_on_line(c, LINES_MAX, 0);
    struct line *later = line ? agree_on_line(c, LINES_MAX, 0) : NULL;

    shim_lock();
    use(c, line);
    use(c->later, later);
    shim_unlock();
}

int shim_line_get(const struct shim_comm *c, int cannot, struct shim_comm *own)
{
    struct line *line = agree_on_line(c, PERSISTENT_MAX, cannot);

    if (!line)
        return -1;
    *own = (struct shim_comm){ .handle = c->handle,
                               .state = SHIM_READY,
                               .rank = c->rank,
                               .n = c->n,
                               .banyan = line->banyan,
                               .line = line };
    return 0;
}

void shim_line_put(struct shim_comm *own)
{
    if (own->line)
        own->line->refs--;
    own->line = NULL;
}

/* ---- finding ---- */

static void comms_fill(struct shim_comm *c, MPI_Comm comm)
{
    int inter = 0;

    c->handle = comm;
    c->state = SHIM_FRESH;
    c->calls = c->in_flight = c->holds = c->said = 0;
    c->done = c->lost = 0;
    c->banyan = NULL;
    c->line = NULL;
    real.Comm_rank(comm, &c->rank);
    real.Comm_size(comm, &c->n);
    real.Comm_test_inter(comm, &inter);
    if (!shim_world || inter || c->n == 1 || shim_is_of_session(comm)) {
        c->state = SHIM_PASS;
    } else if (comm == MPI_COMM_WORLD) {
        c->banyan = shim_world;
        c->state = SHIM_READY;
    }
    *c->later = (struct shim_comm){ .handle = comm,
                                    .state = c->state == SHIM_FRESH ? SHIM_FRESH : SHIM_PASS,
                                    .rank = c->rank,
                                    .n = c->n,
                                    .of = c };
}

/* An object, and that of its non-blocking calls. */
static struct shim_comm *comms_add(void)
{
    struct shim_comm *c = calloc(2, sizeof *c);

    if (!c)
        return NULL;
    c->later = c + 1;
    c->next = all;
    all = c;
    return c;
}

static struct shim_comm *comms_find(MPI_Comm comm)
{
    struct shim_comm *c;
    int found = 0;

    if (real.Comm_get_attr(comm, keyval, &c, &found) != MPI_SUCCESS)
        return NULL;
    if (found)
        return c;
    for (c = all; c && c->handle != MPI_COMM_NULL; c = c->next)
        ;
    if (!c)
        c = comms_add();
    if (!c)
        return NULL;
    comms_fill(c, comm);
    if (real.Comm_set_attr(comm, keyval, c) != MPI_SUCCESS) {
        c->handle = MPI_COMM_NULL;
        return NULL;
    }
    return c;
}

struct shim_comm *shim_comm_slow(MPI_Comm comm, int blocking)
{
    struct shim_comm *c = shim_cache[shim_hash((uintptr_t)comm)];
    int due;

    if (!shim.ready || comm == MPI_COMM_NULL)
        return NULL;
    if (c && c->handle == comm && c->state == SHIM_PASS)
        return c;
    shim_lock();
    if (!c || c->handle != comm || c->state == SHIM_FREED)
        c = comms_find(comm);
    if (c)
        shim_cache[shim_hash((uintptr_t)comm)] = c;
    due = c && c->state == SHIM_FRESH && blocking && ++c->calls >= shim.after;
    shim_unlock();
    if (due)
        comms_join(c);
    return c;
}

/* ---- ranks that called different things ---- */

/* Bits that one agreement finds the largest of, by as many as 2^DIGIT marks. */
#define DIGIT      5
#define DIGIT_MOST ((1u << DIGIT) - 1)

/* The largest of all members' v[i], as *most[i]: digit by digit, each as marks from 0 on, of
 * which the agreement finds all that any rank has. Not by a call of the MPI's, which ranks that
 * disagree may have called other things of by now. 0 or banyan's error. */
static int find_most(struct shim_comm *c, const uint32_t v[2], uint32_t most[2])
{
    int still[2] = { 1, 1 }, rc;

    most[0] = most[1] = 0;
    for (int shift = 32 / DIGIT * DIGIT; shift >= 0; shift -= DIGIT) {
        uint64_t marks = 0;
        for (int i = 0; i < 2; i++)
            if (still[i])
                marks |= (((uint64_t)2 << (v[i] >> shift & DIGIT_MOST)) - 1) << 32 * i;
        marks = ~marks;
        rc = banyan_comm_agree(c->banyan, &marks, NULL, 0);
        if (rc < 0)
            return rc;
        for (int i = 0; i < 2; i++) {
            uint32_t any = (uint32_t)(~marks >> 32 * i), digit = 0;
            while (any >>= 1)
                digit++;
            most[i] |= digit << shift;
            still[i] &= digit == (v[i] >> shift & DIGIT_MOST);
        }
    }
    return 0;
}

/* The rank with the fewest calls behind it is in the one that differs, or before it. */
void shim_comm_differs(struct shim_comm *c)
{
    uint32_t mine[2] = { c->done, ~c->done }, most[2], right;

    c->state = SHIM_PASS;
    c->lost = 0;
    if (find_most(c, mine, most))
        return;
    right = ~most[1] + 1 > most[0] ? ~most[1] + 1 : most[0];
    c->lost = right - c->done;
    if (c->lost)
        c->state = SHIM_LOST;
}

void shim_comms_differ(void)
{
    for (struct shim_comm *c = all; c; c = c->next)
        for (struct shim_comm *one = c; one; one = one->later)
            if (one->handle != MPI_COMM_NULL && one->state == SHIM_READY &&
                shim_comm_has_differed(one))
                shim_comm_differs(one);
}

/* ---- start and end ---- */

int shim_comms_start(void)
{
    return real.Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &keyval, NULL) == MPI_SUCCESS
               ? 0
               : -1;
}

void shim_comms_first(void)
{
    struct shim_comm *c;
    struct line *later;

    const struct shim_comm world = { .handle = shim_joining, .rank = shim.rank, .n = shim.n };

    shim_lock();
    c = comms_find(MPI_COMM_WORLD);
    shim_unlock();
    later = agree_on_line(&world, LINES_MAX, !c);
    shim_lock();
    if (c)
        use(c->later, later);
    shim_unlock();
}

void shim_comms_stop(void)
{
    double until = shim_now() + CLOSE_S;
    unsigned turns = 0;

    for (int i = 0; i < SHIM_CACHE; i++)
        shim_cache[i] = NULL;
    while (shim.in_flight && shim_now() < until) { /* requests that nobody waits for */
        shim_turn(&turns);
        shim_drive_mpi(NULL);
    }
    shim_persistent_stop();
    shim_world_leave(until);
    shim_comms_free();
    real.Comm_free_keyval(&keyval);
}

void shim_comms_free(void)
{
    struct line *l;

    for (struct shim_comm *c = all; c; c = c->next) {
        MPI_Comm comm = c->handle;
        if (comm != MPI_COMM_NULL && c->state != SHIM_FREED)
            real.Comm_delete_attr(comm, keyval);
    }
    while ((l = lines)) {
        lines = l->next;
        line_free(l);
    }
    nlines = 0;
}
