/* SPDX-License-Identifier: BSD-3-Clause */
/* Resets under a job; see cutter.h. */
#include "tests/mp/cutter.h"

#include <string.h>

#include "collectives/world/world.h"
#include "tests/support/cut.h"
#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/control.h"
#include "transport/tcp/tcp.h"

/* Of those that come in only where the kernel ends them as a network does, with what they have
 * received left to be read. */
static int cut_one(struct tcp_tp *tp, unsigned turn)
{
    struct tcp_ep *e = tp->eps[turn / (2 * TCP_LANES) % (unsigned)tp->tp.nranks];
    unsigned lane = turn / 2 % TCP_LANES;
    struct tcp_conn *c = !e ? NULL : turn % 2 ? e->in[lane] : e->out[lane];

    return c && c->state == TCP_OPEN && c->fd >= 0 &&
           (c->outgoing ? cut(c->fd) : cut_kill(c->fd)) == 0;
}

int cutter_data_locked(struct bny_world *w, unsigned turn)
{
    int cuts = 0;

    for (int i = 0; i < w->ntps; i++)
        if (!strcmp(w->tps[i]->ops->name, "tcp"))
            cuts += cut_one((struct tcp_tp *)w->tps[i], turn);
    return cuts > 0;
}

int cutter_data(struct bny_world *w, unsigned turn)
{
    int cuts;

    bny_world_lock(w);
    cuts = cutter_data_locked(w, turn);
    bny_world_unlock(w);
    return cuts;
}

int cutter_control(struct bny_world *w, unsigned turn)
{
    struct bny_control *c = w->control;
    struct link *l;
    int cuts;

    pthread_mutex_lock(&c->lock);
    l = c->nlinks ? &c->links[turn % (unsigned)c->nlinks] : NULL;
    cuts = l && l->state == LINK_UP && l->conn && cut(l->conn->fd) == 0;
    pthread_mutex_unlock(&c->lock);
    return cuts;
}
