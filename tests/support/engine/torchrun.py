"""Real runs that torchrun starts, on this host or on some that only differ by name."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.config.run_config import RunConfig
from engine.run import progress
from tests.support.runs import small
from tests.support.waiting import wait_until

START_SECONDS = 60.0
_NAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh"]


def _reason() -> str | None:
    try:
        tried = subprocess.run([*_NAMED, "probe", "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else None


REASON = _reason()
needs_names = pytest.mark.skipif(REASON is not None, reason=f"a host cannot be named: {REASON}")


def tiny(**values: object) -> RunConfig:
    """Two ranks and steps of some milliseconds."""
    thin = {
        "model__layers": 1,
        "model__hidden": 16,
        "model__heads": 2,
        "model__kv_heads": 2,
        "parallel__dp": 2,
    }
    return small(**{**thin, "train__steps": 100_000, "train__validation_batches": 0, **values})


@contextlib.contextmanager
def torchrun(
    config: RunConfig, out: Path, rendezvous: list[str], name: str | None = None
) -> Iterator[subprocess.Popen[str]]:
    """torchrun with some arguments, on a host of that name; what still runs afterwards is killed."""
    out.mkdir(exist_ok=True)
    (out.parent / "config.json").write_text(config.dumps(), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", *rendezvous,
               "--log-dir", str(out.parent / "torchrun"), "-m", "engine.launch.torchrun",
               str(out.parent / "config.json"), "--out", str(out)]  # fmt: skip
    named = [] if name is None else [*_NAMED, name]
    known = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([*named, *command], env=os.environ | known, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:  # fmt: skip
        try:
            yield process
        finally:
            _kill(process.pid)


def _kill(pid: int) -> None:
    """torchrun gives each rank a session of its own, so that its own group does not hold them."""
    with contextlib.suppress(psutil.Error):
        for rank in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                rank.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def on_one_host(config: RunConfig, out: Path) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Two ranks."""
    return torchrun(config, out, ["--standalone", "--nproc-per-node", "2"])


def of_node(number: int, port: int) -> list[str]:
    """Arguments of one of two nodes with a rank each."""
    return ["--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", str(port),
            "--nproc-per-node", "1"]  # fmt: skip


def at_step(out: Path, step: int) -> Path:
    """The run's folder, once rank 0 has passed a step."""

    def there() -> bool:
        return any(
            found and found[0].step >= step for found in map(progress.read, out.glob("*-*-*")) if found
        )

    assert wait_until(there, START_SECONDS), list(out.glob("*/*"))
    (folder,) = out.glob("*-*-*")
    return folder
