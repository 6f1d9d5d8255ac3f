"""The endpoint: its numbers are those of the records, a scrape reads on, and a real Prometheus server fetches it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.run import run_folder
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from tests.support.samples import comm_sample, gpu_sample, step_sample
from tests.support.waiting import wait_until
from tests.support.workbench import prometheus
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.commands.test_bad_input import free_port
from tests.workbench.conftest import Run
from workbench.metrics.endpoint import Endpoint
from workbench.metrics.follow import Follower, StepSums
from workbench.records import archive

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def going(home: Path) -> RunFolder:
    return RunFolder(home, FakeRun("20260101-000000-aaaa", {"parallel.dp": 2}, 0.1, 100, ending=None, gpus=2))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def endpoint(home: Path, told: list[str]) -> Iterator[Endpoint]:
    with Endpoint(home, "127.0.0.1", 0, told.append) as running:
        yield running


def fetched(endpoint: Endpoint) -> Found:
    with urllib.request.urlopen(endpoint.url, timeout=10) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "each series once"
    return found


def one(found: Found, name: str, **labels: str) -> float:
    """The value of the one series with at least these labels."""
    values = [
        value for (each, own), value in found.items() if each == name and labels.items() <= dict(own).items()
    ]
    assert len(values) == 1, (name, labels, values)
    return values[0]


def test_a_scrape_tells_what_the_records_hold(going: RunFolder, endpoint: Endpoint) -> None:
    going.write(30)
    found, records = fetched(endpoint), archive.records(going.folder / run_folder.RECORDS)
    for rank in (0, 1):
        steps, calls = records.table(rank, "step"), records.table(rank, "comm")
        of_rank = {"run": going.run.id, "rank": str(rank)}
        seconds = steps.column("step_seconds")
        assert one(found, "workbench_step_seconds_count", **of_rank) == 30
        assert one(found, "workbench_step_seconds_sum", **of_rank) == pytest.approx(float(seconds.sum()))
        assert one(found, "workbench_step_seconds_bucket", le="0.1", **of_rank) == int((seconds <= 0.1).sum())
        assert one(found, "workbench_step", **of_rank) == 29
        for phase in PHASES:
            spent = float(steps.column(f"{phase}_seconds").sum())
            assert one(found, "workbench_phase_seconds_total", phase=phase, **of_rank) == pytest.approx(spent)
        of_calls = {"axis": "dp", "operation": "all_reduce", **of_rank}
        assert one(found, "workbench_collectives_total", **of_calls) == len(calls)
        for name, field in (
            ("bytes", "bytes"),
            ("seconds", "seconds"),
            ("exposed_seconds", "exposed_seconds"),
        ):
            total = float(calls.column(field).sum())
            assert one(found, f"workbench_collective_{name}_total", **of_calls) == pytest.approx(total)
        rss = float(records.table(rank, "memory").column("rss_bytes")[-1])
        assert one(found, "workbench_memory_rss_bytes", **of_rank) == rss


def test_readings_of_gpus_and_host_in_base_units(going: RunFolder, endpoint: Endpoint) -> None:
    going.write(3)
    found = fetched(endpoint)
    last = archive.records(going.folder / run_folder.RECORDS).table("launcher", "gpu").rows()[-2:]
    for gpu in last:
        assert gpu.gpu in (0, 1)  # type: ignore[union-attr]
        watts = one(found, "workbench_gpu_power_watts", run=going.run.id, gpu=str(gpu.gpu))  # type: ignore[union-attr]
        assert watts == gpu.power_watts  # type: ignore[union-attr]
    assert one(found, "workbench_gpu_sm_clock_hertz", gpu="1") == 1.98e9
    assert 0 < one(found, "workbench_gpu_utilization_ratio", gpu="0") <= 1
    assert one(found, "workbench_host_cpu_ratio", run=going.run.id) > 0
    assert not [name for name, _ in found if name.startswith("workbench_gpu_energy")]  # was not available


def test_the_rate_is_over_the_wall_time_of_the_last_steps(going: RunFolder, endpoint: Endpoint) -> None:
    """The mean over ranks, as everywhere: ranks that meet at every step take the same time."""
    going.write(60)
    records = archive.records(going.folder / run_folder.RECORDS)
    ranks = range(going.run.world_size)
    seconds = [records.table(rank, "step").column("step_seconds")[-20:].sum() for rank in ranks]
    rate = one(fetched(endpoint), "workbench_tokens_per_second", run=going.run.id)
    assert rate == pytest.approx(20 * going.run.tokens / (sum(seconds) / len(seconds)))


def test_a_second_scrape_reads_only_what_is_new(going: RunFolder, endpoint: Endpoint) -> None:
    going.write(5)
    fetched(endpoint)
    content = {path: path.read_bytes() for path in (going.folder / run_folder.RECORDS).glob("rank-0.*")}
    for path, old in content.items():  # whatever was read already may not be looked at again
        if path.suffix == ".step":
            path.write_bytes(old[:300] + b"\xff" * (len(old) - 300))
    going.write_step(5)
    assert one(fetched(endpoint), "workbench_step_seconds_count", rank="0") == 6


def test_states_and_the_end_of_a_run(going: RunFolder, home: Path) -> None:
    going.write(3)
    now = [time.time()]
    follower = Follower(home, keep_seconds=60.0, clock=lambda: now[0])
    assert [run.state for run in follower.runs()] == ["running"]
    going.ranks[0].dropped, going.ranks[0].drop_reason = 7, "No space left on device"
    going.run.ending = "diverged"
    going.end()
    run_folder.update_status(going.folder, ended_unix=now[0])
    assert [(run.state, dict(run.dropped)) for run in follower.runs()] == [("diverged", {"rank-0": 7})]
    now[0] += 61
    assert follower.runs() == []


def test_buckets_hold_their_upper_bound(tmp_path: Path, going: RunFolder) -> None:
    for seconds in (0.001, 0.0011, 60.0, 61.0):
        going.ranks[0].write(step_sample(step_seconds=seconds))
    sums = StepSums()
    sums.add(archive.records(going.folder / run_folder.RECORDS).table(0, "step"))
    assert (sums.buckets[0], sums.buckets[1], sums.buckets[-2], sums.buckets[-1]) == (1, 1, 1, 1)


def test_what_cannot_be_read_is_told_once_and_counted(
    going: RunFolder, endpoint: Endpoint, told: list[str]
) -> None:
    going.write(2)
    records = going.folder / run_folder.RECORDS
    (records / "rank-7.step").write_bytes(b"not one of our files, but long enough")
    (records / "rank-0.colour").write_bytes((records / "rank-0.step").read_bytes())
    assert one(fetched(endpoint), "workbench_unreadable_parts", run=going.run.id) == 2
    fetched(endpoint)
    assert told == [
        f"{going.run.id}: rank-0.colour: a stream that this version does not know; left out",
        f"{going.run.id}: rank-7.step: not a record file (wrong magic)",
    ]


def test_calls_without_a_time_still_count_their_bytes(going: RunFolder, endpoint: Endpoint) -> None:
    going.ranks[0].write(comm_sample(axis="dp", seconds=None, exposed_seconds=None))
    going.launcher.write(gpu_sample(0))
    found = fetched(endpoint)
    assert one(found, "workbench_collective_bytes_total", axis="dp") == 1000
    assert one(found, "workbench_collective_seconds_total", axis="dp") == 0


def test_messages_have_no_seconds(going: RunFolder, endpoint: Endpoint) -> None:
    for operation in ("send", "recv", "all_reduce"):
        going.ranks[0].write(comm_sample(axis="pp", operation=operation, seconds=0.5, exposed_seconds=0.1))
    found = fetched(endpoint)
    told = {
        dict(labels)["operation"] for name, labels in found if name == "workbench_collective_seconds_total"
    }
    assert told == {"all_reduce"}
    for operation in ("send", "recv"):
        assert one(found, "workbench_collectives_total", operation=operation) == 1
        assert one(found, "workbench_collective_exposed_seconds_total", operation=operation) == 0.1


def test_a_taken_port_is_one_line(command: Run, endpoint: Endpoint) -> None:
    command("metrics", "--port", endpoint.url.split(":")[2].split("/")[0]).refused("--port", "give another")


def test_without_the_package_one_line_says_how_to_get_it(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("prometheus_client", "workbench.metrics"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    command("metrics").refused("prometheus_client", "pip install 'training-workbench[metrics]'")


def test_the_endpoint_loads_no_torch() -> None:
    script = "import sys, workbench.metrics.endpoint; print([m for m in ('torch', 'streamlit') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(prometheus.WHY_NO_TOOL is not None, reason=str(prometheus.WHY_NO_TOOL))
def test_promtool_finds_nothing_to_complain_about(going: RunFolder, endpoint: Endpoint) -> None:
    going.write(3)
    with urllib.request.urlopen(endpoint.url, timeout=10) as answer:
        text = answer.read()
    done = subprocess.run(
        [str(prometheus.TOOL), "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.fixture
def training(home: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run on two ranks that goes on until somebody stops it."""
    asked, log = tmp_path / "run.yaml", tmp_path / "train.log"
    asked.write_text(
        "{model: {layers: 2, hidden: 64, ffn_hidden: 128}, data: {sequence_length: 32}, device: cpu}"
    )
    train = [sys.executable, "-m", "workbench", "train", str(asked), "parallel.dp=2", "batch.global_batch=8",
             "train.steps=1000000"]  # fmt: skip
    with (
        log.open("w") as output,
        subprocess.Popen(train, stdout=output, stderr=subprocess.STDOUT, text=True) as run,
    ):
        yield run
        run.terminate()


