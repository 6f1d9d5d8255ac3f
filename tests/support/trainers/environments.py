"""An environment for each public trainer, beside this project's torch, and what its own code knows.

``python -m tests.support.trainers.environments`` makes those that are missing in ``.targets`` and writes
``known_keys.json`` from them; names after it take those alone. pip's own settings (an index) hold here too.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from workbench.export.mapping.documents import KNOWN
from workbench.export.mapping.rows import Row

ROOT = Path(__file__).parents[3]
PLACE = Path(os.environ.get("WORKBENCH_TARGETS") or ROOT / ".targets")
#: By environment: what pip is given. torch and what it brings is this project's.
PACKAGES: dict[str, tuple[str, ...]] = {
    "hf": ("transformers==5.23.0", "accelerate==1.15.0"),
    "deepspeed": ("deepspeed==0.19.8",),
    "automodel": ("transformers==5.23.0", "accelerate==1.15.0", "nemo-automodel==0.7.0"),
    "torchtitan": ("torchtitan==0.3.0", "triton==3.9.0", "omegaconf==2.4.0"),
}
#: Packages whose dependencies are left out: parsing needs none of them.
ALONE = ("nemo-automodel",)
#: Wheels of a newer Python that are unpacked into an environment: pip offers older ones.
UNPACKED = {"torchtitan": ("megatron-core==0.19.2", "3.12")}
#: What an environment compiles at its first use: an interrupted build leaves a lock that later ones wait for without
#: end, so it is part of making the environment, in a folder of its own.
BUILT = {
    "deepspeed": "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)"
}
#: The environment that has a format's trainer.
OF_FORMAT = {
    "hf": "hf",
    "accelerate": "hf",
    "deepspeed": "deepspeed",
    "megatron": "torchtitan",
    "torchtitan": "torchtitan",
    "automodel": "automodel",
}


def made(name: str) -> Path:
    """The interpreter of an environment, which is made if it is not whole; of several that ask one makes it.

    Raises:
        subprocess.CalledProcessError: pip could not install it, or it cannot be built.
    """
    PLACE.mkdir(exist_ok=True, parents=True)
    with (PLACE / f"{name}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        return _made(name)


def _made(name: str) -> Path:
    folder = PLACE / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = " ".join(PACKAGES[name])
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        _lend_packages(folder)
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = _lend_packages(folder)
    _installed(python, [one for one in PACKAGES[name] if _name(one) not in ALONE])
    for one in PACKAGES[name]:
        if _name(one) in ALONE:
            _installed(python, ["--no-deps", one])
    if name in UNPACKED:
        _unpack(python, site, *UNPACKED[name])
    if name in BUILT:
        subprocess.run([python, "-c", BUILT[name]], check=True, env=variables(name))
    ready.write_text(wanted, encoding="utf-8")
    return python


def _lend_packages(folder: Path) -> Path:
    """Torch and all else of this checkout's environment, for one that another checkout may have made; returns where an
    environment's own packages are.
    """
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return site


def variables(name: str) -> dict[str, str]:
    """The variables that programs of an environment are started with: no GPU, and compiled parts in its folder."""
    here = {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false",
            "TORCH_EXTENSIONS_DIR": str(PLACE / name / "extensions"),
            "PATH": os.pathsep.join([str(PLACE / name / "bin"), os.environ["PATH"]])}  # fmt: skip
    return os.environ | here


def _name(package: str) -> str:
    return package.partition("==")[0]


def _installed(python: Path, what: list[str]) -> None:
    quiet = ["-q", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([python, "-m", "pip", "install", *quiet, *what], check=True)


def require(form: str) -> None:
    """Skips a test whose trainer cannot be installed here."""
    try:
        made(OF_FORMAT[form])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no environment for {form}: '{' '.join(map(str, error.cmd[:6]))} ...' failed")


def _unpack(python: Path, site: Path, package: str, newer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        where = ["--no-deps", "--only-binary", ":all:", "--python-version", newer, "-d", folder]
        platforms = [f"manylinux_2_28_{platform.machine()}", f"manylinux_2_24_{platform.machine()}"]
        wanted = [part for name in platforms for part in ("--platform", name)]
        subprocess.run([python, "-m", "pip", "download", "-q", *where, *wanted, package], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def asked(form: str, script: str, *arguments: str, given: str = "") -> str:
    """What a script of this folder prints, run with a format's environment.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(
        [made(OF_FORMAT[form]), "-m", f"tests.support.trainers.{script}", *arguments],
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=variables(OF_FORMAT[form]),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _rows(form: str) -> tuple[Row, ...]:
    rows: tuple[Row, ...] = importlib.import_module(f"workbench.export.formats.{form}").ROWS
    return rows


def knowledge(form: str) -> dict[str, Any]:
    """A format's entry of ``known_keys.json``, taken from the trainer's code."""
    used = sorted({key for row in _rows(form) for key in row.keys})
    found: dict[str, Any] = json.loads(asked(form, f"known_{form}", json.dumps(used)).splitlines()[-1])
    return found


if __name__ == "__main__":
    entries = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    for form in sys.argv[1:] or OF_FORMAT:
        entries[form] = knowledge(form)
    text = json.dumps(dict(sorted(entries.items())), indent=1, sort_keys=True)
    KNOWN.write_text(text + "\n", encoding="utf-8")
