"""A study of a command, on real processes: an ordinary study, from the command as it is to one with other values."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest

from engine.config.errors import InputError
from engine.run import run_folder
from tests.support.foreign import printing
from tuning.execution.command.trial import CommandTrials
from tuning.report.study_result import StudyResult
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES, StudyReader
from tuning.study import run_study
from workbench.analysis import studies
from workbench.export.launchers import command as export
from workbench.home import runs


def study(out: Path, **changes: Any) -> StudyFile:
    """Megatron's options: 4 is the best micro-batch, 3 does not divide, 16 the trainer refuses."""
    command = (
        f"{sys.executable} {printing.__file__} --prints megatron --num-layers 2 --micro-batch-size 2 --out {out} "
        "--global-batch-size 16 --seq-length 32"
    )
    tree: dict[str, Any] = {
        "name": "planted",
        "trials": 6,
        "confirm_runners_up": 0,
        "trainer": {"command": command, "directory": str(out.parent)},
        "base": {"train": {"steps": 10, "warmup": 2}},
        "space": {"trainer.micro_batch": [1, 2, 3, 4, 8]},
    }
    return parse(tree | changes)


def tune(home: Path, file: StudyFile) -> StudyResult:
    folder = home / STUDIES / file.name
    return run_study(file, folder, CommandTrials(home, file))


