/* SPDX-License-Identifier: BSD-3-Clause */
/* libbanyan-mpi.so, the library to preload: it looks which MPI the program has, and loads the
 * interposer that was built for it from its own folder. It needs no MPI itself, so it may be
 * preloaded into anything (mpirun, the shell, Python, which loads its MPI later). Each function
 * is a jump through a slot, which at first leads to the search.
 *
 * Calls by the names PMPI_* come from Open MPI's Fortran functions. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "integrations/mpi/names.h"

struct row {
    const char *name;
    void **slot;
};

void *bny_mpi_resolve(const struct row *row) __attribute__((visibility("hidden"), used));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *interposer;

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char **found = arg;
    const char *slash = strrchr(info->dlpi_name, '/'),
               *name = slash ? slash + 1 : info->dlpi_name;

    if (!strncmp(name, "libmpich.so.12", 14))
        found[0] = "mpich";
    if (!strncmp(name, "libmpi.so.40", 12))
        found[1] = "openmpi";
    return 0;
}

static void load(const char *why)
{
    const char *found[2] = { NULL, NULL }, *mpi;
    char path[4096];
    Dl_info self;

    dl_iterate_phdr(look, found);
    mpi = found[0] ? found[0] : found[1];
    if (!mpi || (found[0] && found[1])) {
        fprintf(stderr,
                "banyan-mpi: %s was called, but this program has %s; there are interposers for "
                "MPICH "
                "(libmpich.so.12) and Open MPI (libmpi.so.40)\n",
                why, mpi ? "two MPI libraries" : "no MPI library that is known");
        exit(1);
    }
    dladdr(&interposer, &self);
    snprintf(path, sizeof path, "%.*slibbanyan-mpi-%s.so",
             (int)(strrchr(self.dli_fname, '/')
                       ? strrchr(self.dli_fname, '/') + 1 - self.dli_fname
                       : 0),
             self.dli_fname, mpi);
    interposer = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!interposer) {
        fprintf(stderr,
                "banyan-mpi: the program uses %s, but its interposer cannot be loaded: %s\n",
                mpi, dlerror());
        exit(1);
    }
}

/* The first call of a function: where it is. Called by the code below. */
void *bny_mpi_resolve(const struct row *row)
{
    void *fn;

    pthread_mutex_lock(&lock);
    if (!interposer)
        load(row->name);
    fn = dlsym(interposer, row->name);
    pthread_mutex_unlock(&lock);
    if (!fn) {
        fprintf(stderr, "banyan-mpi: the program's MPI has no %s\n", row->name);
        exit(1);
    }
    __atomic_store_n(row->slot, fn, __ATOMIC_RELEASE);
    return fn;
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
#define JUMP(name)                                                                             \
    "MPI_" name ": jmp *bny_mpi_slot_" name "(%rip)\n"                                         \
    "bny_mpi_first_" name ": leaq bny_mpi_row_" name "(%rip), %r11\n"                          \
    "    jmp bny_mpi_first\n"
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
#define JUMP(name)                                                                             \
    "MPI_" name ": adrp x16, bny_mpi_slot_" name "\n"                                          \
    "    ldr x16, [x16, #:lo12:bny_mpi_slot_" name "]\n"                                       \
    "    br x16\n"                                                                             \
    "bny_mpi_first_" name ": adrp x16, bny_mpi_row_" name "\n"                                 \
    "    add x16, x16, #:lo12:bny_mpi_row_" name "\n"                                          \
    "    b bny_mpi_first\n"
#else
#error "write the two jumps for this processor"
#endif

#define FUNCTION(name)                                                                         \
    extern void *bny_mpi_slot_##name __attribute__((visibility("hidden")));                    \
    extern const struct row bny_mpi_row_##name __attribute__((visibility("hidden")));          \
    extern char bny_mpi_first_##name[] __attribute__((visibility("hidden"))); /* code */       \
    void *bny_mpi_slot_##name = bny_mpi_first_##name;                                          \
    const struct row bny_mpi_row_##name = { "MPI_" #name, &bny_mpi_slot_##name };              \
    __asm__(".text\n"                                                                          \
            ".globl MPI_" #name "\n.type MPI_" #name ", %function\n"                           \
            ".globl bny_mpi_first_" #name "\n.hidden bny_mpi_first_" #name "\n" JUMP(#name));
#define PROFILED(name)                                                                         \
    FUNCTION(name)                                                                             \
    __asm__(".globl PMPI_" #name "\n.type PMPI_" #name ", %function\n"                         \
            ".set PMPI_" #name ", MPI_" #name "\n");

BNY_MPI_COMMON(PROFILED)
BNY_MPI_LARGE(FUNCTION)
