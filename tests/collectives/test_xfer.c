/* SPDX-License-Identifier: BSD-3-Clause */
/* The rule by which both ends agree who waits for whom: where a sender waits for CTS, its
 * receiver announces. Each end sees its own endpoint: what it can do and its own sizes. */
#include <criterion/criterion.h>

#include "collectives/xfer/xfer.h"

static const uint32_t sizes[] = { 4096, 4097, 8192, 16384, 65536 },
                      zcopy[] = { 4096, 8192, 16384, 1u << 20, UINT32_MAX };
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static struct bny_ep ends[2];
static struct bny_transport_ops ops[2];
static long cases, waits, both;

/* The sender has len bytes; the receiver knows that at most `most` come. */
static void check(size_t len, size_t most, int placeable)
{
    int needs = bny_xfer_needs_cts(&ends[0], len, placeable),
        announces = bny_xfer_announces(&ends[1], most, placeable);

    cases++;
    waits += needs;
    both += needs && announces;
    cr_assert(
        !needs || announces,
        "%zu of at most %zu bytes, placeable %d: the sender (caps %x, eager %u, zcopy %u) "
        "waits, the receiver (caps %x, eager %u) says nothing",
        len, most, placeable, ops[0].caps, ends[0].eager_max, ends[0].zcopy_min, ops[1].caps,
        ends[1].eager_max);
}

static void all_lengths(int placeable)
{
    static const size_t around[] = { 4096, 8192, 16384, 65536, 1u << 20 };

    for (size_t i = 0; i < COUNT(around); i++)
        for (int d = -1; d <= 1; d++) {
            size_t len = around[i] + (size_t)d;

            check(len, len, placeable);
            check(len, len + 1000, placeable); /* an encoded chunk is shorter than it may be */
        }
    check(0, 0, placeable);
    check(1, 100000, placeable);
}

/* Caps are a transport's, so both ends have the same. That one can read the other's memory
 * (zcopy_min) does not mean that the other can. */
Test(xfer, who_is_waited_for_announces)
{
    const unsigned d = BNY_TP_DESC;

    for (unsigned caps = 0; caps < 2; caps++)
        for (size_t e = 0; e < COUNT(sizes); e++)
            for (size_t z0 = 0; z0 < COUNT(zcopy); z0++)
                for (size_t z1 = 0; z1 < COUNT(zcopy); z1++)
                    for (int placeable = 0; placeable < 2; placeable++) {
                        ops[0].caps = ops[1].caps = (caps ? d : 0) | BNY_TP_PUT;
                        if (caps && zcopy[z0] <= 4096)
                            continue; /* shorter ones no transport reads where they lie */
                        for (int r = 0; r < 2; r++) {
                            ends[r].ops = &ops[r];
                            ends[r].eager_max = sizes[e];
                        }
                        ends[0].zcopy_min = zcopy[z0];
                        ends[1].zcopy_min = zcopy[z1];
                        all_lengths(placeable);
                    }
    cr_assert_gt(waits, 1000, "of %ld cases %ld wait: the test shows little", cases, waits);
    cr_assert_eq(waits, both);
}

/* A short message waits for nobody. */
Test(xfer, eager_messages_need_no_ready)
{
    ends[0].ops = &ops[0];
    for (unsigned caps = 0; caps < 2; caps++)
        for (size_t e = 0; e < COUNT(sizes); e++) {
            ops[0].caps = caps ? BNY_TP_DESC : 0;
            ends[0].eager_max = sizes[e];
            ends[0].zcopy_min = UINT32_MAX;
            for (size_t len = 0; len <= sizes[e]; len += 1023)
                cr_assert_not(bny_xfer_needs_cts(&ends[0], len, 1));
            cr_assert(bny_xfer_needs_cts(&ends[0], sizes[e] + 1, 1));
            cr_assert_eq(bny_xfer_needs_cts(&ends[0], sizes[e] + 1, 0), !caps);
        }
}
