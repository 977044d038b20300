/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that the library shares, memory of devices, and what it leaves on the machine. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memcheck.h"
#include "tests/mp/case.h"
#include "tests/support/fake_cuda.h"

/* Allocated on the ranks whose bit is set; plain memory elsewhere. */
static void allreduce_mixed(struct test *t, unsigned mask, size_t n)
{
    uint32_t *x, *y;
    int special = mask >> t->rank & 1;

    if (special) {
        CHECK_OK(t, banyan_mem_alloc(t->comm, n * 4, (void **)&x));
        CHECK_OK(t, banyan_mem_alloc(t->comm, n * 4, (void **)&y));
        CHECK(t, ((uintptr_t)x & 4095) == 0, "not aligned to 4096: %p", (void *)x);
        for (size_t i = 0; i < n; i++)
            CHECK(t, x[i] == 0, "not zeroed at %zu", i);
    } else {
        x = case_malloc(n * 4);
        y = case_malloc(n * 4);
    }
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < n; i++) {
            x[i] = (uint32_t)i * 3 + (uint32_t)t->rank;
            y[i] = 0;
        }
        CHECK_OK(t, banyan_allreduce(x, y, n, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        for (size_t i = 0; i < n; i++)
            CHECK(t,
                  y[i] == (uint32_t)t->n * (uint32_t)i * 3 + (uint32_t)(t->n * (t->n - 1) / 2),
                  "mask %#x element %zu of %zu", mask, i, n);
        CHECK_OK(t, banyan_allreduce(x, x, n, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        CHECK(t, !memcmp(x, y, n * 4), "mask %#x: in place differs", mask);
    }
    if (special) {
        CHECK_OK(t, banyan_mem_free(t->comm, x));
        CHECK_OK(t, banyan_mem_free(t->comm, y));
    } else {
        free(x);
        free(y);
    }
}

/* What is not from here is refused, and neither freed nor changed. */
static void foreign_pointers(struct test *t)
{
    static char page[8192] __attribute__((aligned(4096)));
    void *mem, *other = case_malloc(64);

    CHECK_OK(t, banyan_mem_alloc(t->comm, 5000, &mem));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_free(t->comm, &t));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_free(t->comm, other));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_free(t->comm, (char *)mem + 64));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_deregister(t->comm, mem));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_deregister(t->comm, &t));
    CHECK_OK(t, banyan_mem_register(t->comm, page, sizeof page, -1, 0));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_free(t->comm, page));
    CHECK_OK(t, banyan_mem_deregister(t->comm, page));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_deregister(t->comm, page));
    memset(mem, 1, 5000);
    CHECK_OK(t, banyan_mem_free(t->comm, mem));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_mem_free(t->comm, mem));
    free(other);
}

static int mem_mixed(struct test *t)
{
    static const size_t counts[] = { 1, 1000, 40000, 500001 };

    for (unsigned mask = 0; mask<1u << t->n; mask += t->n> 2 ? 3 : 1)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            allreduce_mixed(t, mask, counts[i]);
    allreduce_mixed(t, ~0u, 500001);
    /* Freed and allocated again often: no descriptor or mapping may pile up. */
    for (int i = 0; i < 200; i++) {
        void *p;
        CHECK_OK(t, banyan_mem_alloc(t->comm, 1 << 20, &p));
        CHECK_OK(t, banyan_broadcast(p, 1 << 20, BANYAN_U8, i % t->n, t->comm, NULL));
        CHECK_OK(t, banyan_mem_free(t->comm, p));
    }
    CHECK_OK(t, banyan_mem_free(t->comm, NULL));
    foreign_pointers(t);
    case_check_works(t, t->comm);
    return 0;
}

/* ---- device memory ---- */

#define DEVICE_FLOATS ((size_t)700001)

struct device_rig {
    const struct fake_cuda *fake;
    float *dev, *seen; /* twice as many floats, and how this process reads them */
};

static void device_fill(const struct test *t, const struct device_rig *g, size_t n)
{
    for (size_t i = 0; i < n; i++)
        g->seen[i] = (float)(i % 100 + (size_t)t->rank);
}

static void device_check(const struct test *t, const float *x, size_t n, int scale, int add,
                         const char *what)
{
    for (size_t i = 0; i < n; i++)
        CHECK(t, x[i] == (float)((int)(i % 100) * scale + add), "%s of %zu: [%zu] is %g", what,
              n, i, (double)x[i]);
}

