/* SPDX-License-Identifier: BSD-3-Clause */
/* Ordered and lazy gradients: norms of innovations are gathered, all ranks choose the same
 * uploads from them, and the uploads are an allreduce of those ranks alone (participants of
 * opts.reduce).
 *
 * The innovation of a rank is what the sum lacks of its gradient: gradient - sent + residual,
 * where `sent` is its gradient as of its last upload and the residual is what a lossy codec
 * kept of that (banyan_codec_state: input + old residual = received + new residual). The codec
 * adds the residual itself, so what goes into it is gradient - sent. A rank that does not send
 * is not in the participation set, which leaves its residual as it is. The sum is kept in f64:
 * each step adds an f32 sum to it, for as long as the run lasts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/err.h"
#include "base/sized.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/tensors.h"

#define KIND        0x595a414cu /* "LAZY" */
#define HISTORY_MAX 1000
/* Squared: rhs is of 0.1 % less or more. */
#define RHS_TOLERANCE 2e-3

/* A rank's message to the others in a step. */
struct told {
    double squared; /* norm of its innovation; not finite: its gradient is not */
    double rhs;     /* as it sees it: rank 0's decides */
    uint64_t step;
};

struct counts {
    uint64_t steps, uploads, own, silent, latest, norms_bytes, upload_bytes;
    double norm, rhs;
};

struct banyan_lazy {
    struct bny_object object;
    struct banyan_comm *comm;
    int rank, n;
    size_t count;
    struct banyan_lazy_config cfg; /* its names: below */
    char *codec, *schedule;
    float *sent;    /* [count] this rank's gradient as of its last upload */
    double *sum;    /* [count] of what was received of all ranks */
    float *news;    /* [count] what goes up, then what came down */
    float *last;    /* [count] the latest step of the parameters; momentum only */
    double *moved;  /* [history] squared steps; moved[k % history] of step k */
    uint64_t moves; /* steps of the parameters so far */
    struct banyan_codec_state *state; /* NULL without a codec */
    struct told *told;                /* [n] */
    int *order;                       /* [n] ranks, by norm */
    uint8_t *chosen;                  /* [n] whether a rank sends in this step */
    struct counts counts;
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_lazy);

/* ---- creation ---- */

static int check_settings(const struct banyan_lazy_config *c)
{
    if (c->rule < 0 || c->rule > BANYAN_LAZY_CHB)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_lazy_create: rule %d is none of the %d there are", (int)c->rule,
                        BANYAN_LAZY_CHB + 1);
    if (!(c->alpha > 0) || !isfinite(c->alpha))
        return bny_fail(
            BANYAN_EINVAL,
            "banyan_lazy_create: alpha is %g; set it to the rate of the steps along "
            "the sum of gradients, a positive number",
            c->alpha);
    if (!(c->xi >= 0) || !isfinite(c->xi))
        return bny_fail(BANYAN_EINVAL, "banyan_lazy_create: xi is %g, not 0 or more", c->xi);
    if (c->history < 0 || c->history > HISTORY_MAX)
        return bny_fail(BANYAN_EINVAL, "banyan_lazy_create: history is %d, not in [0, %d]",
                        c->history, HISTORY_MAX);
    if (!(c->momentum < 1))
        return bny_fail(BANYAN_EINVAL, "banyan_lazy_create: momentum is %g, not below 1",
                        c->momentum);
    return 0;
}

static int ordered_settings(struct banyan_lazy_config *out,
                            const struct banyan_lazy_config *cfg)
{
    int chb, rc;

    *out = (struct banyan_lazy_config)BANYAN_LAZY_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, cfg, "banyan_lazy_create", "BANYAN_LAZY_CONFIG_INIT");
    if (rc < 0)
        return rc;
    rc = check_settings(out);
    chb = out->rule == BANYAN_LAZY_CHB;
    if (!out->history)
        out->history = chb ? 1 : 10;
    if (out->warmup < 0)
        out->warmup = out->rule == BANYAN_LAZY_LAG ? out->history : 1;
    if (out->warmup < 1)
        out->warmup = 1;
    if (out->momentum < 0)
        out->momentum = chb ? 0.4 : 0;
    return rc;
}

/* The settings that ranks must share, in order of NAMES. */
struct agreed {
    uint64_t count;
    int64_t rule, history, warmup;
    double alpha, xi, momentum;
    uint64_t seed;
    char codec[80], schedule[40];
};

