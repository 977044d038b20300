/* SPDX-License-Identifier: BSD-3-Clause */
/* Codec states: users make, save, load and re-bucket them; state.h lends them to operations. */
#include "compress/state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/err.h"
#include "base/fpmode.h"
#include "base/log.h"
#include "compress/linear.h"

#define SAVED_MAGIC   0x54534342u /* "BCST" */
#define SAVED_VERSION 1
#define PLANES_MAX    4

struct saved { /* little endian; then residuals, track, keep */
    uint32_t magic, version;
    uint64_t count, seed;
    uint32_t step, planes;
    float ef_scale;
    uint32_t crc; /* crc32c of this header with crc 0, then all that follows */
    uint64_t track_bytes, keep_bytes;
    int64_t rows, cols;
    char spec[80]; /* the codec of track and keep; "": none */
};
_Static_assert(sizeof(struct saved) == 152, "saved format");

/* A copy of the state when the latest operation began. */
struct bny_state_kept {
    int valid; /* an operation has begun since undo was enabled, and nothing else changed it */
    uint32_t step;
    unsigned planes;
    float ef_scale;
    const struct bny_codec *codec;
    size_t track_bytes, keep_bytes;
    int64_t rows, cols;
    char *bytes; /* residuals, track, keep */
    size_t cap;
};

static struct bny_handles handles = BNY_HANDLES(BNY_STATE_MARK, struct banyan_codec_state);

int bny_state_check(const struct banyan_codec_state *st, const char *what)
{
    if (!st)
        return bny_fail(BANYAN_EINVAL, "%s: the state must not be NULL", what);
    if (!bny_handle_is(&st->handle, BNY_STATE_MARK))
        return bny_fail(BANYAN_EINVAL, "%s: the codec state was freed already", what);
    return 0;
}

static size_t plane_bytes(const struct banyan_codec_state *st)
{
    return st->count * sizeof(float);
}

int banyan_codec_state_create(struct banyan_codec_state **out, size_t count, uint64_t seed)
{
    struct banyan_codec_state *st;

    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_codec_state_create: out must not be NULL");
    *out = NULL;
    st = bny_handle_new(&handles);
    if (st && count <= PTRDIFF_MAX / (PLANES_MAX * sizeof(float)))
        st->ef = calloc(count ? count : 1, sizeof(float));
    if (!st || !st->ef) {
        if (st)
            bny_handle_free(&handles, &st->handle);
        return bny_fail(BANYAN_ENOMEM, "no memory for the residuals of %zu elements", count);
    }
    st->count = count;
    st->seed = seed;
    st->planes = 1;
    st->ef_scale = 1;
    *out = st;
    return 0;
}

static int state_check(const struct banyan_codec_state *st, const char *what)
{
    int rc = bny_state_check(st, what);

    if (rc)
        return rc;
    if (st->busy)
        return bny_fail(BANYAN_EBUSY,
                        "%s: this state is used by an operation in flight; wait for it first",
                        what);
    return 0;
}

int banyan_codec_state_free(struct banyan_codec_state *st)
{
    int rc = st ? state_check(st, "banyan_codec_state_free") : 0;

    if (rc || !st)
        return rc;
    free(st->ef);
    free(st->track);
    free(st->keep);
    if (st->kept)
        free(st->kept->bytes);
    free(st->kept);
    bny_handle_free(&handles, &st->handle);
    return 0;
}

/* Something other than an operation changes the state: undo can no longer restore it. */
static void state_changed(struct banyan_codec_state *st)
{
    if (st->kept)
        st->kept->valid = 0;
}

int banyan_codec_state_reset(struct banyan_codec_state *st)
{
    int rc = state_check(st, "banyan_codec_state_reset");

    if (rc)
        return rc;
    state_changed(st);
    memset(st->ef, 0, st->planes * plane_bytes(st));
    if (st->track)
        memset(st->track, 0, st->track_bytes);
    if (st->keep)
        memset(st->keep, 0, st->keep_bytes);
    st->step = 0;
    st->ef_scale = 1;
    return 0;
}

int banyan_codec_state_scale(struct banyan_codec_state *st, double factor)
{
    int rc = state_check(st, "banyan_codec_state_scale");

    if (rc == 0 && !isfinite((float)(st->ef_scale * factor)))
        rc = bny_fail(BANYAN_EINVAL, "factor: %g is not a finite f32", factor);
    if (rc)
        return rc;
    state_changed(st);
    st->ef_scale = (float)(st->ef_scale * factor);
    return 0;
}

const float *banyan_codec_state_residual(const struct banyan_codec_state *st)
{
    return bny_state_check(st, "banyan_codec_state_residual") == 0 ? st->ef : NULL;
}

