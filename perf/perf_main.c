/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_perf: measures and checks collectives. This file joins the job and sweeps sizes,
 * types, operations and roots. A rank is a process; over the loop transport, which joins ranks
 * of one process, it is a thread. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf/perf.h"
#include "base/counts.h"
#include "tools/local_ranks.h"

static _Thread_local int my_rank = -1;

static int failed(const char *what)
{
    fflush(stdout);
    if (my_rank < 0 && getenv("BANYAN_RANK")) /* not joined yet */
        my_rank = atoi(getenv("BANYAN_RANK"));
    if (my_rank < 0)
        fprintf(stderr, "banyan_perf: %s: %s\n", what, banyan_last_error());
    else
        fprintf(stderr, "banyan_perf: rank %d: %s: %s\n", my_rank, what, banyan_last_error());
    return 1;
}

/* -T: the library's own deadline comes first and has the better message; this one also ends a
 * rank that hangs outside of the library. Only async-signal-safe calls. */
static void on_alarm(int sig)
{
    static const char text[] = "banyan_perf: a size took longer than -T allows; giving up\n";

    (void)sig;
    if (write(2, text, sizeof text - 1) < 0)
        _exit(1);
    _exit(1);
}

/* The first word of the library's plan that is a name of the list, else fallback. */
static void word_of_plan(const char *plan, const char *(*name)(size_t), const char *fallback,
                         char *out, size_t cap)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

    snprintf(out, cap, "%s", fallback);
    for (const char *p = plan; *(p += strcspn(p, letters)); p += strspn(p, letters)) {
        size_t len = strspn(p, letters);

        for (size_t i = 0; name(i); i++)
            if (strlen(name(i)) == len && !strncmp(name(i), p, len) &&
                strcmp(name(i), "auto") && strcmp(name(i), "none")) {
                snprintf(out, cap, "%s", name(i));
                return;
            }
    }
}

/* Whether all ranks have the same host name. */
static int one_host(struct perf_run *run)
{
    char host[64] = "";
    uint64_t v[2] = { 0xcbf29ce484222325u, 0 };

    gethostname(host, sizeof host - 1);
    for (const char *p = host; *p; p++)
        v[0] = (v[0] ^ (unsigned char)*p) * 0x100000001b3u;
    v[1] = ~v[0];
    return banyan_allreduce(v, v, 2, BANYAN_U64, BANYAN_MAX, run->comm, NULL) == 0 &&
           v[0] == ~v[1];
}

/* The transport of the results' column: asked for, or named by the plan, or (auto) shared
 * memory on one host. */
static void find_transport(struct perf_run *run)
{
    int local = one_host(run), has_shm = 0;
    char plan[512] = "";

    for (size_t i = 0; banyan_transport_name(i); i++)
        has_shm |= !strcmp(banyan_transport_name(i), "shm");
    banyan_comm_plan(run->comm, "allreduce", 1 << 18, BANYAN_F32, plan, sizeof plan);
    word_of_plan(plan, banyan_transport_name, local && has_shm ? "shm" : "tcp", run->transport,
                 sizeof run->transport);
    if (strcmp(run->opts->transport, "auto"))
        snprintf(run->transport, sizeof run->transport, "%s", run->opts->transport);
}

/* The schedule that runs: --schedule is a preference. A linear codec's stages, and a file, have
 * the name that was asked for. */
static void schedule_of_plan(struct perf_run *run, struct perf_row *row, const char *plan)
{
    const char *asked = run->opts->schedule;
    char runs[sizeof row->schedule];

    if (sscanf(plan, "schedule %63[^,]", runs) != 1 || !strcmp(runs, "sequence") ||
        !strncmp(runs, "file:", 5))
        return;
    if (!strchr(asked, ':'))
        runs[strcspn(runs, ":")] = '\0';
    snprintf(row->schedule, sizeof row->schedule, "%s", runs);
    if (strcmp(asked, "auto") && strcmp(asked, "static") && strcmp(asked, runs) &&
        run->rank == 0 && !run->said_schedule++)
        fprintf(stderr,
                "banyan_perf: --schedule %s: %s of %" PRIu64 " bytes runs by schedule %s (told "
                "once)\n",
                asked, row->collective, row->bytes, runs);
}

