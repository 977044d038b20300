/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums of several hosts by schedule hierarchical (test_hosts.py puts ranks into network
 * namespaces): all types and operations, ranks that differ, die, stay away or give up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "banyan/training.h"
#include "base/counts.h"
#include "base/rng.h"
#include "tests/mp/call.h"

#define SUMS 150

/* Short ones and those in order of ranks are refused. */
static void draw(struct call *c, int n, uint64_t *s, uint64_t *own)
{
    do
        call_random(c, n, 1 << (bny_rng_below(s, 8) ? 17 : 21), bny_rng_next(s),
                    bny_rng_next(own));
    while (!call_fits(C_ALLREDUCE, c->op, c->dtype));
    c->coll = C_ALLREDUCE;
    c->schedule = "hierarchical";
}

static void each_type(struct test *t, uint64_t *s, uint64_t *own)
{
    int refused = 0, all = 0;

    for (int type = 0; type < BNY_DTYPE_COUNT; type++)
        for (int op = 0; op < M_OP_COUNT; op++)
            for (int in_place = 0; in_place < 2; in_place++) {
                struct call c;

                if (!call_fits(C_ALLREDUCE, (enum model_op)op, (enum banyan_dtype)type))
                    continue;
                draw(&c, t->n, s, own);
                c.dtype = (enum banyan_dtype)type;
                c.op = (enum model_op)op;
                c.count = (1 + bny_rng_below(s, in_place ? 9000 : 90)) * (size_t)t->n *
                          model_unit(c.op);
                c.in_place = in_place;
                refused += call_check(t, t->comm, &c);
                all++;
            }
    CHECK(t, all > 100 && refused < all / 4, "%d calls, %d refused", all, refused);
}

static int hosts(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 1);
    struct call c;
    int refused = 0;

    each_type(t, &s, &own);
    for (int i = 0; i < 5; i++) { /* hosts add in an order of their own */
        draw(&c, t->n, &s, &own);
        c.deterministic = 1;
        CHECK(t, call_check(t, t->comm, &c) == 1, "in order of ranks");
    }
    for (int i = 0; i < SUMS; i++) {
        draw(&c, t->n, &s, &own);
        refused += call_check(t, t->comm, &c);
    }
    CHECK(t, refused < SUMS / 2, "%d of %d refused", refused, SUMS);
    return 0;
}

/* arg: which rank calls something else, and what differs. */
static int hosts_differ(struct test *t)
{
    static float buf[200001];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = 200000;
    int other = t->rank == atoi(t->arg), first, rc;

    o.schedule = "hierarchical";
    first = banyan_allreduce(buf, buf, count, BANYAN_F32, BANYAN_SUM, t->comm, &o);
    if (other && strstr(t->arg, "count"))
        count++;
    if (other && strstr(t->arg, "schedule"))
        o.schedule = "host_ring";
    rc = other && strstr(t->arg, "collective")
             ? banyan_alltoall(buf, buf, 8, BANYAN_F32, t->comm, NULL)
             : banyan_allreduce(
                   buf, buf, count, other && strstr(t->arg, "type") ? BANYAN_I32 : BANYAN_F32,
                   other && strstr(t->arg, "op") ? BANYAN_MAX : BANYAN_SUM, t->comm, &o);
    CHECK(t, rc == -BANYAN_EMISMATCH, "%s: returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "rank");
    CHECK_HAS(t, banyan_last_error(), "count 200000");
    /* Others may have gone on when the last one was not through the first one yet. */
    CHECK(t, first == 0 || first == rc, "the first returned %d", first);
    return 0;
}

/* Sums from that one up to that one, until one fails; the first error. */
static int until_error(struct test *t, struct banyan_comm *comm, int from, int to)
{
    static float in[300000], out[300000];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int rc = 0;

    o.schedule = "hierarchical";
    for (int i = from; rc == 0 && i < to; i++) {
        size_t count = i % 3 ? 300000 : 1000;

        for (size_t k = 0; k < count; k++)
            in[k] = (float)(t->rank + i % 10);
        rc = banyan_allreduce(in, out, count, BANYAN_F32, BANYAN_SUM, comm, &o);
        for (size_t k = 0; rc == 0 && k < count; k += 97)
            CHECK(t, (int)out[k] == t->n * (t->n - 1) / 2 + t->n * (i % 10), "sum %d", i);
    }
    return rc;
}

/* arg: who dies, after so many sums. The others hear of it and go on without it, on hosts that
 * have not as many ranks each. */
static int hosts_die(struct test *t)
{
    struct banyan_comm *left;
    float x = 1, y = 0;
    int victim = 0, sums = 0, rc;

    sscanf(t->arg, "%d %d", &victim, &sums);
    rc = until_error(t, t->comm, 0, t->rank == victim ? sums : 100000);
    if (t->rank == victim)
        _exit(0);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_OK(t, banyan_comm_shrink(t->comm, &left));
    CHECK(t, banyan_comm_count(left) == t->n - 1, "%d ranks left", banyan_comm_count(left));
    for (int i = 0; i < 20; i++) {
        CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, left, NULL));
        CHECK(t, (int)y == t->n - 1, "sum %g", (double)y);
    }
    CHECK_OK(t, banyan_comm_finalize(left));
    return 0;
}

