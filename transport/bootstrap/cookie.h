/* SPDX-License-Identifier: BSD-3-Clause */
/* The user's cookie: 32 random bytes that only the user's processes can read. It is the job's
 * secret if the launcher has no private channel to the ranks. */
#ifndef BNY_BOOTSTRAP_COOKIE_H
#define BNY_BOOTSTRAP_COOKIE_H

#include <stddef.h>
#include <stdint.h>

#define BNY_COOKIE_BYTES 32
#define BNY_COOKIE_PATH  512

/* Reads the cookie, and creates it if there is none; path: its location. Many processes, also
 * on hosts that share the home, may do so at once: all get the same. Returns 0, or
 * -BANYAN_ECONFIG (a file that other users could have written or read, or no place for one). */
int bny_cookie_read(uint8_t out[BNY_COOKIE_BYTES], char path[BNY_COOKIE_PATH]);

#endif
