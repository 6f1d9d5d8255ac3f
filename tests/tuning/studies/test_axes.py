"""Small studies over context and expert parallelism on real gloo ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.session import Session
from tests.support.studies.fake import run_study
from tuning.spec.study_file import parse

BASE: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 128},
    "data": {"sequence_length": 32},
    "batch": {"global_batch": 4, "micro_batch": 2},
    "train": {"steps": 3, "warmup": 1},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Warm ranks for both studies."""
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm


def configs(
    session: Session, folder: Path, base: dict[str, Any], space: dict[str, Any]
) -> list[dict[str, Any]]:
    """What a study over a whole space measured; every trial has to end well."""
    tree = {"name": folder.name, "ranks": 2, "trials": 9, "confirm_repeats": 0, "base": base, "space": space}
    found = run_study(parse(tree), folder, session.execute)
    assert {trial["outcome"] for trial in found["trials"]} == {"completed"}
    assert all(trial["value"] > 0 for trial in found["trials"])
    return [trial["config"] for trial in found["trials"]]


def test_context_parallelism_is_searched(session: Session, tmp_path: Path) -> None:
    space = {"parallel.cp": [1, 2], "parallel.cp_method": ["ring", "ulysses"]}
    tried = configs(session, tmp_path / "context", BASE, space)
    layouts = [(point["parallel.dp"], point["parallel.cp"], point["parallel.cp_method"]) for point in tried]
    assert layouts[0] == (2, 1, "ring")
    assert sorted(layouts[1:]) == [(1, 2, "ring"), (1, 2, "ulysses")]


def test_expert_parallelism_is_searched(session: Session, tmp_path: Path) -> None:
    base = BASE | {"model": BASE["model"] | {"experts": 4}}
    space = {"parallel.ep": [1, 2], "parallel.zero_stage": [0, 3]}
    tried = configs(session, tmp_path / "expert", base, space)
    assert sorted((point["parallel.ep"], point["parallel.zero_stage"]) for point in tried) == [
        *((1, 0), (1, 3)),
        *((2, 0), (2, 3)),
    ]