@pytest.mark.timeout(120)
def test_it_begins_with_the_command_as_it_is_and_finds_the_planted_best(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    file = study(out)
    result = tune(home, file)
    assert result.state == "ended" and result.best is not None and result.baseline is not None
    assert result.trials[0].config["trainer.micro_batch"] == 2 and result.trials[0].source == "baseline"
    assert result.best.config["trainer.micro_batch"] == 4
    # Megatron's own line says what a step took: 20 and 8 ms, so 16 x 32 tokens in them.
    assert result.baseline.value == pytest.approx(16 * 32 / printing.SECONDS[2], rel=1e-6)
    assert result.best.value == pytest.approx(16 * 32 / printing.SECONDS[4], rel=1e-6)
    assert result.gain is not None and result.gain.verdict == "better", result.gain
    assert 3 not in {trial.config["trainer.micro_batch"] for trial in result.trials}
    assert result.confirmation_rounds is not None

    theirs = optuna.load_study(study_name=None, storage=f"sqlite:///{home / STUDIES / file.name}/optuna.db")
    best = max(theirs.trials, key=lambda one: one.value or 0.0)
    assert best.params == {"rank of trainer.micro_batch": 3}  # of 1, 2, 3, 4, 8, from 0 on

    document = studies.document(home / STUDIES / file.name)
    assert document.command is not None and file.command is not None
    assert document.command.today == file.command.today.text
    assert document.command.best == file.command.today.text.replace(
        "--micro-batch-size 2", "--micro-batch-size 4"
    )
    assert document.as_dict()["command"]["trainer"] == "Megatron-LM"

    view = runs.load(home / result.best.run)
    bundle = export.render(view, document)
    (tmp_path / "run.sh").write_text(bundle.files["run.sh"])
    subprocess.run(
        ["bash", str(tmp_path / "run.sh"), "--steps", "1"], check=True, capture_output=True, timeout=60
    )
    argv = json.loads((out / "argv-0.json").read_text())["argv"]
    assert shlex.join(argv) == document.command.best.partition("printing.py ")[2] + " --steps 1"


@pytest.mark.timeout(120)
def test_the_same_file_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    short = study(tmp_path / "out", trials=2, confirm_repeats=0)
    before = tune(home, short)
    again = tune(home, study(tmp_path / "out", trials=4, confirm_repeats=0))
    assert [trial.run for trial in again.trials[:2]] == [trial.run for trial in before.trials]
    assert len(again.trials) == 4
    # Whoever reads it elsewhere finds the same study: what the command said is written out.
    file = StudyReader(home / STUDIES / short.name).view().file
    assert file is not None and file.fingerprint() == short.fingerprint()
    assert file.trainer is not None and file.trainer.kind == "megatron"
    assert not again.space_note  # its ranks are the trainer's own: it is not said to have one


@pytest.mark.timeout(120)
def test_without_tokens_it_aims_at_the_time_of_a_step_and_races_in_steps(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = f"{sys.executable} {printing.__file__} --size 4"
    changes: dict[str, Any] = {
        "trainer": {"command": command},
        "space": {"trainer.size": [4, 1, 2]},
        "base": {"train": {"steps": 30, "warmup": 2}},
        "confirm_repeats": 0,
    }
    result = tune(home, study(tmp_path, **changes))
    assert result.objective == "step_seconds" and result.best is not None and result.baseline is not None
    assert result.best.config["trainer.size"] == 4
    assert result.baseline.measures["step_seconds"].value == pytest.approx(printing.SECONDS[4], rel=1e-6)
    assert result.baseline.measures["tokens_per_second"].value is None
    pruned = [trial for trial in result.trials if trial.outcome == "pruned"]
    assert pruned and all("steps/s against at least" in str(trial.reason) for trial in pruned)
    assert not any("tokens" in str(trial.reason) for trial in pruned)


@pytest.mark.timeout(120)
def test_a_baseline_that_is_refused_leaves_no_trial(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = study(tmp_path / "out", trainer={"command": f"{sys.executable} {printing.__file__} --wrong --size 4"},
                 space={"trainer.size": [2, 4]})  # fmt: skip
    with pytest.raises(InputError, match="unrecognized arguments: --wrong"):
        tune(home, file)
    assert not StudyReader(home / STUDIES / file.name).view().journal.trials
    (run,) = [path for path in home.iterdir() if path.name != STUDIES]
    assert run_folder.RunStatus.from_folder(run).state == "ended"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranks": 2}, ("ranks", "the trainer's own")),
        ({"objective": "mfu"}, ("objective", "tokens_per_second")),
        ({"objective": "tokens_per_second", "trainer": {"command": "python t.py --size 1"},
          "space": {"trainer.size": [1, 2]}}, ("objective", "not known of this command", "step_seconds")),
        ({"space": {"parallel.tp": [1, 2]}}, ("space.parallel.tp", "trainer.NAME")),
        ({"side_by_side": 2}, ("side_by_side", "one trial runs at a time")),
        ({"budget": {"gpu_hours": 1.0}}, ("budget.gpu_hours",)),
        ({"live": {}}, ("live", "one trial runs at a time")),
        ({"trainer": {"command": "python t.py"}, "space": None}, ("space", "nothing is known to turn")),
        ({"trainer": {"command": "python t.py", "kind": "abacus"}}, ("trainer.kind", "megatron")),
        ({"trainer": {"command": "python t.py", "steps": {}}}, ("trainer.steps", "give one of")),
        ({"trainer": {"command": "python t.py", "steps": {"pattern": "step"}}}, ("trainer.steps.pattern", "(?P<step>")),
        ({"trainer": {"command": "python t.py", "steps": {"pattern": "("}}}, ("trainer.steps.pattern", "no pattern")),
        ({"trainer": {"command": "python t.py | tee log"}}, ("trainer.command", "without a shell")),
        ({"trainer": {"command": "python 't.py"}}, ("trainer.command", "close every quote")),
        ({"trainer": {"command": " "}}, ("trainer.command", "is empty")),
        ({"trainer": {"command": "python t.py ${argz}"}}, ("trainer.command", "${argz}", "no macro")),
        ({"trainer": {"command": "torchrun --nnodes 2 t.py"}}, ("trainer.command", "one host alone")),
        ({"trainer": {}}, ("trainer.command", "missing")),
        ({"trainer": "python t.py"}, ("trainer=", "a section")),
        ({"trainer": {"command": "python t.py", "directory": 5}}, ("trainer.directory=5", "text")),
        ({"trainer": {"command": "python t.py", "arguments": [1]}}, ("trainer.arguments", "a section")),
        ({"trainer": {"command": "python t.py", "arguments": {"a": 3}}}, ("trainer.arguments.a=3", "text")),
        ({"trainer": {"command": "python t.py\0"}}, ("trainer.command", "NUL")),
        ({"trainer": {"command": "deepspeed t.py --deepspeed_config none.json"}, "space": None},
         ("none.json", "cannot be read here as a JSON object")),
        ({"base": [1]}, ("base=[1]", "a section")),
        ({"base": {"train": 5}}, ("base.train=5", "a section")),
        ({"base": {"trainer": 5}}, ("base.trainer=5", "a section")),
        ({"space": [1]}, ("space=[1]", "a section")),
        ({"space": {"trainer.micro_batch": 4}}, ("space.trainer.micro_batch=4", "a list of values")),
        ({"space": {"trainer.micro_batch": []}}, ("space.trainer.micro_batch=[]", "a list of values")),
        ({"space": {"trainer.micro_batch": [[2], 4]}}, ("space.trainer.micro_batch=[2]", "no plain value")),
        ({"space": {"trainer.x": [1.0, float("inf")]}}, ("space.trainer.x=inf", "no plain value")),
        ({"space": {"trainer.": [1, 2]}}, ("space.trainer.=", "names no option")),
        ({"space": {"trainer.a-b": [1, 2], "trainer.a_b": [1, 2]}}, ("space.trainer.a_b", "rename one")),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_of_a_command_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with pytest.raises(InputError) as caught:
        study(tmp_path / "out", **changes)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
