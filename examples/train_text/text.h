/* SPDX-License-Identifier: BSD-3-Clause */
/* A text as numbers of characters. */
#ifndef TEXT_H
#define TEXT_H

#include <stddef.h>

struct text {
    unsigned char *at; /* [n] numbers from 0 to vocab - 1 */
    size_t n, ntrain;  /* the first ntrain are to learn from, the others to test on */
    int vocab;
    unsigned char letter[256]; /* [vocab] */
};

/* A file, or the plain files of a folder in order of their names (links left out). 0, or -1
 * after a message. at is freed by the caller. */
int text_load(struct text *t, const char *path);

#endif
