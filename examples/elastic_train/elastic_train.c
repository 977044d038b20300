/* SPDX-License-Identifier: BSD-3-Clause */
/* Training that survives: the digits network on several ranks, of which any may die at any
 * time. Those who are left go back to the last step that all agreed on, share the examples
 * among themselves, and go on; ranks that are started again join them. The parameters that they
 * go back to, and give to those who come, lie in memory; there is no checkpoint.
 *
 *     banyan_run --keep-going -n 4 elastic_train --die 2@30 --die 0@100
 *     banyan_run --restart 1 -n 8 elastic_train --die 1@30 --die 2@60 --die 5@60 --wait-at 100
 *     elastic_train -P 4 --codec topk:delta=0.01 --agree-every 5 --die 3@42 */
#include <banyan/banyan.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data.h"
#include "exchange.h"
#include "job.h"
#include "network.h"

enum { HIDDEN = 32, DEATHS_MAX = 64, TRIES_MAX = 3, JOIN_S = 10 };

struct options {
    int epochs, batch, nlocal, agree_every, wait_at, json, ndeaths;
    struct {
        int rank, step;
    } deaths[DEATHS_MAX];
    uint64_t seed;
    float rate, momentum;
    const char *data, *codec;
};

/* The last step that all agreed on. */
struct kept {
    int step;
    float *param, *velocity;         /* [net.n] */
    uint32_t state_step[LAYERS_MAX]; /* agreed each step: states are undone */
    void *state[LAYERS_MAX];         /* less often: states are loaded */
    size_t state_bytes[LAYERS_MAX];
};

struct result {
    double loss, train_accuracy, test_accuracy;
    uint64_t checksum; /* of the parameters */
};

struct trainer {
    struct options opt;
    struct banyan_comm *comm;
    int rank, nranks;                   /* in comm */
    int world_rank, nworld;             /* at the start */
    int32_t members[2 * JOB_RANKS_MAX]; /* rank at the start and step of each of comm */
    struct example *all;
    int ntrain, ntest; /* all[0..ntrain) train, the rest test */
    int *order, order_epoch;
    struct network net;
    struct exchange ex;
    float *velocity, *grad; /* [net.n]; behind the gradient lies the loss */
    int step, steps, undone, tries;
    int fresh;                   /* came, and has no parameters yet */
    int joined;                  /* so many came */
    double failed_at, longest_s; /* from a failure until all who are left have met */
    struct kept kept;
    struct result result;
};

/* ---- a step ---- */

static void die_here(const struct trainer *t)
{
    for (int i = 0; i < t->opt.ndeaths && banyan_job_restarts() == 0; i++)
        if (t->opt.deaths[i].rank == t->world_rank && t->opt.deaths[i].step == t->step)
            kill(getpid(), SIGKILL);
}

/* The batch of a step depends on its number alone, so that a step can be done again, by others.
 * Returns the number of its examples. */
static int batch_of(struct trainer *t, int step, const int **batch)
{
    int per_epoch = (t->ntrain + t->opt.batch - 1) / t->opt.batch;
    int epoch = step / per_epoch, at = step % per_epoch * t->opt.batch;

    if (epoch != t->order_epoch) {
        uint64_t state = t->opt.seed + ((uint64_t)epoch << 32);

        for (int i = 0; i < t->ntrain; i++)
            t->order[i] = i;
        shuffle(t->order, t->ntrain, &state);
        t->order_epoch = epoch;
    }
    *batch = t->order + at;
    return t->ntrain - at < t->opt.batch ? t->ntrain - at : t->opt.batch;
}

/* Of n examples this rank takes every nranks-th: however many ranks are left, all are taken. */
static int one_step(struct trainer *t)
{
    const int *batch;
    int n = batch_of(t, t->step, &batch), rc;

    memset(t->grad, 0, (t->net.n + 1) * sizeof(float));
    for (int i = t->rank; i < n; i += t->nranks)
        t->grad[t->net.n] += network_gradient(&t->net, &t->all[batch[i]], t->grad);
    rc = exchange_sum_coded(&t->ex, t->grad);
    die_here(t); /* where what the codec did has to be undone */
    if (rc == 0)
        rc = exchange_sum_rest(&t->ex, t->grad, t->net.n);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < t->net.n; i++) {
        t->velocity[i] = t->opt.momentum * t->velocity[i] + t->grad[i] / (float)n;
        t->net.param[i] -= t->opt.rate * t->velocity[i];
    }
    t->step++;
    return 0;
}

