/* SPDX-License-Identifier: BSD-3-Clause */
/* The EAL inside a library: started once per process with no lcore of its own, without pinning the caller; or the one
 * that the program started. Never cleaned up: rte_eal_cleanup races with the interrupt thread of this DPDK, and an EAL
 * cannot be started twice. */
#include <errno.h>
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

#include "transport/dpdk/module/module.h"

#define ARGS_MAX   48
#define HEADS      16384u
#define HEAD_ROOM  (RTE_PKTMBUF_HEADROOM + 512)
#define MEMORY_MIB "4096" /* address space; pages are taken when they are touched */

static struct rte_mempool *heads;

struct rte_mempool *bny_eal_heads(void)
{
    return heads;
}

/* "0@(0,3)": one lcore that may run where this thread may, so that starting changes nobody's affinity. */
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

static int has(const char *args, const char *what)
{
    return args && strstr(args, what) != NULL;
}

static int run_eal(const char *args, const char *device, char *text)
{
    static char cores[8 * CPU_SETSIZE], extra[1024], allow[64]; /* the EAL keeps pointers */
    char *argv[ARGS_MAX], *save;
    int argc = 0;
    int own_memory = has(args, "--in-memory") || has(args, "--huge-dir") || has(args, "--no-huge") ||
                     has(args, "--file-prefix");

    lcores(cores, sizeof cores);
    argv[argc++] = (char *)"banyan";
    argv[argc++] = (char *)"--lcores";
    argv[argc++] = cores;
    argv[argc++] = (char *)"--no-telemetry";
    if (!has(args, "--log-level")) {
        argv[argc++] = (char *)"--log-level=*:error";
        argv[argc++] = (char *)"--log-level=pmd.net.memif:critical"; /* a server that is not there yet is no error */
    }
    if (!has(args, "--iova-mode"))
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
    for (char *word = strtok_r(extra, " \t", &save); word && argc < ARGS_MAX - 1; word = strtok_r(NULL, " \t", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    if (rte_eal_init(argc, argv) < 0) {
        if (device && rte_errno == EACCES)
            say(text, "DPDK does not start: %s; hugepages are missing or not yours: scripts/hugepages reserves some",
                rte_strerror(rte_errno));
        else
            say(text, "DPDK does not start (%s; its own lines above say why); BANYAN_DPDK_ARGS=\"%.100s\"%s",
                rte_strerror(rte_errno), args ? args : "",
                device ? "; without hugepages: scripts/hugepages" : "");
        return -1;
    }
    return 0;
}

int bny_eal_start(const char *args, const char *device, char *text)
{
    cpu_set_t before;
    int saved;

    if (heads)
        return 0;
    saved = sched_getaffinity(0, sizeof before, &before) == 0;
    if (rte_lcore_count() == 0 && run_eal(args, device, text) != 0)
        return -1;
    if (saved)
        sched_setaffinity(0, sizeof before, &before);
    heads = rte_pktmbuf_pool_create("banyan_heads", HEADS, 256, 0, HEAD_ROOM, SOCKET_ID_ANY);
    if (!heads) {
        say(text, "DPDK has no memory for %u packet headers (%s): give it more, -m 512 at least (BANYAN_DPDK_ARGS, or "
            "the arguments of the program that started it)", HEADS, rte_strerror(rte_errno));
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
            continue; /* a signal */
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

    return msl && !msl->external && (const char *)mem + bytes <= (const char *)msl->base_va + msl->len;
}
