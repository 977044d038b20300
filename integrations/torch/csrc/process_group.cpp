// SPDX-License-Identifier: BSD-3-Clause
#include "process_group.h"

#include "completer.h"
#include "types.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <random>
#include <unistd.h>
#include <unordered_set>

namespace banyan_torch
{

using Clock = std::chrono::steady_clock;

// How long the end of a group waits for operations, and then for the other ranks.
static constexpr auto kPatience = std::chrono::seconds(10);
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

// A digest: names go where the id's secret must not.
static std::string name_of(const banyan_id &id)
{
    std::string_view bytes(reinterpret_cast<const char *>(id.bytes), sizeof id.bytes);

    return std::to_string(std::hash<std::string_view>()(bytes));
}

std::shared_ptr<Group> Group::make(int rank)
{
    // A forked child leaves what it inherits as it is: its threads are the parent's.
    std::shared_ptr<Group> group(new Group, [](Group *g) {
        if (getpid() == g->pid_)
            delete g;
    });

    group->rank_ = rank;
    return group;
}

// The user's lane has its communicator.
void Group::open()
{
    check(banyan_comm_dup(lanes_[0].comm, &lanes_[1].comm), "init_process_group");
    pool_ = std::make_shared<Pool>(lanes_[0].comm);
    std::lock_guard<std::mutex> lock(living().mutex);
    living().groups.insert(this);
}

std::shared_ptr<Group> Group::join(c10d::Store &store, int rank, int size,
                                   std::chrono::milliseconds timeout)
{
    auto group = make(rank);
    banyan_config cfg = BANYAN_CONFIG_INIT;
    banyan_id id = share_id(store, rank, timeout);

    cfg.init_timeout_s = cfg.op_timeout_s = static_cast<double>(timeout.count()) * 1e-3;
    cfg.progress_thread = 0; // see completer.h
    group->name_ = name_of(id);
    int rc = banyan_comm_init(&group->lanes_[0].comm, &id, size, rank, &cfg);
    if (rank == 0)
        store.deleteKey(kKey); // the next group over this store must not find it
    check(rc, "init_process_group");
    group->open();
    return group;
}

std::shared_ptr<Group> Group::part_of(Group &parent, const std::vector<int> &ranks, int tag,
                                      std::chrono::milliseconds timeout)
{
    auto mine = std::find(ranks.begin(), ranks.end(), parent.rank_);
    auto group = make(static_cast<int>(mine - ranks.begin()));
    uint64_t name = std::random_device()();
    banyan_opts opts = BANYAN_OPTS_INIT;

    opts.timeout_s = static_cast<double>(timeout.count()) * 1e-3;
    parent.call("new_group", [&](banyan_comm *comm) {
        return banyan_comm_create_group_within(comm, ranks.data(),
                                               static_cast<int>(ranks.size()), tag,
                                               opts.timeout_s, &group->lanes_[0].comm);
    });
    check(banyan_broadcast(&name, 1, BANYAN_U64, 0, group->lanes_[0].comm, &opts), "new_group");
    group->name_ = std::to_string(name);
    group->open();
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
    for (auto &lane : lanes_)
        lane.futures.stop();
    if (pool_)
        pool_->close();
    for (auto &lane : lanes_)
        banyan_comm_destroy(lane.comm);
}

Lane &Group::lane()
{
    TORCH_CHECK(!closed_, "banyan: this process group was shut down; make a new one");
    return lanes_[Futures::current_lane()];
}

int Group::call(const char *what, const std::function<int(banyan_comm *)> &fn)
{
    Lane &own = lane();
    std::exception_ptr why;
    int rc;

    own.started++;
    {
        std::lock_guard<std::mutex> lock(own.blocking);
        rc = fn(own.comm);
        if (rc < 0)
            why = banyan_torch::failure(rc, what);
    }
    own.started--;
    if (why)
        std::rethrow_exception(why);
    return rc;
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

// Whether all that was started on the lane is over, by `end`.
static bool is_quiet(Lane &lane, Clock::time_point end)
{
    while (lane.started > 0 && Clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return lane.started == 0;
}

void Group::wait_quiet()
{
    is_quiet(lanes_[0], Clock::time_point::max());
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
    all["mapped_tensors"] = pool_->mapped();
    return all;
}

void Group::finish_lanes()
{
    auto end = Clock::now() + kPatience;

    for (auto &lane : lanes_)
        if (!is_quiet(lane, end)) {
            banyan_abort(lane.comm, "the group ended with operations in flight");
            is_quiet(lane, Clock::now() + std::chrono::seconds(1));
        }
    for (auto &lane : lanes_)
        lane.futures.stop(); // its callbacks may be in operations of the other lane
}

void Group::shutdown()
{
    {
        std::lock_guard<std::mutex> lock(life_);
        if (closed_ || getpid() != pid_)
            return;
        closed_ = true;
    }
    finish_lanes();
    pool_->close();
    auto end = Clock::now() + kPatience;
    for (auto *lane : { &lanes_[1], &lanes_[0] }) {
        std::lock_guard<std::mutex> lock(lane->blocking);
        std::chrono::duration<double> left = end - Clock::now();
        banyan_comm_finalize_within(lane->comm, std::max(left.count(), 0.0));
        lane->comm = nullptr;
    }
}

void shutdown_all(const std::string &failure)
{
    std::vector<std::shared_ptr<Group>> groups;

    {
        std::lock_guard<std::mutex> lock(living().mutex);
        for (auto *group : living().groups)
            if (auto held = group->weak_from_this().lock())
                groups.push_back(held);
    }
    for (auto &group : groups) {
        if (!failure.empty())
            group->abort(failure.c_str());
    }
    for (auto &group : groups)
        group->shutdown();
    Completer::of_process().stop();
}

} // namespace banyan_torch
