/* SPDX-License-Identifier: BSD-3-Clause */
/* Profiles as files (profile.h). Nothing in a file is believed: each number has a range, and
 * memory is taken for what was found only. */
#include "training/profile.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/lazy_cjson.h"
#include "base/text.h"

#define TENSORS_MAX 1000000
#define COUNT_MAX   1e15
#define SECONDS_MAX 1e6

/* ---- written ---- */

static void put_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (*s < 0x20)
            fprintf(f, "\\u%04x", *s);
        else
            fputc(*s, f);
    }
    fputc('"', f);
}

static void put_tensor(FILE *f, const struct bny_profile_tensor *t)
{
    fputs("    {\"name\": ", f);
    put_text(f, t->name);
    bny_fprintf(f,
                ", \"dtype\": \"%s\", \"count\": %" PRIu64 ", \"bytes\": %" PRIu64
                ", \"ready_s\": %.9g, \"codec\": ",
                banyan_dtype_name(t->dtype), t->count, t->count * banyan_dtype_bytes(t->dtype),
                t->ready_s);
    put_text(f, t->codec);
    fputs(", \"schedule\": ", f);
    put_text(f, t->schedule);
    fputc('}', f);
}

int bny_profile_write(const struct bny_profile *p, FILE *to)
{
    bny_fprintf(to,
                "{\n  \"banyan_profile\": 1,\n  \"ranks\": %d,\n  \"steps\": %d,\n"
                "  \"forward_s\": %.9g,\n  \"backward_s\": %.9g,\n  \"compute_s\": %.9g,\n"
                "  \"step_s\": %.9g,\n  \"bucket_bytes\": %" PRIu64
                ",\n  \"first_bytes\": %" PRIu64 ",\n  \"progress\": %d,\n  \"tensors\": [",
                p->ranks, p->steps, p->forward_s, p->backward_s, p->compute_s, p->step_s,
                p->bucket_bytes, p->first_bytes, p->progress);
    for (size_t i = 0; i < p->n; i++) {
        fputs(i ? ",\n" : "\n", to);
        put_tensor(to, &p->tensors[i]);
    }
    fputs("\n  ],\n  \"codecs\": [", to);
    for (size_t i = 0; i < p->ncodecs; i++) {
        const struct bny_profile_codec *c = &p->codecs[i];
        fputs(i ? ",\n    {\"codec\": " : "\n    {\"codec\": ", to);
        put_text(to, c->codec);
        bny_fprintf(to, ", \"encode_s\": %.9g, \"decode_s\": %.9g, \"wire_bytes\": %.9g}",
                    c->encode_s, c->decode_s, c->wire_bytes);
    }
    fputs(p->ncodecs ? "\n  ]\n}\n" : "]\n}\n", to);
    return ferror(to) ? -BANYAN_ESYSTEM : 0;
}

/* ---- read ---- */

struct reader {
    const char *name; /* of the file */
    const char *list; /* within which object: "tensors"; NULL: the whole */
    size_t at;
};

static int profile_bad(const struct reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static int profile_bad(const struct reader *r, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (r->list)
        return bny_fail(BANYAN_EINVAL, "%.200s: %s[%zu]: %s", r->name, r->list, r->at, text);
    return bny_fail(BANYAN_EINVAL, "%.200s: %s", r->name, text);
}

static const cJSON *profile_get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static int profile_number(const struct reader *r, const cJSON *o, const char *key, double least,
                          double most, double *out)
{
    const cJSON *v = profile_get(o, key);

    *out = 0;
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= least && v->valuedouble <= most))
        return profile_bad(r, "%s: a number from %g to %g is expected", key, least, most);
    *out = v->valuedouble;
    return 0;
}

static int profile_whole(const struct reader *r, const cJSON *o, const char *key, double least,
                         double most, uint64_t *out)
{
    double v;
    int rc = profile_number(r, o, key, least, most, &v);

    *out = 0;
    if (rc == 0 && v != floor(v))
        rc = profile_bad(r, "%s: %g is no whole number", key, v);
    if (rc == 0)
        *out = (uint64_t)v;
    return rc;
}

static int profile_copy(char **out, const char *text)
{
    *out = strdup(text);
    return *out ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a profile");
}

/* other NULL: it must be there. */
static int text_of(const struct reader *r, const cJSON *o, const char *key, const char *other,
                   char **out)
{
    const cJSON *v = profile_get(o, key);

    if (!v && other)
        return profile_copy(out, other);
    if (!cJSON_IsString(v) || !*v->valuestring || strlen(v->valuestring) > 1000)
        return profile_bad(r, "%s: a text of 1 to 1000 bytes is expected", key);
    return profile_copy(out, v->valuestring);
}

static int read_dtype(const struct reader *r, const cJSON *o, enum banyan_dtype *out)
{
    static const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_F64, BANYAN_F16,
                                               BANYAN_BF16 };
    const cJSON *v = profile_get(o, "dtype");

    for (size_t i = 0; cJSON_IsString(v) && i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(v->valuestring, banyan_dtype_name(types[i]))) {
            *out = types[i];
            return 0;
        }
    return profile_bad(r, "dtype: f32, f64, f16 or bf16 is expected");
}

