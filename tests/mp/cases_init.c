/* SPDX-License-Identifier: BSD-3-Clause */
/* Init that cannot succeed: which error, on which ranks, with which words; and strangers that
 * knock. */
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/secret.h"
#include "collectives/api/job.h"
#include "tests/mp/case.h"
#include "tests/support/dumped.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/net.h"

/* "CODE WORD WORD ...": init fails on every rank with the code and the words in its sentence. A
 * word "@R:x" is for rank R only, and "R=CODE" gives rank R another code. Words hold no blanks:
 * '~' stands for one. A setting that is wrong by itself may be EINVAL as well as ECONFIG. */
static int init_fails(struct test *t)
{
    char arg[256], *word, *save;
    struct banyan_comm *comm = NULL;
    struct banyan_config cfg = BANYAN_CONFIG_INIT;
    int code, rc;

    rc = banyan_comm_init_env(&comm, &cfg);
    snprintf(arg, sizeof arg, "%s", t->arg);
    word = strtok_r(arg, " ", &save);
    CHECK(t, word, "no argument");
    code = atoi(word);
    if (rc != 0)
        printf("note: %d %s\n", rc, banyan_last_error());
    while ((word = strtok_r(NULL, " ", &save))) {
        char *rest;
        long rank = -1;
        for (char *p = word; *p; p++)
            if (*p == '~')
                *p = ' ';
        if (*word == '@') {
            rank = strtol(word + 1, &rest, 10);
            word = rest + 1;
        } else if (strtol(word, &rest, 10) == t->rank && rest != word && *rest == '=') {
            code = atoi(rest + 1);
            continue;
        } else if (rest != word && *rest == '=') {
            continue;
        }
        if (rank == -1 || rank == t->rank)
            CHECK_HAS(t, banyan_last_error(), word);
    }
    CHECK(t, rc == -code || (code == 13 && rc == -BANYAN_EINVAL), "returned %d (%s), not %d",
          rc, banyan_strerror(rc), -code);
    CHECK(t, comm == NULL, "a communicator in spite of the error");
    return 0;
}