/* Loss and right answers over all examples, of which each rank takes its share. */
static int evaluate(struct trainer *t)
{
    double sum[3] = { 0 };
    int same, rc;

    for (int i = t->rank; i < t->ntrain + t->ntest; i += t->nranks) {
        const struct example *e = &t->all[i];

        sum[i < t->ntrain ? 1 : 2] += network_predict(&t->net, e) == e->label;
        if (i < t->ntrain)
            sum[0] += (double)network_gradient(&t->net, e, t->grad);
    }
    rc = banyan_allreduce(sum, sum, 3, BANYAN_F64, BANYAN_SUM, t->comm, NULL);
    if (rc == 0)
        rc = job_same(t->comm, t->net.param, t->net.n, &same);
    if (rc < 0)
        return rc;
    if (!same) {
        fprintf(stderr, "elastic_train: the ranks' networks differ\n");
        return -BANYAN_EMISMATCH;
    }
    t->result = (struct result){ sum[0] / t->ntrain, sum[1] / t->ntrain, sum[2] / t->ntest, 0 };
    for (size_t i = 0; i < t->net.n; i++) {
        uint32_t word;

        memcpy(&word, &t->net.param[i], sizeof word);
        t->result.checksum = t->result.checksum * 1099511628211u + word;
    }
    return 0;
}

/* ---- what all agreed on ---- */

/* Only the latest operation can be undone: where several lie between two agreements, the whole
 * state is saved. It grows with what the codec keeps. */
static int keep_state(struct trainer *t, int l)
{
    struct kept *k = &t->kept;
    size_t bytes = banyan_codec_state_bytes(t->ex.state[l]);
    void *room;

    if (t->opt.agree_every == 1)
        return banyan_codec_state_step(t->ex.state[l], &k->state_step[l]);
    room = realloc(k->state[l], bytes);
    if (!room)
        return -BANYAN_ENOMEM;
    k->state[l] = room;
    k->state_bytes[l] = bytes;
    return banyan_codec_state_save(t->ex.state[l], room, bytes);
}

static int keep(struct trainer *t)
{
    int rc = 0;

    t->tries = 0;
    t->kept.step = t->step;
    memcpy(t->kept.param, t->net.param, t->net.n * sizeof(float));
    memcpy(t->kept.velocity, t->velocity, t->net.n * sizeof(float));
    for (int l = 0; l < t->ex.ncoded && rc == 0; l++)
        rc = keep_state(t, l);
    return rc;
}

static int go_back(struct trainer *t)
{
    struct kept *k = &t->kept;
    int rc = 0;

    if (t->fresh)
        return 0;
    t->undone += t->step - k->step;
    t->step = k->step;
    memcpy(t->net.param, k->param, t->net.n * sizeof(float));
    memcpy(t->velocity, k->velocity, t->net.n * sizeof(float));
    for (int l = 0; l < t->ex.ncoded && rc == 0; l++)
        rc = t->opt.agree_every == 1
                 ? banyan_codec_state_undo(t->ex.state[l], k->state_step[l])
                 : banyan_codec_state_load(t->ex.state[l], k->state[l], k->state_bytes[l]);
    return rc;
}

/* A newcomer loads a state that another rank has saved, for what all ranks have alike. The
 * residuals are not its own: it has none. */
static int take_state(struct trainer *t, int l, const void *saved, size_t bytes)
{
    struct banyan_codec_state *st = t->ex.state[l], *other;
    size_t n = (size_t)(t->ex.shape[l][0] * t->ex.shape[l][1]);
    int rc = banyan_codec_state_load(st, saved, bytes);

    if (rc == 0)
        rc = banyan_codec_state_create(&other, n, 0);
    if (rc < 0)
        return rc;
    rc = banyan_codec_state_move(other, 0, st, 0, n);
    banyan_codec_state_free(other);
    return rc;
}

static int share_state(struct trainer *t, int l, int root)
{
    uint64_t bytes = banyan_codec_state_bytes(t->ex.state[l]);
    void *room;
    int rc = banyan_broadcast(&bytes, 1, BANYAN_U64, root, t->comm, NULL);

    if (rc < 0)
        return rc;
    room = malloc(bytes);
    if (!room)
        return -BANYAN_ENOMEM;
    if (t->rank == root)
        rc = banyan_codec_state_save(t->ex.state[l], room, bytes);
    if (rc == 0)
        rc = banyan_broadcast(room, bytes, BANYAN_U8, root, t->comm, NULL);
    if (rc == 0 && t->fresh)
        rc = take_state(t, l, room, bytes);
    free(room);
    return rc;
}

