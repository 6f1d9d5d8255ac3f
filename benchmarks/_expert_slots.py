"""Experts on the host and on disk (after SE-MoE, arXiv 2205.10034): whose slot is given away, and what a run loses.

A decoder with 16 experts a layer is trained on one rank, a micro-batch a step; its records say which experts every step
chose. That trace is played to the cache and to one that goes by recency (LRU). Then the same run has its experts at
home on the host, and on disk.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import _table as table
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.model.experts.slots import ExpertCache, ExpertSlots, Key
from engine.run.outcome import Ending
from engine.run.run_folder import RECORDS
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords

NAME, KEPT = "systems_expert_slots", table.RESULTS / "systems_expert_slots.json"
LAYERS, EXPERTS = 4, 16
ALL = LAYERS * EXPERTS
#: Slots, of all experts.
SLOTS = (ALL // 8, ALL // 4, ALL // 2, 3 * ALL // 4)
SAME_LOSS = 1e-5
_STEPS, _WARMUP = 60, 4
HEADER = [
    "slots",
    "of all experts",
    "hits of the trace by recency",
    "as the cache has it",
    "of the run's requests: found",
    "on their way",
    "losses differ by, host and disk",
]


def config_of() -> RunConfig:
    """Few tokens a step, so that some experts have none."""
    return parse(
        {
            "model": {
                "layers": LAYERS, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn_hidden": 352, "experts": EXPERTS,
                "experts_per_token": 1,
            },
            "data": {"sequence_length": 16},
            "batch": {"micro_batch": 1, "global_batch": 1},
            "train": {"steps": _STEPS, "warmup": _WARMUP, "validation_batches": 0},
            "profile": {"budget": None},
            "device": "cpu",
        }
    )  # fmt: skip


def run() -> dict[str, Any]:
    """Measure what is missing."""
    kept = {"runs": {}} | table.kept(KEPT)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        for slots, place in [(None, "host"), *((one, place) for one in SLOTS for place in ("host", "disk"))]:
            name = "plain" if slots is None else f"{slots} {place}"
            if name in kept["runs"]:
                continue
            config = config_of().with_values({"memory.expert_slots": slots, "memory.expert_home": place})
            outcome, summary = session.execute(config, {}, lambda: False)
            if outcome.ending is not Ending.COMPLETED:
                raise SystemExit(f"{name}: {outcome}")
            kept["runs"][name] = _about(summary)
            if slots is None:
                kept["trace"] = trace_of(Path(home) / summary.id / RECORDS)
            table.keep(KEPT, kept)
    return kept


def _about(summary: RunSummary) -> dict[str, Any]:
    found: dict[str, Any] = {"losses": summary.losses}
    for row in summary.expert_slots:
        found |= {"here": row.hits, "ahead": row.ahead, "asked": row.hits + row.ahead + row.misses}
    return found


def trace_of(records: Path) -> list[list[Key]]:
    """Of each step, the experts that a token chose, by layer and number."""
    table_ = RunRecords(records).table(0, "expert")
    step, layer, expert, choices = (
        table_.column(name).filled(0).tolist() for name in ("step", "layer", "expert", "choices")
    )
    found: dict[int, list[Key]] = {}
    for at, key, count in zip(step, zip(layer, expert, strict=True), choices, strict=True):
        found.setdefault(at, []).extend([key] * bool(count))
    return [sorted(found[at]) for at in sorted(found)]


def recency(trace: list[list[Key]], slots: int) -> float:
    """Share of requests that find their expert where the one that was asked for longest ago gives way."""
    kept, hits, asked = OrderedDict[Key, None](), 0, 0
    for there in trace:
        for key in (*there, *reversed(there)):
            hits, asked = hits + (key in kept), asked + 1
            kept[key] = None
            kept.move_to_end(key)
            if len(kept) > slots:
                kept.popitem(last=False)
    return hits / asked


def cached(trace: list[list[Key]], slots: int) -> float:
    """The same of the cache."""
    cache, hits, asked = ExpertCache(slots, range(LAYERS)), 0, 0
    for there in trace:
        for layer in range(LAYERS):
            keys = [key for key in there if key[0] == layer]
            cache.note_choices(layer, keys, trains=True)
            hits += sum(bool(found and found[1]) for found in (cache.ask(key, False) for key in keys))
        hits += sum(bool(found and found[1]) for found in (cache.ask(key, True) for key in reversed(there)))
        asked += 2 * len(there)
    return hits / asked


def experts_in_memory(trace: list[list[Key]], slots: int) -> float:
    """Experts' worth of memory that slots take while the trace is played to them, with what they fetch ahead; experts
    of three numbers, which take as many slots as large ones.
    """
    played = ExpertSlots(slots, "host", Path())
    try:
        for layer in range(LAYERS):
            played.adopt(layer, [nn.Parameter(torch.zeros(EXPERTS, 1, 1)) for _ in range(3)])
        for there in map(set, trace):
            for layer in range(LAYERS):
                sizes = [int((layer, expert) in there) for expert in range(EXPERTS)]
                _take(played, played.chosen_experts(layer, sizes, trains=True), [], False)
            for layer in reversed(range(LAYERS)):
                back = sorted((key for key in there if key[0] == layer), reverse=True)
                _take(played, back, played.next_backward_experts(layer), True)
    finally:
        played.close()
    return played.held_bytes / played.slot_bytes


def _take(slots: ExpertSlots, keys: list[Key], then: list[Key], returns: bool) -> None:
    """As a layer asks for its experts, one by one."""
    order = [*keys, *then]
    for place, key in enumerate(keys):
        slots.take(key, order[place + 1 :], returns)


def rows(kept: dict[str, Any]) -> tuple[list[list[str]], dict[str, int]]:
    """A row for each number of slots, and how many keep each bar: as good as recency, losses equal, experts ``within``
    their slots.
    """
    trace = [[(layer, expert) for layer, expert in there] for there in kept["trace"]]
    plain, found, bars = (
        kept["runs"]["plain"],
        list[list[str]](),
        dict.fromkeys(("hits", "better", "equal", "within"), 0),
    )
    for slots in SLOTS:
        runs = [kept["runs"][f"{slots} {place}"] for place in ("host", "disk")]
        apart = max(abs(a - b) for one in runs for a, b in zip(one["losses"], plain["losses"], strict=True))
        old, new = recency(trace, slots), cached(trace, slots)
        bars["hits"] += new >= old
        bars["better"] += new > old
        bars["equal"] += apart <= SAME_LOSS
        bars["within"] += experts_in_memory(trace, slots) <= slots
        found.append(
            [
                f"{slots}",
                f"{slots / ALL:.0%}",
                f"{old:.1%}",
                f"{new:.1%}",
                *(f"{runs[0][name] / runs[0]['asked']:.1%}" for name in ("here", "ahead")),
                f"{apart:.1e}",
            ]
        )
    return found, bars


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    return f"Slots for {ALL} experts in {LAYERS} layers, {len(kept['trace'])} steps of 16 tokens on one rank"
