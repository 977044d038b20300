/* SPDX-License-Identifier: BSD-3-Clause */
/* Starts ranks on several hosts by the launcher that is installed there. banyan_run alone. */
#ifndef BNY_TOOLS_LAUNCHER_H
#define BNY_TOOLS_LAUNCHER_H

struct bny_launcher_job {
    const char *hosts;    /* "a:4,b": hosts and their ranks, 1 without a number; or NULL */
    const char *hostfile; /* the same in lines, also as "a slots=4"; or NULL */
    const char *launcher; /* "prterun", "hydra", "orterun", "srun"; NULL: the first installed */
    int nranks;           /* 0: as many as the hosts have */
    double timeout_s;     /* 0: none */
    int tag;              /* lines begin with the rank, in the launcher's way */
    const char *output;   /* what ranks print goes to files: PREFIX.RANK.out and .err, or with
                           * Open MPI's launchers as these name them; or NULL */
    char **variables;     /* [nvariables] NAME or NAME=value, for the ranks' environment */
    int nvariables;
};

/* Becomes the launcher of argv, without the variables by which another launcher made this
 * process a rank. The launcher passes on the ranks' words, gives standard input to rank 0, and
 * has an exit status of its own. Returns only after an error, which it has printed: 2 wrong
 * arguments, 125 no launcher. */
int bny_launcher_exec(const struct bny_launcher_job *job, char *const argv[]);

#endif