/* Ensures at least this many planes; new ones are zero. */
static int grow_planes(struct banyan_codec_state *st, unsigned planes)
{
    float *more;

    if (planes <= st->planes)
        return 0;
    more = realloc(st->ef, planes * plane_bytes(st) + sizeof(float));
    if (!more)
        return bny_fail(BANYAN_ENOMEM, "no memory for %u floats an element of %zu", planes,
                        st->count);
    memset(more + st->planes * st->count, 0, (planes - st->planes) * plane_bytes(st));
    st->ef = more;
    st->planes = planes;
    return 0;
}

int banyan_codec_state_move(struct banyan_codec_state *dst, size_t dst_at,
                            struct banyan_codec_state *src, size_t src_at, size_t count)
{
    int rc = state_check(dst, "banyan_codec_state_move");

    if (rc == 0)
        rc = state_check(src, "banyan_codec_state_move");
    if (rc)
        return rc;
    if (dst == src)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_codec_state_move: dst and src must be two states");
    if (count > dst->count || dst_at > dst->count - count || count > src->count ||
        src_at > src->count - count)
        return bny_fail(
            BANYAN_EINVAL,
            "banyan_codec_state_move: [%zu, +%zu) of %zu elements to [%zu, +%zu) of %zu "
            "does not fit",
            src_at, count, src->count, dst_at, count, dst->count);
    rc = grow_planes(dst, src->planes);
    if (rc)
        return rc;
    state_changed(dst);
    state_changed(src);
    for (unsigned k = 0; k < src->planes; k++) {
        float *to = dst->ef + k * dst->count + dst_at,
              *from = src->ef + k * src->count + src_at;
        float unit =
            k ? 1 : src->ef_scale / dst->ef_scale; /* pending factors apply to residuals only */
        for (size_t i = 0; i < count; i++) {
            to[i] += unit == 1 ? from[i] : unit * from[i];
            from[i] = 0;
        }
    }
    return 0;
}

/* ---- saving ---- */

size_t banyan_codec_state_bytes(const struct banyan_codec_state *st)
{
    return bny_state_check(st, "banyan_codec_state_bytes") == 0
               ? sizeof(struct saved) + st->planes * plane_bytes(st) + st->track_bytes +
                     st->keep_bytes
               : 0;
}

static void state_put(char **at, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(*at, from, bytes);
    *at += bytes;
}

int banyan_codec_state_save(const struct banyan_codec_state *st, void *buf, size_t cap)
{
    struct saved h = { .magic = SAVED_MAGIC, .version = SAVED_VERSION };
    size_t need = banyan_codec_state_bytes(st);
    char *at = buf;
    int rc = state_check(st, "banyan_codec_state_save");

    if (rc)
        return rc;
    if (!buf || cap < need)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_codec_state_save: %zu bytes at %p; this state takes %zu "
                        "(banyan_codec_state_bytes)",
                        cap, buf, need);
    h.count = st->count;
    h.seed = st->seed;
    h.step = st->step;
    h.planes = st->planes;
    h.ef_scale = st->ef_scale;
    h.track_bytes = st->track_bytes;
    h.keep_bytes = st->keep_bytes;
    h.rows = st->rows;
    h.cols = st->cols;
    if (st->codec)
        snprintf(h.spec, sizeof h.spec, "%.79s", st->codec->spec);
    at += sizeof h;
    state_put(&at, st->ef, st->planes * plane_bytes(st));
    state_put(&at, st->track, st->track_bytes);
    state_put(&at, st->keep, st->keep_bytes);
    h.crc =
        bny_crc32c(bny_crc32c(0, &h, sizeof h), (const char *)buf + sizeof h, need - sizeof h);
    memcpy(buf, &h, sizeof h);
    return 0;
}

static int state_bad(const char *what)
{
    return bny_fail(BANYAN_EINVAL, "banyan_codec_state_load: this is no saved codec state: %s",
                    what);
}

static int all_finite(const char *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x;

        memcpy(&x, v + 4 * i, 4);
        if (!isfinite(x))
            return 0;
    }
    return 1;
}

