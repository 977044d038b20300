// SPDX-License-Identifier: BSD-3-Clause
// Tensors in memory that the other ranks of the host can map, so that they copy less.
#pragma once

#include <ATen/core/Tensor.h>
#include <banyan/banyan.h>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace banyan_torch
{

// The memory of tensors that are gone is kept for later ones of about the same size: to map it,
// here and by the peers, takes longer than most operations. Any thread.
class Pool : public std::enable_shared_from_this<Pool>
{
  public:
    explicit Pool(banyan_comm *comm) : comm_(comm)
    {
    }
    // size elements, not set. The tensor may outlive the communicator.
    at::Tensor allocate(int64_t size, const at::TensorOptions &options);
    // The communicator ends. What lives stays; what is not in use is unmapped.
    void close();
    // Blocks that were mapped so far.
    uint64_t mapped();

  private:
    void *take(size_t bytes);
    void give_back(void *ptr, size_t bytes);
    std::mutex mutex_;
    std::map<size_t, std::vector<void *>> unused_; // by bytes
    banyan_comm *comm_;                            // NULL after close()
    uint64_t mapped_ = 0;
};

} // namespace banyan_torch
