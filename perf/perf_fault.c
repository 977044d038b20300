/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_perf --fault: ranks that die, stop or are late at a given iteration; those who are
 * left agree, shrink, and do the size again. Rank 0 may die as well as any: the new one
 * prints. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "perf/perf.h"

#define TRIES_MAX 3

static const char *const kinds[] = { "kill", "exit", "stop", "late" };

/* One of the list, which ends at a comma or at the end. */
static int parse_one(struct perf_fault *f, const char *text, size_t len)
{
    char word[64], kind[8];
    int used = 0;

    if (len >= sizeof word)
        return -1;
    memcpy(word, text, len);
    word[len] = '\0';
    if (sscanf(word, "%7[a-z]=%d@%ld%n", kind, &f->rank, &f->at, &used) != 3 || f->rank < 0 ||
        f->at < 0)
        return -1;
    for (int k = 0; k < 4; k++) {
        int end = used;

        if (strcmp(kind, kinds[k]))
            continue;
        f->kind = (enum perf_fault_kind)k;
        if (k < PERF_STOP)
            return word[end] ? -1 : 0;
        if (sscanf(word + used, ":%d%n", &f->ms, &end) != 1 || f->ms < 0)
            return -1;
        return word[used + end] ? -1 : 0;
    }
    return -1;
}

int perf_fault_parse(struct perf_faults *faults, const char *spec)
{
    for (;;) {
        size_t len = strcspn(spec, ",");

        if (faults->n == PERF_FAULTS_MAX || parse_one(&faults->f[faults->n], spec, len) != 0)
            return -1;
        faults->n++;
        if (!spec[len])
            return 0;
        spec += len + 1;
    }
}

/* A child wakes it: who is stopped cannot. */
static void stop_for(int ms)
{
    pid_t me = getpid(), child = fork();
    int status;

    if (child == 0) {
        usleep((useconds_t)ms * 1000);
        kill(me, SIGCONT);
        _exit(0);
    }
    if (child > 0) {
        raise(SIGSTOP);
        waitpid(child, &status, 0);
    }
}

void perf_fault_due(struct perf_run *run)
{
    long now = run->timed++;

    for (int i = 0; i < run->opts->faults.n; i++) {
        const struct perf_fault *f = &run->opts->faults.f[i];

        if (f->rank != run->first_rank || f->at != now)
            continue;
        switch (f->kind) {
        case PERF_KILL: raise(SIGKILL); break;
        case PERF_EXIT: _exit(3); break;
        case PERF_STOP: stop_for(f->ms); break;
        case PERF_LATE: usleep((useconds_t)f->ms * 1000); break;
        }
    }
}

void perf_fault_left(const struct perf_run *run)
{
    for (int i = 0; i < run->opts->faults.n; i++) {
        const struct perf_fault *f = &run->opts->faults.f[i];

        if (f->rank == run->first_rank && f->at >= run->timed)
            fprintf(stderr, "banyan_perf: %s=%d@%ld never came: there were %ld iterations\n",
                    kinds[f->kind], f->rank, f->at, run->timed);
    }
}

int perf_fault_deaths(const struct perf_faults *faults)
{
    int n = 0;

    for (int i = 0; i < faults->n; i++) {
        int again = faults->f[i].kind >= PERF_STOP;

        for (int j = 0; j < i && !again; j++)
            again = faults->f[j].kind < PERF_STOP && faults->f[j].rank == faults->f[i].rank;
        n += !again;
    }
    return n;
}

static int may_go_on(int rc)
{
    return rc == 0 || rc == -BANYAN_ERANKDEAD || rc == -BANYAN_EABORTED ||
           rc == -BANYAN_ETIMEDOUT;
}

static int shrink(struct perf_run *run)
{
    struct banyan_comm *next;
    int rc = banyan_comm_shrink(run->comm, &next);

    if (rc < 0)
        return rc;
    banyan_comm_destroy(run->comm);
    run->comm = next;
    run->rank = banyan_comm_rank(next);
    run->nranks = banyan_comm_count(next);
    return 0;
}

int perf_fault_agree(struct perf_run *run, struct perf_out *out, int rc)
{
    uint64_t all_well = rc == 0, failed_at = bny_now_ns(), agreed_at;
    int before = run->nranks, was_first = run->rank == 0, dead;

    if (!may_go_on(rc))
        return rc;
    dead = banyan_comm_agree(run->comm, &all_well, NULL, 0);
    agreed_at = bny_now_ns();
    if (dead < 0)
        return dead;
    if (all_well & 1 && dead == 0) {
        run->tries = 0;
        return 1;
    }
    rc = shrink(run);
    if (rc < 0)
        return rc;
    run->tries = run->nranks == before ? run->tries + 1 : 0;
    if (run->tries > TRIES_MAX)
        return -BANYAN_ETIMEDOUT;
    if (run->rank == 0 && !was_first && perf_out_go_on(out, run->opts) != 0)
        return -BANYAN_ESYSTEM;
    if (run->rank == 0)
        perf_out_note(out,
                      "# %d of %d ranks go on, %.2f ms after the error (agreed after %.2f ms); "
                      "the size again",
                      run->nranks, before, (double)(bny_now_ns() - failed_at) * 1e-6,
                      (double)(agreed_at - failed_at) * 1e-6);
    return 0;
}
