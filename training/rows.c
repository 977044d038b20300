/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows between ranks: how long each message is goes ahead, by an alltoall; then the messages,
 * by an alltoallv of bytes. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "training/rows_code.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/settings.h"
#include "training/tensors.h"

#define KIND 0x53574f52u /* "ROWS" */

enum { SETTINGS = 11, NAME_BYTES = 64 };
#define BAD UINT64_MAX /* in place of a length: a value of this rank is not finite */

/* A rank's word to each other rank before the messages. */
struct ahead {
    uint64_t step, bytes;
};

/* One direction: rows of peer p are [first[p], first[p + 1]). */
struct list {
    size_t *first; /* [ranks + 1] */
    float *cache;  /* [rows * width] cached: what the receiver has */
    unsigned char *wire;
    size_t *bytes, *at;  /* [ranks] of each message, and where it lies in wire */
    struct ahead *ahead; /* [ranks] */
};

struct banyan_rows {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_rows_config cfg;
    char name[NAME_BYTES];
    int n, rank;
    size_t width, rows;
    uint32_t *row; /* [send.first[n]] */
    struct list send, recv;
    unsigned char *known; /* [send.first[n]] cached: the row was sent once */
    uint32_t *places;     /* [width] variable: of one row */
    float *values;        /* [width] */
    double threshold, loss;
    uint64_t steps, wanted, sent, bytes, hash;
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_rows);

static int rows_settings(struct banyan_rows *r, const struct banyan_rows_config *cfg)
{
    struct banyan_rows_config *c = &r->cfg;
    int rc;

    *c = (struct banyan_rows_config)BANYAN_ROWS_CONFIG_INIT;
    rc = bny_sized_take(c, sizeof *c, cfg, "banyan_rows_create", "BANYAN_ROWS_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (c->mode > BANYAN_ROWS_VARIABLE || (c->bits != 8 && c->bits != 32))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_rows_create: mode is %d (0 to 2), bits %d (8 or 32)",
                        (int)c->mode, c->bits);
    if (!(c->least >= 0 && c->threshold >= c->least && c->most >= c->threshold) ||
        !isfinite(c->most) || !(c->grow >= 1 && c->grow <= 1e3) ||
        !(c->shrink > 0 && c->shrink <= 1))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_rows_create: threshold is %g, between %g and %g, and grow %g "
                        "(1 or more), shrink %g (above 0, at most 1)",
                        c->threshold, c->least, c->most, c->grow, c->shrink);
    if (!(c->first >= 1 && c->first <= 1e9) || !(c->slope >= 0 && c->slope <= 1e9) || !c->steps)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_rows_create: first is %g (1 or more), slope %g (0 or more), "
                        "steps %" PRIu64 " (1 or more)",
                        c->first, c->slope, c->steps);
    return 0;
}

static void list_settings(const struct banyan_rows *r, struct bny_setting *s)
{
    const struct banyan_rows_config *c = &r->cfg;
    const struct bny_setting all[SETTINGS] = {
        { "width", r->width },
        { "mode", (uint64_t)c->mode },
        { "bits", (uint64_t)c->bits },
        { "threshold", bny_setting_of_double(c->threshold) },
        { "least", bny_setting_of_double(c->least) },
        { "most", bny_setting_of_double(c->most) },
        { "grow or shrink", bny_setting_of_double(c->grow / c->shrink) },
        { "first", bny_setting_of_double(c->first) },
        { "slope", bny_setting_of_double(c->slope) },
        { "steps", c->steps },
        { "seed", c->seed },
    };

    memcpy(s, all, sizeof all);
}

/* ---- lists ---- */

