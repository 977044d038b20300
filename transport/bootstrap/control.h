/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the control plane: its state, the life of one link (control_link.c), and what is
 * agreed on over the links (control_view.c). The owner of a call here holds the lock. */
#ifndef BNY_BOOTSTRAP_CONTROL_H
#define BNY_BOOTSTRAP_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/bootstrap/agree.h"
#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/failures.h"

#define LINKS_MAX BNY_AGREE_LINKS /* 2 per power of two below 2^31, and two repaired ones */
#define HALF_MAX  64              /* connections that have not proven themselves */
/* What a link may be silent while it owes us an answer. */
#define CONTROL_QUIET_MS 3500
#define FULL_MESH        8 /* ranks that all have links to each other */

enum control_frame {
    CONTROL_RECORD = 1,
    CONTROL_FAREWELL, /* payload: who is gone, who of them left; sets of ranks */
    CONTROL_AGREE,    /* agree.h */
    CONTROL_EXCLUDED, /* its sender takes nothing from us any more */
    CONTROL_MISSED,   /* who hears nothing of whom: struct control_missed */
};
struct control_missed { /* who got it from `by` passes it on to `rank` */
    int32_t by, rank;
    uint32_t ms; /* for so long */
};
/* Waiting: the peer, a lower rank, is to connect. Lost: it was up. */
enum link_state { LINK_WAITING, LINK_TRYING, LINK_UP, LINK_GONE };

struct link {
    int peer;
    enum link_state state;
    struct bny_conn *conn;
    struct bny_conn *probe;  /* while we wait: does anybody listen there? */
    struct bny_addr addr[2]; /* by interface; by loopback (family 0: not on this host) */
    int by_interface;        /* the next attempt goes to addr[0] */
    int proven;              /* 1 + which address it was made by; 0: we were called */
    int attempts, silences;
    int refusals[2]; /* of either address: the dead refuse at both */
    uint64_t retry_ns, attempt_ns, since_ns;
    uint64_t lost_ns;   /* by awake_ns: it was up until then; 0: never, or it is again */
    uint64_t heard_ns;  /* lost: when it was heard of last, by the clock */
    uint64_t missed_ns; /* by awake_ns: the peer has not heard of us since; 0: it has */
    int local;          /* it led over loopback, which is never silent */
    int repaired;       /* made because ranks between us are gone */
    int next_record;    /* records before it were sent to the peer, or came from it */
    int lacks;         /* errno: the latest attempt failed for want of something here; else 0 */
    int said_farewell; /* we to it */
    int left;          /* it to us */
};

struct control_blob { /* the address in the card */
    struct bny_addr addr;
    uint16_t loop_port; /* at 127.0.0.1; 0: none */
    uint16_t zero;
};
struct control_peer {
    struct control_blob at;
    uint8_t same_host;
};

struct bny_control {
    pthread_mutex_t lock; /* of everything but the atomics; never held while something blocks */
    atomic_int suspect;   /* a failure is known */
    atomic_int some_left; /* a farewell has come */
    atomic_int logged;    /* failures that are agreed on */
    atomic_int told;      /* told_fd is readable */
    int rank, nranks, epfd;
    struct bny_conn_self self;
    struct bny_addr addr;
    int listen_fd[2]; /* by interface, by loopback; -1: none; for life: who is refused knows
                       * that we are dead */
    uint16_t loop_port;
    int connected; /* bny_control_connect was called */
    int starved;   /* somebody waits to be accepted that we have no descriptor for */
    int ready;     /* every link was up once, or its peer is gone */
    int busy;      /* something waits for time or for output: look at every progress */
    struct control_peer *peers; /* [nranks] */
    struct link links[LINKS_MAX];
    int nlinks;
    struct bny_conn *half[HALF_MAX];
    int nhalf;
    struct bny_failures known;
    struct bny_foreign foreign;
    uint64_t silent_ns; /* how long a link may be lost until its peer counts as dead */
    /* control_view.c */
    struct bny_agree agree;
    uint8_t *frame;       /* [bny_agree_message_max()] */
    uint64_t view_due_ns; /* what is known becomes a view then; 0: nothing waits */
    uint32_t view_logged;
    uint64_t awake_ns, looked_ns; /* a clock that stands still while this process does */
    struct log_entry {
        struct bny_failure f;
        uint32_t view;
    } * log; /* in the order that is agreed on */
    int nlog, log_cap;
    int excluded_told;
    int quorum;        /* ranks that a view needs; 0: most; -1: any */
    char out_why[240]; /* in words: we take no part any more; "": we do */
    enum banyan_error out_code;
    uint64_t *sleepers;             /* who was left out of the latest decision */
    struct bny_position *positions; /* blame.c */
    _Atomic uint64_t here_ns;       /* when this rank was last in the library, waiting */
    /* The thread: control_thread.c */
    int wake_fd; /* ours: in epfd, wakes the thread */
    int told_fd; /* the waiters': something was agreed on */
    pthread_t thread;
    int has_thread, stop;
};

