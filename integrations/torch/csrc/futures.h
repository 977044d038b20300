// SPDX-License-Identifier: BSD-3-Clause
// Completes futures: their callbacks run on a thread of their own, as they may wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace banyan_torch
{

// What a thread of Python does with a future, it does before another thread gets its turn: so
// it adds a callback to a future that is not complete yet, and the callback runs where it
// should. A backend that Python does not use has none.
struct Interpreter {
    bool (*is_caller)() = nullptr; // whether the calling thread runs Python
    void (*take_turn)() = nullptr; // returns when that thread has gone on
};

// Futures of collectives complete in the order in which they were asked for, which is the same
// on all ranks, so that what their callbacks issue has the same order too. Those of messages
// complete as they come. The thread starts with the first future.
class Futures
{
  public:
    // lane: of what the callbacks issue.
    explicit Futures(int lane) : lane_(lane)
    {
    }
    ~Futures();
    static void set_interpreter(Interpreter interpreter);
    // `work` has a future from now on. To be called once, complete or not.
    void add(c10::intrusive_ptr<c10d::Work> work);
    // A work that was added has completed.
    void notify();
    // Completes what is complete, and ends the thread. Nothing is added any more.
    void stop();
    // The lane of the calling thread.
    static int current_lane();

  private:
    struct Entry {
        c10::intrusive_ptr<c10d::Work> work;
        bool from_python;
    };
    // What the thread uses also when its last work takes the group, and this object, with it.
    struct State {
        std::mutex mutex;
        std::condition_variable wake;
        std::deque<Entry> waiting;
        bool stop = false;
    };
    static bool next(State &state, Entry *out);
    static void main(std::shared_ptr<State> state, int lane);
    const int lane_;
    const std::shared_ptr<State> state_ = std::make_shared<State>();
    std::thread thread_;
};

} // namespace banyan_torch
