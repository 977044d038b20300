/* SPDX-License-Identifier: BSD-3-Clause */
/* Ids, their text, and the process-wide table of listening sockets that await their
 * bootstrap. */
#include "transport/bootstrap/id.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/err.h"
#include "base/fork.h"
#include "transport/bootstrap/net.h"

#define IDS_MAX 128 /* ids with an open listener that no communicator has used yet */

static struct bny_lock table_lock = BNY_LOCK(NULL);
static struct {
    uint8_t job[8];
    int fd; /* 0: free; a listener is never standard input */
} table[IDS_MAX];

int bny_id_sodium(void)
{
    if (sodium_init() < 0)
        return bny_fail(BANYAN_ESYSTEM, "libsodium cannot start: no source of random numbers");
    return 0;
}

int bny_id_adopt_fd(const struct bny_id *id, int fd)
{
    int rc = -1;

    bny_lock_take(&table_lock);
    for (int i = 0; i < IDS_MAX && rc != 0; i++) {
        if (table[i].fd)
            continue;
        memcpy(table[i].job, id->job, sizeof id->job);
        table[i].fd = fd;
        rc = 0;
    }
    bny_lock_give(&table_lock);
    if (rc != 0)
        return bny_fail(BANYAN_ESYSTEM,
                        "%d ids were made and not used yet; use them or make fewer", IDS_MAX);
    return 0;
}

#define SEEN 64

int bny_id_first_use(const struct bny_id *id)
{
    static uint8_t seen[SEEN][8];
    static unsigned next;
    int first = 1;

    bny_lock_take(&table_lock);
    for (int i = 0; i < SEEN && first; i++)
        first = memcmp(seen[i], id->job, sizeof seen[i]) != 0;
    if (first)
        memcpy(seen[next++ % SEEN], id->job, sizeof seen[0]);
    bny_lock_give(&table_lock);
    return first;
}

static int lookup(const struct bny_id *id, int take)
{
    int fd = -1;

    bny_lock_take(&table_lock);
    for (int i = 0; i < IDS_MAX && fd < 0; i++) {
        if (!table[i].fd || memcmp(table[i].job, id->job, sizeof id->job) != 0)
            continue;
        fd = table[i].fd;
        if (take)
            table[i].fd = 0;
    }
    bny_lock_give(&table_lock);
    return fd;
}

int bny_id_listen_fd(const struct bny_id *id)
{
    return lookup(id, 0);
}

int bny_id_take_fd(const struct bny_id *id)
{
    return lookup(id, 1);
}

void bny_id_close(const struct bny_id *id)
{
    int fd = lookup(id, 1);

    if (fd >= 0)
        close(fd);
}

int bny_id_create(struct bny_id *out, const char *ifname, const char *port_range, int listening)
{
    struct bny_addr addr;
    int rc = bny_id_sodium(), fd;

    if (rc != 0)
        return rc;
    memset(out, 0, sizeof *out);
    memcpy(out->magic, "bny1", 4);
    randombytes_buf(out->secret, sizeof out->secret);
    randombytes_buf(out->job, sizeof out->job);
    if (!listening)
        return 0;
    rc = bny_net_choose(&addr, ifname);
    if (rc != 0)
        return rc;
    fd = bny_net_listen(&addr, port_range, BNY_ID_BACKLOG);
    if (fd < 0)
        return fd;
    bny_id_set_addr(out, &addr, 1);
    out->listening = 1;
    rc = bny_id_adopt_fd(out, fd);
    if (rc != 0)
        close(fd);
    return rc;
}

void bny_id_set_addr(struct bny_id *id, const struct bny_addr *addr, int span)
{
    id->family = addr->family;
    id->port = addr->port;
    id->span = (uint8_t)span;
    memcpy(id->addr, addr->ip, sizeof id->addr);
}

void bny_id_addr(const struct bny_id *id, struct bny_addr *out)
{
    memset(out, 0, sizeof *out);
    out->family = id->family;
    out->port = id->port;
    memcpy(out->ip, id->addr, sizeof out->ip);
}

int bny_id_check(const struct bny_id *id)
{
    if (memcmp(id->magic, "bny1", 4) != 0 || (id->port && id->family != 4 && id->family != 6) ||
        (uint32_t)id->port + id->span > 65536)
        return bny_fail(BANYAN_EINVAL,
                        "the id is not one that banyan_id_create made; send all of its %zu "
                        "bytes unchanged",
                        sizeof *id);
    return 0;
}

_Static_assert(BNY_ID_BOX == crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES +
                                 sizeof(struct bny_id),
               "box");

static void box_key(uint8_t key[crypto_secretbox_KEYBYTES], const uint8_t *secret)
{
    static const char what[] = "banyan id in a box, version 1";

    crypto_generichash(key, crypto_secretbox_KEYBYTES, (const uint8_t *)what, sizeof what - 1,
                       secret, 32);
}

void bny_id_seal(uint8_t box[BNY_ID_BOX], const struct bny_id *id, const uint8_t *secret)
{
    uint8_t key[crypto_secretbox_KEYBYTES];

    box_key(key, secret);
    randombytes_buf(box, crypto_secretbox_NONCEBYTES);
    crypto_secretbox_easy(box + crypto_secretbox_NONCEBYTES, (const uint8_t *)id, sizeof *id,
                          box, key);
    sodium_memzero(key, sizeof key);
}

int bny_id_unseal(struct bny_id *id, const uint8_t box[BNY_ID_BOX], const uint8_t *secret)
{
    uint8_t key[crypto_secretbox_KEYBYTES];
    int rc;

    box_key(key, secret);
    rc = crypto_secretbox_open_easy((uint8_t *)id, box + crypto_secretbox_NONCEBYTES,
                                    BNY_ID_BOX - crypto_secretbox_NONCEBYTES, box, key);
    sodium_memzero(key, sizeof key);
    if (rc != 0 || bny_id_check(id) != 0)
        return bny_fail(BANYAN_EPROTO, "an id was altered in transit");
    return 0;
}

void bny_id_to_hex(const struct bny_id *id, char out[BNY_ID_HEX])
{
    sodium_bin2hex(out, BNY_ID_HEX, (const uint8_t *)id, sizeof *id);
}

int bny_id_from_hex(struct bny_id *out, const char *text)
{
    size_t got = 0;

    if (strlen(text) != BNY_ID_HEX - 1 ||
        sodium_hex2bin((uint8_t *)out, sizeof *out, text, BNY_ID_HEX - 1, NULL, &got, NULL) !=
            0 ||
        got != sizeof *out)
        return bny_fail(BANYAN_EINVAL,
                        "an id is %d hexadecimal digits, this text has %zu characters",
                        BNY_ID_HEX - 1, strlen(text));
    return bny_id_check(out);
}