/* Adds a failure that came from neighbour source (-1: our own), unless it is known. */
void control_add(struct bny_control *c, const struct bny_failure *f, int source);
/* For want of memory or descriptors (err) this rank cannot do its part in what is agreed on. It
 * takes none any more: to the others it is dead, and all its communicators fail. */
void control_lack(struct bny_control *c, int err);
/* Does errno err say something of this process, and nothing of the peer? */
int control_is_lack(int err);
/* Is there a record or a state that the link has not had? */
int control_has_news(const struct bny_control *c, const struct link *l);
/* Queues them, if the link is sure to be there. */
void control_push(struct bny_control *c, struct link *l);
void control_record_death(struct bny_control *c, int peer, enum bny_cause cause,
                          const char *how);
struct link *control_link_to(struct bny_control *c, int peer);
/* A link to the peer, if there is room for one. */
struct link *control_add_link(struct bny_control *c, int peer);
/* Looks at everything once. */
void control_progress_locked(struct bny_control *c);

/* A proven connection becomes the link's. */
void link_up(struct bny_control *c, struct link *l, struct bny_conn *conn);
/* The peer, a higher rank, has made a proven connection to ask whether we live. */
void link_asked(struct bny_control *c, struct link *l);
/* Goes on connecting, retries, and gives up with a failure. */
void link_connect(struct bny_control *c, struct link *l);
/* The lower rank is to connect: does it still live? */
void link_wait(struct bny_control *c, struct link *l);
/* Takes what the peer sent, its end included. */
void link_read(struct bny_control *c, struct link *l);
void link_close(struct link *l);

/* control_silence.c: how long the peer's kernel has not answered; unknown where
 * ours does not say so. */
uint64_t silence_unanswered_ns(const struct link *l, uint64_t unknown);
/* The link was lost, and the peer had not answered for so long before. */
void silence_begins(struct bny_control *c, struct link *l, uint64_t silent_ns);
/* A neighbour's CONTROL_MISSED. Foreign bytes. */
void silence_told(struct bny_control *c, const struct link *from, const uint8_t *data,
                  size_t len);
/* The link may be lost, and will be known to be in a moment: nothing is sent until it has
 * answered. */
int silence_may_begin(const struct link *l);
/* Is the peer of a lost link to count as dead? */
int silence_is_over(const struct bny_control *c, const struct link *l);

/* control_blame.c: tells others where we are, when they ask; finds who is to blame. */
void blame_run(struct bny_control *c);
/* Does somebody wait for us to tell? */
int blame_asked(const struct bny_control *c);

/* control_thread.c: ends the thread, if there is one. */
void control_stop(struct bny_control *c);

/* control_view.c */
int view_init(struct bny_control *c);
void view_finish(struct bny_control *c);
/* Closes links to the dead and repairs the ring, enters and decides, and says what was decided.
 */
void view_run(struct bny_control *c);
/* This rank takes no part any more: f says why, and fails whatever there is. */
void view_leave(struct bny_control *c, const struct bny_failure *f);
/* A neighbour's farewell: who is gone, as far as it knew. */
void view_farewell(struct bny_control *c, struct link *l, const uint8_t *data, size_t len);
size_t view_farewell_make(const struct bny_control *c, uint8_t *out);
/* What is to be sent now, and what waits for more: before and after links are pushed. */
void view_hold(struct bny_control *c);
void view_sent(struct bny_control *c);
/* Our time runs on: when is the next look needed, in ms; -1: none. */
int view_wait_ms(const struct bny_control *c);
/* Is something being agreed on? */
int view_active(const struct bny_control *c);

#endif
