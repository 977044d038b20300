/* SPDX-License-Identifier: BSD-3-Clause */
/* The config of a job: defaults from the environment, and the checks of what a program gave. */
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "base/param.h"
#include "base/sized.h"
#include "collectives/api/arguments.h"
#include "collectives/api/job.h"

void banyan_config_default(struct banyan_config *cfg)
{
    if (!cfg)
        return;
    memset(cfg, 0, sizeof *cfg);
    cfg->size = sizeof *cfg;
    cfg->init_timeout_s = bny_param_real("BANYAN_INIT_TIMEOUT");
    cfg->op_timeout_s = bny_param_real("BANYAN_OP_TIMEOUT");
    cfg->transport = bny_param_str("BANYAN_TRANSPORT");
    cfg->schedule = bny_param_str("BANYAN_SCHEDULE");
    cfg->codec = bny_param_str("BANYAN_CODEC");
    cfg->ifname = bny_param_str("BANYAN_IFNAME");
    cfg->port_range = bny_param_str("BANYAN_PORT_RANGE");
    cfg->chunk_bytes = (size_t)bny_param_int("BANYAN_CHUNK");
    cfg->deterministic = (int)bny_param_int("BANYAN_DETERMINISTIC");
    cfg->progress_cpu = -1;
    cfg->topology = bny_param_str("BANYAN_TOPO");
}

static const char *transport_list(void)
{
    static _Thread_local char text[100];
    const char *name;
    size_t at = 0;

    for (size_t i = 0; (name = banyan_transport_name(i)) && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? ", " : "", name);
    return text;
}

/* A caller built against an older header knows fewer members: the rest keep their defaults,
 * which the environment may have set wrong. */
int bny_config_take(struct banyan_config *out, const struct banyan_config *given)
{
    const struct bny_codec *codec;
    int rc;

    banyan_config_default(out);
    rc = bny_sized_take(out, sizeof *out, given, offsetof(struct banyan_config, transport),
                        "config", "banyan_config_default()");
    if (rc == 0)
        rc = bny_check_seconds("config: init_timeout_s", out->init_timeout_s);
    if (rc == 0)
        rc = bny_check_seconds("config: op_timeout_s", out->op_timeout_s);
    if (rc)
        return rc;
    if (out->transport && strcmp(out->transport, "auto") != 0 &&
        !bny_transport_find(out->transport))
        return bny_fail(
            BANYAN_EINVAL,
            "transport (of the config or BANYAN_TRANSPORT): \"%s\" is unknown%s; there are: "
            "auto, %s",
            out->transport, bny_did_you_mean(out->transport, banyan_transport_name, "auto"),
            transport_list());
    if (out->schedule && !bny_schedule_known(out->schedule))
        return bny_fail(
            BANYAN_EINVAL,
            "schedule (of the config or BANYAN_SCHEDULE): \"%s\" is unknown%s; there are: "
            "%s",
            out->schedule, bny_did_you_mean(out->schedule, banyan_schedule_name, "auto"),
            bny_schedule_list());
    return out->codec ? bny_codec_parse(&codec, out->codec) : 0;
}