/* The header of buf[bytes] for a state of st's size; *codec: whose track and keep it has. */
static int check_saved(const struct banyan_codec_state *st, struct saved *h,
                       const struct bny_codec **codec, const char *buf, size_t bytes)
{
    size_t rest = bytes - sizeof *h, planes;
    const char *at;
    int64_t cells;
    uint32_t crc;
    int rc;

    *codec = NULL;
    if (!buf || bytes < sizeof *h)
        return state_bad("too short");
    memcpy(h, buf, sizeof *h);
    if (h->magic != SAVED_MAGIC || h->version != SAVED_VERSION)
        return state_bad("its first bytes are another format's, or another version's");
    if (h->count != st->count)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_codec_state_load: saved for %llu elements, this state has %zu",
                        (unsigned long long)h->count, st->count);
    if (h->planes < 1 || h->planes > PLANES_MAX)
        return state_bad("its number of floats an element");
    planes = h->planes * plane_bytes(st);
    if (rest < planes || h->track_bytes > rest - planes ||
        h->keep_bytes != rest - planes - h->track_bytes)
        return state_bad("its length");
    crc = h->crc;
    h->crc = 0;
    if (bny_crc32c(bny_crc32c(0, h, sizeof *h), buf + sizeof *h, rest) != crc)
        return state_bad("its checksum");
    if (!isfinite(h->ef_scale) || !all_finite(buf + sizeof *h, h->planes * st->count))
        return state_bad("its residuals are not finite");
    if (memchr(h->spec, '\0', sizeof h->spec) == NULL)
        return state_bad("its codec's name");
    if (!h->spec[0])
        return h->track_bytes || h->keep_bytes ? state_bad("statistics of no codec") : 0;
    rc = bny_codec_parse(codec, h->spec);
    if (rc)
        return rc;
    if (h->track_bytes != 0 && h->track_bytes != (*codec)->ops->track_bytes)
        return state_bad("the length of its codec's statistics");
    at = buf + sizeof *h + planes;
    if (h->track_bytes && !(*codec)->ops->track_ok(at))
        return state_bad("its codec's statistics");
    if (h->keep_bytes &&
        (h->rows < 0 || h->cols < 0 || !(*codec)->ops->linear ||
         __builtin_mul_overflow(h->rows, h->cols, &cells) || (uint64_t)cells != st->count ||
         (*codec)->ops->linear->keep_bytes(*codec, st->count, h->rows, h->cols) !=
             h->keep_bytes))
        return state_bad("the length of its codec's matrices");
    if (!all_finite(at + h->track_bytes, h->keep_bytes / sizeof(float)))
        return state_bad("its codec's matrices are not finite");
    return 0;
}

int banyan_codec_state_load(struct banyan_codec_state *st, const void *buf, size_t bytes)
{
    const struct bny_codec *codec;
    const char *at = buf;
    struct saved h;
    void *track = NULL, *keep = NULL;
    int rc = state_check(st, "banyan_codec_state_load");

    if (rc == 0)
        rc = check_saved(st, &h, &codec, buf, bytes);
    if (rc == 0)
        rc = grow_planes(st, h.planes);
    if (rc)
        return rc;
    if ((h.track_bytes && !(track = malloc(h.track_bytes))) ||
        (h.keep_bytes && !(keep = malloc(h.keep_bytes)))) {
        free(track);
        return bny_fail(BANYAN_ENOMEM, "no memory to load a codec state");
    }
    state_changed(st);
    at += sizeof h;
    memset(st->ef, 0, st->planes * plane_bytes(st));
    memcpy(st->ef, at, h.planes * plane_bytes(st));
    at += h.planes * plane_bytes(st);
    if (track)
        memcpy(track, at, h.track_bytes);
    if (keep)
        memcpy(keep, at + h.track_bytes, h.keep_bytes);
    free(st->track);
    free(st->keep);
    st->track = track;
    st->keep = keep;
    st->track_bytes = h.track_bytes;
    st->keep_bytes = h.keep_bytes;
    st->rows = h.rows;
    st->cols = h.cols;
    st->codec = codec;
    st->seed = h.seed;
    st->step = h.step;
    st->ef_scale = h.ef_scale;
    return 0;
}

/* ---- undo ---- */

static void state_take(const char **at, void *to, size_t bytes)
{
    if (bytes)
        memcpy(to, *at, bytes);
    *at += bytes;
}

static int refit(void **mem, size_t *have, size_t need)
{
    void *p;

    if (*have == need)
        return 0;
    p = need ? calloc(1, need) : NULL;
    if (need && !p)
        return bny_fail(BANYAN_ENOMEM, "no memory for a codec's state of %zu bytes", need);
    free(*mem);
    *mem = p;
    *have = need;
    return 0;
}

int banyan_codec_state_step(const struct banyan_codec_state *st, uint32_t *step)
{
    int rc = bny_state_check(st, "banyan_codec_state_step");

    if (rc == 0 && !step)
        rc = bny_fail(BANYAN_EINVAL, "banyan_codec_state_step: step must not be NULL");
    if (rc == 0)
        *step = st->step;
    return rc;
}

int banyan_codec_state_keep_undo(struct banyan_codec_state *st, int on)
{
    int rc = state_check(st, "banyan_codec_state_keep_undo");

    if (rc || !on == !st->kept)
        return rc;
    if (!on) {
        free(st->kept->bytes);
        free(st->kept);
        st->kept = NULL;
        return 0;
    }
    st->kept = calloc(1, sizeof *st->kept);
    return st->kept ? 0 : bny_fail(BANYAN_ENOMEM, "no memory to undo a codec state");
}

