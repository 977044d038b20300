/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs that were asked for and are not used: the rank that asked gets a warning, once. */
#include <stdio.h>

#include "base/log.h"
#include "collectives/op/op.h"

/* A communicator's codec is meant for what is long: its short calls are no news. */
#define SHORT_BYTES (64u << 10)

void bny_codec_unused(struct banyan_comm *comm, const struct bny_call *call, const char *why,
                      const char *remedy)
{
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype), i = 0;

    if (comm->rank != 0 || comm->n == 1 ||
        (call->codec == comm->scope.codec && bytes < SHORT_BYTES))
        return;
    while (i < 8 && comm->unused[i] && comm->unused[i] != call->codec)
        i++;
    if (i == 8 || comm->unused[i])
        return;
    comm->unused[i] = call->codec;
    bny_warn("codec %s is not used for %s of %zu %s: %s; %s (told once for a communicator and "
             "codec)",
             call->codec->spec, bny_call_name(call), call->count,
             banyan_dtype_name(call->dtype), why, remedy);
}
