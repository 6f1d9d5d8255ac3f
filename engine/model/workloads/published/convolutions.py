"""OREPA (arXiv 2204.00826): a convolution of six branches that are all linear, and so are one convolution.

``folded`` adds the branches' kernels up before each convolution and keeps one feature map; ``branches`` convolves with
each of them, as re-parameterisation did before. Scales of channels stand for the branches' norms; one norm follows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.workload import Workload
from engine.model.workloads.published.options import require_minimum
from engine.model.workloads.vision import DrawnImages, accuracy

#: What each branch is scaled by at the start, as the authors' code has it.
SCALES = {"square": 0.25, "average": 0.25, "prior": 0.0, "stacked": 0.5, "point": 1.0, "separable": 0.5}
#: Maps that the separable branch makes of each channel.
_SPREAD = 8


def workload(
    form: str = "folded", image: int = 16, width: int = 16, layers: int = 4, classes: int = 10, seed: int = 0
) -> Workload:
    """Convolutions of the given form on random images.

    Raises:
        ValueError: the form is unknown, ``width`` no multiple of 4, or a number too small.
    """
    if form not in ("folded", "branches") or width % 4:
        raise ValueError(f"{form=}, {width=}: forms are folded and branches, 4 has to divide width")
    require_minimum(1, image=image, width=width, classes=classes)
    return Workload(
        name="convolutions",
        first=lambda: nn.Conv2d(3, width, kernel_size=3, padding=1),
        blocks=[lambda: Block(width, form == "folded")] * layers,
        last=lambda: Head(width, classes),
        batches=DrawnImages(image, classes, seed),
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
    )


class Block(nn.Module):
    """Branches, the one norm that follows them, and a ReLU."""

    def __init__(self, width: int, folded: bool) -> None:
        super().__init__()
        self.convolution = Branches(width, width, folded)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, width, side, side] -> the same."""
        return F.relu(self.norm(self.convolution(x)))


class Branches(nn.Module):
    """[samples, inputs, side, side] -> [samples, outputs, side, side], padded with zeros.

    A kernel; one of a single place; both, one after the other; an average and fixed cosines of the output of one of a
    single place; and eight maps of each channel, mixed.
    """

    prior: Tensor

    def __init__(self, inputs: int, outputs: int, folded: bool, size: int = 3) -> None:
        super().__init__()
        self.folded, self.size = folded, size

        def random_parameter(*shape: int) -> nn.Parameter:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.square = random_parameter(outputs, inputs, size, size)
        self.average, self.cosine, self.point = (random_parameter(outputs, inputs) for _ in range(3))
        self.before, self.behind = (
            nn.Parameter(torch.eye(inputs)),
            random_parameter(outputs, inputs, size, size),
        )
        self.spread, self.mix = (
            random_parameter(inputs * _SPREAD, size, size),
            random_parameter(outputs, inputs * _SPREAD),
        )
        start = torch.tensor(list(SCALES.values()))
        self.scales = nn.Parameter(start[:, None].repeat(1, outputs))
        self.register_buffer("prior", cosines(outputs, size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.folded:
            return F.conv2d(x, self.kernel(), padding=self.size // 2)
        maps = torch.stack(self._maps(x))
        return torch.einsum("bo,bnohw->nohw", self.scales, maps)

    def kernel(self) -> Tensor:
        """The one kernel [outputs, inputs, size, size] that all branches are."""
        half, size = self.size // 2, self.size
        spread = self.spread.unflatten(0, (-1, _SPREAD))
        branches = [
            self.square,
            self.average[..., None, None].expand_as(self.square) / size**2,
            torch.einsum("oi,ohw->oihw", self.cosine, self.prior),
            torch.einsum("omhw,mi->oihw", self.behind, self.before),
            F.pad(self.point[..., None, None], (half,) * 4),
            torch.einsum("oie,iehw->oihw", self.mix.unflatten(1, (-1, _SPREAD)), spread),
        ]
        return torch.einsum("bo,boihw->oihw", self.scales, torch.stack(branches))

    def _maps(self, x: Tensor) -> list[Tensor]:
        """What each branch gives, one after the other; in the order of the scales."""
        half = self.size // 2

        def at_a_place(y: Tensor, weight: Tensor) -> Tensor:
            return F.conv2d(y, weight[..., None, None])

        channels, outputs = x.shape[1], len(self.square)
        spread = F.conv2d(x, self.spread[:, None], padding=half, groups=channels)
        return [
            F.conv2d(x, self.square, padding=half),
            F.avg_pool2d(at_a_place(x, self.average), self.size, stride=1, padding=half),
            F.conv2d(at_a_place(x, self.cosine), self.prior[:, None], padding=half, groups=outputs),
            F.conv2d(at_a_place(x, self.before), self.behind, padding=half),
            at_a_place(x, self.point),
            at_a_place(spread, self.mix),
        ]


def cosines(count: int, size: int) -> Tensor:
    """[count, size, size]: kernels of rising frequency, in one direction in the first half and in the other behind."""
    places = (torch.arange(size, dtype=torch.float32) + 0.5) * math.pi / size
    half = (count + 1) // 2
    waves = torch.cos(torch.arange(1, half + 1, dtype=torch.float32)[:, None] * places)
    rows, columns = waves[:, :, None].expand(-1, -1, size), waves[:, None, :].expand(-1, size, -1)
    return torch.cat([rows, columns])[:count] / size


class Head(nn.Module):
    """The mean over places -> logits [samples, classes]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.classify = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classify(x.mean(dim=(2, 3)))
        return logits