/* ---- strangers ---- */
static int hex_value(char c)
{
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

static uint16_t root_port(struct test *t)
{
    const char *hex = getenv("BANYAN_ID");
    struct bny_id id;

    CHECK(t, hex && strlen(hex) == 2 * sizeof id, "BANYAN_ID");
    for (size_t i = 0; i < sizeof id; i++)
        ((unsigned char *)&id)[i] =
            (unsigned char)(hex_value(hex[2 * i]) << 4 | hex_value(hex[2 * i + 1]));
    return id.port;
}

static int knock(struct test *t, uint16_t port)
{
    struct sockaddr_in sa = { .sin_family = AF_INET,
                              .sin_port = htons(port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(t, fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0, "connect");
    return fd;
}

/* Port scanners, garbage of all lengths, half-open clients and resets, before and while the
 * ranks come. */
static int strangers(struct test *t)
{
    enum { N = 24 };
    int fd[N];
    uint64_t s = t->seed;
    unsigned char junk[4096];
    struct banyan_comm *comm;

    if (t->rank == t->n - 1) {
        uint16_t port = root_port(t);
        for (int i = 0; i < N; i++) {
            size_t len = i % 3 ? bny_rng_below(&s, sizeof junk) : bny_rng_below(&s, 40);
            fd[i] = knock(t, port);
            for (size_t k = 0; k < len; k++)
                junk[k] = (unsigned char)bny_rng_next(&s);
            if (i % 4 == 1)
                snprintf((char *)junk, sizeof junk, "GET / HTTP/1.0\r\n\r\n");
            if (i % 8 != 7)
                (void)!send(fd[i], junk, len, MSG_NOSIGNAL);
            if (i % 4 == 2) {
                struct linger hard = { 1, 0 };
                setsockopt(fd[i], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
                close(fd[i]);
                fd[i] = -1;
            }
        }
    }
    CHECK_OK(t, case_init(t, NULL, &comm));
    case_check_works(t, comm);
    if (t->rank == t->n - 1)
        for (int i = 0; i < N; i++)
            if (fd[i] >= 0)
                close(fd[i]);
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* The ports where this process listens. Returns their number. */
static uint32_t own_ports(uint16_t *ports, uint32_t most)
{
    uint32_t n = 0;

    for (int fd = 3; fd < 1024 && n < most; fd++) {
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        int listens = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens,
                       &(socklen_t){ sizeof listens }) == 0 &&
            listens && getsockname(fd, (struct sockaddr *)&sa, &len) == 0 &&
            sa.sin_family == AF_INET)
            ports[n++] = ntohs(sa.sin_port);
    }
    return n;
}

/* Connections that the kernel did not answer so far, for want of room in a listener's queue. */
static uint64_t unanswered(struct test *t)
{
    FILE *f = fopen("/proc/net/netstat", "re");
    char names[4096], values[4096], *name, *value, *at[2];
    uint64_t found = UINT64_MAX;

    CHECK(t, f, "/proc/net/netstat");
    while (fgets(names, sizeof names, f) && fgets(values, sizeof values, f)) {
        name = strtok_r(names, " \n", &at[0]);
        value = strtok_r(values, " \n", &at[1]);
        for (; name && value;
             name = strtok_r(NULL, " \n", &at[0]), value = strtok_r(NULL, " \n", &at[1]))
            if (!strcmp(name, "ListenDrops"))
                found = strtoull(value, NULL, 10);
    }
    fclose(f);
    CHECK(t, found != UINT64_MAX, "no ListenDrops");
    return found;
}

/* Rank 0 computes while a stranger takes all places where others could wait for it, 1100 for
 * each of its ports; rank 1 opens its first lane to it meanwhile, and is not answered; then the
 * job goes on. Rank 2 is the stranger. */
static int queues_are_full(struct test *t)
{
    enum { STRANGERS = 1100, PORTS = 16 };
    uint16_t *ports = (uint16_t *)t->shared->blob[0], seen[PORTS];
    float x[4] = { 1, 2, 3, 4 };
    uint64_t before;

    if (t->rank == 0) {
        atomic_store(&t->shared->value[0][0], own_ports(ports, PORTS));
        mp_shared_barrier(t->shared, t->n);
        mp_shared_barrier(t->shared, t->n);
        for (before = unanswered(t); unanswered(t) == before;)
            sched_yield(); /* rank 1 calls */
        CHECK_OK(t, banyan_recv(x, 4, BANYAN_F32, 1, t->comm, NULL));
        CHECK(t, x[3] == 8, "%g", (double)x[3]);
    } else {
        mp_shared_barrier(t->shared, t->n);
        memcpy(seen, ports, sizeof seen);
        for (uint64_t p = 0; t->rank == 2 && p < atomic_load(&t->shared->value[0][0]); p++)
            for (int i = 0; i < STRANGERS; i++) {
                struct bny_addr at = bny_addr_loopback(seen[p]);

                close(bny_net_connect(&at)); /* what the kernel accepted stays in the queue */
            }
        mp_shared_barrier(t->shared, t->n);
        x[3] = 8;
        if (t->rank == 1)
            CHECK_OK(t, banyan_send(x, 4, BANYAN_F32, 0, t->comm, NULL));
    }
    case_check_works(t, t->comm);
    return 0;
}

/* Names in the environment that do not exist are refused whether a config is given or not. */
static int wrong_names(struct test *t)
{
    static const char *const wrong[][3] = {
        { "BANYAN_SCHEDULE", "rnig", "did you mean ring?" },
        { "BANYAN_CODEC", "itn8", "did you mean int8?" },
        { "BANYAN_TRANSPORT", "tpc", "did you mean tcp?" },
    };
    struct banyan_config cfg;
    struct banyan_comm *comm;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv(wrong[i][0], wrong[i][1], 1);
        cfg = (struct banyan_config)BANYAN_CONFIG_INIT;
        for (int given = 0; given < 2; given++) {
            CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_init_env(&comm, given ? &cfg : NULL));
            CHECK_HAS(t, banyan_last_error(), wrong[i][2]);
            CHECK(t, comm == NULL, "a communicator in spite of the error");
        }
        unsetenv(wrong[i][0]);
    }
    return 0;
}

/* Without any launcher's variables: one rank alone, and everything works on it. */
static int single(struct test *t)
{
    struct banyan_comm *comm;
    uint32_t x = 3, y[2] = { 0 };

    CHECK_OK(t, banyan_comm_init_env(&comm, NULL));
    CHECK(t, banyan_comm_rank(comm) == 0 && banyan_comm_count(comm) == 1, "rank %d of %d",
          banyan_comm_rank(comm), banyan_comm_count(comm));
    CHECK_OK(t, banyan_allreduce(&x, y, 1, BANYAN_U32, BANYAN_SUM, comm, NULL));
    CHECK(t, y[0] == 3, "%u", y[0]);
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

static void check_setting(struct test *t, const struct banyan_id *id,
                          const struct banyan_config *cfg, const char *word)
{
    struct banyan_comm *comm;
    int rc = banyan_comm_init(&comm, id, 1, 0, cfg);

    CHECK(t, rc == -BANYAN_EINVAL || rc == -BANYAN_ECONFIG, "%s returned %d (%s)", word, rc,
          banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), word);
}

/* Arguments of init itself. */
static int init_arguments(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm = (void *)&cfg;
    struct banyan_id id, junk;

    memset(&junk, 0x5a, sizeof junk);
    CHECK_OK(t, banyan_id_create(&id));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_init(NULL, &id, 1, 0, &cfg));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_init(&comm, &id, 0, 0, &cfg));
    CHECK(t, comm == NULL, "*out is not NULL after an error");
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_init(&comm, &id, 2, 2, &cfg));
    CHECK_HAS(t, banyan_last_error(), "rank");
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_init(&comm, &id, 2, -1, &cfg));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_init(&comm, NULL, 2, 0, &cfg));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_init(&comm, &junk, 2, 1, &cfg));
    cfg.transport = "smh";
    check_setting(t, &id, &cfg, "did you mean shm?");
    cfg = case_config(t);
    cfg.schedule = "rign";
    check_setting(t, &id, &cfg, "did you mean ring?");
    cfg = case_config(t);
    cfg.codec = "f61";
    check_setting(t, &id, &cfg, "did you mean f16?");
    cfg = case_config(t);
    cfg.op_timeout_s = NAN;
    check_setting(t, &id, &cfg, "op_timeout_s: it is not a number");
    cfg = case_config(t);
    cfg.init_timeout_s = NAN;
    check_setting(t, &id, &cfg, "init_timeout_s: it is not a number");
    cfg = case_config(t);
    CHECK_OK(t, banyan_comm_init(&comm, &id, 1, 0, &cfg));
    case_check_works(t, comm);
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* ---- other versions ---- */
/* Rank 1 says that it runs another release: its peer info is changed on the way. */
static int forging_allgather(void *ctx, const void *in, void *out, size_t bytes)
{
    struct test *t = ctx;
    unsigned char *blob = t->shared->blob[t->rank];
    const char *version = banyan_version_string();
    void *at;

    if (bytes > sizeof t->shared->blob[0])
        return -1;
    memcpy(blob, in, bytes);
    if (t->rank == 1 && (at = memmem(blob, bytes, version, strlen(version))))
        memcpy(at, "9.8.7", 5);
    mp_shared_barrier(t->shared, t->n);
    for (int r = 0; r < t->n; r++)
        memcpy((unsigned char *)out + (size_t)r * bytes, t->shared->blob[r], bytes);
    mp_shared_barrier(t->shared, t->n);
    return 0;
}

