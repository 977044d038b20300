/* SPDX-License-Identifier: BSD-3-Clause */
/* Saved states: head, checksum, and the bytes between. */
#include "training/saved.h"

#include <string.h>

#include "base/crc32c.h"
#include "base/err.h"

#define VERSION 1

struct head { /* little endian */
    uint32_t kind, version;
    uint64_t bytes; /* with this head */
    uint32_t crc;   /* crc32c of this head with crc 0, then all that follows */
    uint32_t zero;
};
_Static_assert(sizeof(struct head) == 24, "saved format");

static uint32_t checksum(const struct head *h, const char *at)
{
    struct head blank = *h;

    blank.crc = 0;
    return bny_crc32c(bny_crc32c(0, &blank, sizeof blank), at + sizeof blank,
                      (size_t)h->bytes - sizeof blank);
}

void bny_saved_count(struct bny_saved *s, uint32_t kind)
{
    *s = (struct bny_saved){ .what = BNY_SAVED_COUNT, .kind = kind };
    s->len = sizeof(struct head);
}

int bny_saved_write(struct bny_saved *s, uint32_t kind, void *buf, size_t cap, size_t need)
{
    if (!buf || cap < need)
        return bny_fail(BANYAN_EINVAL, "the state takes %zu bytes, the buffer has %zu", need,
                        buf ? cap : 0);
    *s = (struct bny_saved){ .what = BNY_SAVED_WRITE, .kind = kind, .at = buf, .cap = cap };
    s->len = sizeof(struct head);
    return 0;
}

int bny_saved_read(struct bny_saved *s, uint32_t kind, const void *buf, size_t bytes,
                   const char *name)
{
    struct head h;

    if (!buf || bytes < sizeof h)
        return bny_fail(BANYAN_EINVAL, "%s: %zu bytes are no saved state", name,
                        buf ? bytes : 0);
    memcpy(&h, buf, sizeof h);
    if (h.kind != kind || h.bytes != bytes)
        return bny_fail(BANYAN_EINVAL,
                        "%s: this is no state that its _save wrote, or not all "
                        "of it",
                        name);
    if (h.version != VERSION)
        return bny_fail(BANYAN_EINVAL, "%s: the state has format %u, this library reads %d",
                        name, h.version, VERSION);
    if (checksum(&h, buf) != h.crc)
        return bny_fail(BANYAN_EINVAL, "%s: the state is damaged: its checksum is wrong", name);
    *s = (struct bny_saved){
        .what = BNY_SAVED_READ, .kind = kind, .at = (char *)(uintptr_t)buf, .cap = bytes
    };
    s->len = sizeof h;
    return 0;
}

void bny_saved_bytes(struct bny_saved *s, void *p, size_t n)
{
    if (s->what != BNY_SAVED_COUNT && (s->short_of || n > s->cap - s->len)) {
        s->short_of = 1;
        if (s->what == BNY_SAVED_READ && n)
            memset(p, 0, n);
        return;
    }
    if (n && s->what == BNY_SAVED_WRITE)
        memcpy(s->at + s->len, p, n);
    else if (n && s->what == BNY_SAVED_READ)
        memcpy(p, s->at + s->len, n);
    s->len += n;
}

int bny_saved_end(struct bny_saved *s, size_t *bytes)
{
    struct head h = { .kind = s->kind, .version = VERSION, .bytes = s->len };

    if (bytes)
        *bytes = s->len;
    if (s->short_of || (s->what == BNY_SAVED_READ && s->len != s->cap))
        return bny_fail(BANYAN_EINVAL, "the state is of other tensors or settings: its length "
                                       "does not fit");
    if (s->what == BNY_SAVED_WRITE) {
        memcpy(s->at, &h, sizeof h);
        h.crc = checksum(&h, s->at);
        memcpy(s->at, &h, sizeof h);
    }
    return 0;
}
