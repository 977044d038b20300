/* SPDX-License-Identifier: BSD-3-Clause */
/* Settings of the objects of this layer, compared between ranks. */
#ifndef BNY_TRAINING_SETTINGS_H
#define BNY_TRAINING_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

struct banyan_comm;

struct bny_setting {
    const char *name;
    uint64_t value;
};
#define BNY_SETTINGS_MAX 16
/* Collective. 0, or -BANYAN_EMISMATCH with the first of n settings that is not the same on all
 * ranks, and the lowest rank that has another value than rank 0. */
int bny_settings_agree(struct banyan_comm *comm, const struct bny_setting *s, size_t n,
                       const char *what);
/* Of the values, for states to tell what they are of. */
uint64_t bny_settings_hash(const struct bny_setting *s, size_t n, uint64_t more);
/* For values that are no integers. */
uint64_t bny_setting_of_double(double x);
uint64_t bny_setting_of_text(const char *text);

#endif
