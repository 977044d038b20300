/* SPDX-License-Identifier: BSD-3-Clause */
/* Stale and K-of-n updates: a ring of exchanges, each waited for `delay` steps after it began.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/err.h"
#include "base/sized.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/settings.h"
#include "training/tensors.h"

#define KIND 0x454c5453u /* "STLE" */

enum { SETTINGS = 4, DELAY_MAX = 64 };

/* One exchange of the ring. */
struct slot {
    float *sum; /* [count] what entered, then its sum over ranks */
    struct banyan_request *
        *with;    /* [turns] for each set of ranks, made when it is first used */
    uint64_t bad; /* the first tensor of what entered here that is not finite, or n */
    int turn;     /* which set */
    int under_way;
};

struct banyan_stale {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_stale_config cfg;
    char *schedule;
    struct bny_tensors tensors;
    int n, rank;
    int turns;         /* sets of ranks before they repeat */
    uint8_t *set;      /* [n] scratch */
    struct slot *slot; /* [delay + 1] */
    float *waits;      /* [count] late: what was left out */
    uint64_t steps;
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_stale);

static int stale_settings(struct banyan_stale *s, const struct banyan_stale_config *cfg)
{
    struct banyan_stale_config *c = &s->cfg;
    int rc, a, b;

    *c = (struct banyan_stale_config)BANYAN_STALE_CONFIG_INIT;
    rc = bny_sized_take(c, sizeof *c, cfg, "banyan_stale_create", "BANYAN_STALE_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (c->delay < 0 || c->delay > DELAY_MAX || c->k < 0)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_stale_create: delay is %d (0 to %d), k %d (0: all, or more)",
                        c->delay, DELAY_MAX, c->k);
    c->k = c->k && c->k < s->n ? c->k : s->n;
    c->late = c->late != 0;
    for (a = s->n, b = c->k; b;) { /* Euclid */
        int rest = a % b;

        a = b;
        b = rest;
    }
    s->turns = s->n / a;
    if (c->schedule) {
        s->schedule = strdup(c->schedule);
        if (!s->schedule)
            return bny_fail(BANYAN_ENOMEM, "no memory for stale updates");
    }
    c->schedule = s->schedule;
    return 0;
}

static void stale_list(const struct banyan_stale *s, struct bny_setting *out)
{
    out[0] = (struct bny_setting){ "delay", (uint64_t)s->cfg.delay };
    out[1] = (struct bny_setting){ "k", (uint64_t)s->cfg.k };
    out[2] = (struct bny_setting){ "late", (uint64_t)s->cfg.late };
    out[3] =
        (struct bny_setting){ "schedule", bny_setting_of_text(s->schedule ? s->schedule : "") };
}

static int stale_allocate(struct banyan_stale *s)
{
    size_t count = s->tensors.count + 1;
    int good;

    s->set = calloc((size_t)s->n, 1);
    s->slot = calloc((size_t)s->cfg.delay + 1, sizeof *s->slot);
    s->waits = calloc(count, sizeof *s->waits);
    good = s->set && s->slot && s->waits;
    for (int i = 0; i <= s->cfg.delay && good; i++) {
        s->slot[i].sum = calloc(count, sizeof *s->slot[i].sum);
        s->slot[i].with = calloc((size_t)s->turns, sizeof *s->slot[i].with);
        s->slot[i].bad = s->tensors.n;
        good = s->slot[i].sum && s->slot[i].with;
    }
    return good ? 0
                : bny_fail(BANYAN_ENOMEM, "no memory for %d gradients of %zu elements",
                           s->cfg.delay + 1, count);
}

/* The request of a slot for the ranks of a turn. */
static int request(struct banyan_stale *s, struct slot *slot, int turn)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;

    if (slot->with[turn])
        return 0;
    memset(s->set, 0, (size_t)s->n);
    for (int i = 0; i < s->cfg.k; i++)
        s->set[((long)turn * s->cfg.k + i) % s->n] = 1;
    o.codec = "none";
    o.schedule = s->schedule;
    inputs.participants = s->cfg.k < s->n ? s->set : NULL;
    o.reduce = &inputs;
    return banyan_allreduce_init(slot->sum, slot->sum, s->tensors.count, BANYAN_F32, BANYAN_SUM,
                                 s->comm, &o, &slot->with[turn]);
}

