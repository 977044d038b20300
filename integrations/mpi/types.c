/* SPDX-License-Identifier: BSD-3-Clause */
/* Data types. The packed bytes of the type signature travel. Ranks may describe the same
 * signature by different types, so no decision for all ranks depends on a type's layout. A
 * layout that is plainly contiguous is used where it lies; any other is packed and unpacked
 * here. */
#include <limits.h>
#include <string.h>

#include "integrations/mpi/shim.h"

#define SLOTS 512
#define PIECE (64u << 20) /* bytes packed by one call, whose counts are int */
#define DEEP  8           /* contiguous types of contiguous types that are looked through */

static struct shim_type table[SLOTS];
static int ntypes;

static unsigned slot_of(MPI_Datatype type)
{
    uint64_t x = (uint64_t)(uintptr_t)type * 0x9e3779b97f4a7c15u;

    return (unsigned)(x >> 32) % SLOTS;
}

static const struct shim_type *types_find(MPI_Datatype type)
{
    for (unsigned i = slot_of(type); table[i].size; i = (i + 1) % SLOTS)
        if (table[i].handle == type)
            return &table[i];
    return NULL;
}

static uint8_t native_of(int cls, size_t size, int with_sign)
{
    if (cls & SHIM_CLASS_FLOAT)
        return size == 4 ? 1 + BANYAN_F32 : size == 8 ? 1 + BANYAN_F64 : 0;
    if (cls & SHIM_CLASS_BYTE)
        return 1 + BANYAN_U8;
    if (!(cls & (SHIM_CLASS_INT | SHIM_CLASS_FINT | SHIM_CLASS_MULTI)))
        return 0;
    switch (size) {
    case 1: return 1 + (with_sign ? BANYAN_I8 : BANYAN_U8);
    case 4: return 1 + (with_sign ? BANYAN_I32 : BANYAN_U32);
    case 8: return 1 + (with_sign ? BANYAN_I64 : BANYAN_U64);
    default: return 0;
    }
}

static MPI_Errhandler loud[2]; /* the program's, while we ask what may be an error */

static void quiet(int on)
{
    const MPI_Comm comms[2] = { MPI_COMM_WORLD, MPI_COMM_SELF };

    for (int i = 0; i < 2; i++) {
        if (on) {
            real.Comm_get_errhandler(comms[i], &loud[i]);
            real.Comm_set_errhandler(comms[i], MPI_ERRORS_RETURN);
        } else {
            real.Comm_set_errhandler(comms[i], loud[i]);
            real.Errhandler_free(&loud[i]);
        }
    }
}

int shim_reduce_quietly(const void *in, void *inout, MPI_Datatype type, MPI_Op op)
{
    int rc;

    quiet(1);
    rc = real.Reduce_local(in, inout, 1, type, op);
    quiet(0);
    return rc;
}

/* Does the MPI library compare this type as signed? Not always as its name says: MPICH 4.0.2
 * takes all as signed, Open MPI 4.1.4 MPI_UNSIGNED_LONG as signed and MPI_OFFSET as unsigned. A
 * program's results must not depend on whether we are there, so banyan compares alike. */
static int is_signed(MPI_Datatype type)
{
    unsigned char a[16], b[16] = { 0 }, one[16] = { 0 };

    memset(a, 0xff, sizeof a);
    b[0] = one[0] = 1;
    return real.Reduce_local(a, b, 1, type, MPI_MAX) == MPI_SUCCESS &&
           !memcmp(b, one, sizeof b);
}

static void types_add(MPI_Datatype type, int cls)
{
    const int whole = SHIM_CLASS_INT | SHIM_CLASS_FINT | SHIM_CLASS_MULTI;
    MPI_Aint lb = 0, extent = 0;
    unsigned i = slot_of(type);
    int size = 0;

    if (type == MPI_DATATYPE_NULL || types_find(type) || ntypes == SHIM_TYPES_MAX ||
        real.Type_size(type, &size) != MPI_SUCCESS || size <= 0 ||
        real.Type_get_extent(type, &lb, &extent) != MPI_SUCCESS)
        return;
    while (table[i].size)
        i = (i + 1) % SLOTS;
    table[i] = (struct shim_type){ .handle = type,
                                   .size = (size_t)size,
                                   .extent = extent,
                                   .plain = lb == 0 && extent == size,
                                   .cls = (uint8_t)cls,
                                   .index = (uint8_t)ntypes++,
                                   .native = native_of(cls, (size_t)size,
                                                       (cls & whole) && is_signed(type)) };
}

