/* SPDX-License-Identifier: BSD-3-Clause */
/* How long the chunks of a call are: the same on all ranks. */
#include <math.h>

#include "collectives/plan/cost.h"
#include "compress/speed.h"

#define CODED_CHUNK_S 30e-6 /* a coded chunk's own cost: system calls, a wake-up */
/* Above every eager_max: of a message in chunks all but the first wait for CTS or lie at
 * their sender, so that only the first needs credit. */
#define P2P_LEAST     (128u << 10)
#define HOP_CHUNK_MIN (16u << 10)
#define HOP_CHUNK_MAX (256u << 10)

/* Bytes of a chunk on shared memory. Each is a system call or two, so few large ones are best
 * while a rank's two halves of them stay in its L2 (allreduce, 2 ranks, 256 KiB, 1 and 4 MiB:
 * chunks of 64 KiB take 26, 103, 440 us, of 128 KiB 23.4, 97, 335). One block that travels from
 * rank to rank needs smaller ones to overlap. */
static size_t shared_chunk(const struct bny_call *call, const struct bny_program *p)
{
    return p->nblocks > 1 || call->collective == BNY_SENDRECV ? 128u << 10 : 64u << 10;
}

/* A vector that goes through a tree of ranks as one, on links of a speed that is known: the
 * last chunk is through so many chunks after the last byte could be as the tree has hops, and
 * each has its own cost. 0: no such call. At 1 Gbit/s, 8 ranks, 1 MiB: 16 KiB in place of 256.
 */
static size_t hop_chunk(const struct bny_scope *s, const struct bny_call *call)
{
    const struct bny_collective_row *row = bny_call_row(call);
    double hops = 2, want;

    if (s->link_Bps <= 0 || s->shares_memory || s->n < 3 || !row->has_use ||
        row->use != BNY_FOREST_ROOTED)
        return 0;
    for (int n = 2; n < s->n; n *= 2)
        hops += 2;
    want = sqrt(bny_call_bytes(s, call) * bny_cost_chunk_s(s) * s->link_Bps / hops);
    return want < HOP_CHUNK_MIN   ? HOP_CHUNK_MIN
           : want > HOP_CHUNK_MAX ? HOP_CHUNK_MAX
                                  : (size_t)want;
}

/* Bytes (before encoding) of a chunk that fills and drains the pipeline of encoder, wire and
 * decoder about as fast as its own cost allows: sqrt(S a / sum of the other stages' seconds a
 * byte), compression.md's closed form. The bottleneck's own speed does not matter. */
static size_t pipeline_chunk(const struct bny_scope *s, const struct bny_call *call,
                             const struct bny_program *p)
{
    struct bny_codec_speed k = bny_codec_speed(call->codec, call->dtype);
    double esz = (double)banyan_dtype_bytes(call->dtype), bytes = bny_call_bytes(s, call), most,
           others, want;
    double stage[3] = { k.encode_s / esz, k.wire_bytes / esz * bny_cost_model_of(s).beta,
                        2 * k.decode_s / esz };

    most = fmax(stage[0], fmax(stage[1], stage[2]));
    others = stage[0] + stage[1] + stage[2] - most;
    want = sqrt(bytes * (s->n - 1) / s->n * CODED_CHUNK_S / others);
    if (p->nblocks && want > bytes / p->nblocks / 2)
        want = bytes / p->nblocks / 2;
    return want < 64 << 10 ? 64 << 10 : want > 4 << 20 ? 4 << 20 : (size_t)want;
}

/* The longest message of so many elements that is encoded. */
static size_t coded_most(const struct bny_call *call, size_t n)
{
    const struct bny_codec *up = call->codec->up, *down = call->codec->down;
    size_t a = up ? bny_message_bound(up, n, call->dtype, 0) : 0,
           b = down ? bny_message_bound(down, n, call->dtype, 0) : 0;

    return a > b ? a : b;
}

/* With a codec: what a slot holds, encoded; and raw where shared memory may have to copy a
 * chunk that was declined. */
static size_t codec_chunk(const struct bny_scope *s, const struct bny_call *call,
                          const struct bny_program *p, size_t want, int is_free)
{
    size_t esz = banyan_dtype_bytes(call->dtype),
           most = s->small_slots ? s->chunk_max : (size_t)1 << 26;

    if (is_free)
        want = pipeline_chunk(s, call, p);
    if (want > most)
        want = most;
    while (want > 1024 && coded_most(call, want / esz) > s->coded_max)
        want -= want / 16;
    return want;
}

/* Small enough that a block is several chunks (so that work overlaps) and that a chunk stays in
 * the cache between its addition and its last send; large enough that its own cost is small.
 * Sockets like larger ones: tcp on loopback, 1 MiB: 64, 128, 256 KiB take 317, 256, 243 us. */
size_t bny_chunk_of(const struct bny_scope *s, const struct bny_call *call,
                    const char *schedule, const struct bny_program *p)
{
    size_t want = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes, bytes;
    struct bny_topology_cost k;

    if (!want && schedule)
        want = bny_cost_network_chunk(s, call, schedule, bny_call_bytes(s, call), &k);
    if (!want && schedule)
        want = hop_chunk(s, call);
    if (!want) {
        bytes = (size_t)bny_call_bytes(s, call) / (p->nblocks ? p->nblocks : 1);
        want = s->shares_memory     ? shared_chunk(call, p)
               : bytes < 256u << 10 ? 128u << 10
                                    : 256u << 10;
        if (call->vector)
            want = 64u << 10;
    }
    if (call->collective == BNY_SENDRECV && want < P2P_LEAST)
        want = P2P_LEAST;
    /* Others send() any length; shm may have to copy, also where it serves some pairs only. */
    if (want > s->chunk_max && (s->small_slots || call->codec))
        want = s->chunk_max;
    if (call->codec)
        want = codec_chunk(s, call, p, want, !call->chunk_bytes && !s->chunk_bytes);
    return want < 64 ? 64 : want & ~(size_t)63;
}