int banyan_stale_create(struct banyan_stale **out, struct banyan_comm *comm,
                        const struct banyan_tensor *tensors, size_t n,
                        const struct banyan_stale_config *cfg)
{
    struct bny_setting set[SETTINGS];
    struct banyan_stale *s;
    int rc;

    s = bny_object_new(&handles, out, comm, "banyan_stale_create", &rc);
    if (!s)
        return rc;
    s->comm = comm;
    s->n = banyan_comm_count(comm);
    s->rank = banyan_comm_rank(comm);
    rc = stale_settings(s, cfg);
    if (rc == 0)
        rc = bny_tensors_copy(&s->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0)
        rc = stale_allocate(s);
    if (rc == 0)
        rc = request(s, &s->slot[0], 0); /* tells a schedule that cannot be */
    rc = bny_all_can(comm, rc, "banyan_stale_create");
    if (rc == 0)
        rc = bny_tensors_agree(&s->tensors, comm);
    stale_list(s, set);
    if (rc == 0)
        rc = bny_settings_agree(comm, set, SETTINGS, "banyan_stale_create");
    if (rc < 0)
        banyan_stale_free(s);
    else
        *out = s;
    return rc;
}

int banyan_stale_free(struct banyan_stale *s)
{
    int rc = bny_object_may_free(s, KIND, "banyan_stale_free");

    if (rc <= 0)
        return rc;
    for (int i = 0; i <= s->cfg.delay && s->slot; i++) {
        struct slot *slot = &s->slot[i];

        if (slot->under_way)
            banyan_wait(slot->with[slot->turn], -1);
        for (int t = 0; t < s->turns && slot->with; t++)
            banyan_request_free(slot->with[t]);
        free(slot->with);
        free(slot->sum);
    }
    bny_tensors_free(&s->tensors);
    free(s->schedule);
    free(s->set);
    free(s->slot);
    free(s->waits);
    bny_handle_free(&handles, &s->object.handle);
    return 0;
}

/* ---- a step ---- */

/* Does this rank's gradient count in a turn? */
static int takes_part(const struct banyan_stale *s, int turn)
{
    long first = (long)turn * s->cfg.k % s->n;

    return (s->rank - first + s->n) % s->n < s->cfg.k;
}

/* The gradients enter, with what waits. */
static int stale_begin(struct banyan_stale *s, struct slot *slot)
{
    int in, rc;

    slot->turn = (int)(s->steps % (uint64_t)s->turns);
    in = takes_part(s, slot->turn);
    rc = request(s, slot, slot->turn);
    if (rc < 0)
        return rc;
    bny_tensors_get(&s->tensors, slot->sum);
    for (size_t i = 0; i < s->tensors.count && s->cfg.late; i++) {
        float x = slot->sum[i] + s->waits[i];

        slot->sum[i] = x;
        s->waits[i] = in ? 0 : x;
    }
    slot->bad = in ? bny_tensors_nonfinite(&s->tensors, slot->sum) : s->tensors.n;
    rc = banyan_start(slot->with[slot->turn]);
    slot->under_way = rc == 0;
    return rc;
}

static int stale_end(struct slot *slot)
{
    if (!slot->under_way)
        return 0;
    slot->under_way = 0;
    return banyan_wait(slot->with[slot->turn], -1);
}

/* The exchange returns the current gradients. */
static int use(struct banyan_stale *s, struct slot *slot)
{
    float part = 1 / (float)(s->cfg.late ? s->n : s->cfg.k);

    if (bny_tensors_nonfinite(&s->tensors, slot->sum) < s->tensors.n)
        return bny_tensors_blame(&s->tensors, s->comm, (size_t)slot->bad, "gradient");
    for (size_t i = 0; i < s->tensors.count; i++)
        slot->sum[i] *= part;
    bny_tensors_put(&s->tensors, slot->sum);
    return 1;
}