/* arg: who gives the communicator up, or (late) stays away for longer than sums may take. */
static int hosts_end(struct test *t)
{
    int who = atoi(t->arg), late = strstr(t->arg, "late") != NULL, rc, want;
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm;

    cfg.op_timeout_s = late ? 1 : 60;
    CHECK_OK(t, case_init(t, &cfg, &comm));
    rc = until_error(t, comm, 0, t->rank == who ? 20 : 100000);
    if (t->rank == who) {
        CHECK_OK(t, rc);
        if (late)
            sleep(3); /* no memory is shared with the others, whose deadline is 1 s */
        else
            CHECK_OK(t, banyan_comm_revoke(comm, "enough"));
        rc = until_error(t, comm, 20, 100000);
    }
    want = late ? -BANYAN_ETIMEDOUT : -BANYAN_EABORTED;
    CHECK(t, rc == want, "returned %d (%s)", rc, banyan_strerror(rc));
    banyan_comm_destroy(comm);
    return 0;
}

/* Bytes that have left this host through its ports, frames and all. */
static uint64_t bytes_out(struct test *t)
{
    FILE *f = fopen("/proc/self/net/dev", "r");
    char line[512], name[64];
    uint64_t sum = 0;

    CHECK(t, f != NULL, "no /proc/self/net/dev");
    while (fgets(line, sizeof line, f)) {
        unsigned long long out;

        if (sscanf(line, " %63[^:]: %*u %*u %*u %*u %*u %*u %*u %*u %llu", name, &out) == 2 &&
            strcmp(name, "lo") != 0)
            sum += out;
    }
    fclose(f);
    return sum;
}

