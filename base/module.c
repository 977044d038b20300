/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds modules (module.h). */
#include "base/module.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void bny_module_find(char *path, size_t cap, const char *file, const char *folder)
{
    static const struct {
        const char *up;
        int in_build;
    } places[] = { { "", 0 },    { "../lib/", 0 }, { "", 1 },
                   { "../", 1 }, { "../../", 1 },  { "../../../", 1 } };
    char here[4096];
    const char *slash;
    Dl_info info;
    ssize_t n;

    snprintf(path, cap, "%s", file);
    if (!dladdr((void *)(uintptr_t)&bny_module_find, &info) || !info.dli_fname)
        return;
    if (strchr(info.dli_fname, '/')) {
        snprintf(here, sizeof here, "%s", info.dli_fname);
    } else { /* a program found on PATH */
        n = readlink("/proc/self/exe", here, sizeof here - 1);
        here[n > 0 ? n : 0] = '\0';
    }
    slash = strrchr(here, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof places[0]; i++) {
        char try[4300];

        snprintf(try, sizeof try, "%.*s%s%s%s", (int)(slash - here) + 1, here, places[i].up,
                 places[i].in_build ? folder : "", file);
        if (access(try, R_OK) == 0) {
            snprintf(path, cap, "%s", try);
            return;
        }
    }
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
