"""Commands taken apart: options in every spelling, the last of two, launchers and their scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.errors import InputError
from tuning.spec.trainers.invocation import Invocation, parse


def command(text: str) -> Invocation:
    return parse(text, Path("/nowhere"))


@pytest.mark.parametrize(
    ("text", "flag", "value"),
    [
        ("t.py --size 4", "--size", "4"),
        ("t.py --size=4", "--size", "4"),
        ("t.py --batch_size 4", "--batch-size", "4"),
        ("t.py batch.size=4", "batch.size", "4"),
        ("t.py --low -3 --on", "--low", "-3"),
        ("t.py --on --size 4", "--on", None),
        ("t.py size 4", "--size", None),
        ("t.py --size 4 --size 8", "--size", "8"),
    ],
)
def test_an_option_is_read_in_every_spelling(text: str, flag: str, value: str | None) -> None:
    assert command(text).value(flag) == value


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("t.py --size 4 --on", "t.py --size 9 --on"),
        ("t.py --size=4 --on", "t.py --size=9 --on"),
        ("t.py size=4", "t.py size=9"),
        ("t.py --size 4 --size 8", "t.py --size 4 --size 9"),
        ("t.py --size --on", "t.py --size 9 --on"),
        ("t.py", "t.py --size 9"),
        ("A=1 t.py 'two words' --size 4", "A=1 t.py 'two words' --size 9"),
    ],
)
def test_another_value_stands_where_the_first_one_stood(text: str, after: str) -> None:
    assert command(text).with_value("--size", 9).text == after


def test_switches_and_what_is_left_out() -> None:
    assert command("t.py --on x").with_switch("--on", False).text == "t.py x"
    assert command("t.py").with_switch("--on", True).with_switch("--on", True).text == "t.py --on"
    assert command("t.py --save out --size 4").without("--save").text == "t.py --size 4"
    assert command("t.py --save=out --size 4").without("--save").text == "t.py --size 4"
    assert command("t.py --save --size 4").without("--save").text == "t.py --size 4"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("torchrun --nproc-per-node 4 t.py", 4),
        ("torchrun --nproc_per_node=4 t.py -n 9", 4),
        ("mpirun -n 2 python t.py -n 100", 2),
        ("accelerate launch --num_processes 3 t.py", 3),
        ("deepspeed --num_gpus 8 t.py", 8),
        ("python -m torch.distributed.run --nproc-per-node 2 -m package", 2),
        ("torchrun --nproc-per-node gpu t.py", 1),
        ("python t.py -n 7", 1),
    ],
)
def test_the_ranks_are_those_that_its_launcher_is_asked_for(text: str, ranks: int) -> None:
    assert command(text).ranks == ranks


def test_a_launcher_that_would_start_one_process_in_place_of_several_is_refused() -> None:
    with pytest.raises(InputError, match=r"asks for 2 ranks.*one process alone.*torchrun --nproc-per-node 2"):
        command("accelerate launch --cpu --num_processes 2 t.py")
    assert command("accelerate launch --num_processes 2 t.py --cpu").by_accelerate
    assert command("accelerate launch --cpu --num_processes 1 t.py").ranks == 1
