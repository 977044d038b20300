/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory for keys: core dumps leave it out, and the system does not swap it where the limit of
 * locked memory allows that. A page serves many, so that keys of thousands of connections need
 * few mappings. */
#ifndef BNY_BASE_SECRET_H
#define BNY_BASE_SECRET_H

#include <stdint.h>

#define BNY_SECRET_ROOM 64

/* BNY_SECRET_ROOM bytes, all 0, aligned to as many. NULL: no memory. Any thread, also in a
 * child of fork. */
void *bny_secret_new(void);
/* Wipes it. Takes NULL. */
void bny_secret_free(void *secret);
/* Behind functions of libsodium that made a key: wipes what they left on the stack. */
void bny_secret_forget(void);

#endif
