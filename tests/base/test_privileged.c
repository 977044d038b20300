/* SPDX-License-Identifier: BSD-3-Clause */
/* A program that has more rights than its caller reads nothing of the caller's environment. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

/* A copy of the probe without a name, so that no program with root's rights stays behind;
 * set-uid if `mode` says so. -1: this file system takes none. */
static int nameless_copy(const char *folder, mode_t mode)
{
    char name[200], path[] = "/proc/self/fd/1234567890", *bytes = malloc(1 << 26);
    struct statvfs fs;
    FILE *from = fopen(PROBE, "rb");
    size_t n = from ? fread(bytes, 1, 1 << 26, from) : 0;
    int to, fd;

    cr_assert(from && n > 0 && n < 1 << 26, "%s", PROBE);
    fclose(from);
    snprintf(name, sizeof name, "%s/probe.XXXXXX", folder);
    if (statvfs(folder, &fs) != 0 || fs.f_flag & (ST_NOSUID | ST_NOEXEC) ||
        (to = mkstemp(name)) < 0) {
        free(bytes);
        return -1;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    cr_assert_eq(write(to, bytes, n), (ssize_t)n);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    unlink(name);
    cr_assert_eq(fchmod(to, mode), 0);
    close(to);
    free(bytes);
    return fd;
}

/* What the probe says as another user. */
static void ask(int fd, char *out, size_t cap)
{
    static const char *const env[] = { "BANYAN_DPDK_ARGS=-d evil.so",
                                       "BANYAN_DPDK=mtu=1234",
                                       "RANK=0",
                                       "WORLD_SIZE=1",
                                       "MASTER_ADDR=127.0.0.1",
                                       "MASTER_PORT=29500",
                                       "BANYAN_INSECURE=1",
                                       NULL };
    static const char *const argv[] = { "probe", NULL };
    int ends[2], status;
    size_t have = 0;
    ssize_t n;
    pid_t pid;

    cr_assert_eq(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        if (setgid(NOBODY) == 0 && setuid(NOBODY) == 0)
            fexecve(fd, (char *const *)(uintptr_t)argv, (char *const *)(uintptr_t)env);
        _exit(99);
    }
    close(ends[1]);
    while ((n = read(ends[0], out + have, cap - 1 - have)) > 0)
        have += (size_t)n;
    out[have] = '\0';
    close(ends[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x: %s", status, out);
}

static int copy_somewhere(mode_t mode)
{
    int fd = nameless_copy("/tmp", mode);

    return fd >= 0 ? fd : nameless_copy("/var/tmp", mode);
}

Test(privileged, a_program_with_more_rights_reads_no_environment, .timeout = 60)
{
    char plain[4096], more[4096];
    int fd;

    if (geteuid() != 0)
        cr_skip_test("only root makes a set-uid program for another user");
    fd = copy_somewhere(0755);
    if (fd < 0)
        cr_skip_test("/tmp and /var/tmp are mounted nosuid or noexec");
    ask(fd, plain, sizeof plain);
    close(fd);
    fd = copy_somewhere(04755);
    ask(fd, more, sizeof more);
    close(fd);
    cr_expect(strstr(plain, "privileged 0\nargs -d evil.so\nmtu 1234\n"), "%s", plain);
    cr_expect(strstr(plain, "launch torchrun\n"), "%s", plain);
    cr_expect(strstr(plain, "machine read\n"), "%s", plain);
    cr_expect(strstr(more, "privileged 1\nargs \nmtu 0\n"), "%s", more);
    cr_expect(strstr(more, "the 3 BANYAN_ variables of its environment are not read"), "%s",
              more);
    cr_expect(strstr(more, "launch this program is set-uid or has file capabilities"), "%s",
              more);
    cr_expect(strstr(more, "machine hwloc reads its caller's environment"), "%s", more);
}
