"""An outer method is one entry and one file: a made-up one is legal, offered, on the form, counted, predicted,
documented and trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config.errors import InputError
from engine.config.knobs.catalogue import acts
from engine.config.methods.outer_methods import OUTER_METHODS, OuterMethod
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.footprint.footprint import largest
from engine.footprint.weights import outer_bytes
from engine.parallel.local_sgd.rounds import (
    AppliedAverage,
    FlatVector,
    LoopInput,
    Mean,
    Rounds,
    Vector,
    settings_of,
    vector_values,
)
from engine.rank.worker import train_in_group
from engine.run import run_folder
from profilers.analysis.events import outer_averages
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample
from tests import reference
from tests.support.ranks import on_ranks
from tests.support.runs import small
from tuning.predict.model.cases import cases_of
from tuning.space.knobs import offered_space
from workbench.pages.widgets.forms import field

NAME, PERIOD = "pulled", 2
LAST = list(OUTER_METHODS)[-1]


class PulledLoop:
    """Once a round every replica moves towards the mean and keeps ``mixing`` of its own weights."""

    def __init__(self, given: LoopInput) -> None:
        self._rounds, self._mixing = Rounds(given.rank, given.bring), given.settings.mixing
        self._mean = Mean(FlatVector(given.pieces, given.rank.device), given.link, sharded=False)

    def step(self) -> None:
        if self._rounds.is_over():
            self._move(self._mixing)
            self._rounds.next_round()

    def drain(self) -> None:
        self._rounds.background.finish()

    def finish(self) -> None:
        self._move(0.0)
        self._rounds.report_ready(wait=True)

    def publish_weights(self, anew: bool) -> None:
        pass

    def vectors(self) -> Iterator[Vector]:
        return iter(())

    def counters(self) -> dict[str, Tensor]:
        return {"round": self._rounds.round, "since": self._rounds.since}

    def _move(self, mixing: float) -> None:
        self._mean.buffer = self._mean.flat.copy()
        self._rounds.background.begin(self._mean.work(lambda mean: mean))
        waits = self._rounds.background.finish()
        new_weights = (lambda own, mean: torch.lerp(mean, own, mixing)) if mixing else vector_values
        self._mean.flat.map_weights(self._mean.buffer, new_weights)
        self._rounds.bring()
        number = int(self._rounds.round)
        self._rounds.report(AppliedAverage(number, number, 0, waits))


ENTRY = OuterMethod(
    "0000.00000",
    __name__,
    "PulledLoop",
    fields=("momentum", "mixing"),
    momentum=lambda ranks: 0.1 * ranks,
    step_copies=2,
    overlaps=True,
)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OUTER_METHODS, NAME, ENTRY)


def config(**values: Any) -> RunConfig:
    return small(
        **{"parallel__dp": 2, "outer__method": NAME, "outer__period": PERIOD, "train__steps": 5} | values
    )


def test_without_its_entry_it_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError, match=rf"outer\.method.*'none', 'local'.* or '{LAST}'"):
        parse({"outer": {"method": NAME}})


@pytest.mark.usefixtures("made_up")
def test_it_is_legal_offered_and_on_the_form() -> None:
    assert next(problems(config()), None) is None
    assert next(problems(config(parallel__dp=1))).field == "outer.method"
    assert next(problems(config(overlap__delay=1))).field == "overlap.delay"
    assert next(problems(config(outer__fragments=9)), None) is None, "it has no fragments"
    assert NAME in offered_space(config(), 4)["outer.method"]
    assert NAME in field(RunConfig, "outer.method").options


@pytest.mark.usefixtures("made_up")
def test_its_fields_act_with_it_alone() -> None:
    values = config().flat()
    assert acts("outer.mixing", values)
    assert acts("outer.period", values)
    assert not acts("outer.learning_rate", values)
    assert not acts("outer.fragments", values)


@pytest.mark.usefixtures("made_up")
def test_its_values_memory_and_traffic_are_its_own() -> None:
    settings = settings_of(config())
    assert (settings.momentum, settings.mixing, settings.fragments) == (pytest.approx(0.2), 0.5, 1)
    assert outer_bytes(config(), 100) == 4 * (1 + 2) * 100
    assert largest(config()).total_bytes > largest(config(outer__method="local")).total_bytes
    cases = cases_of([config(), config(outer__method="local")])
    assert (list(cases.late), list(cases.period)) == ([1, 0], [PERIOD, PERIOD])


@pytest.mark.usefixtures("made_up")
def test_it_is_in_the_reference() -> None:
    row = next(line for line in reference.names().splitlines() if line.startswith(f"| `{NAME}` "))
    assert "0000.00000" in row
    assert "`mixing`" in row
    assert f"`{NAME}`" in reference.configuration()


def trained(rank: int, folder: Path, method: str, mixing: float) -> None:
    OUTER_METHODS[NAME] = ENTRY
    chosen = config(outer__method=method, outer__mixing=mixing)
    train_in_group(rank, chosen, folder, torch.device("cpu"), None)


@pytest.mark.usefixtures("made_up")
def test_it_trains_and_its_rounds_are_seen(tmp_path: Path) -> None:
    losses = {}
    for method, mixing in (("local", 0.5), (NAME, 0.0), (NAME, 0.5)):
        chosen = config(outer__method=method, outer__mixing=mixing)
        folder = run_folder.create(tmp_path / f"{method}-{mixing}", chosen, {})
        on_ranks(2, trained, folder, method, mixing)
        records = RunRecords(folder / run_folder.RECORDS)
        steps: list[StepSample] = records.table(1, "step").rows()  # type: ignore[assignment]
        losses[method, mixing] = [step.loss for step in steps]
        if method == NAME:
            rounds = [average.round for average in outer_averages(records, 0)]
            assert rounds[:-1] == list(range(config().train.steps // PERIOD))
    assert losses[NAME, 0.0] == losses["local", 0.5], "it goes on from the mean, as local SGD does"
    assert losses[NAME, 0.5] != losses["local", 0.5]
