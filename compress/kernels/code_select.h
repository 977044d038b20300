/* SPDX-License-Identifier: BSD-3-Clause */
/* Selection by threshold. Part of code_loops.h. A vector's kept elements are moved to the front
 * of a register and stored full width: storing with a mask is slower on every processor
 * measured. So a store may cover entries behind the last kept one, never those behind cap: near
 * cap it goes through a small buffer. */

/* State of a loop. */
struct keeping {
    u8_at *idx, *val;
    size_t cap, kept, over;
};

/* Keeps those of LANES elements at i whose bits are set, as far as there is room. Returns the
 * bits of the kept. */
INLINE unsigned keep_some(struct keeping *k, vf v, unsigned bits, size_t i, int wide)
{
    size_t count = (size_t)__builtin_popcount(bits), room = k->cap - k->kept;
    u8_at *idx = k->idx + (wide ? 4 : 2) * k->kept, *val = k->val + 4 * k->kept;

    k->over += count;
    if (__builtin_expect(room >= LANES, 1)) {
        if (wide)
            keep32(idx, val, v, bits, (uint32_t)i);
        else
            keep16(idx, val, v, bits, (uint32_t)i);
    } else {
        uint32_t some_idx[LANES];
        float some_val[LANES];

        for (; count > room; count--)
            bits &= ~(1u << (31 - __builtin_clz(bits)));
        if (wide)
            keep32((u8_at *)some_idx, (u8_at *)some_val, v, bits, (uint32_t)i);
        else
            keep16((u8_at *)some_idx, (u8_at *)some_val, v, bits, (uint32_t)i);
        if (count) {
            memcpy(idx, some_idx, (wide ? 4 : 2) * count);
            memcpy(val, some_val, 4 * count);
        }
    }
    k->kept += count;
    return bits;
}

/* STEP elements at x and ef, the array's i-th and following, of which the first `valid` exist.
 * Few steps have anything to keep: they share one branch. */
INLINE void select_step(struct keeping *k, const f32_at *x, f32_at *ef, vf s, vf eta, size_t i,
                        uint32_t valid, vf sum[VECTORS], vf excess[VECTORS], int wide)
{
    vi any = { 0 };

    for (int j = 0; j < VECTORS; j++) {
        vf a = vf_abs(vf_value(x, ef, s, j * LANES));

        sum[j] += a;
        any |= a > eta;
    }
    if (__builtin_expect(vf_signs((vf)any) == 0, 1)) {
        for (int j = 0; ef && j < VECTORS; j++)
            vf_store(ef + j * LANES, vf_value(x, ef, s, j * LANES));
        return;
    }
    for (int j = 0; j < VECTORS; j++) {
        vf v = vf_value(x, ef, s, j * LANES), a = vf_abs(v);
        unsigned bits = vf_signs((vf)(a > eta)) & valid >> j * LANES;

        if (bits) {
            excess[j] += vf_pick(bits, vf_set1(0), a - eta);
            bits = keep_some(k, v, bits, i + j * LANES, wide);
            if (ef)
                v = vf_pick(bits, v, vf_set1(0));
        }
        if (ef)
            vf_store(ef + j * LANES, v);
    }
}

INLINE size_t select_loop(struct keeping k, const f32_at *x, f32_at *ef, float s, size_t n,
                          float eta, struct bny_selection *sel, int wide)
{
    vf vs = vf_set1(s), veta = vf_set1(eta);

    *sel = (struct bny_selection){ 0 };
    for (size_t at = 0; at < n; at += BNY_SUM_SPAN) {
        size_t end = n - at < BNY_SUM_SPAN ? n : at + BNY_SUM_SPAN, i;
        vf sum[VECTORS] = { { 0 } }, excess[VECTORS] = { { 0 } };

        for (i = at; i + STEP <= end; i += STEP)
            select_step(&k, x + i, ef ? ef + i : NULL, vs, veta, i, UINT32_MAX, sum, excess,
                        wide);
        if (i < end) {
            float tx[STEP] = { 0 }, te[STEP] = { 0 };

            memcpy(tx, x + i, 4 * (end - i));
            if (ef)
                memcpy(te, ef + i, 4 * (end - i));
            select_step(&k, tx, ef ? te : NULL, vs, veta, i, (1u << (end - i)) - 1, sum, excess,
                        wide);
            if (ef)
                memcpy(ef + i, te, 4 * (end - i));
        }
        sel->sum += lanes_sum(sum);
        sel->excess += lanes_sum(excess);
    }
    sel->over = k.over;
    if (sel->sum != sel->sum)
        sel->sum = (double)NAN;
    return k.kept;
}

#define SELECT(bits, wide)                                                                     \
    static size_t select##bits(void *idx, void *val, size_t cap, const void *src, void *ef,    \
                               float s, size_t n, float eta, struct bny_selection *sel)        \
    {                                                                                          \
        struct keeping k = { .idx = idx, .val = val, .cap = cap };                             \
                                                                                               \
        if (ef)                                                                                \
            return select_loop(k, src, ef, s, n, eta, sel, wide);                              \
        return select_loop(k, src, NULL, s, n, eta, sel, wide);                                \
    }
SELECT(16, 0)
SELECT(32, 1)
#undef SELECT