static int read_tensor(const struct reader *r, const cJSON *o, struct bny_profile_tensor *t)
{
    int rc = cJSON_IsObject(o) ? 0 : profile_bad(r, "an object is expected");

    if (rc == 0)
        rc = text_of(r, o, "name", NULL, &t->name);
    if (rc == 0)
        rc = read_dtype(r, o, &t->dtype);
    if (rc == 0)
        rc = profile_whole(r, o, "count", 1, COUNT_MAX, &t->count);
    if (rc == 0)
        rc = profile_number(r, o, "ready_s", 0, SECONDS_MAX, &t->ready_s);
    if (rc == 0)
        rc = text_of(r, o, "codec", "none", &t->codec);
    if (rc == 0)
        rc = text_of(r, o, "schedule", "auto", &t->schedule);
    return rc;
}

static int read_codec(const struct reader *r, const cJSON *o, struct bny_profile_codec *c)
{
    int rc = cJSON_IsObject(o) ? 0 : profile_bad(r, "an object is expected");

    if (rc == 0)
        rc = text_of(r, o, "codec", NULL, &c->codec);
    if (rc == 0)
        rc = profile_number(r, o, "encode_s", 0, 1, &c->encode_s);
    if (rc == 0)
        rc = profile_number(r, o, "decode_s", 0, 1, &c->decode_s);
    if (rc == 0)
        rc = profile_number(r, o, "wire_bytes", 0, 64, &c->wire_bytes);
    return rc;
}

static int list_of(const struct reader *r, const cJSON *o, const char *key, int least,
                   const cJSON **first, size_t *n)
{
    const cJSON *list = profile_get(o, key);
    int have = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : list ? -1 : 0;

    if (have < least || have > TENSORS_MAX)
        return profile_bad(r, "%s: a list of %d to %d is expected", key, least, TENSORS_MAX);
    *first = have ? list->child : NULL;
    *n = (size_t)have;
    return 0;
}

static int read_lists(const struct reader *r, const cJSON *o, struct bny_profile *p)
{
    struct reader in = *r;
    const cJSON *at;
    size_t n = 0;
    int rc = list_of(r, o, "tensors", 1, &at, &n);

    if (rc == 0 && !(p->tensors = calloc(n + 1, sizeof *p->tensors)))
        rc = bny_fail(BANYAN_ENOMEM, "no memory for a profile of %zu tensors", n);
    in.list = "tensors";
    for (in.at = 0; rc == 0 && in.at < n; in.at++, at = at->next)
        rc = read_tensor(&in, at, &p->tensors[p->n++]);
    if (rc == 0)
        rc = list_of(r, o, "codecs", 0, &at, &n);
    if (rc == 0 && !(p->codecs = calloc(n + 1, sizeof *p->codecs)))
        rc = bny_fail(BANYAN_ENOMEM, "no memory for a profile of %zu codecs", n);
    in.list = "codecs";
    for (in.at = 0; rc == 0 && in.at < n; in.at++, at = at->next)
        rc = read_codec(&in, at, &p->codecs[p->ncodecs++]);
    return rc;
}

static int read_head(const struct reader *r, const cJSON *o, struct bny_profile *p)
{
    uint64_t version, ranks = 0, steps = 0, progress = 0;
    int rc = cJSON_IsObject(o) ? 0 : profile_bad(r, "an object is expected");

    if (rc == 0)
        rc = profile_whole(r, o, "banyan_profile", 1, 1, &version);
    if (rc == 0)
        rc = profile_whole(r, o, "ranks", 1, 1 << 24, &ranks);
    if (rc == 0)
        rc = profile_whole(r, o, "steps", 1, 1 << 30, &steps);
    if (rc == 0)
        rc = profile_number(r, o, "forward_s", 0, SECONDS_MAX, &p->forward_s);
    if (rc == 0)
        rc = profile_number(r, o, "backward_s", 0, SECONDS_MAX, &p->backward_s);
    if (rc == 0)
        rc = profile_number(r, o, "compute_s", 0, SECONDS_MAX, &p->compute_s);
    if (rc == 0)
        rc = profile_number(r, o, "step_s", 0, SECONDS_MAX, &p->step_s);
    if (rc == 0)
        rc = profile_whole(r, o, "bucket_bytes", 1, COUNT_MAX, &p->bucket_bytes);
    if (rc == 0)
        rc = profile_whole(r, o, "first_bytes", 1, COUNT_MAX, &p->first_bytes);
    if (rc == 0)
        rc = profile_whole(r, o, "progress", 0, 1, &progress);
    p->ranks = (int)ranks;
    p->steps = (int)steps;
    p->progress = (int)progress;
    return rc;
}

int bny_profile_parse(struct bny_profile *out, const char *text, size_t len, const char *name)
{
    struct reader r = { .name = name };
    const char *end = NULL;
    cJSON *o;
    int rc = bny_lazy_cjson();

    memset(out, 0, sizeof *out);
    if (rc)
        return rc;
    o = bny_json_parse(text, len, &end);
    if (!o)
        return profile_bad(&r, "no JSON, from byte %zu on", end ? (size_t)(end - text) : 0);
    rc = read_head(&r, o, out);
    if (rc == 0)
        rc = read_lists(&r, o, out);
    cJSON_Delete(o);
    return rc;
}

void bny_profile_free(struct bny_profile *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->tensors[i].name);
        free(p->tensors[i].codec);
        free(p->tensors[i].schedule);
    }
    for (size_t i = 0; i < p->ncodecs; i++)
        free(p->codecs[i].codec);
    free(p->tensors);
    free(p->codecs);
    memset(p, 0, sizeof *p);
}
