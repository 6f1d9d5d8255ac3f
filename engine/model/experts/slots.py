"""Experts whose matrices lie on the host or on disk, and slots of memory for those in use (after arXiv 2205.10034).

A rank's slots hold whole experts. Which of them gives way is decided by how often the gate has chosen each of late and
by when its layer comes next. What the gate has chosen is fetched on a thread beside the products of the expert before,
and in a backward, where the choices of all layers are known, those of the layer before it, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from engine.comm import host_values
from engine.model.copies import CopyThread
from engine.model.linear import apply

Home = Literal["host", "disk"]
#: Layer and number of an expert on its rank.
Key = tuple[int, int]
#: What a count is worth a forward later. Slower fading found fewer experts in a recorded trace of a young router.
_FADES = 0.0625
_LEAST = 1e-3


class ExpertCache:
    """Which experts have one of some slots. The one whose next use is expected last gives way.

    A backward asks in the reverse order of its forward for what the gate had chosen there: that is known. Else a layer
    has its turn in the next forward, and an expert in the share of forwards in which it was chosen, a count that fades.
    Frequency alone (LFU) is worse than recency (LRU) here: the way back begins with what came last.
    """

    def __init__(self, slots: int, layers: Sequence[int]) -> None:
        self._free = list(range(slots))[::-1]
        self._turn = {layer: place for place, layer in enumerate(layers)}
        self._period = 2 * len(layers)
        self._slot: dict[Key, int] = {}
        self._counts: dict[Key, float] = {}
        self._forwards = dict.fromkeys(layers, 0.0)
        self._due, self._soon = set[Key](), set[Key]()

    def __contains__(self, key: Key) -> bool:
        return key in self._slot

    def note_choices(self, layer: int, keys: Sequence[Key], trains: bool) -> None:
        """The gate has chosen, and these are asked for now; if it ``trains``, once more in a backward."""
        self._forwards[layer] = self._forwards[layer] * _FADES + 1.0
        for key in [chosen_key for chosen_key in self._counts if chosen_key[0] == layer]:
            self._counts[key] *= _FADES
        for key in keys:
            self._counts[key] = self._counts.get(key, 0.0) + 1.0
        self._soon = set(keys)
        if trains:
            self._due |= self._soon

    def ask(self, key: Key, returns: bool, protected: Iterable[Key] = ()) -> tuple[int, bool] | None:
        """The slot of a key, and whether it had it; None where all are ``protected``. ``returns``: for a backward."""
        self._soon.discard(key)
        if returns:
            self._due.discard(key)
        return self.place(key, returns, protected)

    def place(self, key: Key, returns: bool, protected: Iterable[Key] = ()) -> tuple[int, bool] | None:
        """The same ahead of need."""
        if key in self._slot:
            return self._slot[key], True
        if not self._free:
            may_leave = self._slot.keys() - set(protected)
            if not may_leave:
                return None
            now = self._place(key[0], returns)
            self._free.append(
                self._slot.pop(max(may_leave, key=lambda candidate: self._next_use(candidate, now)))
            )
        self._slot[key] = self._free.pop()
        return self._slot[key], False

    def forget(self) -> None:
        """What is in the slots is no longer right; counts stay."""
        self._free += self._slot.values()
        self._slot.clear()

    def _place(self, layer: int, returns: bool) -> int:
        turn = self._turn[layer]
        return self._period - 1 - turn if returns else turn

    def _next_use(self, key: Key, now: int) -> tuple[float, int]:
        """Expected turns of layers until then, and where several are in one layer, their order."""
        layer, expert = key
        if key in self._soon:
            return -1.0, expert
        if key in self._due:
            return float(self._place(layer, True) - now), -expert
        share = max(_LEAST, self._counts.get(key, 0.0) / max(1.0, self._forwards[layer]))
        return (self._turn[layer] - now) % self._period + self._period * (1 / share - 1), expert


@dataclass(slots=True)
class SlotUse:
    """What became of requests: found in a slot, on their way there, or fetched while the products waited."""

    hits: int = 0
    ahead: int = 0
    misses: int = 0
    fetched_bytes: int = 0
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Expert:
    """One expert's matrices: gate and up [width, hidden], down [hidden, width]."""

    parts: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def from_flat(cls, flat: Tensor, width: int, hidden: int) -> _Expert:
        gate, up, down = flat.split(width * hidden)
        return cls((gate.view(width, hidden), up.view(width, hidden), down.view(hidden, width)))


