"""Commands taken apart: options in every spelling, the last of two, launchers and their scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.errors import InputError
from tuning.spec.trainers.command_line import parse
from tuning.spec.trainers.invocation import Invocation


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
    assert command("t.py --save out --size 4").remove_option("--save").text == "t.py --size 4"
    assert command("t.py --save=out --size 4").remove_option("--save").text == "t.py --size 4"
    assert command("t.py --save --size 4").remove_option("--save").text == "t.py --size 4"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("torchrun --nproc-per-node 4 t.py", 4),
        ("torchrun --nproc_per_node=4 t.py -n 9", 4),
        ("mpirun -n 2 python t.py -n 100", 2),
        ("accelerate launch --num_processes 3 t.py", 3),
        ("deepspeed --num_gpus 8 t.py", 8),
        ("python -m torch.distributed.run --nproc-per-node 2 -m package", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc-per-node=gpu t.py", 3),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node auto t.py", 2),
        ("CUDA_VISIBLE_DEVICES= torchrun --nproc-per-node gpu t.py", 1),
        ("CUDA_VISIBLE_DEVICES=3,5 deepspeed t.py", 2),
        ("deepspeed --include localhost:0,1,3 t.py", 3),
        ("deepspeed --num_gpus 2 --module package.train", 2),
        ("python -m deepspeed.launcher.runner --num_gpus 2 t.py", 2),
        ("srun torchrun --nproc_per_node 2 t.py", 2),
        ("srun -N 1 --ntasks-per-node=4 python t.py", 4),
        ("srun -n 2 python -m package.train -n 100", 2),
        ("srun -n 1 torchrun --nproc-per-node 4 t.py", 4),
        ("uv run torchrun --standalone --nproc-per-node 2 t.py", 2),
        ("python -m torch.distributed.launch --nproc_per_node=2 --use_env t.py", 2),
        ("python t.py -n 7", 1),
        ("python -m package.train -n 7", 1),
        ("nice -n 10 python t.py", 1),
        ("nice -n 10 torchrun --nproc-per-node 2 t.py", 2),
    ],
)
def test_the_ranks_are_those_that_its_launcher_is_asked_for(text: str, ranks: int) -> None:
    assert command(text).ranks == ranks


def test_ranks_for_each_core_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert command("CUDA_VISIBLE_DEVICES= torchrun --nproc-per-node auto t.py").ranks == 6
    assert command("torchrun --nproc-per-node=cpu t.py").ranks == 6


@pytest.mark.parametrize("named", [True, False])
def test_accelerate_has_its_ranks_and_hosts_from_its_settings(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "accelerate").mkdir()
    path = tmp_path / "accelerate" / "default_config.yaml"
    option = f"--config_file={path} " if named else ""
    path.write_text("distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 3\n")
    assert command(f"accelerate launch {option}t.py").ranks == 3
    assert command(f"accelerate launch {option}--num_processes 2 t.py").ranks == 2
    assert command("python t.py").ranks == 1
    path.write_text("num_machines: 2\nnum_processes: 16\n")
    with pytest.raises(InputError, match="num_machines 2"):
        command(f"accelerate launch {option}t.py")
    path.write_text("[not, a, mapping")
    assert command(f"accelerate launch {option}t.py").ranks == 1


def test_a_shell_s_script_starts_as_many_ranks_as_it_says(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text('#!/bin/bash\nGPUS=${GPUS:-"4"}\ntorchrun --nproc_per_node=${GPUS} pretrain.py "$@"\n')
    assert parse("bash train.sh --lr 1", tmp_path).ranks == 4
    assert parse("GPUS=2 ./train.sh", tmp_path).ranks == 2
    script.write_text("torchrun --nproc-per-node 3 pretrain.py\n")
    assert parse("GPUS=2 ./train.sh", tmp_path).ranks == 3
    script.write_text("python pretrain.py\n")
    assert parse("GPUS=2 ./train.sh", tmp_path).ranks == 1


def test_a_module_s_text_is_read_as_a_script_s(tmp_path: Path) -> None:
    (tmp_path / "package" / "train").mkdir(parents=True)
    (tmp_path / "package" / "one.py").write_text("one")
    (tmp_path / "package" / "train" / "__main__.py").write_text("two")
    assert parse("torchrun -m package.one --module x", tmp_path).script == "one"
    assert parse("accelerate launch -m package.train", tmp_path).script == "two"
    assert parse("python -m nothing.here", tmp_path).script == ""


def test_a_launcher_that_would_start_one_process_in_place_of_several_is_refused() -> None:
    with pytest.raises(InputError, match=r"asks for 2 ranks.*one process alone.*torchrun --nproc-per-node 2"):
        command("accelerate launch --cpu --num_processes 2 t.py")
    assert command("accelerate launch --num_processes 2 t.py --cpu").by_accelerate
    assert command("accelerate launch --cpu --num_processes 1 t.py").ranks == 1
