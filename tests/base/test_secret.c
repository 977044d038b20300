/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory for keys: no core dump has it, whatever the limit of locked memory is. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/secret.h"
#include "tests/support/dumped.h"

#define MANY 200 /* of several pages */

TestSuite(secret, .timeout = 30);

Test(secret, each_is_zero_and_nobody_elses)
{
    static const uint8_t zero[BNY_SECRET_ROOM];
    uint8_t *s[MANY], *again;

    for (int i = 0; i < MANY; i++) {
        s[i] = bny_secret_new();
        cr_assert(s[i] && (uintptr_t)s[i] % BNY_SECRET_ROOM == 0);
        cr_assert_eq(memcmp(s[i], zero, sizeof zero), 0);
        memset(s[i], i + 1, sizeof zero);
    }
    for (int i = 0; i < MANY; i++)
        for (size_t k = 0; k < sizeof zero; k++)
            cr_assert_eq(s[i][k], (uint8_t)(i + 1));
    bny_secret_free(s[MANY - 1]);
    cr_assert_eq(memcmp(s[MANY - 1], zero, sizeof zero), 0, "it was not wiped");
    again = bny_secret_new();
    cr_assert_eq(again, s[MANY - 1], "its place is not used again");
    bny_secret_free(NULL);
    for (int i = 0; i < MANY; i++)
        bny_secret_free(s[i]);
}

/* Nothing may be locked there; limits do not bind root, but a process without rights. */
Test(secret, no_core_dump_has_it)
{
    static const struct rlimit none;
    uint8_t *s;
    int status;
    pid_t child = fork();

    if (child == 0) {
        setrlimit(RLIMIT_MEMLOCK, &none);
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(2);
        s = bny_secret_new();
        _exit(!s);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "it needs locked memory");
    s = bny_secret_new();
    for (int i = 0; i < BNY_SECRET_ROOM; i++)
        s[i] = (uint8_t)(i * 37 + 11);
    cr_assert_eq(dumped(s, BNY_SECRET_ROOM), 0);
    bny_secret_free(s);
}
