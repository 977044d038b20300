/* SPDX-License-Identifier: BSD-3-Clause */
/* Helpers of the bootstrap's tests: seeds, raw clients, the last error. */
#ifndef BNY_TESTS_BOOTSTRAP_SUPPORT_H
#define BNY_TESTS_BOOTSTRAP_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/conn.h"

/* BANYAN_TEST_SEED or a fixed number; printed. */
uint64_t test_seed(void);
void test_fill(uint64_t *seed, void *data, size_t len);
/* A blocking plain TCP connection to the id's root; the fd. */
int test_raw_connect(const struct bny_id *id);
/* Sets the environment as a launcher would, for the rank that starts next: block is how many
 * follow each other on a host; 0: they go round the hosts. */
void test_on_host(int rank, int nranks, int hosts, int block);
/* Between two rounds of polling all ranks: leaves the core to other tests for a moment. */
void test_round_over(void);
/* Swallows log lines and counts those that contain text. */
void test_catch_log(const char *text);
int test_caught(void);

#endif
