/* SPDX-License-Identifier: BSD-3-Clause */
/* Reduction operations: built-in kinds, and the handles of user functions and premul sums. */
#include "collectives/call/redop.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/cpu.h"
#include "base/err.h"
#include "base/fork.h"
#include "base/fpmode.h"
#include "base/thread_context.h"

#define FIRST_HANDLE 0x100u
#define MAX_HANDLES  4096u

static struct bny_lock table_lock = BNY_LOCK(NULL);
static struct bny_redop *table[MAX_HANDLES];
static pthread_once_t kernels_once = PTHREAD_ONCE_INIT;
static bny_reduce_fn kernels[BNY_DTYPE_COUNT][BNY_OP_COUNT];
static bny_reduce2_fn kernels2[BNY_DTYPE_COUNT][BNY_OP_COUNT];
static bny_reduce_many_fn kernels4[BNY_DTYPE_COUNT][BNY_OP_COUNT];
static bny_reduce_many_fn kernels8[BNY_DTYPE_COUNT][BNY_OP_COUNT];

static const char *const op_names[BNY_OP_COUNT] = { "sum",  "avg",  "min", "max",
                                                    "prod", "band", "bor", "bxor" };
static const struct {
    const char *name;
    size_t bytes;
} dtypes[BNY_DTYPE_COUNT] = {
    [BANYAN_F32] = { "f32", 4 },       [BANYAN_F64] = { "f64", 8 },
    [BANYAN_F16] = { "f16", 2 },       [BANYAN_BF16] = { "bf16", 2 },
    [BANYAN_I8] = { "i8", 1 },         [BANYAN_U8] = { "u8", 1 },
    [BANYAN_I32] = { "i32", 4 },       [BANYAN_U32] = { "u32", 4 },
    [BANYAN_I64] = { "i64", 8 },       [BANYAN_U64] = { "u64", 8 },
    [BANYAN_BOOL] = { "bool", 1 },     [BANYAN_I16] = { "i16", 2 },
    [BANYAN_U16] = { "u16", 2 },       [BANYAN_C64] = { "c64", 8 },
    [BANYAN_C128] = { "c128", 16 },    [BANYAN_F8E4M3] = { "f8e4m3", 1 },
    [BANYAN_F8E5M2] = { "f8e5m2", 1 },
};

