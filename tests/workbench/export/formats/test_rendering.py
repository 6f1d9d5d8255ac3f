"""An export for a public trainer: its script starts what it says, and its list of losses is everywhere."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run import run_folder
from tests.support.drawn import SEED
from tests.support.runs import small
from tests.support.workbench.drawn_configs import TURNS, settings_drawn, turned
from workbench.export import bundle
from workbench.export.formats import rendering
from workbench.export.targets import TARGETS, find_target
from workbench.home import runs

PUBLIC = [target.name for target in TARGETS if target.format is not None]
#: Targets that refuse a run of this project's models.
OF_OTHERS = ("command", "trainer")
#: What the last line of each script runs, where python3 and accelerate only tell their arguments.
STARTS = {
    "hf": "python3 -m torch.distributed.run --standalone --nproc-per-node 4 train.py {out}/training_args.json --more",
    "accelerate": "accelerate launch --config_file {out}/accelerate.yaml --num_machines 1 train.py --more",
    "deepspeed": "python3 -m torch.distributed.run --standalone --nproc-per-node 4 train.py --deepspeed_config "
    "{out}/ds_config.json --more",
    "megatron": "python3 -m torch.distributed.run --standalone --nproc-per-node 4 train.py --swiglu",
    "torchtitan": "python3 -m torch.distributed.run --standalone --nproc-per-node 4 -m torchtitan.train "
    "--module recipe --config exported train.py --more",
    "automodel": "python3 -m torch.distributed.run --standalone --nproc-per-node 4 -m nemo_automodel.cli.app /",
}


def exported(name: str, tmp_path: Path, **values: object) -> Path:
    usual = {"parallel__dp": 2, "parallel__tp": 2, "environment__OMP_NUM_THREADS": 3}
    folder = run_folder.create(tmp_path, small(**(usual | values)), {})
    bundle.write(find_target(name).render(runs.load(folder), None), tmp_path / "out")
    return tmp_path / "out"


def start(out: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    tools = out.parent / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("python3", "accelerate"):
        (tools / tool).write_text(f'#!/bin/bash\necho "{tool} $*"; echo "threads $OMP_NUM_THREADS"\n')
        (tools / tool).chmod(0o755)
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    return subprocess.run(
        [out / "run.sh", *arguments], env=path | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_the_script_starts_the_trainer_with_the_file(name: str, tmp_path: Path) -> None:
    out = exported(name, tmp_path)
    done = start(out, "train.py", "--more")
    assert done.returncode == 0, done.stderr
    assert STARTS[name].format(out=out) in done.stdout
    assert "threads 3" in done.stdout
    uneven = start(out, "train.py", NNODES="3")
    assert (uneven.returncode, uneven.stdout) == (2, "")
    assert "must divide the 4 ranks" in uneven.stderr
    several = start(out, "train.py", NNODES="2", NODE_RANK="1", MASTER_ADDR="first")
    assert "first" in several.stdout
    assert start(out, "train.py", NNODES="2").returncode != 0


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "torchtitan"])
def test_a_script_that_needs_one_says_so(name: str, tmp_path: Path) -> None:
    done = start(exported(name, tmp_path))
    assert done.returncode == 2
    assert "error: give " in done.stderr


def test_megatrons_arguments_arrive_one_by_one(tmp_path: Path) -> None:
    out = exported("megatron", tmp_path)
    words = start(out, "pretrain_gpt.py", "--data-path", "text").stdout.splitlines()[0].split()
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
    assert words[-2:] == ["--data-path", "text"]
    assert len(words) > 50


@pytest.mark.parametrize("name", PUBLIC)
def test_losses_are_in_the_readme_and_the_provenance(name: str, tmp_path: Path) -> None:
    out = exported(name, tmp_path, compression__method="topk", overlap__tp_chunks=2)
    said = json.loads((out / "provenance.json").read_text())
    settings = {loss["setting"] for loss in said["losses"]}
    assert {"compression.method", "overlap.tp_chunks"} <= settings
    readme = (out / "README.md").read_text()
    for loss in said["losses"]:
        assert f"- {loss['setting']}={loss['value']}: {loss['why']}" in readme
    assert (out / "gradient_hook.py").exists() == any(
        loss["hook"] == "gradient_hook.py" for loss in said["losses"]
    )
    assert set(said["levels"]) == {"guarded", "parsed", "trained"}
    assert said["checked_against"] in readme
    assert said["target"] == name


def test_what_is_tried_is_in_the_results() -> None:
    """No export claims a check that was not made with that version, and no result is of another one."""
    from tests.support.trainers.results import OURS, packages_of, rows

    written: dict[tuple[str, str], set[str]] = {}
    for name, level, what, _, packages, _, commit, _ in rows():
        written.setdefault((name, level), set()).add(what)
        assert packages == (OURS if level == "round trip" else packages_of(name)), (name, level, what)
        assert commit != "unknown", (name, level, what)
    for name in PUBLIC:
        assert (name, "round trip") in written
        form = find_target(name).format
        assert form is not None
        for level in ("parsed", "trained"):
            assert ((name, level) in written) == (form.test_evidence[level] != "no"), (name, level)
        assert ("FSDP2" in form.test_evidence["trained"]) == (
            "ZeRO 3" in written.get((name, "trained"), ()) and name != "deepspeed"
        )
        if form.test_evidence["parsed"] != "no":
            package, version = form.test_evidence["parsed"].removeprefix("by ").split()
            assert f"{package}=={version}" in packages_of(name).split(", ")


def test_a_run_of_another_trainer_is_refused(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, small().with_values({"trainer.hook": "none"}), {})
    form = find_target("hf").format
    assert form is not None
    with pytest.raises(InputError, match="give trainer"):
        rendering.render_format(form, runs.load(folder))


@pytest.mark.parametrize(
    "values", TURNS, ids=[f"{place}-{next(iter(one))}" for place, one in enumerate(TURNS)]
)
def test_every_target_renders_whatever_acts(values: dict[str, Any], tmp_path: Path) -> None:
    """A setting that does not act beside another one is no key that a writer may count on."""
    config = turned(values, f"{SEED} {values}")
    view = runs.load(run_folder.create(tmp_path, config, {}))
    for target in TARGETS:
        if target.name not in OF_OTHERS:
            assert target.render(view, None).files


def test_every_setting_is_turned() -> None:
    """But for those of other models, and what no export says otherwise."""
    left = {key for key in RunConfig().flat() if not key.startswith(("environment.", "profile."))}
    assert left - settings_drawn() == {"model.workload", "model.options", "tokens_told"}


def test_what_decides_each_block_is_told_and_nothing_is_written_of_recomputation() -> None:
    base = small(model__layers=2)
    for name in PUBLIC:
        form = find_target(name).format
        assert form is not None
        for key, value in {"memory.budget_gib": 0.5, "memory.block_actions": ["keep", "full"]}.items():
            config = base.with_values({key: value})
            assert key in {loss.setting for loss in form.unexpressed(config)}
            assert form.make_document(config) == form.make_document(base)


def test_losses_are_promised_where_another_run_has_them(tmp_path: Path) -> None:
    said = {}
    whole = {"data__documents": "whole", "parallel__dp": 2, "parallel__sequence_groups": "planned"}
    for name, values in {"usual": {}, "timed": {"train__seconds": 4.0}, "planned": whole}.items():
        folder = run_folder.create(tmp_path / name, small(**values), {})
        readme = find_target("torchrun").render(runs.load(folder), None).files["README.md"]
        (said[name],) = [line for line in readme.splitlines() if line.startswith("- Starts: ")]
    assert said["usual"].endswith("with the losses of the run where the number of ranks is the same")
    assert (
        "with the losses of the run" not in said["timed"]
        and "how many steps fit into its 4 s" in said["timed"]
    )
    assert said["planned"].startswith(f"{said['usual']}, but for their last digits")
