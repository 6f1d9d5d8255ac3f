"""Why a study's winner wins: where a step's time goes, in its run beside another one, for the same tokens a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any

from engine.run import run_folder
from workbench.text import words

if TYPE_CHECKING:
    from tuning.report.study_result import ArmRow, Entry, StudyResult

#: A run's summary.json.
Summary = Mapping[str, Any]
#: Parts of a step that differ by less than this share of the slower step's time are not named.
NAMED = 0.02
#: A link above this share of its rate is called full.
FULL = 0.9
_WAITING = "waiting for {axis}"
_NAMES = {"data": "loading data", "other": "between the phases", "bubble": "pipeline bubble",
          "between": "between steps"}  # fmt: skip


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
class WinnerExplanation:
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
    #: Of so many runs of the winner and of the other the numbers are means.
    runs: int = 1
    other_runs: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values, and the sentence."""
        return asdict(self) | {"line": line(self)}


def explain_winner(result: StudyResult, home: Path) -> WinnerExplanation | None:
    """Of a study's best beside its baseline, or beside the nearest one where the baseline is the best.

    Made from the runs that showed it: those that measured both again, else those of the search. None where nothing was
    shown to be faster, where a run is gone, where its steps do not say so, and where another thing than time decides.
    """
    best = result.best
    objective = result.aim.objective
    if best is None or (objective.single and not objective.learns):
        return None
    others = (("baseline", result.baseline), ("runner_up", result.runner_up))
    role, other = next(
        ((role, trial) for role, trial in others if trial and trial.config != best.config), ("", None)
    )
    if other is None or not _is_shown(result, role, other):
        return None
    own_summary, other_summary = (_mean_summary(home, _runs(result, entry)) for entry in (best, other))
    if own_summary is None or other_summary is None:
        return None
    why = compare(own_summary, other_summary, best.label, other.label, role)
    return why if why.seconds < why.other_seconds else None


def _is_shown(result: StudyResult, role: str, other: Entry) -> bool:
    """Whether the whole interval says that the best is faster than the other."""
    if role == "baseline":
        return result.gain is not None and result.gain.verdict == "better"
    arm = _arm(result, other)
    return arm is not None and arm.high is not None and arm.high < 1


def _arm(result: StudyResult, entry: Entry) -> ArmRow | None:
    """What an entry was measured again as."""
    arms = result.confirmation_rounds.arms if result.confirmation_rounds else []
    return next((arm for arm in arms if arm.trial == entry.trial), None)


def _runs(result: StudyResult, entry: Entry) -> list[str]:
    """The runs that an entry's value in the result is of."""
    arm = _arm(result, entry)
    runs = [row.run for row in arm.rounds] if arm else [entry.run]
    return [run for run in runs if run]


def compare(winner: Summary, other: Summary, name: str, other_name: str, role: str) -> WinnerExplanation:
    """Two summaries (``RunSummary.as_dict``) whose steps were measured."""
    tokens = winner["tokens_per_step"]
    ranks, other_ranks = (trial.get("world_size") or 1 for trial in (winner, other))
    factor = tokens / other["tokens_per_step"] * other_ranks / ranks
    own_parts, other_parts = _parts(winner), _parts(other)
    parts = [
        Part(part, own_parts.get(part, 0.0), factor * other_parts.get(part, 0.0))
        for part in dict.fromkeys((*own_parts, *other_parts))
    ]
    wire = other.get("wire_bytes_per_step")
    return WinnerExplanation(
        winner=name,
        other=other_name,
        role=role,
        tokens=tokens,
        seconds=sum(own_parts.values()),
        other_seconds=factor * sum(other_parts.values()),
        parts=sorted(parts, key=lambda part: -abs(part.saved)),
        wire_bytes=winner.get("wire_bytes_per_step"),
        other_wire_bytes=None if wire is None else factor * wire,
        link=_busiest(winner),
        other_link=_busiest(other),
        other_ranks=None if ranks == other_ranks else other_ranks,
        runs=winner.get("runs", 1),
        other_runs=other.get("runs", 1),
    )


