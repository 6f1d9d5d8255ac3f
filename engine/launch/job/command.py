"""The command of a foreign job: checked, written down without secrets, and given what has its ranks recorded."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import engine
from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.run_folder import COMMANDS, LOGS, RECORDS, ForeignJob, write_json
from profilers.rank import hook
from profilers.rank.job_rank import SEATS

#: Where a process of the job finds the run's folder.
FOLDER_VARIABLE = "WORKBENCH_RECORD"
#: Variables that are written down with their values; of all others not even the name is.
_TOLD = ("NCCL_", "GLOO_", "CUDA_", "PYTORCH_", "OMP_", "MKL_", "TORCH_", "TORCHELASTIC_", "HIP_", "ROCR_", "RCCL_",
         "ACCELERATE_", "DEEPSPEED_", "SLURM_JOB_ID", "VIRTUAL_ENV", "CONDA_DEFAULT_ENV")  # fmt: skip
_SECRET = re.compile(r"token(?!izer|s\b|_)|secret|passw|credential|auth|api[-_]?key|cookie", re.IGNORECASE)
_HIDDEN = "***"


def program_path(command: Sequence[str]) -> str:
    """Where the program of a command is.

    Raises:
        InputError: there is no command, or no such program.
    """
    if not command:
        raise InputError("command", None, "is missing; give it after --: workbench run -- torchrun train.py")
    path = shutil.which(command[0])
    if path is None:
        is_there = Path(command[0]).exists()
        remedy = "is no program that can be started" if is_there else "was not found"
        remedy += f"; for a script give its interpreter: python {command[0]}" if is_there else ""
        raise InputError("command", command[0], remedy)
    return path


def create(home: Path, command: Sequence[str]) -> Path:
    """A new run folder of a job.

    Raises:
        InputError: it cannot be written.
    """
    folder = home / run_folder.new_run_id()
    with run_folder.check_writable(home):
        for part in (RECORDS, LOGS, COMMANDS, SEATS):
            (folder / part).mkdir(parents=True, exist_ok=True)
        job = ForeignJob(
            hide_secrets(command),
            str(Path.cwd()),
            socket.gethostname(),
            _recorded_variables(_own_variables()),
        )
        job.write(folder)
        labels = {"purpose": "job"}
        status = {"id": folder.name, "state": "starting", "labels": labels, "created_unix": time.time()}
        write_json(folder / run_folder.STATUS, status)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """This process's, with what has the job's ranks recorded."""
    own_environment = _own_variables()
    before = own_environment.get("PYTHONPATH")
    path = os.pathsep.join([str(Path(hook.__file__).parent), *filter(None, [before])])
    # What would be seen at once on a terminal is not held back on the way to one.
    at_once = {"PYTHONUNBUFFERED": "1"} if sys.stdout.isatty() else {}
    return at_once | own_environment | {"PYTHONPATH": path, FOLDER_VARIABLE: str(folder.resolve())}


def _own_variables() -> dict[str, str]:
    """The environment without what importing this project has added to it."""
    return {name: value for name, value in os.environ.items() if name not in engine.ADDED}


def hide_secrets(command: Sequence[str]) -> list[str]:
    """The command with the values of options hidden whose names speak of a secret."""
    words, hide = [], False
    for word in command:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            words.append(_HIDDEN)
            hide = False
        elif _SECRET.search(name) and equals:
            words.append(f"{name}={_HIDDEN}")
        else:
            words.append(word)
            hide = word.startswith("-") and _SECRET.search(word) is not None
    return words


def _recorded_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(_TOLD) and not _SECRET.search(name)
    }
