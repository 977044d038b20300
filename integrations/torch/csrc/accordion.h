// SPDX-License-Identifier: BSD-3-Clause
// Accordion (banyan/training.h) over the gradients that a hook sees.
#pragma once

#include "process_group.h"

#include <ATen/core/Tensor.h>

struct banyan_accordion;
struct banyan_accordion_config;

namespace banyan_torch
{

class Accordion
{
  public:
    // Collective: a tensor for each name, of so many elements. Throws with a sentence.
    Accordion(std::shared_ptr<Group> group, const std::vector<std::string> &names,
              const std::vector<int64_t> &counts, const banyan_accordion_config &cfg);
    Accordion(const Accordion &) = delete;
    Accordion &operator=(const Accordion &) = delete;
    ~Accordion();
    // This rank's gradient of the tensor, not yet reduced; once a step.
    void observe(int64_t tensor, const at::Tensor &grad);
    // Ends a step. Collective where an interval ends. Returns how many levels changed.
    int step(double rate);
    std::string codec(int64_t tensor) const;
    // The state of this rank as bytes.
    at::Tensor save() const;
    void load(const at::Tensor &bytes);

  private:
    const std::shared_ptr<Group> group_;
    at::Tensor gradient_; // of the tensor that is observed: the library borrows this memory
    banyan_accordion *object_ = nullptr;
};

} // namespace banyan_torch
