/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels: GB/s of every inner loop of compress/ per instruction set, from cache (arrays of
 * 64 KiB) and from DRAM (arrays of 64 MiB), beside memcpy in the same run; and of the checks of
 * dpdk's and ud's packets, from cache.
 *
 *   kernels [--json] [--filter TEXT] [--dram-mib N]
 *
 * --filter: only rows whose "kernel type isa where" contains TEXT. GB/s counts the bytes of
 * every array once, read or written; memcpy's two likewise. The median of 7 repetitions.
 * Arrays start 64-aligned. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/counts.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "compress/kernels/kernels.h"
#include "transport/datagram/packet.h"

#define REPS 7

struct place {
    const char *name;
    size_t bytes; /* of one array */
    double memcpy_gbps;
};

struct bench {
    unsigned char *dst, *copy, *a, *b;
    const char *filter;
    int json;
    const struct place *place;
    const struct bny_kernels *k;
};

static const char *const op_names[] = { "sum",  "avg",  "min", "max",
                                        "prod", "band", "bor", "bxor" };

enum call_kind { COPY, REDUCE, REDUCE2, SCALE, ENCODE, DECODE, DECODE_ADD, CRC, MAC };

struct call {
    enum call_kind kind;
    enum banyan_dtype dtype;
    enum banyan_op_kind op;
    size_t n, bytes; /* bytes read and written by one call */
};

static void do_call(const struct bench *bn, const struct call *c)
{
    const struct bny_half_kernels *half = c->dtype == BANYAN_F16 ? &bn->k->f16 : &bn->k->bf16;

    switch (c->kind) {
    case COPY: memcpy(bn->dst, bn->a, c->n); break;
    case REDUCE: bn->k->reduce[c->dtype][c->op](bn->dst, bn->a, bn->b, c->n); break;
    case REDUCE2: bn->k->sum2[c->dtype](bn->dst, bn->copy, bn->a, bn->b, c->n); break;
    case SCALE: bn->k->scale[c->dtype](bn->dst, bn->a, c->n, 0.25); break;
    case ENCODE: half->encode(bn->dst, (const float *)bn->a, c->n); break;
    case DECODE: half->decode((float *)bn->dst, bn->a, c->n); break;
    case DECODE_ADD:
        half->decode_add((float *)bn->dst, (const float *)bn->b, bn->a, c->n);
        break;
    case CRC:
    case MAC: /* a packet with n bytes of payload */
        *(volatile uint64_t *)bn->dst = bny_dgram_check(
            c->kind == MAC ? BNY_DGRAM_MAC : BNY_DGRAM_CRC, bn->b, 1, bn->b + 32,
            BNY_DGRAM_HEAD + BNY_DGRAM_CHECK, bn->a, (uint32_t)c->n);
        break;
    }
    __asm__ __volatile__("" ::: "memory");
}

