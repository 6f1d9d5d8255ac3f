"""A workload's parts as stages: any modules in a row, in fp32 or under autocast, recomputed block by block."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.config.errors import InputError
from engine.config.formulas.tied_parameters import Sharing, sharing_among
from engine.config.presets import FIELD
from engine.config.run_config import RunConfig
from engine.model.activation_memory import Activations, activations_of
from engine.model.axes import Axes, ContextAxis, TensorAxis
from engine.model.stage import MessageKind, Stage
from engine.model.workload import Build, Workload
from engine.model.workloads.adapters import (
    MixerInput,
    SideNetwork,
    fill_sides,
    freeze,
    run_without_gradients,
    stand_beside_linears,
)

#: Their statistics are those of a micro-batch.
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class StageParts:
    """The parts of a stage, by the names that their parameters begin with."""

    first: nn.Module | None
    blocks: dict[int, nn.Module]
    last: nn.Module | None
    is_last: bool


class ListedStage(Stage):
    """Blocks of a workload. Precision bf16 means autocast: parameters and what leaves a stage stay fp32."""

    def __init__(
        self, workload: Workload, built: StageParts, axes: Axes, activations: Activations, bf16: bool
    ) -> None:
        super().__init__()
        self.axes, self.tp, self._bf16, self._is_last = axes, axes.tensor, bf16, built.is_last
        self._axes_arguments = _axes_arguments(workload, axes)
        self._loss, self._metric = workload.loss, workload.metric
        self.first, self.last = built.first, built.last
        self.blocks = nn.ModuleDict({str(number): block for number, block in built.blocks.items()})
        self._device = torch.device("cpu")
        #: Beside frozen blocks.
        self.side: SideNetwork | None = None
        self.keep(activations)

    @property
    def device(self) -> torch.device:
        return self._device

    def place(self, device: torch.device) -> None:
        self.to(device)
        self._device = device

    def units(self) -> list[nn.Module]:
        ends = self.first, self.last, self.side
        return [*self.blocks.values(), *(module for module in ends if module is not None)]

    def narrows(self, config: RunConfig) -> bool:
        """Autocast makes narrow copies for each product."""
        return False

    def keep(self, activations: Activations) -> None:
        self.offload = activations.offload_of(self.numbers, self.offload)
        numbers = enumerate(self.numbers)
        self._forgets = [activations.block_kind(place, number) == "full" for place, number in numbers]

    def forward(self, x: Tensor) -> Tensor:
        """Inputs or what the block before gave -> what the next block takes, in fp32; or what the loss is taken of."""
        with self._precision():
            steps = [self._step(*pair) for pair in zip(self.blocks.values(), self._forgets, strict=True)]
            if self.side is not None:
                x = self._run_side(self.side, x)
            elif self.offload is not None and torch.is_grad_enabled():
                x = self.offload.run(
                    steps, self._run_first(x), None
                )  # with no name here, or it could not leave
            else:
                x = self._run_first(x)
                for step in steps:
                    x = step(x, None)
            x = x if self.last is None else self.last(x)
        return x if self._is_last else x.float()

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        with self._precision():
            return self._loss(output, targets, *self._axes_arguments)

    def metric(self, output: Tensor, targets: Tensor) -> Tensor | None:
        return None if self._metric is None else self._metric(output, targets, *self._axes_arguments)

    def _run_first(self, x: Tensor) -> Tensor:
        return x if self.first is None else self.first(x)

    def _run_side(self, side: SideNetwork, x: Tensor) -> Tensor:
        """Mixers have places first."""
        activations = run_without_gradients(self._run_first, list(self.blocks.values()), x)
        out: Tensor = side(activation.transpose(0, 1) for activation in activations)
        return out.transpose(0, 1)

    def _step(self, block: nn.Module, forgets: bool) -> Callable[[Tensor, Tensor | None], Tensor]:
        def step(x: Tensor, _: Tensor | None) -> Tensor:
            # Whatever is random in it has to be drawn alike again.
            recomputes = forgets and torch.is_grad_enabled()
            out: Tensor = checkpoint(block, x, use_reentrant=False) if recomputes else block(x)
            return out

        return step

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()


@dataclass(frozen=True)
class ListedBlueprint:
    """A workload with the configuration that it is trained by."""

    workload: Workload
    config: RunConfig
    #: Those of a rank that is split over no axis.
    alone: Axes

    @property
    def blocks(self) -> int:
        return len(self.workload.blocks)

    @property
    def sharing(self) -> Sharing:
        return sharing_among(self.config.model, self.blocks, self.workload.tied)

    def stage(self, layers: range, axes: Axes, on_meta: bool = False) -> ListedStage:
        """These blocks.

        Raises:
            InputError: a part cannot be built, or ``weights`` do not fit it.
        """
        is_first, is_last = layers.start == 0, layers.stop == self.blocks
        first, last = self.workload.first if is_first else None, self.workload.last if is_last else None
        built = StageParts(
            self._part("first", first, axes, on_meta),
            {i: _certain(self._part(f"blocks.{i}", self.workload.blocks[i], axes, on_meta)) for i in layers},
            self._part("last", last, axes, on_meta),
            is_last,
        )
        if built.last is not None and not is_first and not on_meta:
            self._start_as_first(built.last, axes)
        bf16 = self.config.precision == "bf16"
        stage = ListedStage(self.workload, built, axes, activations_of(self.config), bf16)
        if self.config.train.adapt != "none":
            with torch.device("meta" if on_meta else "cpu"):
                self._stand_beside(stage)
            if not on_meta:
                fill_sides(stage, self.config.train.seed)
        return stage

    def _stand_beside(self, stage: ListedStage) -> None:
        """Freeze it, and put beside it what ``train.adapt`` asks for; rules see to it that it fits."""
        rank = self.config.train.adapt_rank
        freeze(stage)
        if self.config.train.adapt == "lora":
            stand_beside_linears(stage.blocks, rank)
            return
        _, places, width = self.shapes(1)[0]
        # A sample that is several things has some that come after others.
        mixer_input = MixerInput(width, places, looks_back=self.workload.tokens > 1)
        stage.side = SideNetwork(stage.numbers, mixer_input, rank)

    def messages(self, blocks: Sequence[int], axes: Axes, micro_batch: int) -> list[MessageKind]:
        """Found by running the parts on meta tensors, which have shapes alone."""
        shapes = self.shapes(micro_batch) if blocks else []
        cut = axes.tensor.size * axes.context.size  # of the sequence, which comes first where it is split
        return [((shapes[block][0] // cut, *shapes[block][1:]), torch.float32) for block in blocks]

    def samples(self, stage: Stage) -> Tensors:
        assert isinstance(stage, ListedStage)
        return Tensors(self.workload, stage.axes.context)

    def parts(self) -> Iterator[tuple[str, Build]]:
        """All of them in order, by name."""
        if self.workload.first is not None:
            yield "first", self.workload.first
        yield from ((f"blocks.{number}", build) for number, build in enumerate(self.workload.blocks))
        if self.workload.last is not None:
            yield "last", self.workload.last

    def build_on_meta(self, name: str, build: Build) -> nn.Module:
        """One part, whole, with sizes alone."""
        return _certain(self._part(name, build, self.alone, True))

    def loss_on_meta(self, output: Tensor, targets: Tensor) -> Tensor:
        """Of the whole model."""
        return self.workload.loss(output, targets, *_axes_arguments(self.workload, self.alone))

    def inputs_on_meta(self, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets like those of so many samples."""
        inputs, targets = Tensors(self.workload).training(0, 1)
        return tuple(
            torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
            for tensor in (inputs, targets)
        )  # type: ignore[return-value]

    def shapes(self, micro_batch: int) -> list[tuple[int, ...]]:
        """What each block gives for so many samples.

        Raises:
            InputError: a part cannot be run on meta tensors.
        """
        x, _ = self.inputs_on_meta(micro_batch)
        shapes: list[tuple[int, ...]] = []
        for name, build in self.parts():
            if name == "last":
                break
            try:
                with torch.device("meta"), torch.no_grad():
                    x = self.build_on_meta(name, build)(x)
            except Exception as error:
                remedy = f"what {name} gives is not known: on meta tensors it raises {exception_line(error)}"
                raise InputError(FIELD, self.config.model.workload, remedy) from error
            shapes += [tuple(x.shape)] if name != "first" else []
        return shapes

    def _part(self, name: str, build: Build | None, axes: Axes, on_meta: bool) -> nn.Module | None:
        if build is None:
            return None
        spec = self.config.model.workload
        try:
            with torch.device("meta" if on_meta else "cpu"), torch.random.fork_rng(devices=[]):
                # Blocks that are to be one start from the same values.
                torch.manual_seed(_seed(self.sharing.name(f"{name}.").rstrip("."), self.config.train.seed))
                module = build(*_axes_arguments(self.workload, axes))
        except Exception as error:
            raise InputError(FIELD, spec, f"{name} cannot be built: {exception_line(error)}") from error
        if not isinstance(module, nn.Module):
            class_name = type(module).__name__
            raise InputError(
                FIELD, spec, f"{name} is built as {class_name}; its function has to return an nn.Module"
            )
        for problem in _problems(name, module, self.workload.step is not None):
            raise InputError(FIELD, spec, problem)
        if self.workload.weights is not None:
            self._fill(name, module, axes.tensor, on_meta)
        return module

    @torch.no_grad()
    def _start_as_first(self, last: nn.Module, axes: Axes) -> None:
        """Tied parameters of a stage that has not both."""
        if self.sharing.tied is None:
            return
        names = (name.partition(".")[2] for name in self.sharing.tied)
        first = _certain(self._part("first", self.workload.first, axes, False))
        source, target = (
            module.get_parameter(name) for module, name in zip((first, last), names, strict=True)
        )
        target.copy_(source)

    @torch.no_grad()
    def _fill(self, name: str, module: nn.Module, tp: TensorAxis, on_meta: bool) -> None:
        """Values from ``weights``; on meta only what can be told from their shapes."""
        dims = {
            id(parameter): getattr(owner, "tp_dim", None)
            for owner in module.modules()
            for parameter in owner.parameters(recurse=False)
        }
        weights, spec = self.workload.weights, self.config.model.workload
        assert weights is not None
        for parameter_name, parameter in module.named_parameters():
            full = self.sharing.name(f"{name}.{parameter_name}")
            try:
                values = weights[full]
            except KeyError:
                raise InputError(
                    FIELD, spec, f"its weights have no {full}; give all of them or none"
                ) from None
            if not isinstance(values, Tensor):
                kind = type(values).__name__
                raise InputError(FIELD, spec, f"weights of {full} are {kind}; they have to be a tensor")
            wanted, shape = list(parameter.shape), list(values.shape)
            if (dim := dims[id(parameter)]) is not None:
                wanted[dim] *= tp.size
            if wanted != shape:
                raise InputError(FIELD, spec, f"weights of {full} are {shape}, and the model's are {wanted}")
            if not on_meta:
                parameter.copy_(tp.shard(values, dim))


