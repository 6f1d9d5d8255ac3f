"""What a check works with: a scratch home, configurations of small runs, and which devices there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig, parse
from engine.run.devices import selection
from engine.run.outcome import RunOutcome, StopAnswer
from engine.session import Session
from profilers.model.run_summary import RunSummary

#: Where a check's runs and its other evidence lie in its scratch folder.
HOME, KEPT = "home", "kept"
#: Label of a run that names its folder among the evidence.
LABEL = "selftest"
#: Longer than any step takes, also on a busy machine.
STEP_PATIENCE_SECONDS = 60.0
SMALL: dict[str, Any] = {
    "batch": {"global_batch": 8, "micro_batch": 1},
    "data": {"sequence_length": 64},
    # threads of a lone rank would wait for each other on a machine that others use, too
    "environment": {"OMP_NUM_THREADS": 1},
    "train": {
        "steps": 3,
        "warmup": 1,
        "validation_batches": 0,
        "step_timeout_seconds": STEP_PATIENCE_SECONDS,
    },
}


@dataclass(frozen=True, slots=True)
class CheckContext:
    """``device`` as it was asked for (auto, cpu or cuda); ``ranks`` of checks that take more than one."""

    device: str
    ranks: int
    scratch: Path

    @property
    def home(self) -> Path:
        """Where runs of this check live; nothing of the user's is there."""
        return self.scratch / HOME

    def session(self) -> Session:
        """Warm ranks, as a study has them."""
        return Session(self.home)

    def config(self, values: dict[str, Any], ranks: int | None = None) -> RunConfig:
        """Three small steps with these dotted keys; on GPUs if there is one for each rank, and they are wanted."""
        small = parse(SMALL).with_values(values)
        count = ranks or layout_of(small).world_size
        return small.with_values({"device": "cpu" if self.why_not_cuda(count) else "cuda"} | values)

    def run(
        self,
        session: Session,
        config: RunConfig,
        label: str,
        should_stop: Callable[[], StopAnswer] = lambda: False,
        on_start: Callable[[Path], None] | None = None,
    ) -> tuple[RunOutcome, RunSummary]:
        """One run, whose folder becomes evidence under its label."""
        return session.execute(config, {LABEL: label}, should_stop, on_start)

    def why_not_cuda(self, ranks: int = 1) -> str | None:
        """Why so many ranks cannot have a GPU each; None if they can."""
        if self.device == "cpu":
            return "the CPU was asked for"
        try:
            chosen = selection.choose(RunConfig().with_values({"device": self.device}), ranks)
        except InputError as error:
            return error.remedy
        return None if chosen.kind == "cuda" else chosen.reason

    def describe_backend(self, config: RunConfig) -> str:
        """The backend that a run takes, in words."""
        return "NCCL ranks on GPUs" if config.device == "cuda" else "gloo ranks on the CPU"

    def keep(self, name: str, document: str | dict[str, Any] | list[Any]) -> None:
        """A text or a JSON document as evidence; what is private is taken out later."""
        path = self.scratch / KEPT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = document if isinstance(document, str) else json.dumps(document, indent=1, default=str) + "\n"
        path.write_text(text, encoding="utf-8")