def line(why: WinnerExplanation) -> str:
    """The comparison in one sentence for each kind of difference."""
    step_text = f"{words.seconds(why.seconds)} instead of {words.seconds(why.other_seconds)}"
    role = "the baseline" if why.role == "baseline" else "the nearest"
    same = (
        ""
        if why.other_ranks is None
        else f", for as many tokens on each of the other's {why.other_ranks:,} ranks"
    )
    means_note = (
        f", means of {why.runs} and {why.other_runs} runs" if max(why.runs, why.other_runs) > 1 else ""
    )
    sentences = [
        f"Compared with {role} ({why.other}), a step of {why.tokens:,} tokens takes {step_text}{same}{means_note}"
    ]
    sentences += list(_changes(why))
    if (
        why.wire_bytes is not None
        and why.other_wire_bytes is not None
        and why.wire_bytes + why.other_wire_bytes
    ):
        own_bytes, other_bytes = (f"{size / 1e6:,.3g} MB" for size in (why.wire_bytes, why.other_wire_bytes))
        bytes_comparison = ", as the other does" if own_bytes == other_bytes else f" instead of {other_bytes}"
        sentences.append(f"a rank sends {own_bytes} a step{bytes_comparison}")
    if why.link and why.other_link:
        sentences.append(
            f"its busiest link ({why.link.interface}) is {words.percent(why.link.share)} used, the other's "
            f"({why.other_link.interface}) {words.percent(why.other_link.share)}"
            + (" and so full" if why.other_link.share >= FULL else "")
        )
    return "; ".join(sentences) + "."


def _changes(why: WinnerExplanation) -> Iterator[str]:
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


def _parts(summary: Summary) -> dict[str, float]:
    """Phases of the mean step, what passes between two steps, and the exposed communication by axis."""
    phases = summary["phases"] | {"between": summary.get("between_seconds") or 0.0}
    exposed = phases.pop("communication_exposed", 0.0)
    by_axis = summary.get("exposed_seconds_by_axis") or {}
    total = sum(by_axis.values())
    # Runs of before there were means have axes of a typical step: shares are taken from them, the sum from the phase.
    waits = {
        _WAITING.format(axis=axis): exposed * seconds / total for axis, seconds in by_axis.items() if total
    }
    named = {_NAMES.get(phase, phase): seconds for phase, seconds in phases.items()}
    return named | (waits or {_WAITING.format(axis="communication"): exposed})


def _busiest(summary: Summary) -> LinkUse | None:
    rows = [
        LinkUse(f"{row['interface']} of {words.named_ranks(row['ranks'])}", share)
        for row in summary.get("interfaces") or []
        if (share := max(row.get("sent_utilization") or 0.0, row.get("received_utilization") or 0.0))
    ]
    return max(rows, key=lambda row: row.share, default=None)


def _mean_summary(home: Path, runs: Sequence[str]) -> Summary | None:
    """The summary of several runs of one configuration; None if all are gone.

    Bytes are means. So are seconds, scaled so that the step is the geometric mean of the runs' steps, as the study's
    value is of their rates.
    """
    paths = [home / run / run_folder.SUMMARY for run in runs]
    documents = [document for path in paths if (document := run_folder.read_json(path)) is not None]
    summaries = [summary for summary in documents if summary.get("phases") and summary.get("tokens_per_step")]
    if not summaries:
        return None
    steps = [
        sum(summary["phases"].values()) + (summary.get("between_seconds") or 0.0) for summary in summaries
    ]
    scale = geometric_mean(steps) / fmean(steps) if min(steps) > 0 else 1.0
    wire_bytes = [
        summary["wire_bytes_per_step"]
        for summary in summaries
        if summary.get("wire_bytes_per_step") is not None
    ]
    return summaries[0] | {
        "phases": _means([summary["phases"] for summary in summaries], scale),
        "exposed_seconds_by_axis": _means(
            [summary.get("exposed_seconds_by_axis") or {} for summary in summaries], scale
        ),
        "between_seconds": scale * fmean(summary.get("between_seconds") or 0.0 for summary in summaries),
        "wire_bytes_per_step": fmean(wire_bytes) if wire_bytes else None,
        "runs": len(summaries),
    }


def _means(rows: Sequence[Mapping[str, float]], scale: float) -> dict[str, float]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: scale * fmean(row.get(key, 0.0) for row in rows) for key in keys}