/* The most that leave a host in a sum of so many floats. */
static double megabytes(struct test *t, size_t count, const char *codec)
{
    float *x = calloc(count, sizeof *x);
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint64_t s = model_mix(t->seed, (uint64_t)t->rank), before;
    double out;

    for (size_t i = 0; i < count; i++)
        x[i] = (float)(bny_rng_unit(&s) - 0.5);
    o.codec = codec;
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    before = bytes_out(t);
    CHECK_OK(t, banyan_barrier(t->comm, NULL)); /* all have looked */
    CHECK_OK(t, banyan_allreduce(x, x, count, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    out = (double)(bytes_out(t) - before) / 1e6;
    CHECK_OK(t, banyan_allreduce(&out, &out, 1, BANYAN_F64, BANYAN_MAX, t->comm, NULL));
    if (t->rank == 0)
        printf("# %s: %.3f MB leave a host for %zu floats\n", codec, out, count);
    free(x);
    return out;
}

/* arg: a codec, and how many MB of 16 MiB may leave a host with it. */
static int hosts_bytes(struct test *t)
{
    char codec[64];
    double most, out;

    CHECK(t, sscanf(t->arg, "%63s %lf", codec, &most) == 2, "arg \"%s\"", t->arg);
    megabytes(t, 1000, codec); /* ranks connect */
    out = megabytes(t, 4u << 20, codec);
    CHECK(t, out <= most, "%g MB leave a host, more than %g", out, most);
    return 0;
}

/* A codec that is allowed never sends more than none. */
static int hosts_never_more(struct test *t)
{
    const char *name;
    double raw;

    megabytes(t, 1000, "none");
    raw = megabytes(t, 1u << 19, "none");
    for (size_t i = 0; (name = banyan_codec_name(i)); i++) {
        double out = megabytes(t, 1u << 19, name);

        CHECK(t, out <= 1.03 * raw + .03, "%s: %g MB, raw %g", name, out, raw);
    }
    return 0;
}

/* Nobody says what the links carry, and they carry little: the first sum runs raw, and by what
 * it measures the codec is used soon. The same in a communicator that is new. */
static int hosts_learn(struct test *t)
{
    struct banyan_comm *all = t->comm, *part;
    double raw, out = 0;

    megabytes(t, 1000, "none");
    raw = megabytes(t, 1u << 18, "none");
    for (int i = 0; i < 3; i++)
        out = megabytes(t, 1u << 18, t->arg);
    CHECK(t, out < raw / 3, "%g MB leave a host, raw %g", out, raw);
    CHECK_OK(t, banyan_comm_dup(all, &part));
    t->comm = part;
    megabytes(t, 1000, "none");
    out = megabytes(t, 1u << 18, t->arg);
    t->comm = all;
    CHECK(t, out < raw / 3, "%g MB leave a host in a new communicator, raw %g", out, raw);
    CHECK_OK(t, banyan_comm_finalize(part));
    return 0;
}

/* The example in README.md: gradients of four tensors, rules with a codec, no other setting.
 * Returns the MB that leave a host in each of the last steps. */
static double training_megabytes(struct test *t, const char *rules)
{
    enum { TENSORS = 4, ELEMS = 1 << 17, STEPS = 12, LAST = 4 };
    static const char *const names[TENSORS] = { "a", "b", "c", "d" };
    struct banyan_buckets_config cfg = BANYAN_BUCKETS_CONFIG_INIT;
    struct banyan_tensor tensors[TENSORS];
    struct banyan_buckets *buckets;
    int64_t shape = ELEMS;
    uint64_t s = model_mix(t->seed, (uint64_t)t->rank), before = 0;

    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (struct banyan_tensor){ .name = names[i],
                                             .dtype = BANYAN_F32,
                                             .ndim = 1,
                                             .shape = &shape,
                                             .grad = calloc(ELEMS, sizeof(float)) };
    cfg.rules = rules;
    CHECK_OK(t, banyan_buckets_create(&buckets, t->comm, tensors, TENSORS, &cfg));
    for (int step = 0; step < STEPS; step++) {
        if (step == STEPS - LAST) {
            before = bytes_out(t);
            CHECK_OK(t, banyan_barrier(t->comm, NULL));
        }
        for (int i = TENSORS; i-- > 0;) {
            for (size_t k = 0; k < ELEMS; k++)
                ((float *)tensors[i].grad)[k] = (float)(bny_rng_unit(&s) - 0.5);
            CHECK_OK(t, banyan_buckets_ready(buckets, (size_t)i));
        }
        CHECK_OK(t, banyan_buckets_wait(buckets));
    }
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    before = bytes_out(t) - before;
    CHECK_OK(t, banyan_buckets_free(buckets));
    for (int i = 0; i < TENSORS; i++)
        free(tensors[i].grad);
    if (t->rank == 0)
        printf("# %s: %.3f MB leave a host in a step\n", rules, (double)before / 1e6 / LAST);
    return (double)before / 1e6 / LAST;
}

static int hosts_train(struct test *t)
{
    double raw = training_megabytes(t, "*=none"),
           coded = training_megabytes(t, "*:>=16384=int8");

    CHECK(t, coded < raw / 3, "%g MB leave a host in a step, raw %g", coded, raw);
    return 0;
}

/* inputs + old residuals = result + new residuals, and all ranks have the same bits. */
static void check_owing(struct test *t, const char *codec, size_t n)
{
    float *in = calloc(n, sizeof *in), *out = calloc(n, sizeof *out), *first;
    double *old = calloc(n, sizeof *old), *new = calloc(n, sizeof *new), owed = 0;
    uint64_t s = model_mix(t->seed, (uint64_t)t->rank);
    struct banyan_opts o = BANYAN_OPTS_INIT;

    CHECK_OK(t, banyan_codec_state_create(&o.codec_state, n, 7));
    o.codec = codec;
    for (int step = 0; step < 4; step++) {
        const float *e = banyan_codec_state_residual(o.codec_state);

        for (size_t i = 0; i < n; i++) {
            in[i] = (float)(bny_rng_unit(&s) - 0.5) * (i % 50 ? 1.0f : 20.0f);
            old[i] = (double)in[i] + (double)e[i];
        }
        CHECK_OK(t, banyan_allreduce(in, out, n, BANYAN_F32, BANYAN_AVG, t->comm, &o));
        e = banyan_codec_state_residual(o.codec_state);
        for (size_t i = 0; i < n; i++)
            new[i] = (double)e[i];
        first = in;
        memcpy(first, out, n * sizeof *out);
        CHECK_OK(t, banyan_broadcast(first, n, BANYAN_F32, 0, t->comm, NULL));
        CHECK(t, !memcmp(first, out, n * sizeof *out), "%s: bits differ", codec);
        CHECK_OK(t, banyan_allreduce(old, old, n, BANYAN_F64, BANYAN_SUM, t->comm, NULL));
        CHECK_OK(t, banyan_allreduce(new, new, n, BANYAN_F64, BANYAN_SUM, t->comm, NULL));
        for (size_t i = 0; i < n; i++) {
            double got = (double)out[i] * t->n + new[i], off = got - old[i];

            CHECK(t, off * off < 1e-6 * (1 + old[i] * old[i]),
                  "%s, step %d, element %zu: %g went in, %g came out", codec, step, i, old[i],
                  got);
            owed += new[i] * new[i];
        }
    }
    CHECK(t, owed > 0, "%s owes nothing: it has not run", codec);
    CHECK_OK(t, banyan_codec_state_free(o.codec_state));
    free(in);
    free(out);
    free(old);
    free(new);
}

static int hosts_owe(struct test *t)
{
    static const char *const codecs[] = { "int8:force=1",
                                          "int4:force=1",
                                          "topk:force=1",
                                          "eden:force=1",
                                          "adaq:force=1",
                                          "sidco:force=1",
                                          "terngrad:force=1",
                                          "levels:up=raw,down=int8,force=1",
                                          "auto:nmse=1e-3,feedback=1,force=1" };

    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        check_owing(t, codecs[i], 1000003);
        check_owing(t, codecs[i], 3001);
    }
    return 0;
}

const struct mp_case cases_hosts[] = {
    { "hosts_bytes", hosts_bytes, 0 },
    { "hosts_never_more", hosts_never_more, 0 },
    { "hosts_learn", hosts_learn, 0 },
    { "hosts_owe", hosts_owe, 0 },
    { "hosts_train", hosts_train, 0 },
    { "hosts", hosts, 0 },
    { "hosts_differ", hosts_differ, CASE_FAILS },
    { "hosts_die", hosts_die, CASE_FAILS },
    { "hosts_end", hosts_end, CASE_OWN_INIT | CASE_FAILS },
    { NULL, NULL, 0 },
};
