"""A made-up method that carries state and has a parameter: by element, each rank's own, and one of a shape. A resumed
run goes on with all of it, and so does a method that is made anew between two steps.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Message, Method, MethodInput, MethodState, Reduction, content_of
from engine.compression.randomness import RandomStreams
from engine.config.compression import Settings, settings_of
from engine.config.methods.compression_methods import COMPRESSION_METHODS, CompressionMethod
from engine.config.run_config import RunConfig
from engine.footprint.footprint import largest
from engine.rank.worker import train_in_group
from engine.run import run_folder
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample
from tests.support.ranks import on_ranks
from tests.support.runs import small
from tuning.predict.model.cases import reduce_bytes

NAME, VELOCITY, SHARE, LARGEST = "heavy", "velocity", "share", "largest"
SAVED, STEPS = 3, 6


class Heavy(Method):
    """The average and what it was before (VELOCITY), less what this rank saw (SHARE), by the largest value yet."""

    def __init__(self, inputs: MethodInput) -> None:
        width = int(inputs.settings.parameters["bucket_values"] or 0)
        self._link, self._decay, self._width = inputs.link, 4 / width, width // 4
        self._parts = [part for span in inputs.partition.spans for part in span.parts]
        self._kept: dict[tuple[str, str], Tensor] = {}
        for part in self._parts:
            for kind, length in ((VELOCITY, part.count), (SHARE, part.count), (LARGEST, self._width)):
                key = kind, part.name
                self._kept[key] = inputs.carried.setdefault(key, inputs.content.flat.new_zeros(length))

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        for part in self._parts:
            own = self._kept[SHARE, part.name]
            own.lerp_(values[part.start : part.stop], 0.5)
            flat[part.start : part.stop] = values[part.start : part.stop] + 0.1 * own
        yield self._link.all_reduce(flat.div_(self._link.size))
        for part in self._parts:
            average, velocity = flat[part.start : part.stop], self._kept[VELOCITY, part.name]
            most = self._kept[LARGEST, part.name]
            most.clamp_(min=float(average.abs().max()))
            velocity.mul_(self._decay).add_(average)
            average.copy_(velocity / (1 + most[0]))

    def messages(self) -> list[Message]:
        return [self._link.reduce_message(sum(part.count for part in self._parts), 4)]

    def state(self) -> list[MethodState]:
        return [
            state
            for part in self._parts
            for state in (
                MethodState(part, VELOCITY, self._kept[VELOCITY, part.name]),
                MethodState(part, SHARE, self._kept[SHARE, part.name], differs_by_rank=True),
                MethodState(part, LARGEST, self._kept[LARGEST, part.name], shape=(self._width,)),
            )
        ]


ENTRY = CompressionMethod(
    "0000.00000",
    __name__,
    "Heavy",
    value=32,
    wire_bytes=lambda traffic: 4.0 + float(traffic.parameters["bucket_values"] or 0),
    message_bytes=lambda traffic: 8.0 + float(traffic.parameters["bucket_values"] or 0),
    fields=("bucket_values",),
    uses_error_feedback=False,
)


class Forgetful(Heavy):
    """Saves nothing of one kind."""

    forgotten = ""

    def state(self) -> list[MethodState]:
        return [state for state in super().state() if state.kind != self.forgotten]


def without(kind: str) -> type[Forgetful]:
    return type("Without", (Forgetful,), {"forgotten": kind})


WITHOUT = {kind: without(kind) for kind in (VELOCITY, SHARE, LARGEST)}
globals().update({f"Without_{kind}": made for kind, made in WITHOUT.items()})


def config(**values: Any) -> RunConfig:
    given = {
        "parallel__dp": 2, "compression__method": NAME, "compression__start_step": 0,
        "compression__bucket_values": 8, "train__steps": STEPS,
    }  # fmt: skip
    return small(**{**given, **values})


def trained(rank: int, folder: Path, asked: RunConfig, build: str) -> None:
    COMPRESSION_METHODS[NAME] = replace(ENTRY, build=build)
    train_in_group(rank, asked, folder, torch.device("cpu"), None)


def losses_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, build: str = "Heavy", **values: Any
) -> list[float]:
    monkeypatch.setitem(COMPRESSION_METHODS, NAME, ENTRY)
    asked = config(**values)
    made = run_folder.create(folder, asked, {})
    on_ranks(asked.parallel.dp * asked.parallel.tp, trained, made, asked, build)
    steps: list[StepSample] = RunRecords(made / run_folder.RECORDS).table(0, "step").rows()  # type: ignore[assignment]
    return [step.loss for step in steps]


def resumed_after(monkeypatch: pytest.MonkeyPatch, folder: Path, build: str, **values: Any) -> list[float]:
    saving = {"train__steps": SAVED, "checkpoint__every_steps": SAVED}
    losses_of(monkeypatch, folder / "saving", build, **saving, **values)
    (saved,) = (folder / "saving").iterdir()
    return losses_of(monkeypatch, folder / "resumed", build, train__resume=str(saved), **values)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", [{}, {"parallel__tp": 2}], ids=["dp2", "dp2 tp2"])
def test_a_resumed_run_goes_on_with_every_kind_of_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layout: dict[str, int]
) -> None:
    straight = losses_of(monkeypatch, tmp_path / "straight", **layout)
    assert resumed_after(monkeypatch, tmp_path, "Heavy", **layout) == straight[SAVED:]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", WITHOUT)
def test_each_kind_matters_to_the_losses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    straight = losses_of(monkeypatch, tmp_path / "straight")
    resumed = resumed_after(monkeypatch, tmp_path, f"Without_{kind}")
    assert resumed[0] == straight[SAVED]
    assert resumed[1:] != straight[SAVED + 1 :]


def test_ranks_of_another_number_start_it_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What each rank has of its own cannot be dealt out again; the run goes on all the same."""
    saving = {"train__steps": SAVED, "checkpoint__every_steps": SAVED}
    losses_of(monkeypatch, tmp_path / "saving", **saving)
    (saved,) = (tmp_path / "saving").iterdir()
    losses = losses_of(monkeypatch, tmp_path / "resumed", train__resume=str(saved), parallel__dp=4)
    assert len(losses) == STEPS - SAVED


