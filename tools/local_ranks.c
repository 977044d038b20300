/* SPDX-License-Identifier: BSD-3-Clause */
/* Local ranks: fork and exec, one poll loop over a signalfd and the ranks' output pipes.
 * Whatever of signals, descriptors and limits this process has inherited, the job ends, and
 * ranks find what a shell would give them. */
#include "tools/local_ranks.h"
#include "tools/rank_binding.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/param.h"
#include "tools/rank_binding.h"
#include "transport/bootstrap/board.h"
#include "transport/bootstrap/bootstrap.h"

#define GRACE_S      5.0    /* for the other ranks, once one has failed */
#define KILL_AFTER_S 2.0    /* between SIGTERM and SIGKILL */
#define LINE_BYTES   4096   /* longest piece of a line that is tagged as one */
#define FAILED_MAX   100    /* as exit status; above, statuses have other meanings */
#define TELL_S       3600.0 /* how long a rank's end waits for a root that enters init late */
#define OWN_FILES    64     /* descriptors besides the ranks' pipes: ours, and inherited ones */
#define SLEEP_MS_MAX 60000u
#define TOLD_MAX     8 /* ranks whose end is told one by one */

struct pipe_end {
    int fd; /* our read end, -1: closed */
    int to; /* 1 or 2: where its lines go */
    size_t len;
    char line[LINE_BYTES];
};

struct rank {
    pid_t pid;    /* 0: ended, and reaped */
    int restarts; /* how often it was started again */
    int is_told;  /* an end of it was printed */
    struct pipe_end out[2];
};

struct job {
    const struct bny_local_ranks *opts;
    struct bny_id id;
    struct rank *ranks;
    char *const *argv;
    struct bny_board *board; /* NULL: nobody is started again */
    int board_fd;
    struct rlimit files; /* as inherited */
    int running;
    int failed;                            /* ranks that stay so, of their own accord */
    int told;                              /* ranks with is_told */
    int is_signalled;                      /* we have passed on a signal */
    pid_t teller;                          /* tells the ranks of the first that failed; or 0 */
    int status;                            /* of the first rank that failed, or 0 */
    char first[240];                       /* the end of the first of `failed` in words */
    unsigned long oom_kills;               /* before the job */
    uint64_t term_at, kill_at, timeout_at; /* ns; 0: not planned */
};

/* How often the kernel has killed a process of this machine for lack of memory, in a control
 * group or in all; 0: unknown. */
static unsigned long oom_kills(void)
{
    FILE *f = fopen("/proc/vmstat", "re");
    unsigned long n = 0;
    char line[128];

    while (f && fgets(line, sizeof line, f) && sscanf(line, "oom_kill %lu", &n) != 1)
        continue;
    if (f)
        fclose(f);
    return n;
}

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

