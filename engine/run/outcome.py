"""Endings of a run: exactly one of twelve, with rank, phase and last lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Ending(StrEnum):
    """Every way a run can end; see design decision 4 in ``docs/architecture.md``."""

    COMPLETED = "completed"
    PRUNED = "pruned"
    ILLEGAL = "illegal"
    PREDICTED_OOM = "predicted_oom"
    OOM = "oom"
    HANG = "hang"
    COMM_ERROR = "comm_error"
    DIVERGED = "diverged"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    LOST = "lost"
    CRASHED = "crashed"


#: Endings that speak about the configuration: a constraint for the sampler, never tried again.
ABOUT_CONFIGURATION = frozenset(
    {Ending.ILLEGAL, Ending.PREDICTED_OOM, Ending.OOM, Ending.DIVERGED, Ending.TIMED_OUT}
)
#: Endings caused from outside: the same configuration is proposed again once.
FROM_OUTSIDE = frozenset({Ending.STOPPED, Ending.LOST})
#: Endings retried once on clean ranks; they become a constraint if they repeat.
RETRY_ONCE = frozenset({Ending.HANG, Ending.COMM_ERROR, Ending.CRASHED})


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """Why a run may end before its last step and still count: the ending that it then has (completed or pruned), and
    the reason. Answers ``should_stop`` in place of True; if the last step comes first, the run is simply completed.
    """

    ending: Ending
    reason: str


#: What ``should_stop`` answers: False, True (stopped: the run does not count), or how it ends early and counts.
StopAnswer = bool | EarlyEnd


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended. ``killed_from_outside``: a rank got a signal that nothing of ours sent."""

    ending: Ending
    reason: str = ""
    rank: int | None = None
    phase: str | None = None
    last_lines: tuple[str, ...] = ()
    killed_from_outside: bool = False

    @property
    def good(self) -> bool:
        """Whether the run's numbers can be used as they are."""
        return self.ending in (Ending.COMPLETED, Ending.PRUNED)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``status.json``."""
        return asdict(self) | {"ending": self.ending.value, "last_lines": list(self.last_lines)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunOutcome:
        """Inverse of :meth:`as_dict`; ignores keys it does not know."""
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        known["ending"] = Ending(known["ending"])
        known["last_lines"] = tuple(known.get("last_lines", ()))
        return cls(**known)
