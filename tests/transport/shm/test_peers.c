/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises: strangers are dropped, liars are reported and never crash us, the dead are
 * noticed with what they had sent before, those who say farewell are not reported, and
 * nothing is left behind. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/transport/shm/pair.h"

/* ---- strangers ---- */

static int dial_end(struct bny_tp *tp, int type)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct shm_blob b;
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    cr_assert_eq(bny_shm_ops.address(tp, &b, sizeof b), (int)sizeof b);
    memcpy(a.sun_path + 1, b.name, strlen(b.name));
    if (connect(fd, (struct sockaddr *)&a,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(b.name))) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Polls until the other end of fd closes it. */
static int is_dropped(struct bny_tp *tp, int fd)
{
    uint64_t deadline = bny_deadline_in(PAIR_DEADLINE_S);
    struct bny_event ev;
    char c;

    while (!bny_deadline_passed(deadline)) {
        ssize_t n;

        cr_assert_eq(bny_shm_ops.poll(tp, &ev, 1), 0);
        n = recv(fd, &c, 1, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return 1;
    }
    return 0;
}

static void exchange_one(struct pair *p, uint32_t number)
{
    for (int i = 0; i < 2; i++) {
        struct bny_hdr h = header(8, number);
        struct bny_event ev;
        uint8_t bytes[8];

        fill(bytes, 8, number);
        cr_assert_eq(bny_shm_ops.eager(p->ep[i], &h, bytes), 0, "%s", banyan_last_error());
        cr_assert(next_event(p->tp[!i], &ev));
        cr_assert(ev.kind == BNY_EV_MSG && is_filled(ev.msg->data, 0, 8, number));
        bny_shm_ops.release(ev.msg);
    }
}

Test(shm_peers, strangers_are_dropped_and_the_job_goes_on)
{
    struct shm_packet p = { .magic = SHM_MAGIC,
                            .version = SHM_VERSION,
                            .type = SHM_PKT_HELLO,
                            .from = 1,
                            .to = 0,
                            .bytes = sizeof(struct shm_seg) };
    struct pair pr;
    int fd;

    pair_open(&pr, "1");
    cr_assert_lt(dial_end(pr.tp[0], SOCK_STREAM), 0, "a byte stream is no connection to us");
    for (int kind = 0; kind < 4; kind++) {
        fd = dial_end(pr.tp[0], SOCK_SEQPACKET);
        cr_assert_geq(fd, 0);
        if (kind == 0)
            cr_assert_eq(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
        if (kind == 1) /* a well-formed hello without the secret */
            cr_assert_eq(send(fd, &p, sizeof p, 0), (ssize_t)sizeof p);
        if (kind == 2) /* longer than any packet */
            cr_assert_eq(send(fd, &pr, sizeof pr, 0), (ssize_t)sizeof pr);
        if (kind == 3)
            shutdown(fd, SHUT_WR);
        cr_assert(is_dropped(pr.tp[0], fd), "stranger %d stays", kind);
        close(fd);
        exchange_one(&pr, (uint32_t)kind);
    }
    fd = dial_end(pr.tp[0],
                  SOCK_SEQPACKET); /* half open: says nothing; must not be in the way */
    exchange_one(&pr, 9);
    close(fd);
    pair_close(&pr);
}

static int nlines;

static void count_lines(void *ctx, enum banyan_log_level level, const char *line)
{
    nlines += level <= BANYAN_LOG_WARN && strstr(line, "shm: ") != NULL;
    (void)ctx;
}

/* 1000 connections, as uid; the first says something. */
static void flood(struct pair *p, uid_t uid)
{
    int out[2], status;
    char c = 0;
    pid_t pid;

    cr_assert_eq(pipe(out), 0);
    pid = fork();
    if (pid == 0) {
        if (geteuid() != uid && setresuid(uid, uid, uid) != 0)
            _exit(1);
        for (int i = 0; i < 1000; i++) {
            int fd = dial_end(p->tp[0], SOCK_SEQPACKET);

            if (fd >= 0 && i % 2)
                (void)!send(fd, "junk", 4, MSG_NOSIGNAL);
            if (fd >= 0)
                close(fd);
        }
        (void)!write(out[1], &c, 1);
        _exit(0);
    }
    close(out[1]);
    /* Until all are there, and then a while: a poll looks at the sockets now and then. */
    for (uint64_t end = 0; !end || !bny_deadline_passed(end);) {
        struct pollfd done = { .fd = out[0], .events = POLLIN };
        struct bny_event ev;

        if (!end && poll(&done, 1, 0) != 0)
            end = bny_deadline_in(0.2);
        cr_assert_eq(bny_shm_ops.poll(p->tp[0], &ev, 1), 0);
    }
    close(out[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
}

/* Anybody on the host can see the name and connect. */
Test(shm_peers, a_flood_of_strangers_leaves_few_lines)
{
    struct pair pr;

    banyan_set_log(count_lines, NULL, BANYAN_LOG_INFO);
    pair_open(&pr, "1");
    flood(&pr, geteuid());
    cr_assert_geq(nlines, 1);
    cr_assert_lt(nlines, 10);
    exchange_one(&pr, 1);
    if (geteuid() == 0) {
        flood(&pr, 65534);
        cr_assert_lt(nlines, 20);
        exchange_one(&pr, 2);
    }
    pair_close(&pr);
    banyan_set_log(NULL, NULL, BANYAN_LOG_INFO);
}

/* ---- liars ---- */

enum lie {
    LIE_KIND,
    LIE_INLINE_LEN,
    LIE_DATA_AT,
    LIE_DATA_LEN,
    LIE_SLOT,
    LIE_SLOT_LEN,
    LIE_ARENA,
    LIE_OVERRUN,
    LIE_HEAD,
    LIE_DONE,
    LIES
};

/* Writes into the segment 0 -> 1 what an honest peer never would. */
static void lie(struct pair *p, enum lie which)
{
    struct shm_ep *ep = (struct shm_ep *)p->ep[0];
    struct bny_hdr h = header(0, 1);
    uint32_t info[LIES] = { [LIE_KIND] = 7,
                            [LIE_INLINE_LEN] = SHM_REC_INLINE,
                            [LIE_DATA_AT] = SHM_REC_EAGER | 0xfffffff8u,
                            [LIE_DATA_LEN] = SHM_REC_EAGER,
                            [LIE_SLOT] = SHM_REC_SLOT | 200 << 3,
                            [LIE_SLOT_LEN] = SHM_REC_SLOT,
                            [LIE_ARENA] = SHM_REC_DESC | 777u << 11,
                            [LIE_OVERRUN] = SHM_REC_EAGER };
    uint32_t len[LIES] = { [LIE_INLINE_LEN] = 9,
                           [LIE_DATA_AT] = 64,
                           [LIE_DATA_LEN] = 1u << 30,
                           [LIE_SLOT] = 1,
                           [LIE_SLOT_LEN] = SHM_SLOT_BYTES + 1,
                           [LIE_ARENA] = 1 };

    if (which == LIE_OVERRUN) { /* all eager ones are held: the next one is one too many */
        h.len = 64;
        for (uint32_t i = 0; i < SHM_RING; i++) {
            struct bny_event ev;

            bny_shm_post(ep, &h, SHM_REC_EAGER, 0);
            cr_assert(next_event(p->tp[1], &ev) && ev.kind == BNY_EV_MSG);
        }
    }
    h.len = len[which];
    bny_shm_post(ep, &h, info[which], 0);
}

ParameterizedTestParameters(shm_peers, a_liar_is_reported_and_nothing_crashes)
{
    static int lies[LIES] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };

    return cr_make_param_array(int, lies, LIES);
}

ParameterizedTest(int *which, shm_peers, a_liar_is_reported_and_nothing_crashes)
{
    struct bny_hdr h = header(4, 0);
    struct bny_event ev = { 0 };
    struct pair p;
    int victim = 1, n = 0;

    pair_open(&p, "1");
    exchange_one(&p, 0);
    if (*which == LIE_HEAD) {
        victim = 0;
        atomic_store(&((struct shm_ep *)p.ep[0])->out->head, 1000);
        while ((n = bny_shm_ops.eager(p.ep[0], &h, "abc")) == 0)
            ;
        cr_assert_eq(n, -BANYAN_EPROTO);
    } else if (*which == LIE_DONE) {
        victim = 0;
        cr_assert_eq(bny_shm_ops.send(p.ep[0], &h, "abc", &h), 0);
        atomic_store(&((struct shm_ep *)p.ep[0])->out->done[0], 1u << 8 | 99);
    } else {
        lie(&p, (enum lie) * which);
    }
    cr_assert(next_event(p.tp[victim], &ev));
    cr_assert_eq(ev.kind, BNY_EV_DOWN, "lie %d: event %d", *which, ev.kind);
    cr_assert_eq(ev.ep, p.ep[victim]);
    cr_assert(strstr(ev.reason, "rank "), "%s", ev.reason);
    cr_assert_eq(bny_shm_ops.eager(p.ep[victim], &h, "abc"), -BANYAN_EPROTO);
    for (int k = 0; k < 200; k++)
        cr_assert_eq(bny_shm_ops.poll(p.tp[victim], &ev, 1), 0, "DOWN is reported once");
    pair_close(&p);
}

Test(shm_peers, descriptor_of_unmapped_memory_is_an_error)
{
    struct shm_ep *ep;
    struct bny_hdr h = header(4096, 0);
    struct bny_event ev;
    struct pair p;
    const void *ptr;

    pair_open(&p, "1");
    ep = (struct shm_ep *)p.ep[0];
    exchange_one(&p, 0);
    if (ep->copy != SHM_COPY_CMA)
        cr_skip_test("process_vm_readv is not permitted here");
    bny_shm_post(ep, &h, SHM_REC_DESC, 0x1000);
    cr_assert(next_event(p.tp[1], &ev) && ev.kind == BNY_EV_MSG);
    cr_assert_eq(bny_shm_ops.view(ev.msg, 0, 4096, NULL, &ptr), -BANYAN_EPROTO);
    bny_shm_ops.release(ev.msg);
    exchange_one(&p, 1); /* its user may have freed the memory after a failure: not the end of
                            the connection */
    pair_close(&p);
}

Test(shm_peers, foreign_addresses_are_refused)
{
    struct bny_tp *tp = end_open(0, 2);
    struct shm_blob good, bad;
    struct bny_ep *ep;

    bny_shm_ops.address(tp, &good, sizeof good);
    cr_assert_eq(bny_shm_ops.reachable(tp, 1, &good, sizeof good), 1);
    cr_assert_eq(bny_shm_ops.reachable(tp, 1, &good, sizeof good - 1), 0);
    bad = good;
    bad.at.host[0] ^= 1; /* another machine */
    cr_assert_eq(bny_shm_ops.reachable(tp, 1, &bad, sizeof bad), 0);
    bad = good;
    memset(bad.name, 'x', sizeof bad.name);
    cr_assert_eq(bny_shm_ops.reachable(tp, 1, &bad, sizeof bad), 0);
    cr_assert_eq(bny_shm_ops.connect(tp, 1, &bad, sizeof bad, &ep), -BANYAN_EINVAL);
    cr_assert_eq(bny_shm_ops.connect(tp, 2, &good, sizeof good, &ep), -BANYAN_EINVAL);
    bny_shm_ops.destroy(tp);
}

/* ---- another process ---- */

struct child {
    pid_t pid;
    int sock; /* its stdin and stdout: address blobs */
};

extern char **environ;

/* Starts the worker as rank 1 of 2. Returns its address. */
static struct shm_blob child_spawn(struct child *c, const char *how, struct bny_tp *tp)
{
    char *argv[] = { (char *)(uintptr_t)SHM_WORKER, (char *)(uintptr_t)how, NULL };
    posix_spawn_file_actions_t fa;
    struct shm_blob b;
    int sv[2];

    setenv("BANYAN_CMA", "1", 1);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, sv[1], 0);
    posix_spawn_file_actions_adddup2(&fa, sv[1], 1);
    cr_assert_eq(posix_spawn(&c->pid, SHM_WORKER, &fa, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&fa);
    close(sv[1]);
    c->sock = sv[0];
    cr_assert_eq(bny_shm_ops.address(tp, &b, sizeof b), (int)sizeof b);
    cr_assert_eq(send(c->sock, &b, sizeof b, 0), (ssize_t)sizeof b);
    cr_assert_eq(recv(c->sock, &b, sizeof b, 0), (ssize_t)sizeof b);
    return b;
}

/* And connects with it. */
static void child_start(struct child *c, const char *how, struct bny_tp *tp, struct bny_ep **ep)
{
    struct shm_blob b = child_spawn(c, how, tp);

    cr_assert_eq(bny_shm_ops.reachable(tp, 1, &b, sizeof b), 1);
    cr_assert_eq(bny_shm_ops.connect(tp, 1, &b, sizeof b, ep), 0, "%s", banyan_last_error());
}

static int child_end(struct child *c)
{
    int status = -1;

    waitpid(c->pid, &status, 0);
    close(c->sock);
    return status;
}

/* A rank of another process that knows addresses of this one. */
enum claim {
    CLAIM_OURS,          /* the process and nonce of who reads its card */
    CLAIM_OURS_READABLE, /* the same, and that its memory may be read */
    CLAIM_SIBLING,       /* the whole card of another rank in this process */
    CLAIMS
};

static const struct claimed {
    enum claim what;
    int hello_first; /* its hello comes before its card */
} claims[] = { { CLAIM_OURS, 0 },          { CLAIM_OURS, 1 },    { CLAIM_OURS_READABLE, 0 },
               { CLAIM_OURS_READABLE, 1 }, { CLAIM_SIBLING, 0 }, { CLAIM_SIBLING, 1 } };

static int has_hello(struct bny_tp *tp)
{
    const struct shm_ep *ep = ((struct shm_tp *)tp)->peers[1];

    return ep && ep->in;
}

ParameterizedTestParameters(shm_peers, who_claims_our_memory_does_not_get_it)
{
    return cr_make_param_array(struct claimed, (void *)(uintptr_t)claims,
                               sizeof claims / sizeof claims[0]);
}

/* The kernel knows better. An honest rank of this process is believed (pair_open). */
ParameterizedTest(struct claimed *k, shm_peers, who_claims_our_memory_does_not_get_it,
                  .timeout = 60)
{
    struct bny_tp *tp = end_open(0, 2), *sibling = end_open(1, 2);
    struct shm_blob card, ours;
    struct bny_event ev;
    struct bny_ep *ep;
    struct child c;

    card = child_spawn(&c, "slow", tp);
    bny_shm_ops.address(k->what == CLAIM_SIBLING ? sibling : tp, &ours, sizeof ours);
    if (k->what != CLAIM_SIBLING)
        memcpy(ours.name, card.name, sizeof ours.name);
    ours.cma = k->what != CLAIM_OURS;
    while (k->hello_first && !has_hello(tp))
        cr_assert_eq(bny_shm_ops.poll(tp, &ev, 1), 0);
    cr_assert_eq(bny_shm_ops.connect(tp, 1, &ours, sizeof ours, &ep), 0, "%s",
                 banyan_last_error());
    cr_assert(next_event(tp, &ev));
    if (k->what == CLAIM_SIBLING) {
        cr_assert_eq(ev.kind, BNY_EV_DOWN, "a rank of process %d lends memory of this one",
                     (int)c.pid);
        cr_assert(strstr(ev.reason, "names the memory of"), "%s", ev.reason);
        cr_assert_eq(bny_shm_ops.eager(ep, &(struct bny_hdr){ 0 }, NULL), -BANYAN_EPROTO);
    } else {
        cr_assert_eq(ev.kind, BNY_EV_MSG);
        bny_shm_ops.release(ev.msg);
    }
    cr_assert_eq(((struct shm_ep *)ep)->copy, SHM_COPY_NONE);
    kill(c.pid, SIGKILL);
    child_end(&c);
    bny_shm_ops.destroy(sibling);
    bny_shm_ops.destroy(tp);
}

/* The same, where this rank calls it first: what listens there is another process. */
Test(shm_peers, who_listens_for_another_process_is_not_believed, .timeout = 60)
{
    struct bny_tp *tp = end_open(0, 2), *sibling = end_open(1, 2);
    struct shm_blob card, ours;
    struct bny_ep *ep;
    struct child c;

    card = child_spawn(&c, "echo", tp);
    bny_shm_ops.address(sibling, &ours, sizeof ours);
    memcpy(card.nonce, ours.nonce, sizeof card.nonce);
    card.pid = ours.pid;
    card.probe = ours.probe;
    cr_assert_eq(bny_shm_ops.connect(tp, 1, &card, sizeof card, &ep), 0);
    ((struct shm_ep *)ep)->copy = SHM_COPY_DIRECT; /* as if its name were the sibling's, too */
    cr_assert_eq(bny_shm_ops.eager(ep, &(struct bny_hdr){ 0 }, NULL), -BANYAN_EPROTO);
    cr_assert(strstr(banyan_last_error(), "names the memory of"), "%s", banyan_last_error());
    kill(c.pid, SIGKILL);
    child_end(&c);
    bny_shm_ops.destroy(sibling);
    bny_shm_ops.destroy(tp);
}

/* Names in a folder, without those of Criterion programs that run beside this one. */
/* Files by names that we might give them: other programs come and go meanwhile. */
static int count_dir(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)))
        n += strstr(e->d_name, "bny") != NULL || strstr(e->d_name, "banyan") != NULL;
    if (d)
        closedir(d);
    return n;
}

