"""The lab: hosts as namespaces, set up, kept, swept after a kill, and trained over at the rate asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.config.errors import InputError, LayoutError
from engine.config.run_config import parse
from engine.config.sections import Lab
from engine.config.validation import rules
from engine.launch.lab import build, lab, registry
from engine.launch.lab.build import LabError
from engine.launch.pool import RankHosts
from engine.run import netns
from engine.run.devices import selection
from engine.run.outcome import Ending
from engine.run.run_folder import RECORDS
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from tests.support.engine.lab import needs_lab, on_the_wire
from tests.support.engine.shapes import even_shape
from tests.support.ranks import on_ranks_of
from tests.support.runs import execute, small

HOSTS = 2
STEPS = {"train__steps": 5, "train__warmup": 2}


def left() -> list[str]:
    """Namespaces of labs that this process, or one that it started, set up."""
    return [path.name for path in netns.FOLDER.glob("workbench-lab-*")]


@needs_lab
def test_a_lab_is_complete_when_up_and_gone_when_down() -> None:
    made = lab.make_process_lab(even_shape(3, 100.0))
    made.set_up()
    try:
        assert made in registry.list_labs()
        assert made.complete
        assert not made.deserted
        assert made.shape == even_shape(3, 100.0)
    finally:
        made.tear_down()
    assert made not in registry.list_labs()
    assert not [name for name in left() if f"-{os.getpid()}-" in name and "-3x100000-" in name]


@needs_lab
def test_links_that_stand_can_be_held_to_another_rate() -> None:
    made = lab.make_process_lab(even_shape(2, 100.0))
    made.set_up()
    try:
        slower = [replace(link, rate_kbit=20_000) for link in made.links]
        build.shape(slower)
        told = {end: shaped(*end) for link in slower for end in (link.near, link.far)}
        assert set(told.values()) == {"20Mbit"}, told
    finally:
        made.tear_down()


def shaped(namespace: str, interface: str) -> str:
    """The rate that the kernel holds an interface to, as ``tc`` prints it."""
    command = ["tc", "-n", namespace, "qdisc", "show", "dev", interface]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return words[words.index("rate") + 1]


@needs_lab
def test_nothing_shows_among_the_machines_own_interfaces() -> None:
    before = Path("/proc/net/dev").read_text(encoding="ascii").count("\n")
    made = lab.make_process_lab(even_shape(2, None))
    made.set_up()
    try:
        assert Path("/proc/net/dev").read_text(encoding="ascii").count("\n") == before
    finally:
        made.tear_down()


@needs_lab
def test_two_labs_stand_at_a_time() -> None:
    one, other = RankHosts(Lab(hosts=2)), RankHosts(Lab(hosts=2))
    try:
        assert on_ranks_of(one, 2, total) == on_ranks_of(other, 2, total) == [3.0, 3.0]
    finally:
        one.close()
        other.close()


def total(rank: int) -> float:
    """A sum over all ranks."""
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    return float(x)


@needs_lab
def test_a_command_that_fails_leaves_nothing() -> None:
    made = lab.make_process_lab(even_shape(2, 10.0))
    subprocess.run(["ip", "netns", "add", made.namespaces[1]], check=True)
    with pytest.raises(LabError, match="File exists"):
        made.set_up()
    assert made not in registry.list_labs()


@needs_lab
def test_what_a_killed_owner_left_is_swept() -> None:
    script = (
        "import time; from engine.launch.lab import lab; from engine.config.formulas.network import Shape;"
        "made = lab.make_process_lab(Shape((1, 2), (50_000, 0), 20_000)); made.set_up();"
        "print(made.switch, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        switch = owner.stdout.readline().strip()
        made = lab.from_namespace(switch)
        assert made is not None
        assert made.complete
        assert not made.deserted
        assert made not in registry.sweep()
        owner.send_signal(signal.SIGKILL)
    assert made.deserted
    assert made in registry.list_labs()
    assert made in registry.sweep()
    assert made not in registry.list_labs()


@needs_lab
def test_a_kept_lab_serves_one_place_at_a_time_and_outlives_it() -> None:
    kept = registry.keep(even_shape(2, 321.0))
    try:
        assert registry.keep(even_shape(2, 321.0)) == kept
        first, second = RankHosts(Lab(hosts=2, rate_mbit=321.0)), RankHosts(Lab(hosts=2, rate_mbit=321.0))
        assert first.namespaces(2) == kept.namespaces
        assert second.namespaces(2) != kept.namespaces
        removed, in_use = registry.take_down()
        assert kept in in_use
        first.close()
        second.close()
        assert kept.complete
        removed, _ = registry.take_down()
        assert kept in removed
    finally:
        kept.tear_down()


@needs_lab
def test_half_a_kept_lab_is_set_up_again() -> None:
    kept = registry.keep(even_shape(2, 322.0))
    try:
        subprocess.run(["ip", "netns", "del", kept.namespaces[1]], check=True)
        assert not kept.complete
        assert registry.keep(even_shape(2, 322.0)).complete
    finally:
        kept.tear_down()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Runs in one lab, which the first of them sets up."""
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm
    assert not [name for name in left() if f"-{os.getpid()}-" in name]