static const struct {
    MPI_Datatype type;
    int cls;
} predefined[] = {
    { MPI_CHAR, 0 },
    { MPI_WCHAR, 0 },
    { MPI_PACKED, 0 },
    { MPI_CHARACTER, 0 },
    { MPI_BYTE, SHIM_CLASS_BYTE },
    { MPI_INT, SHIM_CLASS_INT },
    { MPI_LONG, SHIM_CLASS_INT },
    { MPI_SHORT, SHIM_CLASS_INT },
    { MPI_UNSIGNED, SHIM_CLASS_INT },
    { MPI_UNSIGNED_LONG, SHIM_CLASS_INT },
    { MPI_UNSIGNED_SHORT, SHIM_CLASS_INT },
    { MPI_LONG_LONG, SHIM_CLASS_INT },
    { MPI_UNSIGNED_LONG_LONG, SHIM_CLASS_INT },
    { MPI_SIGNED_CHAR, SHIM_CLASS_INT },
    { MPI_UNSIGNED_CHAR, SHIM_CLASS_INT },
    { MPI_INT8_T, SHIM_CLASS_INT },
    { MPI_INT16_T, SHIM_CLASS_INT },
    { MPI_INT32_T, SHIM_CLASS_INT },
    { MPI_INT64_T, SHIM_CLASS_INT },
    { MPI_UINT8_T, SHIM_CLASS_INT },
    { MPI_UINT16_T, SHIM_CLASS_INT },
    { MPI_UINT32_T, SHIM_CLASS_INT },
    { MPI_UINT64_T, SHIM_CLASS_INT },
    { MPI_AINT, SHIM_CLASS_MULTI },
    { MPI_OFFSET, SHIM_CLASS_MULTI },
    { MPI_COUNT, SHIM_CLASS_MULTI },
    { MPI_FLOAT, SHIM_CLASS_FLOAT },
    { MPI_DOUBLE, SHIM_CLASS_FLOAT },
    { MPI_LONG_DOUBLE, SHIM_CLASS_FLOAT },
    { MPI_C_BOOL, SHIM_CLASS_LOGICAL },
    { MPI_CXX_BOOL, SHIM_CLASS_LOGICAL },
    { MPI_LOGICAL, SHIM_CLASS_LOGICAL },
    { MPI_C_FLOAT_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_C_DOUBLE_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_C_LONG_DOUBLE_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_CXX_FLOAT_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_CXX_DOUBLE_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_CXX_LONG_DOUBLE_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_DOUBLE_COMPLEX, SHIM_CLASS_COMPLEX },
    { MPI_COMPLEX8, SHIM_CLASS_COMPLEX },
    { MPI_COMPLEX16, SHIM_CLASS_COMPLEX },
    { MPI_COMPLEX32, SHIM_CLASS_COMPLEX },
    { MPI_INTEGER, SHIM_CLASS_FINT },
    { MPI_INTEGER1, SHIM_CLASS_FINT },
    { MPI_INTEGER2, SHIM_CLASS_FINT },
    { MPI_INTEGER4, SHIM_CLASS_FINT },
    { MPI_INTEGER8, SHIM_CLASS_FINT },
    { MPI_REAL, SHIM_CLASS_FLOAT },
    { MPI_DOUBLE_PRECISION, SHIM_CLASS_FLOAT },
    { MPI_REAL4, SHIM_CLASS_FLOAT },
    { MPI_REAL8, SHIM_CLASS_FLOAT },
    { MPI_REAL16, SHIM_CLASS_FLOAT },
    { MPI_FLOAT_INT, SHIM_CLASS_PAIR },
    { MPI_DOUBLE_INT, SHIM_CLASS_PAIR },
    { MPI_LONG_INT, SHIM_CLASS_PAIR },
    { MPI_2INT, SHIM_CLASS_PAIR },
    { MPI_SHORT_INT, SHIM_CLASS_PAIR },
    { MPI_LONG_DOUBLE_INT, SHIM_CLASS_PAIR },
    { MPI_2REAL, SHIM_CLASS_PAIR },
    { MPI_2DOUBLE_PRECISION, SHIM_CLASS_PAIR },
    { MPI_2INTEGER, SHIM_CLASS_PAIR },
};

void shim_types_start(void)
{
    quiet(1); /* a library without Fortran or C++ does not know all */
    for (size_t i = 0; i < sizeof predefined / sizeof predefined[0]; i++)
        types_add(predefined[i].type, predefined[i].cls);
    quiet(0);
}

/* Contiguous by its constructors. Types of other constructors may be contiguous as well, but
 * their order in memory need not be the signature's. */
static int is_plain(MPI_Datatype type, int depth)
{
    const struct shim_type *known = types_find(type);
    int ni, na, nd, combiner, counts[1], plain;
    MPI_Aint none[1];
    MPI_Datatype inner;

    if (known)
        return known->plain;
    if (depth == DEEP || real.Type_get_envelope(type, &ni, &na, &nd, &combiner) != MPI_SUCCESS)
        return 0;
    if (nd != 1 || ni > 1 || na != 0 ||
        (combiner != MPI_COMBINER_DUP && combiner != MPI_COMBINER_CONTIGUOUS))
        return 0;
    if (real.Type_get_contents(type, ni, na, nd, counts, none, &inner) != MPI_SUCCESS)
        return 0;
    plain = is_plain(inner, depth + 1);
    if (!types_find(inner) &&
        real.Type_get_envelope(inner, &ni, &na, &nd, &combiner) == MPI_SUCCESS &&
        combiner != MPI_COMBINER_NAMED)
        real.Type_free(&inner); /* get_contents made a handle */
    return plain;
}

