"""What each method of compression costs and gains over links of a known rate, beside what arithmetic predicts.

    python -m benchmarks.communication [--rates 20 100 1000 0] [--methods sign ...] [--rounds 6] [--steps 1] [--save]

Four ranks train a decoder of about 10 million parameters, one on each host of the lab; a rate of 0 is a link that is
as fast as it goes. Within a run the methods take turns: each round has a few steps of each, in random order, and steps
that send nothing. Seconds are medians over rounds of the slowest rank. A step is predicted as compute + codec +
wire bytes / rate - overlap: compute is a step that sends nothing, codec the same gradients coded by all ranks at once
over links without a rate, and overlap that part of backward in which a message was under way. Each rate is a part, and
so are some methods of it; parts are kept in a file and put together in one table. Needs what ``workbench lab`` needs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._coding import COMPUTE, Kind, measure, sent
from benchmarks._methods import METHODS, MODEL, PLAIN, RANKS
from benchmarks._ranks import on_cores
from engine.config.run_config import RunConfig, parse
from engine.run import netns

NAME = "communication"
KEPT = table.RESULTS / f"{NAME}.json"
#: What ``benchmarks/communication_quality.py`` found, and how far a loss may be from plain's.
QUALITY, LOSS_WITHIN = table.RESULTS / "communication_quality.json", 0.02
#: The issue's bars: how far a step may be from its prediction, and how much faster than plain the best one has to be.
WITHIN, FASTER = 0.20, {20.0: 10.0, 100.0: 4.0}
#: A method's bytes may be off by this part, or by so many bytes a collective if that is more.
BYTES_WITHIN, BYTES_OF_A_CALL = 0.01, 4096
HEADER = (
    "Mbit/s",
    "method",
    "payload bytes",
    "wire bytes",
    "measured",
    "bytes",
    "compute, s",
    "codec, s",
    "wire / rate, s",
    "overlap, s",
    "predicted step, s",
    "measured, s",
    "measured / predicted",
    "within 20 %",
    "times faster than plain",
)

Row = dict[str, Any]


def config(rate: float, tiny: bool) -> RunConfig:
    """Small micro-batches: one sequence of 64 tokens a rank and step."""
    model = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 192}
    return parse(
        {
            "model": model if tiny else MODEL,
            "data": {"sequence_length": 64},
            "batch": {"global_batch": RANKS, "micro_batch": 1},
            "parallel": {"dp": RANKS},
            "compression": {"start_step": 0},
            "train": {"steps": 1_000_000, "validation_batches": 0, "step_timeout_seconds": 600.0},
            "lab": {"hosts": RANKS, "rate_mbit": rate or None},
            "device": "cpu",
        }
    )


def part(rate: float, names: list[str], rounds: int, steps: int, tiny: bool) -> dict[str, Row]:
    """One run at one rate: a row of numbers for each method."""
    load, begun = os.getloadavg()[0], time.strftime("%Y-%m-%d %H:%M")
    chosen = list(dict.fromkeys([PLAIN, *names]))
    ranks: list[dict[str, Kind]] = on_cores(config(rate, tiny), measure, chosen, rounds, steps)
    compute = seconds(ranks, COMPUTE)
    about = {"steps": rounds * steps, "load_before": load, "begun": begun, "machine": table.machine()}
    return {
        name: row(ranks, name, rate, compute) | {"plain": seconds(ranks, PLAIN)} | about for name in chosen
    }


def seconds(ranks: list[dict[str, Kind]], name: str) -> float:
    """Of a step: the median of the slowest rank's."""
    return float(np.median(np.max([[step.seconds for step in rank[name].steps] for rank in ranks], axis=0)))


def row(ranks: list[dict[str, Kind]], name: str, rate: float, compute: float) -> Row:
    """The numbers of one method."""
    kinds = [rank[name] for rank in ranks]
    messages = kinds[0].messages
    wire = sent(messages, len(ranks))
    counted = np.mean([[step.sent_bytes for step in kind.steps] for kind in kinds], axis=0)
    coding = np.max([kind.coding for kind in kinds], axis=0)
    overlap = np.mean([[step.overlapped for step in kind.steps] for kind in kinds], axis=0)
    return {
        "payload": sum(one.bytes for one in messages),
        "calls": len(messages),
        "wire": wire,
        "counted": float(np.median(counted)),
        "compute": compute,
        "codec": float(np.median(coding)),
        "transfer": wire * 8e-6 / rate if rate else 0.0,
        "overlap": float(np.median(overlap)) if rate else 0.0,
        "step": seconds(ranks, name),
    }


def predicted(found: Row) -> float:
    """Seconds of a step by arithmetic."""
    return float(found["compute"] + found["codec"] + found["transfer"] - found["overlap"])


def bytes_fit(found: Row) -> bool:
    """Whether the counters agree with the formula."""
    allowed = max(BYTES_WITHIN * found["wire"], BYTES_OF_A_CALL * found["calls"])
    return bool(abs(found["counted"] - found["wire"]) <= allowed)


