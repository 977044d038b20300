/* SPDX-License-Identifier: BSD-3-Clause */
/* Where modules are looked for: beside the program that has the library inside, in a build's
 * folder; a name that is nowhere is left to the loader. */
#include <criterion/criterion.h>
#include <libgen.h>
#include <string.h>
#include <unistd.h>

#include "base/module.h"

Test(module, found_beside_the_program_or_left_to_the_loader)
{
    char self[4096], folder[4096], path[4200];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    cr_assert_gt(n, 0);
    self[n] = '\0';
    strcpy(folder, self);
    bny_module_find(path, sizeof path, basename(self), "nowhere/");
    cr_expect(strstr(path, dirname(folder)), "%s", path);
    cr_expect(access(path, R_OK) == 0, "%s", path);
    bny_module_find(path, sizeof path, "test_module", "tests/base/");
    cr_expect(access(path, R_OK) == 0, "%s", path);
    bny_module_find(path, sizeof path, "libnowhere.so", "nowhere/");
    cr_expect_str_eq(path, "libnowhere.so");
    cr_expect_eq(bny_module_static_program(), 0);
}