void bny_local_bind(int rank)
{
    cpu_set_t all, one;
    int n, want;

    if (sched_getaffinity(0, sizeof all, &all) != 0 || (n = CPU_COUNT(&all)) == 0)
        return;
    want = rank % n;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || want-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

/* In the child: signals as a shell gives them. A user who ignores SIGHUP (nohup) means the
 * ranks. */
static void restore_signals(void)
{
    struct sigaction now;
    sigset_t none;

    for (int sig = 1; sig < NSIG; sig++)
        if (sigaction(sig, NULL, &now) == 0 && now.sa_handler != SIG_DFL &&
            (sig != SIGHUP || now.sa_handler != SIG_IGN))
            signal(sig, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Opens OUTPUT.R.out or .err; a rank that is started again writes behind what it wrote. */
static void to_file(const struct bny_local_ranks *o, int r, int again, int to)
{
    char path[4096];
    int fd;

    snprintf(path, sizeof path, "%s.%d.%s", o->output, r, to == 1 ? "out" : "err");
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (again ? O_APPEND : O_TRUNC), 0666);
    if (fd < 0) {
        fprintf(stderr, "%s: rank %d: --output-filename: %s: %s\n", o->tool, r, path,
                strerror(errno));
        _exit(125);
    }
    dup2(fd, to);
}

/* In the child: standard input is rank 0's, and what the ranks print is tagged, or goes to
 * files. */
static void redirect(const struct bny_local_ranks *o, int r, int again, int (*pipes)[2])
{
    int null = r > 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;

    if (null >= 0)
        dup2(null, STDIN_FILENO);
    for (int i = 0; i < 2; i++)
        if (o->output)
            to_file(o, r, again, i + 1);
        else if (o->tag)
            dup2(pipes[i][1], i + 1);
}

/* In the child: becomes rank r of the program. Does not return. */
static void become_rank(const struct job *j, int r, pid_t parent, int listener, int (*pipes)[2])
{
    const struct bny_local_ranks *o = j->opts;
    char *const *argv = j->argv;

    /* A launcher that was killed must leave nothing behind; it may have died already. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(125);
    restore_signals();
    redirect(o, r, j->ranks[r].restarts > 0, pipes);
    setrlimit(RLIMIT_NOFILE, &j->files);
    if (o->bind)
        bny_local_bind(r);
    else if (o->bindings &&
             sched_setaffinity(0, sizeof o->bindings[r].set, &o->bindings[r].set) != 0)
        fprintf(stderr, "%s: rank %d: cannot be bound to %s: %s\n", o->tool, r,
                o->bindings[r].text, strerror(errno));
    set_number("BANYAN_RANK", r);
    set_number("BANYAN_WORLD_SIZE", o->nranks);
    set_number("BANYAN_LOCAL_RANK", r);
    set_number("BANYAN_LOCAL_SIZE", o->nranks);
    if (r == 0 && listener >= 0) {
        set_number("BANYAN_LISTEN_FD", listener);
        fcntl(listener, F_SETFD, 0);
    } else {
        unsetenv("BANYAN_LISTEN_FD");
        if (listener >= 0)
            close(listener);
    }
    if (j->board) {
        set_number("BANYAN_BOARD_FD", j->board_fd);
        fcntl(j->board_fd, F_SETFD, 0);
        set_number("BANYAN_RESTART_COUNT", j->ranks[r].restarts);
    } else { /* a launcher below a launcher */
        unsetenv("BANYAN_BOARD_FD");
        unsetenv("BANYAN_RESTART_COUNT");
    }
    if (o->exe)
        execv(o->exe, argv);
    else
        execvp(argv[0], argv);
    fprintf(stderr, "%s: rank %d: cannot execute %s: %s\n", o->tool, r,
            o->exe ? o->exe : argv[0], strerror(errno));
    _exit(127);
}

/* listener: -1 where it has been given away. */
static int start_rank(struct job *j, int r, int listener)
{
    const struct bny_local_ranks *o = j->opts;
    struct rank *k = &j->ranks[r];
    int pipes[2][2] = { { -1, -1 }, { -1, -1 } };
    pid_t parent = getpid();

    for (int i = 0; o->tag && i < 2; i++) {
        if (pipe2(pipes[i], O_CLOEXEC) != 0) {
            fprintf(stderr, "%s: pipe: %s\n", o->tool, strerror(errno));
            return -1;
        }
        k->out[i].fd = pipes[i][0];
        k->out[i].to = i + 1;
    }
    k->pid = fork();
    if (k->pid == 0)
        become_rank(j, r, parent, listener, pipes);
    for (int i = 0; o->tag && i < 2; i++)
        close(pipes[i][1]);
    if (k->pid < 0) {
        fprintf(stderr, "%s: cannot start rank %d: %s\n", o->tool, r, strerror(errno));
        k->pid = 0;
        return -1;
    }
    j->running++;
    bny_board_set_alive(j->board, r, 1);
    return 0;
}

static void signal_all(struct job *j, int sig)
{
    for (int r = 0; r < j->opts->nranks; r++)
        if (j->ranks[r].pid > 0)
            kill(j->ranks[r].pid, sig);
}

/* Remembers the first failure and plans the end of the others. */
static void note_failure(struct job *j, int status, double grace_s)
{
    if (j->status == 0)
        j->status = status;
    if (!j->term_at)
        j->term_at = bny_deadline_in(grace_s);
}

/* Ranks in init wait for all: a process of its own tells them, as the root may not be there
 * yet. Of the root's end they know, for nobody listens any more. */
static void tell_ranks(struct job *j, int r, const char *text)
{
    pid_t parent = getpid();

    if (r == 0 || j->teller)
        return;
    j->teller = fork();
    if (j->teller != 0) {
        j->teller = j->teller > 0 ? j->teller : 0;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        bny_bootstrap_report(&j->id, j->opts->nranks, r, BANYAN_ERANKDEAD, text,
                             bny_deadline_in(TELL_S));
    _exit(0);
}

static void drain(int rank, struct pipe_end *p);

/* Reads the output that the rank wrote before its end, as far as it is there. */
static void drain_end(int r, struct pipe_end *p)
{
    struct pollfd f = { .fd = p->fd, .events = POLLIN };

    while (p->fd >= 0 && (f.fd = p->fd, poll(&f, 1, 0)) > 0)
        drain(r, p);
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

/* Rank r has failed. 1: it runs again. Whatever it joins by is no affair of the root of the
 * first start. */
static int start_again(struct job *j, int r)
{
    struct rank *k = &j->ranks[r];

    if (k->restarts >= j->opts->restarts || j->term_at ||
        bny_board_waiting(j->board) >= j->running) /* no member is left to join */
        return 0;
    k->restarts++;
    for (int i = 0; i < 2; i++)
        drain_end(r, &k->out[i]);
    bny_board_set_alive(j->board, r, 1); /* without a moment in which nobody seems to be left */
    if (start_rank(j, r, -1) != 0)
        return 0;
    fprintf(stderr, "%s: rank %d is started again, %d of %d times\n", j->opts->tool, r,
            k->restarts, j->opts->restarts);
    return 1;
}

/* Of ranks that fail for good, the first ones are told. */
static void tell_user(struct job *j, int r, const char *text)
{
    const struct bny_local_ranks *o = j->opts;
    struct rank *k = &j->ranks[r];

    if (!k->is_told && j->told >= TOLD_MAX && k->restarts >= o->restarts)
        return;
    fprintf(stderr, "%s: %s\n", o->tool, text);
    j->told += !k->is_told;
    k->is_told = 1;
}

/* Rank r has ended as told; status: 0 when all is well. */
static void note_end(struct job *j, int r, int status, const char *text)
{
    const struct bny_local_ranks *o = j->opts;

    /* After a signal that we have sent or passed on, deaths are no news. */
    if (status != 0 && !j->kill_at && !j->is_signalled) {
        tell_user(j, r, text);
        if (!j->ranks[r].restarts)
            tell_ranks(j, r, text);
        if (start_again(j, r))
            return;
        if (!j->failed++)
            snprintf(j->first, sizeof j->first, "%s", text);
    }
    bny_board_set_alive(j->board, r, 0);
    if (status != 0 && !o->keep_going)
        note_failure(j, status, o->grace_s > 0 ? o->grace_s : o->grace_s < 0 ? 1e-3 : GRACE_S);
}

/* How rank r, a child that has ended with wait status ws, has ended. */
static void end_words(struct job *j, int r, int ws, char *text, size_t cap)
{
    unsigned long kills = 0;
    int sig = WIFSIGNALED(ws) ? WTERMSIG(ws) : 0;

    if (sig == SIGKILL)
        kills = oom_kills();
    if (sig)
        snprintf(text, cap, "rank %d (pid %d) was killed by signal %d (%s)%s", r,
                 (int)j->ranks[r].pid, sig, strsignal(sig),
                 kills > j->oom_kills ? "; the kernel has killed for lack of memory since the "
                                        "job began (dmesg): give it more, or run fewer ranks"
                                      : "");
    else
        snprintf(text, cap, "rank %d (pid %d) exited with status %d", r, (int)j->ranks[r].pid,
                 WEXITSTATUS(ws));
}

static void reap(struct job *j)
{
    char text[240];
    int ws;
    pid_t pid;

    while ((pid = waitpid(-1, &ws, WNOHANG)) > 0) {
        int r = 0, status = WIFSIGNALED(ws) ? 128 + WTERMSIG(ws) : WEXITSTATUS(ws);

        if (pid == j->teller)
            j->teller = 0;
        while (r < j->opts->nranks && j->ranks[r].pid != pid)
            r++;
        if (r == j->opts->nranks)
            continue;
        end_words(j, r, ws, text, sizeof text);
        j->ranks[r].pid = 0;
        j->running--;
        note_end(j, r, status, text);
    }
}

/* All ranks have ended. */
static int exit_status(struct job *j)
{
    const struct bny_local_ranks *o = j->opts;

    if (j->teller) {
        kill(j->teller, SIGKILL);
        waitpid(j->teller, NULL, 0);
    }
    if (j->failed > 1)
        fprintf(stderr, "%s: %d of %d ranks failed, this one first: %s\n", o->tool, j->failed,
                o->nranks, j->first);
    if (!o->keep_going || j->status) /* a signal, the timeout */
        return j->status;
    if (j->failed == 1)
        fprintf(stderr, "%s: 1 of %d ranks failed\n", o->tool, o->nranks);
    return j->failed < FAILED_MAX ? j->failed : FAILED_MAX;
}

static void write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);

        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return;
        p += w;
        n -= (size_t)w;
    }
}