/* root gives newcomers what it has; it stands where all stood who agreed. */
static int share(struct trainer *t, int root)
{
    int32_t at[3] = { t->step, t->undone, t->joined };
    int rc = banyan_broadcast(at, 3, BANYAN_I32, root, t->comm, NULL);

    if (rc == 0)
        rc = banyan_broadcast(t->net.param, t->net.n, BANYAN_F32, root, t->comm, NULL);
    if (rc == 0)
        rc = banyan_broadcast(t->velocity, t->net.n, BANYAN_F32, root, t->comm, NULL);
    for (int l = 0; l < t->ex.ncoded && rc == 0; l++)
        rc = share_state(t, l, root);
    if (rc < 0 || !t->fresh)
        return rc;
    t->fresh = 0;
    t->step = at[0];
    t->undone = at[1];
    t->joined = at[2];
    return keep(t);
}

static int make_kept(struct trainer *t)
{
    int rc = 0;

    t->kept.param = malloc(t->net.n * sizeof(float));
    t->kept.velocity = malloc(t->net.n * sizeof(float));
    if (!t->kept.param || !t->kept.velocity)
        return -BANYAN_ENOMEM;
    for (int l = 0; l < t->ex.ncoded && rc == 0 && t->opt.agree_every == 1; l++)
        rc = banyan_codec_state_keep_undo(t->ex.state[l], 1);
    return rc;
}

/* ---- the loop ---- */

/* Mistakes of a program, which would happen again, or what this rank alone cannot do: it ends,
 * and the others go on without it. */
static int is_final(const struct trainer *t, int rc)
{
    int blamed;

    switch (rc) {
    case 0:
    case -BANYAN_ERANKDEAD:
    case -BANYAN_EABORTED:
    case -BANYAN_ETIMEDOUT: return 0;
    case -BANYAN_EPROTO:
    case -BANYAN_ENOMEM:
    case -BANYAN_ESYSTEM: /* the library has told all whose it is */
        return banyan_async_error(t->comm, &blamed, NULL, 0) == 0 || blamed == t->rank;
    default: return 1;
    }
}

static int note_failure(struct trainer *t, int rc)
{
    if (rc < 0 && t->failed_at <= 0)
        t->failed_at = job_now();
    return rc;
}

static void say_met(struct trainer *t)
{
    double took = t->failed_at > 0 ? job_now() - t->failed_at : 0;

    t->longest_s = took > t->longest_s ? took : t->longest_s;
    if (t->rank == 0 && !t->opt.json && t->failed_at > 0)
        printf("%d of %d ranks go on from step %d, %.1f ms after the failure:", t->nranks,
               t->nworld, t->step, took * 1e3);
    else if (t->rank == 0 && !t->opt.json)
        printf("%d of %d ranks go on from step %d, as some came:", t->nranks, t->nworld,
               t->step);
    t->failed_at = 0;
    if (t->rank > 0 || t->opt.json)
        return;
    for (int r = 0; r < t->nranks; r++)
        printf(" %d", t->members[2 * r]);
    printf("\n");
    fflush(stdout);
}

/* Those who are there tell each other who they are. All stand at the same step, as all got the
 * same from banyan_comm_agree; but those who came, at -1. */
static int meet(struct trainer *t)
{
    int32_t mine[2] = { t->world_rank, t->fresh ? -1 : t->step };
    int rc = banyan_allgather(mine, t->members, 2, BANYAN_I32, t->comm, NULL);
    int root = -1, fresh = 0;

    for (int r = 0; r < t->nranks && rc == 0; r++) {
        int step = t->members[2 * r + 1];

        fresh += step < 0;
        if (step >= 0 && root < 0)
            root = r;
        if (step >= 0 && step != t->members[2 * root + 1]) {
            fprintf(stderr, "elastic_train: rank %d is at step %d, rank %d at step %d\n",
                    t->members[2 * root], t->members[2 * root + 1], t->members[2 * r], step);
            return -BANYAN_EMISMATCH;
        }
    }
    if (rc == 0 && root < 0) {
        fprintf(stderr, "elastic_train: all who had the parameters have died\n");
        return -BANYAN_EMISMATCH;
    }
    if (rc == 0 && fresh)
        rc = share(t, root);
    if (rc == 0)
        say_met(t);
    return note_failure(t, rc);
}

