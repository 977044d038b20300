/* SPDX-License-Identifier: BSD-3-Clause */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filesize.h"

static char path[64], text[8192];

static void make_path(void)
{
    strcpy(path, "/tmp/banyan-test-XXXXXX");
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i % 26);
}

static void remove_path(void)
{
    unlink(path);
}

static void expect(size_t len)
{
    FILE *f = fopen(path, "r");
    char got[sizeof text + 1];

    cr_assert(f);
    cr_assert_eq(fread(got, 1, sizeof got, f), len);
    cr_assert_eq(memcmp(got, text, len), 0);
    fclose(f);
}

TestSuite(filesize, .init = make_path, .fini = remove_path);

Test(filesize, a_file_is_saved_whole_and_anew)
{
    cr_assert_eq(bny_file_save(path, text, sizeof text), 0);
    expect(sizeof text);
    cr_assert_eq(bny_file_save(path, text, 100), 0);
    expect(100);
    cr_assert_eq(bny_file_save("/nowhere/file", text, 1), -1);
    cr_assert_eq(errno, ENOENT);
}

Test(filesize, beyond_the_limit_is_an_error_and_no_signal)
{
    struct rlimit most = { 4096, RLIM_INFINITY };

    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
    cr_assert_eq(bny_file_save(path, text, sizeof text), -1);
    cr_assert_eq(errno, EFBIG);
    cr_assert_eq(bny_file_save(path, text, 4096), 0);
    expect(4096);
}

Test(filesize, a_closed_standard_output_is_no_place_for_it)
{
    struct stat file, out;

    cr_assert_eq(close(STDOUT_FILENO), 0);
    cr_assert_eq(bny_file_save(path, text, sizeof text), 0);
    cr_assert_eq(stat(path, &file), 0);
    cr_assert(fstat(STDOUT_FILENO, &out) != 0 || out.st_ino != file.st_ino);
    expect(sizeof text);
}