static const struct {
    const char *name;
    size_t at, bytes;
} members[] = {
#define MEMBER(m)                                                                              \
    {                                                                                          \
#m, offsetof(struct agreed, m), sizeof((struct agreed *)0)->m                          \
    }
    MEMBER(count), MEMBER(rule),     MEMBER(history), MEMBER(warmup), MEMBER(alpha),
    MEMBER(xi),    MEMBER(momentum), MEMBER(seed),    MEMBER(codec),  MEMBER(schedule),
#undef MEMBER
};

static int copy_name(char **out, char *agreed, size_t cap, const char *name, const char *what)
{
    if (!name)
        return 0;
    if (strlen(name) >= cap)
        return bny_fail(BANYAN_EINVAL, "banyan_lazy_create: %s: \"%.40s...\" is too long", what,
                        name);
    strcpy(agreed, name);
    *out = strdup(name);
    return *out ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a name");
}

/* rc: what went wrong at this rank so far, which all then return, so that nobody waits. */
static int ordered_agree(struct banyan_lazy *l, const struct agreed *mine, int rc)
{
    struct {
        int64_t rc;
        struct agreed agreed;
    } own = { .rc = rc, .agreed = *mine }, *all = calloc((size_t)l->n, sizeof *all);
    int e = all ? banyan_allgather(&own, all, sizeof own, BANYAN_U8, l->comm, &bny_exact)
                : bny_fail(BANYAN_ENOMEM, "no memory for the settings of %d ranks", l->n);

    if (rc == 0)
        rc = e;
    for (int r = 0; r < l->n && rc == 0; r++) {
        if (all[r].rc)
            rc = bny_fail(
                (enum banyan_error) - all[r].rc,
                "banyan_lazy_create: rank %d failed (%s); its own message has the cause", r,
                banyan_strerror((int)all[r].rc));
        for (size_t i = 0; i < sizeof members / sizeof members[0] && rc == 0; i++)
            if (memcmp((char *)&all[r].agreed + members[i].at,
                       (char *)&all[0].agreed + members[i].at, members[i].bytes))
                rc = bny_fail(BANYAN_EMISMATCH,
                              "banyan_lazy_create: %s is another one at rank %d than at rank "
                              "0; give all ranks the same settings",
                              members[i].name, r);
    }
    free(all);
    return rc;
}

static int ordered_allocate(struct banyan_lazy *l)
{
    size_t count = l->count ? l->count : 1, n = (size_t)l->n;

    l->sent = calloc(count, sizeof *l->sent);
    l->sum = calloc(count, sizeof *l->sum);
    l->news = calloc(count, sizeof *l->news);
    l->moved = calloc((size_t)l->cfg.history, sizeof *l->moved);
    l->told = calloc(n, sizeof *l->told);
    l->order = calloc(n, sizeof *l->order);
    l->chosen = calloc(n, 1);
    if (l->cfg.momentum > 0)
        l->last = calloc(count, sizeof *l->last);
    if (!l->sent || !l->sum || !l->news || !l->moved || !l->told || !l->order || !l->chosen ||
        (l->cfg.momentum > 0 && !l->last))
        return bny_fail(BANYAN_ENOMEM, "no memory for lazy gradients of %zu elements",
                        l->count);
    return l->codec ? banyan_codec_state_create(&l->state, l->count, l->cfg.seed) : 0;
}

int banyan_lazy_create(struct banyan_lazy **out, struct banyan_comm *comm, size_t count,
                       const struct banyan_lazy_config *cfg)
{
    struct agreed mine;
    struct banyan_lazy *l;
    int rc;

    l = bny_object_new(&handles, out, comm, "banyan_lazy_create", &rc);
    if (!l)
        return rc;
    l->comm = comm;
    l->rank = banyan_comm_rank(comm);
    l->n = banyan_comm_count(comm);
    l->count = count;
    memset(&mine, 0, sizeof mine);
    rc = ordered_settings(&l->cfg, cfg);
    if (rc == 0)
        rc = copy_name(&l->codec, mine.codec, sizeof mine.codec, l->cfg.codec, "codec");
    if (rc == 0)
        rc = copy_name(&l->schedule, mine.schedule, sizeof mine.schedule, l->cfg.schedule,
                       "schedule");
    if (rc == 0)
        rc = ordered_allocate(l);
    mine.count = count;
    mine.rule = (int64_t)l->cfg.rule;
    mine.history = l->cfg.history;
    mine.warmup = l->cfg.warmup;
    mine.alpha = l->cfg.alpha;
    mine.xi = l->cfg.xi;
    mine.momentum = l->cfg.momentum;
    mine.seed = l->cfg.seed;
    rc = ordered_agree(l, &mine, rc);
    if (rc < 0)
        banyan_lazy_free(l);
    else
        *out = l;
    return rc;
}

