/* SPDX-License-Identifier: BSD-3-Clause */
/* Compiled as C11 and as C++17: the public headers need nothing before them and can be included
 * twice. */
#include <banyan/methods.h>
#include <banyan/training.h>
#include <banyan/objects.h>
#include <banyan/extend.h>
#include <banyan/banyan.h>
#include <banyan/extend.h>
#include <banyan/objects.h>
#include <banyan/training.h>
#include <banyan/methods.h>

int main(void);

int main(void)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_reduce_opts reduce = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_config config = BANYAN_CONFIG_INIT;
    struct banyan_codec codec = BANYAN_CODEC_INIT;
    struct banyan_objects_config objects = BANYAN_OBJECTS_CONFIG_INIT;
    struct banyan_accordion_config accordion = BANYAN_ACCORDION_CONFIG_INIT;
    struct banyan_outer_config outer = BANYAN_OUTER_CONFIG_INIT;
    struct banyan_buckets_config buckets = BANYAN_BUCKETS_CONFIG_INIT;
    struct banyan_rows_config rows = BANYAN_ROWS_CONFIG_INIT;
    struct banyan_rows_plan plan = BANYAN_ROWS_PLAN_INIT;
    struct banyan_shared_mask_config mask = BANYAN_SHARED_MASK_CONFIG_INIT;
    struct banyan_lgc_config lgc = BANYAN_LGC_CONFIG_INIT;
    struct banyan_lazy_config lazy = BANYAN_LAZY_CONFIG_INIT;
    struct banyan_gossip_config gossip = BANYAN_GOSSIP_CONFIG_INIT;
    struct banyan_sketch_config sketch = BANYAN_SKETCH_CONFIG_INIT;
    struct banyan_stale_config stale = BANYAN_STALE_CONFIG_INIT;
    struct banyan_id id = { { 0 } };

    return (int)(opts.size + reduce.size + config.size + codec.size + objects.size +
                 accordion.size + outer.size + buckets.size + rows.size + plan.size +
                 mask.size + lgc.size + lazy.size + gossip.size + sketch.size + stale.size) +
           id.bytes[0];
}
