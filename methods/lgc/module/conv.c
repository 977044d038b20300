/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions of oneDNN in both directions (conv.h). All of them take direct convolution on
 * channels-last memory, for which oneDNN 2.6 has just-in-time code on x86-64 and AArch64;
 * elsewhere its reference code runs. */
#include "methods/lgc/module/conv.h"

#include <stdlib.h>
#include <string.h>

struct descs {
    dnnl_memory_desc_t wide, narrow, weights;
    dnnl_dims_t strides, before, after;
};

static int conv_describe(struct descs *d, const struct bny_conv_shape *s)
{
    dnnl_dims_t wide = { s->batch, s->wide, s->length };
    dnnl_dims_t narrow = { s->batch, s->narrow, s->length / s->stride };
    dnnl_dims_t weights = { s->narrow, s->wide, s->taps };
    int rc = dnnl_memory_desc_init_by_tag(&d->wide, 3, wide, dnnl_f32, dnnl_nwc);

    if (!rc)
        rc = dnnl_memory_desc_init_by_tag(&d->narrow, 3, narrow, dnnl_f32, dnnl_nwc);
    if (!rc)
        rc = dnnl_memory_desc_init_by_tag(&d->weights, 3, weights, dnnl_f32,
                                          dnnl_format_tag_any);
    d->strides[0] = s->stride;
    d->before[0] = s->taps == 3 ? 1 : 0;
    d->after[0] = 0;
    return rc;
}

static int make_primitive(struct bny_conv_pass *p, const void *desc, dnnl_query_t which,
                          const_dnnl_primitive_desc_t hint, dnnl_engine_t engine,
                          dnnl_memory_desc_t *weights, dnnl_primitive_desc_t *kept)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    int rc = dnnl_primitive_attr_create(&attr);

    /* Working memory of ours: a run then allocates none. */
    if (!rc)
        rc = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!rc)
        rc = dnnl_primitive_desc_create(&pd, desc, attr, engine, hint);
    if (!rc)
        rc = dnnl_primitive_create(&p->run, pd);
    if (!rc) {
        *weights = *dnnl_primitive_desc_query_md(pd, which, 0);
        rc = dnnl_memory_create(&p->scratch,
                                dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0),
                                engine, DNNL_MEMORY_ALLOCATE);
    }
    if (kept)
        *kept = pd;
    else if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return rc;
}

/* Copies weights between the plain layout and that of a primitive. */
static int make_pack(struct bny_conv_pass *p, const dnnl_memory_desc_t *from,
                     const dnnl_memory_desc_t *to, dnnl_engine_t engine)
{
    dnnl_primitive_desc_t pd;
    int rc = dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, NULL);

    if (rc)
        return rc;
    rc = dnnl_primitive_create(&p->pack, pd);
    dnnl_primitive_desc_destroy(pd);
    return rc;
}

static int make_sets(struct bny_conv_pass *p, const dnnl_memory_desc_t *desc, int sets,
                     dnnl_engine_t engine)
{
    int rc = 0;

    p->weights = calloc((size_t)sets + 1, sizeof *p->weights); /* NULL ends it */
    if (!p->weights)
        return dnnl_out_of_memory;
    for (int i = 0; i < sets && !rc; i++)
        rc = dnnl_memory_create(&p->weights[i], desc, engine, DNNL_MEMORY_ALLOCATE);
    return rc;
}

static int plain_desc(dnnl_memory_desc_t *out, const struct bny_conv_shape *s)
{
    dnnl_dims_t dims = { s->narrow, s->wide, s->taps };

    return dnnl_memory_desc_init_by_tag(out, 3, dims, dnnl_f32, dnnl_oiw);
}

/* The forward descriptor of a backward one's convolution is its hint: *fwd. */
static int make_down(struct bny_conv *c, struct descs *d, dnnl_engine_t engine,
                     dnnl_primitive_desc_t *fwd)
{
    dnnl_memory_desc_t own, plain;
    dnnl_convolution_desc_t desc;
    int rc = dnnl_convolution_forward_desc_init(
        &desc, dnnl_forward_training, dnnl_convolution_direct, &d->wide, &d->weights, NULL,
        &d->narrow, d->strides, d->before, d->after);

    if (!rc)
        rc = make_primitive(&c->down, &desc, dnnl_query_weights_md, NULL, engine, &own, fwd);
    if (!rc)
        rc = plain_desc(&plain, &c->shape);
    if (!rc)
        rc = make_pack(&c->down, &plain, &own, engine);
    return rc ? rc : make_sets(&c->down, &own, c->shape.sets, engine);
}

static int make_up(struct bny_conv *c, struct descs *d, dnnl_engine_t engine,
                   const_dnnl_primitive_desc_t fwd)
{
    dnnl_memory_desc_t own, plain;
    dnnl_convolution_desc_t desc;
    int rc = dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &d->wide,
                                                      &d->weights, &d->narrow, d->strides,
                                                      d->before, d->after);

    if (!rc)
        rc = make_primitive(&c->up, &desc, dnnl_query_weights_md, fwd, engine, &own, NULL);
    if (!rc)
        rc = plain_desc(&plain, &c->shape);
    if (!rc)
        rc = make_pack(&c->up, &plain, &own, engine);
    return rc ? rc : make_sets(&c->up, &own, c->shape.sets, engine);
}

