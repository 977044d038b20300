/* SPDX-License-Identifier: BSD-3-Clause */
/* Settings: compared. */
#include "training/settings.h"

#include <string.h>

#include "banyan/banyan.h"
#include "base/assert.h"
#include "base/err.h"
#include "training/tensors.h"

int bny_settings_agree(struct banyan_comm *comm, const struct bny_setting *s, size_t n,
                       const char *what)
{
    uint64_t root[BNY_SETTINGS_MAX], first = UINT64_MAX;
    int rc;

    BNY_ASSERT(n <= BNY_SETTINGS_MAX);
    for (size_t i = 0; i < n; i++)
        root[i] = s[i].value;
    rc = banyan_broadcast(root, n, BANYAN_U64, 0, comm, &bny_exact);
    for (size_t i = n; i-- > 0;)
        if (root[i] != s[i].value)
            first = (uint64_t)i << 32 | (uint64_t)banyan_comm_rank(comm);
    if (rc == 0)
        rc = banyan_allreduce(&first, &first, 1, BANYAN_U64, BANYAN_MIN, comm, &bny_exact);
    if (rc < 0 || first == UINT64_MAX)
        return rc;
    return bny_fail(BANYAN_EMISMATCH,
                    "%s: %s differs between ranks: rank %d has another than "
                    "rank 0",
                    what, s[first >> 32].name, (int)(first & UINT32_MAX));
}

uint64_t bny_settings_hash(const struct bny_setting *s, size_t n, uint64_t more)
{
    uint64_t hash = 14695981039346656037u ^ more; /* FNV-1a, of 8 bytes at a time */

    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ s[i].value) * 1099511628211u;
        hash ^= hash >> 29;
    }
    return hash;
}

uint64_t bny_setting_of_double(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint64_t bny_setting_of_text(const char *text)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}
