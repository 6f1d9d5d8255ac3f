"""Where an exported configuration comes from: run, study, measured numbers, machine, versions."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.resume import locate
from engine.config.errors import InputError
from profilers.model.rows import ChangeRow
from workbench.analysis.studies import StudyDocument
from workbench.home.runs import RunView

#: Of the study's document; ``objective`` is the one that decides which trial is best.
_STUDY = (
    "objective",
    "objectives",
    "price",
    "constraints",
    "best",
    "baseline",
    "gain",
    "recommended",
    "pareto",
)
_PACKAGE = "training-workbench"


@dataclass(frozen=True, slots=True)
class Source:
    """A run to export, and what its study says about it."""

    view: RunView
    config_text: str
    study: StudyDocument | None


def source(view: RunView, study: StudyDocument | None) -> Source:
    """A run with its exact configuration and its study, if it belongs to one that can still be read.

    An export starts from the beginning: the checkpoint that a run continued lies on this machine. What learned beside
    a frozen checkpoint needs that one anywhere, and names it.

    Raises:
        InputError: the run has no valid configuration.
    """
    config = view.config()
    backbone = backbone_of(view)
    config = config.with_values({"train.resume": None if backbone is None else str(backbone)})
    return Source(view, config.dumps(), study)


def backbone_of(view: RunView) -> Path | None:
    """The checkpoint with the parameters that an adapted run left as they were; None where everything learned. A run
    that continued an adapted one had them from the checkpoint that this one had them from.
    """
    train, summary = view.config().train, view.summary
    if train.adapt == "none" or train.resume is None:
        return None
    if summary is not None and summary.adapted is not None:
        return Path(summary.adapted.source)
    path = Path(train.resume).absolute()
    try:
        point = locate(path)
    except InputError:
        return path
    return Path(point.manifest.backbone["folder"]) if point.manifest.backbone else point.folder


@dataclass(frozen=True, slots=True)
class ParentRun:
    """The run that another one went on from, and the step of the checkpoint, if that is known."""

    run: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What the run was measured on."""

    world_size: int | None
    backend: str | None
    backend_reason: str | None
    devices: list[str] | None
    host: str | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where an exported configuration comes from. ``measured`` are keys of the run's summary, ``study_result`` those of
    the study's document; ``turned`` are the values of the study's knobs.
    """

    run: str
    outcome: str | None
    study: str | None
    trial: str | None
    is_best_of_study: bool
    is_recommended_by_study: bool
    measured: dict[str, Any] | None
    study_result: dict[str, Any] | None
    turned: dict[str, Any] | None
    continued: ParentRun | None
    changes: list[ChangeRow]
    config_sha256: str
    measured_on: Machine
    exported_on: dict[str, str]
    versions: dict[str, str]
    exported_unix: float

    def as_dict(self) -> dict[str, Any]:
        """The document, plain values."""
        return asdict(self)


def provenance(source: Source) -> Provenance:
    """Of a run that is exported now."""
    view, study = source.view, source.study.result if source.study else None
    best, recommended = (study.best, study.recommended) if study else (None, None)
    trials = study.trials if study else []
    plain = source.study.as_dict() if source.study else None
    return Provenance(
        run=view.id,
        outcome=view.outcome,
        study=view.labels.get("study"),
        trial=view.labels.get("trial"),
        is_best_of_study=best is not None and best.run == view.id,
        is_recommended_by_study=recommended is not None and recommended.run == view.id,
        measured=_measured_numbers(view),
        study_result=None if plain is None else {name: plain.get(name) for name in _STUDY},
        turned=next((trial.config for trial in trials if trial.run == view.id), None),
        continued=resume_origin(view),
        changes=list(view.changes),
        config_sha256=hashlib.sha256(source.config_text.encode()).hexdigest(),
        measured_on=_machine(view),
        exported_on={"machine": platform.machine(), "system": f"{platform.system()} {platform.release()}"},
        versions=versions(),
        exported_unix=time.time(),
    )


def resume_origin(view: RunView) -> ParentRun | None:
    """The run and the step that this one went on from; None if it started from the beginning."""
    resume = view.summary and view.summary.resumed
    if resume:
        return ParentRun(resume.run, resume.step)
    checkpoint = view.config().train.resume
    return None if checkpoint is None else ParentRun(Path(checkpoint).parent.parent.name, None)


def versions() -> dict[str, str]:
    """What an export was made with."""
    return {"python": platform.python_version(), "torch": _version("torch"), _PACKAGE: _version(_PACKAGE)}


def _measured_numbers(view: RunView) -> dict[str, Any] | None:
    if view.summary is None:
        return None
    names = ("measured_steps", "step_seconds", "tokens_per_second", "tokens_per_second_interval",
             "peak_memory_bytes", "mfu", "losses", "validation_loss", "parameters")  # fmt: skip
    numbers = view.summary.as_dict()
    return {name: numbers[name] for name in names}


def _machine(view: RunView) -> Machine:
    status = view.status
    host = status.owner.host if status.owner else None
    return Machine(status.world_size, status.backend, status.backend_reason, status.devices, host)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