static int make_list(struct banyan_rows *r, struct list *l, const size_t *counts)
{
    int cached = r->cfg.mode == BANYAN_ROWS_CACHED;
    size_t n = (size_t)r->n, most, rows = 0;

    l->first = calloc(n + 1, sizeof *l->first);
    l->bytes = calloc(n, sizeof *l->bytes);
    l->at = calloc(n, sizeof *l->at);
    l->ahead = calloc(n, sizeof *l->ahead);
    if (!l->first || !l->bytes || !l->at || !l->ahead)
        return bny_fail(BANYAN_ENOMEM, "no memory for rows of %d ranks", r->n);
    most = bny_row_bytes(r->width, r->cfg.bits) + 1; /* and a bit that says it comes */
    for (size_t p = 0; p < n; p++) {
        if (counts[p] > UINT32_MAX || counts[p] > (size_t)PTRDIFF_MAX / most / 2 - rows)
            return bny_fail(BANYAN_EINVAL, "banyan_rows_create: %s: %zu rows for rank %zu",
                            r->name, counts[p], p);
        l->at[p] = rows * most + p; /* bits fill bytes */
        rows += counts[p];
        l->first[p + 1] = rows;
    }
    l->wire = malloc(rows * most + n + 1);
    l->cache = cached ? calloc(rows * r->width + 1, sizeof *l->cache) : NULL;
    if (!l->wire || (cached && !l->cache))
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu rows of %zu numbers", rows, r->width);
    return 0;
}

static int rows_make(struct banyan_rows *r, const struct banyan_rows_plan *plan)
{
    size_t rows;
    int rc;

    snprintf(r->name, sizeof r->name, "%s", plan->name ? plan->name : "rows");
    r->width = plan->width;
    r->rows = plan->rows;
    if (!plan->send_counts || !plan->recv_counts || !r->width || r->width > 1u << 28)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_rows_create: %s: width is %zu (1 to 2^28), and counts must not "
                        "be NULL",
                        r->name, r->width);
    rc = make_list(r, &r->send, plan->send_counts);
    if (rc == 0)
        rc = make_list(r, &r->recv, plan->recv_counts);
    if (rc < 0)
        return rc;
    rows = r->send.first[r->n];
    if (rows && !plan->send_rows)
        return bny_fail(BANYAN_EINVAL, "banyan_rows_create: %s: send_rows is NULL", r->name);
    for (size_t k = 0; k < rows; k++)
        if (plan->send_rows[k] >= r->rows)
            return bny_fail(BANYAN_EINVAL,
                            "banyan_rows_create: %s: send_rows[%zu] is %u; this rank has %zu "
                            "rows",
                            r->name, k, plan->send_rows[k], r->rows);
    r->row = malloc((rows + 1) * sizeof *r->row);
    r->known = calloc(rows + 1, 1);
    r->places = malloc(r->width * sizeof *r->places);
    r->values = malloc(r->width * sizeof *r->values);
    if (!r->row || !r->known || !r->places || !r->values)
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu rows", rows);
    if (rows)
        memcpy(r->row, plan->send_rows, rows * sizeof *r->row);
    return 0;
}

static size_t count_of(const struct list *l, int p)
{
    return l->first[p + 1] - l->first[p];
}

/* Collective. Does every rank expect what the others send? */
static int counts_agree(struct banyan_rows *r)
{
    uint64_t worst = UINT64_MAX, told[2] = { 0, 0 };
    int rc, who, from;

    for (int p = 0; p < r->n; p++)
        r->send.ahead[p].bytes = count_of(&r->send, p);
    rc = banyan_alltoall(r->send.ahead, r->recv.ahead, 2, BANYAN_U64, r->comm, &bny_exact);
    for (int p = r->n; p-- > 0 && rc == 0;)
        if (r->recv.ahead[p].bytes != count_of(&r->recv, p)) {
            worst = (uint64_t)r->rank << 32 | (uint64_t)p;
            told[0] = r->recv.ahead[p].bytes;
            told[1] = count_of(&r->recv, p);
        }
    if (rc == 0)
        rc = banyan_allreduce(&worst, &worst, 1, BANYAN_U64, BANYAN_MIN, r->comm, &bny_exact);
    if (rc < 0 || worst == UINT64_MAX)
        return rc;
    who = (int)(worst >> 32);
    from = (int)(worst & UINT32_MAX);
    rc = banyan_broadcast(told, 2, BANYAN_U64, who, r->comm, &bny_exact);
    if (rc < 0)
        return rc;
    return bny_fail(BANYAN_EMISMATCH,
                    "banyan_rows_create: %s: rank %d sends %" PRIu64 " rows to rank %d, which "
                    "expects %" PRIu64,
                    r->name, from, told[0], who, told[1]);
}

