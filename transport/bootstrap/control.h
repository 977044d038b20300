/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the control plane: its state, the life of one link (control_link.c), and the agreement
 * over the links (membership.c). The caller of these functions holds the lock. */
#ifndef BNY_BOOTSTRAP_CONTROL_H
#define BNY_BOOTSTRAP_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/bootstrap/consensus.h"
#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/failures.h"

#define LINKS_MAX      BNY_CONSENSUS_LINKS /* 2 per power of two below 2^31, and two repaired */
#define HALF_MAX       64                  /* connections not yet authenticated */
#define HALF_STRANGERS 16                  /* those of them that have not named the job */
/* Longest silence of a link while it owes an answer. */
#define CONTROL_QUIET_MS 3500
#define FULL_MESH        8 /* up to this size all ranks are linked to each other */

enum control_frame {
    CONTROL_RECORD = 1,
    CONTROL_FAREWELL, /* payload: gone ranks, and those of them that left; sets of ranks */
    CONTROL_AGREE,    /* consensus.h */
    CONTROL_EXCLUDED, /* the sender accepts nothing from us any more */
    CONTROL_MISSED,   /* a rank receives nothing from another: struct control_missed */
    CONTROL_ASK,      /* survey.c: struct survey_frame */
    CONTROL_ANSWER,   /* the same, and text of at most BNY_SURVEY_TEXT bytes */
};
struct control_missed { /* a receiver that got it from `by` forwards it to `rank` */
    int32_t by, rank;
    uint32_t ms; /* duration of the silence */
};
/* Waiting: the peer, a lower rank, connects. Lost: the link was up. */
enum link_state { LINK_WAITING, LINK_TRYING, LINK_UP, LINK_GONE };

struct link {
    int peer;
    enum link_state state;
    struct bny_conn *conn;
    struct bny_conn *probe;  /* while we wait: does any process listen there? */
    struct bny_addr addr[2]; /* by interface; by loopback (family 0: on another host) */
    int by_interface;        /* the next attempt goes to addr[0] */
    int proven; /* 1 + index of the address that connected; 0: the peer connected */
    int attempts, silences;
    int refusals[2]; /* of either address: a dead peer refuses at both */
    uint64_t retry_ns, attempt_ns, since_ns;
    uint64_t lost_ns;   /* by awake_ns: it was up until then; 0: it never was, or is again */
    uint64_t heard_ns;  /* lost link: time of its last input, by the clock */
    uint64_t missed_ns; /* by awake_ns: the peer has received nothing since; 0: it has */
    int local;          /* it used loopback, which never loses packets */
    int repaired;       /* made because the ranks between us are gone */
    int next_record;    /* the peer has, or sent, all records before this one */
    int lacks; /* errno if the latest attempt failed for lack of a local resource; else 0 */
    int said_farewell; /* we sent it our farewell */
    int left;          /* it sent us its farewell */
};

struct control_blob { /* in the peer info: the address, and where an operator finds it */
    struct bny_addr addr;
    uint16_t loop_port; /* at 127.0.0.1; 0: none */
    uint16_t zero;
    uint32_t pid;
    char host[36]; /* its name, shortened; ends with NUL */
};
_Static_assert(sizeof(struct control_blob) == BNY_CONTROL_ADDR_MAX, "wire format");
struct control_peer {
    struct control_blob at;
    uint8_t same_host;
};

struct surveys {
    struct survey_seen {
        uint32_t number; /* 0: none yet */
        int32_t via;     /* the neighbour that it came from; this rank: its own */
        int is_open;     /* this rank has not answered it */
    } * seen;            /* [nranks]: the newest question of each; NULL: there has been none */
    int nopen;
    uint64_t *answered; /* ranks; NULL: none has been asked */
    char *text;         /* their answers */
    size_t len;
};

struct bny_control {
    struct bny_control_seen seen; /* first: bny_control_logged() and others */
    pthread_mutex_t lock; /* of everything but the atomics; never held across a blocking call */
    int rank, nranks, epfd;
    struct bny_conn_self self;
    struct bny_addr addr;
    int listen_fd[2]; /* by interface, by loopback; -1: none. For life: its refusal proves our
                         death */
    uint16_t loop_port;
    int connected; /* bny_control_connect was called */
    int starved;   /* a connection waits to be accepted but there is no descriptor for it */
    int ready;     /* every link was up once, or its peer is gone */
    int unreached_told;
    int busy; /* something waits for time or output: check it at every progress */
    struct control_peer *peers; /* [nranks] */
    struct link links[LINKS_MAX];
    int nlinks;
    struct bny_conn *half[HALF_MAX];
    int nhalf;
    struct bny_failures known;
    struct bny_foreign foreign;
    uint64_t silent_ns; /* how long a link may be lost before its peer counts as dead */
    /* membership.c */
    struct bny_consensus agree;
    uint8_t *frame;       /* [bny_consensus_message_max()] */
    uint64_t view_due_ns; /* time at which known failures become a view; 0: none pending */
    uint32_t view_logged;
    uint64_t awake_ns, looked_ns; /* a clock that stops while this process is stopped */
    struct log_entry {
        struct bny_failure f;
        uint32_t view;
    } * log; /* in the agreed order */
    int nlog, log_cap;
    int excluded_told;
    int quorum;        /* ranks that a view needs; 0: majority; -1: any */
    char out_why[300]; /* why this rank takes no part any more; "": it does */
    enum banyan_error out_code;
    uint64_t *sleepers;             /* ranks left out of the latest decision */
    struct bny_position *positions; /* timeout_verdict.c */
    _Atomic uint64_t here_ns;       /* when this rank last waited inside the library */
    /* The thread: control_thread.c */
    int wake_fd;                     /* ours: in epfd, wakes the thread */
    int told_fd;                     /* for waiting callers: something was agreed on */
    int (*watcher)(void *, int due); /* the owner's; NULL: none */
    int watcher_due; /* another thread saw the event of one of its descriptors */
    void *watcher_ctx;
    struct surveys surveys;
    pthread_t thread;
    int has_thread, stop;
};