/* Some steps, or what comes behind the last. Returns 0 or the error of an operation. */
static int some_steps(struct trainer *t)
{
    int rc = 0;

    if (t->step == t->opt.wait_at && t->nranks < t->nworld)
        return 0; /* until all are back */
    if (t->step == t->steps)
        return note_failure(t, evaluate(t));
    for (int i = 0; i < t->opt.agree_every && t->step < t->steps && rc == 0; i++)
        rc = one_step(t);
    return note_failure(t, rc);
}

static void go_on_with(struct trainer *t, struct banyan_comm *next)
{
    t->comm = t->ex.comm = next;
    t->rank = banyan_comm_rank(next);
    t->nranks = banyan_comm_count(next);
}

/* On with those who are left; their examples are shared out anew by the new numbers. */
static int shrink(struct trainer *t)
{
    struct banyan_comm *next;
    int before = t->nranks, rc;

    note_failure(t, -BANYAN_ERANKDEAD); /* where all steps went well that it had begun */
    rc = banyan_comm_shrink(t->comm, &next);
    if (rc < 0)
        return rc;
    banyan_comm_destroy(t->comm);
    go_on_with(t, next);
    t->tries = t->nranks == before ? t->tries + 1 : 0;
    return t->tries > TRIES_MAX ? -BANYAN_ETIMEDOUT : 0; /* nobody died, and still it fails */
}

/* Lets so many in that wait. Where that fails all go on without them: the communicator is as it
 * was, or has failed, which the next operation tells. Returns 1 when they are there. */
static int grow(struct trainer *t, int newcomers)
{
    struct banyan_config cfg = BANYAN_CONFIG_INIT;
    struct banyan_comm *next;
    struct banyan_id id;
    int makes = t->rank == 0 && banyan_comm_grow_id(t->comm, &id) == 0;

    cfg.init_timeout_s = JOIN_S;
    if (banyan_comm_grow(t->comm, makes ? &id : NULL, newcomers, &cfg, &next) < 0) {
        fprintf(stderr, "elastic_train: not grown: %s\n", banyan_last_error());
        return 0;
    }
    banyan_comm_destroy(t->comm);
    go_on_with(t, next);
    t->joined += newcomers;
    return 1;
}

/* What a rank says to the others after a round, for banyan_comm_agree: bit 0, that it went
 * well; above it as many ones as processes wait to join. The AND of all has as many as all
 * see. */
static uint64_t say(int well, int waiting)
{
    return (uint64_t)well | (((uint64_t)1 << (waiting < 60 ? waiting : 60)) - 1) << 1;
}

static int newcomers_in(uint64_t word)
{
    return __builtin_popcountll(word >> 1);
}

/* Rounds, after each of which all who live agree on whether it went well with everybody. If so,
 * its end is what is kept, and who waits may join; if not, all go back, and on with those who
 * are left. */
static int train(struct trainer *t)
{
    int met = !t->fresh, done = 0, rc = met ? keep(t) : 0;

    while (!done && rc == 0) {
        int last = t->step == t->steps, failed = met ? 0 : meet(t), well, dead;
        uint64_t word;

        if (!failed)
            failed = some_steps(t);
        if (is_final(t, failed))
            return failed;
        word = say(!failed, banyan_job_waiting());
        dead = banyan_comm_agree(t->comm, &word, NULL, 0); /* now it is everybody's */
        if (dead < 0 && dead != -BANYAN_ETIMEDOUT) /* who does not come is left out below */
            return dead;
        well = dead >= 0 && (word & 1);
        met = well && dead == 0;
        done = met && last;
        rc = well ? keep(t) : go_back(t);
        if (rc == 0 && !met)
            rc = shrink(t);
        else if (rc == 0 && !done && newcomers_in(word) > 0)
            met = !grow(t, newcomers_in(word));
    }
    return rc;
}

/* ---- around it ---- */

/* Ranks of the start that are no members any more. */
static void say_lost(const struct trainer *t, const char *between)
{
    const char *before = "";

    for (int w = 0; w < t->nworld; w++) {
        int at = 0;

        while (at < t->nranks && t->members[2 * at] != w)
            at++;
        if (at < t->nranks)
            continue;
        printf("%s%d", before, w);
        before = between;
    }
}

