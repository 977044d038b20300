/* SPDX-License-Identifier: BSD-3-Clause */
/* The path of a small allreduce, once warm, allocates nothing and makes no system call. And
 * ranks that spin learn that they share a CPU.
 *
 * Allocations are counted by linking the worker with --wrap=malloc and friends. System calls
 * are counted by a seccomp filter that traps every call made outside one function, whose
 * handler counts the call and makes it from there. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include "base/memcheck.h"
#include "collectives/world/comm.h"
#include "collectives/world/world.h"
#include "tests/mp/case.h"

#define ROUNDS 30
#define OPS    1000

static _Atomic unsigned long allocations;
static _Atomic int starved;

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
int __real_posix_memalign(void **out, size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t k, size_t n);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

/* ---- memory that is not to be had ---- */

/* Allocations from `first` on, up to `last`, of threads that are not fed. */
static _Atomic unsigned long taken, first_starved = ULONG_MAX, last_starved;
static _Thread_local int fed;

static int counts_in(void)
{
    unsigned long n;

    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    if (fed)
        return 1;
    n = atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
    return n < atomic_load_explicit(&first_starved, memory_order_relaxed) ||
           n >= atomic_load_explicit(&last_starved, memory_order_relaxed);
}

void *__wrap_malloc(size_t n)
{
    return counts_in() ? __real_malloc(n) : NULL;
}

void *__wrap_calloc(size_t k, size_t n)
{
    return counts_in() ? __real_calloc(k, n) : NULL;
}

void *__wrap_realloc(void *p, size_t n)
{
    int in = counts_in();

    return !in || atomic_load_explicit(&starved, memory_order_relaxed) ? NULL
                                                                       : __real_realloc(p, n);
}

void __wrap_free(void *p)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    __real_free(p);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return counts_in() ? __real_posix_memalign(out, align, n) : ENOMEM;
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return counts_in() ? __real_aligned_alloc(align, n) : NULL;
}

void case_starve_after(long calls, long fail)
{
    unsigned long first = atomic_load(&taken) + (unsigned long)calls;

    atomic_store(&last_starved, first + (unsigned long)fail);
    atomic_store(&first_starved, first);
}

void case_feed(int on)
{
    fed = on;
}

void case_starve(int starve)
{
    atomic_store(&starved, starve);
}

unsigned long case_allocations(void)
{
    return atomic_load(&allocations);
}

/* Calls of all kinds and sizes that are repeated: the plan, the staging and the connections are
 * there. */
static void mixed_round(struct test *t, void *a, void *b, size_t n)
{
    CHECK_OK(t, banyan_allreduce(a, b, n, BANYAN_I32, BANYAN_SUM, t->comm, NULL));
    CHECK_OK(t, banyan_allreduce(a, a, n, BANYAN_I32, BANYAN_SUM, t->comm, NULL));
    CHECK_OK(t, banyan_broadcast(a, n, BANYAN_I32, 0, t->comm, NULL));
    CHECK_OK(t, banyan_allgather(a, b, n / (size_t)t->n, BANYAN_I32, t->comm, NULL));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
}

/* "Repeating a call allocates nothing". */
static int no_allocation(struct test *t)
{
    static const size_t counts[] = { 1, 1000, 300000 };
    int32_t *a = case_malloc(300000 * 4), *b = case_malloc(300000 * 4);
    unsigned long before;

    memset(a, 0, 300000 * 4);
    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < 3; i++)
            mixed_round(t, a, b, counts[i]);
    before = atomic_load(&allocations);
    for (int round = 0; round < OPS; round++)
        CHECK_OK(t, banyan_allreduce(a, b, 1, BANYAN_I32, BANYAN_SUM, t->comm, NULL));
    CHECK(t, atomic_load(&allocations) == before, "%lu allocations in %d small allreduces",
          atomic_load(&allocations) - before, OPS);
    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < 3; i++)
            mixed_round(t, a, b, counts[i]);
    CHECK(t, atomic_load(&allocations) == before, "%lu allocations in repeated calls",
          atomic_load(&allocations) - before);
    free(a);
    free(b);
    CHECK(t, atomic_load(&allocations) > before, "the counter does not count");
    return 0;
}

/* Pins this rank to the CPU of that number. Returns 0, or -1 when there are not enough. */
static int pin(int rank)
{
    cpu_set_t set, one;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set) && rank-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            return sched_setaffinity(0, sizeof one, &one);
        }
    return -1;
}

#if BNY_ADDRESS_SANITIZER
static int no_syscall(struct test *t)
{
    return case_skip("AddressSanitizer does not bear a filter on its system calls");
}
#elif defined(__x86_64__)
/* Makes a system call; the only place where the filter lets them pass. */
__asm__(".text\n"
        ".p2align 12\n"
        ".globl quiet_syscall\n"
        ".type quiet_syscall, @function\n"
        "quiet_syscall:\n" /* (nr, args[6]) */
        "    mov %rdi, %rax\n"
        "    mov %rsi, %r11\n"
        "    mov 0(%r11), %rdi\n"
        "    mov 8(%r11), %rsi\n"
        "    mov 16(%r11), %rdx\n"
        "    mov 24(%r11), %r10\n"
        "    mov 32(%r11), %r8\n"
        "    mov 40(%r11), %r9\n"
        "    syscall\n"
        ".globl quiet_syscall_end\n"
        "quiet_syscall_end:\n"
        "    ret\n"
        ".size quiet_syscall, .-quiet_syscall\n");
