// SPDX-License-Identifier: BSD-3-Clause
#include "accordion.h"

#include "types.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <banyan/training.h>

namespace banyan_torch
{

Accordion::Accordion(std::shared_ptr<Group> group, const std::vector<std::string> &names,
                     const std::vector<int64_t> &counts, const banyan_accordion_config &cfg)
    : group_(std::move(group))
{
    int64_t longest = counts.empty() ? 1 : *std::max_element(counts.begin(), counts.end());
    std::vector<banyan_tensor> tensors;

    TORCH_CHECK_VALUE(names.size() == counts.size() && longest > 0,
                      "banyan: accordion: a name and a number of elements for each tensor");
    gradient_ = at::zeros({ longest }, at::kFloat);
    for (size_t i = 0; i < names.size(); i++)
        tensors.push_back(
            { names[i].c_str(), BANYAN_F32, 1, &counts[i], gradient_.data_ptr() });
    group_->call("accordion", [&](banyan_comm *comm) {
        return banyan_accordion_create(&object_, comm, tensors.data(), tensors.size(), &cfg);
    });
}

Accordion::~Accordion()
{
    banyan_accordion_free(object_);
}

void Accordion::observe(int64_t tensor, const at::Tensor &grad)
{
    at::NoGradGuard no_grad;

    if (group_->rank() == 0) // which decides for all
        gradient_.narrow(0, 0, grad.numel()).view(grad.sizes()).copy_(grad);
    check(banyan_accordion_observe(object_, static_cast<size_t>(tensor)), "accordion");
}

int Accordion::step(double rate)
{
    return group_->call("accordion",
                        [&](banyan_comm *) { return banyan_accordion_step(object_, rate); });
}

std::string Accordion::codec(int64_t tensor) const
{
    const char *name = banyan_accordion_codec(object_, static_cast<size_t>(tensor));

    TORCH_CHECK_INDEX(name, "banyan: accordion: there is no tensor ", tensor);
    return name;
}

at::Tensor Accordion::save() const
{
    size_t bytes = banyan_accordion_bytes(object_);
    at::Tensor out = at::empty({ static_cast<int64_t>(bytes) }, at::kByte);

    check(banyan_accordion_save(object_, out.data_ptr(), bytes), "accordion");
    return out;
}

void Accordion::load(const at::Tensor &bytes)
{
    at::Tensor flat = bytes.contiguous();

    check(banyan_accordion_load(object_, flat.data_ptr(), static_cast<size_t>(flat.numel())),
          "accordion");
}

} // namespace banyan_torch