/* ---- sending ---- */

static double ratio_of(const struct banyan_rows *r)
{
    const struct banyan_rows_config *c = &r->cfg;
    double ratio = c->first - c->slope * (c->first - 1) * (double)r->steps / (double)c->steps;

    return ratio > 1 ? ratio : 1;
}

/* Elements of a row that travel in this step. */
static size_t rows_part_of(const struct banyan_rows *r)
{
    size_t k = (size_t)ceil((double)r->width / ratio_of(r));

    return r->cfg.mode == BANYAN_ROWS_VARIABLE ? k : r->width;
}

/* The same at both ends, and for what comes back. */
static void rows_choose(struct banyan_rows *r, int peer, size_t k, size_t part)
{
    uint64_t low = (uint64_t)(peer < r->rank ? peer : r->rank),
             high = (uint64_t)(peer < r->rank ? r->rank : peer);
    uint64_t key = r->cfg.seed * 0x9e3779b97f4a7c15u + r->steps;

    key = key * 0xbf58476d1ce4e5b9u + (low << 32 | high);
    bny_row_choose(key * 0x94d049bb133111ebu + k, r->width, part, r->places);
}

static int rows_changed(const struct banyan_rows *r, const float *x, const float *cache)
{
    float most = 0, off = 0;

    for (size_t i = 0; i < r->width; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        off = fabsf(x[i] - cache[i]) > off ? fabsf(x[i] - cache[i]) : off;
    }
    return (double)off > r->threshold * (double)most;
}

/* A bit a row, those that come one after another. The cache changes only when all ranks can
 * (remember): these bits say what was sent. */
static unsigned char *pack_cached(struct banyan_rows *r, int p, const float *in,
                                  unsigned char *wire)
{
    size_t first = r->send.first[p], n = count_of(&r->send, p), any = 0;
    unsigned char *bits = wire, *at = wire + (n + 7) / 8;

    memset(bits, 0, (n + 7) / 8);
    for (size_t k = 0; k < n; k++) {
        const float *x = in + (size_t)r->row[first + k] * r->width;

        if (r->known[first + k] && !rows_changed(r, x, r->send.cache + (first + k) * r->width))
            continue;
        bits[k / 8] |= (unsigned char)(1u << k % 8);
        at = bny_row_encode(at, x, r->width, r->cfg.bits);
        any++;
    }
    return any ? at : wire;
}

static unsigned char *rows_pack(struct banyan_rows *r, int p, const float *in,
                                unsigned char *wire)
{
    size_t first = r->send.first[p], n = count_of(&r->send, p), part = rows_part_of(r);

    if (r->cfg.mode == BANYAN_ROWS_CACHED)
        return pack_cached(r, p, in, wire);
    for (size_t k = 0; k < n; k++) {
        const float *x = in + (size_t)r->row[first + k] * r->width;

        if (part < r->width) {
            rows_choose(r, p, k, part);
            for (size_t i = 0; i < part; i++)
                r->values[i] = x[r->places[i]];
            x = r->values;
        }
        wire = bny_row_encode(wire, x, part, r->cfg.bits);
    }
    return wire;
}

/* Is all that may be sent a finite number? */
static int all_finite(const struct banyan_rows *r, const float *in)
{
    int good = 1;

    for (size_t k = 0; k < r->send.first[r->n] && good; k++)
        for (size_t i = 0; i < r->width; i++)
            good &= isfinite(in[(size_t)r->row[k] * r->width + i]) != 0;
    return good;
}

/* ---- receiving ---- */

/* A message of rows whose bits say which; returns where it ends, NULL: beyond the message. At
 * the sender the same with its own, to know what the receiver has. */