static int compare_double(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static double gbps(const struct bench *bn, const struct call *c)
{
    double rate[REPS];
    size_t calls = 1 + ((size_t)4 << 20) / c->bytes;

    do_call(bn, c);
    for (int r = 0; r < REPS; r++) {
        uint64_t start = bny_now_ns();

        for (size_t i = 0; i < calls; i++)
            do_call(bn, c);
        rate[r] = (double)(calls * c->bytes) / (double)(bny_now_ns() - start + 1);
    }
    qsort(rate, REPS, sizeof rate[0], compare_double);
    return rate[REPS / 2];
}

static void row(const struct bench *bn, const char *kernel, const struct call *c)
{
    char text[96];
    double rate;

    snprintf(text, sizeof text, "%s %s %s %s", kernel, banyan_dtype_name(c->dtype), bn->k->name,
             bn->place->name);
    if (bn->filter && !strstr(text, bn->filter))
        return;
    rate = gbps(bn, c);
    if (bn->json)
        printf("{\"kernel\":\"%s\",\"type\":\"%s\",\"isa\":\"%s\",\"where\":\"%s\","
               "\"GBps\":%.2f,\"memcpy_GBps\":%.2f,\"times_memcpy\":%.3f}\n",
               kernel, banyan_dtype_name(c->dtype), bn->k->name, bn->place->name, rate,
               bn->place->memcpy_gbps, rate / bn->place->memcpy_gbps);
    else
        printf("%-10s %-4s %-6s %-5s %8.2f GB/s %6.2f x memcpy\n", kernel,
               banyan_dtype_name(c->dtype), bn->k->name, bn->place->name, rate,
               rate / bn->place->memcpy_gbps);
    fflush(stdout);
}

static void half_rows(const struct bench *bn, enum banyan_dtype dtype)
{
    size_t n = bn->place->bytes / sizeof(float);
    struct call encode = { ENCODE, dtype, BANYAN_SUM, n, 6 * n };
    struct call decode = { DECODE, dtype, BANYAN_SUM, n, 6 * n };
    struct call decode_add = { DECODE_ADD, dtype, BANYAN_SUM, n, 10 * n };

    row(bn, "encode", &encode);
    row(bn, "decode", &decode);
    row(bn, "decode_add", &decode_add);
}

static void isa_rows(const struct bench *bn)
{
    for (int t = 0; t < BNY_DTYPE_COUNT; t++) {
        enum banyan_dtype dtype = (enum banyan_dtype)t;
        size_t bytes = bn->place->bytes, n = bytes / banyan_dtype_bytes(dtype);

        for (int op = 0; op < BNY_OP_COUNT; op++) {
            struct call c = { REDUCE, dtype, (enum banyan_op_kind)op, n, 3 * bytes };

            if (bn->k->reduce[t][op] && op != BANYAN_AVG)
                row(bn, op_names[op], &c);
        }
        if (bn->k->sum2[t]) {
            struct call c = { REDUCE2, dtype, BANYAN_SUM, n, 4 * bytes };

            row(bn, "sum2", &c);
        }
        if (bn->k->scale[t]) {
            struct call c = { SCALE, dtype, BANYAN_SUM, n, 2 * bytes };

            row(bn, "scale", &c);
        }
        if (dtype == BANYAN_F16 || dtype == BANYAN_BF16)
            half_rows(bn, dtype);
    }
}

/* For frames of 1500 and 9000 bytes. */
static void packet_rows(const struct bench *bn)
{
    static const size_t payload[] = { 1408, 8896 };

    for (int i = 0; i < 2; i++) {
        struct call crc = { CRC, BANYAN_U8, BANYAN_SUM, payload[i], payload[i] },
                    mac = { MAC, BANYAN_U8, BANYAN_SUM, payload[i], payload[i] };

        row(bn, i ? "crc 9000" : "crc 1500", &crc);
        row(bn, i ? "mac 9000" : "mac 1500", &mac);
    }
}

static void *array(size_t bytes, uint64_t seed)
{
    uint64_t *p = aligned_alloc(64, bytes);

    if (!p) {
        fprintf(stderr, "kernels: no memory for an array of %zu bytes\n", bytes);
        exit(1);
    }
    /* Exponents near 1 in f32, f16 and bf16 alike: no infinities, no subnormal numbers. */
    for (size_t i = 0; i < bytes / 8; i++)
        p[i] = (bny_rng_next(&seed) & 0x80ff80ff80ff80ffu) | 0x3c003c003c003c00u;
    return p;
}

static void usage(void)
{
    fprintf(stderr, "usage: kernels [--json] [--filter TEXT] [--dram-mib N]\n");
    exit(2);
}

int main(int argc, char **argv)
{
    struct place places[] = { { "cache", 64 << 10, 0 }, { "dram", 64 << 20, 0 } };
    struct bench bn = { .filter = NULL };
    unsigned levels[] = { 0, BNY_CPU_AVX2, BNY_CPU_AVX2 | BNY_CPU_AVX512 };

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            bn.json = 1;
        else if (!strcmp(argv[i], "--filter") && i + 1 < argc)
            bn.filter = argv[++i];
        else if (!strcmp(argv[i], "--dram-mib") && i + 1 < argc && atoi(argv[i + 1]) > 0)
            places[1].bytes = (size_t)atoi(argv[++i]) << 20;
        else
            usage();
    }
    bn.dst = array(places[1].bytes, 1);
    bn.copy = array(places[1].bytes, 2);
    bn.a = array(places[1].bytes, 3);
    bn.b = array(places[1].bytes, 4);
    for (size_t p = 0; p < 2; p++) {
        struct call copy = { COPY, BANYAN_U8, BANYAN_SUM, places[p].bytes,
                             2 * places[p].bytes };

        bn.place = &places[p];
        bn.k = &bny_kernels_scalar;
        places[p].memcpy_gbps = gbps(&bn, &copy);
        if (!bn.json)
            printf("memcpy %s: %.2f GB/s\n", places[p].name, places[p].memcpy_gbps);
        if (p == 0)
            packet_rows(&bn);
        for (size_t l = 0; l < 3; l++) {
            if ((levels[l] & bny_cpu_flags()) != levels[l])
                continue;
            if (l > 0 && bny_kernels_for(levels[l]) == bn.k)
                continue; /* no table of its own on this architecture */
            bn.k = bny_kernels_for(levels[l]);
            isa_rows(&bn);
        }
    }
    free(bn.dst);
    free(bn.copy);
    free(bn.a);
    free(bn.b);
    return 0;
}
