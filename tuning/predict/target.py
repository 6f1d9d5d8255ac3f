"""What a prediction is for: a cluster, and the constants that say what its devices and links reach of their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from engine.config.errors import InputError, several
from engine.config.run_config import RunConfig
from engine.run.calibration.host_links import HostLinks
from engine.run.calibration.table import Calibration
from tuning.predict.cluster import catalogue, this_machine
from tuning.predict.cluster.this_machine import LabRanks, Sharing
from tuning.predict.fit import calibrate, device_constants
from tuning.predict.fit.calibrate import CalibratedConstants
from tuning.predict.model import compute, headroom
from tuning.predict.model.hardware import Cluster, Group
from tuning.predict.model.headroom import Allowance
from tuning.predict.model.network import Links
from tuning.predict.model.step_time import Machine

_UNSEEN = 0.35  # a factor of 1.4 either way
_MEASURED_HERE = 0.7  # a factor of 2
#: Said of this machine as long as no runs tell more.
BELIEVED_HERE = (
    "launches and overlap are those of published GPU tables, "
    f"give or take a factor of {math.exp(_MEASURED_HERE):.0f}"
)
MEASURED = "rates are this machine's, measured"
_RATES = "rates are those of"


class ExcludedRun(NamedTuple):
    """A finished run that does not count, and why."""

    run: str
    reason: str


class Errors(NamedTuple):
    """Ends of 90 % of predicted over measured, less 1, on layouts that were held out: -0.1 is 10 % too little."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Experience:
    """``runs`` of so many ``configurations`` in so many ``layouts`` count. ``error`` is None where they are too few,
    and constants stay as they were; ``allowance`` is None where too few told their memory, which ``memory_runs`` did.
    ``links`` are the networks that runs of several ranks were on.
    """

    runs: int
    configurations: int
    layouts: int
    links: tuple[str, ...] = ()
    error: Errors | None = None
    memory_runs: int = 0
    allowance: Allowance | None = None
    left_out: tuple[ExcludedRun, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "runs": self.runs,
            "configurations": self.configurations,
            "layouts": self.layouts,
            "links": list(self.links),
            "fitted": self.error is not None,
            "error": self.error and self.error._asdict(),
            "memory": {"runs": self.memory_runs, **self._memory()},
            "left_out": [excluded._asdict() for excluded in self.left_out],
        }

    def _memory(self) -> Mapping[str, Any]:
        allowance = self.allowance
        names = ("context_bytes", "share", "error")
        return {
            "learned": allowance is not None,
            **{name: allowance and getattr(allowance, name) for name in names},
        }


