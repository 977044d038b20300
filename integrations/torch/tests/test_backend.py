# SPDX-License-Identifier: BSD-3-Clause
"""The backend's calls, against what they promise. PyTorch's own tests: pytorch_suite.py."""
import atexit
import datetime
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading

import pytest
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d
from torch import nn

import banyan_torch
import common

RANKS = pytest.mark.parametrize("size", [1, 2, 3])
REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
           torch.int32, torch.int64, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn,
           torch.float8_e5m2]


def here():
    return dist.get_rank(), dist.get_world_size()


def cpu_backend():
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def reductions():
    rank, size = here()
    for dtype in REDUCED:
        for asynchronous in (False, True):
            x = torch.full((7,), rank + 1.).to(dtype)
            work = dist.all_reduce(x, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert (x.to(torch.complex128) == size * (size + 1) // 2).all(), (dtype, x)
    for op, wanted in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, (size + 1) / 2)):
        x = torch.full((3,), float(rank + 1))
        dist.all_reduce(x, op)
        assert (x == wanted).all()
    for op, wanted in ((dist.ReduceOp.SUM, [True, True, False]), (dist.ReduceOp.MAX, [True, True, False]),
                       (dist.ReduceOp.PRODUCT, [size == 1, True, False]), (dist.ReduceOp.MIN, [size == 1, True, False]),
                       (dist.ReduceOp.BXOR, [True, size % 2 == 1, False])):
        flags = torch.tensor([rank == 0, True, False])
        dist.all_reduce(flags, op)
        assert flags.tolist() == wanted, (op, flags)
    product = torch.full((3,), 1j)
    cpu_backend().allreduce([product], dist.ReduceOp.PRODUCT).wait()
    assert (product == 1j ** size).all()
    x = torch.ones(4)
    dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
    assert (x == 2 * size).all()
    x = torch.full((4,), 1 + 2j)
    dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
    assert (x == size * (2 + 4j)).all()
    columns = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(columns)
    assert torch.equal(columns, size * torch.arange(6.0).reshape(2, 3).t())
    root = torch.full((2,), float(rank + 1))
    dist.reduce(root, size - 1)
    assert rank != size - 1 or (root == size * (size + 1) / 2).all()


def scatters():
    rank, size = here()
    out = torch.empty(3)
    dist.reduce_scatter_tensor(out, torch.arange(3.0 * size))
    assert torch.equal(out, size * torch.arange(3.0 * rank, 3.0 * rank + 3))
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [torch.full((r + 1,), float(r)) for r in range(size)])
    assert (out == rank * size).all()
    out = torch.empty(2)
    dist.scatter(out, [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else None)
    assert (out == rank).all()


def gathers():
    rank, size = here()
    lists = [torch.empty(r + 1, dtype=torch.int16) for r in range(size)]
    dist.all_gather(lists, torch.full((rank + 1,), rank, dtype=torch.int16))
    assert [t.tolist() for t in lists] == [[r] * (r + 1) for r in range(size)]
    flat = torch.empty(2 * size)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(rank)))
    assert flat.tolist() == [r for r in range(size) for _ in range(2)]
    into = [torch.empty(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), into)
    assert rank or [t[0].item() for t in into] == list(range(size))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    x = torch.full((4,), float(rank), requires_grad=True)
    dist.broadcast(x, size - 1)
    assert (x == size - 1).all()


def all_to_all():
    rank, size = here()
    sent = [rank + r for r in range(size)]                 # rows for rank r
    got = [r + rank for r in range(size)]
    out = torch.empty(sum(got), 2)
    dist.all_to_all_single(out, torch.full((sum(sent), 2), float(rank)), got, sent)
    assert out[:, 0].tolist() == [float(r) for r in range(size) for _ in range(got[r])]
    outs = [torch.empty(r + 1) for r in range(size)]
    dist.all_to_all(outs, [torch.full((rank + 1,), float(rank)) for _ in range(size)])
    assert all((outs[r] == r).all() for r in range(size))


