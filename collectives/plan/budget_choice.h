/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs that are chosen within what a call may lose ("auto:max=1e-2"). A pure function of the
 * call and of what all ranks agreed on. */
#ifndef BNY_COLLECTIVES_BUDGET_CHOICE_H
#define BNY_COLLECTIVES_BUDGET_CHOICE_H

#include "collectives/plan/plan.h"

/* Of the codecs that the call's may be: the one that keeps its budget and takes the least time
 * by seconds(), which prices a call and gets ctx; NULL: none keeps it. */
const struct bny_codec *bny_budget_choose(struct bny_scope *s, const struct bny_call *call,
                                          double (*seconds)(struct bny_scope *,
                                                            const struct bny_call *, void *),
                                          void *ctx);
/* What the call's codec loses on a schedule that encodes a contribution once and a result once,
 * as stars do; of so many parts. INFINITY: unknown. */
struct bny_loss bny_budget_loss(const struct bny_call *call, int parts);
/* Is that within the budget? */
int bny_budget_keeps(const struct bny_budget *b, const struct bny_loss *loss);
/* Does this schedule do so? */
int bny_budget_serves(const char *schedule);
/* What a plan's codec does: ", host raw, net up raw, down int8, nmse 0.0001, max 0.0039, cpu
 * 0.4" (of a core, of the predicted time), as far as it is known; "" without a codec, and where
 * it is decided when the call runs. */
void bny_budget_tell(char *text, size_t cap, const struct bny_scope *s,
                     const struct bny_call *call, const struct bny_plan *plan);

#endif
