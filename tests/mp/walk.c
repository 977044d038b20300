/* SPDX-License-Identifier: BSD-3-Clause */
/* Prints which functions of the library a call enters, in the order of their first entry: as
 * addresses from the start of the program, for test_walks.py. The library has to be built with
 * -Dtrace=true, by which each function that is entered calls __cyg_profile_func_enter.
 * Usage: walk BYTES [CODEC]     a sum, made a few times before, on each rank of a job */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <banyan/banyan.h>

#define FUNCTIONS 4096
#define BEFORE    20 /* calls before: connections stand, plans and operations are kept */

extern const char __executable_start;

static _Thread_local int is_on;
static struct {
    const void *of[FUNCTIONS];
    int n;
} entered;

void __cyg_profile_func_enter(void *function, void *site);
void __cyg_profile_func_exit(void *function, void *site);

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function,
                                                                      void *site)
{
    if (!is_on || entered.n == FUNCTIONS)
        return;
    for (int i = 0; i < entered.n; i++)
        if (entered.of[i] == function)
            return;
    entered.of[entered.n++] = function;
}

__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function, void *site)
{
}

static int fail(const char *what)
{
    fprintf(stderr, "walk: %s: %s\n", what, banyan_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 4;
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    float *buf = calloc(1, bytes);
    struct banyan_comm *comm;
    int rc = 0;

    if (argc > 2)
        opts.codec = argv[2];
    if (!buf || banyan_comm_init_env(&comm, NULL) != 0)
        return fail("banyan_comm_init_env");
    for (int i = 0; i <= BEFORE && rc == 0; i++) {
        is_on = i == BEFORE;
        rc = banyan_allreduce(buf, buf, bytes / 4, BANYAN_F32, BANYAN_SUM, comm, &opts);
        is_on = 0;
    }
    if (rc)
        return fail("banyan_allreduce");
    if (banyan_comm_rank(comm) == 0)
        for (int i = 0; i < entered.n; i++)
            printf("0x%zx\n", (size_t)((const char *)entered.of[i] - &__executable_start));
    rc = banyan_comm_finalize(comm);
    banyan_comm_destroy(comm);
    free(buf);
    return rc ? fail("banyan_comm_finalize") : 0;
}
