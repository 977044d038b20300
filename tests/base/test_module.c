/* SPDX-License-Identifier: BSD-3-Clause */
/* Where modules are looked for: beside the program that has the library inside, in a build's
 * folder; a name that is nowhere is left to the loader. */
#include <criterion/criterion.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/module.h"

Test(module, found_beside_the_program_or_left_to_the_loader)
{
    char self[4096], folder[4096], path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    cr_assert_gt(n, 0);
    self[n] = '\0';
    strcpy(folder, self);
    bny_module_find(path, basename(self), "nowhere/");
    cr_expect(strstr(path, dirname(folder)), "%s", path);
    cr_expect(access(path, R_OK) == 0, "%s", path);
    bny_module_find(path, "test_module", "tests/base/");
    cr_expect(access(path, R_OK) == 0, "%s", path);
    bny_module_find(path, "libnowhere.so", "nowhere/");
    cr_expect_str_eq(path, "libnowhere.so");
    cr_expect_eq(bny_module_static_program(), 0);
}

#define NOBODY 65534

/* Beside the program, which has the library inside. */
Test(module, one_that_others_can_change_is_refused)
{
    char self[4096], file[64], path[PATH_MAX], why[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    FILE *f;

    cr_assert_gt(n, 0);
    self[n] = '\0';
    snprintf(file, sizeof file, "libmodule-%d.so", (int)getpid());
    snprintf(path, sizeof path, "%.*s/%s", (int)(strrchr(self, '/') - self), self, file);
    f = fopen(path, "w");
    cr_assert(f);
    fclose(f);
    cr_expect_eq(bny_module_find(path, file, "nowhere/"), 0);
    chmod(path, 0666);
    cr_expect_eq(bny_module_find(path, file, "nowhere/"), -1);
    cr_expect_null(bny_module_load(file, "nowhere/", why, sizeof why));
    cr_expect(strstr(why, "can be changed by users who cannot change libbanyan"), "%s", why);
    chmod(path, 0644);
    if (geteuid() == 0 && chown(path, NOBODY, NOBODY) == 0)
        cr_expect_eq(bny_module_find(path, file, "nowhere/"), -1);
    unlink(path);
}
