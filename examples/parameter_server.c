/* SPDX-License-Identifier: BSD-3-Clause */
/* An asynchronous parameter server: rank 0 averages the first gradients to be there; nobody
 * waits for workers that are slow or dead. Tickets tell workers which model to take.
 * banyan_run --keep-going -n 5 parameter_server [rank that dies] */
#include <banyan/objects.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 100000, STEPS = 200, STALE = 20, RANKS_MAX = 64, MODEL, GRADIENT, TICKET, SUM };
static struct banyan_objects *store;
static float x[DIM]; /* the model; at workers, the gradient */

static struct banyan_object_id name(int kind, int worker, int number)
{
    struct banyan_object_id id = { { (unsigned char)kind, (unsigned char)worker } };
    memcpy(id.bytes + 4, &number, sizeof number);
    return id;
}
static int check(int rc)
{
    if (rc < 0)
        fprintf(stderr, "%s\n", banyan_last_error());
    return rc < 0 ? exit(1), rc : rc;
}
static void put(struct banyan_object_id id, const void *data, size_t bytes)
{
    check(banyan_object_put(store, &id, data, bytes));
}
static void get(struct banyan_object_id id, void *to) /* a copy; views need none */
{
    struct banyan_object o;
    check(banyan_object_get(store, &id, -1, &o));
    memcpy(to, o.data, o.bytes);
    check(banyan_object_release(store, &o));
}
static void work(int me, int dies)
{
    for (int i = 0, version;; i++) {
        get(name(TICKET, me, i), &version);
        if (version < 0)
            return;
        get(name(MODEL, 0, version), x);
        for (int j = 0; j < DIM; j++)
            x[j] -= (float)(j % 7); /* the gradient of half the squared distance */
        if (dies && i == 1)
            raise(SIGKILL);
        put(name(GRADIENT, me, i), x, sizeof x);
    }
}
static void serve(int n, int k)
{
    struct banyan_object_id ids[RANKS_MAX], old;
    int next[RANKS_MAX] = { 0 }, given[RANKS_MAX] = { 0 }, version = 0, last = -1, fresh;
    static float mean[DIM];
    uint8_t in[RANKS_MAX];

    put(name(MODEL, 0, 0), x, sizeof x);
    for (int w = 1; w < n; w++)
        put(name(TICKET, w, 0), &version, sizeof version);
    for (version = 1; version <= STEPS; version++) {
        struct banyan_object_id sum = name(SUM, 0, version);
        for (int w = 1; w < n; w++)
            ids[w - 1] = name(GRADIENT, w, next[w]);
        check(banyan_object_reduce(store, &sum, ids, (size_t)n - 1, (size_t)k, DIM, BANYAN_F32,
                                   BANYAN_AVG));
        get(sum, mean);
        check(banyan_object_contributors(store, &sum, in, (size_t)n - 1));
        check(banyan_object_delete(store, &sum));
        fresh = 1; /* whose model is long gone would lead away from where we are */
        for (int w = 1; w < n; w++)
            fresh &= !in[w - 1] || version - given[w] <= STALE;
        for (int j = 0; j < DIM && fresh; j++)
            x[j] -= 0.3f * mean[j];
        put(name(MODEL, 0, version), x, sizeof x);
        for (int w = 1; w < n; w++)
            if (in[w - 1]) { /* who waits gets on with the new model */
                old = name(GRADIENT, w, next[w]);
                check(banyan_object_delete(store, &old));
                put(name(TICKET, w, ++next[w]), &version, sizeof version);
                given[w] = version;
            }
    }
    for (int w = 1; w < n; w++)
        put(name(TICKET, w, next[w] + 1), &last, sizeof last);
}
int main(int argc, char **argv)
{
    struct banyan_comm *comm;
    double far = 0;
    check(banyan_comm_init_env(&comm, NULL));
    check(banyan_objects_create(comm, NULL, &store));
    if (banyan_comm_rank(comm) == 0)
        serve(banyan_comm_count(comm), (banyan_comm_count(comm) - 1) / 2);
    else
        work(banyan_comm_rank(comm), argc > 1 && atoi(argv[1]) == banyan_comm_rank(comm));
    for (int j = 0; banyan_comm_rank(comm) == 0 && j < DIM; j++)
        far += (double)(x[j] - (float)(j % 7)) * (double)(x[j] - (float)(j % 7));
    if (banyan_comm_rank(comm) == 0)
        printf("squared distance from the optimum: %g\n", far);
    check(banyan_objects_finalize(store));
    banyan_comm_destroy(comm);
    return far < 1 ? 0 : 1;
}
