/* SPDX-License-Identifier: BSD-3-Clause */
/* A row for every public function: how it is called, and what kind of answer it has. */
#include "tests/training/entries.h"

#include <stdint.h>
#include <string.h>

/* 1: this is the one, and it is to be called. */
static int is_called(struct entry *e, const char *name, enum entry_kind kind)
{
    if (e->kind != ENTRY_UNKNOWN || strcmp(e->name, name) != 0)
        return 0;
    e->kind = kind;
    return !e->only_kind;
}

#define ROW(kind, f, ...)                                                                      \
    if (is_called(e, #f, ENTRY_##kind))                                                        \
    e->rc = (long)f(__VA_ARGS__)
#define VOID(f, ...)                                                                           \
    if (is_called(e, #f, ENTRY_VOID))                                                          \
    f(__VA_ARGS__)
#define POINTER(kind, f, ...)                                                                  \
    if (is_called(e, #f, ENTRY_##kind))                                                        \
    e->rc = f(__VA_ARGS__) != NULL

static void blocking(struct entry *e, struct given *g)
{
    ROW(CODE, banyan_allreduce, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm, NULL);
    ROW(CODE, banyan_reduce, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, 0, g->comm, NULL);
    ROW(CODE, banyan_broadcast, g->buf, COUNT, BANYAN_F32, 0, g->comm, NULL);
    ROW(CODE, banyan_reduce_scatter, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm,
        NULL);
    ROW(CODE, banyan_reduce_scatterv, g->buf, g->to, g->counts, BANYAN_F32, BANYAN_SUM, g->comm,
        NULL);
    ROW(CODE, banyan_allgather, g->buf, g->to, COUNT, BANYAN_F32, g->comm, NULL);
    ROW(CODE, banyan_allgatherv, g->buf, g->to, g->counts, NULL, BANYAN_F32, g->comm, NULL);
    ROW(CODE, banyan_gather, g->buf, g->to, COUNT, BANYAN_F32, 0, g->comm, NULL);
    ROW(CODE, banyan_gatherv, g->buf, COUNT, g->to, g->counts, NULL, BANYAN_F32, 0, g->comm,
        NULL);
    ROW(CODE, banyan_scatter, g->buf, g->to, COUNT, BANYAN_F32, 0, g->comm, NULL);
    ROW(CODE, banyan_scatterv, g->buf, g->counts, NULL, g->to, COUNT, BANYAN_F32, 0, g->comm,
        NULL);
    ROW(CODE, banyan_alltoall, g->buf, g->to, COUNT, BANYAN_F32, g->comm, NULL);
    ROW(CODE, banyan_alltoallv, g->buf, g->counts, NULL, g->to, g->counts, NULL, BANYAN_F32,
        g->comm, NULL);
    ROW(CODE, banyan_barrier, g->comm, NULL);
    ROW(CODE, banyan_scan, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm, NULL);
    ROW(CODE, banyan_exscan, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm, NULL);
    ROW(CODE, banyan_send, g->buf, COUNT, BANYAN_F32, 1, g->comm, NULL);
    ROW(CODE, banyan_recv, g->to, COUNT, BANYAN_F32, 1, g->comm, NULL);
    ROW(CODE, banyan_sendrecv, g->buf, COUNT, BANYAN_F32, 0, g->to, COUNT, BANYAN_F32, 0,
        g->comm, NULL);
}

static void inits(struct entry *e, struct given *g)
{
    ROW(CODE, banyan_allreduce_init, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm,
        NULL, g->out);
    ROW(CODE, banyan_reduce_init, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, 0, g->comm,
        NULL, g->out);
    ROW(CODE, banyan_broadcast_init, g->buf, COUNT, BANYAN_F32, 0, g->comm, NULL, g->out);
    ROW(CODE, banyan_reduce_scatter_init, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm,
        NULL, g->out);
    ROW(CODE, banyan_reduce_scatterv_init, g->buf, g->to, g->counts, BANYAN_F32, BANYAN_SUM,
        g->comm, NULL, g->out);
    ROW(CODE, banyan_allgather_init, g->buf, g->to, COUNT, BANYAN_F32, g->comm, NULL, g->out);
    ROW(CODE, banyan_allgatherv_init, g->buf, g->to, g->counts, NULL, BANYAN_F32, g->comm, NULL,
        g->out);
    ROW(CODE, banyan_gather_init, g->buf, g->to, COUNT, BANYAN_F32, 0, g->comm, NULL, g->out);
    ROW(CODE, banyan_gatherv_init, g->buf, COUNT, g->to, g->counts, NULL, BANYAN_F32, 0,
        g->comm, NULL, g->out);
    ROW(CODE, banyan_scatter_init, g->buf, g->to, COUNT, BANYAN_F32, 0, g->comm, NULL, g->out);
    ROW(CODE, banyan_scatterv_init, g->buf, g->counts, NULL, g->to, COUNT, BANYAN_F32, 0,
        g->comm, NULL, g->out);
    ROW(CODE, banyan_alltoall_init, g->buf, g->to, COUNT, BANYAN_F32, g->comm, NULL, g->out);
    ROW(CODE, banyan_alltoallv_init, g->buf, g->counts, NULL, g->to, g->counts, NULL,
        BANYAN_F32, g->comm, NULL, g->out);
    ROW(CODE, banyan_barrier_init, g->comm, NULL, g->out);
    ROW(CODE, banyan_scan_init, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm, NULL,
        g->out);
    ROW(CODE, banyan_exscan_init, g->buf, g->to, COUNT, BANYAN_F32, BANYAN_SUM, g->comm, NULL,
        g->out);
    ROW(CODE, banyan_send_init, g->buf, COUNT, BANYAN_F32, 0, g->comm, NULL, g->out);
    ROW(CODE, banyan_recv_init, g->to, COUNT, BANYAN_F32, 0, g->comm, NULL, g->out);
}

static void requests(struct entry *e, struct given *g)
{
    ROW(CODE, banyan_start, g->req);
    ROW(CODE, banyan_start_once, g->req);
    ROW(CODE, banyan_test, g->req, g->done);
    ROW(CODE, banyan_wait_for, g->req, 0.1, g->done);
    ROW(CODE, banyan_wait, g->req, 0.1);
    ROW(CODE, banyan_wait_all, &g->req, 1, 0.1);
    ROW(CODE, banyan_wait_any, &g->req, 1, 0.1, (size_t *)g->out);
    ROW(CODE, banyan_request_stats, g->req, g->stats);
    ROW(CODE, banyan_request_on_done, g->req, NULL, NULL);
    ROW(CODE, banyan_request_source, g->req, NULL);
    ROW(CODE, banyan_probe, g->comm, 1, 0, NULL, NULL);
    ROW(FREE, banyan_request_free, g->req);
    ROW(CODE, banyan_progress, g->comm);
    ROW(CODE, banyan_progress_fd, g->comm);
    ROW(CODE, banyan_mem_alloc, g->comm, 4096, g->out);
    ROW(CODE, banyan_mem_free, g->comm, g->buf);
    ROW(CODE, banyan_mem_register, g->comm, g->buf, 4096, -1, 0);
    ROW(CODE, banyan_mem_deregister, g->comm, g->buf);
    ROW(NUMBER, banyan_codec_state_create, NULL, COUNT, 1);
    ROW(FREE, banyan_codec_state_free, g->state);
    ROW(CODE, banyan_codec_state_reset, g->state);
    ROW(CODE, banyan_codec_state_scale, g->state, 0.5);
    ROW(CODE, banyan_codec_state_move, g->state, 0, g->state, 0, COUNT);
    POINTER(POINTER, banyan_codec_state_residual, g->state);
    ROW(SIZE, banyan_codec_state_bytes, g->state);
    ROW(CODE, banyan_codec_state_save, g->state, g->buf, BUF_BYTES);
    ROW(CODE, banyan_codec_state_load, g->state, g->buf, 1000);
    ROW(CODE, banyan_codec_state_step, g->state, (uint32_t *)g->out);
    ROW(CODE, banyan_codec_state_keep_undo, g->state, 1);
    ROW(CODE, banyan_codec_state_undo, g->state, 0);
    ROW(CODE, banyan_codec_register, NULL);
}

static void comms(struct entry *e, struct given *g)
{
    ROW(CODE, banyan_comm_init, g->out, NULL, 1, 3, g->settings);
    ROW(CODE, banyan_comm_init_start, g->out, NULL, 1, 3, g->settings);
    ROW(CODE, banyan_comm_init_test, g->comm, g->done);
    ROW(CODE, banyan_comm_init_env, NULL, g->settings);
    ROW(CODE, banyan_comm_join, NULL, NULL, g->settings);
    ROW(CODE, banyan_comm_grow_id, g->comm, g->out);
    ROW(WAITS, banyan_comm_grow, g->comm, NULL, 1, g->settings, g->out);
    ROW(WAITS, banyan_comm_dup, g->comm, g->out);
    ROW(WAITS, banyan_comm_may_wait, g->comm, "a call");
    ROW(WAITS, banyan_comm_split, g->comm, 0, 0, g->out);
    ROW(WAITS, banyan_comm_finalize, g->comm);
    ROW(WAITS, banyan_comm_finalize_within, g->comm, 0.1);
    ROW(FREE, banyan_comm_destroy, g->comm);
    ROW(CODE, banyan_comm_rank, g->comm);
    ROW(CODE, banyan_comm_count, g->comm);
    ROW(CODE, banyan_abort, g->comm, g->name);
    ROW(CODE, banyan_async_error, g->comm, NULL, g->buf, 100);
    ROW(CODE, banyan_comm_failed, g->comm, g->done, 1);
    ROW(CODE, banyan_comm_revoke, g->comm, g->name);
    ROW(WAITS, banyan_comm_agree, g->comm, g->out, g->done, 1);
    ROW(WAITS, banyan_comm_shrink, g->comm, g->out);
    ROW(WAITS, banyan_comm_shrink_many, &g->comm, 1, g->out);
    ROW(WAITS, banyan_comm_create_group, g->comm, g->done, 1, 0, g->out);
    ROW(WAITS, banyan_comm_create_group_within, g->comm, g->done, 1, 0, 1.0, g->out);
    ROW(CODE, banyan_comm_stats, g->comm, g->stats);
    ROW(CODE, banyan_comm_plan, g->comm, g->name, COUNT, BANYAN_F32, g->buf, 200);
}

static void process(struct entry *e, struct given *g)
{
    (void)g;
    POINTER(NUMBER, banyan_strerror, 1);
    POINTER(NUMBER, banyan_last_error);
    POINTER(NUMBER, banyan_version_string);
    ROW(NUMBER, banyan_version);
    VOID(banyan_set_log, NULL, NULL, BANYAN_LOG_WARN);
    VOID(banyan_log, BANYAN_LOG_DEBUG, "%s", "a line");
    ROW(NUMBER, banyan_fail, BANYAN_EINVAL, "%s", "a sentence");
    ROW(NUMBER, banyan_dtype_bytes, BANYAN_F64);
    POINTER(NUMBER, banyan_dtype_name, BANYAN_F32);
    ROW(NUMBER, banyan_op_create_user, NULL, NULL, 0, 0, 1, NULL);
    ROW(NUMBER, banyan_op_create_premul_sum, 1, NULL);
    ROW(CODE, banyan_op_free, g->op);
    ROW(NUMBER, banyan_id_create, NULL);
    ROW(NUMBER, banyan_job_waiting);
    ROW(NUMBER, banyan_job_restarts);
    if (is_called(e, "banyan_group_start", ENTRY_NUMBER))
        e->rc = banyan_group_start() + banyan_group_end();
    ROW(NUMBER, banyan_group_end);
    POINTER(NUMBER, banyan_schedule_name, 0);
    POINTER(NUMBER, banyan_codec_name, 0);
    POINTER(NUMBER, banyan_transport_name, 0);
    ROW(NUMBER, banyan_param, 0, NULL, NULL, NULL, NULL);
}

static void objects(struct entry *e, struct given *g)
{
    ROW(WAITS, banyan_objects_create, g->comm, g->settings, g->out);
    ROW(WAITS, banyan_objects_finalize, g->store);
    ROW(FREE, banyan_objects_destroy, g->store);
    ROW(WAITS, banyan_object_put, g->store, (const struct banyan_object_id *)g->buf, g->to, 8);
    ROW(WAITS, banyan_object_create, g->store, (const struct banyan_object_id *)g->buf, 8,
        g->out);
    ROW(WAITS, banyan_object_fill, g->store, (const struct banyan_object_id *)g->buf, 8);
    ROW(WAITS, banyan_object_get, g->store, (const struct banyan_object_id *)g->buf, 0,
        g->view);
    ROW(WAITS, banyan_object_get_init, g->store, (const struct banyan_object_id *)g->buf,
        g->view, g->out);
    ROW(WAITS, banyan_object_open, g->store, (const struct banyan_object_id *)g->buf, 0,
        g->view);
    ROW(WAITS, banyan_object_wait, g->store, g->view, 0, 0, (size_t *)g->out);
    ROW(CODE, banyan_object_release, g->store, g->view);
    ROW(WAITS, banyan_object_delete, g->store, (const struct banyan_object_id *)g->buf);
    ROW(WAITS, banyan_object_reduce, g->store, (const struct banyan_object_id *)g->buf,
        (const struct banyan_object_id *)g->buf, 1, 1, 2, BANYAN_F32, BANYAN_SUM);
    ROW(WAITS, banyan_object_contributors, g->store, (const struct banyan_object_id *)g->buf,
        g->to, 1);
    ROW(CODE, banyan_objects_stats, g->store, g->stats);
}

static void accordion(struct entry *e, struct given *g)
{
    ROW(WAITS, banyan_accordion_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_accordion_free, g->accordion);
    ROW(CODE, banyan_accordion_observe, g->accordion, 0);
    ROW(WAITS, banyan_accordion_step, g->accordion, 1);
    ROW(CODE, banyan_accordion_level, g->accordion, 0);
    POINTER(POINTER, banyan_accordion_codec, g->accordion, 0);
    ROW(NUMBER, banyan_accordion_accumulate, g->accordion);
    ROW(SIZE, banyan_accordion_bytes, g->accordion);
    ROW(CODE, banyan_accordion_save, g->accordion, g->buf, BUF_BYTES);
    ROW(CODE, banyan_accordion_load, g->accordion, g->buf, 1000);
    ROW(WAITS, banyan_outer_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_outer_free, g->outer);
    ROW(WAITS, banyan_outer_step, g->outer, 1, 1);
    ROW(WAITS, banyan_outer_settle, g->outer);
    ROW(WAITS, banyan_outer_finish, g->outer);
    ROW(SIZE, banyan_outer_period, g->outer);
    ROW(SIZE, banyan_outer_bytes, g->outer);
    ROW(CODE, banyan_outer_save, g->outer, g->buf, BUF_BYTES);
    ROW(CODE, banyan_outer_load, g->outer, g->buf, 1000);
    ROW(WAITS, banyan_outer_move, g->outer, g->comm);
    ROW(WAITS, banyan_shared_mask_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_shared_mask_free, g->mask);
    ROW(WAITS, banyan_shared_mask_step, g->mask);
    ROW(CODE, banyan_shared_mask_scale, g->mask, 0.5);
    ROW(SIZE, banyan_shared_mask_bytes, g->mask);
    ROW(CODE, banyan_shared_mask_save, g->mask, g->buf, BUF_BYTES);
    ROW(CODE, banyan_shared_mask_load, g->mask, g->buf, 1000);
    ROW(WAITS, banyan_stale_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_stale_free, g->stale);
    ROW(WAITS, banyan_stale_step, g->stale);
    ROW(WAITS, banyan_stale_settle, g->stale);
    ROW(SIZE, banyan_stale_bytes, g->stale);
    ROW(CODE, banyan_stale_save, g->stale, g->buf, BUF_BYTES);
    ROW(CODE, banyan_stale_load, g->stale, g->buf, 1000);
}

static void buckets(struct entry *e, struct given *g)
{
    ROW(WAITS, banyan_buckets_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_buckets_free, g->buckets);
    ROW(WAITS, banyan_buckets_ready, g->buckets, 0);
    ROW(WAITS, banyan_buckets_ready_part, g->buckets, 0, 0, 1);
    ROW(WAITS, banyan_buckets_progress, g->buckets);
    ROW(WAITS, banyan_buckets_wait, g->buckets);
    ROW(CODE, banyan_buckets_set_accumulate, g->buckets, 2);
    ROW(SIZE, banyan_buckets_micro, g->buckets);
    ROW(CODE, banyan_buckets_set_codec, g->buckets, 0, g->name);
    POINTER(POINTER, banyan_buckets_codec, g->buckets, 0);
    ROW(CODE, banyan_buckets_scale_residuals, g->buckets, 1);
    POINTER(POINTER, banyan_buckets_residual, g->buckets, 0);
    ROW(CODE, banyan_buckets_tensor_stats, g->buckets, 0, g->stats);
    ROW(CODE, banyan_buckets_stats, g->buckets, g->stats);
    ROW(CODE, banyan_buckets_profile, g->buckets, g->name);
    ROW(SIZE, banyan_buckets_bytes, g->buckets);
    ROW(CODE, banyan_buckets_save, g->buckets, g->buf, BUF_BYTES);
    ROW(CODE, banyan_buckets_load, g->buckets, g->buf, 1000);
    ROW(WAITS, banyan_lgc_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_lgc_free, g->lgc);
    ROW(WAITS, banyan_lgc_step, g->lgc);
    ROW(WAITS, banyan_lgc_get_stats, g->lgc, g->stats);
    ROW(SIZE, banyan_lgc_bytes, g->lgc);
    ROW(CODE, banyan_lgc_save, g->lgc, g->buf, BUF_BYTES);
    ROW(CODE, banyan_lgc_load, g->lgc, g->buf, 1000);
    ROW(WAITS, banyan_sketch_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_sketch_free, g->sketch);
    ROW(WAITS, banyan_sketch_step, g->sketch);
    ROW(CODE, banyan_sketch_scale, g->sketch, 0.5);
    ROW(CODE, banyan_sketch_stats, g->sketch, g->stats);
    ROW(SIZE, banyan_sketch_bytes, g->sketch);
    ROW(CODE, banyan_sketch_save, g->sketch, g->buf, BUF_BYTES);
    ROW(CODE, banyan_sketch_load, g->sketch, g->buf, 1000);
}

static void gossip(struct entry *e, struct given *g)
{
    static const size_t none[] = { 0 };
    struct banyan_rows_plan lists = { sizeof lists, "rows", 4, 4, none, NULL, none };
    struct banyan_rows_plan *plan = g->counts ? &lists : NULL;

    ROW(WAITS, banyan_gossip_create, g->out, g->comm, g->tensors, 1, g->settings);
    ROW(FREE, banyan_gossip_free, g->gossip);
    ROW(WAITS, banyan_gossip_step, g->gossip);
    ROW(WAITS, banyan_gossip_consensus, g->gossip, (double *)g->out);
    ROW(WAITS, banyan_gossip_finish, g->gossip);
    ROW(CODE, banyan_gossip_stats, g->gossip, g->stats);
    ROW(SIZE, banyan_gossip_bytes, g->gossip);
    ROW(CODE, banyan_gossip_save, g->gossip, g->buf, BUF_BYTES);
    ROW(CODE, banyan_gossip_load, g->gossip, g->buf, 1000);
    ROW(WAITS, banyan_rows_create, g->out, g->comm, plan, g->settings);
    ROW(FREE, banyan_rows_free, g->rows);
    ROW(WAITS, banyan_rows_exchange, g->rows, g->buf, g->to);
    ROW(CODE, banyan_rows_adapt, g->rows, 1);
    ROW(CODE, banyan_rows_stats, g->rows, g->stats);
    ROW(SIZE, banyan_rows_bytes, g->rows);
    ROW(CODE, banyan_rows_save, g->rows, g->buf, BUF_BYTES);
    ROW(CODE, banyan_rows_load, g->rows, g->buf, 1000);
    ROW(WAITS, banyan_lazy_create, g->out, g->comm, COUNT, g->settings);
    ROW(FREE, banyan_lazy_free, g->lazy);
    ROW(WAITS, banyan_lazy_exchange, g->lazy, g->buf, g->to);
    ROW(CODE, banyan_lazy_descend, g->lazy, g->buf);
    ROW(CODE, banyan_lazy_moved, g->lazy, 1);
    ROW(CODE, banyan_lazy_set_alpha, g->lazy, 0.1);
    ROW(CODE, banyan_lazy_stats, g->lazy, g->stats);
    ROW(SIZE, banyan_lazy_bytes, g->lazy);
    ROW(CODE, banyan_lazy_save, g->lazy, g->buf, BUF_BYTES);
    ROW(CODE, banyan_lazy_load, g->lazy, g->buf, 1000);
}

void entry_call(struct entry *e, struct given *g)
{
    e->kind = ENTRY_UNKNOWN;
    e->rc = 0;
    blocking(e, g);
    inits(e, g);
    requests(e, g);
    comms(e, g);
    process(e, g);
    objects(e, g);
    accordion(e, g);
    buckets(e, g);
    gossip(e, g);
}