static void describe(struct perf_run *run, struct perf_row *row, int dtype)
{
    const struct perf_opts *o = run->opts;
    char plan[640] = "";
    const char *ran;

    snprintf(row->transport, sizeof row->transport, "%s", run->transport);
    snprintf(row->schedule, sizeof row->schedule, "%s", o->schedule);
    snprintf(row->codec, sizeof row->codec, "%s", o->codec);
    if (o->what->flags & PERF_RAW)
        snprintf(row->schedule, sizeof row->schedule, "none");
    else if (run->nranks > 1 &&
             banyan_comm_plan(run->comm, o->what->name, row->count, (enum banyan_dtype)dtype,
                              plan, sizeof plan) >= 0)
        schedule_of_plan(run, row, plan);
    if (!perf_codec_serves(o->codec, o->what, (enum banyan_dtype)dtype,
                           (unsigned)perf_parse_op(row->op))) {
        snprintf(row->codec, sizeof row->codec, "none"); /* the row says what ran */
    } else if (strstr(plan, " refused: ")) {
        snprintf(row->codec, sizeof row->codec, "none");
        if (run->rank == 0 && !run->said_refused++)
            fprintf(stderr,
                    "banyan_perf: %s; --codec %s insists, BANYAN_LINK_GBPS tells the link's "
                    "speed\n",
                    plan, o->codec);
    } else if ((ran = strstr(plan, "codec levels:")) != NULL) { /* of a budget */
        ran += strlen("codec ");
        snprintf(row->codec, sizeof row->codec, "%.*s", (int)(strstr(ran, ", predicted") - ran),
                 ran);
    }
}

/* What the plan says now that such calls were measured. */
static void predict(struct perf_run *run, struct perf_row *row, int dtype)
{
    char plan[640] = "";
    const char *told;

    if (run->opts->what->flags & PERF_RAW || run->nranks < 2 ||
        banyan_comm_plan(run->comm, run->opts->what->name, row->count, (enum banyan_dtype)dtype,
                         plan, sizeof plan) < 0)
        return;
    told = strstr(plan, ", predicted ");
    row->predicted_us = told ? strtod(told + strlen(", predicted "), NULL) : 0;
}

static int run_variant(struct perf_run *run, struct perf_row *row, struct perf_out *out,
                       int dtype, int last)
{
    int rc =
        run->opts->what->flags & PERF_RAW ? perf_put_row(run, row) : perf_run_row(run, row);

    if (rc < 0)
        return rc;
    predict(run, row, dtype);
    run->busbw_sum += row->busbw;
    run->busbw_n++;
    if (row->wrong > 0)
        run->wrong_total += row->wrong;
    if (run->rank == 0)
        perf_out_row(out, row, last);
    return 0;
}

/* One size with one type, op and root: one line of the table. */
static int run_line(struct perf_run *run, struct perf_out *out, uint64_t bytes, int dtype,
                    unsigned op, int root, double roofline)
{
    const struct perf_opts *o = run->opts;
    size_t es = banyan_dtype_bytes((enum banyan_dtype)dtype);
    size_t unit = o->what->flags & PERF_BLOCKS ? es * (size_t)run->nranks : es;
    uint64_t count = bytes / unit;
    int rc = 0;

    if (count == 0 && bytes > 0)
        count = 1;
    if (o->timeout_s > 0 && run->keeps_time)
        alarm((unsigned)o->timeout_s + 5);
    for (int inplace = 0; inplace < 2 && rc == 0; inplace++) {
        struct perf_row row = {
            .collective = o->what->name,
            .ranks = run->nranks,
            .bytes = count * unit,
            .count = count,
            .dtype = banyan_dtype_name((enum banyan_dtype)dtype),
            .op = perf_op_name(op),
            .root = root,
            .inplace = inplace,
            .iters = o->iters,
            .roofline = roofline,
        };

        if (!(o->inplace & 1 << inplace))
            continue;
        describe(run, &row, dtype);
        rc = run_variant(run, &row, out, dtype, inplace || !(o->inplace & 2));
    }
    if (run->keeps_time)
        alarm(0);
    return rc;
}

/* All types, ops and roots that were asked for, at one size. */
static int run_size(struct perf_run *run, struct perf_out *out, uint64_t bytes)
{
    const struct perf_opts *o = run->opts;
    int reduces = (o->what->flags & PERF_REDUCES) != 0,
        rooted = (o->what->flags & PERF_ROOTED) != 0;
    unsigned nops = reduces && o->op_all ? BNY_OP_COUNT : 1;
    int nroots = rooted && o->root < 0 ? run->nranks : 1, rc = 0;
    double roofline = o->roofline && bytes ? perf_roofline(run, bytes) : 0;

    for (int d = 0; d < (o->dtype_all ? PERF_DTYPES : 1); d++)
        for (unsigned p = 0; p < nops; p++)
            for (int r = 0; r < nroots && rc == 0; r++) {
                int dtype = o->dtype_all ? d : o->dtype;
                unsigned op = o->op_all ? p : o->op;

                int root = nroots > 1 || o->root < 0 ? r : o->root;

                if (root >= run->nranks) /* as some have died */
                    root = run->nranks - 1;
                if (!reduces || perf_op_valid(dtype, op))
                    rc = run_line(run, out, bytes, dtype, op, root, roofline);
            }
    return rc;
}

