/* SPDX-License-Identifier: BSD-3-Clause */
/* The schedules that are programs: forests, and directs (program/directs.h). The choice's half
 * of the ways that run a program (way.h). */
#ifndef BNY_COLLECTIVES_SCHEDULES_H
#define BNY_COLLECTIVES_SCHEDULES_H

#include "collectives/plan/way.h"

const char *bny_schedules_cannot(const struct bny_scope *s, const struct bny_call *call);
/* Of the cheapest schedule for which there is a program. */
double bny_schedules_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                             char *schedule);
/* Program, chunks, and the pace of a plan for a graph. */
int bny_schedules_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

#endif
