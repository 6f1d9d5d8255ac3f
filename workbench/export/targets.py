"""What a configuration can be exported for: one entry for each target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.config.errors import InputError
from workbench.analysis.studies import StudyDocument
from workbench.export import command, foreign, torchrun
from workbench.export.bundle import Bundle
from workbench.home.runs import RunView


@dataclass(frozen=True, slots=True)
class Target:
    """A trainer or launcher that trains an exported configuration.

    ``title`` is what it is for people. ``render`` makes the files of a run, given its study if it has one. ``start`` is
    the file of the export that starts the training. ``package`` is what has to be installed where it trains, beside
    this project; None if that is all.
    """

    name: str
    title: str
    render: Callable[[RunView, StudyDocument | None], Bundle]
    start: str
    package: str | None = None


TARGETS: tuple[Target, ...] = (
    Target("torchrun", "this trainer under torchrun, on one or more hosts", torchrun.render, "run.sh"),
    Target("command", "the command that a study tuned, with its values", command.render, "run.sh"),
    Target("trainer", "a trainer that is not this project's", foreign.render, "run.sh"),
)


def target_named(name: str) -> Target:
    """The target of that name.

    Raises:
        InputError: there is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise InputError("--to", name, f"unknown; available: {', '.join(one.name for one in TARGETS)}")