static void put_line(int rank, struct pipe_end *p, size_t n, int newline)
{
    char text[LINE_BYTES + 32];
    int head = snprintf(text, sizeof text, "[%d] ", rank);

    memcpy(text + head, p->line, n);
    if (newline)
        text[(size_t)head + n++] = '\n';
    write_all(p->to, text, (size_t)head + n);
}

/* Passes on whole lines; at the end of the stream, or when the buffer is full, what there is.
 */
static void drain(int rank, struct pipe_end *p)
{
    ssize_t got = read(p->fd, p->line + p->len, sizeof p->line - p->len);
    char *nl;

    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got <= 0) {
        if (p->len)
            put_line(rank, p, p->len, 1);
        close(p->fd);
        p->fd = -1;
        return;
    }
    p->len += (size_t)got;
    while ((nl = memchr(p->line, '\n', p->len)) != NULL) {
        size_t n = (size_t)(nl - p->line);

        put_line(rank, p, n, 1);
        p->len -= n + 1;
        memmove(p->line, nl + 1, p->len);
    }
    if (p->len == sizeof p->line) {
        put_line(rank, p, p->len, 1);
        p->len = 0;
    }
}

static void hear_signals(struct job *j, int sigfd)
{
    struct signalfd_siginfo si;

    while (read(sigfd, &si, sizeof si) == (ssize_t)sizeof si) {
        if (si.ssi_signo == SIGCHLD)
            continue;
        /* Ctrl-C at a terminal reaches the ranks by itself: they are in the same process
         * group. */
        if (si.ssi_code != SI_KERNEL)
            signal_all(j, (int)si.ssi_signo);
        j->is_signalled = 1;
        note_failure(j, 128 + (int)si.ssi_signo, GRACE_S);
    }
    reap(j);
}

