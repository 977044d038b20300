// SPDX-License-Identifier: BSD-3-Clause
// Which ranks a backend has: new groups of some of them, and new members.
#include "backend.h"

#include <algorithm>
#include <random>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

namespace banyan_torch
{

// What calls of part() meet by, beside the tags of new groups, which are not negative.
enum { kSplit = -1, kShrink = -2 };

static std::string new_handle()
{
    std::random_device random;

    return c10::str("banyan/", getpid(), "/", random(), "/", random());
}

Backend::Backend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                 c10::intrusive_ptr<Options> options, std::shared_ptr<Group> group)
    : c10d::Backend(rank, size), store_(store), options_(std::move(options)),
      handle_(new_handle()), group_(std::move(group))
{
}

Backend::Backend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                 c10::intrusive_ptr<Options> options)
    : Backend(store, rank, size, options,
              options->enable_reconfigure ? nullptr
                                          : Group::join(*store, rank, size, options->timeout))
{
}

std::shared_ptr<Group> Backend::group()
{
    std::lock_guard<std::mutex> lock(group_mutex_);

    TORCH_CHECK(group_, "banyan: the process group has no members yet: it was made with "
                        "enable_reconfigure, so call reconfigure() first");
    return group_;
}

bool Backend::isInitialized()
{
    std::lock_guard<std::mutex> lock(group_mutex_);

    return group_ != nullptr;
}

c10::intrusive_ptr<Backend> Backend::part(const c10::intrusive_ptr<c10d::Store> &store,
                                          const std::vector<int> &ranks,
                                          const c10::intrusive_ptr<Options> &options, int tag)
{
    auto mine = std::find(ranks.begin(), ranks.end(), rank_);

    TORCH_CHECK_VALUE(mine != ranks.end(), "banyan: new_group: rank ", rank_,
                      " is not among its ranks");
    return c10::make_intrusive<Backend>(store, static_cast<int>(mine - ranks.begin()),
                                        static_cast<int>(ranks.size()), options,
                                        Group::part_of(*group(), ranks, tag, options->timeout));
}

bool Backend::supportsSplitting() const
{
    return true;
}

static c10::intrusive_ptr<Backend::Options>
own_options(const c10::intrusive_ptr<c10d::Backend::Options> &given,
            const Backend::Options &parents)
{
    auto own = c10::dynamic_intrusive_pointer_cast<Backend::Options>(given);

    return own ? own
               : c10::make_intrusive<Backend::Options>(given ? given->timeout : parents.timeout,
                                                       parents.backend);
}

c10::intrusive_ptr<c10d::Backend>
Backend::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
               const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end())
        return {};
    return part(store, ranks, own_options(options, *options_), kSplit);
}

bool Backend::supportsShrinking() const
{
    return true;
}

c10::intrusive_ptr<c10d::Backend>
Backend::shrink(const std::vector<int64_t> &ranks_to_exclude, int flags,
                const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    std::vector<int> left;

    for (int r = 0; r < size_; r++)
        if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), r) ==
            ranks_to_exclude.end())
            left.push_back(r);
    if (flags) // torch's SHRINK_ABORT
        group()->abort("the group shrinks");
    return part(store_, left, own_options(options, *options_), kShrink);
}

bool Backend::supportsReconfigure() const
{
    return true;
}

c10d::ReconfigureHandle Backend::get_reconfigure_handle() const
{
    return handle_;
}

// The members by rank: as they are listed, or in the order of their handles.
static std::vector<std::string> members_of(const c10d::ReconfigureOptions &opts)
{
    if (auto *list = std::get_if<std::vector<std::string>>(&opts.handles))
        return *list;
    auto &set = std::get<std::unordered_set<std::string>>(opts.handles);
    std::vector<std::string> sorted(set.begin(), set.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted;
}

WorkPtr Backend::reconfigure(const c10d::ReconfigureOptions &opts)
{
    auto members = members_of(opts);
    auto mine = std::find(members.begin(), members.end(), handle_);
    std::unordered_set<std::string> different(members.begin(), members.end());
    std::shared_ptr<Group> before;

    TORCH_CHECK_VALUE(mine != members.end(),
                      "banyan: reconfigure: this rank's handle is not among the handles");
    TORCH_CHECK_VALUE(different.size() == members.size(),
                      "banyan: reconfigure: a handle is there twice");
    {
        std::lock_guard<std::mutex> lock(group_mutex_);
        TORCH_CHECK_VALUE(uuids_.insert(opts.uuid).second, "banyan: reconfigure: uuid ",
                          opts.uuid, " was used before; take another one each time");
        before.swap(group_);
    }
    if (before)
        before->abort("the process group gets other members");
    int rank = static_cast<int>(mine - members.begin()),
        size = static_cast<int>(members.size());
    c10d::PrefixStore store(c10::str("reconfigure/", opts.uuid), store_);
    auto after = Group::join(store, rank, size, opts.timeout.value_or(options_->timeout));
    std::scoped_lock lock(hooks_mutex_, group_mutex_);
    for (auto &[id, hook] : completion_hooks_)
        after->set_completion_hook(id, hook);
    group_ = std::move(after);
    rank_ = rank;
    size_ = size;
    return done();
}

} // namespace banyan_torch
