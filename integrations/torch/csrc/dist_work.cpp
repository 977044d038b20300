// SPDX-License-Identifier: BSD-3-Clause
#include "dist_work.h"

#include "completer.h"

#include <ATen/core/grad_mode.h>
#include <sched.h>

namespace banyan_torch
{

using Clock = std::chrono::steady_clock;

Work::Work(std::shared_ptr<Group> group, int rank, uint64_t sequence, const std::string &title,
           Call call)
    : c10d::Work(rank, call.type, title.c_str(), call.inputs), group_(std::move(group)),
      lane_(group_->lane()), call_(std::move(call)), sequence_(sequence)
{
}

Work::~Work()
{
    end_steps();
}

static banyan_opts options_of(const Call &call)
{
    banyan_opts opts = BANYAN_OPTS_INIT;

    if (call.timeout != c10d::kUnsetTimeout)
        opts.timeout_s = static_cast<double>(call.timeout.count()) * 1e-3;
    return opts;
}

void Work::run()
{
    banyan_opts opts = options_of(call_);
    int rc = 0;

    {
        std::lock_guard<std::mutex> lock(lane_.mutex);
        if (lane_.started == 0) {
            for (size_t i = 0; i < call_.steps.size() && rc >= 0; i++)
                rc = call_.steps[i](lane_.comm, &opts, nullptr);
            if (rc < 0)
                why_ = failure(rc, call_.title);
            copy_results();
            end(why_);
        }
    }
    if (!is_over())
        start();
    wait(kNoTimeout);
}

int Work::start_steps(const banyan_opts *opts)
{
    for (const auto &step : call_.steps) {
        banyan_request *req = nullptr;
        int rc = step(lane_.comm, opts, &req);
        if (rc >= 0)
            rc = banyan_start(req);
        if (rc < 0) {
            banyan_request_free(req);
            return rc;
        }
        requests_.push_back(req);
    }
    return 0;
}

void Work::start()
{
    banyan_opts opts = options_of(call_);
    int rc;

    {
        std::lock_guard<std::mutex> lock(lane_.mutex);
        rc = start_steps(&opts);
        if (rc < 0)
            why_ = failure(rc, call_.title);
        if (!requests_.empty())
            lane_.started++;
    }
    if (requests_.empty()) { // else the others end first
        end(why_);
        check_ended();
        return;
    }
    Completer::of_process().add(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
}

// Frees the requests that are over; the first failure goes to why_. The lane's mutex is held.
bool Work::test_steps()
{
    bool all = true;

    for (auto &req : requests_) {
        int done = 1;
        int rc = req ? banyan_test(req, &done) : 0;
        if (rc < 0 && !why_)
            why_ = failure(rc, call_.title);
        if (rc >= 0 && !done) {
            all = false;
        } else {
            banyan_request_free(req);
            req = nullptr;
        }
    }
    return all;
}

void Work::end_steps()
{
    for (auto &req : requests_)
        banyan_request_free(req);
    requests_.clear();
}

void Work::copy_results()
{
    at::NoGradGuard no_grad;

    try {
        for (size_t i = 0; !why_ && i < call_.afters.size(); i++)
            call_.afters[i]();
    } catch (...) {
        why_ = std::current_exception();
    }
}

void Work::end(std::exception_ptr why)
{
    bool has_future;

    finish(std::move(why));
    {
        std::lock_guard<std::mutex> lock(mutex_);
        over_ = true;
        has_future = static_cast<bool>(future_);
        cv_.notify_all();
    }
    if (has_future)
        lane_.futures.notify();
}

bool Work::look()
{
    std::unique_lock<std::mutex> looking(looking_, std::try_to_lock);

    if (!looking || is_over())
        return is_over();
    {
        std::unique_lock<std::mutex> lock(lane_.mutex, std::try_to_lock);
        if (!lock || !test_steps())
            return false;
    }
    lane_.started--;
    copy_results();
    end(why_);
    return true;
}

bool Work::is_over() const
{
    return over_;
}

bool Work::is_message() const
{
    return c10d::isP2POp(opType_, false);
}

bool Work::isCompleted()
{
    return look();
}

bool Work::isSuccess() const
{
    std::lock_guard<std::mutex> lock(mutex_);

    return completed_ && !exception_;
}

bool Work::wait(std::chrono::milliseconds timeout)
{
    auto start = Clock::now();
    int turns = 0;

    while (!look()) {
        if (timeout != kNoTimeout && Clock::now() - start >= timeout)
            TORCH_CHECK(false, "banyan: ", call_.title, ": Timed out waiting ", timeout.count(),
                        " ms for the operation to complete; it goes on");
        if (++turns < 200) {
            sched_yield();
        } else {
            std::unique_lock<std::mutex> lock(mutex_);
            cv_.wait_for(lock, std::chrono::microseconds(100), [this] { return over_.load(); });
        }
    }
    check_ended();
    return true;
}

void Work::check_ended() const
{
    std::lock_guard<std::mutex> lock(mutex_);

    if (exception_)
        std::rethrow_exception(exception_);
}

void Work::abort()
{
    group_->abort("the program aborted an operation");
}

void Work::synchronize()
{
}

int Work::sourceRank() const
{
    return call_.source;
}

uint64_t Work::getSequencenumber() const
{
    return sequence_;
}

std::vector<at::Tensor> Work::result()
{
    TORCH_CHECK(isCompleted(),
                "Work needs to be completed before calling result(). Should call wait() before "
                "result().");
    return call_.outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture()
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (future_)
            return future_;
        future_ = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()));
    }
    lane_.futures.add(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
    return future_;
}

void Work::complete_future()
{
    if (exception_)
        future_->setError(exception_);
    else
        future_->markCompleted(c10::IValue(call_.outputs));
}

} // namespace banyan_torch
