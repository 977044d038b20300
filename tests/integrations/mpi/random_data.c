/* SPDX-License-Identifier: BSD-3-Clause */
/* What random_calls.c makes its calls of: two generators, types, layouts, buffers and
 * operations. */
#include <complex.h>
#include <stdlib.h>
#include <string.h>

#include "random_data.h"

int me, world_n;
uint64_t all_state, my_state;
struct base bases[48];
int nbases;

uint64_t next(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int all(int n) /* the same on all ranks */
{
    return (int)(next(&all_state) % (uint64_t)n);
}

int mine(int n)
{
    return (int)(next(&my_state) % (uint64_t)n);
}

uint64_t hash(uint64_t h, const void *p, size_t bytes)
{
    for (const unsigned char *c = p; bytes--; c++)
        h = (h ^ *c) * 0x100000001b3u;
    return h;
}

/* ---- types ---- */

static void base(MPI_Datatype type, char kind, int value_bytes)
{
    MPI_Aint lb, extent;
    int size;

    if (type == MPI_DATATYPE_NULL)
        return;
    MPI_Type_get_extent(type, &lb, &extent);
    MPI_Type_size(type, &size);
    bases[nbases++] =
        (struct base){ type, value_bytes ? value_bytes : size, (int)extent, kind };
}

void make_bases(void)
{
    MPI_Datatype ints[] = {
        MPI_INT,           MPI_LONG,           MPI_SHORT,     MPI_UNSIGNED,
        MPI_UNSIGNED_LONG, MPI_UNSIGNED_SHORT, MPI_LONG_LONG, MPI_UNSIGNED_LONG_LONG,
        MPI_SIGNED_CHAR,   MPI_UNSIGNED_CHAR,  MPI_INT8_T,    MPI_INT16_T,
        MPI_INT32_T,       MPI_INT64_T,        MPI_UINT8_T,   MPI_UINT16_T,
        MPI_UINT32_T,      MPI_UINT64_T
    };

    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        base(ints[i], 'i', 0);
    base(MPI_INTEGER, 'n', 0);
    base(MPI_INTEGER8, 'n', 0);
    base(MPI_AINT, 'm', 0);
    base(MPI_OFFSET, 'm', 0);
    base(MPI_BYTE, 'y', 0);
    base(MPI_FLOAT, 'f', 0);
    base(MPI_FLOAT, 'f', 0);
    base(MPI_REAL, 'f', 0);
    base(MPI_DOUBLE, 'd', 0);
    base(MPI_DOUBLE, 'd', 0);
    base(MPI_DOUBLE_PRECISION, 'd', 0);
    base(MPI_LONG_DOUBLE, 'g', 10);
    base(MPI_C_FLOAT_COMPLEX, 'c', 0);
    base(MPI_C_DOUBLE_COMPLEX, 'z', 0);
    base(MPI_C_BOOL, 'b', 0);
    base(MPI_FLOAT_INT, 'p', 0);
    base(MPI_2INT, 'q', 0);
    base(MPI_DOUBLE_INT, 'r', 0);
    base(MPI_LONG_INT, 's', 0);
    base(MPI_CHAR, 'x', 0);
}

MPI_Datatype layout(const struct base *b, int which, int *per)
{
    MPI_Datatype t, u;
    int two[2] = { 1, 2 }, at[2] = { 4, 0 };

    *per = 1;
    switch (which) {
    case 0: /* a gap after each */
        MPI_Type_create_resized(b->type, 0, 2 * b->extent, &t);
        break;
    case 1:
        MPI_Type_contiguous(3, b->type, &t);
        *per = 3;
        break;
    case 2:
        MPI_Type_vector(2, 3, 4, b->type, &t);
        *per = 6;
        break;
    case 3: /* the later element first */
        MPI_Type_indexed(2, two, at, b->type, &t);
        *per = 3;
        break;
    case 4:
        MPI_Type_contiguous(2, b->type, &u);
        MPI_Type_dup(u, &t);
        MPI_Type_free(&u);
        *per = 2;
        break;
    default: return b->type;
    }
    MPI_Type_commit(&t);
    return t;
}

/* ---- buffers ---- */

struct area area(size_t elems, int extent)
{
    struct area a = { .bytes = elems * (size_t)extent * 4 + 2 * MARGIN };

    a.mem = calloc(a.bytes, 1);
    for (size_t i = 0; i + 8 <= a.bytes; i += 8) {
        uint64_t x = next(&my_state);
        memcpy(a.mem + i, &x, 8);
    }
    return a;
}

char *at(struct area *a)
{
    return a->mem + MARGIN;
}

void fill(char *p, const struct base *b, int count, int product, int sum, int rough)
{
    for (int i = 0; i < count; i++, p += b->extent) {
        double v = product ? (double)(1 + mine(2)) * (mine(2) ? 1 : -1) : mine(200) - 100;
        double x = rough ? (double)(int64_t)next(&my_state) * 0x1p-63 : v;
        uint64_t bits[2] = { next(&my_state), next(&my_state) };
        memset(p, 0, (size_t)b->extent);
        switch (b->kind) {
        case 'f': *(float *)p = (float)x; break;
        case 'd': *(double *)p = x; break;
        case 'g': *(long double *)p = (long double)x; break;
        case 'c': *(float complex *)p = (float)v + (float)mine(2) * I; break;
        case 'z': *(double complex *)p = v + mine(2) * I; break;
        case 'b': *p = (char)mine(2); break;
        case 'p': *(float *)p = (float)v, ((int *)p)[1] = mine(50); break;
        case 'q': ((int *)p)[0] = (int)v, ((int *)p)[1] = mine(50); break;
        case 'r': *(double *)p = v, ((int *)p)[2] = mine(50); break;
        case 's': *(long *)p = (long)v, ((int *)p)[2] = mine(50); break;
        case 'i': /* Open MPI's sums of short types saturate, and the result depends on their
                     order */
            if (sum && b->extent <= 2)
                *p = (char)(bits[0] % 16);
            else
                memcpy(p, bits, (size_t)b->extent);
            break;
        default: memcpy(p, bits, (size_t)b->extent); break;
        }
    }
}

/* ---- operations ---- */

void add_mod(void *in, void *inout, int *n, MPI_Datatype *type)
{
    for (int i = 0; i < *n; i++)
        ((uint32_t *)inout)[i] = ((uint32_t *)in)[i] + 3 + ((uint32_t *)inout)[i];
}

/* 2 x 2 matrices, in x inout: order matters. */
void multiply(void *in, void *inout, int *n, MPI_Datatype *type)
{
    uint32_t *a = in, *b = inout;

    for (int i = 0; i < *n; i++, a += 4, b += 4) {
        uint32_t c[4] = { a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
                          a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3] };
        memcpy(b, c, sizeof c);
    }
}

MPI_Op pick_op(char kind, int *product, int *which)
{
    MPI_Op sums[] = { MPI_SUM,  MPI_MAX,  MPI_MIN, MPI_PROD, MPI_BAND,   MPI_BOR,
                      MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_MAXLOC, MPI_MINLOC };
    int k;

    switch (kind) {
    case 'i': k = all(10); break;
    case 'n':
    case 'm': k = all(7); break;
    case 'y': k = 4 + all(3); break;
    case 'b': k = 7 + all(3); break;
    case 'f':
    case 'd':
    case 'g': k = all(4); break;
    case 'c':
    case 'z': k = all(2) * 3; break;
    case 'x': k = -1; break;
    default: k = 10 + all(2); break;
    }
    *product = k == 3;
    *which = k;
    return k < 0 ? MPI_OP_NULL : sums[k];
}