def messages():
    rank, size = here()
    after, before = (rank + 1) % size, (rank - 1) % size
    got = [torch.empty(1 << 18), torch.empty(3)]
    works = [dist.irecv(got[1], before, tag=7), dist.irecv(got[0], before, tag=3),
             dist.isend(torch.full((1 << 18,), float(rank)), after, tag=3),
             dist.isend(torch.full((3,), 10.0 + rank), after, tag=7)]
    for work in works:
        work.wait()
    assert (got[0] == before).all() and (got[1] == 10 + before).all()
    x = torch.empty(5)
    ops = [dist.P2POp(dist.irecv, x, before), dist.P2POp(dist.isend, torch.full((5,), float(rank)), after)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (x == before).all()


def any_source():
    rank, size = here()
    if rank:
        dist.send(torch.full((1000 * rank,), float(rank)), 0, tag=rank % 2)
        return
    for tag in (1, 0):
        left = {r for r in range(1, size) if r % 2 == tag}
        while left:
            x = torch.zeros(1000 * (2 - tag))
            source = dist.recv(x, tag=tag)
            assert (x == source).all()
            left.remove(source)


def any_source_in_a_block():
    rank, size = here()
    cpu = cpu_backend()
    if rank:
        cpu.send([torch.full((3,), float(rank))], 0, 1).wait()
        return
    outs = [torch.zeros(3) for _ in range(size - 1)]
    cpu._start_coalescing()
    works = [cpu.recv_anysource([out], 1) for out in outs]
    cpu._end_coalescing().wait()
    sources = [work._source_rank() for work in works]
    assert sorted(sources) == list(range(1, size))
    assert all((out == source).all() for out, source in zip(outs, sources))


def coalesced():
    rank, size = here()
    tensors = [torch.full(shape, float(rank + 1)) for shape in ((3,), (4, 5), (), (0,), (5000,), (1000,), (7,))]
    tensors[1] = tensors[1].t()
    tensors += [torch.full((2,), rank + 1), torch.full((3,), rank + 1)]
    before = cpu_backend().stats()["ops"]
    with dist._coalescing_manager(async_ops=True) as manager:
        for t in tensors:
            dist.all_reduce(t)
    manager.wait()
    assert cpu_backend().stats()["ops"] - before == 4          # the long one alone, its neighbours, those of int64
    outs = [torch.empty(n * size) for n in (2, 5)]
    with dist._coalescing_manager():
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // size,), float(rank)))
    assert all((t == size * (size + 1) / 2).all() for t in tensors)
    net = torch.nn.Linear(3, 3)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(rank + 1)
        with dist._coalescing_manager():
            for p in net.parameters():
                dist.all_reduce(p)
    assert all((p == size * (size + 1) / 2).all() for p in net.parameters())
    assert all((out.reshape(size, -1)[r] == r).all() for out in outs for r in range(size))


def neighbours_with_a_codec():
    """A lossy codec of the communicator gives no tensor the scale of its neighbours in a block."""
    rank, size = here()
    tensors = [torch.full((50,), (rank + 1) * 10.0 ** e) for e in range(-10, 10)]
    with dist._coalescing_manager():
        for t in tensors:
            dist.all_reduce(t)
    for e, t in zip(range(-10, 10), tensors):
        assert torch.allclose(t, torch.full((50,), size * (size + 1) / 2 * 10.0 ** e), rtol=.05, atol=0), (e, t)


def test_neighbours_with_a_codec(monkeypatch):
    monkeypatch.setenv("BANYAN_CODEC", "int8:force=1")
    common.run(neighbours_with_a_codec, 2)


def views():
    """Conjugated and negated views are sent and received by value."""
    rank, size = here()
    cpu = cpu_backend()
    mine = torch.full((3,), complex(rank + 1, rank + 1))
    x = mine.clone()
    cpu.allreduce([x.conj()]).wait()
    assert (x == complex(size * (size + 1) / 2, size * (size + 1) / 2)).all()
    x = mine.clone()
    cpu.broadcast([x.conj()], c10d.BroadcastOptions()).wait()
    assert (x == 1 + 1j).all()
    outs = [torch.empty(3, dtype=torch.complex64).conj() for _ in range(size)]
    cpu.allgather([outs], [mine.conj()]).wait()
    assert all((outs[r] == complex(r + 1, -r - 1)).all() for r in range(size))
    flat = torch.empty(3 * size)
    dist.all_gather_into_tensor(flat, mine.conj().imag)    # a negated view
    assert flat.tolist() == [-r - 1.0 for r in range(size) for _ in range(3)]
    cpu.allreduce([mine.conj().imag]).wait()
    assert (mine.imag == size * (size + 1) / 2).all()


def inference():
    """A call of inference mode may end outside of it."""
    rank, size = here()
    if rank == size - 1:
        for r in range(size - 1):
            dist.recv(torch.empty(1), r)                   # the others are outside
    with torch.inference_mode():
        x = torch.full((2, 3), float(rank + 1)).t()
        work = dist.all_reduce(x, async_op=True)
    if rank < size - 1:
        dist.send(torch.ones(1), size - 1)
    work.wait()
    assert (x == size * (size + 1) / 2).all()


def threads():
    """What another thread issues does not fall into this one's block."""
    rank, size = here()
    backend = cpu_backend()
    x, y = torch.full((3,), float(rank + 1)), torch.full((3,), float(rank + 1))
    backend._start_coalescing()
    backend.allreduce([x])
    thread = threading.Thread(target=lambda: backend.allreduce([y]).wait())
    thread.start()
    thread.join()
    assert (y == size * (size + 1) / 2).all() and (x == rank + 1).all()
    backend._end_coalescing().wait()
    assert (x == size * (size + 1) / 2).all()


def sparse():
    rank, size = here()
    x = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(x)
    assert x.to_dense().tolist() == [float(size)] + [2.0] * size


def groups():
    rank, size = here()
    evens = dist.new_group(range(0, size, 2))
    odd = dist.new_group([size - 1])
    if rank % 2 == 0:
        x = torch.ones(2)
        dist.all_reduce(x, group=evens)
        assert (x == (size + 1) // 2).all()
    if rank == size - 1:
        dist.barrier(group=odd)
    given = dist.new_group(timeout=datetime.timedelta(seconds=77), pg_options=banyan_torch._native().Options())
    assert given._get_backend(torch.device("cpu")).options._timeout == datetime.timedelta(seconds=77)
    mine, _ = dist.new_subgroups(group_size=1)
    dist.barrier(group=mine)
    dist.barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))


