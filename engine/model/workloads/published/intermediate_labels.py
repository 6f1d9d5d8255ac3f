"""Partitioned training by synthetic intermediate labels (arXiv 2403.11204): two parts that learn without messages.

Each class gets a random vector of signs at the cut. The left part learns to give it, the right part to tell the class
from it, each by itself (``apart`` steps); then the whole is trained as usual, which recovers what the parts lost.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config.errors import InputError
from engine.model.workload import StepInput, StepResult, StepSetting, Workload
from engine.model.workloads.published.options import needs_adamw, require_minimum
from engine.model.workloads.vision import DrawnImages, accuracy

#: The signs' size: what tanh comes to without growing for ever.
_SIZE = 0.8


def workload(
    apart: int = 100, image: int = 8, width: int = 64, layers: int = 6, classes: int = 10, seed: int = 0
) -> Workload:
    """Fully connected layers on drawn images, cut in the middle.

    Raises:
        ValueError: there is no middle, or a number is too small.
    """
    if layers % 2 or layers < 2:
        raise ValueError(f"layers={layers} has to be even and above 0: the cut is in the middle")
    require_minimum(0, apart=apart)
    require_minimum(1, image=image, width=width, classes=classes)
    generator = torch.Generator().manual_seed(seed)
    labels = _SIZE * (2.0 * torch.randint(2, (classes, width), generator=generator) - 1)
    return Workload(
        name="partitioned",
        first=lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * image**2, width)),
        blocks=[lambda: nn.Sequential(nn.Linear(width, width), nn.Tanh())] * layers,
        last=lambda: nn.Linear(width, classes),
        batches=DrawnImages(image, classes, seed),
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
        step=lambda setting: Parts(setting, apart, layers // 2, labels).take,
        step_axes=("pp",),
    )


class Parts:
    """The parts that one rank has: both, or with pp = 2 one."""

    def __init__(self, setting: StepSetting, apart: int, cut: int, labels: Tensor) -> None:
        needs_adamw(setting, "parts move by an AdamW of their own while they are apart")
        self._setting, self._apart, self._labels = setting, apart, labels.to(setting.model.device)
        self._has_left, self._has_right = _parts(setting, cut)
        self._cut = cut
        self._optimizer: torch.optim.Optimizer | None = None

    def take(self, inputs: StepInput) -> StepResult:
        """Apart, or as usual."""
        if inputs.step >= self._apart:
            return inputs.usual()
        left_loss, right_loss = self._losses(inputs)
        parameters = list(self._setting.model.parameters())
        losses = [loss for loss in (left_loss, right_loss) if loss is not None]
        with self._setting.phase("backward"):
            gradients = torch.autograd.grad(torch.stack(losses).sum(), parameters)
        with self._setting.phase("optimizer"):
            norm = self._update(parameters, gradients, inputs.rate)
        return StepResult(None if right_loss is None else float(right_loss.detach()), norm)

    def _losses(self, step_input: StepInput) -> tuple[Tensor | None, Tensor | None]:
        """Of the parts that are here: distance from the labels, and of classes told from them."""
        inputs, classes = (torch.cat(part) for part in zip(*step_input.batches, strict=True))
        labels, model, left_loss, right_loss = self._labels[classes], self._setting.model, None, None
        with self._setting.phase("forward"):
            if self._has_left:
                left_loss = F.mse_loss(
                    self._blocks(model.get_submodule("first")(inputs), range(self._cut)), labels
                )
            if self._has_right:
                given_labels = self._blocks(labels, range(self._cut, 2 * self._cut))
                right_loss = F.cross_entropy(model.get_submodule("last")(given_labels), classes)
        return left_loss, right_loss

    def _blocks(self, x: Tensor, numbers: range) -> Tensor:
        for number in numbers:
            x = self._setting.model.blocks[str(number)](x)
        return x

    def _update(self, parameters: list[nn.Parameter], gradients: tuple[Tensor, ...], rate: float) -> float:
        """AdamW of this rank's own, on the same memory: the engine's asks all ranks for the norm."""
        if self._optimizer is None:
            train = self._setting.config.train
            same = [nn.Parameter(parameter.detach()) for parameter in parameters]
            self._optimizer = torch.optim.AdamW(
                same, rate, (train.beta1, train.beta2), train.epsilon, train.weight_decay
            )
        (group,) = self._optimizer.param_groups
        group["lr"] = rate
        for weight, gradient in zip(group["params"], gradients, strict=True):
            weight.grad = gradient
        self._optimizer.step()
        return float(torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients])))


def _parts(setting: StepSetting, cut: int) -> tuple[bool, bool]:
    """Whether this rank has all of the left part, and of the right one."""
    numbers = set(setting.model.numbers)
    parts = set(range(cut)), set(range(cut, 2 * cut))
    has = tuple(part <= numbers for part in parts)
    if set().union(*(part for part, has_class in zip(parts, has, strict=True) if has_class)) != numbers:
        layers = setting.config.schedule.stage_layers
        remedy = f"the parts have {cut} blocks each; set it to null, and parallel.pp to 1 or 2"
        raise InputError("schedule.stage_layers", layers, remedy)
    return has[0], has[1]
