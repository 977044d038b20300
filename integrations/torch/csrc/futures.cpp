// SPDX-License-Identifier: BSD-3-Clause
#include "futures.h"

#include "dist_work.h"

namespace banyan_torch
{

static thread_local int lane_of_thread;
static Interpreter python;

void Futures::set_interpreter(Interpreter interpreter)
{
    python = interpreter;
}

int Futures::current_lane()
{
    return lane_of_thread;
}

void Futures::add(c10::intrusive_ptr<c10d::Work> work)
{
    std::lock_guard<std::mutex> lock(state_->mutex);

    state_->waiting.push_back({ std::move(work), python.is_caller && python.is_caller() });
    if (!thread_.joinable() && !state_->stop)
        thread_ = std::thread(main, state_, lane_);
    state_->wake.notify_one();
}

void Futures::notify()
{
    std::lock_guard<std::mutex> lock(state_->mutex);

    state_->wake.notify_one();
}

// The first work that may complete its future: any message, and the first of the collectives.
bool Futures::next(State &state, Entry *out)
{
    bool is_first = true;

    for (auto at = state.waiting.begin(); at != state.waiting.end(); ++at) {
        auto *work = static_cast<Work *>(at->work.get());
        if ((is_first || work->is_message()) && work->is_over()) {
            *out = std::move(*at);
            state.waiting.erase(at);
            return true;
        }
        if (!work->is_message())
            is_first = false;
    }
    return false;
}

void Futures::main(std::shared_ptr<State> state, int lane)
{
    std::unique_lock<std::mutex> lock(state->mutex);

    lane_of_thread = lane;
    for (;;) {
        Entry entry;
        if (next(*state, &entry)) {
            lock.unlock();
            if (entry.from_python)
                python.take_turn();
            static_cast<Work *>(entry.work.get())->complete_future();
            entry.work.reset();
            lock.lock();
        } else if (state->stop) {
            return;
        } else {
            state->wake.wait(lock);
        }
    }
}

void Futures::stop()
{
    {
        std::lock_guard<std::mutex> lock(state_->mutex);
        state_->stop = true;
        state_->wake.notify_one();
    }
    if (!thread_.joinable())
        return;
    // A callback that drops the last reference to its group ends here, on this thread.
    if (thread_.get_id() == std::this_thread::get_id())
        thread_.detach();
    else
        thread_.join();
}

Futures::~Futures()
{
    stop();
}

} // namespace banyan_torch
