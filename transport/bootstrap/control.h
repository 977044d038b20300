/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the control plane: its state, and the life of one link (control_link.c). The owner of
 * a call here holds the lock. */
#ifndef BNY_BOOTSTRAP_CONTROL_H
#define BNY_BOOTSTRAP_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/failures.h"

#define LINKS_MAX 64 /* 2 per power of two below 2^31 */
#define HALF_MAX  64 /* connections that have not proven themselves */

enum control_frame { CONTROL_RECORD = 1, CONTROL_FAREWELL };
enum link_state { LINK_WAITING, LINK_TRYING, LINK_UP, LINK_GONE };

struct link {
    int peer;
    enum link_state state;
    struct bny_conn *conn;
    struct bny_addr addr[2]; /* by interface; by loopback (family 0: not on this host) */
    int by_interface;        /* the next attempt goes to addr[0] */
    int attempts, refusals, silences;
    uint64_t retry_ns, attempt_ns, since_ns;
    int next_record;   /* records before it were sent to the peer, or came from it */
    int said_farewell; /* we to it */
    int left;          /* it to us */
    int told_world;    /* a failure of the world went over this link, either way */
    int told_comm;     /* it told us of a failure of one communicator */
    uint64_t death_ns; /* its end counts from then on; 0: nothing pending */
};

struct control_blob { /* the address in the card */
    struct bny_addr addr;
    uint16_t loop_port; /* at 127.0.0.1; 0: none */
    uint16_t zero;
};

struct bny_control {
    pthread_mutex_t lock; /* of everything but suspect; never held while something blocks */
    atomic_int suspect;
    int rank, nranks, epfd;
    uint8_t secret[32];
    struct bny_conn_self self;
    struct bny_addr addr;
    int listen_fd[2]; /* by interface, by loopback; -1: none */
    uint16_t loop_port;
    int connected; /* bny_control_connect was called */
    int busy;      /* something waits for time or for output: look at every progress */
    struct link links[LINKS_MAX];
    int nlinks;
    struct bny_conn *half[HALF_MAX];
    int nhalf;
    struct bny_failures known;
    struct bny_foreign foreign;
};

/* Adds a failure that came from neighbour source (-1: our own), unless it is known. */
void control_add(struct bny_control *c, const struct bny_failure *f, int source);
/* Queues on one link the records it has not had. */
void control_push(struct bny_control *c, struct link *l);
void control_record_death(struct bny_control *c, int peer);

/* A proven connection becomes the link's. */
void link_up(struct link *l, struct bny_conn *conn);
/* Goes on connecting, retries, and gives up with a failure. */
void link_connect(struct bny_control *c, struct link *l);
/* Takes what the peer sent, its end included. */
void link_read(struct bny_control *c, struct link *l);

#endif