int banyan_stale_step(struct banyan_stale *s)
{
    uint64_t ring, delay;
    struct slot *old;
    int rc;

    rc = bny_object_enter(s, KIND, "banyan_stale_step");
    if (rc < 0)
        return rc;
    delay = (uint64_t)s->cfg.delay;
    ring = delay + 1;
    rc = stale_begin(s, &s->slot[s->steps % ring]);
    if (rc < 0)
        return rc;
    if (s->steps++ < delay) {
        for (size_t i = 0; i < s->tensors.n; i++)
            memset(s->tensors.at[i].grad, 0, s->tensors.at[i].bytes);
        rc = banyan_progress(s->comm);
        return rc < 0 ? rc : 0;
    }
    old = &s->slot[(s->steps - ring) % ring];
    rc = stale_end(old);
    return rc < 0 ? rc : use(s, old);
}

int banyan_stale_settle(struct banyan_stale *s)
{
    int rc = 0;

    rc = bny_object_enter(s, KIND, "banyan_stale_settle");
    if (rc < 0)
        return rc;
    for (int i = 0; i <= s->cfg.delay && rc == 0; i++)
        rc = stale_end(&s->slot[i]);
    return rc;
}

/* ---- state ---- */

static uint64_t stale_hash(const struct banyan_stale *s)
{
    struct bny_setting set[SETTINGS];

    stale_list(s, set);
    return bny_settings_hash(set, SETTINGS, s->tensors.hash ^ (uint64_t)s->n << 32);
}

static void stale_walk(struct bny_saved *to, struct banyan_stale *s)
{
    size_t bytes = s->tensors.count * sizeof(float);

    bny_saved_bytes(to, &s->steps, sizeof s->steps);
    if (s->cfg.late)
        bny_saved_bytes(to, s->waits, bytes);
    for (int i = 0; i <= s->cfg.delay && s->cfg.delay; i++) {
        bny_saved_bytes(to, &s->slot[i].bad, sizeof s->slot[i].bad);
        bny_saved_bytes(to, s->slot[i].sum, bytes);
    }
}

/* May it be saved, or loaded? */
static int is_settled(const struct banyan_stale *s, const char *what)
{
    int rc = bny_object_check(s, KIND, what);

    for (int i = 0; rc == 0 && i <= s->cfg.delay; i++)
        if (s->slot[i].under_way)
            return bny_fail(BANYAN_EBUSY,
                            "%s: an exchange is under way; call banyan_stale_settle on all "
                            "ranks first",
                            what);
    return rc;
}

size_t banyan_stale_bytes(const struct banyan_stale *s)
{
    struct bny_saved to;

    if (bny_object_check(s, KIND, "banyan_stale_bytes") < 0)
        return 0;
    bny_saved_count(&to, KIND);
    bny_saved_bytes(&to, NULL, sizeof(uint64_t));
    stale_walk(&to, (struct banyan_stale *)(uintptr_t)s); /* counting changes nothing */
    return to.len;
}

int banyan_stale_save(const struct banyan_stale *s, void *buf, size_t cap)
{
    struct bny_saved to;
    uint64_t of;
    int rc = is_settled(s, "banyan_stale_save");

    if (rc == 0)
        rc = bny_saved_write(&to, KIND, buf, cap, banyan_stale_bytes(s));
    if (rc < 0)
        return rc;
    of = stale_hash(s);
    bny_saved_bytes(&to, &of, sizeof of);
    stale_walk(&to, (struct banyan_stale *)(uintptr_t)s);
    return bny_saved_end(&to, NULL);
}

int banyan_stale_load(struct banyan_stale *s, const void *buf, size_t bytes)
{
    struct bny_saved from;
    uint64_t of;
    int rc = is_settled(s, "banyan_stale_load");

    if (rc == 0)
        rc = bny_saved_read(&from, KIND, buf, bytes, "banyan_stale_load");
    if (rc < 0)
        return rc;
    bny_saved_bytes(&from, &of, sizeof of);
    if (bytes != banyan_stale_bytes(s) || of != stale_hash(s))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_stale_load: the state is of other tensors or settings");
    stale_walk(&from, s);
    return bny_saved_end(&from, NULL);
}
