/* SPDX-License-Identifier: BSD-3-Clause */
/* Which launcher started this process? Asks each kind in turn; banyan_run and torchrun are
 * here. */
#include "transport/bootstrap/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/param.h"
#include "base/privileged.h"
#include "base/secret.h"
#include "transport/bootstrap/cookie.h"
#include "transport/bootstrap/id.h"

#define SECRET_FILE_MAX 4096
#define SECRET_MIN      16 /* characters that cannot be guessed one by one at the network */
#define SECRET_KEY      32 /* characters that are taken for a key */

/* ---- shared ---- */

const char *bny_launch_get(const char *name)
{
    const char *text = strncmp(name, "BANYAN_", 7) ? secure_getenv(name) : bny_param_str(name);

    return text && *text ? text : NULL;
}

int bny_launch_int(const char *name, int64_t min, int64_t max, const char *remedy, int *out)
{
    const char *text = bny_launch_get(name);
    char *end;
    long long v;

    if (!text)
        return bny_fail(BANYAN_ECONFIG, "%s is not set; %s", name, remedy);
    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < min || v > max)
        return bny_fail(BANYAN_ECONFIG, "%s=%.60s is not a whole number from %lld to %lld; %s",
                        name, text, (long long)min, (long long)max, remedy);
    *out = (int)v;
    return 0;
}

int bny_launch_ranks(const char *rank_name, const char *size_name, const char *remedy,
                     struct bny_launch *out)
{
    int rc = bny_launch_int(size_name, 1, 1 << 20, remedy, &out->nranks);

    if (rc == 0)
        rc = bny_launch_int(rank_name, 0, INT32_MAX, remedy, &out->rank);
    if (rc == 0 && out->rank >= out->nranks)
        return bny_fail(BANYAN_ECONFIG, "%s=%d is out of range: %s=%d means ranks 0 to %d; %s",
                        rank_name, out->rank, size_name, out->nranks, out->nranks - 1, remedy);
    return rc;
}

uint32_t bny_launch_hash(const char *text)
{
    uint8_t h[crypto_generichash_BYTES_MIN];
    uint32_t v;

    crypto_generichash(h, sizeof h, (const uint8_t *)text, strlen(text), NULL, 0);
    memcpy(&v, h, sizeof v);
    return v;
}

const char *bny_launch_ifname(const struct bny_launch_in *in, const char *local_size_name,
                              int nranks)
{
    const char *local = bny_launch_get(local_size_name);

    if (*in->ifname || !local || atoi(local) != nranks)
        return in->ifname;
    return "lo";
}

/* The file's bytes, without white space at the end. It is this user's, or root's as mounted
 * secrets are, whose group may be ours; nobody else has read it. */
static int read_secret_file(const char *path, char *text, size_t cap, size_t *out)
{
    int fd = bny_fd_high(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat st;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        int why = fd < 0 ? errno : EINVAL;

        if (fd >= 0)
            close(fd);
        return bny_fail(BANYAN_ECONFIG,
                        "BANYAN_SECRET_FILE=%.200s cannot be read (%s); every rank needs it",
                        path, strerror(why));
    }
    n = read(fd, text, cap);
    close(fd);
    if ((st.st_uid != 0 && st.st_uid != geteuid()) || st.st_mode & (st.st_uid ? 077 : 027))
        return bny_fail(
            BANYAN_ECONFIG,
            "BANYAN_SECRET_FILE=%.200s has mode %03o and owner %u, so others may know "
            "it: chmod 600, or 440 for a mounted secret of root's",
            path, (unsigned)st.st_mode & 0777, (unsigned)st.st_uid);
    if (n < 0 || (size_t)n == cap)
        return bny_fail(BANYAN_ECONFIG, "BANYAN_SECRET_FILE=%.200s %s", path,
                        n < 0 ? "cannot be read; every rank needs it"
                              : "is too long for a secret");
    while (n && strchr(" \r\n\t", text[n - 1]))
        --n;
    *out = (size_t)n;
    return 0;
}

/* text[cap] from BANYAN_SECRET or the file BANYAN_SECRET_FILE; *out its length, 0: neither is
 * set. */
static int read_secret(char *text, size_t cap, size_t *out)
{
    const char *secret = bny_launch_get("BANYAN_SECRET");
    const char *path = bny_launch_get("BANYAN_SECRET_FILE");
    int rc = 0;

    *out = 0;
    if (secret) {
        *out = (size_t)snprintf(text, cap, "%s", secret);
        if (*out >= cap)
            return bny_fail(BANYAN_ECONFIG, "BANYAN_SECRET is longer than %zu bytes", cap - 1);
    } else if (path) {
        rc = read_secret_file(path, text, cap, out);
    } else {
        return 0;
    }
    if (rc == 0 && *out < SECRET_MIN)
        rc = bny_fail(BANYAN_ECONFIG,
                      "%s has %zu characters, so that it can be guessed; it needs at least %d, "
                      "as openssl rand -hex 32 makes",
                      secret ? "BANYAN_SECRET" : "BANYAN_SECRET_FILE", *out, SECRET_MIN);
    return rc;
}