int banyan_lazy_free(struct banyan_lazy *l)
{
    int rc = bny_object_may_free(l, KIND, "banyan_lazy_free");

    if (rc <= 0)
        return rc;
    banyan_codec_state_free(l->state);
    free(l->codec);
    free(l->schedule);
    free(l->sent);
    free(l->sum);
    free(l->news);
    free(l->last);
    free(l->moved);
    free(l->told);
    free(l->order);
    free(l->chosen);
    bny_handle_free(&handles, &l->object.handle);
    return 0;
}

/* ---- norms ---- */

/* Bytes that this rank's communicator sent so far. */
static uint64_t wire_bytes(const struct banyan_lazy *l)
{
    struct banyan_stats s = { .size = sizeof s };

    return banyan_comm_stats(l->comm, &s) == 0 ? s.wire_bytes : 0;
}

static double rhs_of(const struct banyan_lazy *l)
{
    double sum = 0;
    int most = l->moves < (uint64_t)l->cfg.history ? (int)l->moves : l->cfg.history;

    for (int j = 0; j < most; j++) /* the latest first: one order of additions */
        sum += l->moved[(l->moves - 1 - (uint64_t)j) % (uint64_t)l->cfg.history];
    return l->cfg.xi / (l->cfg.alpha * l->cfg.alpha) * sum;
}

/* The squared norm of the innovation, in f64; news becomes gradient - sent. */
static double innovation(struct banyan_lazy *l, const float *grad)
{
    const float *lost = l->state ? banyan_codec_state_residual(l->state) : NULL;
    double part[4] = { 0 };

    for (size_t i = 0; i < l->count; i++) {
        double x;

        l->news[i] = grad[i] - l->sent[i];
        x = (double)l->news[i] + (lost ? (double)lost[i] : 0);
        part[i % 4] += x * x;
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
}

static int tell_nonfinite(const struct banyan_lazy *l, int rank, const float *grad)
{
    size_t i = 0;

    if (rank != l->rank)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_lazy_exchange: the gradient of rank %d has a NaN or infinity, "
                        "or its norm is beyond f64; nothing was sent in step %llu",
                        rank, (unsigned long long)l->counts.steps);
    while (i < l->count && isfinite(grad[i]))
        i++;
    if (i == l->count)
        return bny_fail(
            BANYAN_EINVAL,
            "banyan_lazy_exchange: what is new in the gradient of rank %d is beyond "
            "f32; nothing was sent in step %llu",
            rank, (unsigned long long)l->counts.steps);
    return bny_fail(BANYAN_EINVAL,
                    "banyan_lazy_exchange: the gradient of rank %d is %g at element %zu; "
                    "nothing was sent in step %llu",
                    rank, (double)grad[i], i, (unsigned long long)l->counts.steps);
}

/* Do the ranks agree on what this step is? All see the same and return the same. */
static int check_told(const struct banyan_lazy *l, const float *grad)
{
    const struct told *first = &l->told[0];

    for (int r = 0; r < l->n; r++) {
        const struct told *x = &l->told[r];

        if (x->step != first->step)
            return bny_fail(BANYAN_EMISMATCH,
                            "banyan_lazy_exchange: rank %d is at step %llu, rank 0 at %llu; "
                            "load the states of one moment on all ranks",
                            r, (unsigned long long)x->step, (unsigned long long)first->step);
        if (!(fabs(x->rhs - first->rhs) <= RHS_TOLERANCE * first->rhs))
            return bny_fail(BANYAN_EMISMATCH,
                            "banyan_lazy_exchange: the latest steps of the parameters (or "
                            "alpha) differ: sqrt(rhs) is %g at rank %d and %g at rank 0; begin "
                            "with the same parameters, and take the same steps, on all ranks",
                            sqrt(x->rhs), r, sqrt(first->rhs));
    }
    for (int r = 0; r < l->n; r++)
        if (!isfinite(l->told[r].squared))
            return tell_nonfinite(l, r, grad);
    return 0;
}