/* With faults: again and again until all who are left have done it. */
static int run_size_through(struct perf_run *run, struct perf_out *out, uint64_t bytes)
{
    int rc = run_size(run, out, bytes);

    if (run->opts->faults.n == 0)
        return rc;
    while ((rc = perf_fault_agree(run, out, rc)) == 0)
        rc = run_size(run, out, bytes);
    return rc < 0 ? rc : 0;
}

static int sweep(struct perf_run *run, struct perf_out *out)
{
    const struct perf_opts *o = run->opts;

    for (int cycle = 0; cycle < o->cycles; cycle++)
        for (uint64_t bytes = o->min_bytes;; bytes = perf_next_bytes(o, bytes)) {
            int rc = run_size_through(run, out, bytes);

            if (rc < 0)
                return rc;
            if (!perf_next_bytes(o, bytes))
                break;
        }
    return 0;
}

/* One line of the header per rank; rank 0 gets them all. */
static int gather_cards(struct perf_run *run, char **all)
{
    char card[96] = "", host[48] = "";
    size_t n = (size_t)run->nranks;
    int rc;

    *all = calloc(n + 1, sizeof card);
    if (!*all)
        return -BANYAN_ENOMEM;
    gethostname(host, sizeof host - 1);
    snprintf(card, sizeof card, "#  rank %3d pid %7d on %s cpu %d", run->rank, (int)getpid(),
             host, sched_getcpu());
    rc = banyan_allgather(card, *all, sizeof card, BANYAN_U8, run->comm, NULL);
    for (size_t i = 0, len = 0; rc == 0 && i < n; i++) {
        memmove(card, *all + i * sizeof card, sizeof card);
        len += (size_t)sprintf(*all + len, "%s\n", card);
    }
    return rc;
}

/* Rank 0 opens the files; all learn whether it could. 0, 1: no (said), or an error. */
static int open_outputs(struct perf_run *run, struct perf_out *out)
{
    uint8_t no = run->rank == 0 && perf_out_open(out, run->opts) != 0;
    int rc = banyan_broadcast(&no, 1, BANYAN_U8, 0, run->comm, NULL);

    return rc < 0 ? rc : no;
}

static int measure(struct perf_run *run)
{
    const struct perf_opts *o = run->opts;
    size_t most =
        o->max_bytes + 8 * (size_t)run->nranks; /* a size is rounded up to one element */
    struct perf_out out;
    char *cards = NULL;
    int rc, bad_output = 0;

    if (o->what->flags & PERF_ROOTED && o->root >= run->nranks) {
        if (run->rank == 0)
            fprintf(stderr, "banyan_perf: -r %d: there are only %d ranks\n", o->root,
                    run->nranks);
        return 2;
    }
    if (o->what->flags & PERF_RAW && run->nranks != 2) {
        if (run->rank == 0)
            fprintf(stderr, "banyan_perf: %s runs between 2 ranks, this job has %d\n",
                    o->what->name, run->nranks);
        return 2;
    }
    find_transport(run);
    rc = open_outputs(run, &out);
    if (rc != 0)
        return rc < 0 ? failed(o->what->name) : 1;
    run->times_us = calloc((size_t)o->iters, sizeof *run->times_us);
    rc = run->times_us ? perf_buffers_alloc(run, most) : -BANYAN_ENOMEM;
    if (rc == 0)
        rc = gather_cards(run, &cards);
    if (rc == 0 && run->rank == 0)
        perf_out_head(&out, run, cards);
    if (rc == 0)
        rc = sweep(run, &out);
    if (rc == 0 && run->rank == 0)
        bad_output = perf_out_close(&out, run);
    perf_fault_left(run);
    perf_put_finish();
    perf_roofline_finish();
    perf_buffers_free(run);
    free(run->times_us);
    free(cards);
    if (rc < 0)
        return failed(o->what->name);
    return run->wrong_total > 0 || bad_output;
}

