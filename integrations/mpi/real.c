/* SPDX-License-Identifier: BSD-3-Clause */
/* The MPI library that the program uses, and its functions. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "integrations/mpi/shim.h"

struct shim_real real;

#ifdef MPICH_VERSION
static const char *const ours[] = { "libmpich.so.12", NULL };
static const char *const others[] = { "libmpi.so.12", "libmpi.so.20", "libmpi.so.40", NULL };
#else
static const char *const ours[] = { "libmpi.so.40", NULL };
static const char *const others[] = { "libmpich.so.12", NULL };
#endif

struct found {
    char ours[1024], other[1024];
};

static int is_one_of(const char *const *names, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    for (; *names; names++)
        if (!strncmp(name, *names, strlen(*names)))
            return 1;
    return 0;
}

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct found *f = arg;

    if (is_one_of(ours, info->dlpi_name))
        snprintf(f->ours, sizeof f->ours, "%s", info->dlpi_name);
    if (is_one_of(others, info->dlpi_name))
        snprintf(f->other, sizeof f->other, "%s", info->dlpi_name);
    return 0;
}

/* A handle's type differs between MPIs: to go on with the wrong one would be memory errors. */
static void refuse(const char *why, const char *path)
{
    fprintf(stderr,
            "banyan-mpi: this interposer was built for " SHIM_BUILT_FOR
            ", but %s%s; preload libbanyan-mpi.so, "
            "which chooses, or the library of the program's own MPI\n",
            why, path);
    exit(1);
}

void shim_real_find(void)
{
    struct found f;
    void *lib;

    if (real.Init)
        return;
    memset(&f, 0, sizeof f);
    dl_iterate_phdr(look, &f);
    if (f.other[0])
        refuse("the program has loaded ", f.other);
    lib = f.ours[0] ? dlopen(f.ours, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!lib)
        refuse("the program has no such library", "");
#define X(name) *(void **)&real.name = dlsym(lib, "PMPI_" #name);
    SHIM_NAMES(X)
#undef X
#define X(name)                                                                                \
    if (!real.name)                                                                            \
        refuse("its version has no function ", "PMPI_" #name);
    SHIM_NAMES(X)
#undef X
}

__attribute__((constructor)) static void at_load(void)
{
    struct found f;

    memset(&f, 0, sizeof f);
    dl_iterate_phdr(look, &f);
    if (f.other[0] && f.ours[0])
        refuse("the program has loaded ", f.other);
}