static void device_sums(struct test *t, const struct device_rig *g, size_t n)
{
    int ranks = t->n * (t->n - 1) / 2;
    float *host = case_malloc(n * sizeof *host);
    struct banyan_request *rq;

    device_fill(t, g, n);
    CHECK_OK(t, banyan_allreduce(g->dev, g->dev + n, n, BANYAN_F32, BANYAN_SUM, t->comm, NULL));
    device_check(t, g->seen + n, n, t->n, ranks, "device to device");
    CHECK_OK(t, banyan_allreduce(g->dev, host, n, BANYAN_F32, BANYAN_SUM, t->comm, NULL));
    device_check(t, host, n, t->n, ranks, "device to host");
    memcpy(host, g->seen, n * sizeof *host);
    CHECK_OK(t, banyan_allreduce(host, g->dev, n, BANYAN_F32, BANYAN_SUM, t->comm, NULL));
    device_check(t, g->seen, n, t->n, ranks, "host to device");
    CHECK_OK(t, banyan_allreduce_init(g->dev, g->dev, n, BANYAN_F32, BANYAN_SUM, t->comm, NULL,
                                      &rq));
    for (int again = 0; again < 3; again++) {
        device_fill(t, g, n);
        CHECK_OK(t, banyan_start(rq));
        CHECK_OK(t, banyan_wait(rq, -1));
        device_check(t, g->seen, n, t->n, ranks, "in place, by a request");
    }
    CHECK_OK(t, banyan_request_free(rq));
    free(host);
}

static void device_moves(struct test *t, const struct device_rig *g, size_t n)
{
    int after = (t->rank + 1) % t->n, before = (t->rank + t->n - 1) % t->n;

    device_fill(t, g, n);
    CHECK_OK(t, banyan_sendrecv(g->dev, n, BANYAN_F32, after, g->dev + n, n, BANYAN_F32, before,
                                t->comm, NULL));
    device_check(t, g->seen + n, n, 1, before, "sendrecv");
    if (t->rank == 0)
        for (int r = 1; r < t->n; r++) {
            CHECK_OK(t,
                     banyan_recv(g->dev + n, n, BANYAN_F32, BANYAN_ANY_SOURCE, t->comm, NULL));
            device_check(t, g->seen + n, n, 1, (int)g->seen[n], "a receive from any rank");
        }
    else
        CHECK_OK(t, banyan_send(g->dev, n, BANYAN_F32, 0, t->comm, NULL));
    CHECK_OK(t, banyan_broadcast(g->dev, n, BANYAN_F32, t->n - 1, t->comm, NULL));
    device_check(t, g->seen, n, 1, t->n - 1, "broadcast");
    CHECK_OK(t, banyan_group_start());
    CHECK_OK(t, banyan_allreduce(g->dev, g->dev, n, BANYAN_F32, BANYAN_MAX, t->comm, NULL));
    CHECK_OK(t, banyan_broadcast(g->dev + n, n, BANYAN_F32, 0, t->comm, NULL));
    CHECK_OK(t, banyan_group_end());
    device_check(t, g->seen, n, 1, t->n - 1, "a maximum in a group");
}

/* All ranks get the driver's error of one. */
static void device_fails(struct test *t, const struct device_rig *g)
{
    struct banyan_comm *comm;
    int bad = t->n - 1;

    CHECK_OK(t, banyan_comm_dup(t->comm, &comm));
    if (t->rank == bad)
        g->fake->fail(700, 0);
    CHECK_RC(t, -BANYAN_ESYSTEM,
             banyan_allreduce(g->dev, g->dev, 1000, BANYAN_F32, BANYAN_SUM, comm, NULL));
    g->fake->fail(0, 0);
    CHECK_HAS(t, banyan_last_error(), "an illegal memory access");
    CHECK_HAS(t, banyan_last_error(), "CUDA");
    CHECK_OK(t, banyan_comm_destroy(comm));
}

static int device_pointer(struct test *t)
{
    static const size_t counts[] = { 1, 1000, DEVICE_FLOATS };
    struct device_rig g = { .fake = fake_cuda_load() };
    struct fake_cuda_counts c;

    CHECK(t, g.fake, "no fake driver");
    g.dev = g.fake->alloc(2 * DEVICE_FLOATS * sizeof(float), t->rank % 2);
    g.seen = g.fake->reach(g.dev);
    g.fake->seed((uint64_t)t->rank);
    CHECK_OK(t, case_init(t, NULL, &t->comm));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        device_sums(t, &g, counts[i]);
        device_moves(t, &g, counts[i]);
    }
    device_fails(t, &g);
    case_check_works(t, t->comm);
    g.fake->counts(&c);
    CHECK(t, c.copies > 0 && c.pageable == 0 && c.stack == 0 && c.streams == 1,
          "%zu copies, %zu of them pageable, %zu contexts, %zu streams", c.copies, c.pageable,
          c.stack, c.streams);
    return 0;
}