/* id NULL: as the environment says. */
static int join(struct perf_run *run, const struct banyan_id *id, int rank, int nranks)
{
    const struct perf_opts *o = run->opts;
    struct banyan_config cfg = BANYAN_CONFIG_INIT;
    int rc;

    if (!strncmp(o->what->name, "put_", 4) &&
        (!strcmp(o->transport, "dpdk") || !strcmp(o->transport, "ud")))
        cfg.transport = "tcp"; /* the ports are for what is measured */
    else if (strcmp(o->transport, "auto"))
        cfg.transport = o->transport;
    if (strcmp(o->schedule, "auto"))
        cfg.schedule = o->schedule;
    if (o->topology)
        cfg.topology = o->topology;
    if (strcmp(o->codec, "none"))
        cfg.codec = o->codec;
    if (o->device)
        cfg.ifname = o->device;
    if (o->chunk_bytes)
        cfg.chunk_bytes = o->chunk_bytes;
    if (o->timeout_s > 0)
        cfg.op_timeout_s = o->timeout_s;
    rc = id ? banyan_comm_init(&run->comm, id, nranks, rank, &cfg)
            : banyan_comm_init_env(&run->comm, &cfg);
    if (rc < 0)
        return rc;
    my_rank = run->rank = run->first_rank = banyan_comm_rank(run->comm);
    run->nranks = banyan_comm_count(run->comm);
    return 0;
}

/* The life of one rank. Returns its exit status. */
static int run_rank(struct perf_run *run, const struct banyan_id *id, int rank, int nranks)
{
    int status;

    status = join(run, id, rank, nranks);
    if (status == -BANYAN_EINVAL) { /* a schedule, codec, graph or device that the library does
                                       not take */
        failed("wrong option");
        return 2;
    }
    if (status < 0)
        return failed("cannot join the job");
    status = measure(run);
    if (banyan_async_error(run->comm, NULL, NULL, 0) < 0)
        banyan_comm_destroy(run->comm);
    else if (banyan_comm_finalize(run->comm) < 0)
        return failed("finalize");
    return status;
}

struct thread_rank {
    const struct perf_opts *opts;
    const struct banyan_id *id;
    int rank, status;
    pthread_t thread;
};

static void *thread_main(void *arg)
{
    struct thread_rank *r = arg;
    struct perf_run run = { .opts = r->opts, .keeps_time = r->rank == 0 };

    my_rank = r->rank;
    if (r->opts->bind)
        bny_local_bind(r->rank);
    r->status = run_rank(&run, r->id, r->rank, r->opts->nlocal);
    return NULL;
}

static int run_threads(const struct perf_opts *o)
{
    struct thread_rank *ranks = calloc((size_t)o->nlocal, sizeof *ranks);
    struct banyan_id id;
    int status = 0;

    if (!ranks || banyan_id_create(&id) < 0) {
        free(ranks);
        return failed("cannot start the ranks");
    }
    for (int i = 0; i < o->nlocal; i++) {
        ranks[i] = (struct thread_rank){ .opts = o, .id = &id, .rank = i };
        if (pthread_create(&ranks[i].thread, NULL, thread_main, &ranks[i]) != 0) {
            fprintf(stderr, "banyan_perf: cannot start rank %d as a thread\n", i);
            exit(1); /* the others wait for it in vain */
        }
    }
    for (int i = 0; i < o->nlocal; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (!status)
            status = ranks[i].status;
    }
    free(ranks);
    return status;
}

int main(int argc, char **argv)
{
    struct perf_opts opts;
    struct perf_run run = { .opts = &opts, .keeps_time = 1 };
    int status;

    if (perf_opts_parse(&opts, argc, argv, &status))
        return status;
    signal(SIGALRM, on_alarm);
    /* Whoever measures a codec wants it used; a library must not set variables, a program may.
     */
    if (!opts.codec_may && setenv("BANYAN_CODEC_FORCE", "1", 0) != 0)
        return failed("cannot set BANYAN_CODEC_FORCE");
    if (!strcmp(opts.transport, "loop"))
        return run_threads(&opts);
    /* With BANYAN_RANK set, this is one of the ranks that -P started. */
    if (opts.nlocal && !getenv("BANYAN_RANK")) {
        struct bny_local_ranks job = { .tool = "banyan_perf",
                                       .exe = "/proc/self/exe",
                                       .nranks = opts.nlocal,
                                       .keep_going = opts.faults.n > 0,
                                       .bind = opts.bind };
        int deaths = perf_fault_deaths(&opts.faults);

        status = bny_local_ranks_run(&job, argv);
        if (opts.faults.n && status <= opts.nlocal) /* those that failed; some were to */
            status = status < deaths ? 1 : status - deaths;
        return status;
    }
    return run_rank(&run, NULL, 0, 0);
}
