/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes on the sockets of the bootstrap and of the control plane. Byte 0 picks what is under
 * test:
 *   0, 1  a connection's server and client, and bytes of a stranger: it is never believed
 *   2     the root of an all-gather, and a rank that knows the secret
 *   3     a rank of an all-gather, and a root that knows the secret
 *   4     the control plane, and a neighbour that knows the secret
 *   5     the agreement of failures, and messages of neighbours
 *   6     a rank that lets newcomers in, and one that knows the id
 *   7     a newcomer, and a rank that knows the id
 *   8     the root of a large job, and a rank that knows the secret
 *   9     a rank of a large job that serves others, and one of these
 *   10    a rank of a large job, and a root that knows the secret
 * Those who know the secret say of themselves what the next 16 bytes are (the part of the hello
 * from wire to zero), and then send frames: type and two bytes of length, then the payload. */
#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sodium.h>

#include "input.h"

#include "base/clock.h"
#include "base/counts.h"
#include "base/rng.h"
#include "transport/bootstrap/consensus.h"
#include "transport/bootstrap/control.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/newcomers.h"
#include "transport/wire.h"

#define NRANKS 3
#define CARD   40
#define TURNS  6 /* of two sides that talk with each other; a handshake takes three */

/* Seeds hold frames of these, each of them in one piece: where one grows, they all end at the
 * check of its length, and have to grow with it. */
_Static_assert(sizeof(struct gather_peer_info) == 8, "rank-joins, served-rank-gives-peer info");
_Static_assert(sizeof(struct gather_peer_infos) == 16, "large-root-*, served-rank-joins");
_Static_assert(sizeof(struct gather_all) == 8, "root-tells-all, root-gives-place");
_Static_assert(sizeof(struct gather_here) == 24, "large-root-places");
_Static_assert(sizeof(struct gather_place) == 28, "root-gives-place, root-sends-on");
_Static_assert(offsetof(struct bny_failure, text) == 24,
               "failure-and-farewell, consensus_view");
_Static_assert(sizeof(struct bny_newcomer_place) == 8 + 128, "newcomer_placed");

static uint64_t rng;

/* The same nonces every time: an input that finds something finds it again. */
static uint32_t seeded_random(void)
{
    return (uint32_t)bny_rng_next(&rng);
}

static void seeded_buf(void *const buf, const size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)buf)[i] = (uint8_t)bny_rng_next(&rng);
}

static const char *seeded_name(void)
{
    return "seeded";
}

static randombytes_implementation seeded = { .implementation_name = seeded_name,
                                             .random = seeded_random,
                                             .buf = seeded_buf };

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    randombytes_set_implementation(&seeded);
    return sodium_init() < 0;
}

/* ---- addresses that an input gives ---- */

static uint16_t our_port; /* at loopback; 0: none */

/* Nobody else is called: he does not answer. */
int connect(int fd, const struct sockaddr *to, socklen_t len)
{
    const struct sockaddr_in *in = (const void *)to;

    if (to->sa_family == AF_INET && len >= sizeof *in &&
        in->sin_addr.s_addr == htonl(INADDR_LOOPBACK) && our_port &&
        in->sin_port == htons(our_port))
        return (int)syscall(SYS_connect, fd, to, len);
    errno = EINPROGRESS;
    return -1;
}

struct pair {
    int epfd, fd[2];
};

static void pair_open(struct pair *p)
{
    p->epfd = epoll_create1(EPOLL_CLOEXEC);
    EXPECT(p->epfd >= 0 &&
           socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p->fd) == 0);
}

/* ---- strangers ---- */

static void stranger(struct input *in, const struct bny_conn_self *self, int client)
{
    struct bny_addr nobody = { .family = 4 };
    struct bny_conn *c;
    struct pair p;
    int rc = 0;

    pair_open(&p);
    c = bny_conn_new(p.fd[0], p.epfd, client, &nobody, self, GATHER_FRAME_MAX);
    while (rc == 0 && in->left) {
        size_t len;
        const uint8_t *at = input_take(in, 1 + input_byte(in), &len);

        EXPECT(write(p.fd[1], at, len) == (ssize_t)len);
        rc = bny_conn_progress(c);
        EXPECT(rc <= 0 && c->state != BNY_CONN_READY);
        EXPECT(c->in_cap <= 512); /* nothing to speak of is allocated for strangers */
    }
    bny_conn_free(c);
    close(p.fd[1]);
    close(p.epfd);
}