@dataclass
class ExpertSlots:
    """The slots of one rank, and the homes of its experts by layer; ``ahead``: what is chosen next is fetched ahead."""

    count: int
    home: Home
    folder: Path
    ahead: bool = True
    use: SlotUse = field(default_factory=SlotUse)

    def __post_init__(self) -> None:
        self._cache = ExpertCache(self.count, ())
        self._homes: dict[int, tuple[Tensor, ...]] = {}
        self._lane = CopyThread("experts")
        self._coming: dict[Key, Future[None]] = {}
        self._chosen: dict[int, list[Key]] = {}
        self._experts: list[_Expert] = []

    @property
    def slot_bytes(self) -> int:
        """Of one slot."""
        return sum(matrix[0].nbytes for matrix in next(iter(self._homes.values())))

    @property
    def held_bytes(self) -> int:
        """Of all slots that were needed so far."""
        return sum(part.nbytes for expert in self._experts for part in expert.parts)

    @property
    def experts(self) -> int:
        """Those of the rank, in all layers."""
        return sum(len(home[0]) for home in self._homes.values())

    def adopt(self, layer: int, weights: Sequence[nn.Parameter]) -> None:
        """Gate, up and down of a layer's experts, [experts, out, in] each: their values move home, and what is left of
        them takes no memory. ``home`` of each is what an optimizer updates.
        """
        self._homes[layer] = tuple(
            self._move_home(layer, place, weight) for place, weight in enumerate(weights)
        )
        self._cache = ExpertCache(self.count, sorted(self._homes))
        for weight, home in zip(weights, self._homes[layer], strict=True):
            weight.untyped_storage().resize_(0)
            weight.home, weight.slots = home, self  # type: ignore[attr-defined]

    def close(self) -> None:
        """Nothing is fetched any more."""
        self._lane.close()

    def forget(self) -> None:
        """Homes have new values."""
        self._settle()
        self._cache.forget()

    def run(self, layer: int, x: Tensor, counts: Tensor | None, weights: Sequence[nn.Parameter]) -> Tensor:
        """This layer's experts on rows [rows, hidden] sorted by expert with the rows of each, or on
        [experts, rows, hidden].
        """
        sizes = [x.shape[1]] * x.shape[0] if counts is None else host_values.numbers(counts)
        rows = x.flatten(0, 1) if counts is None else x
        out: Tensor = apply(_SlottedProducts, rows, sizes, layer, self, *weights)
        return out.view_as(x)

    def chosen_experts(self, layer: int, sizes: Sequence[int], trains: bool) -> list[Key]:
        """The experts that the gate has chosen, in order."""
        self._chosen[layer] = [(layer, expert) for expert, size in enumerate(sizes) if size]
        self._cache.note_choices(layer, self._chosen[layer], trains)
        return self._chosen[layer]

    def next_backward_experts(self, layer: int) -> list[Key]:
        """Those of the layer whose backward comes next."""
        return self._chosen.get(
            max((earlier for earlier in self._chosen if earlier < layer), default=-1), []
        )[::-1]

    def take(self, key: Key, following: Iterable[Key], returns: bool) -> tuple[Tensor, Tensor, Tensor]:
        """An expert's matrices in its slot; the first of those ``following`` that have none set out for theirs."""
        placed = self._cache.ask(key, returns, self._coming)
        while placed is None:
            self._settle()
            placed = self._cache.ask(key, returns, self._coming)
        slot, was_there = placed
        if not was_there:
            self._coming[key] = self._fetch(key, slot)
        self._note(key, was_there)
        if (coming := self._coming.pop(key, None)) is not None:
            began = time.perf_counter()
            coming.result()
            self.use.waited_seconds += time.perf_counter() - began
        self._prefetch_next(key, following, returns)
        return self._experts[slot].parts

    def _prefetch_next(self, used: Key, following: Iterable[Key], returns: bool) -> None:
        """One at a time is under way: more would only wait for each other."""
        for key in following if self.ahead else ():
            if key not in self._cache and not self._coming:
                placed = self._cache.place(key, returns, (used,))
                if placed is not None:
                    self._coming[key] = self._fetch(key, placed[0])
                return

    def _note(self, key: Key, was_there: bool) -> None:
        if not was_there:
            self.use.misses += 1
        elif key in self._coming:
            self.use.ahead += 1
        else:
            self.use.hits += 1

    def _fetch(self, key: Key, slot: int) -> Future[None]:
        layer, expert = key
        while len(self._experts) <= slot:
            self._experts.append(self._make_slot())
        sources = [matrix[expert] for matrix in self._homes[layer]]
        self.use.fetched_bytes += self.slot_bytes
        targets = self._experts[slot].parts

        def copy() -> None:
            for target, source in zip(targets, sources, strict=True):
                np.copyto(target.numpy(), source.detach().numpy())

        return self._lane.submit(copy, self.slot_bytes)

    def _make_slot(self) -> _Expert:
        gate = next(iter(self._homes.values()))[0]
        width, hidden = gate.shape[1:]
        return _Expert.from_flat(torch.empty(3 * width * hidden, dtype=gate.dtype), width, hidden)

    def _settle(self) -> None:
        for coming in self._coming.values():
            coming.result()
        self._coming.clear()

    def _move_home(self, layer: int, place: int, weight: nn.Parameter) -> Tensor:
        values = weight.detach()
        if self.home == "host":
            return values.clone()
        path = self.folder / f"experts-{os.getpid()}-{layer}-{place}"
        filed = torch.from_file(str(path), shared=True, size=values.numel(), dtype=values.dtype).view_as(
            values
        )
        path.unlink()  # its space is given back whatever ends the rank
        return filed.copy_(values)