static int make_grad(struct bny_conv *c, struct descs *d, dnnl_engine_t engine,
                     const_dnnl_primitive_desc_t fwd)
{
    dnnl_memory_desc_t own, plain;
    dnnl_convolution_desc_t desc;
    int rc = dnnl_convolution_backward_weights_desc_init(
        &desc, dnnl_convolution_direct, &d->wide, &d->weights, NULL, &d->narrow, d->strides,
        d->before, d->after);

    if (!rc)
        rc = make_primitive(&c->grad, &desc, dnnl_query_diff_weights_md, fwd, engine, &own,
                            NULL);
    if (!rc)
        rc = plain_desc(&plain, &c->shape);
    if (!rc)
        rc = make_pack(&c->grad, &own, &plain, engine);
    return rc ? rc : make_sets(&c->grad, &own, 1, engine);
}

static int make_memory(struct bny_conv *c, struct descs *d, dnnl_engine_t engine)
{
    dnnl_memory_desc_t plain;
    int rc = plain_desc(&plain, &c->shape);

    if (!rc)
        rc = dnnl_memory_create(&c->wide, &d->wide, engine, DNNL_MEMORY_NONE);
    if (!rc)
        rc = dnnl_memory_create(&c->narrow, &d->narrow, engine, DNNL_MEMORY_NONE);
    if (!rc)
        rc = dnnl_memory_create(&c->plain, &plain, engine, DNNL_MEMORY_NONE);
    return rc;
}

int bny_conv_init(struct bny_conv *c, const struct bny_conv_shape *shape, dnnl_engine_t engine,
                  dnnl_stream_t stream)
{
    dnnl_primitive_desc_t fwd = NULL;
    struct descs d;
    int rc;

    memset(c, 0, sizeof *c);
    c->shape = *shape;
    c->stream = stream;
    rc = conv_describe(&d, shape);
    if (!rc)
        rc = make_memory(c, &d, engine);
    if (!rc)
        rc = make_down(c, &d, engine, &fwd);
    if (!rc && (shape->up || shape->trains))
        rc = make_up(c, &d, engine, fwd);
    if (!rc && shape->trains)
        rc = make_grad(c, &d, engine, fwd);
    if (fwd)
        dnnl_primitive_desc_destroy(fwd);
    if (rc)
        bny_conv_finish(c);
    return rc;
}

static void finish_pass(struct bny_conv_pass *p)
{
    if (p->run)
        dnnl_primitive_destroy(p->run);
    if (p->pack)
        dnnl_primitive_destroy(p->pack);
    for (int i = 0; p->weights && p->weights[i]; i++)
        dnnl_memory_destroy(p->weights[i]);
    free(p->weights);
    if (p->scratch)
        dnnl_memory_destroy(p->scratch);
}

void bny_conv_finish(struct bny_conv *c)
{
    finish_pass(&c->down);
    finish_pass(&c->up);
    finish_pass(&c->grad);
    if (c->wide)
        dnnl_memory_destroy(c->wide);
    if (c->narrow)
        dnnl_memory_destroy(c->narrow);
    if (c->plain)
        dnnl_memory_destroy(c->plain);
    memset(c, 0, sizeof *c);
}

size_t bny_conv_weights(const struct bny_conv_shape *s)
{
    return (size_t)s->narrow * (size_t)s->wide * (size_t)s->taps;
}

/* oneDNN's C functions take no const where a primitive only reads. */
static int point(dnnl_memory_t m, const float *at)
{
    return dnnl_memory_set_data_handle(m, (void *)(uintptr_t)at);
}

static int reorder(struct bny_conv *c, dnnl_primitive_t pack, dnnl_memory_t from,
                   dnnl_memory_t to)
{
    dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } };

    return dnnl_primitive_execute(pack, c->stream, 2, args);
}

int bny_conv_pack(struct bny_conv *c, int set, const float *weights)
{
    int rc = point(c->plain, weights);

    if (!rc)
        rc = reorder(c, c->down.pack, c->plain, c->down.weights[set]);
    if (!rc && c->up.pack)
        rc = reorder(c, c->up.pack, c->plain, c->up.weights[set]);
    return rc;
}

static int sides(struct bny_conv *c, const float *wide, const float *narrow)
{
    int rc = point(c->wide, wide);

    return rc ? rc : point(c->narrow, narrow);
}

int bny_conv_down(struct bny_conv *c, int set, const float *wide, float *narrow)
{
    dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, c->wide },
                               { DNNL_ARG_WEIGHTS, c->down.weights[set] },
                               { DNNL_ARG_DST, c->narrow },
                               { DNNL_ARG_SCRATCHPAD, c->down.scratch } };
    int rc = sides(c, wide, narrow);

    return rc ? rc : (int)dnnl_primitive_execute(c->down.run, c->stream, 4, args);
}

int bny_conv_up(struct bny_conv *c, int set, const float *narrow, float *wide)
{
    dnnl_exec_arg_t args[] = { { DNNL_ARG_DIFF_DST, c->narrow },
                               { DNNL_ARG_WEIGHTS, c->up.weights[set] },
                               { DNNL_ARG_DIFF_SRC, c->wide },
                               { DNNL_ARG_SCRATCHPAD, c->up.scratch } };
    int rc = sides(c, wide, narrow);

    return rc ? rc : (int)dnnl_primitive_execute(c->up.run, c->stream, 4, args);
}

int bny_conv_grad(struct bny_conv *c, const float *wide, const float *narrow, float *weights)
{
    dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, c->wide },
                               { DNNL_ARG_DIFF_DST, c->narrow },
                               { DNNL_ARG_DIFF_WEIGHTS, c->grad.weights[0] },
                               { DNNL_ARG_SCRATCHPAD, c->grad.scratch } };
    int rc = sides(c, wide, narrow);

    if (!rc)
        rc = dnnl_primitive_execute(c->grad.run, c->stream, 4, args);
    if (!rc)
        rc = point(c->plain, weights);
    return rc ? rc : reorder(c, c->grad.pack, c->grad.weights[0], c->plain);
}
