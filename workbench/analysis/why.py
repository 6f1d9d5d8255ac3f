"""Why a study's winner wins: where a step's time goes, in its run beside another one, for the same tokens a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.run import run_folder
from workbench.text import words

if TYPE_CHECKING:
    from tuning.report.study_result import Entry, StudyResult

Document = Mapping[str, Any]
#: Parts of a step that differ by less than this share of the slower step's time are not named.
NAMED = 0.02
#: A link above this share of its rate is called full.
FULL = 0.9
_WAITING = "waiting for {axis}"
_NAMES = {"data": "loading data", "other": "between the phases", "bubble": "pipeline bubble"}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step in seconds: the winner's, and the other run's for as many tokens."""

    name: str
    seconds: float
    other_seconds: float

    @property
    def saved(self) -> float:
        """Seconds that the winner does not need; negative where it pays."""
        return self.other_seconds - self.seconds


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The busiest link of a lab: its interface, and the largest share of its rate in either direction."""

    interface: str
    share: float


@dataclass(frozen=True, slots=True)
class Why:
    """A winner beside ``other``: a label, and what it is to the study. Bytes are those of one rank on the wire.

    The other's seconds and bytes are for as many tokens a rank; ``other_ranks`` is None where both have as many.
    """

    winner: str
    other: str
    role: str
    tokens: int
    seconds: float
    other_seconds: float
    parts: list[Part]
    wire_bytes: float | None
    other_wire_bytes: float | None
    link: LinkUse | None
    other_link: LinkUse | None
    other_ranks: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, and the sentence."""
        return asdict(self) | {"line": line(self)}


def of_study(result: StudyResult, home: Path) -> dict[str, Any] | None:
    """Of a study's best beside its baseline, or beside the nearest one where the baseline is the best.

    None without two measured runs, and where another thing than time decides.
    """
    best = result.best
    if best is None or result.aim.objective.single:
        return None
    others = (("baseline", result.baseline), ("runner_up", result.runner_up))
    role, other = next(((role, one) for role, one in others if one and one.config != best.config), ("", None))
    if other is None:
        return None
    mine, theirs = _summary(home, best), _summary(home, other)
    if mine is None or theirs is None:
        return None
    return compare(mine, theirs, best.label, other.label, role).as_dict()


def compare(winner: Document, other: Document, name: str, other_name: str, role: str) -> Why:
    """Two summaries (``RunSummary.as_dict``) whose steps were measured."""
    tokens = winner["tokens_per_step"]
    ranks, other_ranks = (one.get("world_size") or 1 for one in (winner, other))
    factor = tokens / other["tokens_per_step"] * other_ranks / ranks
    mine, theirs = _parts(winner), _parts(other)
    parts = [
        Part(part, mine.get(part, 0.0), factor * theirs.get(part, 0.0))
        for part in dict.fromkeys((*mine, *theirs))
    ]
    wire = other.get("wire_bytes_per_step")
    return Why(
        winner=name,
        other=other_name,
        role=role,
        tokens=tokens,
        seconds=sum(mine.values()),
        other_seconds=factor * sum(theirs.values()),
        parts=sorted(parts, key=lambda part: -abs(part.saved)),
        wire_bytes=winner.get("wire_bytes_per_step"),
        other_wire_bytes=None if wire is None else factor * wire,
        link=_busiest(winner),
        other_link=_busiest(other),
        other_ranks=None if ranks == other_ranks else other_ranks,
    )


def line(why: Why) -> str:
    """The comparison in one sentence for each kind of difference."""
    took = f"{words.seconds(why.seconds)} instead of {words.seconds(why.other_seconds)}"
    role = "the baseline" if why.role == "baseline" else "the nearest"
    same = (
        ""
        if why.other_ranks is None
        else f", for as many tokens on each of the other's {why.other_ranks:,} ranks"
    )
    said = [f"Compared with {role} ({why.other}), a step of {why.tokens:,} tokens takes {took}{same}"]
    said += list(_changes(why))
    if (
        why.wire_bytes is not None
        and why.other_wire_bytes is not None
        and why.wire_bytes + why.other_wire_bytes
    ):
        mine, theirs = (f"{size / 1e6:,.3g} MB" for size in (why.wire_bytes, why.other_wire_bytes))
        beside = ", as the other does" if mine == theirs else f" instead of {theirs}"
        said.append(f"a rank sends {mine} a step{beside}")
    if why.link and why.other_link:
        said.append(
            f"its busiest link ({why.link.interface}) is {words.percent(why.link.share)} used, the other's "
            f"({why.other_link.interface}) {words.percent(why.other_link.share)}"
            + (" and so full" if why.other_link.share >= FULL else "")
        )
    return "; ".join(said) + "."


def _changes(why: Why) -> Iterator[str]:
    least = NAMED * max(why.seconds, why.other_seconds)
    for title, sign in (("saved", 1), ("paid", -1)):
        named = [part for part in why.parts if sign * part.saved > least]
        if named:
            texts = (
                f"{part.name} {words.seconds(abs(part.saved))} "
                f"({words.seconds(part.other_seconds)} to {words.seconds(part.seconds)})"
                for part in named
            )
            yield f"{title}: {', '.join(texts)}"


def _parts(summary: Document) -> dict[str, float]:
    """Phases of a step, its exposed communication by axis."""
    phases = dict(summary["phases"])
    exposed = phases.pop("communication_exposed", 0.0)
    by_axis = summary.get("exposed_seconds_by_axis") or {}
    total = sum(by_axis.values())
    # The axes are of a typical step and the phase is the mean: shares are taken from the one, the sum from the other.
    waits = {
        _WAITING.format(axis=axis): exposed * seconds / total for axis, seconds in by_axis.items() if total
    }
    named = {_NAMES.get(phase, phase): seconds for phase, seconds in phases.items()}
    return named | (waits or {_WAITING.format(axis="communication"): exposed})


def _busiest(summary: Document) -> LinkUse | None:
    rows = [
        LinkUse(f"{row['interface']} of ranks {', '.join(map(str, row['ranks']))}", share)
        for row in summary.get("interfaces") or []
        if (share := max(row.get("sent_utilization") or 0.0, row.get("received_utilization") or 0.0))
    ]
    return max(rows, key=lambda row: row.share, default=None)


def _summary(home: Path, entry: Entry) -> Document | None:
    run = entry.run
    found = run_folder.read_json(home / run / run_folder.SUMMARY) if run else None
    return found if found and found.get("phases") and found.get("tokens_per_step") else None
