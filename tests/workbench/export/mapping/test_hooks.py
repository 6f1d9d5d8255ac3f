"""Hooks of an export are Python that runs: torch's own compress, all others say what to fill in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.run_config import RunConfig
from workbench.export.mapping import hooks
from workbench.export.targets import find_target

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradient_hook
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
gradient_hook.register(model)
for _ in range(3):
    model.zero_grad()
    model(torch.ones(2, 64)).sum().backward()
gradient = model.module.weight.grad
exact = torch.full((64, 64), 2.0)
print("error", float((gradient - exact).abs().max()))
dist.destroy_process_group()
"""


def written(folder: Path, **values: Any) -> dict[str, str]:
    form = find_target("hf").format
    assert form is not None
    config = RunConfig().with_values({key.replace("__", "."): value for key, value in values.items()})
    files = hooks.files(config, form.unexpressed(config))
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_cast_of_torch_compresses_as_it_stands(tmp_path: Path) -> None:
    assert list(written(tmp_path, parallel__dp=2, compression__method="fp16")) == ["gradient_hook.py"]
    done = run(TRAIN, tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("error")[1]) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("method", COMPRESSION_METHODS)
def test_every_method_runs_or_says_what_to_fill_in(method: str, tmp_path: Path) -> None:
    written(tmp_path, parallel__dp=2, compression__method=method)
    done = run(TRAIN, tmp_path)
    hook = COMPRESSION_METHODS[method].torch_hook
    if hook is not None and hook.gpu_only and not torch.cuda.is_available():
        assert "communication hook required CUDA" in done.stderr, "torch refuses it on CPUs"
    elif hook is not None:
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.split("error")[1]) < 2e-2
    else:
        assert f"NotImplementedError: {method} is not part of torch" in done.stderr


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("int8", "bucket_values 1024"),
        ("sign", "bucket_values 1024"),
        ("topk", "ratio 0.01"),
    ],
)
def test_a_hook_to_fill_in_tells_the_settings_of_its_method_alone(
    method: str, told: str, tmp_path: Path
) -> None:
    text = written(tmp_path, parallel__dp=2, compression__method=method)["gradient_hook.py"]
    assert f"Compresses gradients with {method} ({told});" in text


def test_an_outer_loop_has_its_place(tmp_path: Path) -> None:
    files = written(tmp_path, parallel__dp=2, outer__method="diloco", outer__period=3)
    assert list(files) == ["outer_loop.py"]
    done = run("import outer_loop\nfor step in range(3): print(step); outer_loop.after_step(None)", tmp_path)
    assert done.stdout.split() == ["0", "1", "2"]
    assert "NotImplementedError: diloco" in done.stderr


def test_nothing_that_is_not_asked_for(tmp_path: Path) -> None:
    assert written(tmp_path, parallel__dp=2) == {}
