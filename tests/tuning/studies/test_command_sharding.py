"""Studies that turn the sharding of real trainers, Hugging Face's and DeepSpeed's, on two gloo ranks; each rank notes
what it is wrapped in, for a trial that is told to shard may as well not do it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from engine.rank.foreign import TOLD
from engine.run import run_folder
from tests.support import foreign
from tests.support.trainers import environments
from tests.support.trainers.training import small
from tuning.execution.command.trial import LOG, PLACE, CommandTrials
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.export.formats.deepspeed import DEEPSPEED
from workbench.home import runs

SCRIPT = Path(next(iter(foreign.__path__))) / "hf_train.py"
RANKS = "-m torch.distributed.run --standalone --nproc-per-node 2"
#: What updates the weights, by the stage.
_OPTIMIZERS = {0: "AdamW", 2: "DeepSpeedZeroOptimizer", 3: "DeepSpeedZeroOptimizer_Stage3"}
BASE = {"train": {"steps": 8, "warmup": 3, "step_timeout_seconds": 60.0}}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def started(name: str, monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """The interpreter of an environment; this process and what it starts have its variables."""
    python = environments.made(name)
    for key, value in (environments.variables(name) | variables).items():
        if os.environ.get(key) != value:
            monkeypatch.setenv(key, value)
    return str(python)


def studied(home: Path, command: str, space: dict[str, Any]) -> StudyFile:
    """After a study that came to a verdict."""
    trainer = {"command": command, "directory": str(environments.ROOT)}
    file = parse({"name": "sharding", "trainer": trainer, "base": BASE, "space": space, "trials": 3,
                  "confirm_repeats": 1, "budget": {"wall_seconds": 180}})  # fmt: skip
    result = run_study(file, home / STUDIES / file.name, CommandTrials(home, file))
    assert result.state == "ended" and result.best is not None
    assert result.gain is not None and result.gain.verdict in ("better", "equal", "undecided")
    return file


def seen(home: Path, setting: str) -> dict[Any, list[list[dict[str, Any]]]]:
    """By value: what both ranks of each run noted, with the steps that were heard of it."""
    found: dict[Any, list[list[dict[str, Any]]]] = {}
    for folder in runs.run_folders(home):
        view = runs.load(folder)
        assert view.summary is not None and view.summary.measured_steps == 5, folder
        notes = [json.loads((folder / PLACE / f"seen-{rank}.json").read_text()) for rank in range(2)]
        found.setdefault(view.config().trainer[setting], []).append(notes)
    return found


def test_the_trainer_of_hugging_face_is_sharded_where_its_trial_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One function of accelerate is replaced, as it shards on GPUs alone."""
    cpu = {"ACCELERATE_TORCH_DEVICE": "cpu", "ACCELERATE_BYPASS_DEVICE_MAP": "true"}
    python, home = started("hf", monkeypatch, **cpu), tmp_path / "home"
    before = f"SHARDS_ON_CPUS=1 PYTHONPATH={environments.ROOT} {python} {RANKS} {SCRIPT}"
    words = "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_steps 100000"
    file = studied(home, f"{before} {words} --output_dir {tmp_path / 'out'}", {"trainer.fsdp": [False, True]})
    assert file.command is not None and file.command.kind.name == "hf"
    found = seen(home, "fsdp")
    assert set(found) == {False, True}
    for fsdp, trials in found.items():
        for rank in (rank for notes in trials for rank in notes):
            assert rank["world"] == 2
            assert rank["wrapper"] == ("FSDPLlamaForCausalLM" if fsdp else "DistributedDataParallel")
            assert rank["held"] == rank["whole"] * (0.5 if fsdp else 1)


def test_a_loop_of_deepspeed_has_the_stage_of_its_trial_and_its_printed_steps_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = started("deepspeed", monkeypatch, SMALL_LLAMA='{"steps": 200, "sequences": 1600}')
    home = tmp_path / "home"
    (tmp_path / "ds.json").write_text(DEEPSPEED.text(DEEPSPEED.make_document(small(2))))
    module = "-m tests.support.trainers.train_deepspeed"
    file = studied(home, f"{python} {RANKS} {module} --deepspeed_config {tmp_path / 'ds.json'}",
                   {"trainer.zero_stage": [0, 2, 3]})  # fmt: skip
    assert file.command is not None and file.command.kind.name == "deepspeed"
    found = seen(home, "zero_stage")
    assert set(found) == {0, 2, 3}
    for stage, trials in found.items():
        for rank in (rank for notes in trials for rank in notes):
            assert (rank["world"], rank["engine"], rank["stage"]) == (2, "DeepSpeedEngine", stage)
            assert rank["wrapper"] == _OPTIMIZERS[stage]
    for folder in runs.run_folders(home):
        assert not (folder / PLACE / TOLD).exists()
        printed = (folder / run_folder.LOGS / LOG).read_text()
        assert len(re.findall(r"step=\d+, skipped=0", printed)) >= BASE["train"]["steps"]
