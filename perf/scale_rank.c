/* SPDX-License-Identifier: BSD-3-Clause */
/* scale_rank: what one rank of a large job takes. Each rank measures itself; rank 0 prints the
 * greatest value of all ranks in one line of name=value pairs. perf/scale.py runs it.
 *
 *   SCALE_BEGUN_NS=CLOCK_MONOTONIC banyan_run -n 128 build/perf/scale_rank [alltoall]
 *
 * Times are in seconds since SCALE_BEGUN_NS: when the last rank is through init, through its
 * first allreduce (4 bytes), through an alltoall (64 bytes a pair, where asked for), through
 * finalize (rank 0 alone). fds and pss_kib: open files and the proportional share of memory
 * after each of them. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "banyan/banyan.h"

enum { BLOCK = 64 };
enum { SECONDS, FDS, PSS_KIB, VALUES };

static const char *const phases[] = { "init", "allreduce", "alltoall" };

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 3; /* ".", ".." and the folder itself */
}

/* KiB; 0 where the kernel does not say. */
static double pss(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    double kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "Pss:", 4))
            kib = strtod(line + 4, NULL);
    if (f)
        fclose(f);
    return kib;
}

static void must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "scale_rank: %s\n", banyan_last_error());
    exit(1);
}

static void measure(double v[VALUES], uint64_t begun)
{
    v[SECONDS] = (double)(now_ns() - begun) / 1e9;
    v[FDS] = open_files();
    v[PSS_KIB] = pss();
}

/* What each rank gets is checked: a job that ends quickly and wrong is worth nothing. */
static void alltoall(struct banyan_comm *comm)
{
    int n = banyan_comm_count(comm), rank = banyan_comm_rank(comm);
    uint8_t *out = malloc((size_t)n * BLOCK), *in = calloc((size_t)n, BLOCK);

    if (!out || !in)
        exit(1);
    for (int r = 0; r < n; r++)
        memset(out + (size_t)r * BLOCK, (rank * 7 + r) & 0xff, BLOCK);
    must(banyan_alltoall(out, in, BLOCK, BANYAN_U8, comm, NULL));
    for (int r = 0; r < n; r++)
        if (in[(size_t)r * BLOCK] != ((r * 7 + rank) & 0xff)) {
            fprintf(stderr, "scale_rank: rank %d got a wrong block of rank %d\n", rank, r);
            exit(1);
        }
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    const char *text = getenv("SCALE_BEGUN_NS");
    uint64_t begun = text ? strtoull(text, NULL, 10) : now_ns();
    int all = argc > 1 && !strcmp(argv[1], "alltoall"), nphases = all ? 3 : 2, rank, n;
    double v[3 * VALUES] = { 0 };
    struct banyan_comm *comm = NULL;
    int32_t one = 1;

    must(banyan_comm_init_env(&comm, NULL));
    measure(v, begun);
    must(banyan_allreduce(&one, &one, 1, BANYAN_I32, BANYAN_SUM, comm, NULL));
    measure(v + VALUES, begun);
    rank = banyan_comm_rank(comm);
    n = banyan_comm_count(comm);
    if (one != n) {
        fprintf(stderr, "scale_rank: rank %d: the sum is %d of %d\n", rank, (int)one, n);
        return 1;
    }
    if (all) {
        alltoall(comm);
        measure(v + 2 * VALUES, begun);
    }
    must(banyan_allreduce(v, v, (size_t)nphases * VALUES, BANYAN_F64, BANYAN_MAX, comm, NULL));
    must(banyan_comm_finalize(comm));
    if (rank != 0)
        return 0;
    printf("scale ranks=%d", n);
    for (int p = 0; p < nphases; p++)
        printf(" %s_s=%.6f %s_fds=%.0f %s_pss_kib=%.0f", phases[p], v[p * VALUES + SECONDS],
               phases[p], v[p * VALUES + FDS], phases[p], v[p * VALUES + PSS_KIB]);
    printf(" finalize_s=%.6f\n", (double)(now_ns() - begun) / 1e9);
    return 0;
}
