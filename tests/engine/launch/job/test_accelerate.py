"""``accelerate launch`` of Hugging Face's Trainer on two CPU ranks, recorded as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import foreign
from tests.support.job import command
from tests.support.trainers import environments
from workbench.home import runs
from workbench.records import archive

SCRIPT = Path(next(iter(foreign.__path__))) / "hf_train.py"
#: Without --multi_gpu this launcher starts one process; the script's own option keeps ranks on processor cores.
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
          "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip
_STEPS = 8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_ranks_of_its_launcher_are_recorded(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    training = ("--per_device_train_batch_size", "2", "--use_cpu", "--max_steps", str(_STEPS), "--save_strategy", "no",
                "--report_to", "none", "--output_dir", str(out))  # fmt: skip
    done = command.run(
        home, str(environments.made("hf")), *LAUNCH, str(SCRIPT), *training, HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    view = runs.load(command.only_run(home))
    assert (view.outcome, view.status.world_size, view.status.backend) == ("completed", 2, "gloo")
    records = archive.records(view.folder / "records")
    for rank in range(2):
        assert records.table(rank, "step").column("step").tolist() == list(range(1, _STEPS))
        assert "all_reduce" in set(records.table(rank, "comm").column("operation").tolist())
