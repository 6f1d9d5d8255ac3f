"""Readings at the endpoint: each series once, whoever read it, and what only grows as a counter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from engine.run import ownership, run_folder
from profilers.records.schema import ExpertSample, GpuSample, HostSample, NetworkSample, TaskSample
from profilers.records.writer import RecordWriter
from tests.support.samples import gpu_sample, step_sample
from tests.workbench.commands.test_serve import fetched, one
from workbench.metrics.endpoint import Endpoint
from workbench.metrics.families import families
from workbench.metrics.follow import FRESH_SECONDS, Follower


@pytest.fixture
def endpoint(home: Path) -> Iterator[Endpoint]:
    with Endpoint(home, "127.0.0.1", 0, list[str]().append) as running:
        yield running


@pytest.fixture
def records(home: Path) -> Path:
    """Where the records of a run that goes on belong; there are none yet."""
    folder = home / "20260101-000000-bbbb" / run_folder.RECORDS
    folder.mkdir(parents=True)
    run_folder.write_json(
        folder.parent / run_folder.STATUS, {"state": "running", "owner": asdict(ownership.this_process())}
    )
    return folder


def test_readings_of_several_hosts_are_told_apart(records: Path, endpoint: Endpoint) -> None:
    for host, watts in (("first", 100.0), ("second", 200.0)):
        with RecordWriter(records, f"host-{host}") as writer:
            writer.write(gpu_sample(0, power_watts=watts))
    found = fetched(endpoint)
    assert one(found, "workbench_gpu_power_watts", gpu="0", host="first") == 100.0
    assert one(found, "workbench_gpu_power_watts", gpu="0", host="second") == 200.0


def test_the_help_of_a_reading_is_whole_sentences(records: Path) -> None:
    with RecordWriter(records, "launcher") as writer:
        writer.write(HostSample(1.0, 0.5, *[None] * 8))
    follower = Follower(records.parents[1])
    help_texts = {family.name: family.documentation for family in families(follower.runs())}
    assert help_texts["workbench_host_cpu_ratio"] == (
        "The last cpu fraction of a host record. "
        "One reading of a host: the launcher's own, or one with ranks."
    )


def test_interfaces_of_a_labs_hosts_are_told_apart(records: Path, endpoint: Endpoint) -> None:
    """As a lab run writes them: the first rank on each host reads the same two interfaces, the launcher its own."""
    for host, rank in enumerate((0, 2)):
        with RecordWriter(records, f"rank-{rank}") as writer:
            writer.event("environment", host=f"node, lab host {host}")
            for interface in ("data", "lo"):
                writer.write(NetworkSample(1.0, interface, 100 + rank, 2, 3, 4))
    with RecordWriter(records, "launcher") as writer:
        writer.write(NetworkSample(1.0, "lo", 7, 2, 3, 4))
    found, name = fetched(endpoint), "workbench_network_sent_bytes_total"
    assert one(found, name, interface="data", host="node, lab host 0", rank="0") == 100
    assert one(found, name, interface="data", host="node, lab host 1", rank="2") == 102
    own = {"run": records.parent.name, "interface": "lo"}
    assert found[name, frozenset(own.items())] == 7


def test_links_and_errors_of_gpus_are_counters(records: Path, endpoint: Endpoint) -> None:
    """They are read once a second: a scrape in between finds them all the same, until they are gone for longer."""
    with RecordWriter(records, "launcher") as writer:
        writer.write(gpu_sample(0, time_unix=1.0, nvlink_tx_bytes=5, nvlink_rx_bytes=6, ecc_corrected=7))
        writer.write(gpu_sample(0, time_unix=1.1, power_watts=100.0))
        for _ in range(2):
            found = fetched(endpoint)
            assert one(found, "workbench_gpu_nvlink_tx_bytes_total", gpu="0") == 5
            assert one(found, "workbench_gpu_nvlink_rx_bytes_total", gpu="0") == 6
            assert one(found, "workbench_gpu_ecc_corrected_total", gpu="0") == 7
            writer.write(gpu_sample(0, time_unix=1.9, power_watts=200.0))
        writer.write(gpu_sample(0, time_unix=4.0, power_watts=300.0))
        found = fetched(endpoint)
    assert one(found, "workbench_gpu_power_watts", gpu="0") == 300.0
    assert not [name for name, _ in found if "nvlink" in name or "ecc" in name]


def test_fields_that_grow_are_counters_and_no_others(records: Path, endpoint: Endpoint) -> None:
    """As they are declared: whoever adds one names it nowhere else."""
    told = [one.name for one in fields(GpuSample) if one.name not in ("time_unix", "gpu")]
    with RecordWriter(records, "launcher") as writer:
        writer.write(gpu_sample(0, time_unix=1.0, **dict.fromkeys(told, 1)))
    totals = {
        name for name, _ in fetched(endpoint) if name.startswith("workbench_gpu_") and name.endswith("_total")
    }
    grows = {f"workbench_gpu_{one.name}_total" for one in fields(GpuSample) if "grows" in one.metadata}
    assert totals == grows >= {"workbench_gpu_energy_joules_total", "workbench_gpu_ecc_corrected_total"}


def test_a_reading_that_is_not_renewed_is_not_shown_as_the_present_one(home: Path, records: Path) -> None:
    """A sampler that stands still, and a run that is over: only what is counted up stays."""
    now = [100.0]
    follower = Follower(home, clock=lambda: now[0])

    def shown() -> set[str]:
        return {
            family.name for family in families(follower.runs()) if family.name.startswith("workbench_gpu")
        }

    with RecordWriter(records, "launcher") as writer:
        writer.write(gpu_sample(0, time_unix=1.0, power_watts=100.0, nvlink_tx_bytes=5))
        both, counter = (
            {"workbench_gpu_power_watts", "workbench_gpu_nvlink_tx_bytes"},
            "workbench_gpu_nvlink_tx_bytes",
        )
        assert both <= shown()
        now[0] += FRESH_SECONDS
        assert both <= shown()
        now[0] += 0.1
        assert shown() == {counter}
        writer.write(gpu_sample(0, time_unix=1.1, power_watts=100.0, nvlink_tx_bytes=6))
        assert both <= shown()
    run_folder.update_status(
        records.parent, state="ended", outcome={"ending": "completed"}, ended_unix=now[0]
    )
    assert shown() == {counter}


def test_a_gpu_of_which_nothing_more_is_recorded_has_no_readings(records: Path, endpoint: Endpoint) -> None:
    """One that fell off the bus, while the others go on: its last power would stand there for ever."""
    with RecordWriter(records, "launcher") as writer:
        for gpu in (0, 1):
            writer.write(gpu_sample(gpu, time_unix=1.0, power_watts=100.0 + gpu))
        assert one(fetched(endpoint), "workbench_gpu_power_watts", gpu="1") == 101.0
        writer.write(gpu_sample(0, time_unix=4.0, power_watts=300.0))
        found = fetched(endpoint)
    assert {
        dict(labels)["gpu"]: value for (name, labels), value in found.items() if "power_watts" in name
    } == {"0": 300.0}


def test_the_load_of_experts_grows_and_its_balance_is_that_of_the_last_step(
    records: Path, endpoint: Endpoint
) -> None:
    with RecordWriter(records, "rank-1") as writer:
        for step, fell in enumerate(([10, 30], [40, 0])):
            for expert, choices in enumerate(fell):
                writer.write(ExpertSample(step, 7, expert, choices, choices // 10, (0.75, 0.25)[expert]))
    found = fetched(endpoint)
    assert one(found, "workbench_expert_choices_total", rank="1", layer="7", expert="0") == 50
    assert one(found, "workbench_expert_dropped_choices_total", layer="7", expert="1") == 3
    assert one(found, "workbench_expert_balance", layer="7") == pytest.approx(2 * 0.75)


def test_micro_batches_of_a_task_grow_and_its_loss_is_the_last(records: Path, endpoint: Endpoint) -> None:
    with RecordWriter(records, "rank-1") as writer:
        for step, loss in enumerate((5.0, 4.5, None)):
            writer.write(TaskSample(step, "captions", 8, loss))
    found = fetched(endpoint)
    assert one(found, "workbench_task_micro_batches_total", rank="1", task="captions") == 24
    assert one(found, "workbench_task_loss", rank="1", task="captions") == 4.5


def test_of_tokens_that_travel_for_others_their_number_grows_and_the_distance_is_the_last(
    records: Path, endpoint: Endpoint
) -> None:
    with RecordWriter(records, "rank-1") as writer:
        for step, apart in enumerate((0.5, 0.25)):
            writer.write(ExpertSample(step, 7, 0, 100, 0, 0.5, 13, apart))
        writer.write(ExpertSample(0, 8, 0, 100, 0, 0.5))
    found = fetched(endpoint)
    assert one(found, "workbench_expert_buckets_total", rank="1", layer="7", expert="0") == 26
    assert one(found, "workbench_expert_residual", layer="7") == 0.25
    assert not [name for name, labels in found if "buckets" in name and dict(labels)["layer"] == "8"]


def test_documents_of_their_own_lengths_have_the_rate_that_ranks_tell(
    records: Path, endpoint: Endpoint
) -> None:
    run_folder.write_json(records.parent / run_folder.CONFIG, {"data": {"documents": "whole"}})
    for rank in range(2):
        with RecordWriter(records, f"rank-{rank}") as writer:
            for step in range(3):
                writer.write(step_sample(step, forward=2.0, tokens=(10, 50, 30)[step] + rank))
    assert one(fetched(endpoint), "workbench_tokens_per_second") == pytest.approx((90 + 93) / 6.0)
