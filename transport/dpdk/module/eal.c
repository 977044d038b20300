/* SPDX-License-Identifier: BSD-3-Clause */
/* The EAL inside a library: started once per process with no lcore of its own, without pinning
 * the caller; or the program's own. Never cleaned up: rte_eal_cleanup races with the interrupt
 * thread of this DPDK, and an EAL cannot be started twice. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_memory.h>

#include "transport/dpdk/module/dpdk_module.h"

#define ARGS_MAX   48
#define HEADS      16384u
#define HEAD_ROOM  (RTE_PKTMBUF_HEADROOM + 512)
#define MEMORY_MIB "4096" /* address space; pages are populated on first touch */

static struct rte_mempool *heads;
static char begun_with[1024],
    failure[BNY_DGRAM_TEXT]; /* arguments and result of our own start */
static int ours;

/* ---- DPDK's own lines ---- */

/* Users need no log line from a successful operation (a server that is not there yet, a missing
 * kernel feature): lines are kept back, and if the operation fails its first one is added to
 * our sentence. */
static struct {
    pthread_mutex_t lock;
    char first[160];
    int loud;
} lines = { .lock = PTHREAD_MUTEX_INITIALIZER };

void bny_eal_hear(const char *text, size_t len)
{
    const char *end = memchr(text, '\n', len);

    pthread_mutex_lock(&lines.lock);
    if (lines.loud)
        fwrite(text, 1, len, stderr);
    if (!lines.first[0])
        snprintf(lines.first, sizeof lines.first, "%.*s",
                 (int)(end ? end - text : (ptrdiff_t)len), text);
    pthread_mutex_unlock(&lines.lock);
}

static ssize_t take_line(void *cookie, const char *text, size_t len)
{
    bny_eal_hear(text, len);
    return (ssize_t)len;
}

void bny_eal_forget_lines(void)
{
    pthread_mutex_lock(&lines.lock);
    lines.first[0] = '\0';
    pthread_mutex_unlock(&lines.lock);
}

/* Adds DPDK's own first line to our sentence. */
void bny_eal_explain(char *text)
{
    size_t len = strlen(text);

    pthread_mutex_lock(&lines.lock);
    if (lines.first[0])
        snprintf(text + len, BNY_DGRAM_TEXT - len, " (DPDK: %s)", lines.first);
    pthread_mutex_unlock(&lines.lock);
}

static void keep_lines(int loud)
{
    static const cookie_io_functions_t io = { .write = take_line };
    FILE *f = fopencookie(NULL, "w", io);

    lines.loud = loud;
    if (f) {
        setvbuf(f, NULL, _IOLBF, 0);
        rte_openlog_stream(f);
    }
}

/* ---- starting ---- */

struct rte_mempool *bny_eal_heads(void)
{
    return heads;
}

/* "0@(0,3)": one lcore that may run where this thread may, so that starting changes no
 * affinity. */
static void lcores(char *out, size_t cap)
{
    cpu_set_t set;
    size_t len = (size_t)snprintf(out, cap, "0@(");

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_SET(0, &set);
    for (int i = 0; i < CPU_SETSIZE && i < RTE_MAX_LCORE && len < cap - 8; i++)
        if (CPU_ISSET(i, &set))
            len += (size_t)snprintf(out + len, cap - len, "%d,", i);
    out[len - 1] = ')';
}

static int eal_has(const char *args, const char *what)
{
    return args && strstr(args, what) != NULL;
}

