/* SPDX-License-Identifier: BSD-3-Clause */
/* Files, and memory that counts as one, below a limit of their size (ulimit -f): who passes it
 * is told by an error, and not by SIGXFSZ, which ends the program. */
#ifndef BNY_BASE_FILESIZE_H
#define BNY_BASE_FILESIZE_H

#include <stddef.h>
#include <sys/types.h>

/* ftruncate(2) and write(2), so: EFBIG beyond the limit. Any thread. */
int bny_file_resize(int fd, off_t bytes);
ssize_t bny_file_write(int fd, const void *data, size_t len);
/* Makes the file, or empties it, and writes it whole. 0; -1 and errno: what it holds is not
 * known. Any thread. */
int bny_file_save(const char *path, const char *text, size_t len);
/* What to do about an error of that, for the end of a sentence; "" where it is none of this. */
const char *bny_file_remedy(int err);
/* May files have so many bytes here? */
int bny_file_may_have(off_t bytes);

#endif
