// SPDX-License-Identifier: BSD-3-Clause
// What a codec keeps of a piece of a bucket from step to step.
#pragma once

#include <ATen/core/Tensor.h>
#include <banyan/banyan.h>
#include <memory>

namespace banyan_torch
{

// Any thread, while no operation uses it. Calls throw with a sentence.
class CodecState
{
  public:
    CodecState(int64_t count, int64_t seed);
    CodecState(const CodecState &) = delete;
    CodecState &operator=(const CodecState &) = delete;
    ~CodecState();
    // Moves the residuals [from, from + count) of another state behind `at`.
    void take(int64_t at, CodecState &other, int64_t from, int64_t count);
    // The next operation multiplies the residuals: the ratio of learning rates, old to new.
    void scale(double factor);
    // The whole state as bytes.
    at::Tensor save() const;
    void load(const at::Tensor &bytes);
    // A copy of the residuals.
    at::Tensor residual() const;
    banyan_codec_state *get() const
    {
        return state_;
    }

  private:
    banyan_codec_state *state_ = nullptr;
    const int64_t count_;
};

// A piece of a bucket, and how it travels. state may be empty: nothing is kept.
struct Piece {
    at::Tensor data;
    std::string codec, schedule; // "": the communicator's
    std::shared_ptr<CodecState> state;
    std::vector<int64_t> shape; // for codecs that use it
};

} // namespace banyan_torch