static void say_result(const struct trainer *t)
{
    const struct result *r = &t->result;

    printf(t->opt.json ? "{\"ranks\": %d, \"left\": %d, \"joined\": %d, \"lost\": ["
                       : "%d ranks began, %d are left, %d came later; lost ranks: ",
           t->nworld, t->nranks, t->joined);
    say_lost(t, ", ");
    printf(t->opt.json ? "], \"steps\": %d, \"undone\": %d, \"loss\": %.9g, "
                         "\"train_accuracy\": %.4f, \"test_accuracy\": %.4f, "
                         "\"checksum\": \"%016llx\", \"recovery_ms\": %.1f}\n"
                       : "\n%d steps and %d undone, loss %.6f, train accuracy %.4f, test "
                         "accuracy %.4f, parameters %016llx, longest recovery %.1f ms\n",
           t->steps, t->undone, r->loss, r->train_accuracy, r->test_accuracy,
           (unsigned long long)r->checksum, t->longest_s * 1e3);
}

static int make(struct trainer *t)
{
    int n = digits_load(t->opt.data, &t->all);

    t->world_rank = t->rank = banyan_comm_rank(t->comm);
    t->nworld = t->nranks = banyan_comm_count(t->comm);
    t->fresh = banyan_job_restarts() > 0;
    if (t->fresh) { /* its place at the start, which its launcher knows */
        t->world_rank = atoi(getenv("BANYAN_RANK"));
        t->nworld = atoi(getenv("BANYAN_WORLD_SIZE"));
    }
    if (n < 10 || t->nworld > JOB_RANKS_MAX) {
        fprintf(stderr, "elastic_train: needs 10 images, has %d, and at most %d ranks\n", n,
                JOB_RANKS_MAX);
        return -1;
    }
    for (int r = 0; r < t->nranks; r++)
        t->members[2 * r] = r;
    t->ntest = n / 5;
    t->ntrain = n - t->ntest;
    t->steps = t->opt.epochs * ((t->ntrain + t->opt.batch - 1) / t->opt.batch);
    t->order = malloc((size_t)t->ntrain * sizeof *t->order);
    t->order_epoch = -1;
    t->net.nlayers = 2;
    memcpy(t->net.width, (int[]){ INPUTS, HIDDEN, CLASSES }, 3 * sizeof(int));
    if (!t->order || network_init(&t->net, t->opt.seed) != 0)
        return -1;
    t->velocity = calloc(t->net.n, sizeof(float));
    t->grad = malloc((t->net.n + 1) * sizeof(float));
    return t->velocity && t->grad ? 0 : -1;
}

static void discard(struct trainer *t)
{
    exchange_free(&t->ex);
    for (int l = 0; l < LAYERS_MAX; l++)
        free(t->kept.state[l]);
    free(t->kept.param);
    free(t->kept.velocity);
    free(t->net.param);
    free(t->velocity);
    free(t->grad);
    free(t->order);
    free(t->all);
}

static int run(struct trainer *t)
{
    int rc;

    if (make(t) < 0) {
        fprintf(stderr, "elastic_train: rank %d cannot begin\n", t->rank);
        return 1;
    }
    rc = exchange_init(&t->ex, t->comm, &t->net, t->opt.codec, 1, t->opt.seed);
    if (rc == 0)
        rc = make_kept(t);
    if (rc == 0)
        rc = train(t);
    if (rc < 0) {
        fprintf(stderr, "elastic_train: rank %d: %s: %s\n", t->world_rank, banyan_strerror(rc),
                banyan_last_error());
        return 1;
    }
    if (t->rank == 0)
        say_result(t);
    return 0;
}

/* Who dies while all say farewell takes nothing with it; a child that was killed is one of the
 * lost. */
static int leave(struct trainer *t, pid_t *children, int status)
{
    if (status != 0)
        banyan_comm_destroy(t->comm);
    else if (banyan_comm_finalize(t->comm) < 0)
        fprintf(stderr, "elastic_train: at the end: %s\n", banyan_last_error());
    for (int r = 1; r < JOB_RANKS_MAX && children[r]; r++) {
        int ended;

        if (waitpid(children[r], &ended, 0) != children[r] ||
            (WIFEXITED(ended) && WEXITSTATUS(ended) != 0))
            status = 1;
    }
    return status;
}

/* ---- options ---- */

static const char usage[] =
    "usage: elastic_train [-P RANKS] [--codec NAME] [--agree-every STEPS] [--die "
    "RANK@STEP]...\n"
    "                     [--epochs N] [--batch N] [--rate X] [--momentum X] [--seed N]\n"
    "                     [--wait-at STEP] [--data FILE] [--json]\n"
    "Trains on handwritten digits, and goes on with the ranks that are left when some die. "
    "Start\n"
    "it by banyan_run --keep-going, by banyan_run --restart, where ranks that died come back,\n"
    "or with -P, where this process is rank 0 and starts the others.\n"
    "--die RANK@STEP     this rank (as numbered at the start) kills itself in this step\n"
    "--agree-every STEPS ask after so many steps whether they went well (1); where not, these\n"
    "                    are done again\n"
    "--wait-at STEP      before this step wait until all ranks are back (banyan_run "
    "--restart)\n"
    "--codec NAME        of matrices from 1024 elements on, with error feedback\n";

