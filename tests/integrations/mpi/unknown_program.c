/* SPDX-License-Identifier: BSD-3-Clause */
/* A program of unknown_mpi.c. */
#include <stdio.h>

int MPI_Init(int *argc, char ***argv);
int MPI_Allreduce(const void *in, void *out, int count, int type, int op, int comm);
int MPI_Finalize(void);

int main(void)
{
    char in[2] = "x", out[2] = "";

    MPI_Init(NULL, NULL);
    MPI_Allreduce(in, out, 2, 0, 0, 0);
    MPI_Finalize();
    puts(out[0] == 'x' ? "ok" : "wrong");
    return 0;
}
