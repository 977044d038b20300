/* SPDX-License-Identifier: BSD-3-Clause */
/* Helpers of the bootstrap's tests. */
#include "support.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "transport/bootstrap/id.h"

static atomic_int caught;
static const char *wanted;

uint64_t test_seed(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20240611;

    cr_log_info("BANYAN_TEST_SEED=%llu", (unsigned long long)seed);
    return seed;
}

void test_fill(uint64_t *seed, void *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] = (uint8_t)bny_rng_next(seed);
}

void test_round_over(void)
{
    usleep(50);
}

int test_raw_connect(const struct bny_id *id)
{
    struct bny_addr addr;
    struct pollfd p = { .events = POLLOUT };

    bny_id_addr(id, &addr);
    p.fd = bny_net_connect(&addr);
    cr_assert_geq(p.fd, 0);
    cr_assert_eq(poll(&p, 1, 5000), 1);
    return p.fd;
}

static void count_line(void *ctx, enum banyan_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    if (strstr(line, wanted))
        atomic_fetch_add(&caught, 1);
}

void test_catch_log(const char *text)
{
    wanted = text;
    atomic_store(&caught, 0);
    banyan_set_log(count_line, NULL, BANYAN_LOG_INFO);
}

int test_caught(void)
{
    return atomic_load(&caught);
}

void test_on_host(int rank, int nranks, int hosts, int block)
{
    char text[16];
    int host = block ? rank / block : rank % hosts, local = block ? rank % block : rank / hosts;
    int count = block ? block : nranks / hosts + (host < nranks % hosts);
    const struct {
        const char *name;
        int value;
    } vars[] = { { "RANK", rank },
                 { "WORLD_SIZE", nranks },
                 { "GROUP_RANK", host },
                 { "LOCAL_RANK", local },
                 { "LOCAL_WORLD_SIZE",
                   block && (host + 1) * block > nranks ? nranks - host * block : count } };

    for (size_t i = 0; i < sizeof vars / sizeof vars[0]; i++) {
        snprintf(text, sizeof text, "%d", vars[i].value);
        setenv(vars[i].name, text, 1);
    }
}
