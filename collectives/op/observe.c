/* SPDX-License-Identifier: BSD-3-Clause */
/* The sockets and the file of observe.h. The control plane's thread runs this: nothing blocks,
 * and the world's lock is only tried. Connections are looked at every few milliseconds while
 * there are any. */
#include "collectives/op/observe.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/param.h"
#include "base/text.h"
#include "collectives/plan/topology.h"

#define LOOK_MS     5
#define LOCK_NS     100000000u  /* a rank that holds the lock for longer answers without it */
#define SURVEY_NS   1500000000u /* ranks that have not answered are stopped, or have no CPU */
#define ASKER_NS    5000000000u /* to read it all */
#define SCRAPE_NS   2000000000u /* a request and its answer */
#define EVERY_NS    5000000000u
#define SCRAPERS    4
#define REQUEST_MAX 2048

struct answer { /* what is to be sent */
    char *text;
    size_t len, at;
};

struct scraper {
    int fd; /* -1: free */
    uint64_t until_ns;
    char request[REQUEST_MAX];
    size_t got;
    struct answer answer;
};

struct bny_observer {
    char host[64];
    uint64_t lock_ns; /* since when the lock is wanted; 0: it is not */
    int is_due;       /* a descriptor may have something, or somebody is being served */
    int status_fd;
    struct {    /* who made the survey that is under way */
        int fd; /* -1: nobody */
        uint64_t since_ns;
        int is_complete;
        struct answer answer;
    } asker;
    char path[512]; /* of BANYAN_METRICS=file; "": none */
    uint64_t file_ns;
    int port, http_fd; /* of BANYAN_METRICS=port; 0: none */
    uint64_t http_ns;  /* when the port was tried last */
    struct scraper scrapers[SCRAPERS];
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
        int is_locked = bny_world_trylock(w), is_written;
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
        is_written = f && fclose(f) == 0; /* text and len are known only now */
        bny_control_survey_answer(w->control, &survey, text, is_written ? len : 0);
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

    if (fd >= 0 &&
        (bind(fd, (struct sockaddr *)&un, bytes) != 0 || listen(fd, SCRAPERS) != 0)) {
        bny_fd_close(fd);
        fd = -1;
    }
    if (fd < 0)
        bny_debug("rank %d: banyan_status cannot ask this rank: %s", w->rank, strerror(errno));
    else
        bny_control_watch_fd(w->control, fd);
    w->observer->status_fd = fd;
}

/* ---- metrics ---- */

/* The page, for the caller to free; NULL: the lock is taken, or there is no memory. */
static char *page(struct bny_world *w, size_t *len)
{
    struct bny_metrics *m;
    char *text = NULL;
    int failed;
    FILE *f;

    if (!bny_world_trylock(w))
        return NULL;
    m = bny_metrics_read(w);
    bny_world_unlock(w);
    f = m ? open_memstream(&text, len) : NULL;
    if (f)
        bny_metrics_write(f, m, w->observer->host);
    free(m);
    failed = f && fclose(f) != 0;
    if (!failed)
        return text;
    free(text);
    return NULL;
}

static void write_file(struct bny_world *w)
{
    struct bny_observer *o = w->observer;
    char part[540], *text;
    size_t len;
    int failed;
    FILE *f;

    if (!o->path[0] || !(text = page(w, &len)))
        return;
    o->file_ns = bny_now_ns();
    snprintf(part, sizeof part, "%s.part", o->path);
    f = bny_fd_new_file(part);
    failed = !f || fwrite(text, 1, len, f) < len;
    failed |= f && fclose(f) != 0;
    if (failed || rename(part, o->path) != 0) {
        bny_warn("BANYAN_METRICS: %s: %s; no metrics are written any more", o->path,
                 strerror(errno));
        o->path[0] = '\0';
    }
    free(text);
}

static void respond(struct scraper *s, const char *status, char *body, size_t len)
{
    char head[256];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\nContent-Type: application/openmetrics-text; "
                     "version=1.0.0; charset=utf-8\r\nContent-Length: %zu\r\nConnection: "
                     "close\r\n\r\n",
                     status, len);

    append(&s->answer, head, (size_t)n);
    append(&s->answer, body, len);
    free(body);
}

static void read_request(struct bny_world *w, struct scraper *s)
{
    ssize_t n = recv(s->fd, s->request + s->got, sizeof s->request - 1 - s->got, MSG_DONTWAIT);
    char *body;
    size_t len;

    s->got += n > 0 ? (size_t)n : 0;
    s->request[s->got] = '\0';
    if (n == 0 || s->got == sizeof s->request - 1) {
        respond(s, "400 Bad Request", NULL, 0);
    } else if (strstr(s->request, "\r\n\r\n")) {
        if (strncmp(s->request, "GET /metrics ", 13) != 0 &&
            strncmp(s->request, "GET / ", 6) != 0)
            respond(s, "404 Not Found", NULL, 0);
        else if ((body = page(w, &len)))
            respond(s, "200 OK", body, len);
    }
}

static int serve_scraper(struct bny_world *w, struct scraper *s)
{
    if (s->fd < 0 && (s->fd = accept_one(w->observer->http_fd)) >= 0) {
        s->until_ns = bny_now_ns() + SCRAPE_NS;
        s->got = 0;
    }
    if (s->fd < 0)
        return 0;
    if (!s->answer.len)
        read_request(w, s);
    if ((s->answer.len && push(s->fd, &s->answer) != 0) || bny_now_ns() > s->until_ns)
        drop(&s->fd, &s->answer);
    return 1;
}