/* A secret shorter than a key, in whose place a guess costs 64 MiB and 0.1 s: who is told rank
 * 0's proof could else try a thousand million a second. */
static int stretch(char *text, size_t *len, const char *job)
{
    uint8_t salt[crypto_pwhash_SALTBYTES], key[SECRET_KEY];
    int rc;

    crypto_generichash(salt, sizeof salt, (const uint8_t *)job, strlen(job), NULL, 0);
    rc = crypto_pwhash(key, sizeof key, text, *len, salt, crypto_pwhash_OPSLIMIT_INTERACTIVE,
                       crypto_pwhash_MEMLIMIT_INTERACTIVE, crypto_pwhash_ALG_ARGON2ID13);
    memcpy(text, key, sizeof key);
    *len = sizeof key;
    sodium_memzero(key, sizeof key);
    return rc ? bny_fail(BANYAN_ENOMEM,
                         "no 64 MiB of memory to derive a key from the job's secret; one of %d "
                         "characters needs none",
                         SECRET_KEY)
              : 0;
}

/* A text that only the job's user knows, for the key; *from: enum bny_key_from. */
static int job_secret(char *text, size_t cap, size_t *len, uint8_t *from)
{
    char path[BNY_COOKIE_PATH];
    int rc = read_secret(text, cap, len);

    if (rc != 0 || *len) {
        *from = BNY_KEY_SECRET;
        return rc;
    }
    if (bny_param_int("BANYAN_INSECURE")) {
        *from = BNY_KEY_WORDS;
        return 0;
    }
    *from = BNY_KEY_COOKIE;
    *len = BNY_COOKIE_BYTES;
    return bny_cookie_read((uint8_t *)text, path);
}

/* Host to address. If a name of this host resolves to loopback (Debian's /etc/hosts), other
 * hosts cannot use it: then takes the interface's address, which their name service returns.
 * Blocks as DNS does. */
static int resolve(const char *host, const char *ifname, struct bny_addr *out)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM },
                    *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list), literal;

    if (rc != 0)
        return bny_fail(
            BANYAN_ECONFIG,
            "rank 0's host \"%.100s\" does not resolve: %s; check the name, or give "
            "an address",
            host, gai_strerror(rc));
    memset(out, 0, sizeof *out);
    for (struct addrinfo *i = list; i; i = i->ai_next) {
        if (i->ai_family == AF_INET && out->family != 4) {
            out->family = 4;
            memcpy(out->ip, &((struct sockaddr_in *)(void *)i->ai_addr)->sin_addr, 4);
        } else if (i->ai_family == AF_INET6 && !out->family) {
            out->family = 6;
            memcpy(out->ip, &((struct sockaddr_in6 *)(void *)i->ai_addr)->sin6_addr, 16);
        }
    }
    freeaddrinfo(list);
    literal = !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || strchr(host, ':');
    if (bny_addr_is_loopback(out) && !literal)
        return bny_net_choose(out, ifname);
    return 0;
}

/* Rank 0's candidate ports: the given ones, or some of BANYAN_PORT_RANGE chosen by the job. */
static int candidate_ports(const char *range, const char *job, int *port, int *span)
{
    uint16_t lo, hi;
    int rc = bny_net_port_range(range, &lo, &hi), count = hi - lo + 1;

    if (rc != 0)
        return rc;
    if (lo) {
        *span = count < *span ? count : *span;
        *port = lo + (int)(bny_launch_hash(job) % (uint32_t)(count - *span + 1));
    }
    if (*port > 65536 - *span)
        *port = 65536 - *span;
    return 0;
}

