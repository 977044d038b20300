// SPDX-License-Identifier: BSD-3-Clause
#include "pool.h"

#include "types.h"

#include <ATen/ATen.h>
#include <bit>
#include <sys/mman.h>
#include <unistd.h>

namespace banyan_torch
{

static constexpr size_t kPage = 4096;

// Rounded up, by an eighth at most.
static size_t class_of(size_t bytes)
{
    size_t unit = std::max(std::bit_floor(bytes) / 8, kPage);

    return (bytes + unit - 1) / unit * unit;
}

// Shared memory without a name.
static void *map(banyan_comm *comm, size_t bytes)
{
    int fd = memfd_create("banyan-torch", MFD_CLOEXEC);
    void *ptr = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0)
        ptr = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int rc = ptr == MAP_FAILED ? 0 : banyan_mem_register(comm, ptr, bytes, fd, 0);
    if (rc < 0)
        munmap(ptr, bytes);
    if (fd >= 0)
        close(fd);
    check(rc, "allocate_tensor");
    TORCH_CHECK(ptr != MAP_FAILED, "banyan: allocate_tensor: no shared memory of ", bytes,
                " bytes");
    return ptr;
}

void *Pool::take(size_t bytes)
{
    std::lock_guard<std::mutex> lock(mutex_);
    auto &unused = unused_[bytes];

    TORCH_CHECK(comm_, "banyan: this process group was shut down; make a new one");
    if (unused.empty()) {
        mapped_++;
        return map(comm_, bytes);
    }
    void *ptr = unused.back();
    unused.pop_back();
    return ptr;
}

void Pool::give_back(void *ptr, size_t bytes)
{
    std::lock_guard<std::mutex> lock(mutex_);

    if (comm_)
        unused_[bytes].push_back(ptr);
    else
        munmap(ptr, bytes);
}

void Pool::close()
{
    std::lock_guard<std::mutex> lock(mutex_);

    for (auto &[bytes, unused] : unused_)
        for (void *ptr : unused) {
            banyan_mem_deregister(comm_, ptr);
            munmap(ptr, bytes);
        }
    unused_.clear();
    comm_ = nullptr;
}

uint64_t Pool::mapped()
{
    std::lock_guard<std::mutex> lock(mutex_);

    return mapped_;
}

at::Tensor Pool::allocate(int64_t size, const at::TensorOptions &options)
{
    size_t wanted = static_cast<size_t>(size) * options.dtype().itemsize();

    if (wanted == 0)
        return at::empty({ size }, options);
    size_t bytes = class_of(wanted);
    void *ptr = take(bytes);
    auto self = shared_from_this();
    return at::from_blob(
        ptr, { size }, [self, bytes](void *memory) { self->give_back(memory, bytes); },
        options);
}

} // namespace banyan_torch
