// SPDX-License-Identifier: BSD-3-Clause
#include "types.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace banyan_torch
{

static std::string sentence(int rc, const char *what)
{
    const char *text = banyan_last_error();
    std::string said = *text ? text : banyan_strerror(rc);

    if (rc == -BANYAN_ETIMEDOUT)
        return c10::str("banyan: ", what, ": the timeout passed: ", said);
    if (rc == -BANYAN_ERANKDEAD)
        return c10::str("banyan: ", what, ": a connection was closed or a rank died: ", said);
    return c10::str("banyan: ", what, ": ", said);
}

std::exception_ptr failure(int rc, const char *what)
{
    std::string text = sentence(rc, what);

    if (rc == -BANYAN_EINVAL)
        return std::make_exception_ptr(C10_BUILD_ERROR(ValueError, text));
    return std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, text));
}

void check(int rc, const char *what)
{
    if (rc < 0)
        std::rethrow_exception(failure(rc, what));
}

static banyan_dtype dtype_of(at::ScalarType type)
{
    switch (type) {
    case at::kFloat: return BANYAN_F32;
    case at::kDouble: return BANYAN_F64;
    case at::kComplexFloat: return BANYAN_C64;
    case at::kComplexDouble: return BANYAN_C128;
    case at::kHalf: return BANYAN_F16;
    case at::kBFloat16: return BANYAN_BF16;
    case at::kChar: return BANYAN_I8;
    case at::kBool: return BANYAN_BOOL;
    case at::kByte: return BANYAN_U8;
    case at::kShort: return BANYAN_I16;
    case at::kUInt16: return BANYAN_U16;
    case at::kInt: return BANYAN_I32;
    case at::kLong: return BANYAN_I64;
    case at::kUInt32: return BANYAN_U32;
    case at::kUInt64: return BANYAN_U64;
    case at::kFloat8_e4m3fn: return BANYAN_F8E4M3;
    case at::kFloat8_e5m2: return BANYAN_F8E5M2;
    default:
        TORCH_CHECK(false, "Invalid scalar type: banyan moves but does not reduce ", type,
                    "; convert the tensor to another type first");
    }
}

static bool is_bitwise(const c10d::ReduceOp &op)
{
    return op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR ||
           op == c10d::ReduceOp::BXOR;
}

static void check_op(at::ScalarType type, const c10d::ReduceOp &op)
{
    TORCH_CHECK(!is_bitwise(op) || at::isIntegralType(type, true),
                "Cannot use a bitwise ReduceOp (BAND, BOR, BXOR) with non-integral dtype ",
                type);
    TORCH_CHECK(!at::isComplexType(type) || op == c10d::ReduceOp::SUM ||
                    op == c10d::ReduceOp::AVG || op == c10d::ReduceOp::PREMUL_SUM ||
                    op == c10d::ReduceOp::PRODUCT,
                "all_reduce does not support this ReduceOp on complex tensors: banyan adds, "
                "averages and multiplies them");
    TORCH_CHECK(type != at::kBool ||
                    (op != c10d::ReduceOp::AVG && op != c10d::ReduceOp::PREMUL_SUM),
                "banyan: AVG and PREMUL_SUM have no meaning for bool tensors");
}

Elements elements(const at::Tensor &t, const c10d::ReduceOp &op)
{
    bool is_pair = t.is_complex() && op == c10d::ReduceOp::PREMUL_SUM;
    size_t each = is_pair ? 2 : 1;

    check_op(t.scalar_type(), op);
    return { t.data_ptr(), static_cast<size_t>(t.numel()) * each,
             dtype_of(is_pair ? c10::toRealValueType(t.scalar_type()) : t.scalar_type()),
             each };
}

static double factor_of(const c10d::ReduceOp &op)
{
    auto *with = dynamic_cast<c10d::PreMulSumSupplement *>(op.supplement_.get());

    TORCH_CHECK(with, "banyan: PREMUL_SUM without a factor; make it with "
                      "torch.distributed._make_nccl_premul_sum");
    return with->tensor_factor.defined() ? with->tensor_factor.item<double>()
                                         : with->double_factor;
}

static banyan_op_kind kind_of(const c10d::ReduceOp &op)
{
    switch (op.op_) {
    case c10d::ReduceOp::SUM: return BANYAN_SUM;
    case c10d::ReduceOp::AVG: return BANYAN_AVG;
    case c10d::ReduceOp::PRODUCT: return BANYAN_PROD;
    case c10d::ReduceOp::MIN: return BANYAN_MIN;
    case c10d::ReduceOp::MAX: return BANYAN_MAX;
    case c10d::ReduceOp::BAND: return BANYAN_BAND;
    case c10d::ReduceOp::BOR: return BANYAN_BOR;
    case c10d::ReduceOp::BXOR: return BANYAN_BXOR;
    default: TORCH_CHECK(false, "banyan: unknown ReduceOp ", static_cast<int>(op.op_));
    }
}

Op::Op(const c10d::ReduceOp &op)
{
    if (op == c10d::ReduceOp::PREMUL_SUM) {
        check(banyan_op_create_premul_sum(factor_of(op), &id_), "PREMUL_SUM");
        made_ = true;
    } else {
        id_ = kind_of(op);
    }
}

Op::~Op()
{
    if (made_)
        banyan_op_free(id_);
}

bool is_plain(const at::Tensor &t)
{
    return t.is_contiguous() && !t.is_conj() && !t.is_neg();
}

at::Tensor plain(const at::Tensor &t)
{
    return t.resolve_conj().resolve_neg().contiguous();
}

void check_tensor(const at::Tensor &t)
{
    TORCH_CHECK_VALUE(t.defined(), "banyan: a tensor is undefined");
    TORCH_CHECK(t.layout() == at::kStrided, "banyan: unsupported layout ", t.layout(),
                "; call to_dense() first");
    TORCH_CHECK(t.device().is_cpu() || t.device().is_cuda(),
                "banyan: No backend type associated with device type ", t.device(),
                "; it serves tensors of the CPU and of CUDA, so call .cpu() first");
}

void check_tensors(const std::vector<at::Tensor> &list)
{
    TORCH_CHECK_VALUE(!list.empty(), "banyan: requires a non-empty list of tensors");
    for (const auto &t : list)
        check_tensor(t);
}

std::vector<at::Device> devices_of(const std::vector<at::Tensor> &tensors)
{
    std::vector<at::Device> found;

    for (const auto &t : tensors)
        if (!t.device().is_cpu() &&
            std::find(found.begin(), found.end(), t.device()) == found.end())
            found.push_back(t.device());
    return found;
}

bool wait_for_streams(const std::vector<at::Tensor> &tensors)
{
    auto devices = devices_of(tensors);

    for (const auto &device : devices) {
        c10::impl::VirtualGuardImpl guard(device.type());
        guard.synchronizeStream(guard.getStream(device));
    }
    return !devices.empty();
}

} // namespace banyan_torch