/* In vain while the world that this one has grown from has the port, so it is tried again. */
static void open_http(struct bny_world *w)
{
    struct bny_observer *o = w->observer;
    struct sockaddr_in in = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int one = 1,
        fd = bny_fd_own(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

    in.sin_port = htons((uint16_t)o->port);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&in, sizeof in) != 0 ||
        listen(fd, 2 * SCRAPERS) != 0) {
        if (!o->http_ns)
            bny_warn("rank %d: BANYAN_METRICS: port %d of 127.0.0.1: %s; each rank of a host "
                     "takes the port + its local rank: are so many free?",
                     w->rank, o->port, strerror(errno));
        if (fd >= 0)
            bny_fd_close(fd);
        o->http_ns = bny_now_ns();
        return;
    }
    o->http_fd = fd;
    bny_control_watch_fd(w->control, fd);
}

static void choose_port(struct bny_world *w, int port)
{
    for (int r = 0; r < w->rank; r++)
        port += bny_topology_host(w->topology, r) == bny_topology_host(w->topology, w->rank);
    if (port < 1 || port > 65535) {
        bny_warn("rank %d: BANYAN_METRICS: port %d is not in [1, 65535]; no metrics are served",
                 w->rank, port);
        return;
    }
    w->observer->port = port;
    open_http(w);
}

/* "%r" is the rank; without it the text names a folder. */
static void open_file(struct bny_world *w, const char *to)
{
    const char *at = strstr(to, "%r");
    struct bny_observer *o = w->observer;
    int n;

    if (!at && mkdir(to, 0777) != 0 && errno != EEXIST) {
        bny_warn("BANYAN_METRICS=%s: %s; no metrics are written", to, strerror(errno));
        return;
    }
    n = at ? snprintf(o->path, sizeof o->path, "%.*s%d%s", (int)(at - to), to, w->rank, at + 2)
           : snprintf(o->path, sizeof o->path, "%s/banyan-%02x%02x%02x%02x-rank%d.prom", to,
                      w->job[0], w->job[1], w->job[2], w->job[3], w->rank);
    if (n >= (int)sizeof o->path) {
        bny_warn("BANYAN_METRICS=%s: the path is too long; no metrics are written", to);
        o->path[0] = '\0';
    }
}

static void open_metrics(struct bny_world *w)
{
    const char *to = bny_param_str("BANYAN_METRICS");

    if (!to || !*to || !w->recorder)
        return;
    if (to[strspn(to, "0123456789")])
        open_file(w, to);
    else if (strtoul(to, NULL, 10) > 65535)
        bny_warn(
            "BANYAN_METRICS=%s: the number is no port: these are in [1, 65535]; no metrics are "
            "served. A folder of this name is ./%s",
            to, to);
    else if (w->control && bny_param_int("BANYAN_CONTROL_THREAD"))
        choose_port(w, atoi(to));
    else
        bny_warn(
            "BANYAN_METRICS=%s: no metrics are served, as the control plane has no thread "
            "(a rank alone, or BANYAN_CONTROL_THREAD=0); name a folder, and they are in it at "
            "the end",
            to);
}

/* ---- all of it ---- */

/* What is due every few seconds. Returns the ms until then; -1: nothing. */
static int do_in_time(struct bny_world *w)
{
    struct bny_observer *o = w->observer;
    uint64_t now = bny_now_ns();

    if (o->port && o->http_fd < 0 && now - o->http_ns >= EVERY_NS)
        open_http(w);
    if (o->path[0] && now - o->file_ns >= EVERY_NS)
        write_file(w);
    if (!o->path[0])
        return o->port && o->http_fd < 0 ? (int)(EVERY_NS / 1000000) : -1;
    now = bny_now_ns();
    if (now - o->file_ns >= EVERY_NS) /* the lock was taken */
        return LOOK_MS;
    return (int)((EVERY_NS - (now - o->file_ns)) / 1000000) + 1;
}

/* due: one of our descriptors has an event. Else, at each message of the control plane, nothing
 * is asked of the kernel. */
static int run(void *ctx, int due)
{
    struct bny_world *w = ctx;
    struct bny_observer *o = w->observer;
    int is_busy, ms;

    bny_recorder_aside(w);
    is_busy = !answer_surveys(w);
    if (o->is_due | due) {
        int is_served = take_asker(w);

        is_served |= serve_asker(w);
        for (int i = 0; i < SCRAPERS; i++)
            is_served |= serve_scraper(w, &o->scrapers[i]);
        o->is_due = is_served;
        is_busy |= is_served;
    }
    ms = do_in_time(w);
    return is_busy && (ms < 0 || ms > LOOK_MS) ? LOOK_MS : ms;
}

void bny_observer_open(struct bny_world *w)
{
    struct bny_observer *o = calloc(1, sizeof *o);

    if (!o)
        return;
    w->observer = o;
    gethostname(o->host, sizeof o->host - 1);
    bny_text_printable(o->host);
    o->status_fd = o->http_fd = o->asker.fd = -1;
    for (int i = 0; i < SCRAPERS; i++)
        o->scrapers[i].fd = -1;
    open_metrics(w);
    if (!w->control || !bny_param_int("BANYAN_CONTROL_THREAD"))
        return;
    open_status(w);
    bny_control_watch(w->control, run, w);
}

void bny_observer_close(struct bny_world *w)
{
    struct bny_observer *o = w->observer;

    if (!o)
        return;
    if (w->generation == bny_process_generation()) /* not in a child of fork */
        write_file(w);
    for (int i = 0; i < SCRAPERS; i++)
        if (o->scrapers[i].fd >= 0)
            drop(&o->scrapers[i].fd, &o->scrapers[i].answer);
    if (o->asker.fd >= 0)
        drop(&o->asker.fd, &o->asker.answer);
    if (o->status_fd >= 0)
        bny_fd_close(o->status_fd);
    if (o->http_fd >= 0)
        bny_fd_close(o->http_fd);
    free(o);
    w->observer = NULL;
}
