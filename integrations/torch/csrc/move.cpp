// SPDX-License-Identifier: BSD-3-Clause
// The calls that move tensors. Types do not matter to them: all counts are bytes.
#include "backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace banyan_torch
{

using Sizes = std::shared_ptr<std::vector<size_t>>;

static size_t bytes_of(const at::Tensor &t)
{
    return static_cast<size_t>(t.numel()) * t.element_size();
}

// A tensor that is sent, without gaps.
static void *source_of(Call &call, const at::Tensor &t)
{
    call.buffers.push_back(plain(t));
    return call.buffers.back().data_ptr();
}

// A tensor that is received into: itself, or a buffer that is copied to it after the call.
static void *target_of(Call &call, const at::Tensor &t, bool keeps_content = false)
{
    if (is_plain(t))
        return t.data_ptr();
    at::Tensor buffer = keeps_content ? plain(t) : at::empty(t.sizes(), t.options());
    call.buffers.push_back(buffer);
    call.afters.push_back([t, buffer] { t.copy_(buffer); });
    return buffer.data_ptr();
}

// Tensors as one block of bytes, one after another, and their sizes.
struct Packed {
    at::Tensor bytes;
    Sizes sizes = std::make_shared<std::vector<size_t>>();
};

static Packed room_for(const Tensors &list)
{
    Packed packed;
    size_t total = 0;

    for (const auto &t : list) {
        check_tensor(t);
        packed.sizes->push_back(bytes_of(t));
        total += bytes_of(t);
    }
    packed.bytes = at::empty({ static_cast<int64_t>(total) }, at::kByte);
    return packed;
}

static at::Tensor as_bytes(const at::Tensor &contiguous)
{
    return at::from_blob(contiguous.data_ptr(), { static_cast<int64_t>(bytes_of(contiguous)) },
                         at::kByte);
}

static Packed pack(Call &call, const Tensors &list)
{
    Packed packed = room_for(list);
    int64_t at = 0;

    for (const auto &t : list) {
        at::Tensor from = plain(t);
        int64_t n = static_cast<int64_t>(bytes_of(t));
        packed.bytes.narrow(0, at, n).copy_(as_bytes(from));
        at += n;
    }
    call.buffers.push_back(packed.bytes);
    return packed;
}

static void unpack(const at::Tensor &bytes, const Tensors &list)
{
    int64_t at = 0;

    for (const auto &t : list) {
        int64_t n = static_cast<int64_t>(bytes_of(t));
        at::Tensor to = is_plain(t) ? t : at::empty(t.sizes(), t.options());
        as_bytes(to).copy_(bytes.narrow(0, at, n));
        if (!is_plain(t))
            t.copy_(to);
        at += n;
    }
}

// Room for tensors that are received together, and go to `list` after the call.
static Packed receive(Call &call, const Tensors &list)
{
    Packed packed = room_for(list);

    call.buffers.push_back(packed.bytes);
    call.afters.push_back([bytes = packed.bytes, list] { unpack(bytes, list); });
    return packed;
}

static void check_list(const Tensors &list, int size, const char *what)
{
    check_tensors(list);
    TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size), "banyan: ", what,
                      ": the list has ", list.size(), " tensors for ", size, " ranks");
}

// What a rank sends to itself.
static void check_own(const at::Tensor &output, const at::Tensor &input, const char *what)
{
    TORCH_CHECK_VALUE(bytes_of(output) == bytes_of(input), "banyan: ", what,
                      ": this rank's output has ", bytes_of(output), " bytes, its input ",
                      bytes_of(input));
}

static int root_of(int64_t root, int size, const char *what)
{
    TORCH_CHECK_VALUE(root >= 0 && root < size, "banyan: ", what,
                      ": invalid root rank: ", root);
    return static_cast<int>(root);
}

WorkPtr Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts)
{
    Call call = call_of(c10d::OpType::BROADCAST, "broadcast", opts);
    int root = root_of(opts.rootRank, size_, "broadcast");

    check_tensors(tensors);
    call.inputs = call.outputs = tensors;
    for (const auto &t : tensors)
        call.steps.push_back(step<banyan_broadcast, banyan_broadcast_init>(
            target_of(call, t, true), bytes_of(t), BANYAN_U8, root));
    return issue(std::move(call));
}