/* No call tells; those that need a committed type do. */
static int is_committed(MPI_Datatype type)
{
    int position = 0;
    char none[1] = "";

    return real.Pack(none, 0, type, none, 0, &position, shim_self) == MPI_SUCCESS;
}

int shim_type_get(MPI_Datatype type, struct shim_type *out)
{
    const struct shim_type *known = types_find(type);
    MPI_Count size = 0;
    MPI_Aint lb;

    if (known) {
        *out = *known;
        return 0;
    }
    if (type == MPI_DATATYPE_NULL || !is_committed(type) ||
        real.Type_size_x(type, &size) != MPI_SUCCESS || size < 0)
        return -1;
    *out = (struct shim_type){ .handle = type, .size = (size_t)size };
    if (real.Type_get_extent(type, &lb, &out->extent) != MPI_SUCCESS)
        return -1;
    out->plain = is_plain(type, 0);
    return 0;
}

/* A message to oneself takes any layout. Each call has a tag of its own: several threads may be
 * here. */
static int copy_between(const void *from, int from_count, MPI_Datatype from_type, void *to,
                        int to_count, MPI_Datatype to_type)
{
    static atomic_uint calls;
    int tag = 1 + (int)(atomic_fetch_add(&calls, 1) % 30000);

    return real.Sendrecv(from, from_count, from_type, 0, tag, to, to_count, to_type, 0, tag,
                         shim_self, MPI_STATUS_IGNORE);
}

/* For elements too large for the int counts of pack and unpack. */
static int copy_large(const void *from, MPI_Datatype from_type, void *to, MPI_Datatype to_type,
                      size_t bytes)
{
    MPI_Datatype page, pages;
    int blocks = (int)(bytes / 4096), rest = (int)(bytes % 4096), rc;
    int lengths[2] = { blocks, rest };
    MPI_Aint places[2] = { 0, (MPI_Aint)blocks * 4096 };
    MPI_Datatype types[2];

    rc = real.Type_contiguous(4096, MPI_BYTE, &page);
    types[0] = page;
    types[1] = MPI_BYTE;
    if (rc == MPI_SUCCESS)
        rc = real.Type_create_struct(2, lengths, places, types, &pages);
    if (rc != MPI_SUCCESS)
        return rc;
    real.Type_commit(&pages);
    rc = copy_between(from, 1, from_type == MPI_PACKED ? pages : from_type, to, 1,
                      to_type == MPI_PACKED ? pages : to_type);
    real.Type_free(&pages);
    real.Type_free(&page);
    return rc;
}

static size_t piece_of(const struct shim_type *t)
{
    size_t n = t->size ? PIECE / t->size : PIECE;

    return n ? n : 1;
}

int shim_pack(const void *from, size_t count, const struct shim_type *t, void *to)
{
    size_t piece = piece_of(t);
    int rc = MPI_SUCCESS;

    if (t->plain) {
        memcpy(to, from, count * t->size);
        return MPI_SUCCESS;
    }
    for (size_t at = 0; at < count && rc == MPI_SUCCESS && t->size; at += piece) {
        size_t n = count - at < piece ? count - at : piece;
        const char *src = (const char *)from + (ptrdiff_t)at * t->extent;
        char *dst = (char *)to + at * t->size;
        int position = 0;
        if (n * t->size > INT_MAX)
            rc = copy_large(src, t->handle, dst, MPI_PACKED, t->size);
        else if (src == (const char *)MPI_BOTTOM)
            rc = copy_between(src, (int)n, t->handle, dst, (int)(n * t->size), MPI_PACKED);
        else
            rc = real.Pack(src, (int)n, t->handle, dst, (int)(n * t->size), &position,
                           MPI_COMM_SELF);
    }
    return rc;
}

int shim_unpack(const void *from, void *to, size_t count, const struct shim_type *t)
{
    size_t piece = piece_of(t);
    int rc = MPI_SUCCESS;

    if (t->plain) {
        memcpy(to, from, count * t->size);
        return MPI_SUCCESS;
    }
    for (size_t at = 0; at < count && rc == MPI_SUCCESS && t->size; at += piece) {
        size_t n = count - at < piece ? count - at : piece;
        const char *src = (const char *)from + at * t->size;
        char *dst = (char *)to + (ptrdiff_t)at * t->extent;
        int position = 0;
        if (n * t->size > INT_MAX)
            rc = copy_large(src, MPI_PACKED, dst, t->handle, t->size);
        else if (dst == (char *)MPI_BOTTOM)
            rc = copy_between(src, (int)(n * t->size), MPI_PACKED, dst, (int)n, t->handle);
        else
            rc = real.Unpack(src, (int)(n * t->size), &position, dst, (int)n, t->handle,
                             MPI_COMM_SELF);
    }
    return rc;
}
