// SPDX-License-Identifier: BSD-3-Clause
// One thread of the process completes what nobody waits for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace banyan_torch
{

class Completer
{
  public:
    static Completer &of_process();
    // `work` was started.
    void add(c10::intrusive_ptr<c10d::Work> work);
    // Ends the thread; works that are in flight stay as they are.
    void stop();

  private:
    void main();
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<c10::intrusive_ptr<c10d::Work>> added_;
    std::thread thread_;
    bool stop_ = false;
};

} // namespace banyan_torch
