/* SPDX-License-Identifier: BSD-3-Clause */
/* Uses the installed libraries on top of libbanyan, each once: means of gradients. They share
 * with libbanyan what a process has once: the last error, the groups, the log. Exit status 1
 * when something is wrong. */
#include <banyan/methods.h>
#include <banyan/training.h>

#include <stdio.h>
#include <string.h>

#define N 1000
static float grad[N];
static const int64_t shape[] = { N };
static const struct banyan_tensor tensor = { "w", BANYAN_F32, 1, shape, grad };

static void fill(int rank)
{
    for (int i = 0; i < N; i++)
        grad[i] = (float)(rank + 1);
}

static int is_mean(int nranks)
{
    for (int i = 0; i < N; i++)
        if (grad[i] != (float)(nranks + 1) / 2)
            return 0;
    return 1;
}

static int buckets(struct banyan_comm *comm, int rank, int nranks)
{
    struct banyan_buckets *b;
    int rc = banyan_buckets_create(&b, comm, &tensor, 1, NULL);

    if (rc < 0)
        return rc;
    fill(rank);
    rc = banyan_buckets_ready(b, 0);
    if (rc == 0)
        rc = banyan_buckets_wait(b);
    banyan_buckets_free(b);
    return rc < 0 ? rc : is_mean(nranks);
}

static int stale(struct banyan_comm *comm, int rank, int nranks)
{
    struct banyan_stale_config cfg = BANYAN_STALE_CONFIG_INIT;
    struct banyan_stale *s;
    int rc;

    cfg.delay = 0;
    rc = banyan_stale_create(&s, comm, &tensor, 1, &cfg);
    if (rc < 0)
        return rc;
    fill(rank);
    rc = banyan_stale_step(s);
    if (rc == 1)
        rc = is_mean(nranks);
    banyan_stale_free(s);
    return rc;
}

static int lines;

static void hear(void *ctx, enum banyan_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    lines += strstr(line, "nosuch") != NULL;
}

/* 1: a group that libbanyan knows of hinders the others, which tell by its last error; and what
 * rank 0 warns of goes to its log. */
static int is_one_process(struct banyan_comm *comm)
{
    struct banyan_buckets_config cfg = BANYAN_BUCKETS_CONFIG_INIT;
    struct banyan_stale *s = NULL;
    struct banyan_buckets *b = NULL;
    int rc[2];

    banyan_group_start();
    rc[0] = banyan_buckets_create(&b, comm, &tensor, 1, NULL);
    rc[1] = banyan_stale_create(&s, comm, &tensor, 1, NULL);
    if (rc[0] != -BANYAN_EBUSY || rc[1] != rc[0] || !strstr(banyan_last_error(), "group"))
        return 0;
    banyan_group_end();
    cfg.rules = "nosuch=none";
    banyan_set_log(hear, NULL, BANYAN_LOG_WARN);
    if (banyan_buckets_create(&b, comm, &tensor, 1, &cfg) < 0)
        return 0;
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    return lines == (banyan_comm_rank(comm) == 0) && banyan_buckets_free(b) == 0 &&
           banyan_buckets_free(b) == -BANYAN_EINVAL && strstr(banyan_last_error(), "freed");
}

int main(void)
{
    struct banyan_comm *comm;
    int rank, nranks, rc;

    if (banyan_comm_init_env(&comm, NULL) != 0)
        goto fail;
    rank = banyan_comm_rank(comm);
    nranks = banyan_comm_count(comm);
    rc = buckets(comm, rank, nranks);
    if (rc == 1)
        rc = stale(comm, rank, nranks);
    if (rc == 1)
        rc = is_one_process(comm);
    if (rc < 0 || banyan_comm_finalize(comm) != 0)
        goto fail;
    printf("rank %d of %d: %s\n", rank, nranks, rc ? "means of gradients" : "wrong");
    return rc != 1;
fail:
    fprintf(stderr, "%s\n", banyan_last_error());
    return 1;
}
