# SPDX-License-Identifier: BSD-3-Clause
"""The backend "banyan" of torch.distributed, over libbanyan.

    torch.distributed.init_process_group("banyan")

Nothing needs to be imported: torch finds the backend by its entry point.
"""
import atexit
import datetime
import sys
import traceback
import zlib

__all__ = ["accordion", "create", "hook", "register"]


def _native():
    """The extension. Its threads and groups end with the process, before Python does."""
    import torch  # noqa: F401  the extension needs its libraries
    from . import _C
    if not getattr(_native, "ends", False):
        atexit.register(lambda: _C.shutdown_all(_failure()))
        _native.ends = True
    return _C


def _failure():
    """The exception that ends the program, or "". An interpreter that somebody types into goes on after one."""
    why = getattr(sys, "last_value", None)
    if why is None or hasattr(sys, "ps1"):
        return ""
    text = "".join(traceback.format_exception_only(type(why), why)).strip()
    return f"its program failed: {text}".encode(errors="replace").decode()


def hook(rules, module=None, group=None, seed=0):
    """A communication hook with codecs: see hooks.hook."""
    from . import hooks
    return hooks.hook(rules, module, group, seed)


def accordion(module, optimizer, little="none", much="topk:delta=0.01", group=None, seed=0, **settings):
    """A communication hook with a codec that adapts: see hooks.accordion."""
    from . import hooks
    return hooks.accordion(module, optimizer, little, much, group, seed, **settings)


def _parent(ranks, native):
    """The default group's backend, if it is ours and a new group is made of its ranks: then members find each other through it."""
    import torch
    from torch.distributed import distributed_c10d
    default = distributed_c10d.GroupMember.WORLD
    if not ranks or default is None:
        return None
    try:
        backend = default._get_backend(torch.device("cpu"))
    except RuntimeError:  # it has none for the CPU
        return None
    return backend if isinstance(backend, native.Backend) else None


def create(opts, options=None):
    """A backend for torch.distributed: opts is its _DistributedBackendOptions."""
    native = _native()
    timeout = opts.timeout
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    if not isinstance(options, native.Options):
        options = native.Options()
    options._timeout = timeout  # as for torch's own backends, whose options have another default
    options.global_ranks_in_group = opts.global_ranks_in_group
    options.group_name = opts.group_id
    options.enable_reconfigure = opts.enable_reconfigure
    parent = _parent(opts.global_ranks_in_group, native)
    if parent is not None and not opts.enable_reconfigure:
        tag = zlib.crc32(opts.group_id.encode()) >> 1
        return parent.part(opts.store, opts.global_ranks_in_group, options, tag)
    return native.Backend(opts.store, opts.group_rank, opts.group_size, options)


def register():
    """Makes "banyan" known to torch.distributed; a second call does nothing."""
    import torch.distributed as dist
    if "BANYAN" not in dist.Backend._plugins:
        dist.Backend.register_backend("banyan", create, extended_api=True, devices=["cpu", "cuda"])
