"""The process that the fake device lives in: started when first asked, and again after it died."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.config.run_config import RunConfig

ROOT = Path(__file__).parents[4]
PATIENCE_SECONDS = 250.0


class FakeCuda:
    """Runs configurations one after the other; torch is imported and its shapes are learned once for all of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._said = Path(self._folder.name) / "said"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._end()
        self._folder.cleanup()

    def run(self, config: RunConfig, rank: int = 0, plant: str | None = None) -> dict[str, Any]:
        """What ``rank.answer`` tells of one rank's run, with one of ``plants.PLANTS`` in it.

        Raises:
            RuntimeError: the process died or gave no answer; with the last lines that it printed.
        """
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        asked = {"config": json.loads(config.dumps()), "rank": rank, "plant": plant}
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            line = process.stdout.readline() if _readable(process) else ""
        except BrokenPipeError:
            line = ""
        if not line:
            self._end()
            raise RuntimeError(f"no answer within {PATIENCE_SECONDS:.0f} s, or died:\n{self._last_lines()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            with self._said.open("w", encoding="utf-8") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.gpu.fake_cuda.rank"],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _last_lines(self) -> str:
        return self._said.read_text("utf-8", "replace")[-2000:]


def _readable(process: subprocess.Popen[str]) -> bool:
    """Whether there is something to read in time; the process writes whole lines."""
    with selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        return bool(selector.select(PATIENCE_SECONDS))