/* ---- those who know the secret ---- */

struct peer { /* of the side under test */
    struct bny_conn_self self;
    struct bny_conn *conn;
    struct pair pair;
    int turns;             /* of the handshake */
    const uint8_t *secret; /* ids in what it says are sealed with it; NULL: there are none */
};

/* Its end of a connection, pair.fd[1]. */
static void peer_begin(struct peer *p, struct input *in, const struct bny_conn_self *other,
                       int client)
{
    struct bny_addr nobody = { .family = 4 };

    p->turns = 0;
    p->secret = NULL;
    p->self = *other;
    p->conn = bny_conn_new(p->pair.fd[1], p->pair.epfd, client, &nobody, &p->self, 1 << 20);
    input_copy(in, &p->conn->mine.rank, 8);
    p->conn->mine.wire ^= (uint16_t)input_short(in);
    p->conn->mine.version ^= input_short(in);
    input_copy(in, &p->conn->mine.zero, 4);
}

/* Of a new connection; ours is pair.fd[0]. */
static void peer_open(struct peer *p, struct input *in, const struct bny_conn_self *other,
                      int client)
{
    pair_open(&p->pair);
    peer_begin(p, in, other, client);
}

static void peer_close(struct peer *p)
{
    bny_conn_free(p->conn);
    close(p->pair.epfd);
}

/* A place in a new world, for whom no input would guess the box of the id. */
static size_t seal_place(const struct peer *p, uint8_t *box, const uint8_t *at)
{
    struct bny_newcomer_place place;

    memcpy(&place, at, sizeof place);
    memcpy(box, &place, offsetof(struct bny_newcomer_place, id));
    bny_id_seal(box + offsetof(struct bny_newcomer_place, id), &place.id, p->secret);
    return offsetof(struct bny_newcomer_place, id) + BNY_ID_BOX;
}

/* Its next frame, when it is its turn. 0: there are no more. */
static int peer_says(struct peer *p, struct input *in)
{
    uint8_t box[offsetof(struct bny_newcomer_place, id) + BNY_ID_BOX];
    uint32_t type, n;
    size_t len;
    const uint8_t *at;

    if (!in->left || bny_conn_progress(p->conn) < 0)
        return 0;
    if (p->conn->state != BNY_CONN_READY)
        return p->turns++ < TURNS;
    type = input_byte(in);
    n = input_short(in);
    at = input_take(in, n, &len);
    if (p->secret && len == sizeof(struct bny_newcomer_place)) {
        len = seal_place(p, box, at);
        at = box;
    }
    return bny_conn_send(p->conn, type, at, len) == 0;
}

/* tree: of a large job; below: the peer is to be served by this rank. */
static void gather(struct input *in, const struct bny_id *id, int rank, int tree, int below)
{
    static uint8_t info[CARD], infos[NRANKS * CARD];
    struct bny_addr nobody = { .family = 4 };
    struct bny_bootstrap *b;
    struct peer p;
    struct bny_conn *c;
    int spare[2], rc = 0, more = 1;

    EXPECT(setenv("BANYAN_INIT_TREE", tree ? "2" : "33", 1) == 0);
    if (rank == 0) { /* the listener is a socket at which nobody arrives */
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, spare) == 0);
        EXPECT(bny_id_adopt_fd(id, spare[0]) == 0);
    }
    EXPECT(bny_bootstrap_start(&b, id, NRANKS, rank, info, CARD, NULL, NULL, 0) == 0);
    if (below && tree)
        bny_bootstrap_peer_info(b, info);
    bny_conn_free(b->client.conn); /* to the id's address */
    b->client.conn = NULL;
    peer_open(&p, in, &b->self, below);
    c = bny_conn_new(p.pair.fd[0], b->epfd, !below, &nobody, &b->self,
                     rank || tree ? GATHER_FRAME_MAX
                                  : BNY_PEER_INFO_MAX + sizeof(struct gather_peer_info));
    if (!below)
        b->client.conn = c;
    else
        b->below.half[b->below.nhalf++] = c;
    b->client.attempt_end_ns = UINT64_MAX;
    for (int turn = 0; rc == 0 && (more || turn < TURNS); turn++) {
        more = peer_says(&p, in);
        rc = bny_bootstrap_progress(b, infos);
        EXPECT(rc >= -BNY_ERROR_COUNT && rc <= 1);
        /* One peer is not two ranks; in a tree it brings the peer infos of those below it. */
        EXPECT(rc != 1 || !below || (tree && rank == 0));
        if (!below && !b->client.conn)
            break;
    }
    bny_bootstrap_destroy(b);
    peer_close(&p);
    if (rank == 0)
        close(spare[1]);
}