/* ---- the ranks that send ---- */

static void order_by_norm(struct banyan_lazy *l)
{
    for (int i = 0; i < l->n; i++) { /* by insertion: n is small; equal norms in rank order */
        int k = i;

        for (; k > 0 && l->told[l->order[k - 1]].squared < l->told[i].squared; k--)
            l->order[k] = l->order[k - 1];
        l->order[k] = i;
    }
}

/* The smallest number of uploads whose rest is small enough. */
static int stop_after(const struct banyan_lazy *l, double rhs)
{
    double rest = 0; /* sum of the norms from n on */
    int n = l->n;

    for (; n > 0; n--) {
        double next = sqrt(l->told[l->order[n - 1]].squared);
        double r1 = (double)(l->n - n + 1) * next;

        rest += next;
        if ((l->cfg.rule == BANYAN_LAZY_ORDERED_R1 ? r1 * r1 : rest * rest) > rhs)
            break;
    }
    return n;
}

/* Fills chosen; the number of uploads. */
static int ordered_choose(struct banyan_lazy *l)
{
    double rhs = l->told[0].rhs, each = rhs / ((double)l->n * (double)l->n);
    int all = l->cfg.rule == BANYAN_LAZY_ALL || l->counts.steps < (uint64_t)l->cfg.warmup;
    int ordered =
        l->cfg.rule == BANYAN_LAZY_ORDERED_R1 || l->cfg.rule == BANYAN_LAZY_ORDERED_R2;
    int uploads = 0;

    if (all || !ordered) {
        for (int r = 0; r < l->n; r++) {
            l->chosen[r] = all || l->told[r].squared > each;
            uploads += l->chosen[r];
        }
        return uploads;
    }
    order_by_norm(l);
    uploads = stop_after(l, rhs);
    for (int i = 0; i < l->n; i++)
        l->chosen[l->order[i]] = i < uploads;
    return uploads;
}

/* ---- a step ---- */

static int upload(struct banyan_lazy *l, const float *grad)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int mine = l->chosen[l->rank], rc;

    inputs.participants = l->chosen;
    o.reduce = &inputs;
    o.codec = l->codec ? l->codec : "none";
    o.codec_state = l->state;
    o.schedule = l->schedule;
    rc = banyan_allreduce(mine ? l->news : NULL, l->news, l->count, BANYAN_F32, BANYAN_SUM,
                          l->comm, &o);
    if (rc)
        return rc;
    for (size_t i = 0; i < l->count; i++)
        l->sum[i] += (double)l->news[i];
    if (mine)
        memcpy(l->sent, grad, l->count * sizeof *grad);
    return 0;
}

static int gather_norms(struct banyan_lazy *l, const float *grad)
{
    struct told mine = { .squared = innovation(l, grad),
                         .rhs = rhs_of(l),
                         .step = l->counts.steps };
    int rc = banyan_allgather(&mine, l->told, sizeof mine, BANYAN_U8, l->comm, &bny_exact);

    return rc ? rc : check_told(l, grad);
}

int banyan_lazy_exchange(struct banyan_lazy *l, const float *grad, float *sum)
{
    struct counts *c;
    uint64_t before;
    int rc = bny_object_enter(l, KIND, "banyan_lazy_exchange"), uploads;

    if (rc < 0)
        return rc;
    if (!grad && l->count)
        return bny_fail(BANYAN_EINVAL, "banyan_lazy_exchange: grad must not be NULL");
    c = &l->counts;
    if (c->steps != l->moves)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_lazy_exchange: the step after the one before was not taken; "
                        "call banyan_lazy_descend or banyan_lazy_moved once after each");
    before = wire_bytes(l);
    rc = gather_norms(l, grad);
    if (rc)
        return rc;
    c->norms_bytes += wire_bytes(l) - before;
    uploads = ordered_choose(l);
    before = wire_bytes(l);
    rc = uploads ? upload(l, grad) : 0;
    if (rc)
        return rc;
    c->upload_bytes += wire_bytes(l) - before;
    c->steps++;
    c->uploads += (uint64_t)uploads;
    c->own += l->chosen[l->rank];
    c->silent += uploads == 0;
    c->latest = (uint64_t)uploads;
    c->norm = sqrt(l->told[l->rank].squared);
    c->rhs = sqrt(l->told[0].rhs);
    for (size_t i = 0; sum && i < l->count; i++)
        sum[i] = (float)l->sum[i];
    return 0;
}

