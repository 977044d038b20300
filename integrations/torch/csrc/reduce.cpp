// SPDX-License-Identifier: BSD-3-Clause
// The calls that add tensors.
#include "backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace banyan_torch
{

static banyan_op op_of(Call &call, const c10d::ReduceOp &op)
{
    call.ops.push_back(std::make_shared<Op>(op));
    return call.ops.back()->id();
}

// t itself, or its elements in memory without gaps, which go back to t after the call.
static at::Tensor in_place(Call &call, const at::Tensor &t)
{
    if (is_plain(t))
        return t;
    at::Tensor buffer = plain(t);
    call.buffers.push_back(buffer);
    call.afters.push_back([t, buffer] { t.copy_(buffer); });
    return buffer;
}

static void add_allreduce(Call &call, const at::Tensor &t, const c10d::ReduceOp &op)
{
    Elements e = elements(in_place(call, t), op);

    call.steps.push_back(step<banyan_allreduce, banyan_allreduce_init>(
        e.data, e.data, e.count, e.dtype, op_of(call, op)));
}

// Flattens tensors into one; of one type.
static at::Tensor flatten(const Tensors &list)
{
    Tensors flat;

    for (const auto &t : list)
        flat.push_back(t.reshape({ -1 }));
    return at::cat(flat);
}

// run without the communicator's codec.
static Step uncoded(Step run)
{
    return [run](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        banyan_opts with = *opts;
        with.codec = "none";
        return run(comm, &with, req);
    };
}

// Sums short tensors of one type as one operation. It has no codec: a lossy one would give
// neighbours of different magnitudes a common scale, and the smaller would be lost.
static void add_together(Call &call, const Tensors &run, const c10d::ReduceOp &op)
{
    at::NoGradGuard no_grad;
    at::Tensor flat = plain(flatten(run));

    call.buffers.push_back(flat);
    call.afters.push_back([run, flat] {
        int64_t at = 0;
        for (const auto &t : run) {
            t.copy_(flat.narrow(0, at, t.numel()).view(t.sizes()));
            at += t.numel();
        }
    });
    add_allreduce(call, flat, op);
    call.steps.back() = uncoded(std::move(call.steps.back()));
}

// Up to this length two copies take less time than an operation.
static constexpr int64_t kShortBytes = 4096;

static bool is_short(const at::Tensor &t)
{
    return t.numel() * t.element_size() <= kShortBytes;
}

// Neighbours that are short travel together. Types and lengths alone decide: they are the same
// on all ranks.
static void add_allreduces(Call &call, const Tensors &tensors, const c10d::ReduceOp &op)
{
    check_tensors(tensors);
    call.inputs = call.outputs = tensors;
    for (size_t i = 0, end; i < tensors.size(); i = end) {
        const at::Tensor &first = tensors[i];
        TORCH_CHECK_VALUE(first.device() == tensors[0].device(),
                          "banyan: all_reduce: the tensors of a list must be on one device");
        for (end = i + 1; end < tensors.size() && is_short(first) && is_short(tensors[end]) &&
                          tensors[end].scalar_type() == first.scalar_type();)
            end++;
        if (end == i + 1)
            add_allreduce(call, first, op);
        else
            add_together(call, { tensors.begin() + i, tensors.begin() + end }, op);
    }
}

WorkPtr Backend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    if (!tensors.empty() && tensors[0].is_sparse())
        return allreduce_sparse(tensors, opts);
    Call call = call_of(c10d::OpType::ALLREDUCE, "all_reduce", opts);
    add_allreduces(call, tensors, opts.reduceOp);
    return issue(std::move(call));
}

WorkPtr Backend::allreduce_coalesced(Tensors &tensors,
                                     const c10d::AllreduceCoalescedOptions &opts)
{
    Call call = call_of(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce", opts);

    add_allreduces(call, tensors, opts.reduceOp);
    return issue(std::move(call));
}

// The rows of all ranks, one after another: rows[r] from rank r, of whatever number.
at::Tensor Backend::all_rows(const at::Tensor &mine, const std::vector<int64_t> &rows,
                             std::chrono::milliseconds timeout)
{
    auto sizes = mine.sizes().vec();
    std::vector<at::Tensor> parts;
    c10d::AllgatherOptions opts;

    opts.timeout = timeout;
    opts.asyncOp = false;
    for (int64_t n : rows) {
        sizes[0] = n;
        parts.push_back(at::empty(sizes, mine.options()));
    }
    TensorLists outputs = { parts };
    Tensors inputs = { mine.contiguous() };
    allgather(outputs, inputs, opts);
    return at::cat(outputs[0], 0);
}

// Every rank gets the indices and values of all, and adds them. It runs to its end also if
// opts.asyncOp: each of its three steps needs the one before.
WorkPtr Backend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    // Its steps need each other's results, which a block has only at its end.
    Call call = call_of(c10d::OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce", opts);
    TORCH_CHECK(!in_block(), "banyan: sparse allreduce cannot be coalesced; call it alone");
    TORCH_CHECK(tensors.size() == 1 && opts.reduceOp == c10d::ReduceOp::SUM,
                "banyan: sparse allreduce sums one tensor a call");
    at::Tensor mine = tensors[0].coalesce();
    at::Tensor count = at::full({ 1 }, mine._nnz(), at::kLong);
    std::vector<int64_t> ones(static_cast<size_t>(size_), 1);
    at::Tensor counts = all_rows(count, ones, opts.timeout);
    std::vector<int64_t> rows(counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + size_);
    at::Tensor indices = all_rows(mine.indices().t(), rows, opts.timeout);
    at::Tensor values = all_rows(mine.values(), rows, opts.timeout);
    at::Tensor sum = at::sparse_coo_tensor(indices.t(), values, mine.sizes(), mine.options());
    at::NoGradGuard no_grad;
    tensors[0].copy_(sum.coalesce());
    call.outputs = tensors;
    call.async = false;
    return issue(std::move(call));
}

WorkPtr Backend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts)
{
    Call call = call_of(c10d::OpType::REDUCE, "reduce", opts);
    int root = static_cast<int>(opts.rootRank);

    check_tensors(tensors);
    TORCH_CHECK_VALUE(root >= 0 && root < size_, "banyan: reduce: invalid root rank: ", root);
    call.inputs = call.outputs = tensors;
    for (const auto &t : tensors) {
        Elements e = elements(in_place(call, t), opts.reduceOp);
        void *to = rank_ == root ? e.data : nullptr;
        call.steps.push_back(step<banyan_reduce, banyan_reduce_init>(
            e.data, to, e.count, e.dtype, op_of(call, opts.reduceOp), root));
    }
    return issue(std::move(call));
}