/* Adds a failure that came from neighbour source (-1: this rank), unless it is known. */
void control_add(struct bny_control *c, const struct bny_failure *f, int source);
/* This rank lacks memory or descriptors (err) for its part in the agreement. It takes no part
 * any more: the others see it as dead, and all its communicators fail. */
void control_lack(struct bny_control *c, int err);
/* Does errno err concern a resource of this process rather than the peer? */
int control_is_lack(int err);
/* Is there a record or a state that the link has not carried? */
int control_has_news(const struct bny_control *c, const struct link *l);
/* Queues them if the link is surely up. */
void control_push(struct bny_control *c, struct link *l);
void control_record_death(struct bny_control *c, int peer, enum bny_cause cause,
                          const char *how);
struct link *control_link_to(struct bny_control *c, int peer);
/* Adds a link to the peer if there is room. */
struct link *control_add_link(struct bny_control *c, int peer);
/* One pass over everything. */
void control_progress_locked(struct bny_control *c);

/* An authenticated connection becomes the link's. */
void link_up(struct bny_control *c, struct link *l, struct bny_conn *conn);
/* The peer, a higher rank, made an authenticated connection to check that we live. */
void link_asked(struct bny_control *c, struct link *l);
/* Continues to connect, retries, and gives up with a failure. */
void link_connect(struct bny_control *c, struct link *l);
/* The lower rank must connect: does it still live? */
void link_wait(struct bny_control *c, struct link *l);
/* Processes the peer's input, its end included. */
void link_read(struct bny_control *c, struct link *l);
void link_close(struct link *l);

/* failure_detector.c: how long the peer's kernel has not answered; unknown if ours does not
 * report it. */
uint64_t silence_unanswered_ns(const struct link *l, uint64_t unknown);
/* The link was lost after the peer had not answered for silent_ns. */
void silence_begins(struct bny_control *c, struct link *l, uint64_t silent_ns);
/* Processes a neighbour's CONTROL_MISSED. Untrusted bytes. */
void silence_told(struct bny_control *c, const struct link *from, const uint8_t *data,
                  size_t len);
/* The link may be lost; until it answers nothing is sent over it. */
int silence_may_begin(const struct link *l);
/* Does the peer of a lost link count as dead now? */
int silence_is_over(const struct bny_control *c, const struct link *l);

/* timeout_verdict.c: answers requests for our position; finds the rank to blame. */
void blame_run(struct bny_control *c);
/* Is such a request unanswered? */
int blame_asked(const struct bny_control *c);

/* survey.c. Untrusted bytes. */
void survey_asked(struct bny_control *c, const struct link *from, const uint8_t *data,
                  size_t len);
void survey_answered(struct bny_control *c, const uint8_t *data, size_t len);
void survey_finish(struct bny_control *c);
/* Payload bytes of the longest frame that a neighbour may send. */
uint32_t control_frame_max(const struct bny_control *c);

/* control_thread.c: ends the thread if there is one. */
void control_stop(struct bny_control *c);

/* membership.c */
int view_init(struct bny_control *c);
void view_finish(struct bny_control *c);
/* Closes links to dead ranks and repairs the ring; enters, decides and publishes decisions. */
void view_run(struct bny_control *c);
/* This rank takes no part any more: f is the reason, and fails all communicators. */
void view_leave(struct bny_control *c, const struct bny_failure *f);
/* A neighbour's farewell: the ranks that it knew to be gone. */
void view_farewell(struct bny_control *c, struct link *l, const uint8_t *data, size_t len);
size_t view_farewell_make(const struct bny_control *c, uint8_t *out);
/* Before links are pushed: selects what is sent now and what is held back; afterwards: notes
 * it. */
void view_hold(struct bny_control *c);
void view_sent(struct bny_control *c);
/* ms until the next check by the clock; -1: none. */
int view_wait_ms(const struct bny_control *c);
/* Is an instance undecided? */
int view_active(const struct bny_control *c);

#endif
