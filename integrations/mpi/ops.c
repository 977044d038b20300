/* SPDX-License-Identifier: BSD-3-Clause */
/* Reduction operations. A predefined one on a type that banyan has runs on banyan's kernels;
 * every other that the standard allows, and the user's own, run by MPI_Reduce_local inside a
 * banyan user operation: what an element's result is stays the MPI library's affair. */
#include <stdlib.h>

#include "integrations/mpi/shim.h"

#define OPS        12
#define ELEM_MAX   4096 /* of a banyan user operation */
#define ELEM_ALIGN 16

struct shim_user {
    MPI_Op op;
    MPI_Datatype type;
    banyan_op banyan;
};

static const struct {
    int native; /* enum banyan_op_kind, or -1 */
    int classes;
} rules[OPS] = {
#define NUMBER (SHIM_CLASS_INT | SHIM_CLASS_FINT | SHIM_CLASS_FLOAT | SHIM_CLASS_MULTI)
#define WHOLE  (SHIM_CLASS_INT | SHIM_CLASS_FINT | SHIM_CLASS_BYTE | SHIM_CLASS_MULTI)
    { BANYAN_SUM, NUMBER | SHIM_CLASS_COMPLEX },
    { BANYAN_PROD, NUMBER | SHIM_CLASS_COMPLEX },
    { BANYAN_MAX, NUMBER },
    { BANYAN_MIN, NUMBER },
    { BANYAN_BAND, WHOLE },
    { BANYAN_BOR, WHOLE },
    { BANYAN_BXOR, WHOLE },
    { -1, SHIM_CLASS_INT | SHIM_CLASS_LOGICAL },
    { -1, SHIM_CLASS_INT | SHIM_CLASS_LOGICAL },
    { -1, SHIM_CLASS_INT | SHIM_CLASS_LOGICAL },
    { -1, SHIM_CLASS_PAIR },
    { -1, SHIM_CLASS_PAIR },
};

/* Operations by MPI_Reduce_local, made at their first use and kept. 1: the MPI library refuses
 * this pair. */
static struct shim_user *made[OPS][SHIM_TYPES_MAX];
static uint8_t refused[OPS][SHIM_TYPES_MAX];

static int rule_of(MPI_Op op)
{
    const MPI_Op all[OPS] = { MPI_SUM,  MPI_PROD, MPI_MAX, MPI_MIN,  MPI_BAND,   MPI_BOR,
                              MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_MAXLOC, MPI_MINLOC };

    for (int i = 0; i < OPS; i++)
        if (all[i] == op)
            return i;
    return -1;
}

static void ops_run(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    const struct shim_user *u = ctx;

    real.Reduce_local(in, inout, (int)n, u->type, u->op);
}

static struct shim_user *ops_make(MPI_Op op, MPI_Datatype type, size_t elem, int commutative)
{
    struct shim_user *u = calloc(1, sizeof *u);

    if (!u)
        return NULL;
    u->op = op;
    u->type = type;
    if (banyan_op_create_user(ops_run, u, elem, ELEM_ALIGN, commutative, &u->banyan) < 0) {
        free(u);
        return NULL;
    }
    return u;
}

/* Does the MPI library take this pair? Asked once. */
static int is_taken(MPI_Op op, MPI_Datatype type)
{
    _Alignas(64) static char a[256], b[256];

    return shim_reduce_quietly(a, b, type, op) == MPI_SUCCESS;
}

/* Sums of single bytes stay the MPI library's: Open MPI's saturate where the CPU has AVX. */
static int is_native(int rule, const struct shim_type *t)
{
    int arithmetic = rules[rule].native == BANYAN_SUM || rules[rule].native == BANYAN_PROD;

    return rules[rule].native >= 0 && t->native && !(t->size == 1 && arithmetic);
}

static int predefined(int rule, MPI_Op op, const struct shim_type *t, struct shim_redop *out)
{
    struct shim_user **u = &made[rule][t->index];

    if (!(rules[rule].classes & t->cls))
        return 0;
    if (is_native(rule, t)) {
        *out = (struct shim_redop){ .dtype = (enum banyan_dtype)(t->native - 1),
                                    .unit = 1,
                                    .op = (banyan_op)rules[rule].native };
        return 1;
    }
    if (!*u && !refused[rule][t->index]) {
        if (is_taken(op, t->handle))
            *u = ops_make(op, t->handle, (size_t)t->extent, 1);
        else
            refused[rule][t->index] = 1;
    }
    if (!*u)
        return 0;
    *out = (struct shim_redop){ .dtype = BANYAN_U8,
                                .unit = (size_t)t->extent,
                                .op = (*u)->banyan };
    return 1;
}

/* The user's: only for elements without gaps, which would travel and be written otherwise. */
int shim_redop_get(MPI_Op op, const struct shim_type *t, struct shim_redop *out)
{
    int rule = rule_of(op), commutative = 1;
    struct shim_user *u;

    if (rule >= 0)
        return t->cls ? predefined(rule, op, t, out) : 0;
    if (op == MPI_OP_NULL || op == MPI_REPLACE || op == MPI_NO_OP || !t->plain ||
        t->size == 0 || t->size > ELEM_MAX ||
        real.Op_commutative(op, &commutative) != MPI_SUCCESS)
        return 0;
    u = ops_make(op, t->handle, t->size, commutative);
    if (!u)
        return 0;
    *out =
        (struct shim_redop){ .dtype = BANYAN_U8, .unit = t->size, .op = u->banyan, .user = u };
    return 1;
}

void shim_redop_done(struct shim_redop *r)
{
    struct shim_user *u = r->user;

    if (!u)
        return;
    r->user = NULL;
    banyan_op_free(u->banyan);
    free(u);
}

int shim_user_has_op(const struct shim_user *u, MPI_Op op)
{
    return u && u->op == op;
}

int shim_user_has_type(const struct shim_user *u, MPI_Datatype type)
{
    return u && u->type == type;
}
