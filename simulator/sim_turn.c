/* SPDX-License-Identifier: BSD-3-Clause */
/* Passing the turn. A semaphore each does it everywhere, by way of the kernel: 3 to 8 us. Where
 * we may set the register that thread-local storage is found by, one thread of the kernel runs
 * them all, on their own stacks and with their own storage: 30 ns. The kernel's other threads
 * exist for the storage, and sleep for ever. */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memcheck.h"
#include "simulator/real.h"
#include "simulator/sim_turn.h"

#define STACK_BYTES (256u << 10)
/* At the far end of its stack a thread sleeps; what runs there begins so far from it. */
#define PARKED_BYTES 16384

struct begin {
    struct sim_turn *turn;
    void (*body)(void *arg);
    void *arg;
    sem_t parked;
};

#if defined(__x86_64__) && !BNY_ADDRESS_SANITIZER && !BNY_THREAD_SANITIZER
#define CAN_SWITCH (getauxval(AT_HWCAP2) & 2) /* FSGSBASE */

/* Registers that a function keeps go onto the stack of one, and come from that of the other. */
void sim_turn_switch(void **from_sp, void *to_sp, unsigned long to_fs);
__asm__(".text\n"
        ".globl sim_turn_switch\n"
        ".hidden sim_turn_switch\n"
        ".type sim_turn_switch, @function\n"
        "sim_turn_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    subq $8, %rsp\n"
        "    stmxcsr (%rsp)\n"
        "    fnstcw 4(%rsp)\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    wrfsbase %rdx\n"
        "    ldmxcsr (%rsp)\n"
        "    fldcw 4(%rsp)\n"
        "    addq $8, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sim_turn_switch, . - sim_turn_switch\n"
        /* The first turn: r12 has the body, r13 its argument. */
        ".type sim_turn_first, @function\n"
        "sim_turn_first:\n"
        "    movq %r13, %rdi\n"
        "    callq *%r12\n"
        "    ud2\n"
        ".size sim_turn_first, . - sim_turn_first\n");

static unsigned long fs_base(void)
{
    unsigned long fs;

    __asm__ volatile("rdfsbase %0" : "=r"(fs));
    return fs;
}

/* As sim_turn_switch leaves a stack. */
static void *first_stack(const struct begin *b, uintptr_t below)
{
    uint64_t *sp = (uint64_t *)(void *)((below - PARKED_BYTES) & ~(uintptr_t)15);
    uint64_t first, modes = 0;

    __asm__("leaq sim_turn_first(%%rip), %0" : "=r"(first));
    __asm__ volatile("stmxcsr (%0)\n fnstcw 4(%0)" : : "r"(&modes) : "memory");
    *--sp = first;
    *--sp = 0; /* rbp */
    *--sp = 0; /* rbx */
    *--sp = (uint64_t)(uintptr_t)b->body;
    *--sp = (uint64_t)(uintptr_t)b->arg;
    *--sp = 0; /* r14 */
    *--sp = 0; /* r15 */
    *--sp = modes;
    return sp;
}
#else
#define CAN_SWITCH 0
static void sim_turn_switch(void **from_sp, void *to_sp, unsigned long to_fs)
{
    (void)from_sp;
    (void)to_sp;
    (void)to_fs;
}

static unsigned long fs_base(void)
{
    return 0;
}

static void *first_stack(const struct begin *b, uintptr_t below)
{
    (void)b;
    (void)below;
    return NULL;
}
#endif

void sim_turn_init(struct sim_turn *t)
{
    t->thread = pthread_self();
    sem_init(&t->is_on, 0, 0);
    t->fs = CAN_SWITCH ? fs_base() : 0;
}

static void wait_for_turn(struct sim_turn *t)
{
    while (sem_wait(&t->is_on) != 0)
        ;
}

static void *thread_main(void *arg)
{
    struct begin *b = arg;
    struct sim_turn *t = b->turn;
    void (*body)(void *) = b->body;
    void *its = b->arg;

    sim_turn_init(t);
    if (CAN_SWITCH)
        t->sp = first_stack(b, (uintptr_t)__builtin_frame_address(0));
    sem_post(&b->parked); /* b is gone */
    while (CAN_SWITCH)
        syscall(SYS_ppoll, NULL, 0, NULL, NULL);
    wait_for_turn(t);
    body(its);
    return NULL;
}

int sim_turn_new(struct sim_turn *t, void (*body)(void *arg), void *arg)
{
    struct begin b = { .turn = t, .body = body, .arg = arg };
    sigset_t all, before;
    pthread_attr_t attr;
    int rc;

    sem_init(&b.parked, 0, 0);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all); /* nothing may wake one that sleeps on a stack that another uses */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = real.pthread_create(&t->thread, &attr, thread_main, &b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    while (rc == 0 && sem_wait(&b.parked) != 0)
        ;
    sem_destroy(&b.parked);
    return rc;
}

void sim_turn_pass(struct sim_turn *from, struct sim_turn *to)
{
    if (CAN_SWITCH) {
        sim_turn_switch(&from->sp, to->sp, to->fs);
        return;
    }
    sem_post(&to->is_on);
    wait_for_turn(from);
}