#define FLIGHT 32

/* Sends `total` messages of random sizes to the worker, which sends them back in all ways;
 * some are always under way. What comes back must be what was sent, once. */
static void echo_all(struct bny_tp *tp, struct bny_ep *ep, uint32_t total)
{
    uint64_t rng = 0x5eed0002;
    uint8_t *buf[FLIGHT] = { 0 }, *back = malloc(1 << 18);
    uint32_t len[FLIGHT], sent = 0, got = 0, ended = 0;

    cr_log_info("seed %#llx", (unsigned long long)rng);
    while (got < total || ended < total) {
        struct bny_event ev;
        const void *ptr;

        if (sent < total && sent - got < FLIGHT && sent - ended < FLIGHT) {
            uint32_t k = sent % FLIGHT;
            struct bny_hdr h;

            len[k] = (uint32_t)bny_rng_below(&rng, 1 + (1u << bny_rng_below(&rng, 18)));
            h = header(len[k], sent);
            buf[k] = realloc(buf[k], len[k] + 1);
            fill(buf[k], len[k], sent);
            if (bny_shm_ops.send(ep, &h, buf[k], buf[k]) == 0)
                sent++;
        }
        if (sent < total && sent - got < FLIGHT / 2 && sent - ended < FLIGHT / 2)
            continue;
        cr_assert(next_event(tp, &ev), "sent %u, back %u, ended %u", sent, got, ended);
        ended += ev.kind == BNY_EV_SENT;
        if (ev.kind == BNY_EV_SENT)
            continue;
        cr_assert(ev.kind == BNY_EV_MSG && ev.msg->hdr.chunk == got, "message %u", got);
        cr_assert_eq(ev.msg->hdr.len, len[got % FLIGHT]);
        if (ev.msg->hdr.len)
            cr_assert_eq(bny_shm_ops.view(ev.msg, 0, ev.msg->hdr.len, back, &ptr),
                         (long)ev.msg->hdr.len);
        cr_assert(is_filled(back, 0, ev.msg->hdr.len, got), "message %u of %u bytes", got,
                  ev.msg->hdr.len);
        bny_shm_ops.release(ev.msg);
        got++;
    }
    for (int k = 0; k < FLIGHT; k++)
        free(buf[k]);
    free(back);
}