static const unsigned char *unpack_cached(struct banyan_rows *r, struct list *l, int p,
                                          uint64_t *rows)
{
    const unsigned char *bits = l->wire + l->at[p], *end = bits + l->bytes[p], *at;
    size_t first = l->first[p], n = count_of(l, p), each = bny_row_bytes(r->width, r->cfg.bits);

    if (!l->bytes[p])
        return bits;
    if (l->bytes[p] < (n + 7) / 8)
        return NULL;
    at = bits + (n + 7) / 8;
    for (size_t k = 0; k < n; k++) {
        if (!(bits[k / 8] >> k % 8 & 1))
            continue;
        if ((size_t)(end - at) < each)
            return NULL;
        at = bny_row_decode(l->cache + (first + k) * r->width, at, r->width, r->cfg.bits);
        if (l == &r->send)
            r->known[first + k] = 1;
        ++*rows;
    }
    return at == end ? at : NULL;
}

static void rows_unpack(struct banyan_rows *r, int p, float *out)
{
    const unsigned char *at;
    size_t part = rows_part_of(r);

    if (count_of(&r->recv, p) == 0)
        return;
    at = r->recv.wire + r->recv.at[p];
    out += r->recv.first[p] * r->width;
    for (size_t k = 0; k < count_of(&r->recv, p); k++, out += r->width) {
        if (part == r->width) {
            at = bny_row_decode(out, at, part, r->cfg.bits);
            continue;
        }
        rows_choose(r, p, k, part);
        at = bny_row_decode(r->values, at, part, r->cfg.bits);
        memset(out, 0, r->width * sizeof *out);
        for (size_t i = 0; i < part; i++)
            out[r->places[i]] = r->values[i];
    }
}

/* ---- a step ---- */

/* Every rank's word about itself before the messages. All ranks get the same words. */
static int refuse(struct banyan_rows *r)
{
    for (int p = 0; p < r->n; p++)
        if (r->recv.ahead[p].step != r->recv.ahead[0].step)
            return bny_fail(BANYAN_EMISMATCH,
                            "banyan_rows_exchange: %s: rank %d has done %" PRIu64 " steps, "
                            "rank 0 %" PRIu64 "; load states of the same step on all ranks",
                            r->name, p, r->recv.ahead[p].step, r->recv.ahead[0].step);
    for (int p = 0; p < r->n; p++)
        if (r->recv.ahead[p].bytes == BAD)
            return bny_fail(BANYAN_EINVAL,
                            "banyan_rows_exchange: the rows of %s at rank %d have a value that "
                            "is no finite number",
                            r->name, p);
    return 0;
}

/* Ends the communicator: only this rank knows. */
static int broken(struct banyan_rows *r, const char *why)
{
    banyan_abort(r->comm, why);
    return bny_fail(BANYAN_EPROTO, "%s", why);
}

/* Do lengths fit what a peer can send? Cached ones are looked at row by row. */
static int lengths_fit(struct banyan_rows *r)
{
    size_t each = bny_row_bytes(rows_part_of(r), r->cfg.bits);
    char why[200];

    for (int p = 0; p < r->n; p++) {
        size_t n = count_of(&r->recv, p), most = n * each;
        uint64_t got = r->recv.ahead[p].bytes;
        int cached = r->cfg.mode == BANYAN_ROWS_CACHED;

        if (cached ? got > most + (n + 7) / 8 : got != most) {
            snprintf(why, sizeof why,
                     "banyan_rows_exchange: %s: rank %d sends %" PRIu64
                     " bytes for %zu rows to "
                     "rank %d",
                     r->name, p, got, n, r->rank);
            return broken(r, why);
        }
        r->recv.bytes[p] = (size_t)got;
    }
    return 0;
}

static int rows_take(struct banyan_rows *r, float *out)
{
    uint64_t came = 0, sent = 0;
    char why[200];

    if (r->cfg.mode != BANYAN_ROWS_CACHED) {
        for (int p = 0; p < r->n; p++)
            rows_unpack(r, p, out);
        sent = r->send.first[r->n];
    }
    for (int p = 0; p < r->n && r->cfg.mode == BANYAN_ROWS_CACHED; p++)
        if (!unpack_cached(r, &r->recv, p, &came) || !unpack_cached(r, &r->send, p, &sent)) {
            snprintf(why, sizeof why,
                     "banyan_rows_exchange: %s: what rank %d sent to rank %d is not as long as "
                     "its rows",
                     r->name, p, r->rank);
            return broken(r, why);
        }
    if (r->cfg.mode == BANYAN_ROWS_CACHED)
        memcpy(out, r->recv.cache, r->recv.first[r->n] * r->width * sizeof *out);
    r->sent += sent;
    r->wanted += r->send.first[r->n];
    for (int p = 0; p < r->n; p++)
        r->bytes += p == r->rank ? 0 : r->send.bytes[p] + sizeof(struct ahead);
    r->steps++;
    return 0;
}

