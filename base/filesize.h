/* SPDX-License-Identifier: BSD-3-Clause */
/* Files, and memory that counts as files, under a size limit (ulimit -f): exceeding it is an
 * error, instead of SIGXFSZ, which ends the program. */
#ifndef BNY_BASE_FILESIZE_H
#define BNY_BASE_FILESIZE_H

#include <stddef.h>
#include <sys/types.h>

/* ftruncate(2) and write(2) with EFBIG beyond the limit. Any thread. */
int bny_file_resize(int fd, off_t bytes);
ssize_t bny_file_write(int fd, const void *data, size_t len);
/* Creates or empties the file, and writes all of it. 0; -1 and errno: its content is undefined.
 * Any thread. */
int bny_file_save(const char *path, const char *text, size_t len);
/* The remedy for an error of these calls, for the end of a sentence; "" for other errors. */
const char *bny_file_remedy(int err);
/* Does the limit allow files of so many bytes? */
int bny_file_may_have(off_t bytes);

#endif
