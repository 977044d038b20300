/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests: started again, many in flight in any order, grouped, and progressed in every way
 * the API has. */
#include "tests/mp/table.h"

static struct mp_row requests[] = {
    { "persistent", "shm", 1 },       { "persistent", "shm", 2 },
    { "persistent", "shm", 4 },       { "persistent", "tcp", 3 },
    { "persistent_large", "shm", 2 }, { "persistent_large", "shm", 3 },
    { "persistent_large", "tcp", 3 }, { "request_busy", "shm", 2 },
    { "request_busy", "tcp", 3 },
};
MP_TABLE(requests, start_again_and_again, requests)

static struct mp_row costs[] = {
    { "request_stats", "shm", 1 },
    { "request_stats", "shm", 2 },
    { "request_stats", "shm", 3 },
    { "request_stats", "tcp", 3 },
    { "request_stats", "shm", 2, .env = { "BANYAN_CMA=0" } },
};
MP_TABLE(requests, tell_what_they_cost, costs)

static struct mp_row flight[] = {
    { "in_flight", "shm", 1 },
    { "in_flight", "shm", 2 },
    { "in_flight", "shm", 3 },
    { "in_flight", "shm", 5 },
    { "in_flight", "tcp", 2 },
    { "in_flight", "tcp", 4 },
    { "in_flight_one_comm", "shm", 2 },
    { "in_flight_one_comm", "shm", 4 },
    { "in_flight_one_comm", "tcp", 3 },
    { "crowd", "shm", 2 },
    { "crowd", "shm", 3 },
    { "crowd", "tcp", 2 },
    { "crowd", "tcp", 3 },
    { "crowd", "shm", 2, .env = { "BANYAN_SCHEDULE=direct:messages" } },
    { "crowd", "shm", 3, .env = { "BANYAN_SCHEDULE=direct:messages" } },
};
MP_TABLE(requests, several_in_flight_in_any_order, flight)

static struct mp_row groups[] = {
    { "group_lacks", "shm", 2 },
    { "receiver_lacks", "tcp", 2 },
    { "begin_lacks", "tcp", 3 },
    { "begin_lacks", "shm", 2 },
    { "group_lacks", "tcp", 3 },
    { "group_lacks_codec", "shm", 2 },
    { "group_lacks_codec", "tcp", 3 },
    { "group_lacks_start", "shm", 2 },
    { "group_lacks_start", "shm", 3 },
    { "group_lacks_start", "tcp", 2 },
    { "group_lacks_start", "tcp", 3 },
    { "groups", "shm", 1 },
    { "groups", "shm", 2 },
    { "groups", "shm", 4 },
    { "groups", "shm", 7 },
    { "groups", "tcp", 3 },
    { "tags", "shm", 1 },
    { "tags", "shm", 2 },
    { "tags", "shm", 5 },
    { "tags", "tcp", 3 },
    { "send_before_recv", "shm", 2 },
    { "send_before_recv", "shm", 4 },
    { "send_before_recv", "tcp", 3 },
};
MP_TABLE(requests, point_to_point_and_groups, groups)

static struct mp_row flow[] = {
    { "many_tags", "shm", 2, .timeout_s = 20 },
    { "many_tags", "tcp", 2, .timeout_s = 20 },
    { "receive_from_self", "shm", 1, .timeout_s = 20 },
    { "receive_from_self", "shm", 2, .timeout_s = 20 },
    { "small_chunks", "shm", 2, .timeout_s = 20 },
    { "small_chunks", "shm", 2, .timeout_s = 20, .env = { "BANYAN_CMA=0" } },
    { "small_chunks", "tcp", 2, .timeout_s = 20 },
};
MP_TABLE(requests, messages_that_nobody_asked_for, flow)

static struct mp_row short_messages[] = {
    { "short", "shm", 2, "2000" },
    { "short", "shm", 2, "1000", .env = { "BANYAN_TEST_SEED=random" } },
    { "short", "shm", 3, "500", .env = { "BANYAN_TEST_SEED=random", "BANYAN_CMA=0" } },
    { "short", "shm", 5, "200" },
    { "short", "tcp", 2, "500" },
    { "short", "tcp", 3, "200", .env = { "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(requests, short_messages_in_all_ways, short_messages)

static struct mp_row progress[] = {
    { "progress_hook", "shm", 2 },
    { "progress_hook", "tcp", 3 },
    { "progress_thread", "shm", 2 },
    { "progress_thread", "tcp", 2 },
    { "progress_thread", "shm", 4 },
    { "self_beside_early", "shm", 3 },
    { "self_beside_early", "tcp", 2 },
    { "progress_fd", "shm", 2 },
    { "progress_fd", "shm", 4 },
    { "progress_fd", "tcp", 3 },
    { "leaves_nothing", "shm", 3 },
    { "leaves_nothing", "tcp", 2, .timeout_s = 20 },
    { "leaves_nothing", "tcp", 4, .timeout_s = 20 },
    { "stats", "shm", 2 },
    { "stats", "shm", 4 },
    { "stats", "tcp", 3 },
    { "stats_inside", "shm", 2 },
    { "stats_inside", "tcp", 3 },
};
MP_TABLE(requests, every_way_to_progress, progress)

static struct mp_row done[] = {
    { "on_done", "shm", 1 },       { "on_done", "shm", 3 },       { "on_done", "tcp", 2 },
    { "on_done_fails", "shm", 2 }, { "on_done_fails", "tcp", 3 }, { "two_threads", "shm", 2 },
    { "two_threads", "tcp", 3 },
};
MP_TABLE(requests, say_when_they_are_done, done)

static struct mp_row any_source[] = {
    { "any_source", "shm", 2 },       { "any_source", "shm", 4 },
    { "any_source", "tcp", 3 },       { "any_source_first", "shm", 1 },
    { "any_source_first", "shm", 3 }, { "any_source_first", "tcp", 4 },
    { "any_source_never", "shm", 2 }, { "any_source_never", "tcp", 3 },
};
MP_TABLE(requests, of_any_rank, any_source)

static struct mp_row looks[] = {
    { "any_thread_looks", "shm", 2 },
    { "any_thread_looks", "tcp", 3 },
};
MP_TABLE(requests, any_thread_may_look, looks)