@dataclass(frozen=True)
class Tensors:
    """A workload's data as pairs of tensors; of a sequence that is split, this rank's places."""

    workload: Workload
    context: ContextAxis | None = None

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        return self._mine(*_pair(self.workload.batches.training(first, count), count))

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        return self._mine(*_pair(self.workload.batches.validation(first, count), count))

    def _mine(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.context is None or self.context.size == 1:
            return inputs, targets
        places = self.context.positions(inputs.shape[1])
        return inputs[:, places], targets[:, places]


def _axes_arguments(workload: Workload, axes: Axes) -> tuple[Axes, ...]:
    """What parts are built from, and losses taken with, beside their own."""
    return (axes,) if workload.splits else ()


def exception_line(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _pair(pair: Any, count: int) -> tuple[Tensor, Tensor]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"batches give {type(pair).__name__}, not a pair of inputs and targets")
    inputs, targets = (torch.as_tensor(part) for part in pair)
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        if not tensor.ndim or len(tensor) != count:
            raise ValueError(
                f"{name} of {count} samples are of shape {list(tensor.shape)}, not [{count}, ...]"
            )
    return inputs, targets


def _problems(name: str, module: nn.Module, own_step: bool) -> Iterator[str]:
    """Why the engine cannot train a part like one process would."""
    for parameter_name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.dtype != torch.float32 and not (own_step and parameter.dtype == torch.float64):
            dtype = str(parameter.dtype)[6:]
            yield f"{name}.{parameter_name} is {dtype}; build it in float32, and set precision to bf16"
        if not parameter.requires_grad:
            yield f"{name}.{parameter_name} takes no gradient; make it a buffer, or train it"
        if not parameter.ndim:
            yield f"{name}.{parameter_name} is a single number, which cannot be sharded; give it the shape [1]"
    for parameter_name, child in module.named_modules():
        if isinstance(child, _BATCH_NORMS):
            place = f"{name}.{parameter_name}".rstrip(".")
            yield (
                f"{place} averages over a micro-batch, which another layout would cut another way; "
                "take a LayerNorm or GroupNorm"
            )


def _certain(module: nn.Module | None) -> nn.Module:
    assert module is not None
    return module


def _seed(name: str, seed: int) -> int:
    return zlib.crc32(name.encode()) + (seed << 32) % (1 << 62)
