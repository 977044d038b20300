/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks: a copy of the library each, as its file-scope state is a process's; and what a
 * rank does with it. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "collectives/plan/shared.h"
#include "simulator/work.h"

struct sim_rank *sim_ranks;
int sim_nranks;

/* ---- copies of the library ---- */

static int copy_of(const void *bytes, size_t len)
{
    int fd = memfd_create("libbanyan", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, bytes, len) != (ssize_t)len) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Pages that no copy writes to are the same in all copies: they share the file's pages, and the
 * copy's own pages are given back. A copy takes 2.6 MB else, of which 0.1 are ever written to,
 * and each has its own lines of the caches. */
static int share_text(const struct sim_rank *r, int fd, int common)
{
    struct link_map *map;
    const Elf64_Ehdr *head;
    const Elf64_Phdr *part;

    if (dlinfo(r->lib, RTLD_DI_LINKMAP, &map) != 0)
        return -1;
    head = (const void *)map->l_addr;
    part = (const void *)(map->l_addr + head->e_phoff);
    for (int i = 0, n = head->e_phnum; i < n; i++) {
        uint64_t at = part[i].p_vaddr & ~(uint64_t)4095,
                 off = part[i].p_offset & ~(uint64_t)4095,
                 end = (part[i].p_vaddr + part[i].p_filesz + 4095) & ~(uint64_t)4095;
        int prot = PROT_READ | (part[i].p_flags & PF_X ? PROT_EXEC : 0);

        if (part[i].p_type != PT_LOAD || part[i].p_flags & PF_W)
            continue;
        if (mmap((void *)(map->l_addr + at), end - at, prot, MAP_PRIVATE | MAP_FIXED, common,
                 (off_t)off) == MAP_FAILED ||
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off,
                      (off_t)(end - at)) != 0)
            return -1;
    }
    return 0;
}

static int find_functions(struct sim_rank *r)
{
    static const char *const names[] = { SIM_API_NAMES };
    void **to = calloc(1, sizeof(struct sim_api));

    r->api = (const struct sim_api *)(void *)to;
    for (size_t i = 0; to && i < sizeof names / sizeof names[0]; i++) {
        to[i] = dlsym(r->lib, names[i]);
        if (!to[i]) {
            fprintf(stderr, "banyan_sim: the library has no %s\n", names[i]);
            return -1;
        }
    }
    return to ? 0 : -1;
}

static int rank_load(struct sim_rank *r, const void *bytes, size_t len, int common)
{
    char path[64];
    int fd = copy_of(bytes, len);

    if (fd < 0) {
        perror("banyan_sim: a copy of the library");
        return -1;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd); /* stays open: the loader knows it by
                                                            this name */
    r->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!r->lib) {
        fprintf(stderr, "banyan_sim: %s\n", dlerror());
        return -1;
    }
    if (share_text(r, fd, common) != 0) {
        perror("banyan_sim: a copy of the library");
        return -1;
    }
    return find_functions(r);
}

/* Where the copies find what one of them has planned (collectives/plan/shared.h). */
void *bny_common_place(size_t bytes)
{
    static _Alignas(64) unsigned char place[512];

    return bytes <= sizeof place ? place : NULL;
}

int sim_ranks_open(int n, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    struct stat st;
    void *bytes;
    int common;

    if (fd < 0 || fstat(fd, &st) != 0) {
        fprintf(stderr, "banyan_sim: the library %s cannot be read\n", path);
        return -1;
    }
    bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    common = bytes == MAP_FAILED ? -1 : copy_of(bytes, (size_t)st.st_size);
    sim_ranks = calloc((size_t)n, sizeof *sim_ranks);
    sim_nranks = n;
    if (common < 0 || !sim_ranks)
        return -1;
    for (int r = 0; r < n && rc == 0; r++) {
        sim_ranks[r].rank = r;
        rc = rank_load(&sim_ranks[r], bytes, (size_t)st.st_size, common);
    }
    close(common);
    munmap(bytes, (size_t)st.st_size);
    return rc;
}

