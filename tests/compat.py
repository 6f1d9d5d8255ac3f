"""A chosen part of the suite under every torch release line that is supported, each in an environment of its own.

``python -m tests.compat`` makes one environment at a time in ``.compat``: the newest patch release of a line with what
it depends on (on Linux a CUDA build, which needs no GPU to start), the other packages as in ``requirements.lock``. It
runs the parts below, writes ``benchmarks/results/compat.md`` after each and removes the environment. A stopped run goes
on where it was; what passed at this commit is not run again unless ``--anew``. ``--lines 2.11 2.15`` takes those only,
``--parts sequence`` that part.
A build takes up to 8 GB of disk. pip's own settings (an index, a constraint) hold here too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks._table import commit

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".compat"
RESULTS = ROOT / "benchmarks" / "results" / "compat.md"
LINES = ("2.11", "2.12", "2.13", "2.14", "2.15")
#: Of one part, in seconds.
LIMIT = 600
#: What depends on torch, in parts of a few minutes.
PARTS = {
    "release": """tests/engine/backends/test_torch_release.py
        tests/engine/backends/test_every_collective.py
        tests/engine/rank/test_environment_report_nccl.py
        tests/test_house.py::test_the_page_does_not_load_torch
        tests/test_house.py::test_ranks_need_no_tuner_page_or_command_line""",
    "profilers": """tests/profilers""",
    "matrix": """tests/engine/runs/test_matrix.py""",
    "layouts": """tests/engine/runs/test_exact.py
        tests/engine/runs/test_plain.py
        tests/engine/comm/test_channel.py
        tests/engine/model/experts/test_dispatch.py
        tests/engine/schedules/test_torch.py
        tests/engine/runs/test_precision.py
        tests/engine/parallel/test_expert.py""",
    "sequence": """tests/engine/parallel/context/test_attention.py
        tests/engine/parallel/context/test_ring.py
        tests/engine/comm/test_channel_hops.py
        tests/engine/runs/test_overlap.py
        tests/engine/comm/test_gloo_exchange.py
        tests/engine/parallel/test_tensor_chunked.py""",
    "compression": """tests/engine/compression/methods/test_row_codec.py
        tests/engine/compression/test_compressor.py
        tests/engine/compression/methods/test_powersgd.py
        tests/engine/compression/test_interface.py
        tests/engine/compression/test_runs.py
        tests/engine/parallel/data/test_fsdp_compression.py""",
    "outer": """tests/engine/parallel/local_sgd/test_runs.py
        tests/engine/parallel/local_sgd/test_checkpoint.py
        tests/engine/parallel/local_sgd/test_co2.py
        tests/engine/runs/test_wire_bytes.py""",
    "checkpoints": """tests/engine/checkpoint/test_checkpointer.py
        tests/engine/checkpoint/test_resume.py""",
    "runs": """tests/engine/parallel/test_compiler_cache.py
        tests/engine/runs/test_sampling.py
        tests/engine/dry_run/test_check.py
        tests/engine/dry_run/test_rank.py
        tests/engine/footprint/test_flops.py
        tests/engine/footprint/test_footprint.py
        tests/engine/launch/test_hang.py""",
    "memory": """tests/engine/runs/test_memory.py
        tests/engine/model/test_activation_memory.py
        tests/engine/rank/test_command_reader.py""",
}
#: Draws the same cases of long lists of cases under each release.
SEED = "16"
_OPTIONS = ["-m", "not slow", "-q", "-rs", "-p", "no:cacheprovider"]
_HEADER = [
    "torch",
    "CUDA",
    "NCCL",
    "Python",
    "part",
    "outcome",
    "counts",
    "seconds",
    "commit",
    "finished (UTC)",
]
_FACTS = """
import json, platform, torch
nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
facts = [torch.__version__, torch.version.cuda or "-", ".".join(map(str, nccl)) or "-", platform.python_version()]
print(json.dumps(facts))
"""


class Environment(NamedTuple):
    """A virtual environment with one torch; ``facts`` are the first cells of its rows."""

    python: Path
    facts: list[str]


def made(line: str) -> Environment:
    """The environment of a release line: the one that a stopped run left, or a new one.

    Raises:
        subprocess.CalledProcessError: pip could not install it; what it said is on stderr.
    """
    python, ready = PLACE / "bin" / "python", PLACE / "ready"
    if not ready.exists() or ready.read_text(encoding="utf-8") != line:
        shutil.rmtree(PLACE, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", PLACE], check=True)
        # No cache: it would keep some gigabytes of each release.
        _pip(python, "install", "-q", "--no-cache-dir", f"torch=={line}.*")
        _pip(python, "install", "-q", *_others(python))
        _pip(python, "check")
        ready.write_text(line, encoding="utf-8")
    facts = subprocess.run([python, "-c", _FACTS], check=True, capture_output=True, text=True).stdout
    return Environment(python, json.loads(facts))


def _others(python: Path) -> list[str]:
    """What the lock pins and torch did not bring."""
    listing = _pip(python, "list", "--format=json")
    brought = {_normal(package["name"]) for package in json.loads(listing)}
    pins = [
        line for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if "==" in line
    ]
    return [pin for pin in pins if _normal(pin.partition("==")[0]) not in brought]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip(python: Path, *arguments: str) -> str:
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _words(error: subprocess.CalledProcessError) -> str:
    return (
        f"'{' '.join(map(str, error.cmd[1:6]))} ...' ended with {error.returncode}; what it said stands above"
    )


def run(environment: Environment, part: str) -> tuple[list[str], list[str]]:
    """A part's row of the table, and pytest's lines about skipped tests."""
    command = [environment.python, "-m", "pytest", *_OPTIONS, *PARTS[part].split()]
    begin, output = time.monotonic(), ""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"WORKBENCH_TEST_SEED": SEED},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as late:
        print((late.stdout or b"").decode(errors="replace"))  # bytes, whatever was asked for
        outcome, counts = "failed", f"not done after {LIMIT} s"
    else:
        output = done.stdout
        print(output)
        outcome = "passed" if done.returncode == 0 else "failed"
        counts = (output.strip().splitlines() or ["no output"])[-1].strip("= ").split(" in ")[0]
    spent = f"{time.monotonic() - begin:,.0f}"
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    skipped = [line for line in output.splitlines() if line.startswith("SKIPPED")]
    return [*environment.facts, part, outcome, counts, spent, commit() or "unknown", at], skipped


def write(rows: list[list[str]], skips: list[str]) -> None:
    """Rows and skipped tests, whole or not at all."""
    lines = [f"| {' | '.join(row)} |" for row in (_HEADER, ["---"] * len(_HEADER), *rows)]
    where = f"{os.cpu_count()} CPU cores ({platform.machine()}), {platform.system()}, no GPU is used; ranks are gloo's."
    text = ["# Torch releases", "", where, "", *lines, "", "Skipped:", "", *skips, ""]
    RESULTS.parent.mkdir(exist_ok=True)
    fresh = RESULTS.with_suffix(".tmp")
    fresh.write_text("\n".join(text), encoding="utf-8")
    fresh.replace(RESULTS)


def before(
    asked: Sequence[str], anew: bool = False, parts: Sequence[str] = ()
) -> tuple[list[list[str]], list[str]]:
    """Rows and skipped tests that stay: what is not asked for, and of the rest what passed at this commit, or nothing.
    Without ``parts`` all of them are asked for.
    """
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    table = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
    rows = [[cell.strip() for cell in line] for line in table[2:]]
    passed = [] if anew else [row for row in rows if row[5] == "passed" and row[8] == commit()]
    kept = [row for row in rows if row in passed or not _of(row, asked) or (parts and row[4] not in parts)]
    return kept, [line for line in lines if any(line.startswith(_skipping(row)) for row in kept)]


def _of(row: list[str], lines: Iterable[str]) -> bool:
    return any(row[0].startswith(f"{line}.") for line in lines)


def _skipping(row: list[str]) -> str:
    return f"- torch {row[0]}, {row[4]}: "


def main() -> int:
    """Run what is left; 1 if a part failed or an environment could not be made."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--lines", nargs="*", choices=LINES, help="these release lines (default: all)")
    arguments.add_argument("--parts", nargs="*", choices=PARTS, help="these parts (default: all)")
    arguments.add_argument("--anew", action="store_true", help="run every part, whatever the table says")
    arguments.add_argument("--keep", action="store_true", help="leave the last environment where it is")
    given = arguments.parse_args()
    asked, parts = tuple(given.lines or LINES), tuple(given.parts or ())
    rows, skips = before(asked, given.anew, parts)
    for line in asked:
        have = {row[4] for row in rows if _of(row, [line])}
        for part in [part for part in parts or PARTS if part not in have]:
            environment = made(line)
            print(f"torch {environment.facts[0]}: {part}", file=sys.stderr)
            row, skipped = run(environment, part)
            rows = sorted([*rows, row])
            skips = sorted([*skips, *(_skipping(row) + text.removeprefix("SKIPPED ") for text in skipped)])
            write(rows, skips)
        if not given.keep:
            shutil.rmtree(PLACE, ignore_errors=True)
    return int(any(row[5] != "passed" for row in rows if _of(row, asked)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failed:
        sys.exit(f"no environment: {_words(failed)}")
