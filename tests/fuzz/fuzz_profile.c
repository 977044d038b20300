/* SPDX-License-Identifier: BSD-3-Clause */
/* Any bytes as the profile of a training step: refused with a sentence, or sound, written, and
 * read back as the same. */
#include "input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "training/profile.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    return 0;
}

static void sound(const struct bny_profile *p)
{
    EXPECT(p->n > 0 && p->ranks > 0 && p->bucket_bytes > 0 && p->compute_s >= 0);
    for (size_t i = 0; i < p->n; i++) {
        const struct bny_profile_tensor *t = &p->tensors[i];

        EXPECT(*t->name && *t->codec && *t->schedule && t->count > 0 && t->ready_s >= 0);
        EXPECT(banyan_dtype_bytes(t->dtype) > 0);
    }
    for (size_t i = 0; i < p->ncodecs; i++)
        EXPECT(*p->codecs[i].codec && p->codecs[i].encode_s >= 0 &&
               p->codecs[i].wire_bytes >= 0);
}

static void again(const struct bny_profile *p)
{
    struct bny_profile q;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    EXPECT(f && bny_profile_write(p, f) == 0);
    EXPECT(fclose(f) == 0);
    EXPECT(bny_profile_parse(&q, text, len, "written") == 0);
    EXPECT(q.n == p->n && q.ncodecs == p->ncodecs && q.bucket_bytes == p->bucket_bytes);
    for (size_t i = 0; i < q.n; i++)
        EXPECT(!strcmp(q.tensors[i].name, p->tensors[i].name) &&
               q.tensors[i].count == p->tensors[i].count &&
               q.tensors[i].dtype == p->tensors[i].dtype);
    bny_profile_free(&q);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct bny_profile p;

    memcpy(text, data, size);
    text[size] = '\0';
    if (bny_profile_parse(&p, text, size, "input") == 0) {
        sound(&p);
        again(&p);
    } else {
        EXPECT(*banyan_last_error());
    }
    bny_profile_free(&p);
    free(text);
    return 0;
}
