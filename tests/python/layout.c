/* SPDX-License-Identifier: BSD-3-Clause */
/* Prints sizes, offsets, enum values and initial bytes of banyan.h, one `name value` a line,
 * for test_layout.py. */
#include <banyan/banyan.h>

#include <stdio.h>

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

static void print_values(void)
{
    VALUE(F32), VALUE(F64), VALUE(F16), VALUE(BF16), VALUE(I8), VALUE(U8), VALUE(I32),
        VALUE(U32);
    VALUE(I64), VALUE(U64);
    VALUE(SUM), VALUE(AVG), VALUE(MIN), VALUE(MAX), VALUE(PROD), VALUE(BAND), VALUE(BOR);
    VALUE(BXOR);
    VALUE(OK), VALUE(EINVAL), VALUE(ENOMEM), VALUE(ETIMEDOUT), VALUE(ERANKDEAD),
        VALUE(EMISMATCH);
    VALUE(EABORTED), VALUE(EPROTO), VALUE(ENOTSUP), VALUE(ESYSTEM), VALUE(EFORK), VALUE(EBUSY);
    VALUE(EVERSION), VALUE(ECONFIG);
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

int main(void)
{
    const struct banyan_config config = BANYAN_CONFIG_INIT;
    const struct banyan_opts opts = BANYAN_OPTS_INIT;

    print_initial("config", &config, sizeof config);
    print_initial("opts", &opts, sizeof opts);
    print_config();
    print_opts();
    SIZE(id);
    AT(id, bytes);
    print_values();
    return 0;
}