/* Milliseconds until the next planned action, for poll(2). */
static int next_ms(const struct job *j)
{
    uint64_t at[3] = { j->kill_at ? 0 : j->term_at, j->kill_at, j->timeout_at };
    uint64_t now = bny_now_ns(), best = 0;

    for (int i = 0; i < 3; i++)
        if (at[i] && (!best || at[i] < best))
            best = at[i];
    if (!best)
        return -1;
    if (best <= now)
        return 0;
    best = (best - now) / 1000000 + 1;
    return best < SLEEP_MS_MAX ? (int)best : (int)SLEEP_MS_MAX;
}

static void act_on_time(struct job *j)
{
    const struct bny_local_ranks *o = j->opts;

    if (bny_deadline_passed(j->timeout_at)) {
        fprintf(stderr, "%s: the job did not end within %g s; ending it\n", o->tool,
                o->timeout_s);
        j->timeout_at = 0;
        j->status = 124;
        j->term_at = bny_now_ns();
    }
    if (!j->kill_at && bny_deadline_passed(j->term_at)) {
        signal_all(j, SIGTERM);
        j->kill_at = bny_deadline_in(KILL_AFTER_S);
    } else if (bny_deadline_passed(j->kill_at)) {
        signal_all(j, SIGKILL);
        j->kill_at = bny_deadline_in(KILL_AFTER_S);
    }
}

/* One round: sleeps until a signal, output or a planned action. Signals, children and time have
 * their turn whatever poll says. */
static void turn(struct job *j, struct pollfd *fds, int sigfd)
{
    int nranks = j->opts->nranks, n = 1, rc;

    fds[0] = (struct pollfd){ .fd = sigfd, .events = POLLIN };
    for (int r = 0; j->opts->tag && r < nranks; r++)
        for (int i = 0; i < 2; i++)
            fds[n++] = (struct pollfd){ .fd = j->ranks[r].out[i].fd, .events = POLLIN };
    rc = poll(fds, (nfds_t)n, next_ms(j));
    if (rc < 0 && errno != EINTR)
        usleep(1000);
    for (int i = 1; i < n && rc > 0; i++)
        if (fds[i].fd >= 0 && fds[i].revents)
            drain((i - 1) / 2, &j->ranks[(i - 1) / 2].out[(i - 1) % 2]);
    hear_signals(j, sigfd);
    act_on_time(j);
}