def slots_of(parameter: nn.Parameter) -> ExpertSlots | None:
    """Those that an expert's matrices are used in; None of other parameters."""
    slots: ExpertSlots | None = getattr(parameter, "slots", None)
    return slots


class _SlottedProducts(torch.autograd.Function):
    """SwiGLU of each expert on its rows, one after the other; its matrices are asked for again in backward."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sizes: list[int], layer: int, slots: ExpertSlots, *weights: nn.Parameter
    ) -> Tensor:
        chosen, width = slots.chosen_experts(layer, sizes, ctx.needs_input_grad[0]), weights[0].shape[1]
        gates, ups = rows.new_empty(len(rows), width), rows.new_empty(len(rows), width)
        out = torch.empty_like(rows)
        parts = [tensor.split(sizes) for tensor in (rows, gates, ups, out)]
        for place, key in enumerate(chosen):
            gate, up, down = (matrix.to(rows.dtype) for matrix in slots.take(key, chosen[place + 1 :], False))
            x, into_gate, into_up, into = (part[key[1]] for part in parts)
            into_gate.copy_(F.linear(x, gate))
            into_up.copy_(F.linear(x, up))
            into.copy_(F.linear(F.silu(into_gate) * into_up, down))
        ctx.save_for_backward(rows, gates, ups)
        ctx.known = sizes, layer, slots, chosen, [tuple(weight.shape) for weight in weights]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, gates, ups = ctx.saved_tensors
        sizes, layer, slots, chosen, shapes = ctx.known
        of_weights = [rows.new_zeros(shape, dtype=torch.float32) for shape in shapes]
        of_rows = torch.empty_like(rows)
        parts = [tensor.split(sizes) for tensor in (rows, gates, ups, gradient, of_rows)]
        order = [*reversed(chosen), *slots.next_backward_experts(layer)]
        for place, key in enumerate(order[: len(chosen)]):
            gate, up, down = (matrix.to(rows.dtype) for matrix in slots.take(key, order[place + 1 :], True))
            x, a, b, back, into = (part[key[1]] for part in parts)
            share = a.sigmoid()
            active = a * share
            of_hidden = back @ down
            of_gate, of_up = of_hidden * b * (share + active * (1 - share)), of_hidden * active
            for whole, factors in zip(
                of_weights, ((of_gate, x), (of_up, x), (back, active * b)), strict=True
            ):
                whole[key[1]] = factors[0].t() @ factors[1]
            into.copy_(of_gate @ gate + of_up @ up)
        return of_rows, None, None, None, *of_weights
