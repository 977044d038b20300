// SPDX-License-Identifier: BSD-3-Clause
// The backend "banyan" of torch.distributed: c10d's calls, each as a Call of dist_work.h.
#pragma once

#include "codec_state.h"
#include "dist_work.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_set>

namespace banyan_torch
{

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A work that is complete.
WorkPtr done();

class Backend : public c10d::Backend
{
  public:
    struct Options : c10d::Backend::Options {
        // name: under which the backend is registered, for profilers.
        explicit Options(std::chrono::milliseconds timeout, const std::string &name)
            : c10d::Backend::Options(name, timeout)
        {
        }
        c10::intrusive_ptr<c10d::Backend::Options> clone() const override
        {
            return c10::make_intrusive<Options>(*this);
        }
    };

    // Collective over the group: all its ranks make it, with a store of their own. With
    // enable_reconfigure it has no group before reconfigure().
    Backend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
            c10::intrusive_ptr<Options> options);
    Backend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
            c10::intrusive_ptr<Options> options, std::shared_ptr<Group> group);
    ~Backend() override;

    // life.cpp
    const std::string getBackendName() const override;
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
    void setTimeout(std::chrono::milliseconds timeout) override;
    uint64_t getSequenceNumberForGroup() override;
    bool supportsCoalescing() const override;
    void startCoalescing() override;
    WorkPtr endCoalescing() override;
    void abort() override;
    void shutdown() override;
    c10d::ErrorType getError() override;
    bool supportsAbortHooks() const override;
    void registerAbortHook(int64_t id, c10d::AbortHook hook) override;
    void unregisterAbortHook(int64_t id) override;
    bool supportsCompletionHooks() const override;
    void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
    void unregisterCompletionHook(int64_t id) override;
    WorkPtr barrier(const c10d::BarrierOptions &opts) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks) override;
    void waitForPendingWorks() override;
    // The counters of struct banyan_stats.
    std::unordered_map<std::string, uint64_t> stats();
    void give_up_block();
    bool supportsTensorAlloc(c10::DeviceIndex device) override;
    at::Tensor allocateTensor(long size, at::TensorOptions options) override;

    // members.cpp
    // The communicators that calls use now. Throws before the first reconfigure().
    std::shared_ptr<Group> group();
    // A backend of these ranks, which alone call it, with the same tag.
    c10::intrusive_ptr<Backend> part(const c10::intrusive_ptr<c10d::Store> &store,
                                     const std::vector<int> &ranks,
                                     const c10::intrusive_ptr<Options> &options, int tag);
    bool isInitialized() override;
    bool supportsSplitting() const override;
    c10::intrusive_ptr<c10d::Backend>
    split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
          const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
    bool supportsShrinking() const override;
    c10::intrusive_ptr<c10d::Backend>
    shrink(const std::vector<int64_t> &ranks_to_exclude, int flags,
           const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
    bool supportsReconfigure() const override;
    c10d::ReconfigureHandle get_reconfigure_handle() const override;
    WorkPtr reconfigure(const c10d::ReconfigureOptions &opts) override;

    // codec_state.cpp
    // The mean over the ranks of each piece, in place, by its own codec.
    WorkPtr average(const std::vector<Piece> &pieces);
    // This rank's block of op over the ranks of the piece, which travels by its codec.
    WorkPtr reduce_scatter_piece(const Piece &piece, const at::Tensor &output,
                                 const c10d::ReduceOp &op);

    // reduce.cpp
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &opts) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
    WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs,
                           const c10d::ReduceScatterOptions &opts) override;
    WorkPtr reduce_scatter_single(at::Tensor &output, at::Tensor &input,
                                  const c10d::ReduceScatterOptions &opts) override;
    WorkPtr reduce_scatter_single_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts) override;

    // move.cpp
    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkPtr allgather(TensorLists &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &opts) override;
    WorkPtr all_gather_single(at::Tensor &output, at::Tensor &input,
                              const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &opts) override;
    WorkPtr all_gather_single_coalesced(Tensors &outputs, Tensors &inputs,
                                        const c10d::AllgatherOptions &opts) override;
    WorkPtr gather(TensorLists &outputs, Tensors &inputs,
                   const c10d::GatherOptions &opts) override;
    WorkPtr gather_single(at::Tensor &output, at::Tensor &input,
                          const c10d::GatherOptions &opts) override;
    WorkPtr scatter(Tensors &outputs, TensorLists &inputs,
                    const c10d::ScatterOptions &opts) override;
    WorkPtr all_to_all_single(at::Tensor &output, at::Tensor &input,
                              std::vector<int64_t> &output_splits,
                              std::vector<int64_t> &input_splits,
                              const c10d::AllToAllOptions &opts) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs,
                     const c10d::AllToAllOptions &opts) override;
    WorkPtr send(Tensors &tensors, int peer, int tag) override;
    WorkPtr recv(Tensors &tensors, int peer, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;

  private:
    // A call to be issued. Its end without that gives up the caller's block.
    Call call_of(c10d::OpType type, const char *title);
    template <typename Opts>
    Call call_of(c10d::OpType type, const char *title, const Opts &opts)
    {
        Call call = call_of(type, title);

        call.timeout = opts.timeout;
        call.async = opts.asyncOp;
        return call;
    }
    Call message(c10d::OpType type, const char *title, const Tensors &tensors, int tag);
    // Runs or starts it, or keeps it for endCoalescing().
    WorkPtr issue(Call &&call);
    // Whether the calling thread is between startCoalescing and endCoalescing.
    bool in_block();
    at::Tensor all_rows(const at::Tensor &mine, const std::vector<int64_t> &rows,
                        std::chrono::milliseconds timeout);
    c10::intrusive_ptr<c10d::Store> store_;
    c10::intrusive_ptr<Options> options_;
    const std::string handle_; // of this process in reconfigure()
    std::mutex group_mutex_;
    std::shared_ptr<Group> group_; // none before the first reconfigure()
    std::unordered_set<int64_t> uuids_;
    std::atomic<uint64_t> sequence_{ 0 };
    uint64_t monitored_ = 0; // monitored barriers so far
    std::mutex blocks_mutex_;
    std::unordered_map<std::thread::id, Call> blocks_; // each thread's, until endCoalescing
    std::mutex hooks_mutex_;
    std::unordered_map<int64_t, c10d::AbortHook> abort_hooks_;
    std::unordered_map<int64_t, c10d::CompletionHook> completion_hooks_; // group_ has them too
};

} // namespace banyan_torch
