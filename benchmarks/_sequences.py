"""Whole documents over planned groups of ranks (after FlexSP, arXiv 2412.01523), beside groups of one size and windows.

Docstrings of Python's own library, whose lengths have a long tail, over 8 ranks on 2 hosts of the lab at 100 Mbit/s. A
rank holds so few tokens that the longest documents need all eight, and one of a hundred is cut even there: smaller
groups cut more of them, which is said beside their figures. Every setting has the same documents in every step. Eight
ranks share few cores, and what a group takes depends on who else computes: the same groups' seconds in two equal runs
tell how much. Predictions are held against ranks that are paced (``_sequences_paced.py``).
"""

from __future__ import annotations

import ast
import random
import sysconfig
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import _table as table
from engine.config.presets import resolve
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.run.outcome import Ending
from engine.session import Session
from profilers.model.run_summary import RunSummary

NAME, KEPT = "systems_sequences", table.RESULTS / "systems_sequences.json"
RANKS, HOLDS, LARGEST = 8, 256, 8
PLANNED, AGAIN, WINDOWS = "planned", f"groups of {LARGEST}, again", "masked windows"
STATIC = {f"groups of {degree}": degree for degree in (8, 4, 2, 1)}
WHOLE = f"groups of {LARGEST}"
#: The least that planned groups have to gain on the fastest size that cuts no more documents; how near predictions and
#: losses have to be.
GAIN, NEAR, SAME = 1.2, 0.1, 1e-5
_SHORTEST = 20
_STEPS, _WARMUP = 10, 2
HEADER = [
    "setting",
    "cut",
    "tokens a step",
    "s a step",
    "tokens/s",
    "planned over it",
    "predicted groups off by",
    "the same groups in equal runs",
    "most micro-batches",
    "all-to-all, counted over formula",
    "losses differ by",
]


def write_texts(folder: Path) -> list[int]:
    """A file for each docstring of the standard library, and their lengths."""
    found = set[str]()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
        texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        found |= {text for text in texts if text and len(text) >= _SHORTEST}
    for number, text in enumerate(sorted(found)):
        (folder / f"{number:05}.txt").write_text(text, "utf-8")
    return sorted(len(text.encode()) for text in found)


def config_of(folder: Path) -> RunConfig:
    """With groups of the largest size."""
    return parse(
        {
            "model": {
                "layers": 4, "hidden": 128, "heads": 8, "kv_heads": 8, "ffn_hidden": 256, "vocabulary": 256,
            },
            "data": {"path": str(folder), "documents": "whole", "sequence_length": HOLDS},
            "parallel": {"dp": RANKS, "sequence_groups": LARGEST},
            "batch": {"micro_batch": 1, "global_batch": 48},
            "train": {"steps": _STEPS, "warmup": _WARMUP, "validation_batches": 0},
            "profile": {"budget": None},
            "lab": {"hosts": 2, "rate_mbit": 100.0},
            "device": "cpu",
        }
    )  # fmt: skip


def settings(folder: Path) -> dict[str, RunConfig]:
    """By name."""
    usual = config_of(folder)
    found = {PLANNED: usual.with_values({"parallel.sequence_groups": "planned"}), AGAIN: usual}
    found |= {
        name: usual.with_values({"parallel.sequence_groups": degree}) for name, degree in STATIC.items()
    }
    windows = {"data.documents": "masked", "parallel.sequence_groups": 1}
    return found | {WINDOWS: usual.with_values(windows)}


def run(rounds: int) -> dict[str, Any]:
    """Measure what is missing, every setting once a round in an order of its own, and keep it after each run."""
    kept = {"settings": {}, "rounds": 0} | table.kept(KEPT)
    with tempfile.TemporaryDirectory() as place, Session(Path(place) / "runs", LocalPool()) as session:
        folder = Path(place) / "texts"
        folder.mkdir()
        lengths = write_texts(folder)
        kept["lengths"] = [lengths[int(share * (len(lengths) - 1))] for share in (0, 0.5, 0.9, 0.99, 1)]
        kept["documents"] = len(lengths)
        for number in range(kept["rounds"], rounds):
            configs = [(name, one) for name, one in settings(folder).items() if _missing(kept, name, number)]
            for name, config in random.sample(configs, len(configs)):
                kept["settings"].setdefault(name, []).append(_about(_summary(session, config)))
                table.keep(KEPT, kept)
            kept["rounds"] = number + 1
            table.keep(KEPT, kept)
    return kept


def _summary(session: Session, config: RunConfig) -> RunSummary:
    outcome, summary = session.execute(config, {}, lambda: False)
    if outcome.ending is not Ending.COMPLETED:
        raise SystemExit(f"{config.parallel.sequence_groups}: {outcome}")
    return summary


def _missing(kept: dict[str, Any], name: str, number: int) -> bool:
    return len(kept["settings"].get(name, [])) <= number


