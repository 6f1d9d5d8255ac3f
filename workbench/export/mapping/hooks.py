"""Python for what no trainer has a key for: gradients that are compressed, and outer loops.

What torch has is called as it stands. What it has not is a function that says what to fill in, and fails until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.compression import keeps_errors
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.run_config import RunConfig
from engine.config.sections import Compression
from workbench.export.mapping.rows import UnexpressedSetting
from workbench.export.mapping.unexpressed import GRADIENT_HOOK, OUTER_HOOK

_TORCH = '''\
"""Compresses gradients with {method} before they are averaged, {since}; call ``register(ddp)`` once.

``ddp`` is the model in torch.nn.parallel.DistributedDataParallel. The hook is torch's own{devices}.
"""

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import {module}


def register(ddp):
    state = {state}
    ddp.register_comm_hook(state, {module}.{name})
'''
_OWN = '''\
"""Compresses gradients with {method} ({settings}); call ``register(ddp)`` once.

``ddp`` is the model in torch.nn.parallel.DistributedDataParallel. torch has no such hook: fill in ``compress``.
"""

import torch
import torch.distributed as dist


def compress(gradient: torch.Tensor) -> torch.Tensor:
    """What arrives of a bucket's gradient: {method}, {settings}."""
    raise NotImplementedError("{method} is not part of torch: give compress() your implementation")


def hook(process_group, bucket):
    group = process_group if process_group is not None else dist.group.WORLD
    sent = compress(bucket.buffer()).div_(group.size())
    done = dist.all_reduce(sent, group=group, async_op=True).get_future()
    return done.then(lambda future: future.value()[0])


def register(ddp):
    ddp.register_comm_hook(None, hook)
'''
_OUTER = '''\
"""An outer loop: {method}, of rounds of {period} steps ({settings}).

Call ``after_step(model)`` after every optimizer step, with gradients that are not averaged between replicas.
"""

{body}
'''
_LOCAL = """\
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

_averager = PeriodicModelAverager(period={period}, warmup_steps=0)


def after_step(model):
    _averager.average_parameters(model.parameters())"""
_NO_OUTER = """\
_steps = 0


def after_step(model):
    global _steps
    _steps += 1
    if _steps % {period} == 0:
        raise NotImplementedError("{method} is not part of torch: exchange weights between replicas here")"""


def files(config: RunConfig, unexpressed: Sequence[UnexpressedSetting]) -> dict[str, str]:
    """The files of hooks that a list of unexpressed settings names."""
    named = {setting.hook for setting in unexpressed}
    texts: dict[str, str] = {}
    if GRADIENT_HOOK in named and config.compression.method != "none":
        texts[GRADIENT_HOOK] = _gradient(config)
    if OUTER_HOOK in named and config.outer.method != "none":
        texts[OUTER_HOOK] = _outer(config, unexpressed)
    return texts


def _gradient(config: RunConfig) -> str:
    compression = config.compression
    hook = COMPRESSION_METHODS[compression.method].torch_hook
    if hook is None:
        return _OWN.format(
            method=compression.method, settings=_settings_text(compression) or "it has no settings"
        )
    values = compression.model_dump() | {
        "start_step": max(hook.earliest_start, compression.start_step),
        "error_feedback": keeps_errors(compression.method, compression.error_feedback),
    }
    waits = "{start_step}" in hook.state
    return _TORCH.format(
        method=compression.method,
        since=f"from step {values['start_step']} on" if waits else "from the first step on",
        devices=", for GPUs alone" if hook.gpu_only else "",
        module=hook.module,
        name=hook.name,
        state=hook.state.format(**values),
    )


def _settings_text(compression: Compression) -> str:
    """The settings that act with its method."""
    method = COMPRESSION_METHODS[compression.method]
    values = {name: getattr(compression, name) for name in Compression.model_fields if method.has(name)}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _outer(config: RunConfig, unexpressed: Sequence[UnexpressedSetting]) -> str:
    settings = [
        f"{setting.setting.partition('.')[2]} {setting.value}"
        for setting in unexpressed
        if setting.setting.startswith("outer.")
    ]
    body = _LOCAL if config.outer.method == "local" else _NO_OUTER
    words = {"method": config.outer.method, "period": config.outer.period}
    return _OUTER.format(settings=", ".join(settings) or "usual values", body=body.format(**words), **words)