static int run_eal(const char *args, const char *device, char *text)
{
    static char cores[8 * CPU_SETSIZE], extra[1024], allow[256]; /* the EAL keeps pointers */
    char *argv[ARGS_MAX], *save;
    int argc = 0;
    int own_memory = eal_has(args, "--in-memory") || eal_has(args, "--huge-dir") ||
                     eal_has(args, "--no-huge") || eal_has(args, "--file-prefix");

    lcores(cores, sizeof cores);
    argv[argc++] = (char *)"banyan";
    argv[argc++] = (char *)"--lcores";
    argv[argc++] = cores;
    argv[argc++] = (char *)"--no-telemetry";
    if (!eal_has(args, "--log-level"))
        argv[argc++] = (char *)"--log-level=*:error";
    if (!device && !eal_has(args, "--iova-mode")) /* a card's bus and IOMMU decide */
        argv[argc++] = (char *)"--iova-mode=va";
    if (device) {
        snprintf(allow, sizeof allow, "%s", device);
        argv[argc++] = (char *)"-a";
        argv[argc++] = allow;
    } else {
        argv[argc++] = (char *)"--no-pci";
    }
    if (!own_memory && device) {
        argv[argc++] = (char *)"--in-memory";
    } else if (!own_memory) {
        argv[argc++] = (char *)"--no-huge";
        argv[argc++] = (char *)"--no-shconf";
        argv[argc++] = (char *)"--single-file-segments";
        argv[argc++] = (char *)"-m";
        argv[argc++] = (char *)MEMORY_MIB;
    }
    snprintf(extra, sizeof extra, "%s", args ? args : "");
    for (char *word = strtok_r(extra, " \t", &save); word && argc < ARGS_MAX - 1;
         word = strtok_r(NULL, " \t", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    if (rte_eal_init(argc, argv) >= 0)
        return 0;
    if (device && (rte_errno == EACCES || rte_errno == ENOMEM))
        say(text,
            "DPDK does not start: hugepages are missing, too few or not yours (%s): "
            "scripts/hugepages reserve 512",
            rte_strerror(rte_errno));
    else
        say(text, "DPDK does not start: %s; BANYAN_DPDK_ARGS=\"%.100s\"",
            rte_strerror(rte_errno), args ? args : "");
    bny_eal_explain(text);
    return -1;
}

/* This process's EAL, or a new one. A failed one can be neither restarted nor given other
 * arguments. */
static int have_eal(const char *args, const char *device, int loud, char *text)
{
    int rc;

    if (failure[0]) {
        say(text, "%s", failure);
        return -1;
    }
    if (ours || rte_lcore_count() > 0) {
        if (strcmp(args ? args : "", begun_with) != 0) {
            say(text,
                "DPDK runs in this process already, started by %s: BANYAN_DPDK_ARGS=\"%.100s\" "
                "comes too late; unset "
                "it, or give these arguments %s",
                ours ? "an earlier communicator with other arguments" : "the program", args,
                ours ? "from the first communicator on" : "to the program's rte_eal_init");
            return -1;
        }
        if (rte_eal_process_type() != RTE_PROC_PRIMARY) {
            say(text, "the program runs DPDK as a secondary process, which can make no ports: "
                      "start it as a primary one, "
                      "with a --file-prefix of its own");
            return -1;
        }
        return 0;
    }
    keep_lines(loud);
    rc = run_eal(args, device, text);
    if (rc != 0)
        snprintf(failure, sizeof failure, "%s", text);
    ours = rc == 0;
    snprintf(begun_with, sizeof begun_with, "%s", args ? args : "");
    return rc;
}

int bny_eal_start(const char *args, const char *device, int loud, char *text)
{
    cpu_set_t before;
    int saved = sched_getaffinity(0, sizeof before, &before) == 0, rc;

    rc = have_eal(args, device, loud, text);
    if (rc != 0 || heads)
        return rc;
    if (saved)
        sched_setaffinity(0, sizeof before, &before);
    heads = rte_pktmbuf_pool_create("banyan_heads", HEADS, 256, 0, HEAD_ROOM, SOCKET_ID_ANY);
    if (!heads) {
        say(text,
            "DPDK has no memory for %u packet headers (%s): give it more, -m 512 at least "
            "(BANYAN_DPDK_ARGS, or "
            "the arguments of the program that started it)",
            HEADS, rte_strerror(rte_errno));
        return -1;
    }
    return 0;
}

struct call {
    void (*fn)(void *);
    void *arg;
    sem_t done;
};

static void run_call(void *arg)
{
    struct call *c = arg;

    c->fn(c->arg);
    sem_post(&c->done);
}

void bny_eal_call(void (*fn)(void *), void *arg)
{
    struct call c = { .fn = fn, .arg = arg };

    sem_init(&c.done, 0, 0);
    if (rte_eal_alarm_set(1, run_call, &c) != 0)
        fn(arg); /* no alarm: no interrupt thread to race with */
    else
        while (sem_wait(&c.done) != 0)
            continue; /* interrupted by a signal */
    sem_destroy(&c.done);
}

void *bny_eal_alloc(size_t bytes)
{
    return rte_malloc("banyan", bytes, 4096);
}

void bny_eal_release(void *mem)
{
    rte_free(mem);
}

int bny_eal_owns(const void *mem, size_t bytes)
{
    const struct rte_memseg_list *msl = rte_mem_virt2memseg_list(mem);

    return msl && !msl->external &&
           (const char *)mem + bytes <= (const char *)msl->base_va + msl->len;
}
