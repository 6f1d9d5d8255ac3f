"""An environment for each public trainer, beside this project's torch, and what its own code knows.

``python -m tests.support.trainers.environments`` makes those that are missing in ``.targets`` and writes
``known_keys.json`` from them; names after it take those alone. pip's own settings (an index) hold here too. What a
trainer is asked, and where, stands in the module of its name beside this one.
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

from tests.support.trainers.packages import Environment
from workbench.export import targets
from workbench.export.mapping.documents import KNOWN
from workbench.export.targets import find_target

ROOT = Path(__file__).parents[3]
PLACE = Path(os.environ.get("WORKBENCH_TARGETS") or ROOT / ".targets")


def trainers() -> dict[str, Any]:
    """Of each export target that is a public trainer, the module here that asks it."""
    names = [target.name for target in targets.TARGETS if target.format is not None]
    return {name: importlib.import_module(f"tests.support.trainers.{name}") for name in names}


TRAINERS = trainers()
#: What else reads files of ours, or writes files that we read.
OTHERS = {name: importlib.import_module(f"tests.support.trainers.{name}") for name in ("k8s", "sweep")}
_ENVIRONMENTS: dict[str, Environment] = {
    one.ENVIRONMENT.name: one.ENVIRONMENT for one in (TRAINERS | OTHERS).values()
}
#: By environment: what pip is given, and what is unpacked besides.
PACKAGES = {name: one.packages for name, one in _ENVIRONMENTS.items()}
UNPACKED = {name: one.newer for name, one in _ENVIRONMENTS.items() if one.newer is not None}
#: The environment that has a format's trainer.
OF_FORMAT: dict[str, str] = {name: one.ENVIRONMENT.name for name, one in (TRAINERS | OTHERS).items()}


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
    asked = _ENVIRONMENTS[name]
    _installed(python, [one for one in asked.packages if _name(one) not in asked.alone])
    for one in asked.packages:
        if _name(one) in asked.alone:
            _installed(python, ["--no-deps", one])
    if asked.newer is not None:
        _unpack(python, site, *asked.newer)
    if asked.build:
        subprocess.run([python, "-c", asked.build], check=True, env=variables(name))
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


def knowledge(form: str) -> dict[str, Any]:
    """A format's entry of ``known_keys.json``, taken from the trainer's code."""
    table = find_target(form).format
    assert table is not None
    used = json.dumps(sorted({key for row in table.rows for key in row.keys}))
    found: dict[str, Any] = json.loads(asked(form, "ask", form, "known", used).splitlines()[-1])
    return found


def problems(form: str, files: list[dict[str, Any]]) -> list[str]:
    """What a format's trainer says against each of the files, of {"text", "ranks"}; "" if nothing."""
    found: list[str] = answers(form, "problems", files)
    return found


def answers(form: str, what: str, given: Any) -> Any:
    """What a function of a format's module says of something, in its environment."""
    return json.loads(asked(form, "ask", form, what, given=json.dumps(given)).splitlines()[-1])


if __name__ == "__main__":
    entries = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    for form in sys.argv[1:] or TRAINERS:
        entries[form] = knowledge(form)
    text = json.dumps(dict(sorted(entries.items())), indent=1, sort_keys=True)
    KNOWN.write_text(text + "\n", encoding="utf-8")
