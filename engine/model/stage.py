"""What the engine asks of one rank's part of a model: consecutive blocks, with what comes before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.config.formulas.tied_parameters import Sharing
from engine.config.run_config import RunConfig
from engine.model.activation_memory import Activations, Offload
from engine.model.axes import Axes, TensorAxis
from engine.model.experts.mixture import Mixture


class Stage(nn.Module):
    """Base of all stages. ``blocks`` are keyed by their number in the whole model, so that names of parameters do not
    depend on how a pipeline is cut; what a step gathers or recomputes together is a block.
    """

    tp: TensorAxis
    blocks: nn.ModuleDict
    #: Where activations leave the device.
    offload: Offload | None = None
    #: Which of its parameters are one.
    sharing = Sharing()

    @property
    def numbers(self) -> list[int]:
        """Those of its blocks in the whole model."""
        return [int(name) for name in self.blocks]

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        raise NotImplementedError

    def place(self, device: torch.device) -> None:
        """Move it there, with what is no parameter."""
        raise NotImplementedError

    def share(self, sharing: Sharing, parameters: dict[str, nn.Parameter]) -> None:
        """Make one parameter of those that share a name, also with those in ``parameters``, which gets this stage's."""
        self.sharing = sharing
        for prefix, module in self.named_modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                shared = parameters.setdefault(sharing.name(f"{prefix}.{name}".lstrip(".")), parameter)
                if shared is not parameter:
                    setattr(module, name, shared)

    def model_parameters(self) -> dict[str, nn.Parameter]:
        """Its parameters by the names that they have in the whole model."""
        return {self.sharing.name(name): parameter for name, parameter in self.named_parameters()}

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Those of them that learn; the others are frozen."""
        return {
            name: parameter for name, parameter in self.model_parameters().items() if parameter.requires_grad
        }

    def frozen_parameters(self) -> dict[str, nn.Parameter]:
        """Those of them that stay as they are."""
        return {
            name: parameter
            for name, parameter in self.model_parameters().items()
            if not parameter.requires_grad
        }

    def groups(self) -> list[list[nn.Module]]:
        """Its blocks in order, those together that share parameters."""
        numbers = self.numbers
        sets = self.sharing.sets(range(numbers[0], numbers[-1] + 1)) if numbers else []
        return [[self.blocks[str(number)] for number in same] for same in sets]

    def units(self) -> list[nn.Module]:
        """Modules that are used one after the other; together they hold all parameters."""
        raise NotImplementedError

    def mixtures(self) -> dict[int, Mixture]:
        """Those of its blocks that have experts, by their number in the whole model."""
        return {}

    def narrows(self, config: RunConfig) -> bool:
        """Whether parameters themselves are made narrow to compute in bf16."""
        return config.precision == "bf16"

    def keep(self, activations: Activations) -> None:
        """What blocks forget, and where they keep the rest, from the next forward on."""
        raise NotImplementedError

    def begin_micro_batch(self, step: int, micro_batch: int, inputs: Tensor, targets: Tensor) -> None:
        """The next forward of training is of this micro-batch; every stage of a pipeline is told the same."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Of the last stage's output for one micro-batch: a mean over its samples."""
        raise NotImplementedError

    def metric(self, output: Tensor, targets: Tensor) -> Tensor | None:
        """What people read beside the loss, a mean over samples too; None where a model has nothing of the kind."""
        return None


#: Shape and dtype.
MessageKind = tuple[tuple[int, ...], torch.dtype]


class Samples(Protocol):
    """A model's data, in one order for all layouts."""

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of samples ``first`` to ``first + count`` of an endless order: [count, ...] each, on the
        CPU.
        """

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """The same of samples that are never trained on; it starts again when there are too few."""


class Blueprint(Protocol):
    """A model as the engine cuts it: every layout builds its stages from the same one."""

    @property
    def blocks(self) -> int:
        """What a pipeline can cut between, in order."""

    @property
    def sharing(self) -> Sharing:
        """Which parameters are one; those that are start alike."""

    def stage(self, layers: range, axes: Axes, on_meta: bool = False) -> Stage:
        """These blocks, on the CPU, with the values that they start from; on meta they have neither values nor memory.
        The stage with block 0 takes the inputs, the one with the last block gives what the loss is taken of.
        """

    def messages(self, blocks: Sequence[int], axes: Axes, micro_batch: int) -> list[MessageKind]:
        """What each of these blocks gives to the one behind it for a micro-batch of so many samples."""

    def samples(self, stage: Stage) -> Samples:
        """The data, as the ranks of a stage need them."""
