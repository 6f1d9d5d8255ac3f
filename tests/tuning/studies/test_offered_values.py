"""Every value that a form offers of any knob runs on real ranks, where it acts; a few are drawn each time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import pytest

from engine.config.knobs.catalogue import acts, deciding_knobs
from engine.config.run_config import RunConfig, parse
from engine.session import Session
from tests.support.drawn import SEED
from tuning.predict.placement.automatic import choose_values
from tuning.space import rounds
from tuning.space.knobs import Knob, offered_space, other_values, parse_space
from tuning.space.points import Point
from tuning.space.space import Space
from tuning.storage.effective_config import Mask, narrow_space

RANKS, DRAWS = 4, 300
SHAPE = {
    "preset": "tiny",
    "layers": 8,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 4,
    "vocabulary": 8192,
    "ffn_hidden": 64,
}
TREE: dict[str, Any] = {
    "data": {"sequence_length": 32}, "batch": {"global_batch": 8, "micro_batch": 1}, "device": "cpu",
    "train": {"steps": 5, "warmup": 1, "validate_every": 2, "validation_batches": 2}, "precision": "bf16",
}  # fmt: skip
DENSE, EXPERTS = parse({"model": SHAPE} | TREE), parse({"model": SHAPE | {"experts": 4}} | TREE)
OF_EXPERTS = ("parallel.ep", "compression.experts", "compression.expert_rate", "compression.expert_residual")
LAYOUT = ("parallel.tp", "parallel.pp", "parallel.cp", "schedule.chunks")


def base_of(key: str) -> RunConfig:
    return EXPERTS if key in OF_EXPERTS else DENSE


@cache
def offered(key: str) -> dict[str, list[Any]]:
    """Of the base at which a knob has something to turn: by knob, all values that a form lists."""
    base = base_of(key)
    listed, rare = offered_space(base, RANKS, in_time=True), other_values(base, RANKS, in_time=True)
    knobs = {name: parse_space({name: values}, base)[0] for name, values in listed.items()}
    return {name: [*knob.grid(), *rare.get(name, [])] for name, knob in knobs.items()}


def values() -> list[tuple[str, Any]]:
    keys = [*offered("parallel.tp"), *OF_EXPERTS]
    return [(key, value) for key in keys for value in offered(key)[key]]


def point_at(key: str, value: Any, random: Random) -> tuple[Space, Point]:
    """A legal point with this value, where it acts if that is possible."""
    base, known = base_of(key), offered(key)
    beside = OF_EXPERTS if key in OF_EXPERTS else (*LAYOUT, *deciding_knobs())
    names = dict.fromkeys(name for name in (*beside, key) if name in known)
    whole = Space(base, RANKS, parse_space({name: known[name] for name in names}, base), choose_values, False)
    space = narrow_space(whole, Mask((Knob(key, (value,)),)))
    points = [
        point for _ in range(DRAWS) if (point := space.random_point(random, set())) and point[key] == value
    ]
    assert points, f"no legal point has {key}={value}"
    acting = [point for point in points if acts(key, space.base_values | point)]
    return whole, random.choice(acting or points)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm


LAYOUTS, GRADIENTS, ROUNDS = ("parallel", "schedule"), ("compression",), ("outer", "overlap")


def in_sections(*sections: str) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in values() if key.partition(".")[0] in sections]


def test_no_value_is_left_out() -> None:
    sections = {key.partition(".")[0] for key, _ in values()}
    assert {*LAYOUTS, *GRADIENTS, *ROUNDS} < sections


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("key", "value"), in_sections(*LAYOUTS), ids=str)
def test_values_of_layouts_run(session: Session, key: str, value: Any) -> None:
    check_run(session, key, value)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("key", "value"), in_sections(*GRADIENTS), ids=str)
def test_values_of_compression_run(session: Session, key: str, value: Any) -> None:
    check_run(session, key, value)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("key", "value"), in_sections(*ROUNDS), ids=str)
def test_values_of_outer_loops_and_overlap_run(session: Session, key: str, value: Any) -> None:
    check_run(session, key, value)


OTHERS = [one for one in values() if one not in in_sections(*LAYOUTS, *GRADIENTS, *ROUNDS)]


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("key", "value"), OTHERS, ids=str)
def test_other_values_run(session: Session, key: str, value: Any) -> None:
    check_run(session, key, value)


def check_run(session: Session, key: str, value: Any) -> None:
    random = Random(zlib.crc32(f"{SEED} {key} {value}".encode()))
    space, point = point_at(key, value, random)
    outcome, summary = session.execute(rounds.lengthen_config(space.config(point)), {}, lambda: False)
    assert outcome.good, (point, outcome)
    assert summary.tokens_per_second, point
    assert summary.losses and all(loss is not None and 0 < loss < 20 for loss in summary.losses), point
