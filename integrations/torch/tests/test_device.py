# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of CUDA over a simulated driver (tests/support/fake_cuda.c) and a simulated device (fake_device.cpp): the backend
keeps the rules of streams."""
import ctypes
import os
import pathlib
import subprocess

import pytest
import torch
import torch.distributed as dist
from torch.utils import cpp_extension

import common

TOP = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The path of the driver; it and the device are built."""
    folder = tmp_path_factory.mktemp("device")
    driver = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{TOP}", "-Wl,-soname,libcuda.so.1", "-o", driver,
                    TOP / "tests/support/fake_cuda.c"], check=True)
    cpp_extension.load("banyan_fake_device", [str(TOP / "integrations/torch/tests/fake_device.cpp")],
                       extra_cflags=["-std=c++20", "-O0"], extra_include_paths=[str(TOP)], build_directory=str(folder),
                       with_cuda=False, is_python_module=False)
    return str(driver)


def start(driver, store):
    """In a rank's process, before its group: the library looks for a driver when it makes communicators."""
    ctypes.CDLL(driver, ctypes.RTLD_GLOBAL)
    fake = torch.ops.banyan_fake_device
    fake.install()
    torch.cuda.get_device_capability = lambda *_: (8, 0)   # torch.distributed asks for some types
    dist.init_process_group("banyan", init_method=f"file://{store}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    return fake, dist.get_rank(), dist.get_world_size()


def filled(fake, n, value):
    """A tensor that a kernel of the current stream will write."""
    x = fake.empty(n)
    fake.fill(x, value)
    return x


def holds(fake, x, *blocks):
    found = fake.look(x).view(len(blocks), -1)
    assert torch.equal(found, torch.tensor(blocks, dtype=torch.float32)[:, None].expand_as(found)), (found, blocks)


def collectives(driver, store, seed):
    """What a kernel has yet to write is what a call sends; its results are there when it returns. Both lengths: one chunk of
    the library's pinned memory, and several."""
    fake, rank, size = start(driver, store)
    fake.seed(seed)
    for n in 100, 1 << 20:
        x = filled(fake, n, rank + 1)
        dist.all_reduce(x)
        holds(fake, x, size * (size + 1) / 2)
        x = filled(fake, n, rank)
        dist.broadcast(x, 1)
        holds(fake, x, 1)
        x, y = filled(fake, n, rank), fake.empty(n * size)
        dist.all_gather_into_tensor(y, x)
        holds(fake, y, *range(size))
        x = fake.empty(n)
        y = filled(fake, n * size, rank + 2)
        dist.reduce_scatter_tensor(x, y)
        holds(fake, x, size * (size + 3) / 2)
        x, y = filled(fake, n * size, rank), fake.empty(n * size)
        dist.all_to_all_single(y, x)
        holds(fake, y, *range(size))
        x, y = filled(fake, n, rank), fake.empty(n)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % size),
                                        dist.P2POp(dist.irecv, y, (rank - 1) % size)])
        for work in works:
            work.wait()
        holds(fake, y, (rank - 1) % size)
    dist.destroy_process_group()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_collectives(device, tmp_path, seed):
    common.run(collectives, 2, device, str(tmp_path / "store"), seed, backend=None)


def streams(driver, store):
    """A call waits for the current stream when it is made, and for no other one."""
    fake, rank, size = start(driver, store)
    total = size * (size + 1) / 2
    other = fake.empty(10)
    fake.use_stream(9)
    fake.fill(other, 5)
    fake.use_stream(7)
    for blocking in True, False:
        x = filled(fake, 5000, rank + 1)
        work = dist.all_reduce(x, async_op=not blocking)
        fake.fill(fake.empty(10), 3)                       # of the same stream, behind the call
        fake.use_stream(8)                                 # any stream may use the result after the wait
        if work is not None:
            work.wait()
        holds(fake, x, total)
        fake.use_stream(7)
    holds(fake, other, 0)
    assert fake.pending() == 2                             # that of stream 9, and the last one of stream 7
    x = filled(fake, 100, rank + 1)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: fake.look(done.value()[0]))
    assert torch.equal(future.wait(), torch.full((100,), total))
    dist.destroy_process_group()


def test_streams(device, tmp_path):
    common.run(streams, 2, device, str(tmp_path / "store"), backend=None)