@dataclass(frozen=True, slots=True)
class Target:
    """``exact``: its size is the number of ranks; else so many are the most. ``notes`` are told with each answer.

    ``unsure`` widens every interval, in logarithms, for a kind of device that the constants were not fitted on.
    ``sharing`` says what ranks of this machine's CPU have of it, ``experience`` what finished runs told of it.
    ``lab_links`` are what joins hosts of labs, as it was measured, by the code of a lab's shape.
    """

    cluster: Cluster
    calibrated: CalibratedConstants
    exact: bool = True
    unsure: float = 0.0
    notes: tuple[str, ...] = ()
    constants_source: str = calibrate.SHIPPED_SOURCE
    sharing: Sharing | None = None
    experience: Experience | None = None
    lab_links: Mapping[str, HostLinks] = field(default_factory=dict)

    @property
    def group(self) -> Group:
        """The nodes that decide: those of the slowest devices."""
        return min(self.cluster.groups, key=lambda group: max(group.accelerator.peak_flops.values()))

    @property
    def devices_per_node(self) -> int:
        """Of the nodes with fewest."""
        return min(group.devices for group in self.cluster.groups)

    @property
    def memory_bytes(self) -> int:
        """Of the device that has least."""
        return min(group.accelerator.memory_bytes for group in self.cluster.groups)

    @property
    def most_ranks(self) -> int:
        """More than these cannot be predicted."""
        return max(self.cluster.size, self.sharing.most if self.sharing else 0)

    @property
    def on_cpu(self) -> bool:
        """Whether its devices are ranks of a CPU."""
        return self.group.accelerator.name == "this CPU"

    @property
    def in_lab(self) -> bool:
        """Whether its links are those of the lab."""
        return self.group.network == this_machine.LAB

    @property
    def links_name(self) -> str:
        """What its ranks talk over; empty for one rank."""
        return "" if self.cluster.size == 1 else self.group.network

    @property
    def allowance(self) -> Allowance:
        """What is held beside counted bytes."""
        if self.experience is not None and self.experience.allowance is not None:
            return self.experience.allowance
        return headroom.ON_CPU if self.on_cpu else headroom.ON_GPU

    def adapt_to_config(self, config: RunConfig) -> Target:
        """As the ranks of a configuration have it.

        Raises:
            InputError: there are more than this machine can have.
        """
        return self.adapt_to_seats(this_machine.seats_of(config))

    def adapt_to_seats(self, seats: LabRanks) -> Target:
        """As so many ranks have it: on this machine's CPU they share cores, and may be in the lab. Else the same.

        Raises:
            InputError: there are more than this machine can have.
        """
        if self.sharing is None:
            return self
        self.check(seats.ranks)
        if seats == LabRanks(self.cluster.size):
            return replace(self, sharing=None)._on_links_seen()
        rates = (
            f"{_RATES} one of {seats.ranks:,} ranks that share the cores, {self.cluster.size:,} were timed"
        )
        notes = tuple(rates if note.startswith(_RATES) else note for note in self.notes)
        seated = replace(self, cluster=self.sharing.cluster(self.cluster, seats), sharing=None, notes=notes)
        return seated._on_links_seen()

    def _on_links_seen(self) -> Target:
        """Less sure where runs told of constants, but none of them of such links."""
        experience = self.experience
        if experience is None or experience.error is None or self.links_name in ("", *experience.links):
            return self
        links_text = "the lab's links" if self.in_lab else "this host's own links"
        note = f"no finished run was on {links_text}: what they reach is believed, give or take {math.exp(_UNSEEN):.1f}"
        return replace(self, unsure=self.unsure + _UNSEEN, notes=(*self.notes, note))

    def machine(self, precision: str) -> Machine:
        """Figures that closed forms work on: of the slowest device and link where groups differ.

        Raises:
            InputError: the device has no rate in that format.
        """
        chip = self.group.accelerator
        if not (precision == "bf16" and "fp16" in chip.peak_flops):
            catalogue.peak_flops(chip, precision)
        groups = self.cluster.groups
        between = [group.between.bytes_per_second for group in groups]
        if self.cluster.across:
            between.append(self.cluster.across.bytes_per_second)
        if self.cluster.host_links is not None:
            between = [self.cluster.host_links.slowest / max(group.devices for group in groups)]
        inside = min(group.inside.bytes_per_second for group in groups)
        return Machine(compute.device_of(chip, precision), Links(inside, min(between)))

    def check(self, ranks: int) -> None:
        """Refuse a number of ranks that the cluster does not have.

        Raises:
            InputError: it is larger than the cluster, or not its size.
        """
        size = self.most_ranks
        if ranks > size or (self.exact and ranks != size):
            rule = (
                f"has {several(size, 'devices')}" if self.exact else f"has at most {several(size, 'devices')}"
            )
            raise InputError(
                "world size", ranks, f"{self.cluster.name} {rule}; dp x tp x pp x cp must be that number"
            )

    def sources(self) -> dict[str, str]:
        """Where each figure comes from."""
        chip = self.group.accelerator
        return {
            **{f"{chip.name}.{figure}": source for figure, source in chip.sources.items()},
            **self.cluster.sources,
            "constants": self.constants_source,
        }