Test(shm_peers, killed_process_is_reported_and_leaves_nothing, .timeout = 60)
{
    int files = count_dir("/dev/shm");
    struct bny_tp *tp = end_open(0, 2);
    struct bny_hdr h = header(4, 0);
    struct bny_event ev;
    struct bny_ep *ep;
    struct child c;

    child_start(&c, "echo", tp, &ep);
    if (ep->zcopy_min == UINT32_MAX)
        cr_skip_test("process_vm_readv is not permitted here");
    echo_all(tp, ep, 2000);
    kill(c.pid, SIGKILL);
    cr_assert(next_event(tp, &ev));
    cr_assert_eq(ev.kind, BNY_EV_DOWN);
    cr_assert(strstr(ev.reason, "rank 1"), "%s", ev.reason);
    cr_assert_eq(bny_shm_ops.eager(ep, &h, "abc"), -BANYAN_ERANKDEAD);
    cr_assert(WIFSIGNALED(child_end(&c)));
    bny_shm_ops.destroy(tp);
    cr_assert_eq(count_dir("/dev/shm"), files);
}

Test(shm_peers, farewell_is_no_death_and_last_words_arrive, .timeout = 60)
{
    struct bny_tp *tp = end_open(0, 2);
    uint64_t deadline = bny_deadline_in(PAIR_DEADLINE_S);
    struct bny_event ev;
    struct bny_ep *ep;
    struct child c;

    child_start(&c, "farewell", tp, &ep);
    cr_assert_eq(child_end(&c), 0);
    cr_assert(next_event(tp, &ev));
    cr_assert(ev.kind == BNY_EV_MSG && is_filled(ev.msg->data, 0, 100, 5));
    bny_shm_ops.release(ev.msg);
    while (!bny_deadline_passed(deadline) && ((struct shm_ep *)ep)->fate == SHM_ALIVE)
        cr_assert_eq(bny_shm_ops.poll(tp, &ev, 1), 0, "%s", ev.reason);
    cr_assert_eq(((struct shm_ep *)ep)->fate, SHM_LEFT);
    cr_assert_eq(bny_shm_ops.poll(tp, &ev, 1), 0);
    cr_assert_eq(bny_shm_ops.eager(ep, &(struct bny_hdr){ 0 }, NULL), -BANYAN_ERANKDEAD);
    bny_shm_ops.destroy(tp);
}