int banyan_rows_exchange(struct banyan_rows *r, const float *in, float *out)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int good, rc = bny_object_enter(r, KIND, "banyan_rows_exchange");

    if (rc < 0)
        return rc;
    if ((!in && r->send.first[r->n]) || (!out && r->recv.first[r->n]))
        return bny_fail(BANYAN_EINVAL, "banyan_rows_exchange: %s must not be NULL",
                        in ? "out" : "in");
    good = all_finite(r, in);
    for (int p = 0; p < r->n; p++) {
        unsigned char *wire = r->send.wire + r->send.at[p];

        r->send.bytes[p] = good ? (size_t)(rows_pack(r, p, in, wire) - wire) : 0;
        r->send.ahead[p] = (struct ahead){ r->steps, good ? r->send.bytes[p] : BAD };
    }
    o.codec = "none";
    rc = banyan_alltoall(r->send.ahead, r->recv.ahead, 2, BANYAN_U64, r->comm, &o);
    if (rc == 0)
        rc = refuse(r);
    if (rc == 0)
        rc = lengths_fit(r);
    if (rc == 0)
        rc = banyan_alltoallv(r->send.wire, r->send.bytes, r->send.at, r->recv.wire,
                              r->recv.bytes, r->recv.at, BANYAN_U8, r->comm, &o);
    return rc < 0 ? rc : rows_take(r, out);
}

int banyan_rows_adapt(struct banyan_rows *r, double loss)
{
    struct banyan_rows_config *c;
    int rc = bny_object_check(r, KIND, "banyan_rows_adapt");

    if (rc < 0)
        return rc;
    if (!isfinite(loss))
        return bny_fail(BANYAN_EINVAL, "banyan_rows_adapt: the loss is no finite number");
    c = &r->cfg;
    if (isfinite(r->loss))
        r->threshold *= loss < r->loss ? c->grow : c->shrink;
    r->threshold = fmin(fmax(r->threshold, c->least), c->most);
    r->loss = loss;
    return 0;
}

/* ---- the object ---- */

int banyan_rows_create(struct banyan_rows **out, struct banyan_comm *comm,
                       const struct banyan_rows_plan *plan,
                       const struct banyan_rows_config *cfg)
{
    struct banyan_rows_plan whole = BANYAN_ROWS_PLAN_INIT;
    struct bny_setting s[SETTINGS];
    struct banyan_rows *r;
    int rc;

    r = bny_object_new(&handles, out, comm, "banyan_rows_create", &rc);
    if (!r)
        return rc;
    r->comm = comm;
    r->n = banyan_comm_count(comm);
    r->rank = banyan_comm_rank(comm);
    r->loss = INFINITY;
    rc = plan ? rows_settings(r, cfg)
              : bny_fail(BANYAN_EINVAL, "banyan_rows_create: plan must not be NULL");
    if (rc == 0)
        rc = bny_sized_take(&whole, sizeof whole, plan, "banyan_rows_create",
                            "BANYAN_ROWS_PLAN_INIT");
    if (rc == 0)
        rc = rows_make(r, &whole);
    r->threshold = r->cfg.threshold;
    rc = bny_all_can(comm, rc, "banyan_rows_create");
    if (rc == 0) {
        list_settings(r, s);
        r->hash = bny_settings_hash(s, SETTINGS, bny_setting_of_text(r->name));
        for (int p = 0; p < r->n; p++)
            r->hash = (r->hash ^ r->send.first[p + 1]) * 1099511628211u;
        rc = bny_settings_agree(comm, s, SETTINGS, "banyan_rows_create");
    }
    if (rc == 0)
        rc = counts_agree(r);
    if (rc < 0)
        banyan_rows_free(r);
    else
        *out = r;
    return rc;
}

