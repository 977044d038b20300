/* SPDX-License-Identifier: BSD-3-Clause */
/* libbanyan-mpi.so, the library to preload: it looks which MPI the program has, and loads the
 * interposer that was built for it from its own folder. It needs no MPI itself, so it may be
 * preloaded into anything (mpirun, the shell, Python, which loads its MPI later). Each function
 * is a jump through a slot, which at first leads to the search. With an MPI that no interposer
 * is for, it leads to that MPI's own function.
 *
 * Calls by the names PMPI_* come from Open MPI's Fortran functions. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "integrations/mpi/find.h"
#include "integrations/mpi/names.h"

struct row {
    const char *name;
    void **slot;
};

/* A function that needs the interposer only while something of it is in flight: else the slot
 * leads to the MPI library's own, as a message of 8 bytes takes 100 ns, and each detour 1. */
struct straight {
    const struct row *row;
    void *ours, *mpis; /* NULL: as any other function */
};

void *bny_mpi_resolve(const struct row *row) __attribute__((visibility("hidden"), used));
void *bny_mpi_offer(const char *name, void *jump) __attribute__((visibility("hidden"), used));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int searched;
static void *interposer, *mpi; /* handles; interposer is NULL: all calls are the MPI's */
#define ONE(name) +1
static struct straight straights[1 BNY_MPI_STRAIGHT(ONE)]; /* the last has no row */

/* Once for each rank would be many lines: the first tells, as far as launchers say who that is.
 */
static void choose_tell(const char *why, const char *more)
{
    static const char *const ranks[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                         "SLURM_PROCID" };

    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        const char *rank = getenv(ranks[i]);
        if (rank && atoi(rank) != 0)
            return;
    }
    fprintf(stderr,
            "banyan-mpi: %s%s: all calls go to the MPI library; there are interposers for Open "
            "MPI, for MPICH and what shares its binary interface (Intel MPI, MVAPICH, Cray), "
            "and for MPI 5's standard interface\n",
            why, more);
}

/* The interposer calls it, from one thread at a time. */
static void lead(int here)
{
    for (struct straight *s = straights; s->row; s++)
        if (s->ours)
            __atomic_store_n(s->row->slot, here ? s->ours : s->mpis, __ATOMIC_RELEASE);
}

static void go_straight(void)
{
    void (*take_switch)(void (*)(int));

    *(void **)&take_switch = dlsym(interposer, "bny_mpi_take_switch");
    if (!take_switch || !mpi)
        return;
    for (struct straight *s = straights; s->row; s++) {
        char name[40];
        snprintf(name, sizeof name, "P%s", s->row->name);
        s->mpis = dlsym(mpi, name);
        s->ours = s->mpis ? dlsym(interposer, s->row->name) : NULL;
    }
    lead(0);
    take_switch(lead);
}

/* Where the interposer lies: in banyan/ beside this library, or, in a build, with it. */
static void place(char *path, size_t cap, const char *family)
{
    const char *own, *name;
    Dl_info self;

    dladdr(&interposer, &self);
    own = self.dli_fname;
    name = strrchr(own, '/') ? strrchr(own, '/') + 1 : own;
    snprintf(path, cap, "%.*sbanyan/libbanyan-mpi-%s.so", (int)(name - own), own, family);
    if (access(path, F_OK) != 0)
        snprintf(path, cap, "%.*slibbanyan-mpi-%s.so", (int)(name - own), own, family);
}

static void choose_load(void)
{
    char path[4096], said[200] = "";
    const char *(*refused)(void), *family;
    struct bny_mpi_lib found;

    bny_mpi_find(&found, NULL);
    if (found.count > 0)
        mpi = dlopen(*found.path ? found.path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (found.count != 1) {
        choose_tell("the program has ", found.count ? "two MPI libraries" : "no MPI library");
        return;
    }
    family = bny_mpi_family(&found, said, sizeof said);
    if (!family) {
        choose_tell("no interposer for ", *said ? said : found.path);
        return;
    }
    place(path, sizeof path, family);
    interposer = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!interposer) {
        choose_tell("the interposer for it cannot be loaded: ", dlerror());
        return;
    }
    *(void **)&refused = dlsym(interposer, "bny_mpi_refused");
    if (!refused || refused()) {
        choose_tell("", refused ? refused()
                                : "an interposer of another version lies beside this one");
        interposer = NULL;
        return;
    }
    go_straight();
}

/* The first call of a function: where it is. Called by the code below. */
void *bny_mpi_resolve(const struct row *row)
{
    void *fn = NULL;

    pthread_mutex_lock(&lock);
    if (!searched)
        choose_load();
    searched = 1;
    for (const struct straight *s = straights; s->row; s++)
        if (s->row == row && s->ours) { /* its slot is set */
            pthread_mutex_unlock(&lock);
            return __atomic_load_n(row->slot, __ATOMIC_ACQUIRE);
        }
    if (interposer)
        fn = dlsym(interposer, row->name);
    if (!fn)
        fn = dlsym(RTLD_NEXT, row->name);
    if (!fn && mpi)
        fn = dlsym(mpi, row->name);
    pthread_mutex_unlock(&lock);
    if (!fn) { /* as the dynamic linker would have said without us */
        fprintf(stderr, "banyan-mpi: the program's MPI has no %s\n", row->name);
        exit(1);
    }
    __atomic_store_n(row->slot, fn, __ATOMIC_RELEASE);
    return fn;
}

/* The dynamic linker asks whether there is a function of this name: its jump, where the MPI
 * library has it, else NULL, which is a weak reference's way to hear no. While this library is
 * not relocated itself (a library that binds all at once comes first) only the answer that uses
 * nothing is possible: yes. */
