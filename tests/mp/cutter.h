/* SPDX-License-Identifier: BSD-3-Clause */
/* Ends connections of a job that runs as a network does, one at a call. */
#ifndef BNY_TESTS_CUTTER_H
#define BNY_TESTS_CUTTER_H

struct bny_world;

/* A data connection over tcp: with turn 0, 1 and so on each in turn. Returns whether there was
 * one. Takes the world's lock. */
int cutter_data(struct bny_world *w, unsigned turn);
/* The same by who has that lock. */
int cutter_data_locked(struct bny_world *w, unsigned turn);
/* A control link, in the same way. Any thread. */
int cutter_control(struct bny_world *w, unsigned turn);

#endif
