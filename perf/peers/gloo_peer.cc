/* SPDX-License-Identifier: BSD-3-Clause */
/* The benchmark loop over Gloo's TCP transport on the loopback, or with PEER_ADDRESS.
 * usage: gloo_peer RANK NRANKS STORE_FOLDER COLLECTIVE ITERS WARMUP INPLACE SIZE... */
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include "peer_loop.h"

namespace
{

/* Option objects hold the buffers' registration: one set per size, as a training loop would
 * keep them. */
struct state {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::unique_ptr<gloo::BarrierOptions> barrier;
    std::unique_ptr<gloo::AllreduceOptions> allreduce;
    std::unique_ptr<gloo::AllgatherOptions> allgather;
    std::unique_ptr<gloo::AlltoallOptions> alltoall;
    std::unique_ptr<gloo::BroadcastOptions> broadcast;
    std::unique_ptr<gloo::ReduceOptions> reduce;
    std::unique_ptr<gloo::GatherOptions> gather;
    std::unique_ptr<gloo::ScatterOptions> scatter;
};

state *of(struct peer *p)
{
    return static_cast<state *>(p->ctx);
}

void barrier(struct peer *p)
{
    gloo::barrier(*of(p)->barrier);
}

void sum(void *out, const void *a, const void *b, size_t n)
{
    gloo::sum<float>(out, a, b, n);
}

template <typename T> void set_in_out(T &o, const struct peer_call *c, size_t in, size_t out)
{
    o.setInput(c->send, in);
    o.setOutput(c->recv, out);
}

void prepare(struct peer *p, const struct peer_call *c)
{
    state *s = of(p);
    size_t n = c->count, all = n * static_cast<size_t>(p->nranks);

    s->allreduce.reset(new gloo::AllreduceOptions(s->context));
    if (!c->inplace)
        s->allreduce->setInput(c->send, n);
    s->allreduce->setOutput(c->recv, n);
    s->allreduce->setReduceFunction(sum);
    s->allgather.reset(new gloo::AllgatherOptions(s->context));
    set_in_out(*s->allgather, c, n, all);
    s->alltoall.reset(new gloo::AlltoallOptions(s->context));
    set_in_out(*s->alltoall, c, all, all);
    s->broadcast.reset(new gloo::BroadcastOptions(s->context));
    s->broadcast->setOutput(c->recv, n);
    s->broadcast->setRoot(0);
    s->reduce.reset(new gloo::ReduceOptions(s->context));
    set_in_out(*s->reduce, c, n, n);
    s->reduce->setRoot(0);
    s->reduce->setReduceFunction(sum);
    s->gather.reset(new gloo::GatherOptions(s->context));
    s->gather->setInput(c->send, n);
    if (p->rank == 0)
        s->gather->setOutput(c->recv, all);
    s->gather->setRoot(0);
    s->scatter.reset(new gloo::ScatterOptions(s->context));
    std::vector<float *> blocks;
    for (int r = 0; p->rank == 0 && r < p->nranks; r++)
        blocks.push_back(c->send + static_cast<size_t>(r) * n);
    if (p->rank == 0)
        s->scatter->setInputs(blocks, n);
    s->scatter->setOutput(c->recv, n);
    s->scatter->setRoot(0);
}

int run(struct peer *p, const struct peer_call *c)
{
    state *s = of(p);

    if (peer_is(c, "allreduce"))
        gloo::allreduce(*s->allreduce);
    else if (peer_is(c, "allgather"))
        gloo::allgather(*s->allgather);
    else if (peer_is(c, "alltoall"))
        gloo::alltoall(*s->alltoall);
    else if (peer_is(c, "broadcast"))
        gloo::broadcast(*s->broadcast);
    else if (peer_is(c, "reduce"))
        gloo::reduce(*s->reduce);
    else if (peer_is(c, "gather"))
        gloo::gather(*s->gather);
    else if (peer_is(c, "scatter"))
        gloo::scatter(*s->scatter);
    else if (peer_is(c, "barrier"))
        barrier(p);
    else
        return -1;
    return 0;
}

void max_times(struct peer *p, double *us, int n)
{
    gloo::AllreduceOptions o(of(p)->context);

    o.setOutput(us, static_cast<size_t>(n));
    o.setReduceFunction([](void *out, const void *a, const void *b, size_t k) {
        gloo::max<double>(out, a, b, k);
    });
    gloo::allreduce(o);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 8) {
        fprintf(stderr,
                "usage: gloo_peer RANK NRANKS STORE COLLECTIVE ITERS WARMUP INPLACE SIZE...\n");
        return 2;
    }
    state s;
    struct peer p = {};
    gloo::rendezvous::FileStore store(argv[3]);
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    if (getenv("PEER_ADDRESS")) // ranks on several hosts
        attr.hostname = getenv("PEER_ADDRESS");
    auto device = gloo::transport::tcp::CreateDevice(attr);

    p.name = "gloo";
    p.rank = atoi(argv[1]);
    p.nranks = atoi(argv[2]);
    p.ctx = &s;
    p.barrier = barrier;
    p.run = run;
    p.max_times = max_times;
    p.prepare = prepare;
    s.context = std::make_shared<gloo::rendezvous::Context>(p.rank, p.nranks);
    s.context->connectFullMesh(store, device);
    s.barrier.reset(new gloo::BarrierOptions(s.context));
    return peer_main(&p, argc - 3, argv + 3);
}