__attribute__((noreturn)) static void wrong(const char *option, const char *value)
{
    fprintf(stderr, "elastic_train: %s %s is no value that it can have\n%s", option, value,
            usage);
    exit(2);
}

static double number(const char *option, const char *value, double least, double most)
{
    char *end;
    double v = strtod(value, &end);

    if (end == value || *end || !(v >= least && v <= most))
        wrong(option, value);
    return v;
}

static void add_death(struct options *o, const char *value)
{
    char more;

    if (o->ndeaths == DEATHS_MAX || sscanf(value, "%d@%d%c", &o->deaths[o->ndeaths].rank,
                                           &o->deaths[o->ndeaths].step, &more) != 2)
        wrong("--die", value);
    o->ndeaths++;
}

static void parse(struct options *o, int argc, char **argv)
{
    static const struct option longs[] = {
        { "epochs", 1, NULL, 'e' },      { "batch", 1, NULL, 'b' },
        { "ranks", 1, NULL, 'P' },       { "seed", 1, NULL, 's' },
        { "data", 1, NULL, 'd' },        { "codec", 1, NULL, 'c' },
        { "rate", 1, NULL, 'r' },        { "momentum", 1, NULL, 'm' },
        { "die", 1, NULL, 'D' },         { "json", 0, NULL, 'j' },
        { "agree-every", 1, NULL, 'k' }, { "help", 0, NULL, 'h' },
        { "wait-at", 1, NULL, 'w' },     { NULL, 0, NULL, 0 },
    };
    int c;

    *o = (struct options){ .epochs = 20,
                           .batch = 64,
                           .agree_every = 1,
                           .wait_at = -1,
                           .seed = 1,
                           .rate = 0.1f,
                           .momentum = 0.9f,
                           .data = DIGITS_CSV };
    while ((c = getopt_long(argc, argv, "e:b:P:s:d:c:h", longs, NULL)) != -1) {
        switch (c) {
        case 'e': o->epochs = (int)number("--epochs", optarg, 1, 100000); break;
        case 'b': o->batch = (int)number("--batch", optarg, 1, 100000); break;
        case 'P': o->nlocal = (int)number("-P", optarg, 1, JOB_RANKS_MAX); break;
        case 's': o->seed = (uint64_t)number("--seed", optarg, 0, 1 << 30); break;
        case 'd': o->data = optarg; break;
        case 'c': o->codec = optarg; break;
        case 'r': o->rate = (float)number("--rate", optarg, 1e-6, 10); break;
        case 'm': o->momentum = (float)number("--momentum", optarg, 0, 0.999); break;
        case 'k': o->agree_every = (int)number("--agree-every", optarg, 1, 100000); break;
        case 'w': o->wait_at = (int)number("--wait-at", optarg, 0, 1e9); break;
        case 'D': add_death(o, optarg); break;
        case 'j': o->json = 1; break;
        default: fputs(usage, c == 'h' ? stdout : stderr); exit(c == 'h' ? 0 : 2);
        }
    }
    if (optind < argc)
        wrong("argument", argv[optind]);
    for (int i = 0; i < o->ndeaths; i++)
        if (o->nlocal && o->deaths[i].rank == 0) {
            fprintf(stderr, "elastic_train: with -P rank 0 started the others, which end with "
                            "it: start them by banyan_run --keep-going\n");
            exit(2);
        }
}

int main(int argc, char **argv)
{
    static struct trainer t;
    static pid_t children[JOB_RANKS_MAX];
    int rc;

    parse(&t.opt, argc, argv);
    if (t.opt.codec) /* ranks of one host share memory: no codec pays there */
        setenv("BANYAN_CODEC_FORCE", "1", 0);
    if (banyan_job_restarts() > 0)
        rc = banyan_comm_join(&t.comm, NULL, NULL);
    else
        rc = job_join(&t.comm, t.opt.nlocal, children);
    if (rc < 0)
        fprintf(stderr, "elastic_train: cannot join: %s\n", banyan_last_error());
    else
        rc = run(&t);
    rc = leave(&t, children, rc != 0);
    discard(&t);
    return rc;
}
