/* SPDX-License-Identifier: BSD-3-Clause */
/* Which is faster on this host: copying through a ring, whose lines the reader touches
 * (bny_touch()) or not, or the kernel's single copy. Measured between two CPUs in about 2 ms,
 * and kept in a file for the next job. Since a host may be busy at that moment, the first jobs
 * measure again, some time apart, and the best of each number is kept: noise makes nothing
 * faster. */
#ifndef BNY_TRANSPORT_SHM_TUNE_H
#define BNY_TRANSPORT_SHM_TUNE_H

#include <stddef.h>
#include <stdint.h>

#define SHM_TUNE_SIZES 3
#define SHM_TUNE_TEXT  512 /* largest file */
#define SHM_TUNE_NEVER (1u << 30)
#define SHM_TUNE_RUNS  8  /* measurements in a file to which none are added any more */
#define SHM_TUNE_AGE_S 30 /* least age of the latest one before another */

/* Nanoseconds, each the minimum of several. The last size is per message of a stream, the
 * others are for single messages. */
struct shm_tune {
    uint64_t host;                      /* fingerprint: another host's numbers are ignored */
    uint32_t runs;                      /* measurements so far, including failed ones */
    uint32_t hand_ns;                   /* a word to the other CPU and back, halved */
    uint32_t ring_ns[SHM_TUNE_SIZES];   /* copied in, copied out and touched */
    uint32_t plain_ns[SHM_TUNE_SIZES];  /* copied in and out */
    uint32_t single_ns[SHM_TUNE_SIZES]; /* process_vm_readv */
};
extern const uint32_t bny_shm_tune_sizes[SHM_TUNE_SIZES];

/* As BANYAN_TUNE sets: reads the file, else measures and writes it. Adds a run to a file of few
 * runs that is old enough, unless another process does so now. Any thread. Returns 1, or 0: no
 * numbers; then *t is zeros, and defaults hold. */
int bny_shm_tune(struct shm_tune *t);
/* Smallest size for which the single copy is faster by at least a quarter; `otherwise` without
 * numbers, SHM_TUNE_NEVER if there is none. */
uint32_t bny_shm_tune_zcopy_min(const struct shm_tune *t, uint32_t otherwise);

/* Should the reader of a ring's line touch it? Not if a stream is faster without, by at least a
 * twentieth. */
int bny_shm_tune_touches(const struct shm_tune *t);

/* Parts of the above, for tests and tools. */
uint64_t bny_shm_tune_host(void);
/* The file that BANYAN_TUNE names. 0: none. */
int bny_shm_tune_path(char *path, size_t cap);
/* The numbers as text, cap >= SHM_TUNE_TEXT. Returns its length. */
size_t bny_shm_tune_format(const struct shm_tune *t, char *text, size_t cap);
/* 1: exactly the output of format() on this host. */
int bny_shm_tune_parse(struct shm_tune *t, const char *text, size_t len, uint64_t host);
/* 1, or 0: no second CPU, or it took too long. */
int bny_shm_tune_measure(struct shm_tune *t);
/* Takes the better of each number, and counts one run more. */
void bny_shm_tune_merge(struct shm_tune *t, const struct shm_tune *latest);

#endif
