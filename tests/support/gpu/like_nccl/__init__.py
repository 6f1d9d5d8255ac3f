"""A process-group backend for CPU ranks: gloo with the habits of torch's ProcessGroupNCCL. Importing registers it.

- A call with ``asyncOp=False`` is through when it returns, and returns no work. A barrier is such a call.
- Other calls run later, on a thread of their communicator, one after the other as they were posted.
- Communicators are made at the first call: that of a group, of collectives and batched messages, and one for each
  pair of ranks with messages that are not batched. There the host waits for all members; if one does not come in
  ``LIKE_NCCL_PATIENCE_SECONDS``, the call fails and names rank, call, pair and group. Once two groups are made, their
  calls may come in another order on each rank, as torch gives each group a stream of its own; what NCCL's kernels do
  there when a GPU has no room for both is not shown here.
- A batch of messages is one call of the group. Messages of a pair that are no batch go one after the other, in both
  directions; with ``LIKE_NCCL_EAGER`` they share the group's communicator, as where groups are bound to a device.
- A call whose peer is gone does not fail, it never ends. ``shutdown`` waits for all calls, after ``abort`` for none,
  and who waits for one is told.

``LIKE_NCCL_DELAY_SECONDS`` is how much later a call runs that is not waited for at once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

NAME = "like_nccl"
#: What ``WORKBENCH_BACKEND`` is set to.
BACKEND = f"{__name__}:{NAME}"
_SOURCE = Path(__file__).with_name("like_nccl.cpp")


def why_not() -> str | None:
    """Why it cannot be built here; None if it can."""
    return None if shutil.which("g++") else "no C++ compiler: g++ is not there"


def build() -> Path:
    """The library: built once for a source and a torch, kept where torch keeps its users' extensions.

    Raises:
        AssertionError: it did not compile.
    """
    usual = Path.home() / ".cache" / "torch_extensions"
    digest = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or usual) / f"{NAME}_{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        scratch = library.with_suffix(f".{os.getpid()}")
        done = subprocess.run(_command(scratch), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        scratch.replace(library)
    return library


def _command(target: Path) -> list[str]:
    root = Path(torch.__file__).parent
    folders = [
        root / "include",
        root / "include/torch/csrc/api/include",
        Path(sysconfig.get_path("include")),
    ]
    return [
        *("g++", "-O1", "-w", "-shared", "-fPIC", "-std=c++20", f"-DTORCH_EXTENSION_NAME={NAME}"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *[f"-I{folder}" for folder in folders],
        *(str(_SOURCE), "-o", str(target), f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
    ]


def _library() -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, build())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _create(options: Any, _: object) -> Any:
    store, rank, size = options.store, options.group_rank, options.group_size
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout=options.timeout)
    return _library().create(dist.PrefixStore("collective_calls", store), rank, size, gloo, options.group_id)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
