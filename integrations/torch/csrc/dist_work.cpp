// SPDX-License-Identifier: BSD-3-Clause
#include "dist_work.h"

#include "completer.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>

namespace banyan_torch
{

using Clock = std::chrono::steady_clock;

static std::atomic<uint64_t> next_key{ 1 }; // of the process

Work::Work(std::shared_ptr<Group> group, int rank, uint64_t sequence, const std::string &title,
           Call call)
    : c10d::Work(rank, call.type, title.c_str(), call.inputs), group_(std::move(group)),
      lane_(group_->lane()), call_(std::move(call)), sequence_(sequence), key_(next_key++)
{
}

Work::~Work()
{
    free_requests();
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

    lane_.started++;
    {
        std::lock_guard<std::mutex> lock(lane_.blocking);
        for (size_t i = 0; i < call_.steps.size() && rc >= 0; i++)
            rc = call_.steps[i](lane_.comm, &opts, nullptr);
        if (rc < 0)
            why_ = failure(rc, call_.title);
    }
    end();
    lane_.started--;
    check_ended();
}

// The library calls it once for each request, one at a time.
void Work::step_done(void *arg, banyan_request *, int rc)
{
    auto self = c10::intrusive_ptr<Work>::reclaim(static_cast<Work *>(arg));

    self->count(1, rc < 0 ? failure(rc, self->call_.title) : nullptr);
}

int Work::start_step(const Step &step, const banyan_opts *opts)
{
    banyan_request *req = nullptr;
    int rc = step(lane_.comm, opts, &req);

    if (rc < 0)
        return rc;
    requests_.push_back(req);
    auto self = c10::intrusive_ptr<Work>::reclaim_copy(this);
    rc = banyan_request_on_done(req, step_done, self.get());
    if (rc >= 0)
        rc = banyan_start(req);
    if (rc >= 0)
        self.release(); // to step_done
    return rc;
}

void Work::start()
{
    banyan_opts opts = options_of(call_);
    size_t n = call_.steps.size(), started = 0;
    int rc = 0;

    pending_ = n + 1; // one for this function
    requests_.reserve(n);
    lane_.started++;
    while (started < n && rc >= 0) {
        rc = start_step(call_.steps[started], &opts);
        started += rc >= 0;
    }
    count(n - started + 1, rc < 0 ? failure(rc, call_.title) : nullptr);
    if (started == 0)
        check_ended();
    else if (!over_)
        Completer::of_process().add(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
}

void Work::count(size_t steps, std::exception_ptr why)
{
    if (why) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!why_)
            why_ = std::move(why);
    }
    if (pending_.fetch_sub(steps) == steps) {
        end();
        lane_.started--;
    }
}

void Work::copy_results()
{
    c10::InferenceMode mode(call_.inference); // also sets the grad mode
    at::NoGradGuard no_grad;

    try {
        for (size_t i = 0; !why_ && i < call_.sources.size(); i++)
            if (call_.sources[i] && *call_.sources[i] == BANYAN_ANY_SOURCE)
                *call_.sources[i] = banyan_request_source(requests_[i], nullptr);
        for (size_t i = 0; !why_ && i < call_.afters.size(); i++)
            call_.afters[i]();
        if (!call_.afters.empty())
            wait_for_streams(call_.outputs);
    } catch (...) {
        why_ = std::current_exception();
    }
}

void Work::end()
{
    bool has_future;

    copy_results();
    finish(why_);
    if (!why_)
        group_->completed(getCompletionKey());
    {
        std::lock_guard<std::mutex> lock(mutex_);
        over_ = true;
        has_future = static_cast<bool>(future_);
        if (waiters_ == 0)
            free_requests();
        cv_.notify_all();
    }
    if (has_future)
        lane_.futures.notify();
}

void Work::free_requests()
{
    // One that another thread still uses stays for the destructor.
    requests_.erase(std::remove_if(requests_.begin(), requests_.end(),
                                   [](banyan_request *req) {
                                       return banyan_request_free(req) != -BANYAN_EBUSY;
                                   }),
                    requests_.end());
}

bool Work::is_over() const
{
    return over_;
}

bool Work::is_message() const
{
    return c10d::isP2POp(opType_, false);
}

// Keeps the group's end away from a thread that is in the library: the library may make
// progress on the communicator behind the end of the operation that is waited for.
struct InLane {
    explicit InLane(Lane &lane) : lane_(lane)
    {
        lane_.started++;
    }
    ~InLane()
    {
        lane_.started--;
    }
    Lane &lane_;
};

// Waits for the requests, at most so long. Returns is_over().
bool Work::wait_requests(double seconds)
{
    auto end = Clock::now() + std::chrono::duration<double>(seconds);
    InLane inside(lane_);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (over_)
            return true;
        waiters_++;
    }
    for (auto *req : requests_) {
        int done = 0;
        std::chrono::duration<double> left = end - Clock::now();
        banyan_wait_for(req, std::max(left.count(), 0.0), &done);
        if (!done && Clock::now() >= end)
            break;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    // Another thread may be about to call end(). A timed wait costs 50 us even if its time is
    // over.
    if (seconds > 0)
        cv_.wait_until(lock, end, [this] { return over_.load(); });
    if (--waiters_ == 0 && over_)
        free_requests();
    return over_;
}

bool Work::isCompleted()
{
    return wait_requests(0);
}

bool Work::isSuccess() const
{
    std::lock_guard<std::mutex> lock(mutex_);

    return completed_ && !exception_;
}

bool Work::wait(std::chrono::milliseconds timeout)
{
    // An operation has a deadline of its own.
    auto most = timeout == kNoTimeout ? std::chrono::hours(24 * 365) : timeout;

    TORCH_CHECK(wait_requests(std::chrono::duration<double>(most).count()),
                "banyan: ", call_.title, ": Timed out waiting ", timeout.count(),
                " ms for the operation to complete; it goes on");
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
    // Of a receive, which has one step; a block's are with the works of its calls.
    return call_.sources.size() == 1 ? *call_.sources[0] : -1;
}

uint64_t Work::getSequencenumber() const
{
    return sequence_;
}

uint64_t Work::getCompletionKey() const
{
    return key_;
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
            c10::ListType::create(c10::TensorType::get()), devices_of(call_.outputs));
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
