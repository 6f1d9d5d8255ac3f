"""What a lossy setting does to the loss on held-out text, beside the run of the same seed and data without it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.knobs.catalogue import arithmetic, decides_learning, exact_changes, lossy
from engine.config.run_config import RunConfig, flatten
from engine.run import run_folder
from workbench.home import runs
from workbench.home.runs import RunView

Row = Mapping[str, Any]


def report(home: Path, view: RunView, chosen: RunView | None = None) -> dict[str, Any]:
    """The document of ``quality RUN --json``; ``chosen`` is the baseline, else one is looked for among the runs.

    Raises:
        InputError: nothing in the run is lossy, or the chosen baseline is or saw other text.
    """
    values = values_of(view.folder)
    if not lossy(values):
        raise InputError("run", view.id, "nothing in it is lossy or late; give a run that a baseline is for")
    if chosen is not None:
        check(chosen.id, values, values_of(chosen.folder))
    baseline = find(home, view, values) if chosen is None else chosen
    own_rows, exact_rows = rows_of(view), [] if baseline is None else rows_of(baseline)
    return {
        "run": view.id,
        "lossy": lossy(values),
        "baseline": None if baseline is None else baseline.id,
        "command": command(home, view, values) if baseline is None else None,
        "curve": [dict(row) for row in own_rows],
        "baseline_curve": [dict(row) for row in exact_rows],
        "compared": compare_quality(own_rows, exact_rows, _tokens(values)),
        "notes": _notes(view, own_rows, values, baseline),
    }


def values_of(folder: Path) -> dict[str, Any]:
    """A run's values under their dotted keys; those that it was too old to know are the usual ones.

    A foreign job has none.
    """
    if run_folder.ForeignJob.from_folder(folder) is not None:
        return {}
    return RunConfig().flat() | flatten(run_folder.read_json(folder / run_folder.CONFIG) or {})


def rows_of(view: RunView) -> list[dict[str, Any]]:
    """The losses on held-out text that a run knows, in order."""
    return [] if view.summary is None else [asdict(row) for row in view.summary.quality]


def find(home: Path, view: RunView, values: Mapping[str, Any]) -> RunView | None:
    """The exact run of equal configuration: with the most losses at the same steps, and of those the newest."""
    wanted, best = arithmetic(values), tuple[int, RunView | None]((0, None))
    steps = {row["step"] for row in rows_of(view)}
    for folder in runs.run_folders(home):
        quality = values_of(folder)
        if lossy(quality) or arithmetic(quality) != wanted:
            continue
        candidate = runs.load(folder)
        common = len(steps & {row["step"] for row in rows_of(candidate)})
        if candidate.outcome == "completed" and common >= max(1, best[0]):
            best = common, candidate
    return best[1]


def check(name: str, values: Mapping[str, Any], baseline: Mapping[str, Any]) -> None:
    """Nothing if the second run can be the baseline of the first.

    Raises:
        InputError: it is lossy itself, or it learned something else.
    """
    if lossy_settings := lossy(baseline):
        raise InputError("--baseline", name, f"is not exact: {_settings_text(lossy_settings)}")
    for key, value in values.items():
        if decides_learning(key) and baseline.get(key) != value:
            remedy = (
                f"has {key}={baseline.get(key)} where the run has {value}; give one that saw the same text"
            )
            raise InputError("--baseline", name, remedy)


def command(home: Path, view: RunView, values: Mapping[str, Any]) -> str:
    """What makes the baseline that is missing."""
    sets = exact_changes(values, RunConfig().flat())
    words = " ".join(f"--set {key}={_cli_value(value)}" for key, value in sets.items())
    return f"workbench train {view.folder / run_folder.CONFIG} --home {home} {words}"


def compare_quality(own_rows: Sequence[Row], exact_rows: Sequence[Row], tokens: int) -> dict[str, Any] | None:
    """Both after the last number of tokens at which both were measured, and what each needed for the worse of the two
    losses there; None if there is no such number.
    """
    exact_by_step = {row["step"]: row for row in exact_rows}
    common = [row for row in own_rows if row["step"] in exact_by_step]
    if not common:
        return None
    last_own, last_exact = common[-1], exact_by_step[common[-1]["step"]]
    target = max(last_own["loss"], last_exact["loss"])
    return {
        "step": last_own["step"],
        "tokens": last_own["step"] * tokens,
        "loss": last_own["loss"],
        "baseline_loss": last_exact["loss"],
        "increase": last_own["loss"] / last_exact["loss"] - 1,
        "times_fewer_bytes": _ratio(last_exact["wire_bytes"], last_own["wire_bytes"]),
        "target_loss": target,
        "seconds_to_target": seconds_to(own_rows, target),
        "baseline_seconds_to_target": seconds_to(exact_rows, target),
    }


def seconds_to(rows: Sequence[Row], target: float) -> float | None:
    """Seconds of training until the loss on held-out text was first at most ``target``; None if it never was."""
    return next((float(row["seconds"]) for row in rows if row["loss"] <= target), None)


def _tokens(values: Mapping[str, Any]) -> int:
    return int(values["batch.global_batch"] * values["data.sequence_length"])


def _notes(
    view: RunView, own_rows: Sequence[Row], values: Mapping[str, Any], baseline: RunView | None
) -> list[str]:
    lines = []
    if not own_rows:
        lines.append("no loss on held-out text was recorded; train.validation_batches has to be 1 or more")
    elif len(own_rows) == 1:
        lines.append("one loss alone, at the end; train.validate_every=N takes it after every N steps, too")
    if view.changes:
        lines.append("values were changed while it went: see its changes")
    if baseline is not None:
        baseline_values, keys = arithmetic(values_of(baseline.folder)), arithmetic(values)
        other = [
            f"{key} {baseline_values.get(key)}, here {value}"
            for key, value in keys.items()
            if baseline_values.get(key) != value
        ]
        lines += (
            [f"the baseline has {', '.join(other)}: seconds and bytes differ for that, too"] if other else []
        )
        if baseline.status.fingerprint != view.status.fingerprint:
            lines.append("the baseline ran on another machine or network: its seconds are not comparable")
    return lines


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None


def _settings_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _cli_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