def cells(rate: float, name: str, found: Row) -> list[str]:
    """A line of the table; without a bar where a link's rate is not what limits."""
    times = found["step"] / predicted(found)
    verdict = "" if rate not in FASTER else "pass" if abs(times - 1) <= WITHIN else "missed"
    parts = (found[key] for key in ("compute", "codec", "transfer", "overlap"))
    return [
        f"{rate:,.0f}" if rate else "not limited",
        name,
        f"{found['payload']:,}",
        f"{found['wire']:,.0f}",
        f"{found['counted']:,.0f}",
        "pass" if bytes_fit(found) else "missed",
        *(f"{part:.3f}" for part in parts),
        f"{predicted(found):.3f}",
        f"{found['step']:.3f}",
        f"{times:.2f}",
        verdict,
        f"{found['plain'] / found['step']:.2f}",
    ]


def notes(kept: dict[str, dict[str, Row]]) -> list[str]:
    """What the table comes down to at each rate, and under which load it was taken."""
    lines, learn = [], that_learn()
    for text, rows in kept.items():
        rate = float(text)
        gains = {name: one["plain"] / one["step"] for name, one in rows.items() if name != PLAIN}
        if not gains:
            continue
        best, slower = max(gains, key=lambda name: gains[name]), [n for n, gain in gains.items() if gain < 1]
        words = f"{rate:,.0f} Mbit/s" if rate else "Not limited"
        bar = FASTER.get(rate)
        loses = f"; slower than plain: {', '.join(slower)}" if slower else "; none is slower than plain"
        loads = sorted({one["load_before"] for one in rows.values()})
        taken = f"{min(one['steps'] for one in rows.values())} or more steps each"
        load = f"1-minute load before it {loads[0]:.1f}" + (f" to {loads[-1]:.1f}" if loads[1:] else "")
        lines.append(
            f"- {words}: the fastest is {best}, {gains[best]:.2f} times plain{loses}. {taken}, {load}."
        )
        learning = {name: gain for name, gain in gains.items() if name in learn}
        if bar and learning:
            best = max(learning, key=lambda name: learning[name])
            verdict = "pass" if learning[best] >= bar else "missed"
            lines.append(
                f"- {words}, of those whose loss is within {LOSS_WITHIN:.0%} of plain's after 300 steps "
                f"({QUALITY.stem}.md): {best}, {learning[best]:.2f} times plain, bar {bar:g}: {verdict}."
            )
    return lines


def that_learn() -> set[str]:
    """The methods whose loss was measured and is close to plain's."""
    if not QUALITY.exists():
        return set()
    losses = {name: row["validation"] for name, row in json.loads(QUALITY.read_text("utf-8")).items()}
    most = (1 + LOSS_WITHIN) * losses[PLAIN]
    return {name for name, loss in losses.items() if loss is not None and loss <= most}


def kept_parts(path: Path) -> dict[str, dict[str, Row]]:
    """What earlier parts measured, by rate and method."""
    found: dict[str, dict[str, Row]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def show(kept: dict[str, dict[str, Row]], save: bool) -> None:
    """The table of all parts that there are, and what it comes down to."""
    ordered = sorted(kept.items(), key=lambda item: float(item[0]) or float("inf"))
    names = list(METHODS)
    rows = [
        cells(float(rate), name, found[name])
        for rate, found in ordered
        for name in sorted(found, key=names.index)
    ]
    title = (
        f"Compression over shaped links: {RANKS} ranks on {RANKS} hosts, a decoder of 10 million parameters"
    )
    text = table.show(NAME, title, HEADER, rows, save)
    said = "\n".join(notes(dict(ordered))) + "\n"
    print(said)
    if save:
        (table.RESULTS / f"{NAME}.md").write_text(f"{text}\n{said}", encoding="utf-8")


def main() -> None:
    """Measure the parts that are asked for, one after the other, and print all that there are."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rates", type=float, nargs="*", default=[20.0, 100.0, 1000.0, 0.0])
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--rounds", type=int, default=6)
    arguments.add_argument("--steps", type=int, default=1, help="measured steps of each method in a round")
    arguments.add_argument("--tiny", action="store_true", help="a small decoder, to see that all works")
    arguments.add_argument("--kept", type=Path, default=KEPT, help="file of the parts measured so far")
    given = arguments.parse_args()
    if reason := netns.unavailability():
        raise SystemExit(f"no network namespaces: {reason}")
    for rate in given.rates:
        found = part(rate, given.methods, given.rounds, given.steps, given.tiny)
        kept = kept_parts(given.kept)
        kept.setdefault(f"{rate:g}", {}).update(found)
        table.keep(given.kept, kept)
        print(f"{rate:g} Mbit/s is done", file=sys.stderr, flush=True)
    show(kept_parts(given.kept), given.save)


if __name__ == "__main__":
    main()