static void add_allgather(Call &call, const at::Tensor &output, const at::Tensor &input,
                          int size)
{
    check_tensor(output);
    check_tensor(input);
    TORCH_CHECK(output.scalar_type() == input.scalar_type(),
                "output tensor must have the same type as input tensor");
    TORCH_CHECK_VALUE(output.numel() == input.numel() * size,
                      "output tensor size must be equal to world_size times input tensor size");
    call.steps.push_back(step<banyan_allgather, banyan_allgather_init>(
        source_of(call, input), target_of(call, output), bytes_of(input), BANYAN_U8));
}

WorkPtr Backend::all_gather_single(at::Tensor &output, at::Tensor &input,
                                   const c10d::AllgatherOptions &opts)
{
    Call call = call_of(c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor", opts);

    add_allgather(call, output, input, size_);
    call.inputs = { input };
    call.outputs = { output };
    return issue(std::move(call));
}

WorkPtr Backend::all_gather_single_coalesced(Tensors &outputs, Tensors &inputs,
                                             const c10d::AllgatherOptions &opts)
{
    Call call = call_of(c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED,
                        "all_gather_into_tensor_coalesced", opts);

    TORCH_CHECK_VALUE(outputs.size() == inputs.size(),
                      "banyan: all_gather_single_coalesced: the lists differ in length");
    for (size_t i = 0; i < outputs.size(); i++)
        add_allgather(call, outputs[i], inputs[i], size_);
    call.inputs = inputs;
    call.outputs = outputs;
    return issue(std::move(call));
}

// The lists of all ranks; ranks may contribute different sizes.
static void add_allgatherv(Call &call, const Packed &to, void *from, Sizes sizes)
{
    void *out = to.bytes.data_ptr();

    call.steps.push_back([=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        const size_t *n = sizes->data();
        return req ? banyan_allgatherv_init(from, out, n, nullptr, BANYAN_U8, comm, opts, req)
                   : banyan_allgatherv(from, out, n, nullptr, BANYAN_U8, comm, opts);
    });
}

WorkPtr Backend::allgather(TensorLists &outputs, Tensors &inputs,
                           const c10d::AllgatherOptions &opts)
{
    Call call = call_of(c10d::OpType::ALLGATHER, "all_gather", opts);

    check_tensors(inputs);
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(),
                      "banyan: all_gather: requires input/output tensor lists to have the "
                      "same length");
    for (size_t i = 0; i < inputs.size(); i++) {
        check_list(outputs[i], size_, "all_gather");
        check_own(outputs[i][static_cast<size_t>(rank_)], inputs[i], "all_gather");
        Packed to = receive(call, outputs[i]);
        add_allgatherv(call, to, source_of(call, inputs[i]), to.sizes);
        call.outputs.insert(call.outputs.end(), outputs[i].begin(), outputs[i].end());
    }
    call.inputs = inputs;
    return issue(std::move(call));
}

// outputs[r] is the list of rank r.
WorkPtr Backend::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                     const c10d::AllgatherOptions &opts)
{
    Call call = call_of(c10d::OpType::ALLGATHER_COALESCED, "all_gather_coalesced", opts);
    Sizes sizes = std::make_shared<std::vector<size_t>>();
    Tensors all;

    check_tensors(inputs);
    TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                      "output lists should be equal to world size");
    for (const auto &list : outputs) {
        size_t total = 0;
        TORCH_CHECK_VALUE(list.size() == inputs.size(),
                          "invalid output size: (expected length ", inputs.size(), ", got ",
                          list.size(), ")");
        for (const auto &t : list)
            total += bytes_of(t);
        sizes->push_back(total);
        all.insert(all.end(), list.begin(), list.end());
    }
    for (size_t i = 0; i < inputs.size(); i++)
        check_own(outputs[static_cast<size_t>(rank_)][i], inputs[i], "all_gather_coalesced");
    Packed from = pack(call, inputs);
    Packed to = receive(call, all);
    add_allgatherv(call, to, from.bytes.data_ptr(), sizes);
    call.inputs = inputs;
    call.outputs = all;
    return issue(std::move(call));
}