def parse_target(text: str, nodes: int | None = None, ranks: int | None = None) -> Target:
    """A cluster of the catalogue or a TOML file. Without ``nodes`` as many as ``ranks`` fill; a part of one will do.

    Raises:
        InputError: it is not known, cannot be read, lacks a figure, or ranks do not fill its nodes.
    """
    if text in catalogue.names():
        return _of_catalogue(text, nodes, ranks)
    path = Path(text)
    if path.suffix == ".toml" or path.exists():
        return cluster_target(catalogue.read_cluster(path, nodes))
    return cluster_target(catalogue.cluster(text, nodes or 1))


def cluster_target(cluster: Cluster, exact: bool = True) -> Target:
    """With the constants of its devices if they are of one kind that has some; else with the shipped ones."""
    kinds = sorted({group.accelerator.name for group in cluster.groups})
    notes: tuple[str, ...] = ()
    if len(cluster.groups) > 1:
        notes = (
            "groups of nodes differ: seconds are those of the slowest device and link, whatever the placement",
        )
    if cluster.host_links is not None:
        rate = f"{cluster.host_links.slowest / 1e9:,.3g} GB/s of a node"
        notes = (
            *notes,
            f"between nodes seconds are those of the slowest measured link, {rate}, whatever the placement",
        )
    fitted = device_constants.find_constants(kinds[0]) if len(kinds) == 1 else None
    if fitted is not None:
        notes = (device_constants.note(kinds[0], fitted), *notes)
        return Target(cluster, fitted, exact, 0.0, notes, device_constants.FITTED[kinds[0]].source)
    unseen = tuple(_unfitted_note(name) for name in kinds if name not in calibrate.SHIPPED_ACCELERATORS)
    return Target(
        cluster, calibrate.shipped_constants(), exact, _UNSEEN if unseen else 0.0, (*unseen, *notes)
    )


def _unfitted_note(accelerator: str) -> str:
    return (
        f"the constants were fitted on {', '.join(calibrate.SHIPPED_ACCELERATORS)}; what kernels reach on "
        f"{accelerator} is believed to be the same share of its peak, give or take a factor of {math.exp(_UNSEEN):.1f}"
    )


def calibrated_target(calibration: Calibration) -> Target:
    """This machine: what was measured is reached in full, so constants that are shares of a data sheet become 1.

    Raises:
        InputError: the calibration lacks a figure.
    """
    cluster = this_machine.cluster(calibration)
    shipped = calibrate.shipped_constants()
    start = cluster.groups[0].inside.alpha_seconds
    shares = dict.fromkeys(
        ("gemm_share", "memory_share", "inside_share", "between_share", "message_share"), 1.0
    )
    starts = {"inside_seconds": start, "between_seconds": start} if start > 0 else {}
    constants = shipped.constants.put(**shares, **starts)
    calibrated = CalibratedConstants(constants, shipped.low, shipped.high, shipped.trials, shipped.ranges)
    cores = (
        this_machine.sharing_of(calibration, cluster.size)
        if cluster.groups[0].accelerator.name == "this CPU"
        else None
    )
    notes = (MEASURED, BELIEVED_HERE, f"{_RATES} one of {cluster.size:,} ranks that all work")
    source = f"{calibrate.SHIPPED_SOURCE}; shares of peaks are 1: peaks were measured here"
    return Target(cluster, calibrated, False, _MEASURED_HERE, notes, source, cores)


def _of_catalogue(text: str, nodes: int | None, ranks: int | None) -> Target:
    named_cluster = catalogue.cluster(text, nodes or 1)
    size = named_cluster.groups[0].devices
    if nodes is not None or ranks is None or len(named_cluster.groups) > 1:
        return cluster_target(named_cluster)
    if ranks <= size:
        return cluster_target(named_cluster, exact=False)
    if ranks % size:
        raise InputError(
            "world size",
            ranks,
            f"nodes of {text} have {several(size, 'devices')}: give a multiple of {size}, or at most {size}",
        )
    return cluster_target(catalogue.cluster(text, ranks // size))
