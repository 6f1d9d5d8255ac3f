"""A recorded table as ``execute``: what was measured once answers a study, without any ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published import playbook
from benchmarks.published.columns import Columns, take
from engine.config.errors import InputError
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from tests.support.studies.offline import OfflineExecutor, build_summary
from tuning.execution.executor import Ran
from tuning.predict.model.cases import Array
from tuning.spec.study_file import StudyFile, parse

#: What tells one configuration of a cell from another, in a table and in a run's configuration.
KEYS: Mapping[str, str] = {
    "dp": "parallel.dp",
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "zero_stage": "parallel.zero_stage",
    "micro_batch": "batch.micro_batch",
    "global_batch": "batch.global_batch",
}
#: What a table's status says of a run that failed; any other one cannot be told from a lack of memory.
_ENDINGS = {
    "oom": Ending.OOM,
    "timeout": Ending.TIMED_OUT,
    "timed_out": Ending.TIMED_OUT,
    "crashed": Ending.CRASHED,
    "diverged": Ending.DIVERGED,
}
#: Steps of a study of recorded runs: one is reported, the others are asked for by the study's rules.
_STEPS = 2


@dataclass(frozen=True)
class Recorded:
    """One cell of a table, a model on so many nodes: a row for each configuration. ``seconds`` of a step are the median
    of its successes, NaN where all its trials failed, and so are ``memory_bytes``, the peak of the fullest device that
    was logged; ``status`` is what the table says of the first of those.
    """

    model: str
    nodes: int
    columns: Columns
    seconds: Array
    memory_bytes: Array
    status: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def runs(self) -> bool:
        """Whether any configuration had a success."""
        return bool(np.isfinite(self.seconds).any())

    def key(self, row: int) -> tuple[int, ...]:
        """A configuration as whole numbers, in the order of ``KEYS``."""
        return tuple(int(self.columns[name][row]) for name in KEYS)


def cells(trials: Columns) -> list[Recorded]:
    """Every cell of a table that ``playbook.trials`` read, by model and nodes."""
    names = sorted(set(zip(trials["model"].tolist(), trials["nodes"].tolist(), strict=True)))
    return [_cell(trials, str(model), int(nodes)) for model, nodes in names]


def cell(model: str, nodes: int, path: Path = playbook.TRIALS) -> Recorded:
    """One cell of a table with the playbook's columns.

    Raises:
        InputError: the table cannot be read, or has no such cell.
    """
    known = {(one.model, one.nodes): one for one in cells(playbook.trials(path))}
    if (model, nodes) not in known:
        names = ", ".join(f"{one[0]} on {one[1]}" for one in known)
        raise InputError("replay", f"{model} on {nodes} nodes", f"the table has {names}")
    return known[model, nodes]


def study(recorded: Recorded, **changes: Any) -> StudyFile:
    """The study over exactly the values that a cell was recorded with; ``changes`` are keys of a study file."""
    columns = {name: sorted(set(recorded.columns[name].tolist())) for name in KEYS if name != "dp"}
    sizes = {name: int(recorded.columns[name][0]) for name in ("layers", "hidden", "heads", "kv_heads")}
    model = sizes | {
        "ffn_hidden": int(recorded.columns["ffn_hidden"][0]),
        "vocabulary": int(recorded.columns["vocabulary"][0]),
    }
    tree: dict[str, Any] = {
        "name": f"replay-{recorded.model}-{recorded.nodes}",
        "ranks": int(recorded.columns["devices"][0]),
        "base": {
            "model": model,
            "data": {"sequence_length": int(recorded.columns["sequence"][0])},
            "batch": {"global_batch": columns.pop("global_batch")[0]},
            "train": {"steps": _STEPS, "warmup": 1},
        },
        "space": {KEYS[name]: [int(value) for value in values] for name, values in columns.items()},
        "confirm_repeats": 0,
    }
    return parse(tree | changes)


class Replay(OfflineExecutor):
    """``Execute`` of one cell. What was not recorded is illegal here: nobody measured it."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self._recorded = recorded
        self._rows = {recorded.key(row): row for row in range(len(recorded))}

    def play(self, config: RunConfig, run: str) -> Ran:
        """What the table says."""
        row = self._rows.get(self._key(config))
        if row is None:
            reason = f"the table of {self._recorded.model} on {self._recorded.nodes} nodes has no such row"
            return RunOutcome(Ending.ILLEGAL, reason), self._summary(config, run, None)
        return outcome(self._recorded, row), self._summary(config, run, row)

    def _key(self, config: RunConfig) -> tuple[int, ...]:
        flat = config.flat()
        return tuple(int(flat[name]) for name in KEYS.values())

    def _summary(self, config: RunConfig, run: str, row: int | None) -> RunSummary:
        axes = ("dp", "tp", "pp", "cp", "ep", "zero_stage")
        known: dict[str, Any] = {
            "layout": {axis: getattr(config.parallel, axis) for axis in axes},
            "world_size": config.parallel.world_size or int(self._recorded.columns["devices"][0]),
            "parameters": resolve(config.model).parameters,
        }
        if row is None or not np.isfinite(self._recorded.seconds[row]):
            return build_summary(run, config, [], **known)
        seconds, memory = float(self._recorded.seconds[row]), float(self._recorded.memory_bytes[row])
        known["peak_memory_bytes"] = round(memory) if np.isfinite(memory) else None
        step = dict.fromkeys(("median", "p95", "low", "high"), seconds)
        return build_summary(run, config, [seconds], step_seconds=step, **known)


def outcome(recorded: Recorded, row: int) -> RunOutcome:
    """How a recorded configuration ended."""
    if np.isfinite(recorded.seconds[row]):
        return RunOutcome(Ending.COMPLETED)
    status = recorded.status[row]
    if status in _ENDINGS:
        return RunOutcome(_ENDINGS[status], f"recorded as {status}")
    return RunOutcome(
        Ending.OOM, f"recorded as {status}: the table does not tell a crash from too little memory"
    )


def _cell(trials: Columns, model: str, nodes: int) -> Recorded:
    rows = np.flatnonzero((trials["model"] == model) & (trials["nodes"] == nodes))
    keys = np.stack([trials[name][rows] for name in KEYS], axis=1)
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    seconds, memory = (
        np.array([_median(trials[name][rows[which == one]]) for one in range(len(first))])
        for name in ("iteration_seconds", "memory_bytes")
    )
    columns = take(trials, rows[first])
    return Recorded(model, nodes, columns, seconds, memory, tuple(map(str, columns["status"])))


def _median(values: NDArray[Any]) -> float:
    finished = values[np.isfinite(values)]
    return float(np.median(finished)) if len(finished) else float("nan")