/* Its hello, message and farewell are here, but nobody has looked at them when it is to get
 * something itself. */
Test(shm_peers, who_left_before_we_looked_is_not_dead, .timeout = 60)
{
    struct bny_hdr hdr = header(100, 5);
    struct bny_event ev;
    struct pair p;
    uint8_t buf[100];

    pair_open(&p, "1");
    fill(buf, sizeof buf, 5);
    cr_assert_eq(bny_shm_ops.eager(p.ep[1], &hdr, buf), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_shm_ops.farewell(p.tp[1]), 0);
    bny_shm_ops.destroy(p.tp[1]);
    p.tp[1] = NULL;
    cr_assert_eq(bny_shm_ops.eager(p.ep[0], &hdr, buf), -BANYAN_ERANKDEAD);
    cr_assert_eq(((struct shm_ep *)p.ep[0])->fate, SHM_LEFT, "%s", banyan_last_error());
    cr_assert(next_event(p.tp[0], &ev));
    cr_assert(ev.kind == BNY_EV_MSG && is_filled(ev.msg->data, 0, 100, 5));
    bny_shm_ops.release(ev.msg);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(bny_shm_ops.poll(p.tp[0], &ev, 1), 0, "%s", ev.reason);
    bny_shm_ops.destroy(p.tp[0]);
}

