"""A small vision transformer (arXiv 2010.11929) on images that are drawn, not downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.workload import Workload

Images = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]


def workload(
    image: int = 16,
    patch: int = 4,
    width: int = 64,
    heads: int = 4,
    layers: int = 4,
    classes: int = 10,
    seed: int = 0,
) -> Workload:
    """The model for square images with 3 channels.

    Raises:
        ValueError: sizes do not fit together.
    """
    if image % patch or width % heads:
        raise ValueError(f"patch={patch} must divide image={image}, and heads={heads} width={width}")
    return Workload(
        name="vision",
        first=lambda: Patches(patch, width, (image // patch) ** 2),
        blocks=[lambda: Block(width, heads)] * layers,
        last=lambda: Head(width, classes),
        batches=DrawnImages(image, classes, seed),
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
    )


def accuracy(logits: Tensor, classes: Tensor) -> Tensor:
    """The share of samples whose class has the largest logit."""
    return (logits.argmax(dim=-1) == classes).double().mean()


class Patches(nn.Module):
    """Images [samples, 3, side, side] -> patches as vectors [samples, patches, width], with learned places."""

    def __init__(self, patch: int, width: int, patches: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.places = nn.Parameter(torch.empty(patches, width).normal_(0.0, 0.02))

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.project(images)
        return patches.flatten(2).transpose(1, 2) + self.places


class Block(nn.Module):
    """Attention among all patches and a feed-forward, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, places, width] -> the same."""
        parts = self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.output(mixed)
        fed: Tensor = self.down(F.gelu(self.up(self.feed_norm(x))))
        return x + fed


class Head(nn.Module):
    """The mean over patches -> logits [samples, classes]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.classify = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classify(self.norm(x).mean(dim=1))
        return logits


#: Numbers from here on are held out.
_HELD_OUT = 1 << 40


@dataclass(frozen=True)
class DrawnImages:
    """Each sample is its class's pattern and noise of the same strength, both drawn from seed and number alone."""

    side: int
    classes: int
    seed: int

    def training(self, first: int, count: int) -> tuple[Images, Classes]:
        """Images [count, 3, side, side] and their classes [count]."""
        drawn = [self._sample(number) for number in range(first, first + count)]
        return np.stack([image for image, _ in drawn]), np.array([kind for _, kind in drawn])

    def validation(self, first: int, count: int) -> tuple[Images, Classes]:
        """The same of numbers that are never trained on."""
        return self.training(_HELD_OUT + first, count)

    def _sample(self, number: int) -> tuple[Images, int]:
        noise = np.random.default_rng([self.seed, 1, number])
        kind = int(noise.integers(self.classes))
        pattern = np.random.default_rng([self.seed, 0, kind])
        shape = (3, self.side, self.side)
        image = pattern.standard_normal(shape) + noise.standard_normal(shape)
        return image.astype(np.float32), kind
