/* SPDX-License-Identifier: BSD-3-Clause */
/* A model of three tensors, one of them small, and of 3 + 1 + 2000 elements. */
#ifndef BNY_TESTS_MP_SMALL_MODEL_H
#define BNY_TESTS_MP_SMALL_MODEL_H

#include <string.h>

#include "banyan/training.h"

enum { TENSORS = 3, ELEMENTS = 3 + 1 + 2000 };

struct model {
    float x[ELEMENTS];
    struct banyan_tensor tensors[TENSORS];
};

static inline void model_init(struct model *m)
{
    static const int64_t shape_a[] = { 3 }, shape_c[] = { 40, 50 };

    memset(m, 0, sizeof *m);
    m->tensors[0] = (struct banyan_tensor){ "a", BANYAN_F32, 1, shape_a, m->x };
    m->tensors[1] = (struct banyan_tensor){ "b", BANYAN_F32, 0, NULL, m->x + 3 };
    m->tensors[2] = (struct banyan_tensor){ "c", BANYAN_F32, 2, shape_c, m->x + 4 };
}

#endif
