/* SPDX-License-Identifier: BSD-3-Clause */
/* Measured numbers: all by which the choice of a plan depends on what machines are like. Each
 * group names its date, its machine and how to measure it again; perf/RESULTS.md has the
 * tables. Ranks must choose alike, so these are constants of a release and not of a machine.
 *
 * Machines: E = AMD EPYC, 2 virtual CPUs, Linux 6.18; H = a host of 16 CPUs. */
#ifndef BNY_COLLECTIVES_TUNING_H
#define BNY_COLLECTIVES_TUNING_H

#include <stdint.h>

/* ---- the linear model of a message ----
 * 2026-11-16, E. banyan_perf sendrecv and allreduce, -P 2, --transport shm and tcp, 4 B to 64
 * MiB: alpha is the time of 4 B, beta the slope from 1 MiB on. Their proportion is what counts.
 */
#define BNY_SHM_ALPHA_S 0.8e-6
#define BNY_SHM_BETA    0.10e-9 /* seconds a byte */
#define BNY_NET_ALPHA_S 4e-6
#define BNY_NET_BETA    0.25e-9
#define BNY_GAMMA       0.05e-9 /* seconds to add a byte */
/* Ranks that share CPUs: a message waits for a context switch. banyan_perf -P 4 on 2 CPUs. */
#define BNY_CROWDED_ALPHA 5
#define BNY_CROWDED_BYTE  2
/* A link whose rate the user names is no loopback: a chunk waits for sockets.
 * perf/forests_netns.py.
 */
#define BNY_LINK_ALPHA_S      30e-6
#define BNY_LOOPBACK_BETA_MAX 0.05e-9

/* ---- from how many bytes of the whole vector passes over shared memory are faster ----
 * 2026-11-27, E (2 ranks; 4 ranks that share its CPUs: crowded) and H (4 to 16 ranks: many).
 * banyan_perf COLLECTIVE -P n --transport shm --schedule pipeline beside the other schedules.
 */
#define BNY_NEVER SIZE_MAX /* by name only */
struct bny_pass_from {
    uint64_t pair, crowded, many;
};
#define BNY_PASS_FROM_REDUCE                                                                   \
    {                                                                                          \
        128u << 10, 128u << 10, 0                                                              \
    }
#define BNY_PASS_FROM_BROADCAST                                                                \
    {                                                                                          \
        32u << 10, 128u << 10, 0                                                               \
    }
#define BNY_PASS_FROM_SCATTER                                                                  \
    {                                                                                          \
        1u << 20, 128u << 10, BNY_NEVER                                                        \
    }
#define BNY_PASS_FROM_GATHER                                                                   \
    {                                                                                          \
        BNY_NEVER, 4u << 20, 512u << 10                                                        \
    }
#define BNY_PASS_FROM_ALLGATHER                                                                \
    {                                                                                          \
        0, 512u << 10, 256u << 10                                                              \
    }
#define BNY_PASS_FROM_REDUCE_SCATTER                                                           \
    {                                                                                          \
        0, 4u << 20, 256u << 10                                                                \
    }
#define BNY_PASS_FROM_ALLTOALL                                                                 \
    {                                                                                          \
        0, 16u << 10, 4u << 10                                                                 \
    } /* for each rank */

/* ---- a codec ----
 * A codec is used if it is predicted to take less than this part of the raw call's time: less
 * is not worth the risk of a model. perf/codec_wire.py. */
#define BNY_CODEC_GAIN  0.9
#define BNY_CODEC_TRIED 0.97 /* the same where both were measured */
/* A part with the codec beside the rest as raw data: less than this of the faster of both, as
 * predicted before it was tried, which leaves out that they share a core. A part of an owner
 * takes as many messages as a whole, so shorter ones do not mix. */
