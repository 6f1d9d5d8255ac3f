"""Lets a tuner turn the values of a training loop that is not this project's, between two steps on all ranks.

Needs torch alone, once a loop begins: import it, or copy the file. Two files in a folder are all that passes between
loop and tuner (``docs/foreign.md``): ``values.json``, what the tuner wants, and ``trainer.jsonl``, what the loop tells.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

#: What the tuner wants: ``{"number": 3, "values": {...}}``, replaced as a whole by one with a higher number.
VALUES = "values.json"
#: What the loop tells, one JSON document a line: ``begin``, ``step``, ``turned``, ``refused``, ``end``.
TOLD = "trainer.jsonl"
#: Where the folder is, if the tuner starts the trainer.
FOLDER_VARIABLE = "WORKBENCH_FOLDER"

Values = dict[str, Any]


class Tuned:
    """The values of one training loop: ``begin_step`` and ``end_step`` around each step, on every rank.

    ``values`` are those that hold now; the loop begins with what the tuner wants, else with the ones given. Ranks
    agree through a gloo group of their own, so the loop may use any backend.
    """

    def __init__(self, folder: str | Path, values: Values) -> None:
        # What tunes reads the names above, and its page has no torch.
        torch, dist = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
        self._folder, self._dist = Path(folder), dist
        has_peers = dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo") if has_peers else None
        self._first_rank = not has_peers or dist.get_rank() == 0
        self._asked: Any = None
        self._seen = torch.zeros(1, dtype=torch.int64)
        self._document = self._read()
        document = self._broadcast(self._document)
        self._number = int(document.get("number", 0))
        self.values = values | {
            key: value for key, value in document.get("values", {}).items() if key in values
        }
        self._step, self._began = 0, time.perf_counter()
        self._file: IO[str] | None = None
        if self._first_rank:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / TOLD).open("w", encoding="utf-8", buffering=1)
        self._tell(event="begin", values=self.values, ranks=dist.get_world_size() if has_peers else 1)

    def __enter__(self) -> Tuned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._wait()
            self._tell(event="end")

    def begin_step(self, step: int, apply: Callable[[Values], None]) -> None:
        """Between two steps: where the tuner wants other values, ``apply`` them, all ranks before the same step.

        ``apply`` gets all values. If it raises ValueError on any rank, it is called again with those from before on
        every rank, and the tuner is told why.
        """
        self._step, self._began = step, time.perf_counter()
        number = self._wait()
        if number > self._number:
            self._number = number
            wanted = self._broadcast(self._document).get("values", {})
            if problem := self._problem(apply, self.values | wanted):
                apply(self.values)
                self._tell(event="refused", number=number, step=step, why=problem)
            else:
                self.values |= wanted
                self._tell(event="turned", number=number, step=step, values=self.values)
        self._ask()

    def end_step(self, tokens: int | None = None, loss: float | None = None) -> None:
        """The step is done; ``tokens`` are those of all ranks."""
        seconds = time.perf_counter() - self._began
        self._tell(event="step", step=self._step, seconds=seconds, tokens=tokens, loss=loss)

    #: Their earlier names, for loops that were written with them.
    before, after = begin_step, end_step

    def _problem(self, apply: Callable[[Values], None], values: Values) -> str:
        """Why some rank cannot have these values; the same on all ranks."""
        problem = ""
        if unknown := sorted(set(values) - set(self.values)):
            problem = f"{', '.join(unknown)}: unknown to this trainer"
        else:
            try:
                apply(values)
            except ValueError as error:
                problem = str(error) or "refused"
        if self._group is None:
            return problem
        problems: list[Any] = [None] * self._dist.get_world_size()
        self._dist.all_gather_object(problems, problem, group=self._group)
        return next(filter(None, problems), "")

    def _ask(self) -> None:
        """Rank 0 looks for other values; the others hear of it while the step goes, so nobody waits."""
        if self._first_rank:
            self._document = self._read()
        self._seen[0] = int(self._document.get("number", 0))
        if self._group is not None:
            self._asked = self._dist.broadcast(self._seen, src=0, group=self._group, async_op=True)

    def _wait(self) -> int:
        if self._asked is not None:
            self._asked.wait()
            self._asked = None
        return int(self._seen[0])

    def _broadcast(self, document: Values) -> Values:
        if self._group is None:
            return document
        box = [document]
        self._dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def _read(self) -> Values:
        try:
            document = json.loads((self._folder / VALUES).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def _tell(self, **event: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(event) + "\n")


def folder_given(default: str | Path) -> Path:
    """The folder of a tuner that starts this trainer, else the default."""
    return Path(os.environ.get(FOLDER_VARIABLE, default))
