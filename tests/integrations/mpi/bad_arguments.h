/* SPDX-License-Identifier: BSD-3-Clause */
/* Wrong arguments, for cases.c. */
#ifndef BNY_TESTS_MPI_BAD_ARGUMENTS_H
#define BNY_TESTS_MPI_BAD_ARGUMENTS_H

/* Writes PATH.RANK, a line a call. 1: the communicator works afterwards. n <= 8. */
int bad_arguments(const char *path, int rank, int n);

#endif
