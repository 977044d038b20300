/* SPDX-License-Identifier: BSD-3-Clause */
/* The MPI library that the program uses, and its functions. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "integrations/mpi/find.h"
#include "integrations/mpi/shim.h"

struct shim_real real;

static char refused[1400];

static const char *real_take(void)
{
    const char *missing = NULL, *family;
    struct bny_mpi_lib found;
    void *lib;

    bny_mpi_find(&found, "ompi_mpi_comm_world");
    if (found.count == 0)
        return "the program has loaded no MPI library";
    family = bny_mpi_is_standard(&found) ? "abi" : found.has_symbol ? "openmpi" : "mpich";
    if (strcmp(family, SHIM_FAMILY) != 0) {
        snprintf(refused, sizeof refused, "the program has loaded %s", found.path);
        return refused;
    }
    lib = dlopen(*found.path ? found.path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (!lib)
        return "the program's MPI library cannot be asked for its functions";
#define X(name) *(void **)&real.name = dlsym(lib, "PMPI_" #name);
    SHIM_NAMES(X)
#undef X
#define X(name)                                                                                \
    if (!real.name)                                                                            \
        *(void **)&real.name = dlsym(lib, "PMPIX_" #name);
    BNY_MPI_PERSISTENT(X)
#undef X
#define X(name)                                                                                \
    if (!real.name)                                                                            \
        missing = "PMPI_" #name;
    BNY_MPI_ASKED(X)
    BNY_MPI_COLLECTIVES(X)
    BNY_MPI_REQUESTS(X)
#undef X
    if (!missing)
        return NULL;
    memset(&real, 0, sizeof real);
    snprintf(refused, sizeof refused, "the program's MPI has no function %s", missing);
    return refused;
}

__attribute__((constructor)) static void at_load(void)
{
    const char *why = real_take();

    if (why != refused)
        snprintf(refused, sizeof refused, "%s", why ? why : "");
}

const char *bny_mpi_refused(void)
{
    return *refused ? refused : NULL;
}

/* A handle's type differs between MPIs: to go on with the wrong one would be memory errors. */
void shim_real_find(void)
{
    if (!real.Init)
        at_load(); /* the program may have loaded its MPI after us */
    if (!*refused)
        return;
    fprintf(
        stderr,
        "banyan-mpi: this interposer was built for " SHIM_BUILT_FOR
        ", but %s; preload libbanyan-mpi.so, which chooses, or the library of the program's "
        "own MPI\n",
        refused);
    exit(1);
}
