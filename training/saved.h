/* SPDX-License-Identifier: BSD-3-Clause */
/* How the objects of this layer save their state: a head with kind, version, length and
 * checksum, then what the object puts, little endian. One function of an object walks its
 * members with bny_saved_bytes(), for saving, loading and counting alike:
 *
 *     static void walk(struct bny_saved *s, struct thing *t)
 *     {
 *         bny_saved_bytes(s, &t->step, sizeof t->step);
 *         bny_saved_bytes(s, t->sum, t->n * sizeof *t->sum);
 *     }
 *
 * A loader walks a copy first where half a load would be wrong. */
#ifndef BNY_TRAINING_SAVED_H
#define BNY_TRAINING_SAVED_H

#include <stddef.h>
#include <stdint.h>

enum bny_saved_what { BNY_SAVED_COUNT, BNY_SAVED_WRITE, BNY_SAVED_READ };

struct bny_saved {
    enum bny_saved_what what;
    char *at; /* of the caller's buffer; not written when reading */
    size_t cap, len;
    uint32_t kind;
    int short_of; /* more was asked for than there is */
};

/* kind: four letters of the object. Counting. */
void bny_saved_count(struct bny_saved *s, uint32_t kind);
/* 0, or -BANYAN_EINVAL: cap is too small for need bytes (what counting gave). */
int bny_saved_write(struct bny_saved *s, uint32_t kind, void *buf, size_t cap, size_t need);
/* 0, or -BANYAN_EINVAL: these bytes are none that an object of this kind saved. name: of the
 * function called. */
int bny_saved_read(struct bny_saved *s, uint32_t kind, const void *buf, size_t bytes,
                   const char *name);
/* The next n bytes of state: counted, written, or read into p (zeros where there are too few).
 */
void bny_saved_bytes(struct bny_saved *s, void *p, size_t n);
/* Counting: the bytes that saving needs. Writing: closes the head. Reading: 0, or
 * -BANYAN_EINVAL where lengths do not fit. */
int bny_saved_end(struct bny_saved *s, size_t *bytes);

#endif
