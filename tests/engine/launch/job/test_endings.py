"""How foreign jobs end, and what is left of them then: nothing that runs, and everything that was recorded."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from engine.run import processes, run_folder
from engine.run.processes import is_running
from tests.support.job import command
from tests.support.waiting import wait_until
from workbench.home import runs
from workbench.records import archive

pytestmark = pytest.mark.drawn(5, of="endings of foreign jobs")

_MANY = "100000"


def _trainer(out: Path, steps: str = _MANY, mischief: str = "-") -> list[str]:
    return [*command.TORCHRUN, str(command.TRAINER), "ddp", str(out), steps, mischief]


def _steps(folder: Path) -> int:
    records = archive.records(folder / run_folder.RECORDS)
    return min((len(records.table(rank, "step")) for rank in range(2)), default=0)


def _going(home: Path, steps: int = 3) -> Path:
    """The folder of a job whose ranks have recorded some steps."""

    def recorded() -> bool:
        return bool(list(home.glob("*/status.json"))) and _steps(command.only_run(home)) >= steps

    assert wait_until(recorded)
    return command.only_run(home)


def _pids(folder: Path) -> list[int]:
    return run_folder.RunStatus.from_folder(folder).rank_pids


def test_an_exit_code_is_the_job_s(tmp_path: Path) -> None:
    done = command.run(tmp_path, sys.executable, "-c", "import sys; print('out'); sys.exit(7)")
    assert done.returncode == 7
    assert done.stdout == "out\n"
    view = runs.load(command.only_run(tmp_path))
    assert (view.outcome, view.reason) == ("crashed", "the command ended with exit code 7")


def test_a_job_without_ranks_that_says_what_it_ended_of_ended_of_that(tmp_path: Path) -> None:
    done = command.run(tmp_path, sys.executable, "-c", "raise MemoryError('no room for a byte')")
    assert done.returncode == 1
    view = runs.load(command.only_run(tmp_path))
    reason = "the command ran out of memory: MemoryError: no room for a byte"
    assert (view.outcome, view.reason) == ("oom", reason)


def test_a_signal_is_told_as_a_shell_does(tmp_path: Path) -> None:
    done = command.run(
        tmp_path, sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert done.returncode == 128 + signal.SIGKILL
    view = runs.load(command.only_run(tmp_path))
    assert (view.outcome, view.reason) == ("crashed", "the command was killed by SIGKILL")


def test_a_rank_that_raises_is_named_with_its_words(tmp_path: Path) -> None:
    done = command.run(tmp_path, *_trainer(tmp_path, mischief="raise"))
    assert done.returncode == 1
    view = runs.load(command.only_run(tmp_path))
    assert view.outcome == "crashed"
    assert "ValueError: no such luck" in view.reason
    assert view.status.outcome is not None
    assert view.status.outcome.rank == 1
    assert any("no such luck" in line for line in view.last_lines)


def test_a_rank_that_is_killed_is_the_one_that_is_blamed(tmp_path: Path) -> None:
    done = command.run(tmp_path, *_trainer(tmp_path, mischief="kill"))
    assert done.returncode == 1
    view = runs.load(command.only_run(tmp_path))
    assert (view.outcome, view.status.outcome and view.status.outcome.rank) == ("crashed", 1)
    assert "rank 1 died without a report" in view.reason
    assert _steps(view.folder) >= 4


def test_ctrl_c_ends_every_process_of_the_job(tmp_path: Path) -> None:
    process = command.start(tmp_path, *_trainer(tmp_path))
    folder = _going(tmp_path)
    everyone = psutil.Process(process.pid).children(recursive=True)
    assert len(everyone) >= 3
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert not [one for one in everyone if is_running(one.pid)]
    view = runs.load(folder)
    assert (view.outcome, view.reason) == ("stopped", "stopped by SIGINT")
    assert process.returncode != 0


def test_stop_ends_it_too(tmp_path: Path) -> None:
    process = command.start(tmp_path, *_trainer(tmp_path))
    folder = _going(tmp_path)
    from workbench.home import control
    from workbench.home.resolve import resolve

    target = resolve(tmp_path, folder.name)
    refused = control.ask(target, "set", {"train.learning_rate": 0.1}, "somebody", 1.0)
    assert refused.accepted is False
    assert "foreign job" in refused.text
    assert control.ask(target, "stop", {}, "somebody", 60.0).accepted
    process.communicate(timeout=100)
    assert runs.load(folder).outcome == "stopped"


def test_who_runs_it_may_be_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """The job goes on without, records on, and ends as if nothing had been."""
    process = command.start(tmp_path, *_trainer(tmp_path, steps="60"))
    folder = _going(tmp_path)
    before, pids = _steps(folder), _pids(folder)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not any(processes.is_running(pid) for pid in pids))
    assert before < 59
    assert _steps(folder) == 59
    assert "trained" in (folder / "logs" / "stdout.log").read_text()
    assert runs.load(folder).outcome == "lost"
    numbers = runs.add_numbers_so_far(runs.load(folder)).summary
    assert numbers is not None
    assert numbers.measured_steps == 58


def test_a_rank_that_stands_still_is_said_and_not_ended(tmp_path: Path) -> None:
    done = command.run(
        tmp_path, *_trainer(tmp_path, steps="12", mischief="sleep"), options=("--hang-after", "2")
    )
    assert done.returncode == 0
    folder = command.only_run(tmp_path)
    told = [
        event.data for event in archive.records(folder / "records").events("launcher") if event.kind == "hang"
    ]
    assert any((one["rank"], one["ending"]) == (1, "hang") for one in told)
    assert re.search(r"warning: rank 1 made no progress for \d+ s in step 6", done.stderr)
    assert runs.load(folder).outcome == "completed"
    assert _steps(folder) == 11


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ((), "command: is missing; give it after --"),
        (("no-such-program-at-all", "x"), "command='no-such-program-at-all': was not found"),
    ],
)
def test_a_command_that_cannot_be_started_is_one_line(
    tmp_path: Path, job: tuple[str, ...], words: str
) -> None:
    done = command.run(tmp_path, *job)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert words in line
    assert not list(tmp_path.iterdir())


def test_a_command_without_torch_is_said(tmp_path: Path) -> None:
    done = command.run(tmp_path, sys.executable, "-c", "print(1)")
    assert done.returncode == 0
    [line] = [line for line in done.stderr.splitlines() if line.startswith("note:")]
    assert "no process of the command loaded torch" in line


def test_a_job_in_which_no_optimizer_steps_is_said(tmp_path: Path) -> None:
    text = (
        "import torch.distributed as d; d.init_process_group('gloo'); d.barrier(); d.destroy_process_group()"
    )
    script = tmp_path / "idle.py"
    script.write_text(text)
    home = tmp_path / "home"
    done = command.run(home, *command.TORCHRUN, str(script))
    assert done.returncode == 0
    [line] = [line for line in done.stderr.splitlines() if line.startswith("note:")]
    assert "no optimizer stepped twice" in line
    folder = command.only_run(home)
    view = runs.load(folder)
    assert view.status.world_size == 2
    assert view.summary is not None
    assert any("no optimizer stepped" in note for note in view.summary.notes)
    assert len(archive.records(folder / "records").table("launcher", "host"))


def test_json_is_one_document_and_the_job_s_words_are_beside_it(tmp_path: Path) -> None:
    job = (sys.executable, "-c", "print('hello')", "--api-key", "s3cret", "--hf_token=abc", "--tokens=5")
    done = command.run(tmp_path, *job, options=("--json",))
    document = json.loads(done.stdout)
    assert document["outcome"] == "completed"
    assert document["job"]["command"][3:] == ["--api-key", "***", "--hf_token=***", "--tokens=5"]
    assert "hello" in done.stderr
    assert "s3cret" not in "".join(path.read_text() for path in tmp_path.glob("*/*.json"))


def test_the_environment_is_written_down_without_secrets(tmp_path: Path) -> None:
    known = {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_secret", "CUDA_AUTH_TOKEN": "cuda_secret"}
    command.run(tmp_path, sys.executable, "-c", "1", **known)
    text = (command.only_run(tmp_path) / run_folder.JOB).read_text()
    assert json.loads(text)["environment"]["NCCL_DEBUG"] == "WARN"
    assert "secret" not in text
    assert os.environ.get("HF_TOKEN") != "hf_secret"
