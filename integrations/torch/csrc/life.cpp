// SPDX-License-Identifier: BSD-3-Clause
// A backend's life: how it is made, issues its calls, fails and ends; its barriers.
#include "backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace banyan_torch
{

using std::chrono::milliseconds;

Backend::~Backend() = default;

const std::string Backend::getBackendName() const
{
    return options_->backend;
}

c10::intrusive_ptr<c10d::Backend::Options> Backend::getBackendOptions()
{
    return options_;
}

void Backend::setTimeout(milliseconds timeout)
{
    options_->timeout = timeout;
}

uint64_t Backend::getSequenceNumberForGroup()
{
    return sequence_;
}

// A work that is complete. source: of a message, set by then or at the end of its block.
class Done : public c10d::Work
{
  public:
    explicit Done(std::shared_ptr<int> source)
        : source_(std::move(source)), future_(c10::make_intrusive<c10::ivalue::Future>(
                                          c10::ListType::create(c10::TensorType::get())))
    {
        future_->markCompleted(c10::IValue(Tensors{}));
        finish();
    }
    bool wait(milliseconds) override
    {
        return true;
    }
    int sourceRank() const override
    {
        return source_ ? *source_ : -1;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        return future_;
    }

  private:
    const std::shared_ptr<int> source_;
    const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

WorkPtr done()
{
    return c10::make_intrusive<Done>(nullptr);
}

template <typename T> static void append(std::vector<T> &to, std::vector<T> &from)
{
    to.insert(to.end(), std::make_move_iterator(from.begin()),
              std::make_move_iterator(from.end()));
}

static Step with_timeout(milliseconds timeout, Step run)
{
    return [=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        banyan_opts own = *opts;
        own.timeout_s = static_cast<double>(timeout.count()) * 1e-3;
        return run(comm, &own, req);
    };
}

// Both run together, each with its own timeout.
static void add_call(Call &to, Call &from)
{
    for (auto &run : from.steps)
        run = with_timeout(from.timeout, std::move(run));
    to.sources.resize(to.steps.size());
    append(to.sources, from.sources);
    append(to.inputs, from.inputs);
    append(to.outputs, from.outputs);
    append(to.buffers, from.buffers);
    append(to.steps, from.steps);
    append(to.afters, from.afters);
    append(to.ops, from.ops);
}

Call Backend::call_of(c10d::OpType type, const char *title)
{
    Call call;

    call.type = type;
    call.title = title;
    call.refused.reset(this);
    return call;
}

void GiveUpBlock::operator()(Backend *backend) const
{
    backend->give_up_block();
}

void Backend::give_up_block()
{
    std::lock_guard<std::mutex> lock(blocks_mutex_);

    blocks_.erase(std::this_thread::get_id());
}

bool Backend::in_block()
{
    std::lock_guard<std::mutex> lock(blocks_mutex_);

    return blocks_.count(std::this_thread::get_id()) > 0;
}

WorkPtr Backend::issue(Call &&call)
{
    call.refused.release();
    if (call.timeout == c10d::kUnsetTimeout)
        call.timeout = options_->timeout;
    {
        std::lock_guard<std::mutex> lock(blocks_mutex_);
        auto block = blocks_.find(std::this_thread::get_id());
        if (block != blocks_.end()) {
            auto source = call.sources.empty() ? nullptr : call.sources[0];
            add_call(block->second, call);
            return c10::make_intrusive<Done>(source); // endCoalescing() runs it
        }
    }
    // Device memory is copied by the library, which looks for a driver when it makes requests.
    bool on_device = wait_for_streams(call.inputs) | wait_for_streams(call.outputs);
    bool async = call.async || on_device, waits = on_device && !call.async;
    std::string title = options_->backend + ":" + call.title;
    auto work = c10::make_intrusive<Work>(group(), rank_, ++sequence_, title, std::move(call));
    if (async)
        work->start();
    else
        work->run();
    if (waits)
        work->wait(kNoTimeout);
    return work;
}

bool Backend::supportsCoalescing() const
{
    return true;
}

void Backend::startCoalescing()
{
    std::lock_guard<std::mutex> lock(blocks_mutex_);
    auto [block, is_new] = blocks_.try_emplace(std::this_thread::get_id());

    TORCH_CHECK(is_new, "banyan: startCoalescing: it was called twice");
    block->second.type = c10d::OpType::COALESCED;
    block->second.title = "coalesced";
}

WorkPtr Backend::endCoalescing()
{
    std::unique_lock<std::mutex> lock(blocks_mutex_);
    auto block = blocks_.extract(std::this_thread::get_id());

    lock.unlock();
    TORCH_CHECK(block, "banyan: endCoalescing: no block is open, or one of its calls was "
                       "refused, so that none of them ran; call startCoalescing first");
    return issue(std::move(block.mapped()));
}

bool Backend::supportsAbortHooks() const
{
    return true;
}

void Backend::registerAbortHook(int64_t id, c10d::AbortHook hook)
{
    std::lock_guard<std::mutex> lock(hooks_mutex_);

    abort_hooks_[id] = std::move(hook);
}

void Backend::unregisterAbortHook(int64_t id)
{
    std::lock_guard<std::mutex> lock(hooks_mutex_);

    abort_hooks_.erase(id);
}

bool Backend::supportsCompletionHooks() const
{
    return true;
}

void Backend::registerCompletionHook(int64_t id, c10d::CompletionHook hook)
{
    std::lock_guard<std::mutex> lock(hooks_mutex_);

    if (isInitialized())
        group()->set_completion_hook(id, hook);
    completion_hooks_[id] = std::move(hook);
}

void Backend::unregisterCompletionHook(int64_t id)
{
    std::lock_guard<std::mutex> lock(hooks_mutex_);

    if (isInitialized())
        group()->set_completion_hook(id, nullptr);
    completion_hooks_.erase(id);
}

void Backend::abort()
{
    std::unordered_map<int64_t, c10d::AbortHook> hooks;

    {
        std::lock_guard<std::mutex> lock(hooks_mutex_);
        hooks = abort_hooks_;
    }
    for (auto &hook : hooks)
        hook.second();
    if (isInitialized())
        group()->abort("the program aborted the process group");
}

void Backend::shutdown()
{
    std::shared_ptr<Group> ends;

    {
        std::lock_guard<std::mutex> lock(group_mutex_);
        ends = group_;
    }
    if (ends)
        ends->shutdown();
}

c10d::ErrorType Backend::getError()
{
    int rc = 0;

    if (isInitialized())
        group()->failure(&rc);
    switch (rc) {
    case 0: return c10d::ErrorType::SUCCESS;
    case -BANYAN_ETIMEDOUT: return c10d::ErrorType::TIMEOUT;
    case -BANYAN_ERANKDEAD: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
    }
}

void Backend::waitForPendingWorks()
{
    group()->wait_quiet();
}

std::unordered_map<std::string, uint64_t> Backend::stats()
{
    return group()->stats();
}

// A device's memory is not shared with other ranks: of these only the CPU has no number.
bool Backend::supportsTensorAlloc(c10::DeviceIndex device)
{
    return device < 0;
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options)
{
    TORCH_CHECK_VALUE(size >= 0 && options.device().is_cpu(),
                      "banyan: allocate_tensor: tensors of the CPU, of a size that is not "
                      "negative");
    return group()->pool().allocate(size, options);
}

WorkPtr Backend::barrier(const c10d::BarrierOptions &opts)
{
    Call call = call_of(c10d::OpType::BARRIER, "barrier", opts);

    call.steps.push_back(step<banyan_barrier, banyan_barrier_init>());
    return issue(std::move(call));
}

// Rank 0 waits for each rank's key in the store, so that a late rank fails this call alone and
// not the group. Returns the ranks that did not come in time.
static std::vector<int> late_ranks(c10d::Store &store, const std::string &key, int size,
                                   milliseconds timeout, bool wait_all)
{
    auto end = std::chrono::steady_clock::now() + timeout;
    std::vector<int> late;

    for (int r = 1; r < size; r++) {
        auto left =
            std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
        try {
            store.wait({ key + std::to_string(r) }, std::max(left, milliseconds(1)));
        } catch (const std::exception &) {
            late.push_back(r);
            if (!wait_all)
                break;
        }
    }
    return late;
}

static std::string sentence_of(const std::vector<int> &late, milliseconds timeout)
{
    std::string ranks;

    if (timeout.count() == 0)
        return "Rank 0 timed out in monitoredBarrier after 0 ms.";
    for (int r : late)
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    return c10::str("[Rank 0]: Rank", late.size() > 1 ? "s " : " ", ranks,
                    " failed to pass monitoredBarrier in ", timeout.count(), " ms");
}

void Backend::monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks)
{
    auto timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
    std::string key = c10::str("banyan/monitored/", group()->name(), "/", monitored_++, "/");

    if (rank_ == 0) {
        auto late = late_ranks(*store_, key, size_, timeout, wait_all_ranks);
        store_->set(key + "end", late.empty() ? "ok" : "late");
        TORCH_CHECK(late.empty() && timeout.count() > 0, sentence_of(late, timeout));
        return;
    }
    store_->set(key + std::to_string(rank_), "here");
    std::string why;
    try {
        // Rank 0 may come as late as this rank may wait, and then waits itself.
        store_->wait({ key + "end" }, 2 * timeout + milliseconds(100));
        why = store_->get_to_str(key + "end") == "ok" ? "" : "a rank did not come in time";
    } catch (const std::exception &e) {
        why = e.what();
    }
    TORCH_CHECK(why.empty(), "Rank ", rank_,
                " successfully reached monitoredBarrier, but "
                "received errors while waiting for send/recv from rank 0. Please check rank 0 "
                "logs for faulty rank: ",
                why);
}

} // namespace banyan_torch
