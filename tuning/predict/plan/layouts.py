"""All layouts of a model on so many ranks, as blocks of cases: what a plan looks through. Pure.

dp, tp, pp, ZeRO stage, micro-batch, recomputation, and stages a rank: 1F1B with one, interleaved 1F1B with more.
Interleaved ones are looked at where layers and micro-batches fall evenly, as their closed form supposes. cp is 1.
Other schedules that are compared have the layouts of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.schedules.registry import compared
from tuning.predict.model.cases import FULL, NO_RECOMPUTE, SELECTIVE, Cases, cases_of

#: What a plan turns, in the order of a point's columns.
AXES = ("dp", "tp", "pp", "zero_stage", "micro_batch", "chunks", "recompute")
MOST_MICRO_BATCH, MOST_CHUNKS = 16, 8
RECOMPUTE = {NO_RECOMPUTE: "none", SELECTIVE: "selective", FULL: "full"}
#: Rows of a block: its columns stay in a processor's cache.
_ROWS = 8192

Points = NDArray[np.int32]


class Block(NamedTuple):
    """Points, a row of ``AXES`` each, and the same as cases."""

    points: Points
    cases: Cases


@dataclass(frozen=True, slots=True)
class Space:
    """What is looked through: of ``base`` model, data, global batch and precision count."""

    base: RunConfig
    ranks: int
    devices_per_node: int

    @classmethod
    def from_config(cls, config: RunConfig, ranks: int, devices_per_node: int) -> Space:
        """Around a configuration, whose own layout, compression, overlap and schedule do not count.

        Raises:
            InputError: it asks for what no closed form knows: experts, an outer loop, offloading.
        """
        fixed_settings = {
            "model.experts": (config.model.experts, None),
            "outer.method": (config.outer.method, "none"),
            "memory.offload": (config.memory.offload, "none"),
            "memory.block_actions": (config.memory.block_actions, None),
            "memory.budget_gib": (config.memory.budget_gib, None),
        }
        for key, (value, usual) in fixed_settings.items():
            if value != usual:
                raise InputError(
                    key, value, "its time is not modelled, so no layouts are compared; leave it out"
                )
        plain = ("parallel", "schedule", "compression", "overlap", "lab", "network", "outer")
        tree = {name: part for name, part in config.model_dump(mode="json").items() if name not in plain}
        tree["memory"] |= {"recompute": "none", "recompute_layers": None}
        tree["batch"]["micro_batch"] = 1
        return cls(RunConfig.model_validate(tree), ranks, devices_per_node)

    @property
    def shape(self) -> ModelShape:
        """The model's."""
        return resolve(self.base.model)

    @property
    def divided_by_tp(self) -> dict[str, int]:
        """Sizes that tp has to divide, by what they are."""
        shape = self.shape
        return {
            "heads": shape.heads,
            "heads of keys and values": shape.kv_heads,
            "units of the feed-forward": shape.ffn_hidden,
            "words of the vocabulary": shape.vocabulary,
            "tokens of a sequence": self.base.data.sequence_length,
        }

    def blocks(self) -> Iterator[Block]:
        """All legal points, so many at a time."""
        rows = itertools.chain.from_iterable(map(self._points, self.degrees()))
        while block := list(itertools.islice(rows, 32)):
            yield from self._split(np.concatenate(block))

    def degrees(self) -> Iterator[tuple[int, int, int]]:
        """dp, tp and pp that multiply to the ranks and keep the rules."""
        sizes, batch = self.divided_by_tp.values(), self.base.batch.global_batch
        for tp in divisors(self.ranks):
            if any(size % tp for size in sizes):
                continue
            for pp in divisors(self.ranks // tp):
                dp = self.ranks // tp // pp
                if pp <= self.shape.layers and batch % dp == 0:
                    yield dp, tp, pp

    def cases(self, points: Points) -> Cases:
        """Points as cases."""
        column = dict(zip(AXES, points.T.astype(np.float64), strict=True))
        shape, usual = self.shape, cases_of([self.base], self.devices_per_node)
        base, longer = np.divmod(shape.layers, column["pp"] * column["chunks"])
        column["micro_batches"] = self.base.batch.global_batch / column["dp"] / column["micro_batch"]
        column["last_layers"] = base * column["chunks"]
        column["other_layers"] = column["last_layers"] + np.where(longer > 0, 1, 0)
        return usual.take(np.zeros(len(points), np.intp)).put(**column)

    def config(self, point: Sequence[int]) -> RunConfig:
        """A point as a configuration."""
        return self.base.with_values(values(point))

    def other_schedules(self, point: Sequence[int]) -> list[RunConfig]:
        """The same with each other schedule that is compared."""
        own_config = self.config(point)
        kinds = compared(own_config.schedule.chunks)[1:] if own_config.parallel.pp > 1 else []
        others = [own_config.with_values({"schedule.kind": kind}) for kind in kinds]
        return [other for other in others if not any(True for _ in rules.problems(other))]

    def _points(self, degrees: tuple[int, int, int]) -> Iterator[Points]:
        """Of three degrees, all that may be chosen beside."""
        dp, tp, pp = degrees
        share = self.base.batch.global_batch // dp
        stages = range(4) if dp > 1 else range(1)
        for micro in divisors(share, MOST_MICRO_BATCH):
            chunks = self._chunks(pp, share // micro)
            choices = list(itertools.product((dp,), (tp,), (pp,), stages, (micro,), chunks, RECOMPUTE))
            yield np.array(choices, np.int32)

    def _chunks(self, pp: int, micro_batches: int) -> list[int]:
        if pp == 1 or micro_batches % pp:
            return [1]
        return [n for n in range(1, MOST_CHUNKS + 1) if n == 1 or self.shape.layers % (pp * n) == 0]

    def _split(self, points: Points) -> Iterator[Block]:
        for first in range(0, len(points), _ROWS):
            part = points[first : first + _ROWS]
            yield Block(part, self.cases(part))


def values(point: Sequence[int]) -> dict[str, Any]:
    """A point as dotted keys and values."""
    numbers = dict(zip(AXES, map(int, point), strict=True))
    return {
        **{f"parallel.{axis}": numbers[axis] for axis in ("dp", "tp", "pp", "zero_stage")},
        "batch.micro_batch": numbers["micro_batch"],
        "schedule.kind": compared(numbers["chunks"])[0],
        "schedule.chunks": numbers["chunks"],
        "memory.recompute": RECOMPUTE[numbers["recompute"]],
    }


def divisors(number: int, most: int | None = None) -> list[int]:
    """Of a number, rising, up to ``most``."""
    return [n for n in range(1, min(number, most or number) + 1) if number % n == 0]
