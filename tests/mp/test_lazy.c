/* SPDX-License-Identifier: BSD-3-Clause */
/* Ordered and lazy gradients between ranks. */
#include "tests/mp/table.h"

static struct mp_row rules[] = {
    { "lazy_rules", "shm", 1 },   { "lazy_rules", "shm", 2 },   { "lazy_rules", "shm", 5 },
    { "lazy_rules", "tcp", 4 },   { "lazy_silence", "shm", 1 }, { "lazy_silence", "shm", 2 },
    { "lazy_silence", "tcp", 3 }, { "lazy_rules", "shm", 9 },
};
MP_TABLE(lazy, those_send_whose_turn_it_is, rules)

static struct mp_row codecs[] = {
    { "lazy_codec", "shm", 2 },
    { "lazy_codec", "tcp", 3 },
    { "lazy_codec", "shm", 4 },
};
MP_TABLE(lazy, what_a_codec_loses_comes_later, codecs)

static struct mp_row states[] = {
    { "lazy_states", "shm", 1 },
    { "lazy_states", "shm", 3 },
    { "lazy_states", "tcp", 2 },
};
MP_TABLE(lazy, states_go_on_bit_by_bit, states)

static struct mp_row errors[] = {
    { "lazy_settings", "shm", 1 }, { "lazy_settings", "shm", 3 }, { "lazy_errors", "shm", 1 },
    { "lazy_errors", "shm", 2 },   { "lazy_errors", "tcp", 4 },
};
MP_TABLE(lazy, errors_name_rank_and_cause, errors)
