// SPDX-License-Identifier: BSD-3-Clause
// A CUDA device for tests: memory of the fake driver (tests/support/fake_cuda.h), and streams
// whose work is done as late as the rules allow. A kernel writes when somebody waits for its
// stream or for an event behind it, and not before.
#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <deque>
#include <dlfcn.h>
#include <mutex>
#include <torch/library.h>

extern "C" {
#include "tests/support/fake_cuda.h"
}

namespace
{

const fake_cuda *driver()
{
    static auto *get = reinterpret_cast<const fake_cuda *(*)()>(dlsym(RTLD_DEFAULT, "fake_cuda"));

    TORCH_CHECK(get, "load the fake driver first");
    return get();
}

struct Kernel {
    c10::StreamId stream;
    at::Tensor to; // on the device
    double value;
};

std::mutex mutex;
std::deque<Kernel> pending;
thread_local c10::StreamId current;

void write(const Kernel &k)
{
    auto *values = static_cast<float *>(driver()->reach(k.to.data_ptr()));

    std::fill_n(values, k.to.numel(), static_cast<float>(k.value));
}

void run(c10::StreamId stream)
{
    std::lock_guard<std::mutex> lock(mutex);

    for (auto k = pending.begin(); k != pending.end();)
        if (k->stream == stream) {
            write(*k);
            k = pending.erase(k);
        } else {
            k++;
        }
}

struct Guard : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override
    {
        return c10::kCUDA;
    }
    c10::Device exchangeDevice(c10::Device) const override
    {
        return getDevice();
    }
    c10::Device getDevice() const override
    {
        return { c10::kCUDA, 0 };
    }
    void setDevice(c10::Device) const override
    {
    }
    void uncheckedSetDevice(c10::Device) const noexcept override
    {
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return 1;
    }
    c10::Stream getStream(c10::Device d) const override
    {
        return c10::Stream(c10::Stream::UNSAFE, d, current);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override
    {
        return c10::Stream(c10::Stream::UNSAFE, d, 100);
    }
    c10::Stream exchangeStream(c10::Stream s) const override
    {
        auto before = getStream(s.device());
        current = s.id();
        return before;
    }
    void synchronizeStream(const c10::Stream &s) const override
    {
        run(s.id());
    }
    // An event is the number of its stream, whose work a stream that waits for it does at once.
    void record(void **event, const c10::Stream &s, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
        *event = reinterpret_cast<void *>(s.id() + 1);
    }
    void block(void *event, const c10::Stream &) const override
    {
        run(static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(event) - 1));
    }
    bool queryEvent(void *) const override
    {
        return true;
    }
    void synchronizeEvent(void *event) const override
    {
        run(static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(event) - 1));
    }
};

// A tensor of f32 on the device, whose memory the processor cannot read.
at::Tensor empty(int64_t n)
{
    auto options = at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, 0);
    void *memory = driver()->alloc(static_cast<size_t>(n) * sizeof(float), 0);

    TORCH_CHECK(memory, "the fake device has no memory left");
    return at::for_blob(memory, { n }).options(options).target_device(options.device()).make_tensor();
}

// Queues a kernel of the current stream that writes the value.
void fill(const at::Tensor &t, double value)
{
    std::lock_guard<std::mutex> lock(mutex);

    pending.push_back({ current, t, value });
}

// A copy for the processor of what is there now.
at::Tensor look(const at::Tensor &t)
{
    return at::from_blob(driver()->reach(t.data_ptr()), t.sizes(), at::kFloat).clone();
}

void use_stream(int64_t stream)
{
    current = stream;
}

int64_t count_pending()
{
    std::lock_guard<std::mutex> lock(mutex);

    return static_cast<int64_t>(pending.size());
}

// When the driver's copies take place.
void seed(int64_t value)
{
    driver()->seed(static_cast<uint64_t>(value));
}

void install()
{
    static Guard guard;

    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kCUDA)].store(&guard);
}

} // namespace

TORCH_LIBRARY(banyan_fake_device, m)
{
    m.def("install() -> ()", install);
    m.def("empty(int n) -> Tensor", empty);
    m.def("fill(Tensor t, float value) -> ()", fill);
    m.def("look(Tensor t) -> Tensor", look);
    m.def("use_stream(int stream) -> ()", use_stream);
    m.def("pending() -> int", count_pending);
    m.def("seed(int value) -> ()", seed);
}
