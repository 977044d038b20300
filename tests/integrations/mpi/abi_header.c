/* SPDX-License-Identifier: BSD-3-Clause */
/* integrations/mpi/abi/mpi.h against the rules by which the standard numbers handles (MPI 5.0,
 * appendix A): each kind has its range, no two are alike, and a type of fixed size has the
 * size's logarithm in bits 3 to 5. scripts/mpi-versions compares it with a maker's own. */
#include <stdio.h>

#include "integrations/mpi/abi/mpi.h"

static int nth, bad;

static void check(int well, const char *what)
{
    printf("%sok %d - %s\n", well ? "" : "not ", ++nth, what);
    bad |= !well;
}

#define N(handle) ((unsigned)(uintptr_t)(handle))

static const unsigned ops[] = { N(MPI_OP_NULL), N(MPI_SUM),     N(MPI_MIN),  N(MPI_MAX),
                                N(MPI_PROD),    N(MPI_BAND),    N(MPI_BOR),  N(MPI_BXOR),
                                N(MPI_LAND),    N(MPI_LOR),     N(MPI_LXOR), N(MPI_MINLOC),
                                N(MPI_MAXLOC),  N(MPI_REPLACE), N(MPI_NO_OP) };
static const unsigned comms[] = { N(MPI_COMM_NULL), N(MPI_COMM_WORLD), N(MPI_COMM_SELF) };
static const unsigned types[] = { N(MPI_DATATYPE_NULL),
                                  N(MPI_AINT),
                                  N(MPI_COUNT),
                                  N(MPI_OFFSET),
                                  N(MPI_PACKED),
                                  N(MPI_SHORT),
                                  N(MPI_INT),
                                  N(MPI_LONG),
                                  N(MPI_LONG_LONG),
                                  N(MPI_UNSIGNED_SHORT),
                                  N(MPI_UNSIGNED),
                                  N(MPI_UNSIGNED_LONG),
                                  N(MPI_UNSIGNED_LONG_LONG),
                                  N(MPI_FLOAT),
                                  N(MPI_C_FLOAT_COMPLEX),
                                  N(MPI_CXX_FLOAT_COMPLEX),
                                  N(MPI_DOUBLE),
                                  N(MPI_C_DOUBLE_COMPLEX),
                                  N(MPI_CXX_DOUBLE_COMPLEX),
                                  N(MPI_LOGICAL),
                                  N(MPI_INTEGER),
                                  N(MPI_REAL),
                                  N(MPI_COMPLEX),
                                  N(MPI_DOUBLE_PRECISION),
                                  N(MPI_DOUBLE_COMPLEX),
                                  N(MPI_CHARACTER),
                                  N(MPI_LONG_DOUBLE),
                                  N(MPI_C_LONG_DOUBLE_COMPLEX),
                                  N(MPI_CXX_LONG_DOUBLE_COMPLEX),
                                  N(MPI_FLOAT_INT),
                                  N(MPI_DOUBLE_INT),
                                  N(MPI_LONG_INT),
                                  N(MPI_2INT),
                                  N(MPI_SHORT_INT),
                                  N(MPI_LONG_DOUBLE_INT),
                                  N(MPI_2REAL),
                                  N(MPI_2DOUBLE_PRECISION),
                                  N(MPI_2INTEGER),
                                  N(MPI_C_BOOL),
                                  N(MPI_CXX_BOOL),
                                  N(MPI_WCHAR),
                                  N(MPI_INT8_T),
                                  N(MPI_UINT8_T),
                                  N(MPI_CHAR),
                                  N(MPI_SIGNED_CHAR),
                                  N(MPI_UNSIGNED_CHAR),
                                  N(MPI_BYTE),
                                  N(MPI_INT16_T),
                                  N(MPI_UINT16_T),
                                  N(MPI_INT32_T),
                                  N(MPI_UINT32_T),
                                  N(MPI_INT64_T),
                                  N(MPI_UINT64_T),
                                  N(MPI_INTEGER1),
                                  N(MPI_INTEGER2),
                                  N(MPI_INTEGER4),
                                  N(MPI_REAL4),
                                  N(MPI_INTEGER8),
                                  N(MPI_REAL8),
                                  N(MPI_COMPLEX8),
                                  N(MPI_REAL16),
                                  N(MPI_COMPLEX16),
                                  N(MPI_COMPLEX32) };

static int apart(const unsigned *all, size_t n, unsigned from, unsigned to)
{
    for (size_t i = 0; i < n; i++) {
        if (all[i] < from || all[i] > to)
            return 0;
        for (size_t k = 0; k < i; k++)
            if (all[i] == all[k])
                return 0;
    }
    return 1;
}

static const struct {
    unsigned type, bytes;
} fixed[] = {
    { N(MPI_INT8_T), 1 },      { N(MPI_UINT8_T), 1 },       { N(MPI_CHAR), 1 },
    { N(MPI_SIGNED_CHAR), 1 }, { N(MPI_UNSIGNED_CHAR), 1 }, { N(MPI_BYTE), 1 },
    { N(MPI_INT16_T), 2 },     { N(MPI_UINT16_T), 2 },      { N(MPI_INT32_T), 4 },
    { N(MPI_UINT32_T), 4 },    { N(MPI_INT64_T), 8 },       { N(MPI_UINT64_T), 8 },
    { N(MPI_INTEGER1), 1 },    { N(MPI_INTEGER2), 2 },      { N(MPI_INTEGER4), 4 },
    { N(MPI_INTEGER8), 8 },    { N(MPI_REAL4), 4 },         { N(MPI_REAL8), 8 },
    { N(MPI_REAL16), 16 },     { N(MPI_COMPLEX8), 8 },      { N(MPI_COMPLEX16), 16 },
    { N(MPI_COMPLEX32), 32 },
};

static int sized(void)
{
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (fixed[i].type < 0x240 || 1u << (fixed[i].type >> 3 & 7) != fixed[i].bytes)
            return 0;
    return 1;
}

int main(void)
{
    printf("TAP version 13\n1..6\n");
    check(apart(ops, sizeof ops / sizeof ops[0], 0x20, 0x3f), "operations");
    check(apart(comms, sizeof comms / sizeof comms[0], 0x100, 0x107), "communicators");
    check(apart(types, sizeof types / sizeof types[0], 0x200, 0x2ff), "types");
    check(sized(), "types_of_fixed_size");
    check(sizeof(MPI_Status) == 8 * sizeof(int), "status");
    check(sizeof(MPI_Count) == 8 && sizeof(MPI_Offset) == 8 &&
              sizeof(MPI_Aint) == sizeof(void *),
          "integers");
    return bad;
}