static void free_list(struct list *l)
{
    free(l->first);
    free(l->cache);
    free(l->wire);
    free(l->bytes);
    free(l->at);
    free(l->ahead);
}

int banyan_rows_free(struct banyan_rows *r)
{
    int rc = bny_object_may_free(r, KIND, "banyan_rows_free");

    if (rc <= 0)
        return rc;
    free_list(&r->send);
    free_list(&r->recv);
    free(r->row);
    free(r->known);
    free(r->places);
    free(r->values);
    bny_handle_free(&handles, &r->object.handle);
    return 0;
}

int banyan_rows_stats(const struct banyan_rows *r, struct banyan_rows_stats *out)
{
    struct banyan_rows_stats s;
    size_t elsewhere;
    int rc = bny_object_check(r, KIND, "banyan_rows_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_rows_stats");
    if (rc < 0)
        return rc;
    elsewhere = r->send.first[r->n] - count_of(&r->send, r->rank);
    s = (struct banyan_rows_stats){ .size = sizeof s,
                                    .steps = r->steps,
                                    .rows = r->wanted,
                                    .sent = r->sent,
                                    .bytes = r->bytes,
                                    .dense_bytes =
                                        r->steps * elsewhere * r->width * sizeof(float),
                                    .threshold = r->threshold,
                                    .ratio = ratio_of(r) };
    bny_sized_give(out, &s, sizeof s);
    return 0;
}

/* ---- state ---- */

static void rows_walk(struct bny_saved *s, struct banyan_rows *r)
{
    bny_saved_bytes(s, &r->steps, sizeof r->steps);
    bny_saved_bytes(s, &r->wanted, sizeof r->wanted);
    bny_saved_bytes(s, &r->sent, sizeof r->sent);
    bny_saved_bytes(s, &r->bytes, sizeof r->bytes);
    bny_saved_bytes(s, &r->threshold, sizeof r->threshold);
    bny_saved_bytes(s, &r->loss, sizeof r->loss);
    if (r->cfg.mode != BANYAN_ROWS_CACHED)
        return;
    bny_saved_bytes(s, r->known, r->send.first[r->n]);
    bny_saved_bytes(s, r->send.cache, r->send.first[r->n] * r->width * sizeof(float));
    bny_saved_bytes(s, r->recv.cache, r->recv.first[r->n] * r->width * sizeof(float));
}

size_t banyan_rows_bytes(const struct banyan_rows *r)
{
    struct bny_saved s;

    if (bny_object_check(r, KIND, "banyan_rows_bytes") < 0)
        return 0;
    bny_saved_count(&s, KIND);
    bny_saved_bytes(&s, NULL, sizeof r->hash);
    rows_walk(&s, (struct banyan_rows *)(uintptr_t)r); /* counting changes nothing */
    return s.len;
}

int banyan_rows_save(const struct banyan_rows *r, void *buf, size_t cap)
{
    struct bny_saved s;
    uint64_t of;
    int rc = bny_object_check(r, KIND, "banyan_rows_save");

    if (rc == 0)
        rc = bny_saved_write(&s, KIND, buf, cap, banyan_rows_bytes(r));
    if (rc < 0)
        return rc;
    of = r->hash;
    bny_saved_bytes(&s, &of, sizeof of);
    rows_walk(&s, (struct banyan_rows *)(uintptr_t)r);
    return bny_saved_end(&s, NULL);
}

int banyan_rows_load(struct banyan_rows *r, const void *buf, size_t bytes)
{
    struct bny_saved s;
    uint64_t of;
    int rc = bny_object_check(r, KIND, "banyan_rows_load");

    if (rc == 0)
        rc = bny_saved_read(&s, KIND, buf, bytes, "banyan_rows_load");
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, &of, sizeof of);
    if (bytes != banyan_rows_bytes(r) || of != r->hash)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_rows_load: the state is of other rows or settings");
    rows_walk(&s, r);
    return bny_saved_end(&s, NULL);
}