static void add_gather(Call &call, const Packed *to, const at::Tensor &input, int root)
{
    void *from = source_of(call, input), *out = to ? to->bytes.data_ptr() : nullptr;
    Sizes sizes = to ? to->sizes : nullptr;
    size_t mine = bytes_of(input);

    call.steps.push_back([=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        const size_t *n = sizes ? sizes->data() : nullptr;
        return req ? banyan_gatherv_init(from, mine, out, n, nullptr, BANYAN_U8, root, comm,
                                         opts, req)
                   : banyan_gatherv(from, mine, out, n, nullptr, BANYAN_U8, root, comm, opts);
    });
}

WorkPtr Backend::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts)
{
    Call call = call_of(c10d::OpType::GATHER, "gather", opts);
    int root = root_of(opts.rootRank, size_, "gather");

    check_tensors(inputs);
    TORCH_CHECK_VALUE(inputs.size() == 1, "banyan: gather: requires a single-element input "
                                          "list");
    call.inputs = inputs;
    if (rank_ != root) {
        TORCH_CHECK_VALUE(outputs.empty(), "banyan: gather: requires empty output on non-root");
        add_gather(call, nullptr, inputs[0], root);
        return issue(std::move(call));
    }
    TORCH_CHECK_VALUE(outputs.size() == 1,
                      "banyan: gather: requires a single-element output "
                      "list containing a list with ",
                      size_, " tensors");
    check_list(outputs[0], size_, "gather");
    check_own(outputs[0][static_cast<size_t>(rank_)], inputs[0], "gather");
    Packed to = receive(call, outputs[0]);
    add_gather(call, &to, inputs[0], root);
    call.outputs = outputs[0];
    return issue(std::move(call));
}

WorkPtr Backend::gather_single(at::Tensor &output, at::Tensor &input,
                               const c10d::GatherOptions &opts)
{
    Call call = call_of(c10d::OpType::GATHER, "gather", opts);
    int root = root_of(opts.rootRank, size_, "gather");

    check_tensor(input);
    call.inputs = { input };
    if (rank_ != root) {
        add_gather(call, nullptr, input, root);
        return issue(std::move(call));
    }
    check_tensor(output);
    TORCH_CHECK(output.scalar_type() == input.scalar_type(),
                "output tensor must have the same type as input tensor");
    TORCH_CHECK_VALUE(output.numel() == input.numel() * size_,
                      "output tensor size must be equal to world_size times input tensor size");
    Packed to = receive(call, { output });
    to.sizes->assign(static_cast<size_t>(size_), bytes_of(input));
    add_gather(call, &to, input, root);
    call.outputs = { output };
    return issue(std::move(call));
}

WorkPtr Backend::scatter(Tensors &outputs, TensorLists &inputs,
                         const c10d::ScatterOptions &opts)
{
    Call call = call_of(c10d::OpType::SCATTER, "scatter", opts);
    int root = root_of(opts.rootRank, size_, "scatter");
    void *from = nullptr;
    Sizes sizes;

    check_tensors(outputs);
    TORCH_CHECK_VALUE(outputs.size() == 1, "banyan: scatter: requires a single-element output "
                                           "list");
    if (rank_ == root) {
        TORCH_CHECK_VALUE(inputs.size() == 1,
                          "banyan: scatter: requires a single-element "
                          "input list containing a list with ",
                          size_, " tensors");
        check_list(inputs[0], size_, "scatter");
        check_own(outputs[0], inputs[0][static_cast<size_t>(rank_)], "scatter");
        Packed packed = pack(call, inputs[0]);
        from = packed.bytes.data_ptr();
        sizes = packed.sizes;
        call.inputs = inputs[0];
    } else {
        TORCH_CHECK_VALUE(inputs.empty(), "banyan: scatter: requires empty input on non-root");
    }
    void *to = target_of(call, outputs[0]);
    size_t mine = bytes_of(outputs[0]);
    call.steps.push_back([=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        const size_t *n = sizes ? sizes->data() : nullptr;
        return req ? banyan_scatterv_init(from, n, nullptr, to, mine, BANYAN_U8, root, comm,
                                          opts, req)
                   : banyan_scatterv(from, n, nullptr, to, mine, BANYAN_U8, root, comm, opts);
    });
    call.outputs = outputs;
    return issue(std::move(call));
}

// from and to: blocks for and of each rank, packed.
static void add_alltoall(Call &call, const void *from, Sizes sent, void *to, Sizes received)
{
    call.steps.push_back([=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        const size_t *s = sent->data(), *r = received->data();
        return req ? banyan_alltoallv_init(from, s, nullptr, to, r, nullptr, BANYAN_U8, comm,
                                           opts, req)
                   : banyan_alltoallv(from, s, nullptr, to, r, nullptr, BANYAN_U8, comm, opts);
    });
}

