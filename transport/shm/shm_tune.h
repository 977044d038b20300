/* SPDX-License-Identifier: BSD-3-Clause */
/* What this host does faster: copying through a ring, whose lines are touched (bny_touch()) or
 * not as they are read, or the kernel's single copy. Measured
 * between two of its CPUs, in about two milliseconds, and kept in a file for the next job. A
 * host may be busy at that moment, so the first jobs measure again, some time apart, and the
 * best of each number is kept: what disturbs makes nothing faster. */
#ifndef BNY_TRANSPORT_SHM_TUNE_H
#define BNY_TRANSPORT_SHM_TUNE_H

#include <stddef.h>
#include <stdint.h>

#define SHM_TUNE_SIZES 3
#define SHM_TUNE_TEXT  512 /* bytes of the file, at most */
#define SHM_TUNE_NEVER (1u << 30)
#define SHM_TUNE_RUNS  8  /* measurements in a file that is not added to any more */
#define SHM_TUNE_AGE_S 30 /* since the latest, before another one */

/* Nanoseconds, each the least of several. The last size is that of each message of a stream,
 * the others of messages that come alone. */
struct shm_tune {
    uint64_t host;                      /* fingerprint: numbers of another one are not used */
    uint32_t runs;                      /* measurements so far; failed ones, too */
    uint32_t hand_ns;                   /* a word to the other CPU and one back, halved */
    uint32_t ring_ns[SHM_TUNE_SIZES];   /* copied in, copied out and touched */
    uint32_t plain_ns[SHM_TUNE_SIZES];  /* copied in and out */
    uint32_t single_ns[SHM_TUNE_SIZES]; /* process_vm_readv */
};
extern const uint32_t bny_shm_tune_sizes[SHM_TUNE_SIZES];

/* As BANYAN_TUNE says: from the file, else measured, and then kept there. A file of few runs,
 * not written lately, is added to, unless another process does so just now. Any thread. Returns
 * 1, or 0 when there are no numbers: then *t is zeros, and defaults hold. */
int bny_shm_tune(struct shm_tune *t);
/* From so many bytes on the single copy is the faster one, by a quarter at least; `otherwise`
 * without numbers, SHM_TUNE_NEVER where it never is. */
uint32_t bny_shm_tune_zcopy_min(const struct shm_tune *t, uint32_t otherwise);

/* Shall who reads a line of the ring touch it? Not where a stream is faster without, by a
 * twentieth at least. */
int bny_shm_tune_touches(const struct shm_tune *t);

/* The parts of it, for tests and tools. */
uint64_t bny_shm_tune_host(void);
/* The file that BANYAN_TUNE names. 0: none. */
int bny_shm_tune_path(char *path, size_t cap);
/* The numbers as text, cap >= SHM_TUNE_TEXT. Returns its length. */
size_t bny_shm_tune_format(const struct shm_tune *t, char *text, size_t cap);
/* 1: exactly what format() writes, of this host. */
int bny_shm_tune_parse(struct shm_tune *t, const char *text, size_t len, uint64_t host);
/* 1, or 0 when there is no second CPU, or it took too long. */
int bny_shm_tune_measure(struct shm_tune *t);
/* The better of each number, and one run more. */
void bny_shm_tune_merge(struct shm_tune *t, const struct shm_tune *latest);

#endif
