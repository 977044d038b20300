// SPDX-License-Identifier: BSD-3-Clause
// What torch calls a type, an operation or an error, in banyan's words.
#pragma once

#include <ATen/core/Tensor.h>
#include <banyan/banyan.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace banyan_torch
{

// Throws what the library says about rc, unless rc >= 0: DistBackendError, or ValueError for
// arguments. `what` is the call: "all_reduce". To be called by the thread that got rc.
void check(int rc, const char *what);
// The same as a stored exception. rc < 0.
std::exception_ptr failure(int rc, const char *what);

// The elements of a tensor that is reduced. PREMUL_SUM takes complex numbers as two floats.
struct Elements {
    void *data;
    size_t count;
    banyan_dtype dtype;
    size_t each; // of count, for each element of the tensor
};
// Throws for types that are only moved (float8_e8m0fnu) and for `op` that the type has not.
// t: plain.
Elements elements(const at::Tensor &t, const c10d::ReduceOp &op);

// An operation of c10d for one call. It owns what the library made for PREMUL_SUM.
class Op
{
  public:
    explicit Op(const c10d::ReduceOp &op);
    Op(const Op &) = delete;
    Op &operator=(const Op &) = delete;
    ~Op();
    banyan_op id() const
    {
        return id_;
    }

  private:
    banyan_op id_ = BANYAN_SUM;
    bool made_ = false;
};

// Whether t's memory is its elements in order: no gaps, not conjugated or negated by a mark.
bool is_plain(const at::Tensor &t);
// t, or such a copy of it.
at::Tensor plain(const at::Tensor &t);

// Throws unless t is dense (not sparse) and lies in the memory of the CPU or of a CUDA device.
void check_tensor(const at::Tensor &t);
// Returns when the calling thread's current streams have done what they have for tensors of
// devices, if there are any of these. Whether there are.
bool wait_for_streams(const std::vector<at::Tensor> &tensors);
// The devices of tensors, without the CPU and without repetitions.
std::vector<at::Device> devices_of(const std::vector<at::Tensor> &tensors);
void check_tensors(const std::vector<at::Tensor> &list);

} // namespace banyan_torch