// Bytes for each rank, of rows for each rank.
static Sizes bytes_of_splits(const std::vector<int64_t> &splits, const at::Tensor &t, int size)
{
    auto lengths = std::make_shared<std::vector<size_t>>(size), offsets = lengths;

    c10d::checkSplitSizes(splits, t, size);
    offsets = std::make_shared<std::vector<size_t>>(size);
    c10d::computeLengthsAndOffsets(splits, t, lengths.get(), offsets.get());
    for (auto &n : *lengths)
        n *= t.element_size();
    return lengths;
}

WorkPtr Backend::all_to_all_single(at::Tensor &output, at::Tensor &input,
                                   std::vector<int64_t> &output_splits,
                                   std::vector<int64_t> &input_splits,
                                   const c10d::AllToAllOptions &opts)
{
    Call call = call_of(c10d::OpType::ALLTOALL_BASE, "all_to_all", opts);

    check_tensor(output);
    check_tensor(input);
    TORCH_CHECK(output.scalar_type() == input.scalar_type(),
                "all_to_all_single: tensors are not of the same type");
    Sizes sent = bytes_of_splits(input_splits, input, size_);
    Sizes received = bytes_of_splits(output_splits, output, size_);
    add_alltoall(call, source_of(call, input), sent, target_of(call, output), received);
    call.inputs = { input };
    call.outputs = { output };
    return issue(std::move(call));
}

WorkPtr Backend::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts)
{
    Call call = call_of(c10d::OpType::ALLTOALL, "all_to_all", opts);

    check_list(outputs, size_, "all_to_all");
    check_list(inputs, size_, "all_to_all");
    check_own(outputs[static_cast<size_t>(rank_)], inputs[static_cast<size_t>(rank_)],
              "all_to_all");
    Packed from = pack(call, inputs), to = receive(call, outputs);
    add_alltoall(call, from.bytes.data_ptr(), from.sizes, to.bytes.data_ptr(), to.sizes);
    call.inputs = inputs;
    call.outputs = outputs;
    return issue(std::move(call));
}

Call Backend::message(c10d::OpType type, const char *title, const Tensors &tensors, int tag)
{
    Call call = call_of(type, title);

    check_tensors(tensors);
    TORCH_CHECK_VALUE(tensors.size() == 1, "banyan: ", title, ": takes a single tensor");
    TORCH_CHECK_VALUE(tag >= 0, "Tag must be nonnegative, it is ", tag);
    call.inputs = call.outputs = tensors;
    return call;
}

static Step with_tag(int tag, Step run)
{
    return [=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        banyan_opts tagged = *opts;
        tagged.tag = static_cast<uint32_t>(tag);
        return run(comm, &tagged, req);
    };
}

WorkPtr Backend::send(Tensors &tensors, int peer, int tag)
{
    Call call = message(c10d::OpType::SEND, "send", tensors, tag);

    call.steps.push_back(
        with_tag(tag, step<banyan_send, banyan_send_init>(
                          source_of(call, tensors[0]), bytes_of(tensors[0]), BANYAN_U8, peer)));
    return issue(std::move(call));
}

static void add_receive(Call &call, const at::Tensor &t, int peer, int tag)
{
    call.sources.push_back(std::make_shared<int>(peer));
    call.steps.push_back(with_tag(tag, step<banyan_recv, banyan_recv_init>(
                                           target_of(call, t), bytes_of(t), BANYAN_U8, peer)));
}

WorkPtr Backend::recv(Tensors &tensors, int peer, int tag)
{
    Call call = message(c10d::OpType::RECV, "recv", tensors, tag);

    TORCH_CHECK_VALUE(peer >= 0, "banyan: recv: invalid source rank: ", peer);
    add_receive(call, tensors[0], peer, tag);
    return issue(std::move(call));
}

WorkPtr Backend::recvAnysource(Tensors &tensors, int tag)
{
    Call call = message(c10d::OpType::RECVANYSOURCE, "recvAnySource", tensors, tag);

    add_receive(call, tensors[0], BANYAN_ANY_SOURCE, tag);
    return issue(std::move(call));
}

} // namespace banyan_torch
