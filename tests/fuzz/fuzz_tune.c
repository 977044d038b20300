/* SPDX-License-Identifier: BSD-3-Clause */
/* The file with what this host was measured to do: refused, or of this host, with numbers in
 * their bounds, and byte for byte what would be written of them. */
#include "input.h"

#include "transport/shm/shm_tune.h"

#define HOST 0x0123456789abcdefu

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n ? n : 1), again[SHM_TUNE_TEXT];
    struct shm_tune t;
    uint32_t from;

    memcpy(text, data, n);
    if (bny_shm_tune_parse(&t, text, n, HOST)) {
        EXPECT(t.host == HOST && t.hand_ns > 0 && t.runs <= SHM_TUNE_RUNS);
        EXPECT(bny_shm_tune_format(&t, again, sizeof again) == n && !memcmp(text, again, n));
        from = bny_shm_tune_zcopy_min(&t, 1);
        EXPECT(from == SHM_TUNE_NEVER || from == bny_shm_tune_sizes[0] ||
               from == bny_shm_tune_sizes[1] || from == bny_shm_tune_sizes[2]);
    } else {
        EXPECT(t.host == 0 && bny_shm_tune_zcopy_min(&t, 1) == 1);
    }
    free(text);
    return 0;
}