static int is_orderly[] = { 0, 1 };

ParameterizedTestParameters(shm_peers, memory_that_is_being_sent_comes_back_at_the_end)
{
    return cr_make_param_array(int, is_orderly, 2);
}

/* What it has not read it will not read: the memory is its owner's again, and then it is gone.
 */
ParameterizedTest(int *orderly, shm_peers, memory_that_is_being_sent_comes_back_at_the_end,
                  .timeout = 60)
{
    enum { N = 40 };
    static uint8_t buf[N][1000];
    struct bny_event ev;
    struct pair p;

    pair_open(&p, "1");
    exchange_one(&p, 0);
    for (uint32_t i = 0; i < N; i++) {
        struct bny_hdr h = header(sizeof buf[i], i);

        cr_assert_eq(bny_shm_ops.send(p.ep[0], &h, buf[i], buf[i]), 0, "%s",
                     banyan_last_error());
    }
    if (*orderly)
        cr_assert_eq(bny_shm_ops.farewell(p.tp[1]), 0);
    bny_shm_ops.destroy(p.tp[1]);
    for (uint32_t seen = 0; seen < N; seen++) {
        uint32_t i = 0;

        cr_assert(next_event(p.tp[0], &ev), "%u came back", seen);
        cr_assert_eq(ev.kind, BNY_EV_SENT, "%u came back", seen);
        i = (uint32_t)((uint8_t *)ev.cookie - buf[0]) / sizeof buf[0];
        cr_assert(i < N && ev.cookie == buf[i] && !buf[i][0], "twice");
        buf[i][0] = 1;
    }
    if (!*orderly)
        cr_assert(next_event(p.tp[0], &ev) && ev.kind == BNY_EV_DOWN);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(bny_shm_ops.poll(p.tp[0], &ev, 1), 0, "%s", ev.reason);
    bny_shm_ops.destroy(p.tp[0]);
}

