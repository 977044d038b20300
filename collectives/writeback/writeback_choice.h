/* SPDX-License-Identifier: BSD-3-Clause */
/* What the ways over shared memory can serve, and what they cost: writeback_choice.c. */
#ifndef BNY_COLLECTIVES_WRITEBACK_WRITEBACK_CHOICE_H
#define BNY_COLLECTIVES_WRITEBACK_WRITEBACK_CHOICE_H

#include "collectives/plan/way.h"

/* Of a pass: longest element that must stay whole. */
#define BNY_WRITEBACK_ELEM_MAX  4096u
#define BNY_WRITEBACK_RANKS_MAX 64

/* Of a sum of several hosts: elements of each rank's part, which it sums with its equals on
 * other hosts. The parts leave a few elements at the end. */
size_t bny_hosts_part(const struct bny_scope *s, const struct bny_call *call);
/* Of such a part: the schedule between equals. */
void bny_hosts_rails(const struct bny_scope *s, const struct bny_call *call, char *schedule);

const char *bny_writeback_cannot(const struct bny_scope *s, const struct bny_call *call);
const char *bny_hosts_cannot(const struct bny_scope *s, const struct bny_call *call);
double bny_writeback_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                             char *schedule);
double bny_hosts_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                         char *schedule);
/* Of passes; also those of hosts. */
int bny_writeback_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

#endif
