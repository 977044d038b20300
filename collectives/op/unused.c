/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs and schedules that were asked for and are not used: rank 0 warns, once for each. */
#include <stdio.h>

#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "collectives/op/op.h"

/* A communicator's codec and schedule are meant for long calls: its short ones are no news. */
#define SHORT_BYTES (64u << 10)

/* kind: "codec" or "schedule". name: it is compared as a pointer. */
static void warn_unused(struct banyan_comm *comm, const struct bny_call *call, const char *kind,
                        const char *name, const char *why, const char *remedy)
{
    const struct bny_scope *s = &comm->scope;
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype), i = 0;
    int is_general = name == s->schedule || (s->codec && name == s->codec->spec);

    if (comm->rank != 0 || comm->n == 1 || (is_general && bytes < SHORT_BYTES))
        return;
    while (i < 8 && comm->unused[i] && comm->unused[i] != name)
        i++;
    if (i == 8 || comm->unused[i])
        return;
    comm->unused[i] = name;
    bny_warn("%s %s is not used for %s of %zu %s: %s; %s (told once for a communicator and %s)",
             kind, name, bny_call_name(call), call->count, banyan_dtype_name(call->dtype), why,
             remedy, kind);
}

void bny_codec_unused(struct banyan_comm *comm, const struct bny_call *call, const char *why,
                      const char *remedy)
{
    warn_unused(comm, call, "codec", call->codec->spec, why, remedy);
}

int bny_budget_unkept(struct banyan_comm *comm, const struct bny_call *call)
{
    const char *why = "none of its codecs keeps this budget";

    if (call->codec->force && call->codec != comm->scope.codec)
        return bny_fail(BANYAN_ENOTSUP,
                        "codec: %s cannot do this %s: %s; allow more, name finer codecs in "
                        "from=, or leave force=1 out",
                        call->codec->spec, bny_call_name(call), why);
    bny_codec_unused(comm, call, why, "allow more, or name finer codecs in from=");
    return 0;
}

void bny_codec_figures(char *why, size_t cap, double coded, double raw, double Bps)
{
    bny_snprintf(why, cap, "it is predicted to take %.3g ms, raw data %.3g ms at %.3g Gbit/s",
                 coded * 1e3, raw * 1e3, Bps * 8e-9);
}

void bny_schedule_unused(struct banyan_comm *comm, const struct bny_call *call)
{
    struct bny_call named = *call;
    const char *why;

    bny_call_set_schedule(&named, comm->scope.schedule);
    why = bny_plan_cannot(&comm->scope, &named);
    warn_unused(comm, call, "schedule", comm->scope.schedule,
                why ? why : "it does not serve such a call",
                "auto chooses for it; opts.schedule names schedules call by call");
}