Test(shm_peers, sleeper_is_woken_by_a_message, .timeout = 60)
{
    struct bny_tp *tp = end_open(0, 2);
    struct bny_event ev;
    struct bny_ep *ep;
    struct child c;
    int sleeps = 0, rings = 0;

    child_start(&c, "slow", tp, &ep); /* sends after a pause that no spinning shortens */
    for (int got = 0; got < 5;) {
        struct pollfd pfd[4] = { 0 };
        int fds[4], nfds;
        uint64_t ns = bny_shm_ops.arm(tp, fds, 4, &nfds);

        cr_assert_leq(ns, 1000000);
        if (ns) {
            for (int i = 0; i < nfds; i++)
                pfd[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
            rings += poll(pfd, (nfds_t)nfds, 1) > 0;
            sleeps++;
        }
        bny_shm_ops.disarm(tp);
        while (bny_shm_ops.poll(tp, &ev, 1) == 1) {
            cr_assert_eq(ev.kind, BNY_EV_MSG);
            bny_shm_ops.release(ev.msg);
            got++;
        }
    }
    cr_assert_gt(sleeps, 5, "it slept only %d times", sleeps);
    cr_assert_gt(rings, 0, "nobody ever rang");
    cr_assert_eq(child_end(&c), 0);
    bny_shm_ops.destroy(tp);
}

Test(shm_peers, closed_window_is_left_alone_by_a_busy_writer, .timeout = 60)
{
    enum { BYTES = 4 << 20 }; /* a put takes long enough to be met in its middle */
    struct bny_tp *tp = end_open(0, 2);
    uint8_t *mem = malloc(BYTES);
    struct bny_event ev;
    struct bny_ep *ep;
    struct child c;
    uint64_t rng = 0x5eed0003;

    child_start(&c, "putter", tp, &ep);
    for (int round = 0; round < 30; round++) {
        struct bny_hdr h = header(sizeof(struct bny_window), 0);
        struct bny_window win;
        int rc = bny_shm_ops.window_open(ep, mem, BYTES, &win);

        if (rc == -BANYAN_ENOTSUP)
            cr_skip_test("process_vm_writev is not permitted here");
        cr_assert_eq(rc, 0, "%s", banyan_last_error());
        cr_assert_eq(bny_shm_ops.eager(ep, &h, &win), 0);
        for (int k = 0; k <= round % 5; k++) {
            cr_assert(next_event(tp, &ev) && ev.kind == BNY_EV_MSG);
            bny_shm_ops.release(ev.msg);
        }
        /* Some moment of the next put, or between two: any is right. */
        for (uint64_t at = bny_now_ns() + bny_rng_below(&rng, 1000000); bny_now_ns() < at;)
            bny_pause();
        while ((rc = bny_shm_ops.window_close(ep, &win)) == BNY_AGAIN)
            ;
        cr_assert_eq(rc, 0);
        memset(mem, 0x5a, BYTES);
        for (int k = 0; k < 100; k++) /* gives it time, and takes the puts from before */
            if (bny_shm_ops.poll(tp, &ev, 1) == 1) {
                cr_assert_eq(ev.kind, BNY_EV_MSG);
                bny_shm_ops.release(ev.msg);
            }
        cr_assert(mem[0] == 0x5a && memcmp(mem, mem + 1, BYTES - 1) == 0,
                  "round %d: written after close", round);
    }
    kill(c.pid, SIGKILL);
    child_end(&c);
    bny_shm_ops.destroy(tp);
    free(mem);
}
