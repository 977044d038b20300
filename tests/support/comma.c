/* SPDX-License-Identifier: BSD-3-Clause */
/* Linked into a test: it runs in the locale that BANYAN_TEST_LOCALE names, if set, as programs
 * do that take their user's. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void __attribute__((constructor)) take_locale(void)
{
    const char *name = getenv("BANYAN_TEST_LOCALE");
    char text[8];

    if (!name)
        return;
    if (setlocale(LC_ALL, name) && snprintf(text, sizeof text, "%.1f", 1.5) == 3 &&
        text[1] == ',')
        return;
    fprintf(stderr, "there is no locale %s with a decimal comma\n", name);
    _exit(2);
}
