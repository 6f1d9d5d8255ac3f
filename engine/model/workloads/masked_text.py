"""A masked language model in the manner of BERT (arXiv 1810.04805) on text at byte level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config.sections import Data
from engine.model.data import Corpus, Tokens, open_corpus
from engine.model.workload import Workload
from engine.model.workloads.vision import Block

#: Bytes, and the mask.
VOCABULARY, MASK = 257, 256
#: Shares of the chosen places that become the mask, and any byte; the rest stays.
_MASKED, _REPLACED = 0.8, 0.1
#: What is not asked for; cross-entropy leaves it out.
IGNORED = -100
_HELD_OUT = 1 << 40


def workload(
    path: str = "",
    sequence_length: int = 64,
    width: int = 64,
    heads: int = 4,
    layers: int = 4,
    share: float = 0.15,
    seed: int = 0,
) -> Workload:
    """The model for a text file or folder, or for the text that comes with Python; ``share`` of places are asked for.

    Raises:
        InputError: the text cannot be used.
        ValueError: sizes do not fit together.
    """
    masked = round(share * sequence_length)
    if width % heads or not 0 < masked <= sequence_length:
        raise ValueError(
            f"heads={heads} must divide width={width}, and share={share} ask for 1 place or more"
        )
    corpus = open_corpus(Data(path=path or None, sequence_length=sequence_length), seed)
    return Workload(
        name="masked_text",
        first=lambda: Embedding(sequence_length, width),
        blocks=[lambda: Block(width, heads)] * layers,
        last=lambda: Head(width),
        batches=MaskedWindows(corpus, masked, seed),
        loss=lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten()),
        metric=accuracy,
        metric_name="masked accuracy",
        tokens=sequence_length,
        tied=("first.tokens.weight", "last.predict.weight"),
    )


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """The share of what was asked for that has the largest logit."""
    right = (logits.argmax(dim=-1) == targets) & (targets != IGNORED)
    return right.sum().double() / (targets != IGNORED).sum()


class Embedding(nn.Module):
    """Tokens [samples, length] -> [samples, length, width], with learned places."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.empty(length, width).normal_(0.0, 0.02))
        nn.init.normal_(self.tokens.weight, 0.0, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(tokens)
        return embedded + self.places


class Head(nn.Module):
    """Logits [samples, length, vocabulary]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.predict = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.predict(self.norm(x))
        return logits


@dataclass(frozen=True)
class MaskedWindows:
    """Windows of text, in each of which equally many places are asked for: drawn from seed and number alone.

    Equally many, since the mean over samples is then the mean over places, whatever the micro-batch.
    """

    corpus: Corpus
    places_per_window: int
    seed: int

    def training(self, first: int, count: int) -> tuple[Tokens, Tokens]:
        """Tokens with masks, and the targets: the bytes that were there, or ``IGNORED``; int64 [count, length]."""
        return self._mask_windows(self.corpus.training(first, count)[:, :-1], first)

    def validation(self, first: int, count: int) -> tuple[Tokens, Tokens]:
        """The same of held-out text."""
        return self._mask_windows(self.corpus.validation(first, count)[:, :-1], _HELD_OUT + first)

    def _mask_windows(self, windows: Tokens, first: int) -> tuple[Tokens, Tokens]:
        inputs, targets = windows.copy(), np.full_like(windows, IGNORED)
        for row in range(len(windows)):
            drawn = np.random.default_rng([self.seed, first + row])
            places = drawn.permutation(windows.shape[1])[: self.places_per_window]
            targets[row, places] = windows[row, places]
            kind, other = (
                drawn.random(self.places_per_window),
                drawn.integers(0, MASK, self.places_per_window),
            )
            tokens = np.where(kind < _MASKED + _REPLACED, other, windows[row, places])
            inputs[row, places] = np.where(kind < _MASKED, MASK, tokens)
        return inputs, targets
