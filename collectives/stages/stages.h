/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations of linear codecs: a path that runs one operation after another. */
#ifndef BNY_COLLECTIVES_STAGES_H
#define BNY_COLLECTIVES_STAGES_H

#include "collectives/plan/way.h"

#endif
