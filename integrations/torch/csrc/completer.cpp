// SPDX-License-Identifier: BSD-3-Clause
#include "completer.h"

#include "dist_work.h"

#include <algorithm>
#include <atomic>
#include <unistd.h>

namespace banyan_torch
{

// Who starts an operation often waits for it at once, so the thread leaves it alone for a nap.
static constexpr auto kNap = std::chrono::microseconds(50);
static constexpr int kIdleNaps = 10;  // before it sleeps until the next work
static constexpr double kTurn = 1e-3; // seconds for one operation before it looks at the others

Completer::Completer() : pid_(getpid())
{
}

// It is never destroyed: threads may use it until the process ends.
Completer &Completer::of_process()
{
    static std::atomic<Completer *> current{ new Completer };
    Completer *completer = current;

    if (completer->pid_ != getpid()) {
        auto *mine = new Completer;
        if (current.compare_exchange_strong(completer, mine))
            return *mine;
        delete mine;
    }
    return *completer;
}

void Completer::add(c10::intrusive_ptr<c10d::Work> work)
{
    std::lock_guard<std::mutex> lock(mutex_);

    if (stop_)
        return;
    added_.push_back(std::move(work));
    if (!thread_.joinable())
        thread_ = std::thread([this] { main(); });
    else if (asleep_)
        wake_.notify_one();
}

// Sleeps while there is nothing to do.
void Completer::take_added(Works *works)
{
    std::unique_lock<std::mutex> lock(mutex_);

    for (int naps = 0; works->empty() && added_.empty() && !stop_; naps++) {
        if (naps < kIdleNaps) {
            lock.unlock();
            std::this_thread::sleep_for(kNap);
            lock.lock();
            continue;
        }
        asleep_ = true;
        wake_.wait(lock, [this] { return stop_ || !added_.empty(); });
        asleep_ = false;
        lock.unlock();
        std::this_thread::sleep_for(kNap);
        lock.lock();
    }
    std::move(added_.begin(), added_.end(), std::back_inserter(*works));
    added_.clear();
    if (stop_)
        works->clear();
}

void Completer::main()
{
    Works works;

    for (;;) {
        take_added(&works);
        if (works.empty())
            return;
        static_cast<Work *>(works.front().get())->wait_requests(kTurn);
        works.erase(std::remove_if(works.begin(), works.end(),
                                   [](const auto &work) { return work->isCompleted(); }),
                    works.end());
    }
}

void Completer::stop()
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        wake_.notify_one();
    }
    if (thread_.joinable())
        thread_.join();
}

} // namespace banyan_torch
