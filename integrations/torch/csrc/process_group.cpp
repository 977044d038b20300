// SPDX-License-Identifier: BSD-3-Clause
#include "process_group.h"

#include "completer.h"
#include "types.h"

#include <c10/util/Exception.h>
#include <unistd.h>
#include <unordered_set>

namespace banyan_torch
{

static constexpr double kPatience = 10; // seconds that the end of a group waits for others
static const char kKey[] = "banyan/id";

// Groups that live, for shutdown_all(). Never destroyed: groups may outlive static objects.
struct Living {
    std::mutex mutex;
    std::unordered_set<Group *> groups;
};

static Living &living()
{
    static auto *all = new Living;

    return *all;
}

// Rank 0 makes the id; the others get it from the store, or its failure.
static banyan_id share_id(c10d::Store &store, int rank, std::chrono::milliseconds timeout)
{
    banyan_id id;

    if (rank == 0) {
        int rc = banyan_id_create(&id);
        std::vector<uint8_t> bytes(id.bytes, id.bytes + sizeof id.bytes);
        if (rc < 0) {
            std::string why = banyan_last_error();
            bytes.assign(why.begin(), why.end());
            bytes.resize(sizeof id.bytes - 1, ' ');
        }
        store.set(kKey, bytes);
        check(rc, "init_process_group");
        return id;
    }
    store.wait({ kKey }, timeout);
    std::vector<uint8_t> bytes = store.get(kKey);
    TORCH_CHECK(bytes.size() == sizeof id.bytes, "banyan: init_process_group: rank 0 says: ",
                std::string(bytes.begin(), bytes.end()));
    std::copy(bytes.begin(), bytes.end(), id.bytes);
    return id;
}

std::shared_ptr<Group> Group::join(c10d::Store &store, int rank, int size,
                                   std::chrono::milliseconds timeout)
{
    auto group = std::make_shared<Group>();
    banyan_config cfg = BANYAN_CONFIG_INIT;
    banyan_id id = share_id(store, rank, timeout);

    cfg.init_timeout_s = cfg.op_timeout_s = static_cast<double>(timeout.count()) * 1e-3;
    cfg.progress_thread = 0; // see completer.h
    check(banyan_comm_init(&group->lanes_[0].comm, &id, size, rank, &cfg),
          "init_process_group");
    check(banyan_comm_dup(group->lanes_[0].comm, &group->lanes_[1].comm), "init_process_group");
    std::lock_guard<std::mutex> lock(living().mutex);
    living().groups.insert(group.get());
    return group;
}

Group::Group() : pid_(getpid())
{
}

Group::~Group()
{
    {
        std::lock_guard<std::mutex> lock(living().mutex);
        living().groups.erase(this);
    }
    if (getpid() != pid_)
        return;
    for (auto &lane : lanes_)
        lane.futures.stop();
    for (auto &lane : lanes_)
        banyan_comm_destroy(lane.comm);
}

Lane &Group::lane()
{
    TORCH_CHECK(!closed_, "banyan: this process group was shut down; make a new one");
    return lanes_[Futures::current_lane()];
}

void Group::abort(const char *reason)
{
    std::lock_guard<std::mutex> lock(life_);

    for (auto &lane : lanes_)
        if (!closed_ && lane.comm)
            banyan_abort(lane.comm, reason);
}

std::string Group::failure(int *rc)
{
    std::lock_guard<std::mutex> lock(life_);
    char text[512] = "";

    *rc = closed_ ? 0 : banyan_async_error(lanes_[0].comm, nullptr, text, sizeof text);
    return text;
}

void Group::set_completion_hook(int64_t id, c10d::CompletionHook hook)
{
    std::lock_guard<std::mutex> lock(hooks_mutex_);

    if (hook)
        hooks_[id] = std::move(hook);
    else
        hooks_.erase(id);
    has_hooks_ = !hooks_.empty();
}

void Group::completed(uint64_t key)
{
    if (!has_hooks_)
        return;
    std::lock_guard<std::mutex> lock(hooks_mutex_);
    for (auto &hook : hooks_)
        hook.second({ key, std::nullopt });
}

// Whether all that was started on the lane is over, within `seconds`.
static bool is_quiet(Lane &lane, double seconds)
{
    for (double waited = 0; lane.started > 0 && waited < seconds; waited += 1e-3)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return lane.started == 0;
}

void Group::wait_quiet()
{
    while (!is_quiet(lanes_[0], kPatience))
        ;
}

std::unordered_map<std::string, uint64_t> Group::stats()
{
    std::unordered_map<std::string, uint64_t> all;
    std::lock_guard<std::mutex> lock(life_);

    for (auto &lane : lanes_) {
        banyan_stats s = {};
        s.size = sizeof s;
        if (closed_ || banyan_comm_stats(lane.comm, &s) < 0)
            break;
        all["ops"] += s.ops;
        all["wire_bytes"] += s.wire_bytes;
        all["messages"] += s.messages;
        all["copied_bytes"] += s.copied_bytes;
        all["sleeps"] += s.sleeps;
    }
    return all;
}

void Group::finish_lane(Lane &lane)
{
    if (!is_quiet(lane, kPatience)) {
        banyan_abort(lane.comm, "the group ended with operations in flight");
        is_quiet(lane, 1);
    }
    lane.futures.stop();
}

void Group::shutdown()
{
    {
        std::lock_guard<std::mutex> lock(life_);
        if (closed_ || getpid() != pid_)
            return;
        closed_ = true;
    }
    for (auto &lane : lanes_)
        finish_lane(lane);
    for (auto *lane : { &lanes_[1], &lanes_[0] }) {
        std::lock_guard<std::mutex> lock(lane->blocking);
        banyan_comm_finalize_within(lane->comm, kPatience);
        lane->comm = nullptr;
    }
}

void shutdown_all()
{
    std::vector<std::shared_ptr<Group>> groups;

    {
        std::lock_guard<std::mutex> lock(living().mutex);
        for (auto *group : living().groups)
            if (auto held = group->weak_from_this().lock())
                groups.push_back(held);
    }
    for (auto &group : groups)
        group->shutdown();
    Completer::of_process().stop();
}

} // namespace banyan_torch
