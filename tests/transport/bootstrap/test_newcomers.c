/* SPDX-License-Identifier: BSD-3-Clause */
/* Strangers call the port where newcomers come as fast as the rank there accepts: each of its
 * calls returns nevertheless, and the newcomer gets its place. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/net.h"
#include "transport/bootstrap/newcomers.h"

#define ENDLESS 1000 /* accepts in one call */

static struct bny_addr
    flooded;        /* before each accept comes another connection; family 0: none */
static int accepts; /* since the latest call */

int __real_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    if (flooded.family) {
        cr_assert_lt(++accepts, ENDLESS, "one call accepts for ever");
        close(bny_net_connect(&flooded));
    }
    return __real_accept4(fd, addr, len, flags);
}

Test(newcomers, a_flood_of_strangers_lets_calls_return, .timeout = 60)
{
    struct bny_newcomer_place first = { .rank = 2, .nranks = 3 }, place = { 0 };
    struct bny_newcomers *n;
    struct bny_arrival *a;
    struct bny_id id;
    int rc, got = 0;

    cr_assert_eq(bny_id_create(&id, "lo", "", 1), 0, "%s", banyan_last_error());
    first.id = id;
    cr_assert_eq(bny_newcomers_start(&n, &id, 1, 0), 0, "%s", banyan_last_error());
    flooded = bny_addr_loopback(id.port);
    cr_assert_eq(bny_arrival_start(&a, &id, 0), 0, "%s", banyan_last_error());
    do {
        accepts = 0;
        cr_assert_eq(bny_arrival_progress(a, &place), 0, "%s", banyan_last_error());
        rc = bny_newcomers_progress(n);
        cr_assert_geq(rc, 0, "%s", banyan_last_error());
    } while (rc == 0);
    flooded.family = 0;
    cr_assert_eq(bny_newcomers_place(n, &first), 0, "%s", banyan_last_error());
    while (!got) {
        got = bny_arrival_progress(a, &place);
        cr_assert_geq(got, 0, "%s", banyan_last_error());
    }
    cr_assert_eq(place.rank, 2);
    bny_arrival_free(a);
    bny_newcomers_free(n);
}