def futures():
    """What callbacks issue does not mix with what the program issues, and they may wait."""
    rank, size = here()
    seen = []
    if size == 1:                                          # torch refuses messages to oneself
        return

    def second(future):
        x = future.value()[0].clone()
        dist.all_reduce(x)
        seen.append(dist.all_reduce(x, async_op=True).get_future().wait()[0][0].item())
        return x
    for _ in range(20):
        got = dist.irecv(torch.empty(3), (rank - 1) % size)
        chain = got.get_future().then(second)
        dist.barrier()                                     # all have added their callbacks
        dist.send(torch.ones(3), (rank + 1) % size)
        for _ in range(5):
            dist.all_reduce(torch.ones(3))
        chain.wait()
    assert seen == [float(size ** 2)] * 20


@RANKS
@pytest.mark.parametrize("fn", [reductions, scatters, gathers, all_to_all, messages, any_source, any_source_in_a_block, coalesced, threads,
                                views, inference, sparse, groups, futures], ids=lambda fn: fn.__name__)
def test_calls(fn, size):
    common.run(fn, size)


def errors():
    with pytest.raises(RuntimeError, match="Float8_e8m0fnu"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e8m0fnu))
    with pytest.raises(RuntimeError, match="non-integral"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with pytest.raises(ValueError, match="world size"):
        dist.reduce_scatter_tensor(torch.empty(3), torch.empty(4))
    rank, size = here()
    with pytest.raises(ValueError, match="this rank's output has 12 bytes, its input 16"):
        dist.gather(torch.ones(4), [torch.ones(3) for _ in range(size)], dst=rank)
    with pytest.raises(ValueError, match="this rank's output has 16 bytes, its input 12"):
        dist.scatter(torch.ones(4), [torch.ones(3) for _ in range(size)], src=rank)
    with pytest.raises(ValueError, match="this rank's output has 16 bytes, its input 12"):
        dist.all_to_all([torch.ones(4) for _ in range(size)], [torch.ones(3) for _ in range(size)])
    with pytest.raises(ValueError, match="this rank's output has 8 bytes, its input 12"):
        dist.all_gather_coalesced([[torch.ones(2)] for _ in range(size)], [torch.ones(3)])
    opts = c10d.GatherOptions()
    opts.rootRank = rank
    with pytest.raises(RuntimeError, match="same type"):
        cpu_backend().gather_single(torch.ones(3 * size, dtype=torch.float64), torch.ones(3), opts)
    x = torch.ones(1)
    dist.all_reduce(x)                                     # no error above has harmed the group


def refused_in_a_block():
    """A call that is refused ends the block: later calls run at once again."""
    rank, _ = here()
    cpu = cpu_backend()
    x = torch.full((3,), 1.0)
    for refused in (lambda: cpu.send([x], 1 - rank, -1), lambda: cpu.recv([x], -1, 0),
                    lambda: cpu.allgather([[x]], [x]), lambda: cpu.allreduce([x.to(torch.float8_e8m0fnu)]),
                    lambda: cpu.allreduce([torch.sparse_coo_tensor([[0]], [1.0], (2,))])):
        cpu._start_coalescing()
        cpu.allreduce([x.clone()])
        with pytest.raises((RuntimeError, ValueError)):
            refused()
        y = torch.ones(3)
        dist.all_reduce(y)
        assert (y == 2).all()
        with pytest.raises(RuntimeError, match="refused"):
            cpu._end_coalescing()


def mismatch():
    rank, _ = here()
    with pytest.raises(dist.DistBackendError, match="rank 0 called .* rank 1 called"):
        dist.all_reduce(torch.ones(3 + rank))
    backend = cpu_backend()
    assert str(backend.get_error()) != "ErrorType.SUCCESS"


def death():
    rank, _ = here()
    dist.barrier()
    if rank == 1:
        os._exit(0)
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        while True:
            dist.all_reduce(torch.ones(3))


def aborted():
    rank, _ = here()
    group = dist.new_group([0, 1])
    dist.barrier(group=group)
    if rank == 0:
        work = dist.irecv(torch.empty(3), 1, group=group)
        called = []
        group.register_abort_hook(1, lambda: called.append(1))
        group.abort()
        assert called == [1]
        with pytest.raises(dist.DistBackendError, match="abort"):
            work.wait()
    dist.barrier()


def late():
    rank, _ = here()
    x = torch.ones(1)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(RuntimeError, match=" Timed out "):
            work.wait(datetime.timedelta(milliseconds=20))
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        dist.recv(torch.empty(1), 0)
        dist.all_reduce(x)
    assert x.item() == 2


def destroyed_while_another_thread_blocks():
    """The end of the group aborts blocking calls that nobody will answer."""
    rank, _ = here()
    if rank == 1:
        dist.recv(torch.empty(1), 0, tag=1)
        return
    said = []
    cpu, x, opts = cpu_backend(), [torch.ones(1)], c10d.BroadcastOptions()
    opts.rootRank, opts.asyncOp = 1, False

    def blocked():
        try:
            cpu.broadcast(x, opts)
        except RuntimeError as why:
            said.append(str(why))
    thread = threading.Thread(target=blocked)
    sleeps = cpu.stats()["sleeps"]
    thread.start()
    while cpu.stats()["sleeps"] == sleeps:                 # until the thread waits for rank 1
        pass
    dist.send(torch.ones(1), 1, tag=1)
    dist.destroy_process_group()
    thread.join()
    assert "in flight" in said[0], said


@pytest.mark.parametrize("fn", [errors, refused_in_a_block, mismatch, death, aborted, late,
                                destroyed_while_another_thread_blocks], ids=lambda fn: fn.__name__)
def test_failures(fn):
    common.run(fn, 2)


SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("banyan")
x = torch.ones(3)
dist.all_reduce(x)
w = dist.all_reduce(x, async_op=True)
f = w.get_future().then(lambda f: f.value())
os.write(1, f"sum {x[0].item() >= 2}\\n".encode())
"""


def test_a_script_without_destroy_ends():
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "script.py")
        with open(script, "w", encoding="utf-8") as out:
            out.write("import banyan_torch; banyan_torch.register()\n" + SCRIPT)
        env = dict(os.environ, OMP_NUM_THREADS="1")
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                               "--nproc-per-node=2", script], env=env, capture_output=True, text=True,
                              timeout=common.PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum True") == 2 and "Traceback" not in done.stderr, done.stderr


FAILS = """
import sys, banyan_torch, torch, torch.distributed as dist
banyan_torch.register()
dist.init_process_group("banyan", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
dist.barrier()
if sys.argv[2] == "1":
    raise ValueError("no such data")
dist.all_reduce(torch.ones(3))
"""


def test_an_exception_reaches_the_other_ranks(tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-c", FAILS, str(tmp_path / "store"), str(rank)], text=True,
                              env=dict(os.environ, OMP_NUM_THREADS="1"), stderr=subprocess.PIPE) for rank in range(2)]
    errors = [process.communicate(timeout=common.PATIENCE)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [1, 1], errors
    assert "DistBackendError" in errors[0] and "ValueError: no such data" in errors[0], errors[0]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 5))


def losses(net, steps=8):
    optimizer = torch.optim.SGD(net.parameters(), .05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for _ in range(steps):
        x = torch.randn(16, 20, generator=generator)
        loss = nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(round(mean.item() / dist.get_world_size(), 5))
    return found


def ddp_as_gloo():
    plain = dist.new_group(backend="gloo")
    ours = losses(nn.parallel.DistributedDataParallel(model()))
    assert ours == losses(nn.parallel.DistributedDataParallel(model(), process_group=plain))


def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    wanted = losses(nn.parallel.DistributedDataParallel(model()))
    net = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    assert losses(net) == wanted


def fsdp2_in_shared_memory():
    """fully_shard takes its buffers from the group, which uses memory that was freed again."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    wanted = losses(nn.parallel.DistributedDataParallel(model()), 4)
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    net = fully_shard(net)
    for unit in net.modules():
        if isinstance(unit, FSDPModule):
            unit.set_allocate_memory_from_process_group_for_comm(True)
    assert losses(net, 2) == wanted[:2]
    mapped = cpu_backend().stats()["mapped_tensors"]
    assert mapped > 0
    losses(net, 2)
    assert cpu_backend().stats()["mapped_tensors"] == mapped


def tensors_of_the_group():
    rank, size = here()
    cpu, device = cpu_backend(), torch.device("cpu")
    assert cpu.supports_tensor_alloc(device) and not cpu.supports_tensor_alloc(torch.device("cuda:0"))
    before = cpu.stats()["mapped_tensors"]
    for n in (1, 1000, 1 << 20, (1 << 20) - 100, 1 << 20):
        x = cpu.allocate_tensor(n, dtype=torch.float32, device=device)
        assert x.shape == (n,) and x.dtype == torch.float32
        x.fill_(rank + 1)
        dist.all_reduce(x)
        assert (x == size * (size + 1) / 2).all()
        del x
    assert cpu.stats()["mapped_tensors"] - before == 2      # of a page, and of a MiB
    kept = cpu.allocate_tensor(5000, dtype=torch.int16, device=device).fill_(7)
    dist.destroy_process_group()
    assert (kept == 7).all()                               # it outlives the group
    del kept, cpu
    gc.collect()


def data_loader():
    loader = torch.utils.data.DataLoader(torch.arange(16.0), batch_size=4, num_workers=2)
    for batch in loader:
        dist.all_reduce(batch)
    dist.barrier()


def forked():
    """A child that exits as programs do leaves the group alone."""
    x = torch.ones(1)
    dist.all_reduce(x, async_op=True).get_future().wait()
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        dist.destroy_process_group()
        gc.collect()                                       # which destroys the group
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.barrier()


def group_of_children():
    """A forked child makes a group of its own, in which operations complete though nobody waits for them."""
    rank, size = here()
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    child = os.fork()
    if child == 0:
        dist.destroy_process_group()
        dist.init_process_group("banyan", init_method=f"file://{folder[0]}/store", rank=rank, world_size=size)
        x = torch.ones(1)
        dist.all_reduce(x, async_op=True).get_future().wait()
        assert x == size
        dist.destroy_process_group()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


def again(path):
    """A group over the store of an earlier one does not read what that has left there."""
    rank, size = int(os.environ["RANK"]), 2
    store = dist.FileStore(path, size)
    for turn in range(10):
        if rank == 0:
            store.wait([f"turn {turn}"])                   # so the other rank asks for the id first
        else:
            store.set(f"turn {turn}", "")
        dist.init_process_group("banyan", store=store, rank=rank, world_size=size)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x == size
        if turn % 2 == 0:
            dist.monitored_barrier()
        elif rank == 0:
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass"):
                dist.monitored_barrier(timeout=datetime.timedelta(milliseconds=50))
            dist.barrier()
        else:
            dist.barrier()
        dist.destroy_process_group()


def test_init_twice_over_one_store(tmp_path):
    common.run(again, 2, str(tmp_path / "store"), backend=None)


def new_groups():
    groups_of_two = [dist.new_group([0, 1]) for _ in range(20)]
    for group in groups_of_two:
        dist.barrier(group=group)
        dist.destroy_process_group(group)


@pytest.mark.parametrize("fn", [ddp_as_gloo, fsdp2, fsdp2_in_shared_memory, tensors_of_the_group, data_loader, forked, group_of_children, new_groups],
                         ids=lambda fn: fn.__name__)
def test_training(fn):
    common.run(fn, 2)
