/* SPDX-License-Identifier: BSD-3-Clause */
/* The nearest of several names, by edit distance. */
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

#define NAME_MAX_LEN 62
#define FAR          1000u

static unsigned distance(const char *a, const char *b)
{
    unsigned row[NAME_MAX_LEN + 2], n = (unsigned)strlen(b);

    if (n > NAME_MAX_LEN)
        return FAR;
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned diag = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            unsigned best = diag + (a[i - 1] != b[j - 1]);
            diag = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

/* At this distance every letter of one of the two was replaced. */
static unsigned nothing_in_common(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);

    return (unsigned)(n > m ? n : m);
}

static void look(const char *text, const char *name, const char **found, unsigned *best)
{
    unsigned d = distance(text, name);

    if (d >= nothing_in_common(text, name))
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
        look(text, known, &found, &best);
    if (more && strlen(text) <= NAME_MAX_LEN)
        look(text, more, &found, &best);
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