def _about(summary: RunSummary) -> dict[str, Any]:
    first = summary.measured_from_step or 0
    groups = [row for row in summary.sequence_groups if row.step >= first]
    rows = [row for row in summary.communication if row.axis.startswith("sequence")]
    return {
        "seconds": float(np.mean(summary.step_samples)),
        "tokens": fmean(
            [sum(row.tokens for row in groups if row.step == step) for step in {row.step for row in groups}]
        )
        if groups
        else summary.tokens_per_step,
        "losses": summary.losses,
        "norms": summary.gradient_norms,
        "cut": next((one.split(" are longer")[0] for one in summary.notes if "are cut" in one), "none"),
        "groups": [[row.degree, row.tokens, row.planned_seconds, row.seconds] for row in groups],
        "micro_batches": max((row.micro_batch + 1 for row in groups), default=1),
        "planner": [[row.planner_seconds, row.waited_seconds, row.proven] for row in summary.sequence_plans],
        "payload": sum(row.bytes for row in rows),
        "formula": formula(groups, summary.measured_steps),
        "said": summary.wire_bytes_per_step,
        "counted": summary.wire_bytes_measured,
    }


def formula(groups: list[Any], steps: int) -> float:
    """Bytes that a rank hands to all-to-alls in a step: queries, keys, values and results of its share of each group's
    tokens, forward and backward.
    """
    shape = resolve(config_of(Path()).model)
    values = 2 * shape.layers * 2 * (shape.hidden + shape.kv_heads * shape.head_dim)
    handed = sum(-(-row.tokens // row.degree) * row.degree for row in groups if row.degree > 1)
    return handed * values * 4 / RANKS / steps


def rows(kept: dict[str, Any]) -> tuple[list[list[str]], dict[str, float]]:
    """A row for each setting, and what the bars ask for."""
    runs, found = kept["settings"], list[list[str]]()
    seconds = {name: fmean(one["seconds"] for one in of) for name, of in runs.items()}
    rates = {name: fmean(one["tokens"] for one in of) / seconds[name] for name, of in runs.items()}
    losses, norms = runs[WHOLE][0]["losses"], runs[WHOLE][0]["norms"]
    for name in (PLANNED, WHOLE, AGAIN, *list(STATIC)[1:], WINDOWS):
        of = runs[name]
        same = name != WINDOWS and of[0]["cut"] == runs[WHOLE][0]["cut"]
        found.append(
            [
                name,
                "at each window" if name == WINDOWS else of[0]["cut"],
                f"{fmean(one['tokens'] for one in of):,.0f}",
                f"{seconds[name]:.2f}",
                f"{rates[name]:,.0f}",
                f"{rates[PLANNED] / rates[name]:.2f}",
                f"{off(of):.1%}" if of[0]["groups"] else "",
                f"{again(of):.1%}" if of[0]["groups"] and name != PLANNED and len(of) > 1 else "",
                f"{max(one['micro_batches'] for one in of)}" if of[0]["groups"] else "",
                f"{of[0]['payload'] / of[0]['formula']:.4f}" if of[0]["formula"] else "",
                f"{max(_apart(one['losses'], losses) for one in of):.1e}" if same else "",
            ]
        )
    planned = runs[PLANNED]
    pairs = zip(runs[WHOLE], runs[AGAIN], strict=True)
    bars = {
        "gain": seconds[WHOLE] / seconds[PLANNED],
        "again": fmean(one["seconds"] / two["seconds"] for one, two in pairs),
        "windows": rates[PLANNED] / rates[WINDOWS],
        "off": off(planned),
        "losses": max(_apart(one["losses"], losses) for one in planned),
        "norms": max(_apart(one["norms"], norms) for one in planned),
        "payload": max(abs(one["payload"] / one["formula"] - 1) for one in planned),
        "wire": max(abs(one["counted"] / one["said"] - 1) for one in planned if one["counted"]),
        "planner": fmean(row[0] for one in planned for row in one["planner"][1:]),
        "waited": fmean(row[1] for one in planned for row in one["planner"][1:]),
    }
    return found, bars


def off(runs: list[dict[str, Any]]) -> float:
    """By how much predicted seconds of a group miss the measured ones, in the mean."""
    return fmean(abs(planned / seconds - 1) for one in runs for _, _, planned, seconds in one["groups"])


def again(runs: list[dict[str, Any]]) -> float:
    """By how much the seconds of the same groups differ between the first two of equal runs, in the mean."""
    pairs = zip(*(of["groups"] for of in runs[:2]), strict=True)
    return fmean(abs(one[-1] / other[-1] - 1) for one, other in pairs)


def _apart(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    least, middle, most, nearly, longest = kept["lengths"]
    return (
        f"{kept['documents']:,} docstrings of {least:,} to {longest:,} bytes (median {middle:,}, 9 of 10 at most "
        f"{most:,}, 99 of 100 {nearly:,}), 48 a step; {RANKS} ranks of {HOLDS} tokens on 2 hosts at 100 Mbit/s; "
        f"{kept['rounds']} rounds"
    )
