/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice's half of the way pipeline: pipeline_choice.c. */
#ifndef BNY_COLLECTIVES_PIPELINE_PIPELINE_CHOICE_H
#define BNY_COLLECTIVES_PIPELINE_PIPELINE_CHOICE_H

#include "collectives/plan/way.h"

/* Of a pass: longest element that must stay whole. */
#define BNY_PIPELINE_ELEM_MAX  4096u
#define BNY_PIPELINE_RANKS_MAX 64

const char *bny_pipeline_cannot(const struct bny_scope *s, const struct bny_call *call);
double bny_pipeline_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                            char *schedule);
int bny_pipeline_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

#endif
