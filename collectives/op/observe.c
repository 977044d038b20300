/* SPDX-License-Identifier: BSD-3-Clause */
/* The socket of observe.h. The control plane's thread runs this: nothing blocks,
 * and the world's lock is only tried. Connections are looked at every few milliseconds while
 * there are any. */
#include "collectives/op/observe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/param.h"
#include "base/text.h"

#define LOOK_MS   5
#define LOCK_NS   100000000u  /* a rank that holds the lock for longer answers without it */
#define SURVEY_NS 1500000000u /* ranks that have not answered are stopped, or have no CPU */
#define ASKER_NS  5000000000u /* to read it all */

struct answer { /* what is to be sent */
    char *text;
    size_t len, at;
};

struct bny_observer {
    char host[64];
    uint64_t lock_ns; /* since when the lock is wanted; 0: it is not */
    int status_fd;
    struct {    /* who made the survey that is under way */
        int fd; /* -1: nobody */
        uint64_t since_ns;
        int is_complete;
        struct answer answer;
    } asker;
};

/* ---- sending ---- */

/* 1: all is sent, 0: not yet, -1: the reader has gone. */
static int push(int fd, struct answer *a)
{
    while (a->at < a->len) {
        ssize_t n = send(fd, a->text + a->at, a->len - a->at, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        a->at += (size_t)n;
    }
    return 1;
}

/* Input that nobody read would turn the end into a reset, which overtakes the answer. */
static void drop(int *fd, struct answer *a)
{
    char rest[4096];

    for (int i = 0; i < 16 && recv(*fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++)
        ;
    bny_fd_close(*fd);
    *fd = -1;
    free(a->text);
    *a = (struct answer){ 0 };
}

static int accept_one(int listener)
{
    return listener < 0
               ? -1
               : bny_fd_own(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

/* ---- status ---- */

/* Root may look at everybody's. */
static int may_ask(int fd)
{
    struct ucred c;
    socklen_t len = sizeof c;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) == 0 &&
           (c.uid == geteuid() || c.uid == 0);
}

/* 0: the lock is needed, and somebody else has it, but not for long. */
static int answer_surveys(struct bny_world *w)
{
    struct bny_observer *o = w->observer;
    struct bny_survey survey;

    while (bny_control_survey_asked(w->control, &survey)) {
        int is_locked = bny_world_trylock(w);
        uint64_t now = bny_now_ns();
        char *text = NULL;
        size_t len = 0;
        FILE *f;

        o->lock_ns = o->lock_ns ? o->lock_ns : now;
        if (!is_locked && now - o->lock_ns < LOCK_NS)
            return 0;
        f = open_memstream(&text, &len);
        if (f)
            bny_status_write(f, w, o->host, is_locked);
        if (is_locked)
            bny_world_unlock(w);
        o->lock_ns = 0;
        bny_control_survey_answer(w->control, &survey, text, f && fclose(f) == 0 ? len : 0);
        free(text);
    }
    return 1;
}

/* The following return 1 if there was a connection: another may wait behind it, for which no
 * event comes any more. */
static int take_asker(struct bny_world *w)
{
    struct bny_observer *o = w->observer;
    int fd = o->asker.fd < 0 ? accept_one(o->status_fd) : -1;

    if (fd < 0)
        return 0;
    if (!may_ask(fd)) {
        bny_fd_close(fd);
        return 1;
    }
    o->asker.fd = fd;
    o->asker.since_ns = bny_now_ns();
    o->asker.is_complete = 0;
    bny_control_survey_begin(w->control);
    return 1;
}

static void append(struct answer *a, const char *text, size_t len)
{
    char *grown = text ? realloc(a->text, a->len + len) : NULL;

    if (!grown)
        return;
    a->text = grown;
    memcpy(a->text + a->len, text, len);
    a->len += len;
}

static int serve_asker(struct bny_world *w)
{
    struct bny_observer *o = w->observer;
    uint64_t now = bny_now_ns();
    int missing, sent;
    size_t len;
    char *text;

    if (o->asker.fd < 0)
        return 0;
    if (!o->asker.is_complete) {
        text = bny_control_survey_take(w->control, &len, &missing);
        append(&o->asker.answer, text, len);
        free(text);
        o->asker.is_complete = !missing || now - o->asker.since_ns > SURVEY_NS;
    }
    sent = push(o->asker.fd, &o->asker.answer);
    if (sent < 0 || (sent && o->asker.is_complete) || now - o->asker.since_ns > ASKER_NS)
        drop(&o->asker.fd, &o->asker.answer);
    return 1;
}

/* The name says where to ask for which job: any user can list it, but only the owner and root
 * get an answer. */
static void open_status(struct bny_world *w)
{
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    int fd = bny_fd_own(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int len = snprintf(un.sun_path + 1, sizeof un.sun_path - 1,
                       "banyan-status-%02x%02x%02x%02x-%d-of-%d-%d", w->job[0], w->job[1],
                       w->job[2], w->job[3], w->rank, w->nranks, (int)getpid());
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);

    if (fd >= 0 && (bind(fd, (struct sockaddr *)&un, bytes) != 0 || listen(fd, 4) != 0)) {
        bny_fd_close(fd);
        fd = -1;
    }
    if (fd < 0)
        bny_debug("rank %d: banyan_status cannot ask this rank: %s", w->rank, strerror(errno));
    else
        bny_control_watch_fd(w->control, fd);
    w->observer->status_fd = fd;
}

/* ---- all of it ---- */

static int run(void *ctx)
{
    struct bny_world *w = ctx;
    int is_busy;

    bny_recorder_aside(w);
    is_busy = take_asker(w) | !answer_surveys(w);
    is_busy |= serve_asker(w);
    return is_busy ? LOOK_MS : -1;
}

void bny_observer_open(struct bny_world *w)
{
    struct bny_observer *o =
        w->control && bny_param_int("BANYAN_CONTROL_THREAD") ? calloc(1, sizeof *o) : NULL;

    if (!o)
        return;
    w->observer = o;
    gethostname(o->host, sizeof o->host - 1);
    bny_text_printable(o->host);
    o->status_fd = o->asker.fd = -1;
    open_status(w);
    bny_control_watch(w->control, run, w);
}

void bny_observer_close(struct bny_world *w)
{
    struct bny_observer *o = w->observer;

    if (!o)
        return;
    if (o->asker.fd >= 0)
        drop(&o->asker.fd, &o->asker.answer);
    if (o->status_fd >= 0)
        bny_fd_close(o->status_fd);
    free(o);
    w->observer = NULL;
}