@pytest.mark.timeout(300)
@pytest.mark.skipif(prometheus.WHY_NONE is not None, reason=str(prometheus.WHY_NONE))
def test_a_real_server_scrapes_a_real_run(
    home: Path, tmp_path: Path, endpoint: Endpoint, training: subprocess.Popen[str], command: Run
) -> None:
    target = endpoint.url.removeprefix("http://").removesuffix("/metrics")
    with prometheus.scraping(target, tmp_path, free_port()) as server:
        moves = 'changes(workbench_step{rank="0"}[5m])'  # seen while it goes, however slow it is
        moved = wait_until(lambda: training.poll() is not None or (server.value(moves) or 0) >= 2, 180.0)
        assert moved and training.poll() is None, (tmp_path / "train.log").read_text()
        (run,) = (path.name for path in home.iterdir() if path.name.startswith("20"))
        assert command("control", run, "stop").code == 0
        assert wait_until(
            lambda: server.value(f'workbench_run_state{{run="{run}", state="stopped"}}') == 1, 60.0
        )
        records = archive.records(home / run / run_folder.RECORDS)
        for rank in (0, 1):
            _as_recorded(server, records, run, rank)


def _as_recorded(server: prometheus.Server, records: RunRecords, run: str, rank: int) -> None:
    """What the server keeps of a rank is what its records hold."""
    of_rank, steps = f'run="{run}", rank="{rank}"', records.table(rank, "step")
    seconds = steps.column("step_seconds")
    assert server.value(f"workbench_step_seconds_count{{{of_rank}}}") == len(seconds) > 0
    assert server.value(f"workbench_step_seconds_sum{{{of_rank}}}") == pytest.approx(float(seconds.sum()))
    forward = server.value(f'workbench_phase_seconds_total{{{of_rank}, phase="forward"}}')
    assert forward == pytest.approx(float(steps.column("forward_seconds").sum()))
    moved = server.query(f"sum by (axis) (workbench_collective_bytes_total{{{of_rank}}})")
    assert moved[(("axis", "dp"),)] == float(records.table(rank, "comm").column("bytes").sum())
