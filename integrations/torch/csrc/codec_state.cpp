// SPDX-License-Identifier: BSD-3-Clause
#include "codec_state.h"

#include "backend.h"

#include <ATen/ATen.h>

namespace banyan_torch
{

CodecState::CodecState(int64_t count, int64_t seed) : count_(count)
{
    check(banyan_codec_state_create(&state_, static_cast<size_t>(count),
                                    static_cast<uint64_t>(seed)),
          "codec state");
}

CodecState::~CodecState()
{
    banyan_codec_state_free(state_);
}

void CodecState::take(int64_t at, CodecState &other, int64_t from, int64_t count)
{
    check(banyan_codec_state_move(state_, static_cast<size_t>(at), other.state_,
                                  static_cast<size_t>(from), static_cast<size_t>(count)),
          "codec state");
}

void CodecState::scale(double factor)
{
    check(banyan_codec_state_scale(state_, factor), "codec state");
}

at::Tensor CodecState::save() const
{
    size_t bytes = banyan_codec_state_bytes(state_);
    at::Tensor out = at::empty({ static_cast<int64_t>(bytes) }, at::kByte);

    check(banyan_codec_state_save(state_, out.data_ptr(), bytes), "codec state");
    return out;
}

void CodecState::load(const at::Tensor &bytes)
{
    at::Tensor flat = bytes.contiguous();

    check(banyan_codec_state_load(state_, flat.data_ptr(), static_cast<size_t>(flat.numel())),
          "codec state");
}

at::Tensor CodecState::residual() const
{
    const float *values = banyan_codec_state_residual(state_);

    if (!values)
        return at::zeros({ count_ }, at::kFloat);
    return at::from_blob(const_cast<float *>(values), { count_ }, at::kFloat).clone();
}

// run with the piece's codec.
static Step coded(const Piece &piece, Step run)
{
    return [piece, run](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        banyan_opts with = *opts;
        with.codec = piece.codec.empty() ? nullptr : piece.codec.c_str();
        with.schedule = piece.schedule.empty() ? nullptr : piece.schedule.c_str();
        with.codec_state = piece.state ? piece.state->get() : nullptr;
        with.shape = piece.shape.data();
        with.ndim = static_cast<int>(piece.shape.size());
        return run(comm, &with, req);
    };
}

static void check_piece(const at::Tensor &t)
{
    check_tensor(t);
    TORCH_CHECK_VALUE(is_plain(t), "banyan: a bucket's piece has gaps");
}

WorkPtr Backend::average(const std::vector<Piece> &pieces)
{
    Call call = call_of(c10d::OpType::ALLREDUCE, "all_reduce");

    for (const auto &piece : pieces) {
        check_piece(piece.data);
        Elements e = elements(piece.data, c10d::ReduceOp::AVG);
        call.steps.push_back(coded(piece, step<banyan_allreduce, banyan_allreduce_init>(
                                              e.data, e.data, e.count, e.dtype, BANYAN_AVG)));
        call.outputs.push_back(piece.data);
    }
    call.inputs = call.outputs;
    return issue(std::move(call));
}

WorkPtr Backend::reduce_scatter_piece(const Piece &piece, const at::Tensor &output,
                                      const c10d::ReduceOp &op)
{
    Call call = call_of(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor");

    check_piece(piece.data);
    check_piece(output);
    TORCH_CHECK_VALUE(output.numel() * size_ == piece.data.numel() &&
                          output.scalar_type() == piece.data.scalar_type(),
                      "banyan: reduce_scatter: the input must be of the output's type, and as "
                      "long as the outputs of all ranks together");
    Elements in = elements(piece.data, op), out = elements(output, op);
    call.ops.push_back(std::make_shared<Op>(op));
    call.steps.push_back(
        coded(piece, step<banyan_reduce_scatter, banyan_reduce_scatter_init>(
                         in.data, out.data, out.count, out.dtype, call.ops.back()->id())));
    call.inputs = { piece.data };
    call.outputs = { output };
    return issue(std::move(call));
}

} // namespace banyan_torch