// output gets this rank's block of the sum of `input`, whose blocks are counts[r] elements.
static void add_reduce_scatter(Call &call, const at::Tensor &output, const at::Tensor &input,
                               std::vector<size_t> counts, const c10d::ReduceOp &op)
{
    at::Tensor from = plain(input);
    Elements in = elements(from, op);
    Elements out = elements(in_place(call, output), op);
    auto lengths = std::make_shared<std::vector<size_t>>(std::move(counts));
    banyan_op id = op_of(call, op);

    TORCH_CHECK(output.scalar_type() == input.scalar_type(),
                "output tensor must have the same type as input tensor");
    for (auto &n : *lengths)
        n *= in.each;
    call.buffers.push_back(from);
    call.steps.push_back([=](banyan_comm *comm, const banyan_opts *opts, banyan_request **req) {
        const size_t *n = lengths->data();
        if (lengths->size() == 1)
            return req ? banyan_reduce_scatter_init(in.data, out.data, *n, in.dtype, id, comm,
                                                    opts, req)
                       : banyan_reduce_scatter(in.data, out.data, *n, in.dtype, id, comm, opts);
        return req ? banyan_reduce_scatterv_init(in.data, out.data, n, in.dtype, id, comm, opts,
                                                 req)
                   : banyan_reduce_scatterv(in.data, out.data, n, in.dtype, id, comm, opts);
    });
}

WorkPtr Backend::reduce_scatter(Tensors &outputs, TensorLists &inputs,
                                const c10d::ReduceScatterOptions &opts)
{
    Call call = call_of(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", opts);

    check_tensors(outputs);
    TORCH_CHECK_VALUE(inputs.size() == outputs.size(),
                      "banyan: reduce_scatter: as many lists as outputs are needed");
    for (size_t i = 0; i < outputs.size(); i++) {
        std::vector<size_t> counts;
        check_tensors(inputs[i]);
        TORCH_CHECK_VALUE(inputs[i].size() == static_cast<size_t>(size_),
                          "banyan: reduce_scatter: invalid input tensor list size, must be "
                          "world size");
        for (const auto &t : inputs[i])
            counts.push_back(static_cast<size_t>(t.numel()));
        TORCH_CHECK_VALUE(counts[static_cast<size_t>(rank_)] ==
                              static_cast<size_t>(outputs[i].numel()),
                          "banyan: reduce_scatter: the output has ", outputs[i].numel(),
                          " elements, this rank's input ", counts[static_cast<size_t>(rank_)]);
        add_reduce_scatter(call, outputs[i], flatten(inputs[i]), counts, opts.reduceOp);
        call.inputs.insert(call.inputs.end(), inputs[i].begin(), inputs[i].end());
    }
    call.outputs = outputs;
    return issue(std::move(call));
}

static void add_even(Call &call, const at::Tensor &output, const at::Tensor &input, int size,
                     const c10d::ReduceOp &op)
{
    check_tensor(output);
    check_tensor(input);
    TORCH_CHECK_VALUE(output.numel() * size == input.numel(),
                      "input tensor must be the same size as output size times world size");
    add_reduce_scatter(call, output, input, { static_cast<size_t>(output.numel()) }, op);
}

WorkPtr Backend::reduce_scatter_single(at::Tensor &output, at::Tensor &input,
                                       const c10d::ReduceScatterOptions &opts)
{
    Call call = call_of(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", opts);

    add_even(call, output, input, size_, opts.reduceOp);
    call.inputs = { input };
    call.outputs = { output };
    return issue(std::move(call));
}

WorkPtr Backend::reduce_scatter_single_coalesced(Tensors &outputs, Tensors &inputs,
                                                 const c10d::ReduceScatterOptions &opts)
{
    Call call = call_of(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                        "reduce_scatter_tensor_coalesced", opts);

    TORCH_CHECK_VALUE(outputs.size() == inputs.size(),
                      "banyan: reduce_scatter_single_coalesced: the lists differ in length");
    for (size_t i = 0; i < outputs.size(); i++)
        add_even(call, outputs[i], inputs[i], size_, opts.reduceOp);
    call.inputs = inputs;
    call.outputs = outputs;
    return issue(std::move(call));
}

} // namespace banyan_torch