int bny_launch_derive(struct bny_launch *out, const struct bny_launch_in *in, const char *job,
                      const char *host, int port, int span)
{
    static const char key[] = "banyan job secret, version 1";
    char secret[SECRET_FILE_MAX];
    size_t len;
    uint8_t from;
    struct bny_addr addr;
    crypto_generichash_state st;
    int rc = bny_id_create(&out->id, "", "", 0);

    if (rc != 0 || out->nranks == 1)
        return rc;
    rc = job_secret(secret, sizeof secret, &len, &from);
    if (rc == 0 && from == BNY_KEY_SECRET && len < SECRET_KEY)
        rc = stretch(secret, &len, job);
    if (rc == 0)
        rc = candidate_ports(in->port_range, job, &port, &span);
    if (rc == 0)
        rc = resolve(host, in->ifname, &addr);
    if (rc != 0) {
        sodium_memzero(secret, sizeof secret);
        return rc;
    }
    if (from == BNY_KEY_WORDS && out->rank == 0)
        bny_warn("BANYAN_INSECURE=1: whoever reaches the ports of this job may join it");
    out->id.key_from = from;
    crypto_generichash_init(&st, (const uint8_t *)key, sizeof key - 1, sizeof out->id.secret);
    crypto_generichash_update(&st, (const uint8_t *)job, strlen(job) + 1);
    crypto_generichash_update(&st, (const uint8_t *)secret, len);
    crypto_generichash_final(&st, out->id.secret, sizeof out->id.secret);
    sodium_memzero(secret, sizeof secret);
    bny_secret_forget();
    memset(out->id.job, 0, sizeof out->id.job);
    for (uint32_t i = 0; i < 2; i++) {
        char part[600];
        uint32_t h;

        snprintf(part, sizeof part, "%u %s", i, job);
        h = bny_launch_hash(part);
        memcpy(out->id.job + 4 * i, &h, 4);
    }
    addr.port = (uint16_t)port;
    bny_id_set_addr(&out->id, &addr, span);
    return 0;
}

/* ---- banyan_run ---- */

/* Rank 0 inherits the listening socket. After an earlier init used it, the number may mean
 * another file: then the number is ignored, and the address is bound again later. */
static int inherit_listener(const struct bny_id *id)
{
    struct bny_addr at;
    int fd, rc, listening = 0;
    socklen_t len = sizeof listening;

    if (!bny_launch_get("BANYAN_LISTEN_FD") || bny_id_listen_fd(id) >= 0)
        return 0;
    rc = bny_launch_int("BANYAN_LISTEN_FD", 3, INT32_MAX, "start the ranks with banyan_run",
                        &fd);
    if (rc != 0)
        return rc;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) != 0 || !listening ||
        bny_net_bound(fd, &at) != 0 || at.port != id->port)
        return 0;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK | fcntl(fd, F_GETFL));
    return bny_id_adopt_fd(id, fd);
}

/* Is it in the environment that the kernel gave this process? It lies on the stack, between
 * two other things of the kernel's. What the program has set itself lies elsewhere. */
static int is_of_exec(const char *value)
{
    return (uintptr_t)value > getauxval(AT_RANDOM) && (uintptr_t)value < getauxval(AT_EXECFN);
}

/* The id of BANYAN_ID, which has the job's secret. Its text leaves the environment, which
 * /proc/PID/environ, core dumps and the programs that this process starts have, too. Later
 * inits of this process need it again, and find the variable empty: one that the program has
 * unset means no id. */
