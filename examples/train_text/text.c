/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads text, and numbers the characters that occur. */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int append(struct text *t, const char *path)
{
    FILE *f = fopen(path, "rb");
    unsigned char part[65536];
    size_t got = 0;

    while (f && (got = fread(part, 1, sizeof part, f)) > 0) {
        unsigned char *more = realloc(t->at, t->n + got);

        if (!more)
            break;
        t->at = more;
        memcpy(t->at + t->n, part, got);
        t->n += got;
    }
    if (!f || got > 0 || ferror(f)) {
        fprintf(stderr, "cannot read %s: %s\n", path, strerror(errno));
        if (f)
            fclose(f);
        return -1;
    }
    fclose(f);
    return 0;
}

static int append_folder(struct text *t, const char *path)
{
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort), rc = 0;

    for (int i = 0; i < n; i++) {
        struct stat st;
        char file[4096];

        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (rc == 0 && lstat(file, &st) == 0 && S_ISREG(st.st_mode))
            rc = append(t, file);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return rc;
}

/* Every tenth piece of 2048 characters goes to the end, in order: what is learnt from and what
 * is tested on are of all parts of the text alike. */
static int set_apart(struct text *t)
{
    enum { PIECE = 2048, OF = 10 };
    unsigned char *kept = malloc(t->n + 1);
    size_t n = 0;

    if (!kept)
        return -1;
    for (int apart = 0; apart < 2; apart++)
        for (size_t at = 0; at < t->n; at += PIECE) {
            size_t len = t->n - at < PIECE ? t->n - at : PIECE;

            if ((at / PIECE % OF == OF - 1) != apart)
                continue;
            memcpy(kept + n, t->at + at, len);
            n += len;
            t->ntrain = apart ? t->ntrain : n;
        }
    free(t->at);
    t->at = kept;
    return 0;
}

int text_load(struct text *t, const char *path)
{
    int number[256];
    struct stat st;
    int rc;

    memset(t, 0, sizeof *t);
    if (stat(path, &st) != 0) {
        fprintf(stderr, "cannot read the text %s: %s; name a file or a folder with --text\n",
                path, strerror(errno));
        return -1;
    }
    rc = S_ISDIR(st.st_mode) ? append_folder(t, path) : append(t, path);
    if (rc != 0)
        return rc;
    memset(number, 0, sizeof number);
    for (size_t i = 0; i < t->n; i++)
        number[t->at[i]] = 1;
    for (int c = 0; c < 256; c++)
        if (number[c]) {
            number[c] = t->vocab;
            t->letter[t->vocab++] = (unsigned char)c;
        }
    for (size_t i = 0; i < t->n; i++)
        t->at[i] = (unsigned char)number[t->at[i]];
    return set_apart(t);
}