/* ---- fates ---- */

void sim_rank_kill(struct sim_rank *r)
{
    if (r->fate == SIM_DEAD)
        return;
    r->fate = SIM_DEAD;
    sim_mix(0xdead0000u + (uint64_t)r->rank);
    while (r->files) /* as the kernel does */
        sim_file_close(r->files);
}

void sim_rank_stop(struct sim_rank *r, int stop)
{
    if (r->fate != SIM_DEAD)
        r->fate = stop ? SIM_STOPPED : SIM_LIVES;
}

/* ---- what a rank does ---- */

static struct banyan_id job_id;
static int have_id;

static void sleep_ns(uint64_t ns)
{
    struct timespec ts = { .tv_sec = (time_t)(ns / SIM_S), .tv_nsec = (long)(ns % SIM_S) };

    nanosleep(&ts, NULL);
}

static int get_id(struct sim_rank *r)
{
    if (r->rank == 0) {
        int rc = r->api->id_create(&job_id);

        have_id = rc == 0 ? 1 : -1;
        return rc;
    }
    while (!have_id && sim_ranks[0].fate != SIM_DEAD)
        sleep_ns(20 * SIM_US);
    return have_id == 1 ? 0 : -BANYAN_ERANKDEAD; /* as its launcher would say */
}

static int rank_join(struct sim_rank *r, struct banyan_comm **comm)
{
    struct banyan_config cfg;
    int rc = get_id(r);

    if (rc)
        return rc;
    sim_work_config(r, &cfg);
    return r->api->comm_init(comm, &job_id, sim_nranks - sim_work.newcomers, r->rank, &cfg);
}

static void note_failure(struct sim_rank *r, struct banyan_comm *comm, int rc)
{
    r->rc = rc;
    r->blamed = -1;
    r->failed_ns = sim_time();
    if (comm)
        r->api->async_error(comm, &r->blamed, r->text, sizeof r->text);
    if (!r->text[0])
        snprintf(r->text, sizeof r->text, "%s", r->api->last_error());
}

/* For the ranks that are there from the start. */
static void note_in(void)
{
    static int in;

    if (++in == sim_nranks - sim_work.newcomers && sim_work.all_are_in)
        sim_work.all_are_in();
}

static void *rank_main(void *arg)
{
    struct sim_rank *r = arg;
    struct banyan_comm *comm = NULL;
    int rc = 0;

    if (r->is_in) {
        rc = rank_join(r, &comm);
    } else if (!sim_work_join(r, &comm)) {
        r->done = 1;
        r->done_ns = sim_time();
        return NULL;
    }
    r->begun_ns = rc ? 0 : sim_time();
    if (rc == 0 && !r->came)
        note_in();
    r->init_messages = r->messages;
    r->init_bytes = r->bytes;
    if (rc == 0)
        rc = sim_work_run(r, &comm);
    if (rc)
        note_failure(r, comm, rc);
    if (rc)
        r->api->comm_destroy(comm);
    else
        rc = r->api->comm_finalize(comm);
    if (rc && !r->rc && !sim_work.survive) /* others may die in it */
        note_failure(r, NULL, rc);
    r->done = 1;
    r->done_ns = sim_time();
    while (r->files) /* the process ends */
        sim_file_close(r->files);
    return NULL;
}

int sim_ranks_start(uint64_t seed, int per_host)
{
    for (int i = 0; i < sim_nranks; i++) {
        struct sim_rank *r = &sim_ranks[i];

        r->is_in = i < sim_nranks - sim_work.newcomers;
        r->host = i / per_host;
        r->ip = 0x0a000001u + (uint32_t)r->host;
        r->files_max = 1024 + 2 * sim_nranks; /* rank 0 hears of all */
        r->random = seed + (uint64_t)i * 0x9e3779b97f4a7c15u;
        if (!sim_thread_new(r, rank_main, r))
            return -1;
    }
    return 0;
}