/* One step for each exchange. */
static int may_move(const struct banyan_lazy *l, const char *what)
{
    int rc = bny_object_check(l, KIND, what);

    if (rc == 0 && l->moves + 1 != l->counts.steps)
        rc = bny_fail(BANYAN_EINVAL, "%s: call banyan_lazy_exchange before each step", what);
    return rc;
}

static void remember(struct banyan_lazy *l, double squared)
{
    l->moved[l->moves % (uint64_t)l->cfg.history] = squared;
    l->moves++;
}

int banyan_lazy_moved(struct banyan_lazy *l, double squared)
{
    int rc = may_move(l, "banyan_lazy_moved");

    if (rc == 0 && !(squared >= 0 && isfinite(squared)))
        rc = bny_fail(BANYAN_EINVAL, "banyan_lazy_moved: %g is no squared length", squared);
    if (rc == 0)
        remember(l, squared);
    return rc;
}

int banyan_lazy_descend(struct banyan_lazy *l, float *theta)
{
    double squared = 0;
    int rc = may_move(l, "banyan_lazy_descend");

    if (rc == 0 && !theta && l->count)
        rc = bny_fail(BANYAN_EINVAL, "banyan_lazy_descend: theta must not be NULL");
    if (rc)
        return rc;
    for (size_t i = 0; i < l->count; i++) {
        double step = -l->cfg.alpha * l->sum[i], went;
        float before = theta[i];

        if (l->last)
            step += l->cfg.momentum * (double)l->last[i];
        theta[i] = (float)((double)before + step);
        went = (double)theta[i] - (double)before;
        if (l->last)
            l->last[i] = (float)went;
        squared += went * went;
    }
    remember(l, squared);
    return 0;
}

int banyan_lazy_set_alpha(struct banyan_lazy *l, double alpha)
{
    int rc = bny_object_check(l, KIND, "banyan_lazy_set_alpha");

    if (rc < 0)
        return rc;
    if (!(alpha > 0) || !isfinite(alpha))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_lazy_set_alpha: the rate must be a positive number");
    l->cfg.alpha = alpha;
    return 0;
}

int banyan_lazy_stats(const struct banyan_lazy *l, struct banyan_lazy_stats *out)
{
    struct banyan_lazy_stats s;
    int rc = bny_object_check(l, KIND, "banyan_lazy_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_lazy_stats");
    if (rc < 0)
        return rc;
    s = (struct banyan_lazy_stats){ .size = sizeof s,
                                    .steps = l->counts.steps,
                                    .uploads = l->counts.uploads,
                                    .own = l->counts.own,
                                    .silent = l->counts.silent,
                                    .latest = l->counts.latest,
                                    .norms_bytes = l->counts.norms_bytes,
                                    .upload_bytes = l->counts.upload_bytes,
                                    .norm = l->counts.norm,
                                    .rhs = l->counts.rhs };
    bny_sized_give(out, &s, sizeof s);
    return 0;
}

/* ---- state ---- */

/* The values that must be the same in the object that loads it. */
struct head {
    uint64_t count, history, codec_bytes;
    int64_t rule, rank, n, has_last;
    double xi;
};

static struct head head_of(const struct banyan_lazy *l)
{
    return (struct head){ .count = l->count,
                          .history = (uint64_t)l->cfg.history,
                          .codec_bytes = l->state ? banyan_codec_state_bytes(l->state) : 0,
                          .rule = (int64_t)l->cfg.rule,
                          .rank = l->rank,
                          .n = l->n,
                          .has_last = l->last != NULL,
                          .xi = l->cfg.xi };
}

