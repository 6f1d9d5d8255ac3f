"""``train --resume``: what it takes, what it refuses, and how checkpoints are shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from engine.checkpoint import checkpoint_folder
from engine.config.run_config import RunConfig, parse
from engine.lifecycle import finish
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.records.writer import RecordWriter
from tests.support.engine.checkpoints import made_up
from tests.workbench.commands.test_train import FakeSession, session
from tests.workbench.conftest import Furnished, Run
from workbench.home import runs
from workbench.terminal.run import print_run

__all__ = ["session"]

CONFIG = parse({"train": {"learning_rate": 1e-3}, "parallel": {"dp": 2}})


@pytest.fixture
def saved(home: Path) -> Path:
    """A run folder with two checkpoints."""
    run = run_folder.create(home, CONFIG, {})
    made_up(run, CONFIG, 4, a="older")
    made_up(run, CONFIG, 8, a="some", b="thing")
    return run


def test_a_run_is_continued_by_its_id_its_end_or_its_folder(
    command: Run, session: type[FakeSession], saved: Path
) -> None:
    expected = str(saved / "checkpoints" / "step-000008")
    for text in (saved.name, saved.name[-4:], saved, expected):
        done = command("train", "run.yaml", "parallel.tp=2", "--resume", text, "--json")
        assert (done.code, done.document["config"]["train"]["resume"]) == (0, expected), done
    done = command("train", "run.yaml", f"train.resume={saved}", "--json")
    assert done.document["config"]["train"]["resume"] == expected
    older = saved / "checkpoints" / "step-000004"
    done = command("train", "run.yaml", "--resume", older, "--json")
    assert done.document["config"]["train"]["resume"] == str(older)


def test_without_the_pointer_the_newest_checkpoint_is_the_last_one(
    command: Run, session: type[FakeSession], saved: Path
) -> None:
    for pointer in ("", "step-000099\n", None):
        path = saved / "checkpoints" / checkpoint_folder.LAST
        path.unlink() if pointer is None else path.write_text(pointer)
        done = command("train", "run.yaml", "--resume", saved.name, "--json")
        assert done.document["config"]["train"]["resume"].endswith("step-000008")


def test_what_cannot_be_continued_is_refused_in_one_line(
    command: Run, session: type[FakeSession], saved: Path, home: Path
) -> None:
    before = sorted(home.iterdir())
    resume = ("train", "run.yaml", "--resume", saved.name)
    command("train", "run.yaml", "--resume", "nothing").refused("nothing", saved.name)
    command(*resume, "train.steps=8").refused("train.steps=8", "8 steps behind it", "give more")
    command(*resume, "model.layers=2", "model.experts=4", "model.hidden=128").refused(
        "another model",
        "model.layers is 4 there and 2 here",
        "model.hidden is 160 there and 128 here",
        "model.experts is None there and 4 here",
        "take its model section",
    )
    shutil.rmtree(saved / "checkpoints")
    command(*resume).refused(str(saved), "holds no checkpoint", "checkpoint.every_steps")
    assert sorted(home.iterdir()) == before


def test_a_study_is_not_a_run(command: Run, session: type[FakeSession], own_home: Furnished) -> None:
    study = next(path for path in (own_home.home / "studies").iterdir() if path.is_dir())
    command("train", "run.yaml", "--resume", study.name).refused("is a study", "one of its runs")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("b", None, "b is missing"),
        ("b", "th", "b has 2 of 5 bytes"),
        (checkpoint_folder.MANIFEST, "{", "description is not readable"),
        (checkpoint_folder.MANIFEST, '{"step": 8}', "description is not readable"),
        (checkpoint_folder.MANIFEST, None, "description is not readable"),
        (
            checkpoint_folder.MANIFEST,
            '{"step": 8, "model": {}, "config": {}, "files": {"b": 5}}',
            "not readable",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_older_one_named(
    command: Run, session: type[FakeSession], saved: Path, name: str, text: str | None, words: str
) -> None:
    path = saved / "checkpoints" / "step-000008" / name
    path.unlink() if text is None else path.write_text(text)
    older = saved / "checkpoints" / "step-000004"
    command("train", "run.yaml", "--resume", saved.name).refused("damaged", words, f"resume from {older}")
    (older / "a").unlink()
    command("train", "run.yaml", "--resume", saved.name).refused(words, "no other one")


def test_checkpoints_are_shown(command: Run, home: Path) -> None:
    folder = finished(home, CONFIG)
    console = Console(record=True, width=200)
    print_run(console, runs.load(folder))
    text = console.export_text()
    assert "step 4 of 20260101-000000-abcd; differs in train.seed" in text
    assert "1 saved, the last before step 8" in text
    assert "training waited 250.0 ms" in text
    assert "the checkpoint before step 12: No space left on device" in text
    document = command("show", folder.name, "--json").document
    assert [row["step"] for row in document["checkpoints"]] == [8, 12]
    assert document["checkpoints"][1]["problem"] == "No space left on device"
    assert document["resumed"]["changed"] == {"train.seed": [0, 1]}


def finished(home: Path, config: RunConfig) -> Path:
    """A run folder with the events of a save, of one that failed, and of one that is not readable."""
    folder = run_folder.create(home, config, {})
    with RecordWriter(folder / run_folder.RECORDS, "rank-0") as writer:
        origin = {"run": "20260101-000000-abcd", "step": 4, "folder": "x", "seconds": 0.5}
        writer.event("resumed", **origin, changed={"train.seed": [0, 1]})
        times = {"seconds": 1.5, "paused_seconds": 0.125, "asynchronous": True}
        writer.event("checkpoint", step=8, bytes=4_200_000, problem=None, **times)
        writer.event("checkpoint", step="nine", **times)
        writer.event("checkpoint", step=12, bytes=None, problem="No space left on device", **times)
    finish(folder, config, "gloo", RunOutcome(Ending.COMPLETED))
    return folder
