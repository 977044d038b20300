/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds, checks and loads modules (module.h). */
#include "base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/privileged.h"

int bny_module_own_file(char out[PATH_MAX])
{
    Dl_info info;

    if (!dladdr((void *)(uintptr_t)&bny_module_own_file, &info) || !info.dli_fname)
        return 0;
    /* A name without a slash is a program found on PATH. */
    return realpath(strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe", out) !=
           NULL;
}

/* May nobody write at `at` who may not write at `own`, this process's user and root apart? */
static int is_as_safe(const struct stat *at, const struct stat *own)
{
    if (at->st_uid != 0 && at->st_uid != geteuid() && at->st_uid != own->st_uid)
        return 0;
    if (at->st_mode & S_IWOTH && !(own->st_mode & S_IWOTH))
        return 0;
    return !(at->st_mode & S_IWGRP) || at->st_gid == 0 ||
           (own->st_mode & S_IWGRP && own->st_gid == at->st_gid);
}

/* The file and its folder, against the library and its folder. */
static int is_safe(const char *path, const char *own)
{
    char folder[PATH_MAX], own_folder[PATH_MAX];
    struct stat st, own_st;

    if (stat(path, &st) != 0 || stat(own, &own_st) != 0 || !is_as_safe(&st, &own_st))
        return 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path) + 1, path);
    snprintf(own_folder, sizeof own_folder, "%.*s", (int)(strrchr(own, '/') - own) + 1, own);
    return stat(folder, &st) == 0 && stat(own_folder, &own_st) == 0 && is_as_safe(&st, &own_st);
}

/* A build folder has meson's own folder in it, an installation has none. */
static int is_build(const char *root)
{
    char mark[PATH_MAX + 16];

    snprintf(mark, sizeof mark, "%smeson-private", root);
    return !bny_privileged() && access(mark, F_OK) == 0;
}

static int place(char path[PATH_MAX], const char *own, const char *up, const char *folder,
                 const char *file)
{
    char root[PATH_MAX], try[PATH_MAX];
    int n = snprintf(root, sizeof root, "%.*s%s", (int)(strrchr(own, '/') - own) + 1, own, up);

    if (n < 0 || n >= PATH_MAX || (folder && !is_build(root)))
        return 0;
    n = snprintf(try, sizeof try, "%s%s%s", root, folder ? folder : "", file);
    return n > 0 && n < PATH_MAX && realpath(try, path) != NULL;
}

int bny_module_find(char path[PATH_MAX], const char *file, const char *folder)
{
    static const struct {
        const char *up;
        int in_build;
    } places[] = { { "", 0 },    { "banyan/", 0 }, { BNY_MODULES_FROM_BIN, 0 }, { "", 1 },
                   { "../", 1 }, { "../../", 1 },  { "../../../", 1 } };
    char own[PATH_MAX], refused[PATH_MAX] = "";

    snprintf(path, PATH_MAX, "%s", file);
    if (!bny_module_own_file(own))
        return 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (!place(path, own, places[i].up, places[i].in_build ? folder : NULL, file))
            continue;
        if (is_safe(path, own))
            return 0;
        snprintf(refused, sizeof refused, "%s", path);
    }
    snprintf(path, PATH_MAX, "%s", *refused ? refused : file);
    return *refused ? -1 : 0;
}

void *bny_module_load(const char *file, const char *folder, char *why, size_t cap)
{
    char path[PATH_MAX];
    void *lib = NULL;

    if (bny_module_find(path, file, folder) != 0) {
        snprintf(why, cap,
                 "%.200s, or its folder, can be changed by users who cannot change libbanyan; "
                 "chown and chmod it as libbanyan",
                 path);
        return NULL;
    }
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    snprintf(why, cap, "%s", lib ? path : dlerror());
    return lib;
}

/* Does the first object, the program, name an interpreter? */
static int has_interpreter(struct dl_phdr_info *info, size_t size, void *found)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_INTERP)
            *(int *)found = 1;
    return 1; /* no further objects */
}

int bny_module_static_program(void)
{
    int found = 0;

    dl_iterate_phdr(has_interpreter, &found);
    return !found;
}
