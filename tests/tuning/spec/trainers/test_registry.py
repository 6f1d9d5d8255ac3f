"""How commands are recognised, what is offered for each, and how a value becomes an argument again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config.errors import InputError
from tuning.execution.command.trial import put_in_place
from tuning.spec.study_file import parse
from tuning.spec.trainers import registry
from tuning.spec.trainers.facts import Argument, TrainerKind, line
from tuning.spec.trainers.tuned_command import TunedCommand, baseline_words

MEGATRON = (
    "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 8 --num-attention-heads 8 --micro-batch-size 2 "
    "--global-batch-size 16 --seq-length 128 --tensor-model-parallel-size 2 --save ckpt"
)
TITAN = (
    "torchrun --nproc_per_node=4 -m torchtitan.train --training.local_batch_size 4 --training.seq_len 512 "
    "--parallelism.tensor_parallel_degree=2"
)
HF = (
    "torchrun --nproc-per-node 2 run_clm.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
    "--logging_steps 10 --output_dir out"
)


def tuned(command: str, **more: Any) -> TunedCommand:
    return TunedCommand({"command": command} | more)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (MEGATRON, "megatron"),
        (TITAN, "torchtitan"),
        (HF, "hf"),
        ("deepspeed --num_gpus 2 train.py --deepspeed_config ds.json", "deepspeed"),
        (f"accelerate launch {HF.partition('run_clm.py')[2].join(['train.py', ''])}", "hf"),
        ("accelerate launch --num_processes 2 train.py --per_device_train_batch_size 4", "accelerate"),
        ("python -m accelerate.commands.launch train.py", "accelerate"),
        ("uv run accelerate launch --multi_gpu train.py", "accelerate"),
        ("uv run deepspeed --num_gpus 2 train.py", "deepspeed"),
        ("python -m deepspeed.launcher.runner --num_gpus 2 train.py", "deepspeed"),
        ("python -m torchtitan.train --module llama3 --config llama3_debugmodel", "torchtitan"),
        ("torchrun --nproc_per_node 2 -m torchtitan.train --job.config_file X.toml", "torchtitan"),
        ("torchrun --nproc_per_node 2 mine.py --job.config-file=X.toml", "torchtitan"),
        ("python ../torchtitan/torchtitan/train.py --module llama3 --config x", "torchtitan"),
        ("CONFIG_FILE=X.toml NGPU=2 ./run_train.sh", "torchtitan"),
        ("NGPU=2 MODULE=llama3 CONFIG=llama3_debugmodel bash ./run_train.sh", "torchtitan"),
        ("python train.py --data /data/torchtitan", "generic"),
        ("./run_train.sh", "generic"),
        ("python train.py --lr 1e-3", "generic"),
    ],
)
def test_a_trainer_is_recognised_by_its_arguments(command: str, kind: str) -> None:
    assert tuned(command).kind.name == kind


def test_a_script_tells_where_arguments_do_not(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from transformers import Trainer, TrainingArguments\n")
    (tmp_path / "two.py").write_text("engine, *_ = deepspeed.initialize(model=model)\n")
    assert tuned("python one.py", directory=str(tmp_path)).kind.name == "hf"
    assert tuned("torchrun two.py", directory=str(tmp_path)).kind.name == "deepspeed"


def test_megatron_is_offered_what_its_batch_and_ranks_allow() -> None:
    found = tuned(MEGATRON)
    assert found.default_values["micro_batch"] == [1, 2, 4, 8]
    assert found.default_values["tensor_parallel"] == [1, 2, 4]
    assert found.default_values["recompute"] == ["none", "selective", "full"]
    assert found.kind.tokens(found.today) == (16, 128)
    assert "needs tensor parallelism" in found.refusal({"sequence_parallel": True, "tensor_parallel": 1})
    assert "no multiple of 8 x 4 data ranks" in found.refusal({"micro_batch": 8, "tensor_parallel": 1})
    assert found.refusal({"micro_batch": 8, "tensor_parallel": 4}) == ""
    assert "--num-layers 8 is no multiple" in tuned(MEGATRON.replace("node 4", "node 6")).refusal(
        {"tensor_parallel": 2, "pipeline_parallel": 3}
    )
    assert "needs --use-distributed-optimizer" in found.refusal({"overlap_param_gather": True})


@pytest.mark.parametrize("option", ["block-size", "optim.lr", "block_size"])
def test_an_option_is_named_as_it_stands_in_the_command_or_with_underscores(option: str) -> None:
    short = option.replace("-", "_").replace(".", "_")
    for name in (option, short):
        tree = {
            "name": "s",
            "trainer": {"command": f"python t.py --{option} 3"},
            "space": {f"trainer.{name}": [3, 4]},
        }
        file = parse(tree)
        assert file.config.trainer == {short: 3} and file.command is not None
        assert file.command.with_values({short: 4}).text == f"python t.py --{option} 4"
    tree["trainer"], tree["space"] = {"command": "python t.py"}, {f"trainer.{option}": [3, 4]}
    new = parse(tree).command
    assert new is not None and new.with_values({short: 4}).text == f"python t.py --{option} 4"


@pytest.mark.parametrize(
    "command",
    [
        MEGATRON.replace("--micro-batch-size 2", "--micro-batch-size 0"),
        MEGATRON.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size two"),
        TITAN.replace("--training.local_batch_size 4", "--training.local_batch_size 0"),
        HF.replace("--per_device_train_batch_size 4", "--per_device_train_batch_size two"),
        HF.replace("--gradient_accumulation_steps 2", "--gradient_accumulation_steps 0"),
    ],
)
def test_what_a_trainer_will_refuse_is_left_to_its_own_words(command: str) -> None:
    file = parse({"name": "s", "trainer": {"command": command}})
    assert file.command is not None and len(file.command.default_values["micro_batch"]) > 1
    assert file.command.with_values(file.config.trainer).text.startswith(command)
    assert file.search_space.baseline[0]


def test_values_that_no_trainer_can_have_are_left_to_it_too() -> None:
    space = {"trainer.micro_batch": [0, 2, "x", 2.5]}
    file = parse({"name": "s", "trainer": {"command": HF}, "space": space})
    assert file.command is not None
    assert [file.command.refusal({"micro_batch": value}) for value in (0, 2, "x", 2.5)] == [""] * 4
    assert "--per_device_train_batch_size 0 " in file.command.with_values({"micro_batch": 0}).text


def test_values_become_arguments_and_all_else_stays_as_typed() -> None:
    found = tuned(MEGATRON)
    assert found.with_values({"micro_batch": 2, "tensor_parallel": 2}).text == MEGATRON
    changed = found.with_values({"micro_batch": 4, "recompute": "full", "distributed_optimizer": True}).text
    assert changed == (
        MEGATRON.replace("--micro-batch-size 2", "--micro-batch-size 4")
        + " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
        + " --use-distributed-optimizer"
    )
    again = tuned(changed).with_values({"recompute": "selective", "distributed_optimizer": False}).text
    assert again.endswith("--save ckpt --recompute-granularity selective")
    trial = found.trial_invocation({}).text
    assert "--save" not in trial and trial.endswith("--log-interval 1")


def test_torchtitan_keeps_the_global_batch_when_its_data_ranks_change() -> None:
    found = tuned(TITAN)
    assert found.kind.tokens(found.today) == (8, 512)
    text = found.with_values({"tensor_parallel": 4, "micro_batch": 8}).text
    assert "--training.global_batch_size 8" in text and "--parallelism.tensor_parallel_degree=4" in text
    assert "no multiple" in found.refusal({"tensor_parallel": 1, "micro_batch": 4})
    assert tuned("torchrun -m torchtitan.train").default_values == {}
    saves = tuned(f"{TITAN} --checkpoint.enable")
    assert (
        "--checkpoint.enable" in saves.with_values({}).text
        and "--checkpoint" not in saves.trial_invocation({}).text
    )


def test_accumulation_follows_the_micro_batch_of_hugging_face() -> None:
    found = tuned(HF)
    assert found.default_values["micro_batch"] == [1, 2, 4, 8]
    text = found.with_values({"micro_batch": 8, "recompute": True}).text
    assert "--per_device_train_batch_size 8 --gradient_accumulation_steps 1" in text
    assert text.endswith("--output_dir out --gradient_checkpointing True")

    sharded = found.with_values({"fsdp": True}).text
    assert sharded.endswith("--fsdp full_shard") and tuned(sharded).with_values({"fsdp": False}).text == HF
    assert found.default_values["fsdp"] == [False, True] and not found.refusal({"fsdp": True})
    on_cpu = tuned(f"{HF} --use_cpu")
    assert "fsdp" not in on_cpu.default_values and "on CPUs" in on_cpu.refusal({"fsdp": True})
    assert "no multiple of 3" in found.refusal({"micro_batch": 3})
    assert "--output_dir {folder}/output" in found.trial_invocation({}).text
    assert found.kind.tokens(found.today) == (16, None)


def test_what_accelerate_s_launcher_shards_is_not_sharded_by_the_trainer_too(tmp_path: Path) -> None:
    for kind, offered in (("MULTI_GPU", True), ("FSDP", False), ("DEEPSPEED", False)):
        (tmp_path / "a.yaml").write_text(f"distributed_type: {kind}\nnum_processes: 2\n")
        text = f"accelerate launch --config_file a.yaml {HF.partition('2 ')[2]}"
        found = tuned(text, directory=str(tmp_path))
        assert (found.kind.name, found.today.ranks) == ("hf", 2)
        assert ("fsdp" in found.default_values, "ddp_bucket_mb" in found.default_values) == (offered, offered)


def test_what_stands_in_a_json_file_is_turned_there(tmp_path: Path) -> None:
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "output_dir": "o"}
    (tmp_path / "hf.json").write_text(json.dumps(given))
    found = tuned("torchrun --nproc-per-node 2 train.py hf.json", directory=str(tmp_path), kind="hf")
    changed = found.with_values({"micro_batch": 8})
    assert changed.words == found.today.words
    assert changed.files["hf.json"] == given | {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
    }
    assert json.loads((tmp_path / "hf.json").read_text()) == given

    zero = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
    }
    (tmp_path / "ds.json").write_text(json.dumps(zero))
    found = tuned("deepspeed --num_gpus 2 t.py --deepspeed_config ds.json", directory=str(tmp_path))
    assert found.default_values["zero_stage"] == [0, 1, 2, 3] and found.has("micro_batch") == 4
    tree = found.with_values({"zero_stage": 3, "micro_batch": 2}).files["ds.json"]
    assert tree["zero_optimization"] == {"stage": 3}
    assert (tree["train_micro_batch_size_per_gpu"], tree["gradient_accumulation_steps"]) == (2, 4)
    auto = zero | {"train_micro_batch_size_per_gpu": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps(auto))
    again = tuned("deepspeed --num_gpus 2 t.py --deepspeed_config ds.json", directory=str(tmp_path))
    assert "micro_batch" not in again.default_values


def test_the_micro_batch_of_a_hugging_face_trainer_is_that_of_its_deepspeed_file_too(tmp_path: Path) -> None:
    zero = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps(zero))
    options = "--do_train --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --deepspeed ds.json"
    found = tuned(f"torchrun --nproc-per-node 2 t.py {options}", directory=str(tmp_path))
    given = found.with_values({"micro_batch": 4})
    assert given.value("--per_device_train_batch_size") == "4"
    assert given.files["ds.json"] == zero | {"train_micro_batch_size_per_gpu": 4}


def test_what_deepspeed_does_itself_is_not_offered_where_a_json_file_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("from transformers import TrainingArguments\n")
    for more, offered in (({}, True), ({"deepspeed": "ds.json"}, False)):
        (tmp_path / "a.json").write_text(json.dumps({"output_dir": "o", **more}))
        found = tuned("torchrun --nproc-per-node 2 t.py a.json", directory=str(tmp_path))
        assert ("fsdp" in found.default_values, "ddp_bucket_mb" in found.default_values) == (offered, offered)


def test_a_study_keeps_the_settings_that_a_file_had(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    command = "deepspeed --num_gpus 2 t.py --deepspeed_config=ds.json"
    file = parse({"name": "s", "trainer": {"command": command, "directory": str(tmp_path)}})
    path.unlink()
    again = parse(yaml.safe_load(file.text))
    assert again.fingerprint() == file.fingerprint() and again.command is not None
    found = again.command.with_values({"zero_stage": 3})
    assert found.text == command and found.files["ds.json"] == {"zero_optimization": {"stage": 3}}
    place = tmp_path / "place"
    given = put_in_place(again.command.trial_invocation({"zero_stage": 2}), place, {"zero_stage": 2})
    assert given.words[-1] == f"--deepspeed_config={place}/0-ds.json"
    tree = json.loads((place / "0-ds.json").read_text())
    assert tree == {"zero_optimization": {"stage": 2}, "steps_per_print": 1, "log_level": "info"}


def test_what_a_shell_s_script_hides_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text(
        "python pretrain_gpt.py --micro-batch-size 2 --tensor-model-parallel-size 1\n"
    )
    with pytest.raises(InputError, match=r"what it starts stands in go\.sh: give that command itself"):
        parse({"name": "s", "trainer": {"command": "bash go.sh", "directory": str(tmp_path)}})


def test_what_trial_0_is_with_an_option_that_the_command_does_not_have() -> None:
    section = {"command": "python train.py --block 8"}
    assert baseline_words(section, {"block": 8}) == "the command as it is"
    assert baseline_words(section, {"block": 8, "width": 3}) == "the command with width=3"
    named = section | {"arguments": {"wide": "--a.b"}}
    assert baseline_words(named, {"wide": 3}) == "the command with wide=3"
    assert (
        baseline_words({"command": "torchrun --nproc-per-node 2 t.py"}, {"omp_threads": 1})
        == "the command as it is"
    )


@pytest.mark.parametrize(
    ("text", "reaches"),
    [
        ("torchrun --nproc-per-node 2 train.py --block 8\n", False),
        ('torchrun --nproc-per-node 2 train.py --block 8 "$@"\n', True),
        ("python train.py --block ${1}\n", True),
    ],
)
def test_a_shell_s_script_has_to_hand_values_on(tmp_path: Path, text: str, reaches: bool) -> None:
    (tmp_path / "go.sh").write_text(text)
    section = {"command": "bash go.sh", "directory": str(tmp_path)}
    document = {"name": "s", "trainer": section, "space": {"trainer.block": [8, 16]}}
    if reaches:
        assert parse(document).command is not None
        return
    with pytest.raises(
        InputError, match=r"no value of trainer\.block would reach the trainer: go\.sh hands none on"
    ):
        parse(document)
    assert parse(document | {"space": {"trainer.omp_threads": [1, 2]}}).command is not None  # a variable does


def test_threads_are_a_variable_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = tuned("torchrun --nproc-per-node 2 train.py")
    assert found.has("omp_threads") == 1
    assert (
        found.with_values({"omp_threads": 4}).text == "OMP_NUM_THREADS=4 torchrun --nproc-per-node 2 train.py"
    )
    assert tuned("OMP_NUM_THREADS=3 python train.py").has("omp_threads") == 3
    assert tuned("python train.py").has("omp_threads") is None


@pytest.mark.parametrize(
    ("kind", "text", "step", "seconds", "loss"),
    [
        (
            "megatron",
            " [2026-01-01 00:00:00] iteration       10/     100 | consumed samples:          160 | elapsed time per "
            "iteration (ms): 123.4 | learning rate: 1.0E-04 | global batch size:    16 | lm loss: 1.051000E+01 |",
            10,
            0.1234,
            10.51,
        ),
        (
            "torchtitan",
            "\x1b[31mstep: 12  \x1b[32mloss:  8.51500  \x1b[33mgrad_norm: 1.2  \x1b[34mtps: 1,234  mfu: 1.0%",
            12,
            None,
            8.515,
        ),
        (
            "deepspeed",
            "[INFO] [logging.py:96:log_dist] [Rank 0] step=30, skipped=0, lr=[0.001]",
            30,
            None,
            None,
        ),
        (
            "deepspeed",
            "epoch=0/micro_step=8/global_step=4, RunningAvgSamplesPerSec=3.1, CurrSamplesPerSec=3",
            4,
            None,
            None,
        ),
        ("hf", "  4%|4         | 4/100 [00:02<00:48,  1.99it/s]", 4, None, None),
        ("accelerate", "step: 7 loss: 2.0", 7, None, None),
        ("generic", "iter 250: loss 2.4581, time 22.13ms, mfu 3.1%", 250, 0.02213, 2.4581),
        ("generic", "[ 20/100] Step 1,200 loss=3.1 time: 0.5s", 1200, 0.5, 3.1),
    ],
)
def test_lines_of_steps_are_read(
    kind: str, text: str, step: int, seconds: float | None, loss: float | None
) -> None:
    lines = next(one for one in registry.TRAINERS if one.name == kind).lines
    (found,) = [reading for each in lines if (reading := each.read(text)) is not None]
    assert (found.step, found.loss) == (step, loss)
    assert found.seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "text",
    ["Map: 100%|##########| 10/10 [00:00<00:00]", "loading checkpoint shards", "{'loss': 3.0, 'epoch': 0.1}"],
)
def test_other_lines_are_no_steps(text: str) -> None:
    assert not [kind.name for kind in registry.TRAINERS if any(one.read(text) for one in kind.lines)]


def test_a_new_trainer_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    abacus = TrainerKind(
        "abacus",
        "a trainer that counts by hand",
        knows=lambda command: command.words[0] == "abacus",
        lines=(line(r"bead (?P<step>\d+) in (?P<seconds>[\d.]+)"),),
        arguments=(
            Argument(
                "beads",
                "more beads",
                value_of=lambda command: command.number("--beads"),
                put=lambda command, value: command.with_value("--beads", value),
                offered=lambda command, cores: [10, 20],
            ),
        ),
    )
    monkeypatch.setattr(registry, "TRAINERS", (abacus, *registry.TRAINERS))
    found = tuned("abacus --beads 10")
    assert found.default_values == {"beads": [10, 20]}
    assert found.with_values({"beads": 20}).text == "abacus --beads 20"
    assert "abacus" in registry.names()
    with pytest.raises(InputError, match=r"trainer\.kind.*abacus"):
        tuned("x", kind="sundial")
