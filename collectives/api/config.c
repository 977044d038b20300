/* SPDX-License-Identifier: BSD-3-Clause */
/* The config of a job: defaults from the environment, and the checks of what a program gave. */
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "base/param.h"
#include "base/sized.h"
#include "collectives/api/arguments.h"
#include "collectives/api/job.h"

static void take_text(const char **at, const char *variable)
{
    if (!*at)
        *at = bny_param_str(variable);
}

/* What the caller leaves open, the environment decides. */
static void take_environment(struct banyan_config *cfg)
{
    if (cfg->init_timeout_s < 0)
        cfg->init_timeout_s = bny_param_real("BANYAN_INIT_TIMEOUT");
    if (cfg->op_timeout_s < 0)
        cfg->op_timeout_s = bny_param_real("BANYAN_OP_TIMEOUT");
    take_text(&cfg->transport, "BANYAN_TRANSPORT");
    take_text(&cfg->schedule, "BANYAN_SCHEDULE");
    take_text(&cfg->codec, "BANYAN_CODEC");
    take_text(&cfg->ifname, "BANYAN_IFNAME");
    take_text(&cfg->port_range, "BANYAN_PORT_RANGE");
    if (!cfg->chunk_bytes)
        cfg->chunk_bytes = (size_t)bny_param_int("BANYAN_CHUNK");
    if (cfg->deterministic < 0)
        cfg->deterministic = (int)bny_param_int("BANYAN_DETERMINISTIC");
    if (!cfg->topology || !*cfg->topology)
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

/* The environment, too, may be wrong. */
int bny_config_take(struct banyan_config *out, const struct banyan_config *given)
{
    const struct bny_codec *codec;
    int rc;

    *out = (struct banyan_config)BANYAN_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, given, "config", "BANYAN_CONFIG_INIT");
    take_environment(out);
    if (rc == 0)
        rc = bny_param_check();
    if (rc == 0)
        rc = bny_check_seconds("config: init_timeout_s", out->init_timeout_s);
    if (rc == 0)
        rc = bny_check_seconds("config: op_timeout_s", out->op_timeout_s);
    if (rc)
        return rc;
    if (strcmp(out->transport, "auto") != 0 && !bny_transport_find(out->transport))
        return bny_fail(
            BANYAN_EINVAL,
            "transport (of the config or BANYAN_TRANSPORT): \"%s\" is unknown%s; there are: "
            "auto, %s",
            out->transport, bny_did_you_mean(out->transport, banyan_transport_name, "auto"),
            transport_list());
    if (!bny_schedule_known(out->schedule))
        return bny_fail(
            BANYAN_EINVAL,
            "schedule (of the config or BANYAN_SCHEDULE): \"%s\" is unknown%s; there are: "
            "%s",
            out->schedule, bny_did_you_mean(out->schedule, banyan_schedule_name, "auto"),
            bny_schedule_list());
    return bny_codec_parse(&codec, out->codec);
}
