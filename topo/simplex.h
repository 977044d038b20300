/* SPDX-License-Identifier: BSD-3-Clause */
/* A small linear program solver for column generation: maximise c x, A x <= b, x >= 0 with b >=
 * 0, with columns added later. Doubles: callers verify the parts of the result that they use
 * exactly. */
#ifndef BNY_TOPO_SIMPLEX_H
#define BNY_TOPO_SIMPLEX_H

struct bny_column { /* a sparse column of A and its coefficient in the objective */
    int n;
    int *row;
    double *a, cost;
};

struct bny_simplex {
    int rows, ncols, cols_cap;
    struct bny_column *cols;
    double *rhs;     /* [rows] slightly perturbed, against cycling */
    double *exact;   /* [rows] as given */
    double *inverse; /* [rows * rows] of the basis, row major */
    double *x;       /* [rows] values of the basic variables */
    double *price;   /* [rows] dual values: after solve, the other program's solution */
    int *basic;      /* [rows] column in the basis; -1 - i: slack of row i */
    char *in_basis;  /* [cols_cap] */
    double *work;    /* [rows] */
    int pivots;
};

/* rhs[i] >= 0. 0 or -BANYAN_ENOMEM. */
int bny_simplex_init(struct bny_simplex *s, int rows, const double *rhs);
void bny_simplex_free(struct bny_simplex *s);
/* Adds a column of n entries (copied). Returns its index, or -BANYAN_ENOMEM. */
int bny_simplex_column(struct bny_simplex *s, int n, const int *row, const double *a,
                       double cost);
/* Continues from the current basis to the optimum. Returns 0; -BANYAN_ENOTSUP if it is
 * unbounded or does not terminate. */
int bny_simplex_solve(struct bny_simplex *s);
/* Value of a column in the basic solution for the given right-hand side. values: [ncols] */
void bny_simplex_values(const struct bny_simplex *s, double *values);

#endif
