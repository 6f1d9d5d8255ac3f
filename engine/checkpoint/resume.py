"""Which checkpoint a run continues from, and whether it can. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.checkpoint_folder import (
    CHECKPOINTS,
    MANIFEST,
    METADATA,
    Manifest,
    checksum,
    complete,
    last_of,
    read_manifest,
    sweep,
)
from engine.config.compression import keeps_errors
from engine.config.errors import InputError, several
from engine.config.formulas.batch_ramp import batch_of, grows
from engine.config.formulas.learning import OPTIMIZERS
from engine.config.knobs.catalogue import decides_numbers
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import Model

_FIELD = "train.resume"
#: Keys that have to be as they were where a run continues one that was saved within a round of an outer loop.
_SAME_WITHIN_A_ROUND = (
    *(f"outer.{name}" for name in ("method", "replicas", "variant", "gap", "fragments")),
    *(f"parallel.{name}" for name in ("dp", "tp", "pp", "cp", "ep", "zero_stage", "shard_ranks")),
)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A checkpoint to continue from."""

    folder: Path
    manifest: Manifest

    @property
    def run(self) -> str:
        """The run that saved it."""
        return self.folder.parent.parent.name

    @property
    def has_error_memory(self) -> bool:
        """Whether the run that saved it carried compression's errors from step to step."""
        config = self.manifest.config
        method = config.get("compression.method", "none")
        return keeps_errors(method, config.get("compression.error_feedback"))

    @property
    def has_outer(self) -> bool:
        """Whether the run that saved it had an outer loop."""
        return bool(self.manifest.config.get("outer.method", "none") != "none")

    def sweep(self) -> None:
        """Remove what killed saves left beside it, unless the run that saved it goes on."""
        if self.folder.parent.name == CHECKPOINTS:
            sweep(self.folder.parent.parent)


def find(config: RunConfig) -> ResumePoint | None:
    """The checkpoint that a configuration continues from; None where it starts from the beginning.

    Raises:
        InputError: there is none, it is damaged, holds another model, or is as long as the run is to be.
    """
    if config.train.resume is None:
        return None
    point = locate(Path(config.train.resume))
    _check_model(config, point)
    _check_adapted(config, point)
    if config.train.adapt == "none" or point.manifest.backbone:
        _check_optimizer(config, point)
    _check_outer(config, point)
    if config.train.seconds is None and point.manifest.step >= config.train.steps:
        remedy = f"{point.folder} has {several(point.manifest.step, 'steps')} behind it already; give more"
        raise InputError("train.steps", config.train.steps, remedy)
    return point


def locate(place: Path) -> ResumePoint:
    """The last good checkpoint of a run folder, or the checkpoint that a folder is.

    Raises:
        InputError: there is none, or it is damaged.
    """
    folder = place if (place / MANIFEST).exists() or place.parent.name == CHECKPOINTS else last_of(place)
    if folder is None or not folder.is_dir():
        remedy = "holds no checkpoint; give a run that was trained with checkpoint.every_steps"
        raise InputError(_FIELD, str(place), remedy)
    manifest = read_manifest(folder)
    problem = "its description is not readable" if manifest is None else _damage(folder, manifest)
    if manifest is None or problem:
        raise InputError(_FIELD, str(folder), f"is damaged ({problem}); {alternative_remedy(folder)}")
    return ResumePoint(folder.absolute(), manifest)


def source_of(point: ResumePoint) -> ResumePoint:
    """The checkpoint with the parameters that are frozen beside what is trained: this one, or the one that it names.

    Raises:
        InputError: that one is gone, or damaged.
    """
    if not point.manifest.backbone:
        return point
    named = Path(point.manifest.backbone["folder"])
    try:
        return locate(named)
    except InputError as problem:
        why = problem.remedy if named.is_dir() else "it is not there any more; put it back at that place"
        remedy = f"was trained beside {named}, which is needed: {why}"
        raise InputError(_FIELD, str(point.folder), remedy) from problem


def identity(model: Model) -> dict[str, Any]:
    """What makes two models the same: sizes, experts, and how many of them a token passes; or a workload's factory; and
    what is shared, if anything.
    """
    shared = {name: value for name in ("tied_embeddings", "layer_groups") if (value := getattr(model, name))}
    if not is_decoder(model):
        return {"workload": model.workload, "options": dict(model.options)} | shared
    shape = asdict(resolve(model)) | shared
    if model.experts is None:
        return shape | {"experts": None}
    width = model.expert_ffn_hidden or shape["ffn_hidden"]
    return shape | {
        "experts": model.experts,
        "expert_ffn_hidden": width,
        "experts_per_token": model.experts_per_token,
    }