/* As bny_control_create makes it, without listeners, at rank 1 with neighbours 0 and 2. */
static void control(struct input *in, const struct bny_id *id)
{
    struct bny_control *c = calloc(1, sizeof *c);
    struct bny_addr nobody = { .family = 4 };
    struct bny_failure f;
    struct peer p;

    pthread_mutex_init(&c->lock, NULL);
    c->rank = 1;
    c->nranks = NRANKS;
    c->listen_fd[0] = c->listen_fd[1] = c->wake_fd = c->told_fd = -1;
    c->silent_ns = UINT64_MAX / 2;
    EXPECT((c->peers = calloc(NRANKS, sizeof *c->peers)) != NULL);
    c->epfd = epoll_create1(EPOLL_CLOEXEC);
    bny_conn_self_init(&c->self, BNY_CONN_CONTROL, id->secret, id->job, 1, NRANKS);
    EXPECT(bny_failures_init(&c->known, NRANKS) == 0 && view_init(c) == 0);
    c->links[c->nlinks++] =
        (struct link){ .peer = 0, .state = LINK_WAITING, .since_ns = bny_now_ns() };
    c->links[c->nlinks++] = (struct link){ .peer = 2, .state = LINK_GONE };
    c->connected = 1;
    peer_open(&p, in, &c->self, 1);
    c->half[c->nhalf++] = bny_conn_new(p.pair.fd[0], c->epfd, 0, &nobody, &c->self,
                                       (uint32_t)bny_consensus_message_max(NRANKS));
    for (int turn = 0, more = 1; more || turn < TURNS; turn++) {
        more = peer_says(&p, in);
        c->busy = 1;
        bny_control_progress(c);
    }
    EXPECT(c->known.count <= c->known.cap);
    for (int i = 0; i < c->known.count; i++)
        EXPECT(bny_failure_valid(&c->known.list[i].f, NRANKS));
    bny_control_failure_of(c, 1, &f);
    bny_control_destroy(c);
    peer_close(&p);
}

/* The key is a hash, which no input guesses: the message gets the right one. */
static int take(struct bny_consensus *a, int from, uint8_t *data, size_t len)
{
    int rc = bny_consensus_take(a, from, from, data, len);

    if (rc != -BANYAN_EPROTO || len < 24)
        return rc;
    memcpy(data + 16, &a->got->key, 8);
    return bny_consensus_take(a, from, from, data, len);
}

/* Rank 1 of three. What it sends is taken by a rank that has heard nothing yet, and it decides
 * nothing that it has not heard of all. */
static void agree(struct input *in)
{
    struct bny_consensus a, fresh;
    uint8_t msg[4096], out[4096];
    size_t len, max = bny_consensus_message_max(NRANKS);

    EXPECT(max > sizeof msg && bny_consensus_init(&a, 1, NRANKS) == 0);
    while (in->left) {
        unsigned how = input_byte(in), want = input_short(in);
        const uint8_t *at = input_take(in, want < sizeof msg ? want : sizeof msg, &len);
        struct bny_consensus_id id = { BNY_CONSENSUS_VIEW + how % 3, how % 3 ? 5 : 0,
                                       how % 3 ? how / 8 : a.view + 1 };
        struct bny_contribution c = { .bits = how };

        memcpy(msg, at, len);
        if (how & 64)
            bny_consensus_enter(&a, id, &c);
        else if (how & 32)
            bny_consensus_gone(&a, how & 2, how & 1);
        else
            take(&a, how & 2, msg, len);
    }
    EXPECT(bny_consensus_init(&fresh, 2, NRANKS) == 0);
    for (struct bny_instance *it = a.first; it; it = it->next) {
        EXPECT(it->nrecords <= BNY_CONSENSUS_RECORDS);
        it->unsent = 1;
        len = 0;
        if (it->nrecords < 8)
            len = bny_consensus_next(&a, 0, out);
        if (len && !bny_bit(it->gone, 2))
            EXPECT(bny_consensus_take(&fresh, 1, 1, out, len) == 0 ||
                   a.count > BNY_CONSENSUS_KEPT);
    }
    bny_consensus_finish(&fresh);
    bny_consensus_finish(&a);
}