def run(session: Session, **values: Any) -> RunSummary:
    outcome, summary = execute(session, small(**STEPS | values))
    assert outcome.good, outcome
    return summary


@needs_lab
def test_losses_are_those_without_a_lab(session: Session) -> None:
    """On two hosts of two ranks each."""
    inside = run(session, parallel__dp=4, lab__hosts=HOSTS, lab__rate_mbit=200.0)
    outside = run(session, parallel__dp=4)
    assert inside.losses == outside.losses
    assert inside.validation_loss == outside.validation_loss
    assert outside.wire_bytes_measured is None
    assert "lab.hosts" in str(outside.wire_bytes_reason)
    assert outside.wire_bytes_per_step == inside.wire_bytes_per_step


AXES: dict[str, dict[str, Any]] = {
    "dp": {"parallel__dp": 4},
    "zero": {"parallel__dp": 4, "parallel__zero_stage": 3},
    "tp": {"parallel__tp": 4},
    "pp": {"parallel__pp": 4},
    "cp": {"parallel__cp": 4},
    "ulysses": {"parallel__cp": 2, "parallel__dp": 2, "parallel__cp_method": "ulysses"},
    "ep": {"parallel__dp": 4, "parallel__ep": 4, "model__experts": 4},
    "topk": {"parallel__dp": 4, "compression__method": "topk", "compression__start_step": 0},
}


@pytest.mark.drawn(2)
@needs_lab
@pytest.mark.parametrize("axis", AXES)
def test_wire_bytes_of_every_axis_agree_with_the_interfaces(session: Session, axis: str) -> None:
    """Formula against counters, on two hosts of two ranks: part of it goes over each host's loopback."""
    summary = run(session, lab__hosts=HOSTS, **AXES[axis])
    assert summary.wire_bytes_reason is None
    calls = sum(row.calls for row in summary.communication)
    assert summary.wire_bytes_per_step == on_the_wire(summary.wire_bytes_measured, calls)
    assert summary.wire_bytes_per_step == pytest.approx(
        sum(row.wire_bytes or 0.0 for row in summary.communication)
    )


@needs_lab
def test_one_rank_of_each_host_reads_its_counters(session: Session, tmp_path: Path) -> None:
    started: list[Path] = []
    outcome, _ = execute(session, small(parallel__dp=4, lab__hosts=HOSTS), on_start=started.append)
    assert outcome.good
    records = RunRecords(started[0] / RECORDS)
    for rank, reads in enumerate((True, False, True, False)):
        table = records.table(rank, "network")
        names = set(table.column("interface").compressed().tolist())
        assert names == ({"data", "lo"} if reads else set())
        if reads:
            assert table.column("sent_bytes").max() > 0


@needs_lab
def test_a_lab_that_cannot_be_set_up_ends_the_run(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: lab.Lab) -> None:
        raise LabError("the lab could not be set up: no more namespaces")

    monkeypatch.setattr(lab.Lab, "set_up", refuse)
    outcome, _ = execute(session, small(parallel__dp=2, lab__hosts=2, lab__rate_mbit=77.0))
    assert outcome.ending is Ending.CRASHED
    assert "no more namespaces" in outcome.reason


def test_without_the_means_a_run_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netns, "_capable", lambda bit: False)
    monkeypatch.setattr(netns, "_COMMANDS", ())
    with Session(tmp_path) as cold, pytest.raises(InputError, match=r"lab\.hosts=2: .*CAP_NET_ADMIN.*root"):
        execute(cold, small(parallel__dp=2, lab__hosts=2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"lab.rate_mbit": 100.0}, "lab.rate_mbit"),
        ({"lab.hosts": 3, "parallel.dp": 4}, "lab.hosts"),
        ({"lab.hosts": 2, "parallel.dp": 2, "device": "cuda"}, "device"),
    ],
)
def test_what_cannot_be_is_refused_by_rule(values: dict[str, Any], field: str) -> None:
    with pytest.raises(LayoutError) as refused:
        rules.check(parse({}).with_values(values))
    assert refused.value.field == field


@pytest.mark.parametrize("values", [{"lab.hosts": 1}, {"lab.rate_mbit": 9.0}, {"lab.rate_mbit": 20_000.0}])
def test_what_is_out_of_range_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="lab"):
        parse({}).with_values(values)


def test_ranks_of_the_lab_are_on_the_cpu_and_block_by_block() -> None:
    chosen = selection.choose(parse({}).with_values({"lab.hosts": 2, "lab.rate_mbit": 100.0}), 4)
    assert (chosen.kind, chosen.backend) == ("cpu", "gloo")
    assert "2 hosts" in chosen.reason
    assert "100 Mbit/s" in chosen.reason
    assert even_shape(3).rank_hosts(6) == [0, 0, 1, 1, 2, 2]
