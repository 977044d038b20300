// SPDX-License-Identifier: BSD-3-Clause
// The communicators of a process group, from the store to the last call.
#pragma once

#include "futures.h"
#include "pool.h"

#include <atomic>
#include <banyan/banyan.h>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <torch/csrc/distributed/c10d/Hooks.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace banyan_torch
{

// A communicator, and the futures of what runs on it. Callbacks of futures issue in an order of
// their own beside the user's threads, so they have a lane of their own: lane 0 is the users',
// lane 1 that of the threads that run callbacks. Requests are for any thread.
struct Lane {
    banyan_comm *comm = nullptr;
    std::mutex blocking; // one thread at a time makes blocking calls
    // Operations in flight, also blocking ones, and threads that wait.
    std::atomic<int> started{ 0 };
    Futures futures{ 1 };
};

class Group : public std::enable_shared_from_this<Group>
{
  public:
    Group();
    // All ranks of the group call it, with a store of their own. Throws with a sentence.
    static std::shared_ptr<Group> join(c10d::Store &store, int rank, int size,
                                       std::chrono::milliseconds timeout);
    // A group of ranks of `parent`, in this order; they alone call it, with the same tag, as a
    // blocking call on the parent's lane. The parent may have failed.
    static std::shared_ptr<Group> part_of(Group &parent, const std::vector<int> &ranks, int tag,
                                          std::chrono::milliseconds timeout);
    ~Group();
    // The same on all ranks, and another than that of earlier groups over the same store.
    const std::string &name() const
    {
        return name_;
    }
    int rank() const
    {
        return rank_;
    }
    // The lane of the calling thread. Throws after shutdown().
    Lane &lane();
    // Makes a blocking call of the library on that lane. Throws what fails; `what` is the call.
    int call(const char *what, const std::function<int(banyan_comm *)> &fn);
    // Memory for tensors.
    Pool &pool()
    {
        return *pool_;
    }
    // The lane of the user's threads, whichever thread calls.
    Lane &user_lane()
    {
        return lanes_[0];
    }
    // Fails what is in flight, here and on the other ranks. Any thread; returns at once.
    void abort(const char *reason);
    // Waits some seconds at most for what is in flight, aborts what is left, waits some seconds
    // at most for the other ranks, then destroys the communicators. Any thread; a second call
    // does nothing.
    void shutdown();
    // Waits until nothing is in flight on the user's lane.
    void wait_quiet();
    // The counters of struct banyan_stats, of both lanes.
    std::unordered_map<std::string, uint64_t> stats();
    // The first cause of failure; "" while healthy. Any thread.
    std::string failure(int *rc);

    // Hooks that are called when a work has completed without failure; hook empty: removes it.
    void set_completion_hook(int64_t id, c10d::CompletionHook hook);
    void completed(uint64_t key);

  private:
    static std::shared_ptr<Group> make(int rank);
    void open();
    void finish_lanes();
    Lane lanes_[2];
    std::shared_ptr<Pool> pool_;
    std::string name_;
    int rank_ = 0;
    std::mutex life_; // guards the change of closed_
    std::atomic<bool> closed_{ false };
    std::mutex hooks_mutex_;
    std::unordered_map<int64_t, c10d::CompletionHook> hooks_;
    std::atomic<bool> has_hooks_{ false };
    pid_t pid_ = 0;
};

// Shuts down all groups that live. For the end of the process. If failure is not empty, it says
// why the program failed: the groups are aborted with it, as nobody can wait for this rank.
void shutdown_all(const std::string &failure);

} // namespace banyan_torch
