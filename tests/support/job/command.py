"""``workbench run`` as a person starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TRAINER = Path(__file__).with_name("trainer.py")
ROOT = Path(__file__).parents[3]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def environment(**more: str) -> dict[str, str]:
    """Without this checkout on any path: a job has none of it."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return known | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def arguments(home: Path, *job: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "workbench", "run", "--home", str(home), *options, "--", *job]


def start(
    home: Path, *job: str, options: tuple[str, ...] = (), cwd: Path | None = None, **more: str
) -> subprocess.Popen[str]:
    """It, going on."""
    known = environment(**more)
    return subprocess.Popen(
        arguments(home, *job, options=options),
        env=known | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [more.get("PYTHONPATH")])])},
        cwd=cwd or home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    home: Path, *job: str, options: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """It, to its end."""
    home.mkdir(exist_ok=True)
    process = start(home, *job, options=options, **more)
    out, err = process.communicate(timeout=110)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def only_run(home: Path) -> Path:
    """The one run of a home."""
    [folder] = [path.parent for path in home.glob("*/status.json")]
    return folder
