/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of collectives. */
#include "collectives/call/collective.h"

#include <string.h>

#define ALL_CODECS (BNY_CODECS_EXACT | BNY_CODECS_LOSSY | BNY_CODECS_LINEAR)
#define NOT_LINEAR (BNY_CODECS_EXACT | BNY_CODECS_LOSSY)

const struct bny_collective_row bny_collective_rows[BNY_COLLECTIVE_COUNT] = {
    [BNY_ALLREDUCE] = { .name = "allreduce",
                        .reduces = 1,
                        .averages = 1,
                        .direct = 1,
                        .pipeline = 1,
                        .has_use = 1,
                        .use = BNY_FOREST_ALLREDUCE,
                        .codecs = ALL_CODECS,
                        .ordered = "linear" },
    [BNY_REDUCE] = { .name = "reduce",
                     .reduces = 1,
                     .averages = 1,
                     .rooted = 1,
                     .direct = 1,
                     .pipeline = 1,
                     .has_use = 1,
                     .use = BNY_FOREST_ROOTED,
                     .codecs = NOT_LINEAR,
                     .ordered = "linear_reduce" },
    [BNY_BROADCAST] = { .name = "broadcast",
                        .rooted = 1,
                        .direct = 1,
                        .pipeline = 1,
                        .has_use = 1,
                        .use = BNY_FOREST_ROOTED,
                        .codecs = NOT_LINEAR },
    /* In order of ranks it is an allreduce into staging memory: bny_call_order(). */
    [BNY_REDUCE_SCATTER] = { .name = "reduce_scatter",
                             .reduces = 1,
                             .averages = 1,
                             .per_rank = 1,
                             .direct = 1,
                             .pipeline = 1,
                             .has_use = 1,
                             .use = BNY_FOREST_SCATTERED,
                             .codecs = NOT_LINEAR },
    [BNY_ALLGATHER] = { .name = "allgather",
                        .per_rank = 1,
                        .direct = 1,
                        .pipeline = 1,
                        .has_use = 1,
                        .use = BNY_FOREST_SCATTERED,
                        .codecs = NOT_LINEAR },
    [BNY_GATHER] = { .name = "gather",
                     .rooted = 1,
                     .per_rank = 1,
                     .direct = 1,
                     .pipeline = 1,
                     .codecs = BNY_CODECS_EXACT,
                     .only = "rooted" },
    [BNY_SCATTER] = { .name = "scatter",
                      .rooted = 1,
                      .per_rank = 1,
                      .direct = 1,
                      .pipeline = 1,
                      .codecs = BNY_CODECS_EXACT,
                      .only = "rooted" },
    [BNY_ALLTOALL] = { .name = "alltoall",
                       .per_rank = 1,
                       .direct = 1,
                       .pipeline = 1,
                       .codecs = BNY_CODECS_EXACT,
                       .only = "pairwise" },
    [BNY_BARRIER] = { .name = "barrier", .direct = 1, .only = "dissemination" },
    [BNY_SCAN] = { .name = "scan", .reduces = 1, .codecs = BNY_CODECS_EXACT, .only = "chain" },
    [BNY_EXSCAN] = { .name = "exscan",
                     .reduces = 1,
                     .codecs = BNY_CODECS_EXACT,
                     .only = "chain" },
    [BNY_SENDRECV] = { .name = "sendrecv" },
};

const struct bny_collective_row *bny_collective_of_wire(unsigned number)
{
    return number < BNY_COLLECTIVE_COUNT ? &bny_collective_rows[number] : NULL;
}

const char *bny_collective_name(enum bny_collective c)
{
    return (unsigned)c < BNY_COLLECTIVE_COUNT ? bny_collective_rows[c].name : "unknown";
}

int bny_collective_find(enum bny_collective *out, const char *name)
{
    for (int c = 0; c < BNY_COLLECTIVE_COUNT; c++)
        if (!strcmp(bny_collective_rows[c].name, name)) {
            *out = (enum bny_collective)c;
            return 1;
        }
    return 0;
}