/* Behind the head. codec: the codec's own saved state, of h->codec_bytes. */
static void ordered_walk(struct bny_saved *s, struct banyan_lazy *l, const struct head *h,
                         void *codec)
{
    bny_saved_bytes(s, &l->cfg.alpha, sizeof l->cfg.alpha);
    bny_saved_bytes(s, &l->counts, sizeof l->counts);
    bny_saved_bytes(s, &l->moves, sizeof l->moves);
    bny_saved_bytes(s, l->moved, (size_t)l->cfg.history * sizeof *l->moved);
    bny_saved_bytes(s, l->sent, l->count * sizeof *l->sent);
    bny_saved_bytes(s, l->sum, l->count * sizeof *l->sum);
    if (l->last)
        bny_saved_bytes(s, l->last, l->count * sizeof *l->last);
    bny_saved_bytes(s, codec, h->codec_bytes);
}

size_t banyan_lazy_bytes(const struct banyan_lazy *l)
{
    struct bny_saved s;
    struct head h;
    size_t bytes = 0;

    if (bny_object_check(l, KIND, "banyan_lazy_bytes") < 0)
        return 0;
    h = head_of(l);
    bny_saved_count(&s, KIND);
    bny_saved_bytes(&s, &h, sizeof h);
    ordered_walk(&s, (struct banyan_lazy *)(uintptr_t)l, &h, NULL);
    bny_saved_end(&s, &bytes);
    return bytes;
}

int banyan_lazy_save(const struct banyan_lazy *l, void *buf, size_t cap)
{
    struct bny_saved s;
    struct head h;
    void *codec = NULL;
    int rc = bny_object_check(l, KIND, "banyan_lazy_save");

    if (rc < 0)
        return rc;
    h = head_of(l);
    if (h.codec_bytes) {
        codec = malloc(h.codec_bytes);
        rc = codec ? banyan_codec_state_save(l->state, codec, h.codec_bytes)
                   : bny_fail(BANYAN_ENOMEM, "no memory to save a codec's state");
    }
    if (rc == 0)
        rc = bny_saved_write(&s, KIND, buf, cap, banyan_lazy_bytes(l));
    if (rc == 0) {
        bny_saved_bytes(&s, &h, sizeof h);
        ordered_walk(&s, (struct banyan_lazy *)(uintptr_t)l, &h, codec);
        rc = bny_saved_end(&s, NULL);
    }
    free(codec);
    return rc;
}

/* Are the bytes behind the head as many as walk() takes? */
static int check_head(const struct banyan_lazy *l, const struct head *h, size_t bytes)
{
    struct head mine = head_of(l);

    if (h->rank != mine.rank || h->n != mine.n)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_lazy_load: this is the state of rank %lld of %lld, here is "
                        "rank %d of %d",
                        (long long)h->rank, (long long)h->n, l->rank, l->n);
    if (h->count != mine.count || h->history != mine.history || h->rule != mine.rule ||
        h->has_last != mine.has_last || h->xi != mine.xi || !h->codec_bytes != !l->state)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_lazy_load: the state is of another gradient or other settings "
                        "(%llu elements, history %llu); create the object as it was",
                        (unsigned long long)h->count, (unsigned long long)h->history);
    if (bytes - h->codec_bytes != banyan_lazy_bytes(l) - mine.codec_bytes)
        return bny_fail(BANYAN_EINVAL, "banyan_lazy_load: the state's length does not fit");
    return 0;
}

int banyan_lazy_load(struct banyan_lazy *l, const void *buf, size_t bytes)
{
    struct bny_saved s;
    struct head h;
    void *codec = NULL;
    int rc = bny_object_check(l, KIND, "banyan_lazy_load");

    if (rc == 0)
        rc = bny_saved_read(&s, KIND, buf, bytes, "banyan_lazy_load");
    if (rc)
        return rc;
    bny_saved_bytes(&s, &h, sizeof h);
    rc = s.short_of ? bny_fail(BANYAN_EINVAL, "banyan_lazy_load: the state is too short")
                    : check_head(l, &h, bytes);
    if (rc)
        return rc;
    if (h.codec_bytes) { /* which is at the end, and can be refused still */
        codec = malloc(h.codec_bytes);
        if (!codec)
            return bny_fail(BANYAN_ENOMEM, "no memory to load a codec's state");
        memcpy(codec, (const char *)buf + bytes - h.codec_bytes, h.codec_bytes);
        rc = banyan_codec_state_load(l->state, codec, h.codec_bytes);
    }
    if (rc == 0) {
        ordered_walk(&s, l, &h, codec);
        rc = bny_saved_end(&s, NULL);
    }
    free(codec);
    return rc;
}
