"""A person's own model, data and loss, as the engine trains them: what a factory returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from engine.comm.channel import Channel
from engine.config.run_config import RunConfig
from engine.model.stage import Stage

#: Builds one part of a model: a new module at every call, in fp32 on the CPU; from ``Axes`` where the workload splits.
Build = Callable[..., nn.Module]
#: From what the model gives and the targets of a micro-batch, and ``Axes`` where the workload splits, to one number,
#: a mean over its samples.
Mean = Callable[..., Tensor]


class Batches(Protocol):
    """Data as samples with numbers; what a number stands for depends on nothing else, so that all layouts see the
    same.
    """

    def training(self, first: int, count: int) -> tuple[Any, Any]:
        """Inputs and targets of samples ``first`` to ``first + count`` of an endless order: two tensors or numpy arrays
        [count, ...].
        """

    def validation(self, first: int, count: int) -> tuple[Any, Any]:
        """The same of held-out samples, which are never trained on."""


class StepResult(NamedTuple):
    """The loss, where this rank computes one, and the norm of what the parameters were changed by or along."""

    loss: float | None
    norm: float


@dataclass(frozen=True)
class StepInput:
    """A step of the run, the first being 0: this rank's micro-batches of inputs and targets, on its device, and the
    learning rate. ``usual`` takes the step as the engine would.
    """

    step: int
    batches: list[tuple[Tensor, Tensor]]
    rate: float
    usual: Callable[[], StepResult]


@dataclass(frozen=True)
class StepSetting:
    """What a step of the workload's own works with on one rank.

    ``model`` has this rank's parts as ``first``, ``blocks`` and ``last``, and ``loss``; its parameters are changed in
    place. Gradients are to be taken with ``torch.autograd.grad``: those that collect in ``grad`` are the usual step's.
    ``channel`` leads to the dp ranks, None where there is one; all that goes over it is recorded, and every rank makes
    the same calls. ``phase`` marks what is done: "data", "forward", "backward" or "optimizer". ``tell`` adds an event
    of a kind and fields to the run's records; that of rank 0 is heard.
    """

    model: Stage
    channel: Channel | None
    config: RunConfig
    phase: Callable[[str], AbstractContextManager[None]]
    tell: Callable[..., None] = lambda kind, **fields: None


#: Takes one step.
OwnStep = Callable[[StepInput], StepResult]


@dataclass(frozen=True)
class Workload:
    """A model as parts that follow each other, with its data and its loss.

    ``first`` takes a micro-batch's inputs and gives what each of ``blocks`` takes and gives; ``last`` makes of it what
    ``loss`` and ``metric`` are asked for, both means over samples. Parts share no parameter by themselves, and each
    takes and gives one tensor [samples, ...]. A pipeline cuts between blocks; ZeRO gathers, and recomputation forgets,
    block by block. Their parameters are called ``first.NAME``, ``blocks.NUMBER.NAME`` and ``last.NAME``.

    Parts are built one by one with torch's generator seeded by ``train.seed`` and the part's name, so all layouts start
    alike. Parameters for which ``weights`` has their name start from that; then it must have all of them.

    ``splits`` names the axes, "tp" and "cp", over which the model says itself how it is split: every part is built from
    this rank's ``engine.model.axes.Axes``, and ``loss`` and ``metric`` get them as a third argument. A module's
    ``tp_dim`` is the dimension along which its parameters are split, each rank holding ``axes.tensor.shard`` of the
    whole; without one they are whole everywhere, and their gradients are summed over tp. What blocks give is then
    [sequence / (cp * tp), samples, ...]; under cp inputs and targets [samples, sequence] are cut at
    ``axes.context.positions``.

    Where ``model.layer_groups`` has blocks share parameters, those of a group have to be alike. ``tied`` names the two
    parameters that ``model.tied_embeddings`` makes one, such as ``first.tokens.weight`` and ``last.predict.weight``.

    ``tokens`` is what a sample counts in rates per second: 1 where it is one thing, such as an image.

    ``step``, called once on each rank, makes a step of the workload's own, which is taken in place of the engine's
    forwards, backwards, averages and optimizer. It works over the axes in ``step_axes``, "dp" or "pp",
    alone, of ``step_samples`` where it needs so many. Parameters may be float64 then.
    """

    blocks: Sequence[Build]
    batches: Batches
    loss: Mean
    first: Build | None = None
    last: Build | None = None
    metric: Mean | None = None
    metric_name: str = "metric"
    name: str = ""
    splits: tuple[str, ...] = ()
    tokens: int = 1
    tied: tuple[str, str] | None = None
    weights: Mapping[str, Tensor] | None = None
    step: Callable[[StepSetting], OwnStep] | None = None
    step_axes: tuple[str, ...] = ("dp",)
    step_samples: int | None = None
