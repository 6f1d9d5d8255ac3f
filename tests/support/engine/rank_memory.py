"""What a real rank holds, counted without the engine's own accounts: built, trained for a step, looked at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.comm.context import RankContext, build_groups
from engine.config.layout import accumulation, layout_of
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.model.decoder import Decoder
from engine.parallel.build import build_stages
from engine.parallel.data.optimizer import LocalOptimizer
from engine.run.commands import StopControl
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.writer import RecordWriter
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer


@dataclass(frozen=True)
class Real:
    """What one real rank held after a step, and what one forward of each of its stages saved."""

    parameters: int
    parameter_bytes: int
    state_bytes: int
    saved_bytes: list[int]


def real(rank: int, config: RunConfig, folder: Path) -> Real:
    """Build a rank, train one step with the engine's own executor and optimizer, then count."""
    layout, device = layout_of(config), torch.device("cpu")
    made = build_groups(layout, rank, device, timedelta(seconds=30))
    timer = StepTimer(clock_for("cpu"))
    recorder, writer = CollectiveRecorder(timer, made.axes), RecordWriter(folder, f"rank-{rank}")
    context = RankContext(
        rank, config, layout, device, made, timer, recorder, writer, StopControl(None, rank)
    )
    executor = build_stages(context)
    decoders = [replica.model for replica in executor.stages.values()]
    optimizer = LocalOptimizer(list(executor.stages.values()), made, config.train)
    saved = [saved_bytes(config, decoder) for decoder in decoders]
    timer.begin(0)
    executor.run([(tokens(config), tokens(config)) for _ in range(accumulation(config))])
    optimizer.step()
    timer.end()
    writer.close()
    once = dict.fromkeys(one for decoder in decoders for one in decoder.parameters())
    parts = [local(one) for one in once]
    held = {weight: state for rule in optimizer._rules() for weight, state in rule.state.items()}
    states = [x for state in held.values() for x in state.values()]
    masters = [weight for weight in held if storage(weight) not in set(map(storage, parts))]
    return Real(
        parameters=sum(part.numel() for part in parts),
        parameter_bytes=sum({storage(part): part.untyped_storage().nbytes() for part in parts}.values()),
        state_bytes=sum(x.numel() * x.element_size() for x in [*states, *masters]),
        saved_bytes=saved,
    )


def saved_bytes(config: RunConfig, decoder: Decoder) -> int:
    """Memory behind what autograd saves in a forward, without parameters, with the stage's input and output."""
    seen: dict[int, Tensor] = {}
    parameters: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        seen[storage(tensor)] = tensor
        return tensor

    def note(module: nn.Module, _: object) -> None:
        parameters.update(storage(local(one)) for one in module.parameters())

    handles = [module.register_forward_pre_hook(note) for module in decoder.modules()]
    length, tp = tokens(config).shape[1], config.parallel.tp
    x = tokens(config)
    if decoder.embedding is None:
        dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        size = (length // tp, config.batch.micro_batch, resolve(config.model).hidden)
        x = torch.zeros(size, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = decoder(x)
        if decoder.head is not None:
            out = decoder.loss(out, tokens(config))
    for handle in handles:
        handle.remove()
    seen |= {storage(one): one for one in (x, out)}
    parameters |= {storage(decoder.rotary)}
    return sum(one.untyped_storage().nbytes() for key, one in seen.items() if key not in parameters)


def tokens(config: RunConfig) -> Tensor:
    length = config.data.sequence_length // config.parallel.cp
    return torch.zeros((config.batch.micro_batch, length), dtype=torch.int64)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