def test_only_state_of_another_shape_starts_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saving = {"train__steps": SAVED, "checkpoint__every_steps": SAVED}
    losses_of(monkeypatch, tmp_path / "saving", **saving)
    (saved,) = (tmp_path / "saving").iterdir()
    wider = {"compression__bucket_values": 16, "train__resume": str(saved)}
    losses = losses_of(monkeypatch, tmp_path / "resumed", **wider)
    forgetful = losses_of(monkeypatch, tmp_path / "forgetful", f"Without_{VELOCITY}", **wider)
    assert len(losses) == len(forgetful) == STEPS - SAVED
    assert losses[1:] != forgetful[1:], "the velocity was taken up"


def carried_on(rank: int, turned: bool) -> list[float]:
    """Two reductions of the same bucket; between them, maybe, the method is made anew in another bucket."""
    COMPRESSION_METHODS[NAME] = ENTRY
    assert dist.group.WORLD is not None
    shapes = {"a": (4, 8), "b": (8,)}
    settings = Settings(NAME, 32, error_feedback=False, parameters={"bucket_values": 8})
    compressor = GradientCompressor(settings, dist.group.WORLD, 0, lambda: 5, torch.device("cpu"))
    before = [content_of(0, torch.zeros(40), shapes)]
    after = [content_of(number, torch.zeros(size), {name: shapes[name]})
             for number, (name, size) in enumerate({"b": 8, "a": 32}.items())]  # fmt: skip
    for contents in (before, after if turned else before):
        for content in contents:
            for part in content.parts:
                content.flat[part.start : part.stop] = torch.arange(part.count) * (rank + 1.0)
            for waited in compressor.reduce(content):
                waited.wait()
        if turned and contents is before:
            compressor.use(replace(settings, start_step=1))
            compressor.move(before, after)
    found = {
        part.name: content.flat[part.start : part.stop].tolist()
        for content in (after if turned else before)
        for part in content.parts
    }
    return [*found["a"], *found["b"]]


def test_a_method_that_is_made_anew_takes_up_what_it_carried() -> None:
    assert on_ranks(2, carried_on, True) == on_ranks(2, carried_on, False)


def test_its_parameter_reaches_its_code_its_bytes_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPRESSION_METHODS, NAME, ENTRY)
    few, many = config(), config(compression__bucket_values=16)
    assert settings_of(few.compression).parameters == {"bucket_values": 8}
    assert reduce_bytes(many) - reduce_bytes(few) == 8
    assert largest(many).total_bytes > largest(few).total_bytes


def test_state_of_a_shape_is_the_same_on_every_rank() -> None:
    part = content_of(0, torch.zeros(4), {"a": (4,)}).parts[0]
    with pytest.raises(AssertionError, match="has a shape and differs by rank"):
        MethodState(part, LARGEST, torch.zeros(2), shape=(2,), differs_by_rank=True)