/* Called before an operation changes anything. */
static int keep_for_undo(struct banyan_codec_state *st)
{
    struct bny_state_kept *k = st->kept;
    size_t need = st->planes * plane_bytes(st) + st->track_bytes + st->keep_bytes;
    char *at;

    if (!k)
        return 0;
    k->valid = 0;
    if (need > k->cap) {
        at = realloc(k->bytes, need);
        if (!at)
            return bny_fail(BANYAN_ENOMEM, "no memory of %zu bytes to undo a codec state",
                            need);
        k->bytes = at;
        k->cap = need;
    }
    at = k->bytes;
    state_put(&at, st->ef, st->planes * plane_bytes(st));
    state_put(&at, st->track, st->track_bytes);
    state_put(&at, st->keep, st->keep_bytes);
    k->step = st->step;
    k->planes = st->planes;
    k->ef_scale = st->ef_scale;
    k->codec = st->codec;
    k->track_bytes = st->track_bytes;
    k->keep_bytes = st->keep_bytes;
    k->rows = st->rows;
    k->cols = st->cols;
    k->valid = 1;
    return 0;
}

/* Since then a codec's memory was at most replaced by memory of another length. */
static int restore(struct banyan_codec_state *st)
{
    const struct bny_state_kept *k = st->kept;
    const char *at = k->bytes;
    int rc = refit(&st->track, &st->track_bytes, k->track_bytes);

    if (rc == 0)
        rc = refit(&st->keep, &st->keep_bytes, k->keep_bytes);
    if (rc)
        return rc;
    memset(st->ef, 0, st->planes * plane_bytes(st));
    state_take(&at, st->ef, k->planes * plane_bytes(st));
    state_take(&at, st->track, k->track_bytes);
    state_take(&at, st->keep, k->keep_bytes);
    st->step = k->step;
    st->ef_scale = k->ef_scale;
    st->codec = k->codec;
    st->rows = k->rows;
    st->cols = k->cols;
    return 0;
}

int banyan_codec_state_undo(struct banyan_codec_state *st, uint32_t step)
{
    int rc = state_check(st, "banyan_codec_state_undo");

    if (rc || step == st->step)
        return rc;
    if (!st->kept)
        return bny_fail(BANYAN_EINVAL, "banyan_codec_state_undo: nothing is kept; call "
                                       "banyan_codec_state_keep_undo first");
    if (!st->kept->valid || st->kept->step != step)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_codec_state_undo: step %u is asked for, this is step %u, and "
                        "%s%u can be undone",
                        step, st->step, st->kept->valid ? "only to " : "nothing before ",
                        st->kept->valid ? st->kept->step : st->step);
    return restore(st);
}

/* ---- operations ---- */

static int same_params(const struct bny_codec *a, const struct bny_codec *b)
{
    return a->ops == b->ops && !memcmp(a->param, b->param, sizeof a->param);
}

int bny_state_begin(struct banyan_codec_state *st, const struct bny_codec *codec, int64_t rows,
                    int64_t cols, int takes_part)
{
    const struct bny_codec_ops *ops = codec->ops;
    size_t keep = ops->linear ? ops->linear->keep_bytes(codec, st->count, rows, cols) : 0;
    int rc = state_check(st, "codec_state");
    BNY_FIXED_FP_MODE;

    if (rc == 0)
        rc = keep_for_undo(st);
    if (rc)
        return rc;
    if (st->codec &&
        st->codec->ops != ops) { /* another codec's are unusable; its residuals are valid */
        memset(st->ef + st->count, 0, (st->planes - 1) * plane_bytes(st));
        if (st->track)
            memset(st->track, 0, st->track_bytes);
    }
    if (st->keep &&
        (!st->codec || !same_params(st->codec, codec) || rows != st->rows || cols != st->cols))
        memset(st->keep, 0, st->keep_bytes);
    rc = grow_planes(st, 1 + ops->elem_floats);
    if (rc == 0)
        rc = refit(&st->track, &st->track_bytes, ops->track_bytes);
    if (rc == 0)
        rc = refit(&st->keep, &st->keep_bytes, keep);
    if (rc)
        return rc;
    st->codec = codec;
    st->rows = rows;
    st->cols = cols;
    st->busy = 1;
    for (size_t i = 0; takes_part && st->ef_scale != 1 && i < st->count;
         i++) /* all of them, encoded in this operation or not */
        st->ef[i] *= st->ef_scale;
    if (takes_part)
        st->ef_scale = 1;
    if (ops->begin && st->track)
        ops->begin(codec, st->track, st->step);
    return 0;
}

void bny_state_end(struct banyan_codec_state *st)
{
    st->busy = 0;
    st->step++;
}