/* The last output of a rank that ended may still lie in its pipe. A grandchild that holds the
 * pipe open is not waited for. */
static void drain_rest(struct job *j)
{
    for (int r = 0; r < j->opts->nranks; r++)
        for (int i = 0; i < 2; i++)
            drain_end(r, &j->ranks[r].out[i]);
}

/* Makes the id and puts it into the environment that the ranks inherit. Returns the listening
 * socket. */
static int make_id(const struct bny_local_ranks *o, struct bny_id *id)
{
    char hex[BNY_ID_HEX];

    if (bny_id_create(id, bny_param_str("BANYAN_IFNAME"), bny_param_str("BANYAN_PORT_RANGE"),
                      1) < 0) {
        fprintf(stderr, "%s: %s\n", o->tool, banyan_last_error());
        return -1;
    }
    bny_id_to_hex(id, hex);
    setenv("BANYAN_ID", hex, 1);
    return bny_id_listen_fd(id);
}

static int make_board(struct job *j)
{
    if (!j->opts->restarts)
        return 0;
    j->board = bny_board_make(j->opts->nranks, &j->board_fd);
    if (!j->board)
        fprintf(stderr, "%s: %s\n", j->opts->tool, banyan_last_error());
    return j->board ? 0 : -1;
}

/* If one is not open, a pipe or socket of ours would get its number. Ranks do not inherit it.
 */
static void hold_standard(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd < STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

/* Two pipes a rank with --tag. */
static int raise_files(struct job *j)
{
    const struct bny_local_ranks *o = j->opts;
    rlim_t need = OWN_FILES + (o->tag ? 2 * (rlim_t)o->nranks : 0);
    struct rlimit files;

    getrlimit(RLIMIT_NOFILE, &j->files);
    files = j->files;
    if (files.rlim_cur >= need)
        return 0;
    files.rlim_cur = need < files.rlim_max ? need : files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur >= need || !o->tag)
        return 0;
    fprintf(
        stderr,
        "%s: to tag the lines of %d ranks takes %llu open files, and the hard limit is %llu: "
        "raise it (ulimit -Hn), or leave out --tag\n",
        o->tool, o->nranks, (unsigned long long)need, (unsigned long long)files.rlim_max);
    return -1;
}

/* A SIGCHLD that our parent ignored would leave us no child to wait for. */
static int open_signals(const struct bny_local_ranks *o)
{
    struct sigaction hup;
    sigset_t set;
    int fd;

    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (sigaction(SIGHUP, NULL, &hup) != 0 || hup.sa_handler != SIG_IGN) /* nohup */
        sigaddset(&set, SIGHUP);
    sigprocmask(SIG_SETMASK, &set, NULL);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        fprintf(stderr, "%s: signalfd: %s\n", o->tool, strerror(errno));
    return fd;
}

int bny_local_ranks_run(const struct bny_local_ranks *o, char *const argv[])
{
    struct job j = {
        .opts = o, .argv = argv, .board_fd = -1, .timeout_at = bny_deadline_in(o->timeout_s)
    };
    struct pollfd *fds = calloc(1 + 2 * (size_t)o->nranks, sizeof *fds);
    int listener, sigfd = -1;

    hold_standard();
    j.oom_kills = oom_kills();
    j.ranks = calloc((size_t)o->nranks, sizeof *j.ranks);
    listener = j.ranks && fds && raise_files(&j) == 0 ? make_id(o, &j.id) : -1;
    if (listener < 0 || (sigfd = open_signals(o)) < 0 || make_board(&j) != 0) {
        free(j.ranks);
        free(fds);
        return 125;
    }
    for (int r = 0; r < o->nranks; r++)
        j.ranks[r].out[0].fd = j.ranks[r].out[1].fd = -1;
    for (int r = 0; r < o->nranks; r++)
        if (start_rank(&j, r, listener) != 0) {
            note_failure(&j, 125, 0);
            j.term_at = bny_now_ns();
            break;
        }
    /* Rank 0 has its own copy: when it dies, nobody answers on the port any more. */
    close(listener);
    while (j.running > 0)
        turn(&j, fds, sigfd);
    drain_rest(&j);
    close(sigfd);
    if (j.board)
        close(j.board_fd);
    bny_board_free(j.board);
    free(j.ranks);
    free(fds);
    return exit_status(&j);
}
