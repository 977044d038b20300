/* SPDX-License-Identifier: BSD-3-Clause */
/* Growing: what members and newcomers do alike. */
#ifndef BNY_COLLECTIVES_GROW_H
#define BNY_COLLECTIVES_GROW_H

#include "collectives/world/comm.h"

/* This rank has joined the new world: have all? All get the same: 0; -BANYAN_ERANKDEAD, which
 * names one that has not, -BANYAN_ETIMEDOUT. Blocks. */
int bny_grow_settle(struct banyan_comm *next, const char *what);

#endif
