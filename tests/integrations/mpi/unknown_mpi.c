/* SPDX-License-Identifier: BSD-3-Clause */
/* An MPI library that no interposer is for, with the little that unknown_program.c calls. One
 * rank. Compiled twice: as libmpi_abi.so.0 it has MPI 5's standard interface, or what the
 * environment says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)
int PMPI_Get_library_version(char *text, int *len);
int MPI_Init(int *argc, char ***argv);
int MPI_Allreduce(const void *in, void *out, int count, int type, int op, int comm);
int MPI_Finalize(void);

int PMPI_Get_library_version(char *text, int *len)
{
    *len = sprintf(text, "Nobody's MPI 1.0");
    return 0;
}

#ifdef ABI
int PMPI_Abi_get_version(int *major, int *minor);

int PMPI_Abi_get_version(int *major, int *minor)
{
    const char *is = getenv("TEST_ABI_VERSION");

    *major = is ? atoi(is) : 1;
    *minor = 0;
    return 0;
}
#endif

int MPI_Init(int *argc, char ***argv)
{
    return 0;
}

int MPI_Allreduce(const void *in, void *out, int count, int type, int op, int comm)
{
    memcpy(out, in, (size_t)count);
    return 0;
}

int MPI_Finalize(void)
{
    return 0;
}
