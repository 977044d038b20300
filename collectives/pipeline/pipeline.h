/* SPDX-License-Identifier: BSD-3-Clause */
/* Two ways for ranks that share memory, without messages: passes (pass.h), of which the
 * write-back allreduce was the first, and short operations in lines that peers read. */
#ifndef BNY_COLLECTIVES_PIPELINE_H
#define BNY_COLLECTIVES_PIPELINE_H

#include "collectives/plan/way.h"

struct banyan_comm;
/* Frees a communicator's areas; its operations are over. Lock held. */
void bny_areas_end(struct banyan_comm *comm);

#endif
