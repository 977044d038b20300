/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists of messages against an array that says what must be in them, over random changes. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "transport/msg_list.h"

#define NMSGS 24

static struct bny_msg msgs[NMSGS];

static void expect(const struct bny_msg_list *list, struct bny_msg *const *want, size_t n)
{
    const struct bny_msg *m = list->first;

    cr_assert_eq(bny_msg_list_is_empty(list), n == 0);
    for (size_t i = 0; i < n; i++, m = m->next)
        cr_assert_eq(m, want[i], "place %zu of %zu", i, n);
    cr_assert_null(m, "more than %zu messages", n);
    if (n)
        cr_assert_eq(list->last, want[n - 1]);
}

static void insert(struct bny_msg **want, size_t *n, size_t at, struct bny_msg *msg)
{
    memmove(want + at + 1, want + at, (*n - at) * sizeof *want);
    want[at] = msg;
    ++*n;
}

Test(msg_list, zeros_are_empty)
{
    struct bny_msg_list list = { 0 }, other = { 0 };

    expect(&list, NULL, 0);
    cr_assert_null(bny_msg_list_pop_front(&list));
    bny_msg_list_append(&list, &other);
    expect(&list, NULL, 0);
    list = bny_msg_list_take(&other);
    expect(&list, NULL, 0);
}

Test(msg_list, what_was_taken_out_is_in_no_list)
{
    struct bny_msg_list list = { 0 };

    bny_msg_list_push_back(&list, &msgs[0]);
    bny_msg_list_push_back(&list, &msgs[1]);
    cr_assert_eq(bny_msg_list_pop_front(&list), &msgs[0]);
    cr_assert_null(msgs[0].next);
    bny_msg_list_push_back(&list, &msgs[0]); /* behind the other now */
    expect(&list, (struct bny_msg *[]){ &msgs[1], &msgs[0] }, 2);
}

/* Two lists; messages go back and forth. */
Test(msg_list, random_changes)
{
    struct bny_msg_list list[2];
    struct bny_msg *want[2][NMSGS], *spare[NMSGS];
    size_t n[2] = { 0 }, nspare = NMSGS, at;
    uint64_t rng = 0x5eed;

    bny_msg_list_init(&list[0]);
    bny_msg_list_init(&list[1]);
    for (size_t i = 0; i < NMSGS; i++)
        spare[i] = &msgs[i];
    for (int round = 0; round < 20000; round++) {
        size_t l = bny_rng_below(&rng, 2);

        switch (bny_rng_below(&rng, 20) ? 2 + bny_rng_below(&rng, 5) : bny_rng_below(&rng, 2)) {
        case 0:
            bny_msg_list_append(&list[l], &list[!l]);
            memcpy(want[l] + n[l], want[!l], n[!l] * sizeof *want[l]);
            n[l] += n[!l];
            n[!l] = 0;
            break;
        case 1:
            if (n[!l])
                break;
            list[!l] = bny_msg_list_take(&list[l]);
            memcpy(want[!l], want[l], n[l] * sizeof *want[l]);
            n[!l] = n[l];
            n[l] = 0;
            break;
        case 2:
        case 3:
            if (!n[l])
                break;
            cr_assert_eq(bny_msg_list_pop_front(&list[l]), want[l][0]);
            spare[nspare++] = want[l][0];
            memmove(want[l], want[l] + 1, --n[l] * sizeof *want[l]);
            break;
        case 4:
            if (!nspare)
                break;
            bny_msg_list_push_front(&list[l], spare[--nspare]);
            insert(want[l], &n[l], 0, spare[nspare]);
            break;
        case 5:
            if (!nspare)
                break;
            at = bny_rng_below(&rng, n[l] + 1);
            bny_msg_list_insert(&list[l], at ? want[l][at - 1] : NULL, spare[--nspare]);
            insert(want[l], &n[l], at, spare[nspare]);
            break;
        default:
            if (!nspare)
                break;
            bny_msg_list_push_back(&list[l], spare[--nspare]);
            insert(want[l], &n[l], n[l], spare[nspare]);
        }
        expect(&list[0], want[0], n[0]);
        expect(&list[1], want[1], n[1]);
    }
}
