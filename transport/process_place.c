/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a process runs. */
#include "transport/process_place.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/err.h"

#define TEXT_MAX 4096

/* A file's first bytes; 0: unreadable, -1: no descriptor is left. */
static ssize_t read_file(const char *path, char *text, size_t cap)
{
    FILE *f = fopen(path, "re");
    size_t n;

    if (!f)
        return errno == EMFILE || errno == ENFILE ? -1 : 0;
    n = fread(text, 1, cap, f);
    fclose(f);
    return (ssize_t)n;
}

static void process_place_hash(uint8_t *out, size_t bytes, const char *text, size_t len)
{
    uint8_t whole[16];

    crypto_generichash(whole, sizeof whole, (const uint8_t *)text, len, NULL, 0);
    memcpy(out, whole, bytes);
}

int bny_place_get(struct bny_place *out)
{
    char text[TEXT_MAX] = "";
    uint64_t user = geteuid();
    ssize_t boot = read_file("/proc/sys/kernel/random/boot_id", text, 64), n;

    if (boot < 0)
        return bny_fail_errno("reading this host's boot id");
    if (boot == 0) /* several hosts may share a name, so it joins no two namespaces */
        gethostname(text, 127);
    process_place_hash(out->host, sizeof out->host, text, 200);

    /* Numbers of namespaces repeat on other hosts. */
    n = boot ? readlink("/proc/self/ns/net", text, sizeof text) : 0;
    if (n > 0)
        process_place_hash(out->net, sizeof out->net, text, (size_t)n);
    else
        randombytes_buf(out->net, sizeof out->net);

    /* User 0 of two namespaces may be two users, whom the kernel would separate. */
    memcpy(text, &user, sizeof user);
    n = read_file("/proc/self/uid_map", text + sizeof user, sizeof text - sizeof user);
    if (n < 0)
        return bny_fail_errno("reading the map of this user namespace");
    process_place_hash(out->user, sizeof out->user, text, sizeof user + (size_t)n);
    return 0;
}
