// SPDX-License-Identifier: BSD-3-Clause
// One call of c10d: what it asks of banyan, and its progress to completion.
#pragma once

#include "process_group.h"
#include "types.h"

#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace banyan_torch
{

// One operation of banyan. req NULL: the blocking call; else <name>_init.
using Step = std::function<int(banyan_comm *, const banyan_opts *, banyan_request **req)>;

// step<banyan_barrier, banyan_barrier_init>(): the arguments before `comm`.
template <auto Block, auto Init, typename... Args> Step step(Args... args)
{
    return [=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        return req ? Init(args..., comm, opts, req) : Block(args..., comm, opts);
    };
}

class Backend;

// Gives up the block of startCoalescing that the calling thread is in.
struct GiveUpBlock {
    void operator()(Backend *backend) const;
};

struct Call {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char *title = "";                    // "all_reduce", for profilers and errors
    std::vector<at::Tensor> inputs;            // for profilers; they live as long as the work
    std::vector<at::Tensor> outputs;           // the value of the future
    std::vector<at::Tensor> buffers;           // what else lives as long as the work
    std::vector<Step> steps;                   // all run together
    std::vector<std::function<void()>> afters; // copy results out of the buffers
    std::vector<std::shared_ptr<Op>> ops;      // which the steps use
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool async = true;
    bool inference = c10::InferenceMode::is_enabled(); // the mode of the caller
    // By step: the sender of a message, which a receive from any rank sets at its end.
    std::vector<std::shared_ptr<int>> sources;
    // Until the call is issued. A caller whose call is refused does not come to endCoalescing.
    std::unique_ptr<Backend, GiveUpBlock> refused;
};

class Work : public c10d::Work
{
  public:
    Work(std::shared_ptr<Group> group, int rank, uint64_t sequence, const std::string &title,
         Call call);
    ~Work() override;
    // Runs the call to its end. Throws what fails.
    void run();
    // Starts it. Throws if it cannot be started; what fails later is the work's exception.
    void start();

    bool isCompleted() override;
    bool isSuccess() const override;
    bool wait(std::chrono::milliseconds timeout) override;
    void abort() override;
    void synchronize() override;
    int sourceRank() const override;
    uint64_t getSequencenumber() const override;
    uint64_t getCompletionKey() const override;
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

    // For the completer: waits at most so long. Returns is_over().
    bool wait_requests(double seconds);
    // For Futures.
    bool is_over() const;
    bool is_message() const;
    void complete_future();

  private:
    static void step_done(void *work, banyan_request *req, int rc);
    int start_step(const Step &step, const banyan_opts *opts);
    // `steps` more are over, the first failure of all being why.
    void count(size_t steps, std::exception_ptr why);
    void copy_results();
    void end();
    void check_ended() const;
    void free_requests();
    std::shared_ptr<Group> group_;
    Lane &lane_;
    Call call_;
    const uint64_t sequence_, key_;
    std::vector<banyan_request *> requests_; // complete when start() returns
    std::atomic<size_t> pending_{ 0 };       // steps that are not over
    std::exception_ptr why_;                 // what failed first; end() makes it the exception
    std::atomic<bool> over_{ false };
    int waiters_ = 0; // threads that use requests_
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

} // namespace banyan_torch
