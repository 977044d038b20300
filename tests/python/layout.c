/* SPDX-License-Identifier: BSD-3-Clause */
/* Prints sizes, offsets, enum values and initial bytes of banyan.h, one `name value` a line,
 * for test_layout.py. */
#include <banyan/banyan.h>
#include <banyan/training.h>

#include <stdio.h>
#include <string.h>

#include "base/counts.h"

#define SIZE(type) printf("sizeof %s %zu\n", #type, sizeof(struct banyan_##type))
#define AT(type, member)                                                                       \
    printf("%s.%s %zu\n", #type, #member, offsetof(struct banyan_##type, member))
#define VALUE(name) printf("value %s %d\n", #name, (int)BANYAN_##name)

static void print_config(void)
{
    SIZE(config);
    AT(config, size);
    AT(config, init_timeout_s);
    AT(config, op_timeout_s);
    AT(config, transport);
    AT(config, schedule);
    AT(config, codec);
    AT(config, ifname);
    AT(config, port_range);
    AT(config, chunk_bytes);
    AT(config, progress_thread);
    AT(config, progress_cpu);
    AT(config, deterministic);
    AT(config, progress_hook);
    AT(config, progress_hook_ctx);
    AT(config, allgather);
    AT(config, allgather_ctx);
    AT(config, topology);
}

static void print_opts(void)
{
    SIZE(opts);
    AT(opts, size);
    AT(opts, schedule);
    AT(opts, codec);
    AT(opts, timeout_s);
    AT(opts, tag);
    AT(opts, deterministic);
    AT(opts, chunk_bytes);
    AT(opts, shape);
    AT(opts, ndim);
    AT(opts, codec_state);
    AT(opts, reduce);
    SIZE(reduce_opts);
    AT(reduce_opts, size);
    AT(reduce_opts, participants);
    AT(reduce_opts, contributors);
    AT(reduce_opts, at_least);
}

static void print_stats(void)
{
    SIZE(stats);
    AT(stats, size);
    AT(stats, ops);
    AT(stats, wire_bytes);
    AT(stats, messages);
    AT(stats, copied_bytes);
    AT(stats, sleeps);
    AT(stats, replaced);
    AT(stats, moved);
    AT(stats, staged_bytes);
    AT(stats, pinned_bytes);
    AT(stats, sums_asked);
    AT(stats, sums_by_arrival);
    SIZE(request_stats);
    AT(request_stats, size);
    AT(request_stats, wire_bytes);
    AT(request_stats, start_ns);
    AT(request_stats, end_ns);
}

static void print_buckets(void)
{
    SIZE(tensor);
    AT(tensor, name);
    AT(tensor, dtype);
    AT(tensor, ndim);
    AT(tensor, shape);
    AT(tensor, grad);
    SIZE(buckets_config);
    AT(buckets_config, size);
    AT(buckets_config, bucket_bytes);
    AT(buckets_config, first_bytes);
    AT(buckets_config, op);
    AT(buckets_config, codec);
    AT(buckets_config, rules);
    AT(buckets_config, accumulate);
    AT(buckets_config, unused);
    AT(buckets_config, deterministic);
    AT(buckets_config, seed);
    AT(buckets_config, check_nan);
    AT(buckets_config, norms);
    AT(buckets_config, progress);
    AT(buckets_config, timeout_s);
    AT(buckets_config, profile);
    SIZE(buckets_stats);
    AT(buckets_stats, size);
    AT(buckets_stats, steps);
    AT(buckets_stats, buckets);
    AT(buckets_stats, wire_bytes);
    AT(buckets_stats, wire_bytes_sum);
    AT(buckets_stats, hidden_s);
    AT(buckets_stats, exposed_s);
    AT(buckets_stats, hidden_s_sum);
    AT(buckets_stats, exposed_s_sum);
    SIZE(buckets_tensor_stats);
    AT(buckets_tensor_stats, size);
    AT(buckets_tensor_stats, norm);
    AT(buckets_tensor_stats, wire_bytes);
    AT(buckets_tensor_stats, hidden_s);
    AT(buckets_tensor_stats, exposed_s);
    AT(buckets_tensor_stats, bucket);
}

static void print_controllers(void)
{
    SIZE(accordion_config);
    AT(accordion_config, size);
    AT(accordion_config, eta);
    AT(accordion_config, interval);
    AT(accordion_config, window);
    AT(accordion_config, rate_drop);
    AT(accordion_config, min_count);
    AT(accordion_config, little);
    AT(accordion_config, much);
    AT(accordion_config, accumulate);
    SIZE(outer_config);
    AT(outer_config, size);
    AT(outer_config, period);
    AT(outer_config, fragments);
    AT(outer_config, delay);
    AT(outer_config, warm_up);
    AT(outer_config, momentum);
    AT(outer_config, rate);
    AT(outer_config, merge);
    AT(outer_config, residual);
    AT(outer_config, codec);
    AT(outer_config, rules);
    AT(outer_config, adaptive);
    AT(outer_config, weighted);
    AT(outer_config, seed);
}

static void print_values(void)
{
    VALUE(F32), VALUE(F64), VALUE(F16), VALUE(BF16), VALUE(I8), VALUE(U8), VALUE(I32),
        VALUE(U32);
    VALUE(I64), VALUE(U64), VALUE(BOOL), VALUE(I16), VALUE(U16), VALUE(C64), VALUE(C128);
    VALUE(F8E4M3), VALUE(F8E5M2);
    VALUE(SUM), VALUE(AVG), VALUE(MIN), VALUE(MAX), VALUE(PROD), VALUE(BAND), VALUE(BOR);
    VALUE(BXOR);
    VALUE(OK), VALUE(EINVAL), VALUE(ENOMEM), VALUE(ETIMEDOUT), VALUE(ERANKDEAD),
        VALUE(EMISMATCH);
    VALUE(EABORTED), VALUE(EPROTO), VALUE(ENOTSUP), VALUE(ESYSTEM), VALUE(EFORK), VALUE(EBUSY);
    VALUE(EVERSION), VALUE(ECONFIG), VALUE(ANY_SOURCE), VALUE(SPLIT_HOST);
    printf("count dtype %d\ncount op %d\ncount error %d\n", (int)BNY_DTYPE_COUNT,
           (int)BNY_OP_COUNT, (int)BNY_ERROR_COUNT);
}

static void print_initial(const char *name, const void *whole, size_t bytes)
{
    printf("initial %s ", name);
    for (size_t i = 0; i < bytes; i++)
        printf("%02x", ((const unsigned char *)whole)[i]);
    printf("\n");
}

/* Static: bytes between members are 0 then. Addresses differ from process to process, so
 * Accordion's texts are printed apart. */
static void print_all_initial(void)
{
    static const struct banyan_config config = BANYAN_CONFIG_INIT;
    static const struct banyan_opts opts = BANYAN_OPTS_INIT;
    static const struct banyan_buckets_config buckets_config = BANYAN_BUCKETS_CONFIG_INIT;
    static const struct banyan_outer_config outer_config = BANYAN_OUTER_CONFIG_INIT;
    static struct banyan_accordion_config accordion_config = BANYAN_ACCORDION_CONFIG_INIT;

    print_initial("config", &config, sizeof config);
    print_initial("opts", &opts, sizeof opts);
    print_initial("buckets_config", &buckets_config, sizeof buckets_config);
    print_initial("outer_config", &outer_config, sizeof outer_config);
    print_initial("accordion_little", accordion_config.little, strlen(accordion_config.little));
    print_initial("accordion_much", accordion_config.much, strlen(accordion_config.much));
    accordion_config.little = accordion_config.much = NULL;
    print_initial("accordion_config", &accordion_config, sizeof accordion_config);
}

int main(void)
{
    print_all_initial();
    print_config();
    print_opts();
    print_stats();
    print_buckets();
    print_controllers();
    SIZE(id);
    AT(id, bytes);
    print_values();
    return 0;
}
