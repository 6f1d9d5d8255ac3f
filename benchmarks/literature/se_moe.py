"""SE-MoE: an embedding in columns and experts' rows in two stages (``_experts.py``), in the lab, and its experts on
host and disk, with slots for some of them (``_expert_slots.py``); ranks in proportion to tasks, and what is fetched or
gathered ahead, each by itself (``_elastic.py``).
"""

from __future__ import annotations

import json
from argparse import Namespace

from benchmarks import _elastic as elastic
from benchmarks import _expert_slots as slots
from benchmarks import _experts as experts
from benchmarks import _table as table
from benchmarks.literature import System

#: So many times as fast a step was to be with columns.
_COLUMNS = 2


def _experts_lines(given: Namespace, measures: bool) -> list[str]:
    kept = experts.run(given.lab_rounds) if measures else json.loads(experts.KEPT.read_text())
    rows, bars = experts.rows(kept)
    if measures:
        table.show(experts.NAME, experts.title(kept), experts.HEADER, rows, given.save)
    return _se_moe(bars)


def _se_moe(bars: dict[str, float]) -> list[str]:
    bytes_ = max(bars["columns bytes"], bars["islands bytes"])
    good = bars["columns apart"] == bars["islands apart"] == 0 and bytes_ <= experts.SAME_BYTES
    return [
        "SE-MoE, `parallel.embedding: columns`, `parallel.ep_island`",
        f"losses apart: {bars['columns apart']:.1e} and {bars['islands apart']:.1e}",
        f"counted and by the calls: within {bytes_:.2%}; messages between islands {bars['islands messages']:.1f} times "
        "fewer",
        "its bytes alone",
        f"columns: a step {bars['columns gain']:.2f} times as fast, the embedding's own messages "
        f"{bars['columns own gain']:.1f} times (A/A {bars['columns again']:.3f}); two stages: a step "
        f"{bars['islands gain']:.2f} times as fast (A/A {bars['islands again']:.3f}) with {bars['islands more']:+.0%} "
        "bytes",
        "15.81 to 8.63 GB and 1.14 times the speed; 10.3 % end to end",
        f"{_columns_verdict(bars['columns gain'])}; {_islands_verdict(bars['islands low'])}"
        if good
        else "does not keep every bar",
    ]


def _columns_verdict(gain: float) -> str:
    if gain <= 1:
        return "columns do not pay here"
    told = "columns pay with many words"
    return told if gain >= _COLUMNS else f"{told}, less than the {_COLUMNS} times aimed at"


def _islands_verdict(low: float) -> str:
    """Of the least gain that its interval and A/A leave."""
    return "two stages pay" if low > 1 else "that two stages pay does not show"


def _slots_line(given: Namespace, measures: bool) -> list[str]:
    kept = slots.run() if measures else json.loads(slots.KEPT.read_text())
    rows, bars = slots.rows(kept)
    if measures:
        table.show(slots.NAME, slots.title(kept), slots.HEADER, rows, given.save)
    every = len(slots.SLOTS)
    return [
        "SE-MoE's experts on host and disk, `memory.expert_slots`",
        f"losses within {slots.SAME_LOSS:g}: {bars['equal']} of {every}",
        f"never more experts in memory than slots: {bars['within']} of {every}",
        "not modelled",
        f"hits of a recorded trace: as many as by recency {bars['hits']} of {every}, more {bars['better']}",
        "no figure of the cache alone",
        "frequency with the order of layers beats recency"
        if bars["better"] == bars["within"] == every
        else "does not keep every bar",
    ]


def _taken(part: elastic.Part, given: Namespace, measures: bool) -> dict[str, elastic.Compared]:
    kept = elastic.run(part, given.lab_rounds) if measures else json.loads(part.kept.read_text())
    if measures:
        table.show(part.name, elastic.title(part, kept), elastic.HEADER, elastic.rows(part, kept), given.save)
    return {name: elastic.compared(kept["points"][name]) for name in part.points}


def _tasks_line(given: Namespace, measures: bool) -> list[str]:
    one = _taken(elastic.TASKS, given, measures)["tasks"]
    good = one.apart <= elastic.SAME_LOSS and (one.bytes is None or one.bytes <= elastic.SAME_BYTES)
    return [
        "SE-MoE's elastic tasks, `parallel.task_ranks: proportional`",
        f"losses, of each task too, apart: {one.apart:.1e}",
        "as many as with even ranks"
        + ("" if one.bytes is None else f"; counted and by the calls: within {one.bytes:.2%}"),
        f"{elastic.predicted_gain():.2f} times, by the micro-batches of the busiest rank",
        f"a step {one.gain.plain()} times as fast as with even ranks, A/A {one.again.plain()}; waited "
        f"{one.waited[0]:.3f} and {one.waited[1]:.3f} s a step",
        "62.6 to 74.0 samples a second and GPU, of four tasks",
        _gained(one, elastic.GAIN) if good else "does not keep every bar",
    ]


def _ahead_line(given: Namespace, measures: bool) -> list[str]:
    found = _taken(elastic.AHEAD, given, measures)
    apart = max(one.apart for one in found.values())
    bytes_ = max(one.bytes for one in found.values() if one.bytes is not None)
    names = {"layer": "layer ahead", "fused": "fused", "tier": "tier ahead"}
    told = "; ".join(
        f"{names[name]} {one.gain.plain()}, A/A {one.again.plain()}" for name, one in found.items()
    )
    pays = [names[name] for name, one in found.items() if one.gain.low * min(1, one.again.middle) > 1]
    return [
        "SE-MoE's 2D prefetch and fused gathers: `overlap.prefetch`, `memory.expert_ahead`, `overlap.fused_gathers`",
        f"losses apart: {apart:.1e}",
        f"the same but for the messages' own; counted and by the calls: within {bytes_:.2%}",
        "calls, by formula; what is hidden is not modelled",
        f"a step so many times as fast: {told}",
        "no figure of each alone",
        (f"pays here: {', '.join(pays)}" if pays else "the machine cannot tell that any pays here")
        if apart <= elastic.SAME_LOSS
        else "does not keep every bar",
    ]


def _gained(one: elastic.Compared, bar: float) -> str:
    """As far as the interval can tell, and what is off where a setting is held beside itself."""
    low, high = one.gain.low * min(1.0, one.again.middle), one.gain.high * max(1.0, one.again.middle)
    if low >= bar:
        return f"at least {bar} times as fast"
    if high < bar:
        return f"less than {bar} times as fast"
    return f"faster; whether {bar} times, the machine cannot tell" if low > 1 else "the machine cannot tell"


SYSTEMS = {
    "experts": System(experts.KEPT, _experts_lines),
    "slots": System(slots.KEPT, _slots_line),
    "tasks": System(elastic.TASKS.kept, _tasks_line),
    "ahead": System(elastic.AHEAD.kept, _ahead_line),
}
