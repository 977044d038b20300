// SPDX-License-Identifier: BSD-3-Clause
// One thread of the process makes progress where nobody waits. The library's own progress
// thread would be one a communicator, and peers would have to wake it at each blocking call;
// this one sleeps while nothing is in flight.
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
    // A forked child gets one of its own, as it has no threads of its parent.
    static Completer &of_process();
    // `work` was started.
    void add(c10::intrusive_ptr<c10d::Work> work);
    // Ends the thread; works that are in flight stay as they are.
    void stop();

  private:
    Completer();
    using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
    void take_added(Works *works);
    void main();
    std::mutex mutex_;
    std::condition_variable wake_;
    Works added_;
    std::thread thread_;
    const pid_t pid_; // whose thread it is
    bool asleep_ = false, stop_ = false;
};

} // namespace banyan_torch