static int id_of_run(struct bny_id *id, const char *hex)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct bny_id *kept;
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (!hex && kept && secure_getenv("BANYAN_ID"))
        *id = *kept;
    else
        rc = hex ? bny_id_from_hex(id, hex) : -BANYAN_EINVAL;
    if (rc == 0 && hex && is_of_exec(hex)) {
        kept = kept ? kept : sodium_malloc(sizeof *kept);
        if (kept) {
            *kept = *id;
            sodium_memzero((char *)(uintptr_t)hex, strlen(hex));
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int bny_launch_run(struct bny_launch *out, const struct bny_launch_in *in)
{
    static const char remedy[] =
        "banyan_run sets BANYAN_ID, BANYAN_RANK and BANYAN_WORLD_SIZE together: "
        "start the ranks with it, or unset all three";
    const char *hex = bny_launch_get("BANYAN_ID");
    int rc;

    (void)in;
    if (!hex && !bny_launch_get("BANYAN_RANK") && !bny_launch_get("BANYAN_WORLD_SIZE"))
        return 0;
    rc = bny_launch_ranks("BANYAN_RANK", "BANYAN_WORLD_SIZE", remedy, out);
    if (rc != 0)
        return rc;
    rc = id_of_run(&out->id, hex);
    if (rc != 0 && !hex && secure_getenv("BANYAN_ID"))
        return bny_fail(
            BANYAN_ECONFIG,
            "BANYAN_ID is empty: a rank's first init wipes it, so programs that "
            "this rank starts afterwards do not get it. A rank that replaces itself "
            "by exec has to call init after the exec, or to keep the value and pass "
            "it to exec. Otherwise %s",
            remedy);
    if (rc != 0 && !hex)
        return bny_fail(BANYAN_ECONFIG, "BANYAN_ID is not set; %s", remedy);
    if (rc != 0)
        return bny_fail(BANYAN_ECONFIG,
                        "BANYAN_ID=%.16s... is no id of %d hexadecimal digits; %s", hex,
                        BNY_ID_HEX - 1, remedy);
    if (rc == 0 && out->rank == 0 && out->nranks > 1)
        rc = inherit_listener(&out->id);
    out->how = "banyan_run";
    return rc == 0 ? 1 : rc;
}

/* ---- torchrun ---- */

int bny_launch_torchrun(struct bny_launch *out, const struct bny_launch_in *in)
{
    static const char remedy[] =
        "torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together: start "
        "the ranks with it, or unset RANK and WORLD_SIZE";
    const char *host = bny_launch_get("MASTER_ADDR"),
               *run = bny_launch_get("TORCHELASTIC_RUN_ID");
    const char *restart = bny_launch_get("TORCHELASTIC_RESTART_COUNT");
    char job[400];
    int port, rc;

    if (!bny_launch_get("RANK") && !bny_launch_get("WORLD_SIZE"))
        return 0;
    rc = bny_launch_ranks("RANK", "WORLD_SIZE", remedy, out);
    if (rc == 0 && !host)
        rc = bny_fail(BANYAN_ECONFIG, "MASTER_ADDR is not set; %s", remedy);
    if (rc == 0)
        rc = bny_launch_int("MASTER_PORT", 1, 65535, remedy, &port);
    if (rc != 0)
        return rc;
    snprintf(job, sizeof job, "torchrun %.200s %d %.100s %.20s", host, port, run ? run : "",
             restart ? restart : "");
    /* torchrun's own store listens at MASTER_PORT. */
    rc = bny_launch_derive(out, in, job, host, port + 1, BNY_LAUNCH_SPAN);
    out->how = "torchrun";
    return rc == 0 ? 1 : rc;
}

/* torchrun declares that it started this process. The other variables may then describe
 * torchrun itself, which srun and mpirun started as one of several nodes. */
static int launch_torchrun_within(struct bny_launch *out, const struct bny_launch_in *in)
{
    return bny_launch_get("TORCHELASTIC_RUN_ID") ? bny_launch_torchrun(out, in) : 0;
}

/* ---- all ---- */

/* Two launchers disagree: their jobs would be different ones. */
static void warn_of_another(const struct bny_launch *out)
{
    const char *rank = bny_launch_get("RANK"), *size = bny_launch_get("WORLD_SIZE");

    if (rank && size && (atoi(rank) != out->rank || atoi(size) != out->nranks))
        bny_warn("rank %d of %d according to %s: RANK=%.20s and WORLD_SIZE=%.20s are ignored. "
                 "Unset what the launcher of these ranks did not set",
                 out->rank, out->nranks, out->how, rank, size);
}

static int launch_openmpi_without_pmix(void)
{
    if (!bny_launch_get("OMPI_COMM_WORLD_RANK"))
        return 0;
    return bny_fail(
        BANYAN_ECONFIG,
        "OMPI_COMM_WORLD_RANK=%.20s says that Open MPI started this process, but "
        "its PMIx server cannot be reached; install libpmix2 and build with it, or make an id "
        "with banyan_id_create, broadcast it with MPI and call banyan_comm_init",
        bny_launch_get("OMPI_COMM_WORLD_RANK"));
}

/* A privileged program cannot believe what a launcher's variables say: each rank would else be
 * a job of one. */
static int check_privileges(void)
{
    static const char *const names[] = { "BANYAN_ID", "RANK", "PMIX_RANK", "PMI_FD",
                                         "SLURM_PROCID" };

    for (size_t i = 0; bny_privileged() && i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]))
            return bny_fail(
                BANYAN_ECONFIG,
                "this program is set-uid or has file capabilities, so banyan does not read its "
                "environment, %s neither: give the capabilities to the launcher instead "
                "(setpriv --ambient-caps), or call banyan_comm_init with an id",
                names[i]);
    return 0;
}

int bny_launch_env(struct bny_launch *out, const char *ifname, const char *port_range,
                   uint64_t deadline_ns)
{
    static int (*const kinds[])(struct bny_launch *, const struct bny_launch_in *) = {
        bny_launch_run,  launch_torchrun_within, bny_launch_pmix,
        bny_launch_pmi1, bny_launch_torchrun,    bny_launch_slurm,
    };
    struct bny_launch_in in = { ifname ? ifname : "", port_range ? port_range : "",
                                deadline_ns };
    int rc = check_privileges();

    if (rc == 0)
        rc = bny_id_sodium();
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && rc == 0; i++)
        rc = kinds[i](out, &in);
    if (rc == 1)
        warn_of_another(out);
    if (rc == 0)
        rc = launch_openmpi_without_pmix();
    if (rc != 0)
        return rc < 0 ? rc : 0;
    out->rank = 0;
    out->nranks = 1;
    out->how = "single";
    return bny_id_create(&out->id, "", "", 0);
}
