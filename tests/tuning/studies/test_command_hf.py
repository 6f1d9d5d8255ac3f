"""A study of Hugging Face's real Trainer on two gloo ranks, in an environment of its own, and how its trials end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from engine.run.outcome import Ending
from tests.support import foreign
from tests.support.trainers import environments
from tuning.execution.command.trial import CommandTrials
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.home import runs

SCRIPT = Path(next(iter(foreign.__path__))) / "hf_train.py"
ARGUMENTS = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --use_cpu --max_steps 100000"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def torchrun() -> str:
    """The launcher in an environment that has transformers and accelerate."""
    return f"{environments.made('hf')} -m torch.distributed.run"


def study(torchrun: str, home: Path, more: str = "", before: str = "", **changes: Any) -> StudyFile:
    output = home.parent / "output"
    command = f"{before}{torchrun} --standalone --nproc-per-node 2 {SCRIPT} {ARGUMENTS} --output_dir {output} {more}"
    base = {"train": {"steps": 14, "warmup": 4, "step_timeout_seconds": 20.0}}
    return parse({"name": "hf", "trainer": {"command": command.strip()}, "base": base} | changes)


def left() -> list[int]:
    """Processes of the script."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(SCRIPT) in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_from_the_command_to_one_that_is_told_apart(torchrun: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    space = {"trainer.micro_batch": [1, 2, 8], "trainer.recompute": [False, True]}
    budget = {"wall_seconds": 600}  # on a busy machine fewer steps are measured, and fewer rounds
    file = study(torchrun, home, space=space, trials=4, confirm_repeats=4, budget=budget)
    assert file.command is not None and file.command.kind.name == "hf"
    result = run_study(file, home / STUDIES / file.name, CommandTrials(home, file))
    assert result.state == "ended" and result.best is not None and result.baseline is not None
    assert result.baseline.label.startswith("micro_batch=2")
    assert result.gain is not None and result.gain.verdict in ("better", "equal", "undecided")
    summary = runs.load(home / result.best.run).summary
    assert summary is not None and summary.measured_steps
    assert summary.world_size == 2 and summary.layout["ranks"] == 2
    assert not [note for note in summary.notes if "did not get" in note]
    assert not (tmp_path / "output").exists()  # trials write nothing where the training does
    assert not left()


def test_the_time_of_a_step_is_that_of_the_trainer(torchrun: str, tmp_path: Path) -> None:
    """Its own clock beside ours, which sees lines come in; both medians, as either may be held up now and then."""
    home, noted = tmp_path / "home", tmp_path / "times"
    file = study(torchrun, home, before=f"STEP_TIMES={noted} ", space={"trainer.recompute": [False, True]})
    outcome, summary = CommandTrials(home, file)(file.config, {"purpose": "sampler"}, lambda: False)
    assert outcome.ending is Ending.COMPLETED and summary.step_seconds is not None
    ends = [float(line) for line in noted.read_text().split()][3:14]
    theirs = median(after - before for before, after in pairwise(ends))
    assert summary.step_seconds.median == pytest.approx(theirs, rel=0.15)


def test_accelerate_s_launcher_starts_it_as_well(torchrun: str, tmp_path: Path) -> None:
    python, home = torchrun.partition(" ")[0], tmp_path / "home"
    launch = f"{python} -m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1"
    command = f"{launch} --mixed_precision no --dynamo_backend no {SCRIPT} {ARGUMENTS} --output_dir {tmp_path / 'out'}"
    base = {"train": {"steps": 8, "warmup": 3, "step_timeout_seconds": 20.0}}
    file = parse({"name": "acc", "trainer": {"command": command}, "base": base,
                  "space": {"trainer.micro_batch": [2, 4]}})  # fmt: skip
    assert file.command is not None and file.command.kind.name == "hf"
    config = file.config.with_values({"trainer.micro_batch": 4})
    outcome, summary = CommandTrials(home, file)(config, {"purpose": "sampler"}, lambda: False)
    assert outcome.ending is Ending.COMPLETED and summary.measured_steps == 5
    assert summary.world_size == 2 and summary.layout["ranks"] == 2
    assert not [note for note in summary.notes if "did not get" in note]
    assert not left()


@pytest.mark.parametrize(
    ("bad", "more", "ending", "rank", "words"),
    [
        ("kill", "", Ending.CRASHED, 1, "rank 1 was killed by SIGKILL, after"),
        ("hang", "", Ending.HANG, None, "told of no step for 20 s, after 6 steps"),
        ("stop", "", Ending.HANG, 1, "rank 1 is stopped"),
        ("oom", "", Ending.OOM, None, "can't allocate memory"),
        ("", "--no_such_argument 3", Ending.ILLEGAL, None, "--no_such_argument"),
        ("", "--per_device_train_batch_size 2.5", Ending.ILLEGAL, None, "invalid int value: '2.5'"),
    ],
)
def test_a_trial_of_it_ends_as_what_it_is(
    torchrun: str, tmp_path: Path, bad: str, more: str, ending: Ending, rank: int | None, words: str
) -> None:
    home = tmp_path / "home"
    file = study(
        torchrun, home, more, f"BAD={bad} " if bad else "", space={"trainer.recompute": [False, True]}
    )
    outcome, _ = CommandTrials(home, file)(file.config, {"purpose": "sampler"}, lambda: False)
    assert (outcome.ending, words in outcome.reason) == (ending, True), outcome
    if rank is not None:
        assert outcome.rank == rank
    assert not left()