size_t banyan_dtype_bytes(enum banyan_dtype dtype)
{
    return (unsigned)dtype < BNY_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *banyan_dtype_name(enum banyan_dtype dtype)
{
    return (unsigned)dtype < BNY_DTYPE_COUNT ? dtypes[dtype].name : "unknown type";
}

const char *bny_redop_name(unsigned wire)
{
    if (wire == 0xfe)
        return "user function";
    if (wire == 0xfd)
        return "premul sum";
    return wire < BNY_OP_COUNT ? op_names[wire] : "unknown op";
}

static void fill_kernels(void)
{
    unsigned flags = bny_cpu_flags();

    for (int d = 0; d < BNY_DTYPE_COUNT; d++)
        for (int k = 0; k < BNY_OP_COUNT; k++) {
            kernels[d][k] = bny_reduce_get((enum banyan_dtype)d, (enum banyan_op_kind)k, flags);
            kernels2[d][k] =
                bny_reduce2_get((enum banyan_dtype)d, (enum banyan_op_kind)k, flags);
            kernels4[d][k] =
                bny_reduce_many_get((enum banyan_dtype)d, (enum banyan_op_kind)k, 4, flags);
            kernels8[d][k] =
                bny_reduce_many_get((enum banyan_dtype)d, (enum banyan_op_kind)k, 8, flags);
        }
}

int bny_redop_get(struct bny_redop *out, banyan_op op, enum banyan_dtype dtype)
{
    pthread_once(&kernels_once, fill_kernels);
    if (op < BNY_OP_COUNT) {
        if (!kernels[dtype][op])
            return bny_fail(
                BANYAN_EINVAL,
                "op: %s is not defined for %s: bitwise operations take integers and "
                "bool, complex types have sum, avg and prod",
                op_names[op], dtypes[dtype].name);
        *out = (struct bny_redop){ .wire = (uint8_t)op, .kind = (uint8_t)op, .commutative = 1 };
        return 0;
    }
    bny_lock_take(&table_lock);
    if (op < FIRST_HANDLE || op - FIRST_HANDLE >= MAX_HANDLES || !table[op - FIRST_HANDLE]) {
        bny_lock_give(&table_lock);
        return bny_fail(BANYAN_EINVAL,
                        "op: %u is neither a built-in operation nor one made by "
                        "banyan_op_create_*",
                        op);
    }
    *out = *table[op - FIRST_HANDLE];
    bny_lock_give(&table_lock);
    if (out->wire == 0xfd && dtype != BANYAN_F32 && dtype != BANYAN_F64 &&
        dtype != BANYAN_F16 && dtype != BANYAN_BF16)
        return bny_fail(BANYAN_EINVAL, "op: a premul sum takes f32, f64, f16 or bf16, not %s",
                        dtypes[dtype].name);
    if (out->elem_bytes && dtype != BANYAN_U8)
        return bny_fail(BANYAN_EINVAL,
                        "dtype: this operation's element has %zu bytes; pass "
                        "BANYAN_U8 and a count of bytes",
                        out->elem_bytes);
    return 0;
}

static int add_handle(const struct bny_redop *op, banyan_op *out)
{
    struct bny_redop *copy = malloc(sizeof *copy);

    if (!copy)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    *copy = *op;
    bny_lock_take(&table_lock);
    for (uint32_t i = 0; i < MAX_HANDLES; i++)
        if (!table[i]) {
            table[i] = copy;
            bny_lock_give(&table_lock);
            *out = FIRST_HANDLE + i;
            return 0;
        }
    bny_lock_give(&table_lock);
    free(copy);
    return bny_fail(BANYAN_ENOMEM, "%u operations exist already; free some with banyan_op_free",
                    MAX_HANDLES);
}

int banyan_op_create_user(banyan_user_fn fn, void *ctx, size_t elem_bytes, size_t alignment,
                          int commutative, banyan_op *out)
{
    struct bny_redop op = { .wire = 0xfe,
                            .commutative = commutative != 0,
                            .user = fn,
                            .user_ctx = ctx,
                            .elem_bytes = elem_bytes,
                            .alignment = alignment };

    if (!fn || !out)
        return bny_fail(BANYAN_EINVAL, "banyan_op_create_user: fn and out must not be NULL");
    if (alignment & (alignment - 1) || alignment > 4096)
        return bny_fail(BANYAN_EINVAL, "alignment: %zu is not a power of two up to 4096",
                        alignment);
    if (elem_bytes > 4096)
        return bny_fail(BANYAN_EINVAL, "elem_bytes: %zu is more than 4096", elem_bytes);
    return add_handle(&op, out);
}

int banyan_op_create_premul_sum(double scalar, banyan_op *out)
{
    struct bny_redop op = {
        .wire = 0xfd, .kind = BANYAN_SUM, .commutative = 1, .scalar = scalar
    };

    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_op_create_premul_sum: out must not be NULL");
    return add_handle(&op, out);
}

int banyan_op_free(banyan_op op)
{
    struct bny_redop *old;

    bny_lock_take(&table_lock);
    if (op < FIRST_HANDLE || op - FIRST_HANDLE >= MAX_HANDLES || !table[op - FIRST_HANDLE]) {
        bny_lock_give(&table_lock);
        return bny_fail(BANYAN_EINVAL, "banyan_op_free: %u is not a created operation", op);
    }
    old = table[op - FIRST_HANDLE];
    table[op - FIRST_HANDLE] = NULL;
    bny_lock_give(&table_lock);
    free(old);
    return 0;
}

/* User functions see aligned, private copies: `in` is the lower ranks' operand, inout the
 * higher ranks'. Pieces of 4 KiB, so that the work space is on the stack. */
static void run_user(const struct bny_redop *op, enum banyan_dtype dtype, char *dst,
                     const char *a, const char *b, size_t bytes)
{
    _Alignas(4096) char in[4096];
    _Alignas(4096) char inout[4096];
    size_t elem = op->elem_bytes ? op->elem_bytes : dtypes[dtype].bytes;
    size_t piece = sizeof in / elem * elem;
    int was = bny_inside;

    for (size_t at = 0; at < bytes; at += piece) {
        size_t len = bytes - at < piece ? bytes - at : piece;
        memcpy(in, a + at, len);
        memcpy(inout, b + at, len);
        bny_inside = BNY_IN_USER_OP;
        op->user(op->user_ctx, in, inout, len / elem, dtype);
        bny_inside = was;
        memcpy(dst + at, inout, len);
    }
}

int bny_redop_twice(const struct bny_redop *op, enum banyan_dtype dtype)
{
    return !op->user && kernels2[dtype][op->kind];
}

void bny_redop_run_twice(const struct bny_redop *op, enum banyan_dtype dtype, void *dst,
                         void *copy, const void *a, const void *b, size_t n)
{
    BNY_FIXED_FP_MODE;

    kernels2[dtype][op->kind](dst, copy, a, b, n);
}

static void redop_run(const struct bny_redop *op, enum banyan_dtype dtype, void *dst,
                      const void *a, const void *b, size_t n)
{
    if (op->user)
        run_user(op, dtype, dst, a, b, n * dtypes[dtype].bytes);
    else
        kernels[dtype][op->kind](dst, a, b, n);
}

static __attribute__((noinline)) void run_in_fixed_mode(const struct bny_redop *op,
                                                        enum banyan_dtype dtype, void *dst,
                                                        const void *a, const void *b, size_t n)
{
    BNY_FIXED_FP_MODE;

    redop_run(op, dtype, dst, a, b, n);
}

/* Of a few bytes it takes some nanoseconds: nothing is to be done after the kernel. */
void bny_redop_run(const struct bny_redop *op, enum banyan_dtype dtype, void *dst,
                   const void *a, const void *b, size_t n)
{
    if (bny_fp_is_fixed(bny_fp_get()))
        redop_run(op, dtype, dst, a, b, n);
    else
        run_in_fixed_mode(op, dtype, dst, a, b, n);
}

/* As many at once as there is a kernel for: what is between two additions is neither stored nor
 * read again, and the processor reads several arrays ahead. */
void bny_redop_all(const struct bny_redop *op, enum banyan_dtype dtype, void *dst, void *work,
                   const void *const in[], int k, size_t n)
{
    bny_reduce_many_fn sum4 = op->user ? NULL : kernels4[dtype][op->kind];
    bny_reduce_many_fn sum8 = op->user ? NULL : kernels8[dtype][op->kind];
    const void *some[8] = { in[0] };
    BNY_FIXED_FP_MODE;

    for (int from = 1; from < k;) {
        int left = k - from, add = sum8 && left >= 7 ? 7 : sum4 && left >= 3 ? 3 : 1;
        void *to = add == left ? dst : work;

        for (int i = 0; i < add; i++)
            some[1 + i] = in[from + i];
        if (add == 1)
            bny_redop_run(op, dtype, to, some[0], some[1], n);
        else
            (add == 7 ? sum8 : sum4)(to, some, n);
        some[0] = work;
        from += add;
    }
}
