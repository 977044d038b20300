/* SPDX-License-Identifier: BSD-3-Clause */
/* What a core dump of this process has. */
#ifndef BNY_TESTS_DUMPED_H
#define BNY_TESTS_DUMPED_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How often [from, to) contains the bytes. The kernel reads, as sanitizers forbid it. */
static inline int dumped_in(int mem, unsigned long from, unsigned long to, const void *bytes,
                            size_t len)
{
    static uint8_t buf[1 << 16];
    int found = 0;

    for (unsigned long at = from; at < to; at += sizeof buf - len) {
        size_t want = to - at < sizeof buf ? to - at : sizeof buf;
        ssize_t n = pread(mem, buf, want, (off_t)at);

        if (n >= (ssize_t)len && memmem(buf, (size_t)n, bytes, len))
            found++;
        memset(buf, 0, sizeof buf);
    }
    return found;
}

/* How many pieces of its memory have the bytes, which lie where no core dump has them. -1: the
 * system does not tell. */
static inline int dumped(const void *bytes, size_t len)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC), found = 0, maps = 0;
    unsigned long from = 0, to = 0, a, b;
    char line[512], mode[8], is[8] = "";

    while (f && mem >= 0 && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx %7s", &a, &b, mode) == 3) {
            from = a;
            to = b;
            memcpy(is, mode, sizeof is);
        } else if (!strncmp(line, "VmFlags:", 8) && !strncmp(is, "rw", 2) &&
                   !strstr(line, " dd")) {
            maps++;
            found += dumped_in(mem, from, to, bytes, len);
        }
    }
    if (f)
        fclose(f);
    if (mem >= 0)
        close(mem);
    return maps ? found : -1;
}

#endif
