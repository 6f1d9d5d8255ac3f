"""Trials of a command: real processes that tell of their steps as trainers do, and end in every way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.outcome import EarlyEnd, Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from tests.support.foreign import printing
from tests.support.waiting import wait_until
from tuning.execution.command.process import _GUARD, MARK
from tuning.execution.command.trial import CommandTrials
from tuning.spec.study_file import StudyFile, parse
from workbench.home import runs
from workbench.text import words

pytestmark = pytest.mark.drawn(12, of="trials of a command")

#: Two gloo ranks that tell of their steps by our two lines; what they print is wrong on purpose.
_TWO_LINES = """
import sys, time
import torch.distributed as dist
import profilers

dist.init_process_group("gloo")
size = int(sys.argv[sys.argv.index("--micro-batch-size") + 1])
with profilers.recording() as recorded:
    for step in range(1000):
        time.sleep(0.02)
        dist.barrier()
        recorded.step(loss=float(size * 10 + step + 100 * dist.get_rank()))
        print(f"step: {step} 9.0 s", flush=True)
"""
SCRIPT = f"{sys.executable} {printing.__file__}"


def study(arguments: str, **changes: Any) -> StudyFile:
    tree: dict[str, Any] = {
        "name": "s",
        "trainer": {"command": f"{SCRIPT} {arguments}"},
        "base": {"train": {"steps": 6, "warmup": 2, "step_timeout_seconds": 20.0}},
        "space": {"trainer.micro_batch_size": [2, 4]},
    }
    return parse(tree | changes)


def run(
    home: Path,
    file: StudyFile,
    purpose: str = "sampler",
    should_stop: Callable[[], Any] = lambda: False,
    **values: Any,
) -> tuple[RunOutcome, RunSummary]:
    config = file.config.with_values({f"trainer.{name}": value for name, value in values.items()})
    return CommandTrials(home, file)(config, {"study": "s", "trial": "0", "purpose": purpose}, should_stop)


def left(home: Path) -> list[str]:
    """Command lines of all that a trial of this home started and that lives yet."""
    runs = {path.name for path in home.iterdir()}
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) in runs and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def only_run(home: Path) -> Path:
    (found,) = home.iterdir()
    return found


@pytest.mark.parametrize(
    ("prints", "kind"),
    [(name, name) for name in ("megatron", "torchtitan", "deepspeed", "hf", "accelerate", "generic")]
    + [("json", "generic"), ("ours", "generic")],
)
def test_steps_are_read_as_each_trainer_tells_of_them(tmp_path: Path, prints: str, kind: str) -> None:
    home = tmp_path / "home"
    trainer = {"command": f"{SCRIPT} --lenient --prints {prints} --micro-batch-size 4", "kind": kind}
    outcome, summary = run(home, study("", trainer=trainer))
    assert outcome == RunOutcome(Ending.COMPLETED)
    assert summary.measured_steps == 4 and len(summary.losses) == 6
    if prints in ("megatron", "generic", "json", "ours"):  # they tell the time themselves
        assert summary.step_samples == pytest.approx([printing.SECONDS[4]] * 4, rel=1e-3)
        assert summary.step_seconds is not None
        assert summary.step_seconds.mean == pytest.approx(printing.SECONDS[4], rel=1e-3)
    else:  # no step is shorter than it sleeps, in the mean
        assert all(seconds > 0 for seconds in summary.step_samples)
    if prints in ("megatron", "torchtitan", "json"):  # of step n it is 3 / n
        steps = [3.0 / loss for loss in summary.losses]
        assert steps == pytest.approx([round(step) for step in steps], rel=1e-3) and steps == sorted(steps)
    assert summary.tokens_per_second is None
    assert "tokens of a step" in str(summary.tokens_per_second_reason)
    assert run_folder.RunStatus.from_folder(only_run(home)).state == "ended"
    assert not left(home)


def test_a_file_of_json_lines_is_read_from_where_it_stood(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "metrics.jsonl").write_text('{"n": 999, "took": 5.0}\n')
    steps = {"file": "out/*.jsonl", "step": "n", "seconds": "took"}
    trainer = {
        "command": f"{SCRIPT} --prints file --out {out} --micro-batch-size 2",
        "directory": str(tmp_path),
        "steps": steps,
    }
    _, summary = run(tmp_path / "home", study("", trainer=trainer))
    assert summary.step_samples == [printing.SECONDS[2]] * 4


def test_the_two_lines_of_a_script_are_heard(tmp_path: Path) -> None:
    """Of rank 0, and in place of what it prints."""
    script = tmp_path / "train.py"
    script.write_text(_TWO_LINES)
    ranks = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
    trainer = {"command": f"{ranks} {script} --micro-batch-size 2"}
    base = {"train": {"steps": 6, "warmup": 2, "step_timeout_seconds": 60.0}}
    outcome, summary = run(tmp_path / "home", study("", trainer=trainer, base=base), micro_batch_size=4)
    assert outcome == RunOutcome(Ending.COMPLETED), outcome
    assert summary.losses == [40.0, 41.0, 42.0, 43.0, 44.0, 45.0]
    assert summary.measured_steps == 4 and all(0.02 <= one < 9 for one in summary.step_samples)
    assert wait_until(lambda: not left(tmp_path / "home"))


def test_the_trial_has_its_values_and_its_records(tmp_path: Path) -> None:
    out, home = tmp_path / "out", tmp_path / "home"
    file = study(
        f"--out {out} --micro-batch-size 2 --ranks 2 --prints megatron --num-layers 2 --global-batch-size 8"
    )
    run(home, file, micro_batch_size=4)
    for rank in range(2):
        argv = json.loads((out / f"argv-{rank}.json").read_text())["argv"]
        assert argv[argv.index("--micro-batch-size") + 1] == "4"
        assert argv[argv.index("--log-interval") + 1] == "1"
    folder = only_run(home)
    assert json.loads((folder / "trainer" / "values.json").read_text())["values"] == {"micro_batch_size": 4}
    assert "elapsed time per iteration" in (folder / "logs" / "trainer.log").read_text()
    assert (
        RunRecords(folder / "records").table(0, "step").column("measured").tolist()
        == [False] * 2 + [True] * 4
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["world_size"], summary["layout"]["ranks"]) == (2, 2)  # its launcher is none that is known
    view = runs.load(folder)
    assert (view.status.world_size, words.layout(view.layout)) == (2, "2 ranks")
    notes = summary["notes"]
    assert not [note for note in notes if "did not get" in note]


def test_a_rank_that_did_not_get_the_values_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = study(
        "--micro-batch-size 2 --ranks 2 --forgets --lenient", base={"train": {"steps": 80, "warmup": 2}}
    )
    _, summary = run(home, file, micro_batch_size=77)
    assert [note for note in summary.notes if "rank 1 did not get 77" in note]
    assert not [note for note in summary.notes if "rank 0 did not get" in note]


@pytest.mark.parametrize(
    ("arguments", "ending", "words"),
    [
        ("--ends oom --after 4", Ending.OOM, "can't allocate memory"),
        ("--ends oom --after 4 --ranks 2", Ending.OOM, "can't allocate memory"),
        ("--ends kill --after 4", Ending.CRASHED, "killed by SIGKILL, after"),
        ("--ends kill --after 4 --ranks 2", Ending.CRASHED, "rank 1 was killed by SIGKILL"),
        ("--ends error --after 4", Ending.CRASHED, "RuntimeError: the planted error"),
        ("--ends raises", Ending.ILLEGAL, "refuses: ValueError: micro-batch 3 does not divide 8"),
        ("--no-such-option", Ending.ILLEGAL, "refuses: unrecognized arguments: --no-such-option"),
        ("--ends well --after 2", Ending.ILLEGAL, "fewer than are measured"),
        ("--ends well", Ending.ILLEGAL, "told of no step"),
        ("--prints nothing --steps 3", Ending.ILLEGAL, "told of no step"),
        ("--ends away", Ending.CRASHED, "went on in the background (python"),
    ],
)
def test_a_trial_ends_as_what_it_is_and_leaves_nothing(
    tmp_path: Path, arguments: str, ending: Ending, words: str
) -> None:
    home = tmp_path / "home"
    long = {"train": {"steps": 1000, "warmup": 2}}  # one rank may be steps ahead of the one that ends
    outcome, _ = run(home, study(f"--micro-batch-size 4 {arguments}", base=long))
    assert (outcome.ending, words in outcome.reason) == (ending, True), outcome
    assert "\n" not in outcome.reason
    if "--ranks" in arguments and ending is Ending.CRASHED:
        assert outcome.rank == 1
    assert wait_until(lambda: not left(home))
    if "away" in arguments:  # this one has forgotten its mark
        assert not [one for one in psutil.process_iter() if f"{printing.__file__}" in " ".join(_words(one))]


def test_steps_of_somebody_who_went_on_in_the_background_are_nobody_s(tmp_path: Path) -> None:
    """They come quickly enough to be as many as are asked for before he is ended, and no trainer starts so quickly
    that his first could come before it is noticed that he went.
    """
    home = tmp_path / "home"
    with pytest.raises(InputError, match="came back at once and went on in the background"):
        run(home, study("--micro-batch-size 4 --ends on --starts 0.4"), purpose="baseline")
    assert "\0" not in (only_run(home) / "logs" / "trainer.log").read_text()
    assert wait_until(lambda: not left(home))


def _words(process: psutil.Process) -> list[str]:
    try:
        words = process.cmdline()
    except psutil.Error:
        return []
    return words if "away" in words else []


@pytest.mark.parametrize("ranks", ["", "--ranks 2"])
def test_one_that_hangs_is_ended_with_its_ranks(tmp_path: Path, ranks: str) -> None:
    """With two ranks the first hangs, which is the one that tells of steps."""
    home = tmp_path / "home"
    base = {"train": {"steps": 1000, "warmup": 2, "step_timeout_seconds": 2.0}}
    outcome, _ = run(home, study(f"--micro-batch-size 4 --ends hang --after 4 {ranks}", base=base))
    assert outcome.ending is Ending.HANG and "no step for 2 s, after 4 steps" in outcome.reason
    assert wait_until(lambda: not left(home))


def test_one_that_is_late_or_asked_to_stop_is_ended(tmp_path: Path) -> None:
    late = study(
        "--micro-batch-size 2", base={"train": {"steps": 10_000, "warmup": 2, "timeout_seconds": 1.0}}
    )
    outcome, _ = run(tmp_path / "late", late)
    assert outcome.ending is Ending.TIMED_OUT and "timeout_seconds=1" in outcome.reason
    early = EarlyEnd(Ending.PRUNED, "could not win")
    long = study("--micro-batch-size 2", base={"train": {"steps": 10_000, "warmup": 2}})
    outcome, _ = run(tmp_path / "early", long, should_stop=lambda: early)
    assert outcome == RunOutcome(Ending.PRUNED, "could not win")
    assert not left(tmp_path / "late") and not left(tmp_path / "early")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--no-such-option", ("unrecognized arguments: --no-such-option", "trainer.log")),
        ("--prints nothing --steps 3", ("told of no step", "trainer.steps.pattern")),
        ("--ends away", ("went on in the background",)),
        ("--ends error", ("the planted error", "before its first step")),
    ],
)
def test_a_baseline_that_comes_to_nothing_is_a_mistake_to_mend(
    tmp_path: Path, arguments: str, words: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    with pytest.raises(InputError) as caught:
        run(home, study(f"--micro-batch-size 2 {arguments}"), purpose="baseline")
    assert caught.value.field == "trainer.command"
    assert [word for word in words if word not in str(caught.value)] == []
    assert wait_until(lambda: not left(home))


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = study("", trainer={"command": "no-such-trainer --micro-batch-size 2"})
    with pytest.raises(InputError, match=r"cannot be started \(No such file or directory: no-such-trainer\)"):
        run(tmp_path / "home", file)
    assert run_folder.RunStatus.from_folder(only_run(tmp_path / "home")).state == "ended"


def test_a_controller_that_is_killed_takes_all_with_it(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.tuning.execution.command.test_trial import run, study\n"
        "file = study(sys.argv[2], base={'train': {'steps': 100000, 'warmup': 2}})\n"
        "run(Path(sys.argv[1]), file)\n"
    )
    arguments = f"--micro-batch-size 2 --ranks 2 --steps 1000000 --out {out}"
    controller = subprocess.Popen(
        [sys.executable, "-c", program, str(home), arguments], cwd=Path(__file__).parents[4]
    )
    try:
        assert wait_until((out / "argv-1.json").exists)
        assert len(left(home)) >= 4  # who watches over it, the launcher, two ranks
    finally:
        controller.send_signal(signal.SIGKILL)
        controller.wait()
    assert wait_until(lambda: not left(home))


def guards() -> list[psutil.Process]:
    """Those that watch over a trainer of this process; a child of an earlier test that ended has no command line."""
    found = []
    for child in psutil.Process().children():
        try:
            if _GUARD in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_a_guard_that_is_killed_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    killed = []

    def kill_guard() -> bool:
        if not killed and (out / "argv-1.json").exists():
            (guard,) = guards()
            killed.append(guard.pid)
            guard.kill()
        return False

    file = study(
        f"--micro-batch-size 2 --ranks 2 --out {out}", base={"train": {"steps": 10_000, "warmup": 2}}
    )
    outcome, _ = run(home, file, should_stop=kill_guard)
    assert (
        killed
        and outcome.ending is Ending.CRASHED
        and "watched over the trainer was killed" in outcome.reason
    )
    assert wait_until(lambda: not left(home))
