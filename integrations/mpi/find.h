/* SPDX-License-Identifier: BSD-3-Clause */
/* Which MPI library the process has loaded. Both choose.c and the interposers ask. */
#ifndef BNY_MPI_FIND_H
#define BNY_MPI_FIND_H

#pragma GCC visibility push(hidden)

struct bny_mpi_lib {
    char path[1024];  /* of the first that was loaded; "": the program itself */
    char soname[100]; /* what it calls itself */
    int count;        /* MPI libraries in the process */
    int has_symbol;   /* the first has the function that was asked for */
};

/* An MPI library is what defines PMPI_Get_library_version, whatever its file is called. Also
 * looks whether it defines `symbol` (may be NULL). Calls nothing that waits for the dynamic
 * linker's work: it runs inside relocation, too. */
void bny_mpi_find(struct bny_mpi_lib *out, const char *symbol);
/* Is it the library of MPI 5's standard interface, by its name? Whoever made it. */
int bny_mpi_is_standard(const struct bny_mpi_lib *lib);
/* "mpich", "openmpi", "abi" (MPI 5's standard one): whose binary interface the library has, by
 * what it says of itself; NULL: none that is known here. `said` gets its first line. */
const char *bny_mpi_family(const struct bny_mpi_lib *lib, char *said, int cap);

#pragma GCC visibility pop
#endif
