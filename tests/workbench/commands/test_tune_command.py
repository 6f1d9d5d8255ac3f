"""``tune --command`` and sweep files: from what somebody types to the command that is faster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.support.foreign import printing
from tests.workbench.conftest import Run

SCRIPT = f"{sys.executable} {printing.__file__}"
MEGATRON = (
    f"{SCRIPT} --prints megatron --num-layers 2 --micro-batch-size 2 --global-batch-size 8 --seq-length 32"
)
SHORT = ("--set", "base.train={steps: 8, warmup: 2}", "--set", "confirm_repeats=2", "--trials", "4")


@pytest.mark.timeout(120)
def test_a_command_becomes_a_faster_command(command: Run, home: Path) -> None:
    space = "space={trainer.micro_batch: [2, 4]}"
    done = command("tune", "--command", MEGATRON, "--set", space, *SHORT)
    assert done.code == 0, done
    assert "Megatron-LM on 1 rank" in done.err and "trial 0, the command as it is" in done.err
    best = MEGATRON.replace("--micro-batch-size 2", "--micro-batch-size 4")
    assert f"train with the command: {best}" in done.out.replace("\n", " ").replace("  ", " ")
    again = command("tune", "--command", MEGATRON, "--set", space, *SHORT, "--json")
    assert again.document["command"]["best"] == best and again.document["command"]["today"] == MEGATRON
    name = again.document["study"]
    assert name.startswith("megatron-printing-")
    shown = command("show", name, "--json").document
    assert shown["command"]["best"] == best
    (run,) = [trial["run"] for trial in shown["trials"] if trial["number"] == 0]
    row = command("show", run, "--json").document
    assert row["step_seconds"]["mean"] == pytest.approx(printing.SECONDS[2], rel=1e-6)
    written = command("export", name, "--to", "command", "--out", home / "out")
    assert written.code == 0 and "--micro-batch-size 4" in (home / "out" / "run.sh").read_text()


def test_a_dry_run_prints_what_it_would_do_and_does_nothing(command: Run, home: Path) -> None:
    done = command("tune", "--command", MEGATRON, "--dry-run")
    assert done.code == 0 and not done.err
    assert "trainer.micro_batch = 1, 2, 4, 8, today 2" in done.out
    assert f"{MEGATRON} --log-interval 1" in done.out
    plan = command("tune", "--command", MEGATRON, "trials=5", "--dry-run", "--json").document
    assert plan["trainer"] == "megatron" and plan["trials"] == 5 and plan["baseline"]["micro_batch"] == 2
    timed = command("tune", "--command", MEGATRON, "budget.wall_seconds=120", "--dry-run")
    assert "in 120 s: each ends after 10 s, but not before 9 steps" in timed.out
    assert not home.exists() or not list(home.iterdir())


@pytest.mark.timeout(120)
def test_a_sweep_file_is_taken_as_it_is(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    sweep = {
        "program": printing.__file__,
        "method": "grid",
        "metric": {"name": "step_time", "goal": "minimize"},
        "parameters": {"size": {"values": [2, 4]}},
        "command": [sys.executable, "${program}", "${args}"],
    }
    path.write_text(yaml.safe_dump(sweep))
    done = command("tune", path, *SHORT, "--json")
    assert done.code == 0, done
    assert done.document["study"] == "sweep" and done.document["objective"] == "step_seconds"
    assert done.document["command"]["best"] == f"{SCRIPT} --size=4"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--command", f"{SCRIPT} --wrong --size 2", "space={trainer.size: [2, 4]}"),
         ("trainer.command", "unrecognized arguments: --wrong", "mend the command first")),
        (("--command", f"{SCRIPT} --prints nothing --steps 2 --size 2", "space={trainer.size: [2, 4]}"),
         ("trainer.command", "told of no step", "trainer.steps.pattern")),
        (("--command", f"{SCRIPT} --starts 60 --size 2", "space={trainer.size: [2, 4]}", "budget.wall_seconds=2"),
         ("budget.wall_seconds=2", "told of no step for 1 s", "give more than")),
        (("--command", "no-such-program --size 2", "space={trainer.size: [2, 4]}"),
         ("trainer.command='no-such-program'", "give a program")),
        (("--command", f"{SCRIPT} --size 2", "space={trainer.size: [2, 4]}", "trainer.directory=/no/folder"),
         ("trainer.directory='/no/folder'", "is no folder here")),
        (("--command", f"{SCRIPT} --ends away --size 2", "space={trainer.size: [2, 4]}"),
         ("trainer.command", "went on in the background", "in the foreground")),
        (("--command", f"{SCRIPT} --prints nothing --size 2", "space={trainer.size: [2, 4]}",
          "base.train.step_timeout_seconds=0.5"),
         ("trainer.command", "told of no step for 2.5 s", "trainer.steps.pattern")),
        (("--command", "python t.py & true"), ("without a shell",)),
        (("--command", "python t.py", "--data", "x.txt"), ("--data", "put it into the command")),
        (("study.yaml", "--command", "python t.py"), ("--command", "both given")),
        (("--command", MEGATRON, "--join"), ("--join", "at once")),
        (("--dry-run",), ("STUDY.yaml", "--command")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(command: Run, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = command("tune", *arguments)
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.code == 2 and len(errors) == 1 and not done.out, done
    assert [word for word in words if word not in errors[0]] == []


def test_a_sweep_with_code_in_it_is_refused(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("program: t.py\nparameters: {a: {values: [1, 2]}}\nmetric: !!python/name:os.system\n")
    command("tune", path).refused("has code in it", "line 3")