static int version_differs(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm = NULL;

    cfg.allgather = forging_allgather;
    cfg.allgather_ctx = t;
    CHECK_RC(t, -BANYAN_EVERSION, banyan_comm_init(&comm, NULL, t->n, t->rank, &cfg));
    CHECK_HAS(t, banyan_last_error(), "rank 1");
    CHECK_HAS(t, banyan_last_error(), "9.8.7");
    CHECK_HAS(t, banyan_last_error(), banyan_version_string());
    CHECK(t, comm == NULL, "a communicator in spite of the error");
    return 0;
}

/* Nobody listens at the id's address. */
static int unreachable(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm = NULL;
    struct bny_id id;
    char port[16];

    CHECK_OK(t, bny_id_create(&id, "lo", "", 0));
    id.family = 4;
    memcpy(id.addr, (const uint8_t[]){ 127, 0, 0, 1 }, 4);
    id.port = 1; /* tcpmux: nobody has it, and no listener gets it by chance */
    snprintf(port, sizeof port, "127.0.0.1:%u", id.port);
    cfg.init_timeout_s = 0.7;
    CHECK_RC(t, -BANYAN_ETIMEDOUT,
             banyan_comm_init(&comm, (struct banyan_id *)&id, 2, 1, &cfg));
    CHECK_HAS(t, banyan_last_error(), port);
    CHECK(t, comm == NULL, "a communicator in spite of the error");
    return 0;
}

/* Rank 1's config asks for another chunk or schedule: both sides are named. */
static int config_differs(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm = NULL;
    int rc;

    if (!strcmp(t->arg, "schedule"))
        cfg.schedule = t->rank == 1 ? "ring" : "star";
    if (!strcmp(t->arg, "codec"))
        cfg.codec = t->rank == 1 ? "bf16" : "none";
    if (!strcmp(t->arg, "chunk"))
        cfg.chunk_bytes = t->rank == 1 ? 8192 : 4096;
    if (!strcmp(t->arg, "deterministic"))
        cfg.deterministic = t->rank == 1;
    rc = case_init(t, &cfg, &comm);
    CHECK(t, rc == -BANYAN_ECONFIG, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), t->arg);
    CHECK_HAS(t, banyan_last_error(), "rank 1");
    CHECK(t, comm == NULL, "a communicator in spite of the error");
    return 0;
}

