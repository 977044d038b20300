/* SPDX-License-Identifier: BSD-3-Clause */
/* Starting ranks, checkpoints, the bar. */
#include "job.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int job_join(struct banyan_comm **comm, int nlocal, pid_t *children)
{
    struct banyan_id id;
    pid_t parent = getpid();

    memset(children, 0, JOB_RANKS_MAX * sizeof *children);
    if (nlocal == 0)
        return banyan_comm_init_env(comm, NULL);
    if (banyan_id_create(&id) < 0)
        return -BANYAN_ESYSTEM;
    for (int r = 1; r < nlocal; r++) {
        children[r] = fork();
        if (children[r] < 0) {
            perror("fork");
            return -BANYAN_ESYSTEM;
        }
        if (children[r] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        memset(children, 0, JOB_RANKS_MAX * sizeof *children);
        return banyan_comm_init(comm, &id, nlocal, r, NULL);
    }
    return banyan_comm_init(comm, &id, nlocal, 0, NULL);
}

int job_leave(struct banyan_comm *comm, pid_t *children, const char *program, int rc)
{
    if (rc == 0 && banyan_comm_finalize(comm) < 0) {
        fprintf(stderr, "%s: %s\n", program, banyan_last_error());
        rc = 1;
    } else if (rc != 0) {
        banyan_comm_destroy(comm);
    }
    for (int r = 1; r < JOB_RANKS_MAX && children[r]; r++) {
        int status;

        if (waitpid(children[r], &status, 0) != children[r] || status != 0)
            rc = rc ? rc : 1;
    }
    return rc != 0;
}

double job_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int job_same(struct banyan_comm *comm, const float *x, size_t n, int *same)
{
    const uint32_t *word = (const uint32_t *)x;
    uint64_t sum = 0, v[2];
    int rc;

    for (size_t i = 0; i < n; i++)
        sum = sum * 1099511628211u + word[i];
    v[0] = sum;
    v[1] = ~sum;
    rc = banyan_allreduce(v, v, 2, BANYAN_U64, BANYAN_MAX, comm, NULL);
    *same = v[0] == ~v[1];
    return rc;
}

void job_bar(int step, int steps, double loss, double seconds)
{
    enum { WIDTH = 40 };
    char bar[WIDTH + 1];
    int full = steps ? (int)((double)step / steps * WIDTH) : 0;

    if (!isatty(STDERR_FILENO))
        return;
    memset(bar, ' ', WIDTH);
    memset(bar, '=', (size_t)full);
    bar[WIDTH] = 0;
    fprintf(stderr, "\r[%s] %d/%d  loss %.4f  %.0f s left ", bar, step, steps, loss,
            step ? seconds / step * (steps - step) : 0);
    if (step == steps)
        fputc('\n', stderr);
}

/* ---- checkpoints ---- */

struct head {
    char magic[8];
    uint64_t bytes; /* of all parts */
};

static const char magic[8] = "bnytrain";

static uint64_t bytes_of(const struct job_part *parts, int n)
{
    uint64_t bytes = 0;

    for (int i = 0; i < n; i++)
        bytes += parts[i].bytes;
    return bytes;
}

static int write_parts(const char *path, const struct job_part *parts, int n)
{
    struct head h = { .bytes = bytes_of(parts, n) };
    FILE *f = fopen(path, "wb");
    int good;

    if (!f)
        return -1;
    memcpy(h.magic, magic, sizeof magic);
    good = fwrite(&h, sizeof h, 1, f) == 1;
    for (int i = 0; i < n && good; i++)
        good = !parts[i].bytes || fwrite(parts[i].at, parts[i].bytes, 1, f) == 1;
    good = good && fflush(f) == 0 && fsync(fileno(f)) == 0;
    return fclose(f) == 0 && good ? 0 : -1;
}

int job_write(const char *folder, struct banyan_comm *comm, const struct job_part *parts, int n)
{
    int rank = banyan_comm_rank(comm);
    int32_t bad;
    char path[4096], beside[4096];

    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        fprintf(stderr, "cannot make the folder %s: %s\n", folder, strerror(errno));
    snprintf(path, sizeof path, "%s/rank%d", folder, rank);
    snprintf(beside, sizeof beside, "%s/rank%d.new", folder, rank);
    bad = write_parts(beside, parts, n) != 0;
    if (bad)
        fprintf(stderr, "rank %d: cannot write %s: %s\n", rank, beside, strerror(errno));
    if (banyan_allreduce(&bad, &bad, 1, BANYAN_I32, BANYAN_MAX, comm, NULL) < 0 || bad)
        return -1;
    if (rename(beside, path) != 0) {
        fprintf(stderr, "rank %d: cannot rename %s: %s\n", rank, beside, strerror(errno));
        return -1;
    }
    return 0;
}

static int read_parts(FILE *f, const struct job_part *parts, int n, void **rest, size_t *bytes)
{
    struct head h;
    int good = fread(&h, sizeof h, 1, f) == 1 && !memcmp(h.magic, magic, sizeof magic) &&
               h.bytes >= bytes_of(parts, n) && h.bytes < SIZE_MAX / 2;

    for (int i = 0; i < n && good; i++)
        good = !parts[i].bytes || fread(parts[i].at, parts[i].bytes, 1, f) == 1;
    if (!good)
        return -1;
    *bytes = (size_t)(h.bytes - bytes_of(parts, n));
    *rest = malloc(*bytes + 1);
    return *rest && fread(*rest, 1, *bytes + 1, f) == *bytes ? 0 : -1;
}

int job_read(const char *folder, struct banyan_comm *comm, const struct job_part *parts, int n,
             void **rest, size_t *bytes)
{
    int rank = banyan_comm_rank(comm), rc;
    char path[4096];
    FILE *f;

    *rest = NULL;
    snprintf(path, sizeof path, "%s/rank%d", folder, rank);
    f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "rank %d: cannot read %s: %s\n", rank, path, strerror(errno));
        return -1;
    }
    rc = read_parts(f, parts, n, rest, bytes);
    fclose(f);
    if (rc != 0)
        fprintf(stderr, "rank %d: %s is no checkpoint of this model\n", rank, path);
    return rc;
}
