/* SPDX-License-Identifier: BSD-3-Clause */
/* The paths: one line each. */
#include "collectives/alone/alone.h"
#include "collectives/api/job.h"
#include "collectives/arrival/arrival.h"
#include "collectives/engine/engine.h"
#include "collectives/oneshot/oneshot.h"
#include "collectives/stages/stages.h"
#include "collectives/writeback/writeback.h"

const struct bny_path_ops *const bny_paths[BNY_PATH_COUNT] = {
    [BNY_PATH_ENGINE] = &bny_path_engine, [BNY_PATH_ONESHOT] = &bny_path_oneshot,
    [BNY_PATH_STAGES] = &bny_path_stages, [BNY_PATH_ALONE] = &bny_path_alone,
    [BNY_PATH_SELF] = &bny_path_self,     [BNY_PATH_ARRIVAL] = &bny_path_arrival,
    [BNY_PATH_DESK] = &bny_path_desk,     [BNY_PATH_WRITEBACK] = &bny_path_writeback,
    [BNY_PATH_LINES] = &bny_path_lines,   [BNY_PATH_HOSTS] = &bny_path_hosts,
};