#define BNY_MIXED_GAIN  0.8
#define BNY_MIXED_LEAST (256u << 10) /* bytes of a rank's part of the vector */
/* Some calls run the way that is not chosen, to measure it again. One in 32 does where that way
 * takes less than so many times what the chosen one takes: in the long run they add at most
 * 0.8% to the time of all calls. Where it takes longer they are rarer, and add no more than
 * that. */
#define BNY_CODEC_CLOSE 1.25
/* Where a codec is chosen, at least one in 32 times this is raw, however long it takes: a codec
 * that was faster once must not stay for good. */
#define BNY_CODEC_STALE 32
/* Bytes of a chunk for the prediction of a coded call, before its chunks are known. */
#define BNY_CODED_CHUNK (256u << 10)

/* ---- long sums over ranks with a port each ----
 * 2026-11-24, banyan_sim, 4 to 16 ranks, 1 and 10 Gbit/s: perf/forests.py. Where partners
 * change, ports stand idle between them, and several streams share one. In a ring in both
 * directions a rank waits for a chunk, in one direction for a block, as soon as ranks do not
 * begin at the same time. */
#define BNY_PORT_GAPS  1.05
#define BNY_RING_CHUNK 256e3

/* Ranks up to which a reduce_scatter goes by direct messages. perf/builds.py against programs,
 * tcp, 2026-11-30, AMD EPYC (Zen 4), 2 CPUs, 4 B to 1 KiB: 0.9 of their time for 2 ranks, 1.2
 * to 1.3 for 4. */
#define BNY_DIRECT_SCATTERS 2

/* A core's work for a message between hosts, at both ends. 2026-11-30, E: banyan_perf allreduce
 * of 64 B, 2 hosts of 4 ranks (network namespaces): 176 us by direct messages, 83 by recursive
 * doubling, 88 by host_tree. */
#define BNY_NET_MESSAGE_S 4e-6

/* Raw sums of three hosts and more, up to so many bytes, by a star of hosts. 2026-11-30,
 * banyan_sim, 3, 4 and 8 hosts of 4 ranks, 1 and 10 Gbit/s: at 8 KiB .25 to .9 of host_ring's
 * time, at 16 KiB .56 to 1.03, at 32 KiB .36 to 1.3; of 2 hosts 1.04 to 1.16. */
#define BNY_HOST_STAR_BYTES_MAX (16u << 10)

/* ---- graphs ----
 * Ranks that send at once to those that said CTS first fill queues that others' CTS must
 * pass. fattree:64, 16 MiB in chunks of 256 KiB, banyan_sim, 2026-11-24: 53.5 ms; 43.4 if each
 * rank waits for all, for at most this part of the call. */
#define BNY_READY_PART (1.0 / 128)

/* ---- reductions in order of arrival ----
 * 2026-11-25, banyan_sim, 3 to 64 ranks: perf/hoplite. */
#define BNY_ARRIVAL_CHUNKS     32u /* at least */
#define BNY_ARRIVAL_CHUNKS_HOP 16u /* the tail of a chain is then a tenth, or less */
#define BNY_ARRIVAL_CHUNK_MIN  (16u << 10)
#define BNY_ARRIVAL_CHUNK_SLOW (4u << 10) /* where a link takes long for the one above */
#define BNY_LATE_S_MIN         2e-3       /* a rank that is late by less: work of schedulers */
#define BNY_LATE_SUM_S         5e-3       /* shorter sums have little to gain */
#define BNY_LATE_GAIN          0.85       /* of the schedule's time, for what no model has */
#define BNY_TOGETHER_S         2e-3 /* slots of long sums wait so long for all ranks to come */
#define BNY_TOGETHER_BYTES     (64u << 10)
#define BNY_TOGETHER_PART      2  /* and for no more than this part of the sum's time, */
#define BNY_TOGETHER_FIRST     16 /* or this one, where some ranks are enough */
#define BNY_COORDINATOR_PART                                                                   \
    0.05 /* of a sum's time: a message to the coordinator and one back */

#endif
