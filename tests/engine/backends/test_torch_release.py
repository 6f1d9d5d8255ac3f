"""What the engine takes for granted of a torch release, asked of a CUDA build; none of it needs a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

BUILD = f"torch {torch.__version__}"
cuda_build = pytest.mark.skipif(torch.version.cuda is None, reason=f"{BUILD} is built without CUDA")
two_classes = pytest.mark.skipif(
    not hasattr(dist, "ProcessGroupNCCL2"),
    reason=f"{BUILD} has one NCCL process group; the other came with CUDA builds of 2.15 (pytorch/pytorch#192281)",
)
CREATOR = """
import engine, json
import torch.distributed as dist
dist.Backend._ensure_backend_registered("nccl")
print(json.dumps(dist.Backend._plugins["NCCL"].creator_fn.__name__))
"""
FORKED = """
import json
import torch
from engine.launch.workers import ForkServers

def child(answers):
    cuda = torch.cuda
    answers.send([cuda._is_in_bad_fork(), cuda.is_initialized(), cuda._is_compiled()])

if __name__ == "__main__":
    servers = ForkServers()
    reader, writer = servers.pipe(duplex=False)
    process = servers.start(child, (writer,), {})
    print(json.dumps(reader.recv() if reader.poll(60) else None))
    process.join()
"""
CHOSEN = """
import json
import torch
from engine.run.devices import selection as devices
from engine.config.run_config import parse
from profilers.gpu.nvml import Nvml
from tests.support.gpu.fake_nvml import FakeNvml

if __name__ == "__main__":
    found = devices.choose(parse({}), 1, Nvml(FakeNvml()))
    print(json.dumps([found.kind, found.backend, found.reason, torch.cuda.is_initialized()]))
"""


def told(program: str, tmp_path_factory: pytest.TempPathFactory, **variables: str) -> Any:
    """What a program prints that a fresh interpreter runs."""
    file = tmp_path_factory.mktemp("program") / "program.py"
    file.write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DIST_USE_NCCL2"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    command = [sys.executable, str(file)]
    done = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@two_classes
def test_nccl_is_the_class_of_all_releases(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert told(CREATOR, tmp_path_factory) == "_create_nccl_process_group"
    asked = told(CREATOR, tmp_path_factory, TORCH_DIST_USE_NCCL2="1")
    assert asked == "_create_nccl2_process_group"


@cuda_build
def test_nccl_calls_can_be_dumped() -> None:
    from torch._C import _distributed_c10d

    assert hasattr(_distributed_c10d, "_dump_nccl_trace_json")


@cuda_build
def test_a_forked_rank_may_use_cuda(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The server has loaded torch, and touched nothing of CUDA that a fork would break."""
    assert told(FORKED, tmp_path_factory) == [False, False, True]


@cuda_build
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpus_that_only_the_driver_shows_are_not_chosen(tmp_path_factory: pytest.TempPathFactory) -> None:
    """NVML is played; that torch cannot use CUDA, and why not, is a real process's word."""
    kind, backend, reason, touched = told(CHOSEN, tmp_path_factory)
    assert (kind, backend, touched) == ("cpu", "gloo", False)
    assert reason.startswith(
        f"torch {torch.__version__} (built for CUDA {torch.version.cuda}) cannot use GPUs: "
    )
