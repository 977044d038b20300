# SPDX-License-Identifier: BSD-3-Clause
"""Communication hooks of DistributedDataParallel and FSDP: gradients travel by banyan's codecs."""
import fnmatch
import functools
import operator
import re

import torch
import torch.distributed as dist

_TESTS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_RULE = re.compile(r"\s*([^:=;]+)((?::(?:<=|>=|<|>)\d+)*)=([^@]*)(?:@(.+))?")


def _rules(text):
    """[(pattern, [(test, elements)], codec, schedule)] of "*:>=16384=int8;*=bf16", or of one codec for all."""
    found = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        match = _RULE.fullmatch(rule)
        if not match:
            if ";" in text.strip("; "):
                raise ValueError(f"hook: {rule!r} is no rule; one is pattern[:>=elements]=codec[@schedule]")
            return [("*", [], rule, "")]
        tests = [(_TESTS[sign], int(n)) for sign, n in re.findall(r":(<=|>=|<|>)(\d+)", match[2])]
        found.append((match[1].strip(), tests, match[3].strip(), match[4] or ""))
    return found


class Hook:
    """A hook for register_comm_hook(None, hook); made by hook()."""

    def __init__(self, rules, module=None, group=None, seed=0):
        from . import _native
        self.__name__ = self.__qualname__ = f"banyan:{rules}"
        self.rules, self.seed = rules, seed
        self._parsed = _rules(rules)
        self._native = _native()
        self._group = group
        self._names = {}
        for name, parameter in module.named_parameters() if module is not None else ():
            self._names[id(parameter)] = name.removeprefix("module.")
        self._states = {}    # members of a piece -> its state, and the names that have not left it
        self._layouts = {}   # what a bucket consists of -> its pieces
        self._calls = {}     # steps of each unit of FSDP
        self._before = {}    # the bytes that a backend had sent before its first gradients
        self._bytes = self._steps = 0

    def __call__(self, _, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        backend = self._backend(buffer.device)
        self._count(backend, buffer)
        self._steps += bucket.is_last()
        pieces = [(buffer[start:start + n], codec, schedule, state, shape)
                  for start, n, codec, schedule, state, shape in self._pieces(bucket)]
        return backend.average(pieces).get_future().then(lambda _: buffer)

    def attach(self, net, replicas=None):
        """For a model of FSDP (FullyShardedDataParallel or fully_shard), before its first step: its gradients are
        reduced and scattered by these codecs. A rule sees each unit of FSDP as one tensor with the name of its module
        ("root" if that is the whole).

        replicas: a group, or a mesh, of the ranks that hold the same shard, one of each replica of the model (hybrid
        sharding). Shard the model by fully_shard over the ranks of one replica; then the hook averages shards over
        replicas as well. A rule sees a unit's shard as NAME/replicas."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
        if isinstance(replicas, DeviceMesh):
            replicas = replicas.get_group()
        units = [(name or "root", unit) for name, unit in net.named_modules()
                 if isinstance(unit, (FSDPModule, FullyShardedDataParallel))]
        if not units:
            raise TypeError("attach: there is no unit of FSDP in the model; give a hook for DistributedDataParallel to "
                            "its register_comm_hook(None, hook)")
        if replicas is not None and not all(isinstance(unit, FSDPModule) for _, unit in units):
            raise TypeError("attach: replicas: FullyShardedDataParallel has no hook for a second sum; use fully_shard "
                            "over the ranks of one replica")
        for name, unit in units if replicas is not None else ():
            _check_replicas(name, unit, replicas)
        if isinstance(net, FullyShardedDataParallel):
            net.register_comm_hook(None, self._reduce_unit)
        for name, unit in units:
            if isinstance(unit, FSDPModule):
                unit.set_custom_reduce_scatter(_ReduceScatter(self, name))
                if replicas is not None:
                    unit.set_all_reduce_hook(functools.partial(self._reduce_unit, f"{name}/replicas", group=replicas))
            else:
                unit._comm_hook_state = name

    def _reduce_unit(self, name, gradient, output=None, group=None, op=dist.ReduceOp.AVG):
        """Of a unit of FSDP: reduced in place, or this rank's block of it to output. Returns the work."""
        backend = self._backend(gradient.device, group)
        members, n = ((name, gradient.numel()),), gradient.numel()
        self._count(backend, gradient)
        self._calls[name] = self._calls.get(name, 0) + 1
        self._steps = max(self._steps, self._calls[name])
        codec, schedule = self._choose(name, n)
        piece = gradient, codec, schedule, self._state(members, n) if _keeps_state(codec) else None, []
        work = backend.average([piece]) if output is None else backend.reduce_scatter_piece(piece, output, op)
        work.wait()
        return work

    def _count(self, backend, gradient):
        if backend not in self._before:
            self._before[backend] = backend.stats()["wire_bytes"]
        self._bytes += gradient.numel() * gradient.element_size()

    def _backend(self, device=torch.device("cpu"), group=None):
        group = group or self._group or dist.distributed_c10d._get_default_group()
        backend = group._get_backend(device)
        if not isinstance(backend, self._native.Backend):
            raise TypeError(f"hook: the process group is of {backend.name()!r}; make one with "
                            "init_process_group(\"banyan\")")
        return backend

    def _name(self, parameter):
        return self._names.setdefault(id(parameter), f"parameter{len(self._names)}")

    def _choose(self, name, elements):
        for pattern, tests, codec, schedule in self._parsed:
            if fnmatch.fnmatchcase(name, pattern) and all(test(elements, n) for test, n in tests):
                return codec or "none", schedule
        return "none", ""

    def _pieces(self, bucket):
        """Neighbours in a bucket that travel by the same codec are one piece. But PowerSGD takes matrices: each is a
        piece, and vectors, which it cannot shorten, travel uncompressed."""
        parameters = bucket.parameters()
        layout = tuple((self._name(p), p.numel()) for p in parameters)
        if layout not in self._layouts:
            runs = []
            for (name, n), parameter in zip(layout, parameters):
                choice = self._choose(name, n)
                if choice[0].startswith("powersgd") and _is_vector(parameter.shape, n):
                    choice = "none", choice[1]
                if not runs or runs[-1][0] != choice or choice[0].startswith("powersgd"):
                    runs.append((choice, [], []))
                runs[-1][1].append((name, n))
                runs[-1][2].append(list(parameter.shape))
            self._layouts[layout] = self._place(runs)
        return self._layouts[layout]

    def _place(self, runs):
        pieces, start = [], 0
        for (codec, schedule), members, shapes in runs:
            n = sum(count for _, count in members)
            state = self._state(tuple(members), n) if _keeps_state(codec) else None
            pieces.append((start, n, codec, schedule, state, shapes[0] if len(shapes) == 1 else []))
            start += n
        return pieces

    def _state(self, members, n):
        """The state of a piece. Parameters that were in other pieces bring their residuals along: DDP makes
        its buckets anew after the first step, and Accordion changes codecs."""
        if members not in self._states:
            self._states[members] = self._native.CodecState(n, self.seed), set()
        state, mine = self._states[members]
        starts = _starts(members)
        for others, (other, theirs) in list(self._states.items()):
            for name, at in _starts(others).items():
                if other is not state and name in starts and name in theirs:
                    state.take(starts[name], other, at, dict(others)[name])
                    theirs.discard(name)
            if not theirs and other is not state:
                del self._states[others]
        mine.update(starts)
        return state

    def scale(self, factor):
        """For a change of the learning rate: factor is the old one divided by the new one."""
        for state, _ in self._states.values():
            state.scale(factor)

    def stats(self):
        """Steps and bytes of gradients so far, and the bytes that this rank's groups sent meanwhile."""
        sent = sum(backend.stats()["wire_bytes"] - before for backend, before in self._before.items())
        return {"steps": self._steps, "gradient_bytes": self._bytes, "sent_bytes": sent}

    def state_dict(self):
        """What a checkpoint keeps: each rank saves its own. Names are the module's, so give the hook its module."""
        return {"rules": self.rules, "pieces": [{"members": list(members), "state": state.save()}
                                                for members, (state, _) in self._states.items()]}

    def load_state_dict(self, saved):
        """On the same rank of as many ranks, before the first step."""
        self._states, self._layouts = {}, {}
        for piece in saved["pieces"]:
            members = tuple((name, n) for name, n in piece["members"])
            state = self._native.CodecState(sum(n for _, n in members), self.seed)
            state.load(piece["state"])
            self._states[members] = (state, {name for name, _ in members})


class _ReduceScatter:
    """What fully_shard calls for a unit (its interface ReduceScatter)."""

    def __init__(self, owner, name):
        self._owner, self._name = owner, name

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        work = self._owner._reduce_unit(self._name, input_tensor, output_tensor, group, op)
        return work if async_op else None


class AccordionHook(Hook):
    """Little compression for parameters whose gradients change fast, much for the others; made by accordion()."""

    def __init__(self, module, optimizer, little, much, group, seed, settings):
        super().__init__(much, module, group, seed)
        self.__name__ = self.__qualname__ = f"banyan:{little} or {much}"
        self.rules = f"{little} or {much}"
        self._optimizer = optimizer
        self._settings = dict(settings, little=little, much=much)
        self._watch({self._name(p): p.numel() for p in module.parameters() if p.requires_grad and p.numel()})
        self._seen = {}      # units of FSDP in this step -> elements
        self._saved = None

    def _watch(self, counts):
        """The tensors whose gradients Accordion looks at."""
        self._counts, self._index = counts, {name: i for i, name in enumerate(counts)}
        self._accordion = None

    def attach(self, net, replicas=None):
        super().attach(net, replicas)
        if self._saved is None:
            self._watch({})  # the first step finds the units, and how many elements FSDP gives them

    def _start(self):
        self._accordion = self._native.Accordion(self._backend(), list(self._counts), list(self._counts.values()),
                                                 **self._settings)
        if self._saved is not None:
            self._accordion.load(self._saved)

    def _observe(self, name, gradient):
        if self._accordion is None:
            self._start()
        self._accordion.observe(self._index[name], gradient)

    def _end_step(self):
        if self._accordion.step(self._optimizer.param_groups[0]["lr"]):
            self._layouts = {}  # pieces are neighbours of one codec

    def __call__(self, _, bucket):
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            if parameter.numel():
                self._observe(self._name(parameter), gradient)
        future = super().__call__(_, bucket)
        if bucket.is_last():
            self._end_step()
        return future

    def _reduce_unit(self, name, gradient, *args, **kwargs):
        if name in self._seen:  # FSDP does not say when a step ends: here a unit begins its next one
            new = {unit: n for unit, n in self._seen.items()
                   if n and not unit.endswith("/replicas") and unit not in self._index}
            if new:  # all units of the first step, and those that take part later: Accordion begins anew
                self._watch({**self._counts, **new})
                self._saved = None
            elif self._accordion is not None:
                self._end_step()
            self._seen = {}
        self._seen[name] = gradient.numel()
        if name in self._index:
            self._observe(name, gradient)
        return super()._reduce_unit(name, gradient, *args, **kwargs)

    def _choose(self, name, elements):
        name = name.removesuffix("/replicas")
        if not elements or self._accordion is None or name not in self._index:
            return self._settings["little"], ""
        return self._accordion.codec(self._index[name]), ""

    def codecs(self):
        """The codec of each parameter, or of each unit of FSDP, now."""
        return {name: self._accordion.codec(i) if self._accordion else self._settings["little"]
                for name, i in self._index.items()}

    def state_dict(self):
        return dict(super().state_dict(), accordion=self._accordion.save() if self._accordion else self._saved,
                    counts=dict(self._counts))

    def load_state_dict(self, saved):
        super().load_state_dict(saved)
        self._watch(dict(saved.get("counts", self._counts)))  # older states have those of the module
        self._saved = saved["accordion"]


def _check_replicas(name, unit, replicas):
    """Whether FSDP sums a unit of fully_shard over one replica alone, of which replicas has this rank and no other."""
    for params in unit._get_fsdp_state()._fsdp_param_groups:
        shards = getattr(params.mesh_info, "shard_process_group", None)
        if shards is None or params._is_hsdp:
            raise ValueError(f"attach: replicas: {name}: FSDP itself sums over the replicas of its mesh; give fully_shard "
                             "the mesh of one replica, such as mesh[\"shards\"], or attach without replicas")
        both = set(dist.get_process_group_ranks(shards)) & set(dist.get_process_group_ranks(replicas))
        if both != {dist.get_rank()}:
            raise ValueError(f"attach: replicas: {name}: rank {dist.get_rank()} shares its shards' group with ranks "
                             f"{sorted(both)} of replicas, and may share itself alone: give the group of the ranks that "
                             "hold the same shard, such as mesh[\"replicas\"]")


def _keeps_state(codec):
    """Whether calls with the codec pass a state. A budget keeps residuals with feedback=1 alone."""
    name, _, keys = codec.partition(":")
    return name != "none" and (name != "auto" or "feedback=1" in keys.split(","))


def _is_vector(shape, elements):
    """Whether PowerSGD, for which the first dimension are the rows, has a single row or column."""
    return not elements or not shape or shape[0] in (1, elements)


def _starts(members):
    """Where each parameter begins in a piece."""
    starts, at = {}, 0
    for name, n in members:
        starts[name] = at
        at += n
    return starts


def hook(rules, module=None, group=None, seed=0):
    """A communication hook for DistributedDataParallel that averages gradients by banyan's codecs.

        net = DistributedDataParallel(model)
        net.register_comm_hook(None, banyan_torch.hook("int8"))

    rules: a codec for all gradients ("int8", "topk:ratio=0.01"), or rules by parameter name and number of
    elements, of which the first that matches counts: "*:>=16384=int8;*=bf16". module: gives the names to rules and
    checkpoints. seed: the same on all ranks, for codecs that draw at random."""
    return Hook(rules, module, group, seed)


def accordion(module, optimizer, little="none", much="topk:delta=0.01", group=None, seed=0, **settings):
    """A hook that adapts (Accordion, MLSys 2021): a parameter, or a unit of FSDP, travels by the codec `little` while
    its gradients change fast from interval to interval, and behind a drop of the learning rate, else by `much`.

        net.register_comm_hook(None, banyan_torch.accordion(net, optimizer, interval=100))   # DistributedDataParallel
        banyan_torch.accordion(net, optimizer, interval=100).attach(net)                     # FSDP

    group: all ranks that train; its rank 0 decides for all. optimizer: its first group has the learning rate.
    settings: eta, interval (steps), window, rate_drop, min_count, as banyan/training.h tells them."""
    return AccordionHook(module, optimizer, little, much, group, seed, settings)
