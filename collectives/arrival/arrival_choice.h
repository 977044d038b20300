/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice's half of reductions in order of arrival: arrival_choice.c. */
#ifndef BNY_COLLECTIVES_ARRIVAL_ARRIVAL_CHOICE_H
#define BNY_COLLECTIVES_ARRIVAL_ARRIVAL_CHOICE_H

#include "collectives/plan/way.h"

const char *bny_arrival_cannot(const struct bny_scope *s, const struct bny_call *call);
double bny_arrival_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                           char *schedule);
int bny_arrival_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

#endif
