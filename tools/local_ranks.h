/* SPDX-License-Identifier: BSD-3-Clause */
/* Starts n ranks of a program on this machine and looks after them until they have ended. Used
 * by banyan_run and by `banyan_perf -P n`. The caller must be single-threaded. */
#ifndef BNY_TOOLS_LOCAL_RANKS_H
#define BNY_TOOLS_LOCAL_RANKS_H

struct bny_local_ranks {
    const char *tool; /* prefix of our own messages on stderr */
    const char *exe;  /* file to execute; NULL: argv[0], searched in PATH */
    int nranks;
    double timeout_s; /* of the whole job; 0: none */
    double grace_s;   /* for the other ranks once one has failed; 0: 5 s, negative: none */
    int keep_going;   /* 1: the others run on, as long as they like */
    int restarts;     /* so often each rank that fails is started again; then as keep_going,
                       * which goes with it */
    int bind;         /* 1: rank i runs on the (i mod ncpus)-th CPU that this process may use */
    const struct bny_rank_binding
        *bindings;      /* [nranks] else: rank i runs on these CPUs; NULL: where it likes */
    int tag;            /* 1: every line that a rank prints begins with "[rank] " */
    const char *output; /* what rank R prints goes to files OUTPUT.R.out and .err; NULL: to ours
                         */
};

/* Each rank gets BANYAN_ID, BANYAN_RANK, BANYAN_WORLD_SIZE, and rank 0 the root's listening
 * socket in BANYAN_LISTEN_FD. Standard input is rank 0's; others read from /dev/null. Ranks
 * have no signal blocked and none ignored (but SIGHUP, where we ignore it), whatever we
 * inherited, and our limits. SIGINT and SIGTERM are passed on. When one rank fails, those that
 * are still in init are told, and the others have grace_s to end by themselves. Ranks die with
 * this process. Returns the exit status for the shell: 0, the first failing rank's (128 +
 * signal when it was killed), or with keep_going how many failed (100: or more); 124 after the
 * timeout, 125 when the ranks could not be started. A rank that is started again gets
 * BANYAN_RESTART_COUNT, and joins by what members of the job post on a board that all of them
 * inherit (BANYAN_BOARD_FD). */
int bny_local_ranks_run(const struct bny_local_ranks *job, char *const argv[]);

/* Binds the calling thread to the (rank mod ncpus)-th CPU that it may use. */
void bny_local_bind(int rank);

#endif
