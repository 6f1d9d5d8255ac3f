"""What a configuration can be exported for: one entry for each target."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.config.errors import InputError
from workbench.analysis.studies import StudyDocument
from workbench.export.bundle import Bundle
from workbench.export.formats.accelerate import ACCELERATE
from workbench.export.formats.automodel import AUTOMODEL
from workbench.export.formats.deepspeed import DEEPSPEED
from workbench.export.formats.hf import HF
from workbench.export.formats.megatron import MEGATRON
from workbench.export.formats.rendering import facts, render_format
from workbench.export.formats.torchtitan import TORCHTITAN
from workbench.export.launchers import command, external_trainer, torchrun
from workbench.export.launchers.k8s import K8S
from workbench.export.launchers.slurm import SLURM
from workbench.export.mapping import documents
from workbench.export.mapping.rows import Format
from workbench.home.runs import RunView


@dataclass(frozen=True, slots=True)
class Target:
    """A trainer or launcher that trains an exported configuration.

    ``title`` is what it is for people. ``render`` makes the files of a run, given its study if it has one. ``start`` is
    the file of the export that starts the training. ``package`` is what has to be installed where it trains, beside
    this project; None if that is all, or if the format says it. ``format`` is the trainer's file, with its table of
    settings; None of what takes this project's own configuration. ``parsed_by`` is whose code read such exports.
    """

    name: str
    title: str
    render: Callable[[RunView, StudyDocument | None], Bundle]
    start: str
    package: str | None = None
    format: Format | None = None
    parsed_by: str | None = None

    def required_package(self) -> str | None:
        """What has to be installed where it trains, of a trainer's file too.

        Raises:
            InputError: nobody took from that trainer what it knows.
        """
        if self.format is None:
            return self.package
        return str(documents.read_format(self.format.name)["package"]).partition(" ")[0]

    def facts(self, bundle: Bundle) -> dict[str, Any]:
        """What an export does not say, what its keys were checked against, and which checks were made, of what."""
        if self.format is None:
            settings = [setting.as_dict() for setting in bundle.unexpressed]
            levels = {"parsed": f"by {self.parsed_by}"} if self.parsed_by else {}
            return {"losses": settings, "checked_against": self.parsed_by, "levels": levels}
        return facts(self.format, bundle.unexpressed)


def public_trainer(form: Format) -> Target:
    """The target of a public trainer. What its own code is asked in tests stands in a module of its name in
    ``tests/support/trainers``.
    """
    return Target(form.name, form.title, functools.partial(render_format, form), "run.sh", format=form)


def own_launcher(name: str, title: str, launcher: torchrun.Launcher) -> Target:
    """The target of another way of starting this project's trainer."""
    render = functools.partial(torchrun.render_launcher, name, launcher)
    return Target(name, title, render, launcher.file, parsed_by=launcher.parsed_by)


TARGETS: tuple[Target, ...] = (
    Target("torchrun", "this trainer under torchrun, on one or more hosts", torchrun.render, "run.sh"),
    Target("command", "the command that a study tuned, with its values", command.render, "run.sh"),
    Target("trainer", "a trainer that is not this project's", external_trainer.render, "run.sh"),
    own_launcher("slurm", "this trainer as a Slurm batch file", SLURM),
    own_launcher("k8s", "this trainer as a TrainJob of Kubeflow Trainer 2", K8S),
    *(public_trainer(form) for form in (HF, ACCELERATE, DEEPSPEED, MEGATRON, TORCHTITAN, AUTOMODEL)),
)


def find_target(name: str) -> Target:
    """The target of that name.

    Raises:
        InputError: there is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise InputError("--to", name, f"unknown; available: {', '.join(target.name for target in TARGETS)}")