/* ---- what a job leaves while it runs ---- */
/* Named files of tmpfs or /tmp that this process has open; Criterion's arena is inherited. */
static int is_named_file(const char *path)
{
    return !strncmp(path, "/tmp/", 5) ||
           (!strncmp(path, "/dev/shm/", 9) && strncmp(path, "/dev/shm/bxf_", 13) != 0);
}

static int is_my_socket(unsigned long inode)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    char link[300], target[64], mine[64];
    int found = 0;

    snprintf(mine, sizeof mine, "socket:[%lu]", inode);
    while (d && !found && (e = readdir(d))) {
        ssize_t len;
        snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
        len = readlink(link, target, sizeof target - 1);
        target[len < 0 ? 0 : len] = '\0';
        found = !strcmp(target, mine);
    }
    if (d)
        closedir(d);
    return found;
}

/* Of this process only: the list is the whole machine's. */
static void check_no_socket_files(struct test *t)
{
    FILE *sockets = fopen("/proc/net/unix", "r");
    unsigned long inode;
    char line[600], first;

    while (sockets &&
           fgets(line, sizeof line, sockets)) /* the inode, then the path or '@' and a name */
        if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %c", &inode, &first) == 2 && first == '/')
            CHECK(t, !is_my_socket(inode), "socket file: %s", line);
    if (sockets)
        fclose(sockets);
}

static void check_no_named_files(struct test *t)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    char link[300], target[300], line[600];
    FILE *maps;

    while (d && (e = readdir(d))) {
        ssize_t len;
        snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
        len = readlink(link, target, sizeof target - 1);
        if (len < 0)
            continue;
        target[len] = '\0';
        CHECK(t, !is_named_file(target), "%s is open", target);
    }
    if (d)
        closedir(d);
    maps = fopen("/proc/self/maps", "r");
    while (maps &&
           fgets(line, sizeof line, maps)) /* private: programs, which may lie anywhere */
        CHECK(t, !strstr(line, "/dev/shm/") && !(strstr(line, " /tmp/") && strstr(line, "-s ")),
              "mapped: %s", line);
    if (maps)
        fclose(maps);
    check_no_socket_files(t);
}

static int footprint(struct test *t)
{
    size_t bytes = 4 << 20;
    void *p;

    CHECK_OK(t, banyan_mem_alloc(t->comm, bytes, &p));
    CHECK_OK(t, banyan_allreduce(p, p, bytes, BANYAN_U8, BANYAN_MAX, t->comm, NULL));
    check_no_named_files(t);
    CHECK_OK(t, banyan_mem_free(t->comm, p));
    return 0;
}

/* ---- how much of it ---- */
#define RESIDENT_MAX (16u << 20) /* besides the user's buffers */

/* Proportional set size of this process in bytes, or 0: unknown. */
static size_t resident_bytes(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    unsigned long kib = 0;
    char line[200];

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %lu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (size_t)kib << 10;
}

static void check_resident(struct test *t, int index, size_t user_bytes)
{
    size_t used;

    mp_shared_barrier(t->shared, t->n); /* what is shared counts for each that has it */
    used = resident_bytes();
    mp_shared_barrier(t->shared, t->n);
    used = used > user_bytes ? used - user_bytes : 0;
    atomic_store(&t->shared->value[t->rank][index], used);
    CHECK(t, used < RESIDENT_MAX, "%zu KiB besides %zu KiB of buffers", used >> 10,
          user_bytes >> 10);
}

static int resident(struct test *t)
{
    size_t n = (1 << 20) / 4;
    uint32_t *x;

#if BNY_ADDRESS_SANITIZER || BNY_THREAD_SANITIZER
    return case_skip("a sanitizer's own memory counts too");
#endif
    if (resident_bytes() == 0)
        return case_skip("no Pss in /proc/self/smaps_rollup");
    x = case_malloc(n * 4);
    memset(x, 1, n * 4);
    check_resident(t, 0, n * 4);
    CHECK_OK(t, banyan_allreduce(x, x, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL));
    check_resident(t, 1, n * 4);
    CHECK_OK(t, banyan_allreduce(x, x, n, BANYAN_U32, BANYAN_MAX, t->comm, NULL));
    check_resident(t, 2, n * 4);
    free(x);
    return 0;
}

const struct mp_case cases_memory[] = {
    { "mem_mixed", mem_mixed, 0 },
    { "device_pointer", device_pointer, CASE_OWN_INIT | CASE_NO_THREADS },
    { "footprint", footprint, CASE_NO_THREADS },
    { "resident", resident, CASE_NO_THREADS },
    { 0 },
};
