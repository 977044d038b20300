/* SPDX-License-Identifier: BSD-3-Clause */
/* The features of the library together, at random. BANYAN_TEST_SEED repeats a run,
 * BANYAN_TEST_SCALE makes it longer. */
#include "tests/mp/table.h"

static struct mp_row shm[] = {
    { "product", "shm", 1, "60" },
    { "product", "shm", 2, "150" },
    { "product", "shm", 3, "150" },
    { "product", "shm", 5, "60" },
    { "product", "shm", 4, "80", 0, { "BANYAN_CMA=0", "BANYAN_ENCODE_THREADS=2" } },
    { "product", "shm", 3, "80", 0, { "BANYAN_TOPO=ring:3" } },
    { "product", "shm", 4, "60", 0, { "BANYAN_TEST_CPUS=16", "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(product, features_together_on_shm, shm)

/* A slow link, by word: codecs that are only permitted are used. */
static struct mp_row tcp[] = {
    { "product", "tcp", 2, "100", 0, { "BANYAN_LINK_GBPS=1" } },
    { "product", "tcp", 3, "100", 0, { "BANYAN_LINK_GBPS=1", "BANYAN_CODEC_CRC=1" } },
    { "product", "tcp", 4, "60" },
    { "product",
      "tcp",
      3,
      "60",
      0,
      { "BANYAN_LINK_GBPS=1", "BANYAN_CODEC=int8", "BANYAN_ENCODE_THREADS=2" } },
};
MP_TABLE(product, features_together_on_tcp, tcp)