void *bny_mpi_offer(const char *name, void *jump)
{
    static const void *const volatile relocated = (const void *)&relocated;
    struct bny_mpi_lib found;

    if (relocated != (const void *)&relocated)
        return jump;
    bny_mpi_find(&found, name);
    return found.has_symbol ? jump : NULL;
}

/* bny_mpi_first: a row's address is in a scratch register; the arguments of the call are kept.
 */
#if defined(__x86_64__)
__asm__(".text\n"
        "bny_mpi_first:\n"
        "    pushq %rdi\n pushq %rsi\n pushq %rdx\n pushq %rcx\n pushq %r8\n pushq %r9\n pushq "
        "%r11\n"
        "    movq %r11, %rdi\n"
        "    call bny_mpi_resolve\n"
        "    popq %r11\n popq %r9\n popq %r8\n popq %rcx\n popq %rdx\n popq %rsi\n popq %rdi\n"
        "    jmp *%rax\n");
#define JUMP(label, name)                                                                      \
    label name ": jmp *bny_mpi_slot_" name "(%rip)\n"                                          \
               "bny_mpi_first_" name ": leaq bny_mpi_row_" name "(%rip), %r11\n"               \
               "    jmp bny_mpi_first\n"
/* A resolver of the dynamic linker: MPI_... is a name whose address this code tells. */
#define OFFER(label, name)                                                                     \
    label ": leaq bny_mpi_called_" name "(%rip), %rdi\n"                                       \
          "    leaq bny_mpi_jump_" name "(%rip), %rsi\n"                                       \
          "    jmp bny_mpi_offer\n"
#elif defined(__aarch64__)
__asm__(".text\n"
        "bny_mpi_first:\n"
        "    stp x29, x30, [sp, #-80]!\n"
        "    stp x0, x1, [sp, #16]\n stp x2, x3, [sp, #32]\n stp x4, x5, [sp, #48]\n"
        "    stp x6, x7, [sp, #64]\n"
        "    mov x0, x16\n"
        "    bl bny_mpi_resolve\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n ldp x2, x3, [sp, #32]\n ldp x4, x5, [sp, #48]\n"
        "    ldp x6, x7, [sp, #64]\n"
        "    ldp x29, x30, [sp], #80\n"
        "    br x16\n");
#define JUMP(label, name)                                                                      \
    label name ": adrp x16, bny_mpi_slot_" name "\n"                                           \
               "    ldr x16, [x16, #:lo12:bny_mpi_slot_" name "]\n"                            \
               "    br x16\n"                                                                  \
               "bny_mpi_first_" name ": adrp x16, bny_mpi_row_" name "\n"                      \
               "    add x16, x16, #:lo12:bny_mpi_row_" name "\n"                               \
               "    b bny_mpi_first\n"
#define OFFER(label, name)                                                                     \
    label ": adrp x0, bny_mpi_called_" name "\n"                                               \
          "    add x0, x0, #:lo12:bny_mpi_called_" name "\n"                                   \
          "    adrp x1, bny_mpi_jump_" name "\n"                                               \
          "    add x1, x1, #:lo12:bny_mpi_jump_" name "\n"                                     \
          "    b bny_mpi_offer\n"
#else
#error "write the two jumps for this processor"
#endif

/* `name` is unique here, `label` the function's name. */
#define ROW(name, label)                                                                       \
    extern void *bny_mpi_slot_##name __attribute__((visibility("hidden")));                    \
    extern const struct row bny_mpi_row_##name __attribute__((visibility("hidden")));          \
    extern char bny_mpi_first_##name[] __attribute__((visibility("hidden"))); /* code */       \
    void *bny_mpi_slot_##name = bny_mpi_first_##name;                                          \
    const struct row bny_mpi_row_##name = { label, &bny_mpi_slot_##name };                     \
    __asm__(".text\n.globl bny_mpi_first_" #name "\n.hidden bny_mpi_first_" #name "\n");
/* The jump itself bears the name, and PMPI_... too. */
#define PROFILED(name)                                                                         \
    ROW(name, "MPI_" #name)                                                                    \
    __asm__(".text\n.globl MPI_" #name "\n.type MPI_" #name                                    \
            ", %function\n" JUMP("MPI_", #name));                                              \
    __asm__(".globl PMPI_" #name "\n.type PMPI_" #name ", %function\n"                         \
            ".set PMPI_" #name ", MPI_" #name "\n");
/* There only if the MPI library has it. */
#define OFFERED_AS(name, label)                                                                \
    ROW(name, label)                                                                           \
    extern const char bny_mpi_called_##name[] __attribute__((visibility("hidden")));           \
    const char bny_mpi_called_##name[] = label;                                                \
    __asm__(".text\n" JUMP("bny_mpi_jump_", #name) ".globl " label "\n.type " label            \
                                                   ", %gnu_indirect_function\n" OFFER(label,   \
                                                                                      #name));
#define OFFERED(name)   OFFERED_AS(name, "MPI_" #name)
#define OFFERED_X(name) OFFERED_AS(x_##name, "MPIX_" #name)

BNY_MPI_COMMON(PROFILED)
BNY_MPI_PERSISTENT(OFFERED)
BNY_MPI_PERSISTENT(OFFERED_X)
BNY_MPI_SESSIONS(OFFERED)
BNY_MPI_LARGE(OFFERED)

#define STRAIGHT(name) { .row = &bny_mpi_row_##name },
static struct straight straights[1 BNY_MPI_STRAIGHT(ONE)] = { BNY_MPI_STRAIGHT(STRAIGHT) };