/* Two jobs that were started by hand may have one id: what links prove to know is of this
 * start, the same at all its ranks. */
static int secret_of_a_start(struct test *t)
{
    const char *hex = getenv("BANYAN_ID");
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm;
    struct bny_id id;

    CHECK(t, hex && bny_id_from_hex(&id, hex) == 0, "BANYAN_ID");
    CHECK_OK(t, case_init(t, &cfg, &comm));
    CHECK(t, memcmp(comm->world->secret, id.secret, sizeof id.secret) != 0,
          "links prove the secret of the id");
    case_check_agree(t, comm, case_hash(comm->world->secret, sizeof id.secret), "the secret");
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* What the kernel shows of this process's environment. */
static size_t environment(struct test *t, char *text, size_t cap)
{
    FILE *f = fopen("/proc/self/environ", "re");
    size_t n;

    CHECK(t, f, "/proc/self/environ");
    n = fread(text, 1, cap, f);
    fclose(f);
    CHECK(t, n < cap, "the environment is too large");
    return n;
}

/* The id of banyan_run leaves the environment with the first init. Later ones know it, unless
 * the program has unset the variable. */
static int secret_is_wiped(struct test *t)
{
    static char text[1 << 18];
    struct bny_launch launch;
    struct banyan_comm *comm;
    uint8_t *secret = bny_secret_new(); /* of the id, from which the job's comes */
    struct bny_id id;
    char hex[257];
    size_t n;

    CHECK(t, secret, "no memory");
    snprintf(hex, sizeof hex, "%s", getenv("BANYAN_ID"));
    n = environment(t, text, sizeof text);
    CHECK(t, strlen(hex) == 256 && memmem(text, n, hex, 256), "the id is not where it was");
    CHECK(t, bny_id_from_hex(&id, hex) == 0, "BANYAN_ID");
    memcpy(secret, id.secret, sizeof id.secret);
    sodium_memzero(&id, sizeof id);
    CHECK_OK(t, case_init(t, NULL, &comm));
    case_check_works(t, comm);
    n = environment(t, text, sizeof text);
    CHECK(t, !memmem(text, n, hex + 192, 64), "the environment has a part of the id");
    CHECK(t, dumped(comm->world->secret, sizeof id.secret) == 0, "a core dump has the secret");
    CHECK(t, dumped(secret, sizeof id.secret) == 0, "a core dump has the id's secret");
    bny_secret_free(secret);
    CHECK_OK(t, banyan_comm_finalize(comm));
    CHECK(t, !*getenv("BANYAN_ID"), "BANYAN_ID=%.8s...", getenv("BANYAN_ID"));
    CHECK_OK(t, bny_launch_env(&launch, "", "", bny_deadline_in(1)));
    CHECK(t, bny_id_from_hex(&id, hex) == 0 && !memcmp(&id, &launch.id, sizeof id),
          "a later init has another id");
    unsetenv("BANYAN_ID");
    CHECK_RC(t, -BANYAN_ECONFIG, bny_launch_env(&launch, "", "", bny_deadline_in(1)));
    CHECK_HAS(t, banyan_last_error(), "BANYAN_ID is not set");
    return 0;
}

/* ---- time ---- */
static int first_barrier(struct test *t)
{
    struct banyan_comm *comm;
    uint64_t begun = bny_now_ns();

    CHECK_OK(t, banyan_comm_init_env(&comm, NULL));
    CHECK_OK(t, banyan_barrier(comm, NULL));
    atomic_store(&t->shared->value[t->rank][0], begun);
    atomic_store(&t->shared->value[t->rank][1], bny_now_ns());
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

const struct mp_case cases_init[] = {
    { "init_fails", init_fails, CASE_OWN_INIT | CASE_NO_THREADS },
    { "strangers", strangers, CASE_OWN_INIT | CASE_NO_THREADS },
    { "queues_are_full", queues_are_full, CASE_NO_THREADS },
    { "wrong_names", wrong_names, CASE_OWN_INIT | CASE_NO_THREADS },
    { "single", single, CASE_OWN_INIT | CASE_NO_THREADS },
    { "init_arguments", init_arguments, CASE_OWN_INIT | CASE_NO_THREADS },
    { "config_differs", config_differs, CASE_OWN_INIT },
    { "version_differs", version_differs, CASE_OWN_INIT },
    { "unreachable", unreachable, CASE_OWN_INIT },
    { "secret_of_a_start", secret_of_a_start, CASE_OWN_INIT | CASE_NO_THREADS },
    { "secret_is_wiped", secret_is_wiped, CASE_OWN_INIT | CASE_NO_THREADS },
    { "first_barrier", first_barrier, CASE_OWN_INIT | CASE_NO_THREADS },
    { 0 },
};
