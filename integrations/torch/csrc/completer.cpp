// SPDX-License-Identifier: BSD-3-Clause
#include "completer.h"

#include "dist_work.h"

#include <algorithm>
#include <sched.h>

namespace banyan_torch
{

// It is never destroyed: threads may use it until the process ends.
Completer &Completer::of_process()
{
    static auto *completer = new Completer;

    return *completer;
}

void Completer::add(c10::intrusive_ptr<c10d::Work> work)
{
    std::lock_guard<std::mutex> lock(mutex_);

    added_.push_back(std::move(work));
    if (!thread_.joinable())
        thread_ = std::thread([this] { main(); });
    wake_.notify_one();
}

void Completer::main()
{
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::unique_lock<std::mutex> lock(mutex_);
    int idle = 0;

    while (!stop_) {
        if (works.empty() && added_.empty())
            wake_.wait(lock, [this] { return stop_ || !added_.empty(); });
        for (auto &work : added_)
            works.push_back(std::move(work));
        added_.clear();
        lock.unlock();
        size_t before = works.size();
        works.erase(std::remove_if(works.begin(), works.end(),
                                   [](const auto &work) { return work->isCompleted(); }),
                    works.end());
        idle = works.size() < before ? 0 : idle + 1;
        if (idle < 200)
            sched_yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        lock.lock();
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