/* A job's rank listens at a port of loopback. */
static int listen_for(struct bny_id *id)
{
    struct bny_addr here = bny_addr_loopback(0);
    int fd = bny_net_listen_at(&here, 4);

    EXPECT(fd >= 0);
    id->port = our_port = here.port;
    return fd;
}

/* No port is to stay taken behind a run: at the end connections are reset. */
static void peer_reset(struct peer *p)
{
    bny_conn_break(p->conn);
    close(p->pair.epfd);
}

static void doorkeeper(struct input *in, struct bny_id id)
{
    struct bny_newcomer_place place = { .rank = NRANKS, .nranks = NRANKS + 2, .id = id };
    int wanted = 1 + input_byte(in) % 2, rc = 0, more = 1;
    struct bny_addr at = bny_addr_loopback(0);
    struct bny_newcomers *n;
    struct bny_conn_self self;
    struct peer p;

    EXPECT(bny_id_adopt_fd(&id, listen_for(&id)) == 0);
    at.port = id.port;
    EXPECT(bny_newcomers_start(&n, &id, wanted, 0) == 0);
    bny_conn_self_init(&self, BNY_CONN_JOIN, id.secret, id.job, -1, 0);
    p.pair.epfd = epoll_create1(EPOLL_CLOEXEC);
    p.pair.fd[1] = bny_net_connect(&at);
    EXPECT(p.pair.fd[1] >= 0);
    peer_begin(&p, in, &self, 1);
    for (int turn = 0; rc == 0 && (more || turn < 2 * TURNS); turn++) {
        more = peer_says(&p, in);
        rc = bny_newcomers_progress(n);
        EXPECT(rc > -BNY_ERROR_COUNT && rc <= 1);
        EXPECT(rc != 1 || wanted == 1); /* one is not two */
    }
    if (rc == 1)
        EXPECT(bny_newcomers_place(n, &place) == 0);
    else
        bny_newcomers_refuse(n, BANYAN_EABORTED, "nothing comes of it");
    peer_reset(&p);
    bny_newcomers_free(n);
}

static void newcomer(struct input *in, struct bny_id id)
{
    int listener = listen_for(&id), rc = 0, more = 1;
    struct bny_newcomer_place place = { 0 };
    struct bny_arrival *a;
    struct bny_conn_self self;
    struct bny_addr from;
    struct peer p;

    EXPECT(bny_arrival_start(&a, &id, 0) == 0);
    rc = bny_arrival_progress(a, &place);
    EXPECT(rc == 0);
    p.pair.epfd = epoll_create1(EPOLL_CLOEXEC);
    p.pair.fd[1] = bny_net_accept(listener, &from);
    EXPECT(p.pair.fd[1] >= 0);
    close(listener); /* it has one try */
    bny_conn_self_init(&self, BNY_CONN_JOIN, id.secret, id.job, -1, 0);
    peer_begin(&p, in, &self, 0);
    p.secret = id.secret;
    for (int turn = 0; rc == 0 && (more || turn < 2 * TURNS); turn++) {
        more = peer_says(&p, in);
        rc = bny_arrival_progress(a, &place);
        EXPECT(rc > -BNY_ERROR_COUNT && rc <= 1);
        EXPECT(rc != 1 || (place.rank > 0 && place.rank < place.nranks));
    }
    peer_reset(&p);
    bny_arrival_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct bny_id id = { .magic = "bny1",
                                      .port = 1,
                                      .family = 4,
                                      .span = 1,
                                      .addr = { 127, 0, 0, 1 },
                                      .secret = "nobody knows",
                                      .job = "a job" };
    struct input in = { data, size };
    struct bny_conn_self self;
    unsigned what = input_byte(&in) % 11;

    rng = 1;
    our_port = 0;
    bny_conn_self_init(&self, BNY_CONN_BOOTSTRAP, id.secret, id.job, 0, NRANKS);
    if (what == 5)
        agree(&in);
    else if (what < 2)
        stranger(&in, &self, (int)what);
    else if (what == 4)
        control(&in, &id);
    else if (what == 6)
        doorkeeper(&in, id);
    else if (what == 7)
        newcomer(&in, id);
    else if (what < 8)
        gather(&in, &id, (int)what - 2, 0, what == 2);
    else
        gather(&in, &id, what != 8, 1, what != 10);
    return 0;
}
