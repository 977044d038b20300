/* SPDX-License-Identifier: BSD-3-Clause */
/* To preload: counts the functions that Open MPI polls in every call (case "callbacks"). */
#include <dlfcn.h>

#pragma GCC visibility push(default)

extern int progress_callbacks;
int opal_progress_register(int (*fn)(void));
int opal_progress_unregister(int (*fn)(void));

int progress_callbacks;

static int pass(const char *name, int (*fn)(void), int change)
{
    int (*real)(int (*)(void)), rc;

    *(void **)&real = dlsym(RTLD_NEXT, name);
    rc = real(fn);
    if (rc == 0)
        progress_callbacks += change;
    return rc;
}

int opal_progress_register(int (*fn)(void))
{
    return pass("opal_progress_register", fn, 1);
}

int opal_progress_unregister(int (*fn)(void))
{
    return pass("opal_progress_unregister", fn, -1);
}