def changes(config: RunConfig, point: ResumePoint) -> dict[str, list[Any]]:
    """Dotted keys that decide a step's numbers -> [value then, value now], where they differ."""
    then, now = point.manifest.config, config.flat()
    keys = [key for key in now if decides_numbers(key)]
    return {key: [then.get(key), now[key]] for key in keys if then.get(key) != now[key]}


def first_batch(config: RunConfig, point: ResumePoint) -> int | None:
    """Sequences of the first step of a run that continues from a checkpoint, if its batch grows: as its number of steps
    says. That of a run within a time is not known yet, so it goes on with as many as were reached.
    """
    first = config.batch.ramp_from
    if first is None or not grows(config):
        return None
    if config.train.seconds is None:
        return batch_of(config, point.manifest.step)
    reached = min(point.manifest.batch or 0, config.batch.global_batch)
    return max(first, reached // first * first)


def _check_model(config: RunConfig, point: ResumePoint) -> None:
    asked_model, saved_model = identity(config.model), point.manifest.model
    differences = [
        f"model.{key} is {saved_model.get(key)} there and {asked_model.get(key)} here"
        for key in dict.fromkeys([*asked_model, *saved_model])
        if asked_model.get(key) != saved_model.get(key)
    ]
    if differences:
        remedy = f"holds another model: {', '.join(differences)}; take its model section"
        raise InputError(_FIELD, str(point.folder), remedy)


#: What a checkpoint of something that stands beside a frozen model was saved with, and has to be loaded with.
_BESIDE = ("train.adapt", "train.adapt_rank")


def _check_adapted(config: RunConfig, point: ResumePoint) -> None:
    """One that was saved beside a frozen model holds nothing else, and fits what it was saved as alone."""
    if not point.manifest.backbone:
        return
    keys = (*_BESIDE, "data.sequence_length") if point.manifest.config["train.adapt"] == "losa" else _BESIDE
    saved, wanted = point.manifest.config, config.flat()
    if differences := [f"{key}={saved[key]}" for key in keys if saved[key] != wanted[key]]:
        remedy = f"holds what was trained beside a frozen model; set {' '.join(differences)}"
        raise InputError(
            _FIELD, str(point.folder), f"{remedy}, or resume from {point.manifest.backbone['folder']}"
        )
    source_of(point)


def _check_optimizer(config: RunConfig, point: ResumePoint) -> None:
    """What one optimizer carries from step to step is nothing to another one."""
    saved = {"train.optimizer": "adamw"} | point.manifest.config
    wanted = config.train
    if saved["train.optimizer"] != wanted.optimizer:
        remedy = f"{point.folder} was saved with {saved['train.optimizer']}; take that, or train from the beginning"
        raise InputError("train.optimizer", wanted.optimizer, remedy)
    sums = OPTIMIZERS[wanted.optimizer].averages(wanted)
    if sums < 2 and bool(saved.get("train.momentum", 0)) != bool(sums):
        remedy = f"{point.folder} was saved with {saved['train.momentum']}: only one of the two keeps a sum"
        raise InputError("train.momentum", wanted.momentum, remedy)


def _check_outer(config: RunConfig, point: ResumePoint) -> None:
    """Replicas differ between their meetings, so each one has to be there again, cut as it was."""
    if not point.has_outer:
        return
    saved, wanted = point.manifest.config, config.flat()
    differences = {
        key: saved[key] for key in _SAME_WITHIN_A_ROUND if saved.get(key, wanted[key]) != wanted[key]
    }
    if differences:
        settings = " ".join(f"{key}={value}" for key, value in differences.items())
        raise InputError(
            _FIELD, str(point.folder), f"was saved within a round of an outer loop; set {settings}"
        )


def wrong_contents(point: ResumePoint, part: int, parts: int) -> list[str]:
    """Names of files that are not what was saved, among every ``parts``-th one: ranks share the reading."""
    own_files = sorted(point.manifest.files)[part::parts]
    return [name for name in own_files if _differs(point.folder / name, point.manifest.files[name][1])]


def _damage(folder: Path, manifest: Manifest) -> str:
    """What can be seen without reading everything: sizes, and the contents of the table of contents."""
    for name, (size, sum_) in manifest.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} of {size:,} bytes"
        if name == METADATA and _differs(path, sum_):
            return f"{name} is not what was saved"
    return ""


def _differs(path: Path, sum_: int) -> bool:
    try:
        return checksum(path) != sum_
    except OSError:
        return True


def alternative_remedy(folder: Path) -> str:
    """What to do instead: another checkpoint of the same run, if there is a good one."""
    for path in reversed(complete(folder.parent.parent)):
        manifest = read_manifest(path)
        if path.name != folder.name and manifest is not None and not _damage(path, manifest):
            return f"resume from {path}"
    return "the run has no other one; train from the beginning"