long quiet_syscall(long nr, const long *args);
extern const char quiet_syscall_end[];

static _Atomic unsigned long syscalls;
static _Atomic long last_syscall;

static void on_sigsys(int sig, siginfo_t *info, void *context)
{
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    long args[6] = { g[REG_RDI], g[REG_RSI], g[REG_RDX], g[REG_R10], g[REG_R8], g[REG_R9] };
    long nr = (long)info->si_syscall;

    atomic_fetch_add(&syscalls, 1);
    atomic_store(&last_syscall, nr);
    g[REG_RAX] = quiet_syscall(nr, args);
}

/* Of the calling thread. rt_sigreturn must pass, for the handler. */
static int install_filter(void)
{
    uint64_t end = (uint64_t)(uintptr_t)quiet_syscall_end;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_rt_sigreturn, 4, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)end, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(end >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog prog = { .len = sizeof code / sizeof code[0], .filter = code };
    struct sigaction sa = { .sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO | SA_NODEFER };

    if (sigaction(SIGSYS, &sa, NULL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

/* A rank may be descheduled by other work of the machine, and its peer then goes to sleep: so
 * rounds are judged one by one, and one rank without a call in one round is the proof. */
static int no_syscall(struct test *t)
{
    unsigned long fewest = ~0ul, ok;
    int32_t x = 1, y = 0;
    int pinned = pin(t->rank) == 0;

    mp_shared_barrier(t->shared, t->n);
    atomic_store(&t->shared->marker[t->rank], pinned ? 1 : 2);
    mp_shared_barrier(t->shared, t->n);
    for (int r = 0; r < t->n; r++)
        if (atomic_load(&t->shared->marker[r]) == 2)
            return case_skip("%d ranks need a CPU each", t->n);
    for (int i = 0; i < OPS; i++)
        CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_I32, BANYAN_SUM, t->comm, NULL));
    CHECK(t, install_filter() == 0, "seccomp: %s", strerror(errno));
    getppid();
    CHECK(t, atomic_load(&syscalls) == 1 && atomic_load(&last_syscall) == __NR_getppid,
          "the counter does not count: %lu", atomic_load(&syscalls));
    for (int round = 0; round < ROUNDS; round++) {
        unsigned long before = atomic_load(&syscalls);
        for (int i = 0; i < OPS; i++)
            CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_I32, BANYAN_SUM, t->comm, NULL));
        if (atomic_load(&syscalls) - before < fewest)
            fewest = atomic_load(&syscalls) - before;
    }
    CHECK(t, y == t->n, "sum %d", y);
    ok = fewest == 0;
    atomic_store(&t->shared->value[t->rank][0], ok);
    printf("note: at best %lu system calls in %d operations, last one %ld\n", fewest, OPS,
           atomic_load(&last_syscall));
    mp_shared_barrier(t->shared, t->n);
    for (int r = ok ? t->n : 0; r < t->n; r++)
        ok |= atomic_load(&t->shared->value[r][0]);
    CHECK(
        t, ok,
        "no rank had a round without a system call; here %lu at best, the last was number %ld",
        fewest, atomic_load(&last_syscall));
    return 0;
}
#else
static int no_syscall(struct test *t)
{
    return case_skip("the system call counter knows x86-64 only");
}
#endif

#define SHARED_CALLS 400

/* A CPU for each rank, the job thinks, but all are on one, as where another program has the
 * others: a wait that only spins lasts until its time slice ends, some milliseconds a call. */
static int one_cpu(struct test *t)
{
    struct bny_world *w = t->comm->world;
    int32_t x = 1, y = 0, got = -1;
    int next = (t->rank + 1) % t->n, before = (t->rank + t->n - 1) % t->n;

    w->oversubscribed = 0;
    t->comm->scope.oversubscribed = 0;
    if (pin(0) != 0)
        return case_skip("no CPU to be pinned to");
    mp_shared_barrier(t->shared, t->n);
    for (int i = 0; i < SHARED_CALLS; i++) {
        CHECK_OK(t, banyan_send(&t->rank, 1, BANYAN_I32, next, t->comm, NULL));
        CHECK_OK(t, banyan_recv(&got, 1, BANYAN_I32, before, t->comm, NULL));
        CHECK(t, got == before, "got %d", got);
        CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_I32, BANYAN_SUM, t->comm, NULL));
        CHECK(t, y == t->n, "sum %d", y);
    }
    CHECK(t, atomic_load(&w->yield_often) > 0 || atomic_load(&w->sleeps) > 0,
          "waits neither yield more often than they did nor sleep");
    return 0;
}

const struct mp_case cases_quiet[] = {
    { "no_allocation", no_allocation, CASE_NO_THREADS },
    { "no_syscall", no_syscall, CASE_NO_THREADS },
    { "one_cpu", one_cpu, CASE_NO_THREADS },
    { 0 },
};
