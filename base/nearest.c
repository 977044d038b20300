/* SPDX-License-Identifier: BSD-3-Clause */
/* The nearest of several names, by edit distance. */
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

#define NAME_MAX_LEN 62
#define FAR          1000u

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Number of missing, extra and wrong letters, and of transposed pairs. */
static unsigned distance(const char *a, const char *b)
{
    unsigned rows[3][NAME_MAX_LEN + 2], n = (unsigned)strlen(b), i;

    if (n > NAME_MAX_LEN)
        return FAR;
    for (unsigned j = 0; j <= n; j++)
        rows[0][j] = j;
    for (i = 1; a[i - 1]; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];

        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            row[j] = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = smaller(row[j], smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = smaller(row[j], before[j - 2] + 1);
        }
    }
    return rows[(i - 1) % 3][n];
}

/* Names farther apart than this are unrelated. */
static unsigned far_for(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);

    return (unsigned)((n > m ? n : m) / 3);
}

static void nearest_look(const char *text, const char *name, const char **found, unsigned *best)
{
    unsigned d = distance(text, name);

    if (d > far_for(text, name))
        return;
    if (d < *best || (d == *best && strlen(name) < strlen(*found))) {
        *best = d;
        *found = name;
    }
}

static const char *nearest(const char *text, bny_name_fn name, const char *more)
{
    const char *found = NULL, *known;
    unsigned best = FAR;

    for (size_t i = 0; strlen(text) <= NAME_MAX_LEN && (known = name(i)); i++)
        nearest_look(text, known, &found, &best);
    if (more && strlen(text) <= NAME_MAX_LEN)
        nearest_look(text, more, &found, &best);
    return found;
}

const char *bny_did_you_mean(const char *text, bny_name_fn name, const char *more)
{
    static _Thread_local char said[NAME_MAX_LEN + 32];
    const char *found = nearest(text, name, more);

    said[0] = '\0';
    if (found)
        snprintf(said, sizeof said, " (did you mean %s?)", found);
    return said;
}
