"""Hardware by name, from a person's file and from a calibration: sources for all, and one line for what is missing."""

from pathlib import Path

import pytest

from engine.config.errors import InputError
from engine.run.calibration.fingerprint import Fingerprint
from engine.run.calibration.fit import fit
from engine.run.calibration.table import Calibration, Curve, Kind, Point
from tuning.predict.cluster import catalogue, this_machine
from tuning.predict.model.hardware import FORMATS, BandwidthMeasurement

UNJOINED = {"mosaic-h100", "mi300x-node"}

ISLANDS = """
name = "islands"
[[groups]]
accelerator = "a100-80gb"
nodes = 2
devices_per_node = 8
network = "InfiniBand"
inside.bytes_per_second = 300e9
between = { bytes_per_second_per_node = 200e9, alpha_seconds = 1e-6, source = "our data sheet" }
[[groups]]
accelerator = "ours"
nodes = 1
devices_per_node = 4
network = "RoCE"
inside.bytes_per_second = 50e9
[across]
bytes_per_second = 3e9
[accelerators.ours]
peak_flops.bf16 = 1e14
memory_bytes = 16_000_000_000
memory_bandwidth = 5e11
"""


@pytest.mark.parametrize("name", catalogue.accelerators())
def test_every_figure_of_an_accelerator_has_a_source(name: str) -> None:
    chip = catalogue.accelerator(name)
    figures = {*(f"peak_flops.{form}" for form in chip.peak_flops), "memory_bytes", "memory_bandwidth"}
    shares = {name for name in ("products", "attention") if getattr(chip, name) != 1}
    assert set(chip.sources) == figures | shares
    for source in chip.sources.values():
        assert (
            "read" in source or source.endswith((".csv", "too)")) or source.startswith(("arXiv", "fitted to"))
        )
    assert set(chip.peak_flops) <= set(FORMATS)
    assert chip.peak_flops["fp32"] < chip.peak_flops["fp16"]
    assert chip.peak_flops.get("bf16", chip.peak_flops["fp16"]) == chip.peak_flops["fp16"]
    assert chip.peak_flops.get("fp8", chip.peak_flops["fp16"]) >= chip.peak_flops["fp16"]
    assert chip.memory_bytes > 15e9


def test_peaks_are_dense() -> None:
    peaks = {name: catalogue.accelerator(name).peak_flops["fp16"] / 1e12 for name in catalogue.accelerators()}
    assert peaks["a100-80gb"] == 312
    assert round(peaks["h100-sxm"]) == 989
    assert peaks["mi250x-gcd"] == 191.5


def test_what_has_no_figure_is_named() -> None:
    volta = catalogue.accelerator("v100-32gb")
    assert catalogue.peak_flops(volta, "fp16") == 125e12
    with pytest.raises(
        InputError, match=r"v100-32gb.peak_flops.bf16: there is no figure; it has fp16, fp32, fp64"
    ):
        catalogue.peak_flops(volta, "bf16")
    with pytest.raises(InputError, match="format='int8': unknown"):
        catalogue.peak_flops(volta, "int8")
    with pytest.raises(InputError, match="accelerator='h99': unknown; choose one of v100-16gb"):
        catalogue.accelerator("h99")
    with pytest.raises(InputError, match=r"accelerator='this CPU'.*workbench calibrate"):
        catalogue.accelerator("this CPU")


def test_an_accelerator_without_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "accelerator,figure,value,unit,source\nhalf,peak_flops.bf16,1e12,FLOP/s,us\n"
    (tmp_path / "accelerators.csv").write_text(rows, encoding="utf-8")
    monkeypatch.setattr(catalogue, "DATA", tmp_path)
    catalogue._figures.cache_clear()
    try:
        with pytest.raises(InputError, match=r"half.memory_bytes: no source tells this figure"):
            catalogue.accelerator("half")
    finally:
        catalogue._figures.cache_clear()


@pytest.mark.parametrize("name", catalogue.names())
def test_every_cluster_has_sources_or_names_what_it_lacks(name: str) -> None:
    assert catalogue.cluster(name).size == 8
    if name in UNJOINED:
        with pytest.raises(
            InputError, match=rf"{name}.groups.0.between.bytes_per_second_per_node: no source"
        ):
            catalogue.cluster(name, nodes=2)
        return
    found = catalogue.cluster(name, nodes=3)
    assert found.size == 24
    links = {"inside", "between"} | ({"pairs"} if found.groups[0].pairs else set())
    figures = {
        f"groups.0.{link}.{figure}" for link in links for figure in ("bytes_per_second", "alpha_seconds")
    }
    assert set(found.sources) == figures
    assert all(len(source) > 10 for source in found.sources.values())


def test_a_cluster_takes_a_number_of_nodes() -> None:
    found = catalogue.cluster("dgx-h100", nodes=64)
    assert found.size == 512
    assert found.link(0, 7).bytes_per_second == 450e9
    assert found.link(7, 8).bytes_per_second == 50e9
    for bad in (0, -1):
        with pytest.raises(InputError, match=f"nodes={bad}: give a whole number"):
            catalogue.cluster("dgx-h100", nodes=bad)
    with pytest.raises(InputError, match="cluster='dgx': unknown; choose one of dgx-v100, dgx-a100"):
        catalogue.cluster("dgx")


def test_dies_of_one_package_have_their_own_link() -> None:
    found = catalogue.cluster("frontier", nodes=2)
    rates = [
        found.link(one, other).bytes_per_second / 1e9 for one, other in ((0, 1), (1, 2), (8, 9), (0, 15))
    ]
    assert rates == [200, 50, 200, 12.5]


def test_the_playbook_cluster_knows_measured_bandwidths() -> None:
    found = {table.operation: table for table in catalogue.cluster("playbook-h100", nodes=4).measured}
    assert set(found) == {"all_reduce", "all_gather", "reduce_scatter"}
    assert found["all_reduce"].interpolate(1) == pytest.approx(435.97e9)
    assert found["all_reduce"].interpolate(64) == pytest.approx(32.94e9)
    assert 99.56e9 < found["all_reduce"].interpolate(6) < 160.14e9


def test_a_measured_curve_is_straight_on_logarithmic_axes_and_level_outside() -> None:
    curve = BandwidthMeasurement("all_reduce", 1e6, ((2, 100.0), (8, 25.0)))
    assert curve.interpolate(4) == pytest.approx(50)
    assert (curve.interpolate(1), curve.interpolate(2), curve.interpolate(100)) == (100, 100, 25)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_describes_islands_on_different_networks(tmp_path: Path) -> None:
    found = catalogue.read_cluster(written(tmp_path, ISLANDS))
    assert (found.name, found.size) == ("islands", 20)
    assert found.link(0, 8).alpha_seconds == 1e-6
    assert found.link(0, 8).bytes_per_second == 25e9
    assert found.link(15, 16).bytes_per_second == 3e9
    assert found.groups[1].accelerator.peak_flops == {"bf16": 1e14}
    assert found.sources["groups.0.between.alpha_seconds"] == "our data sheet"
    assert found.sources["groups.0.inside.alpha_seconds"].startswith("no figure")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nodes = 2", "node = 2", r"groups.0.node=2: unknown key; known here: accelerator, between, .*nodes"),
        (
            "alpha_seconds",
            "latency",
            r"groups.0.between.latency=1e-06: unknown key; known here: alpha_seconds",
        ),
        ("[across]", "[acros]", r"acros=.*known here: accelerators, across"),
        ("memory_bandwidth = 5e11", "", r"accelerators.ours.memory_bandwidth: Field required"),
        ("nodes = 2", "nodes = 0", r"groups.0.nodes=0: must be at least 1"),
        ("nodes = 2", 'nodes = "two"', r"groups.0.nodes='two'"),
        ("nodes = 2", "", r"islands.groups.0.nodes: is missing"),
        ("inside.bytes_per_second = 50e9", "", r"islands.groups.1.inside.bytes_per_second: no source"),
        ("[across]\nbytes_per_second = 3e9", "", r"islands.across: is missing"),
        ("bytes_per_second = 3e9", "bytes_per_second = -3", r"across.bytes_per_second=-3"),
        ('accelerator = "ours"', 'accelerator = "theirs"', r"accelerator='theirs': unknown"),
        ("name =", "name ==", r"is not valid TOML"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ISLANDS
    with pytest.raises(InputError, match=message) as told:
        catalogue.read_cluster(written(tmp_path, ISLANDS.replace(old, new, 1)))
    assert "\n" not in str(told.value)


def test_the_number_of_nodes_is_for_files_with_one_group(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nodes=4: islands has 2 groups"):
        catalogue.read_cluster(written(tmp_path, ISLANDS), nodes=4)
    one = ISLANDS.partition("[[groups]]")[2].partition("[[groups]]")[0]
    assert catalogue.read_cluster(written(tmp_path, "[[groups]]" + one), nodes=4).size == 32
    with pytest.raises(InputError, match="cannot be read"):
        catalogue.read_cluster(tmp_path / "none.toml")


def curve(kind: Kind, name: str, ranks: int, seconds: dict[int, float]) -> Curve:
    points = tuple(Point(size, value, value, value, 3) for size, value in seconds.items())
    fitted = fit(points) if kind in ("collective", "transfer") else None
    return Curve(kind, name, ranks, 1, "cpu", "gloo", 1.0, points, fitted)


def sizes(alpha: float, rate: float) -> dict[int, float]:
    return {size: alpha + size / rate for size in (1 << shift for shift in range(10, 24, 2))}


def calibration(*curves: Curve) -> Calibration:
    return Calibration(Fingerprint("a CPU", 4, 4, 16.0), 1.0, 2.0, True, curves)


MEASURED = (
    curve("gemm", "fp32", 1, {1024: 2 * 1024**3 / 9e10}),
    curve("gemm", "fp32", 4, {512: 1.0, 1024: 2 * 1024**3 / 4e10}),
    curve("gemm", "bf16", 4, {1024: 2 * 1024**3 / 8e10}),
    curve("memory", "copy", 4, {1 << 24: 2 * (1 << 24) / 5e9}),
    curve("collective", "all_reduce", 4, sizes(3e-4, 1e9)),
)


def test_a_calibration_is_a_cluster_of_one_node() -> None:
    found = this_machine.cluster(calibration(*MEASURED, curve("collective", "send", 2, sizes(2e-5, 3e9))))
    chip = found.groups[0].accelerator
    assert found.size == 4
    assert chip.name == "this CPU"
    assert chip.peak_flops == pytest.approx({"fp32": 4e10, "bf16": 8e10})
    assert chip.memory_bandwidth == pytest.approx(5e9)
    assert chip.memory_bytes == 4 * 2**30
    assert all(found.name in source for source in chip.sources.values())
    link = found.link(0, 3)
    assert (link.alpha_seconds, link.bytes_per_second) == pytest.approx((2e-5, 3e9), rel=1e-3)
    assert found.collectives["all_reduce", 4].segments[-1].alpha_seconds == pytest.approx(3e-4, rel=1e-3)


def test_without_a_send_a_link_is_what_a_ring_of_all_ranks_comes_to() -> None:
    link = this_machine.cluster(calibration(*MEASURED)).link(0, 1)
    assert link.alpha_seconds == pytest.approx(3e-4 / 6, rel=1e-3)
    assert link.bytes_per_second == pytest.approx(1e9 * 6 / 4, rel=1e-3)


def test_copies_between_host_and_device_are_kept() -> None:
    copies = curve("transfer", "host_to_device_pinned", 4, sizes(1e-5, 2e10))
    found = this_machine.cluster(calibration(*MEASURED, copies)).copies
    assert found["host_to_device_pinned"].bytes_per_second == pytest.approx(2e10, rel=1e-3)


@pytest.mark.parametrize("kind", ["gemm", "memory", "collective"])
def test_what_a_calibration_lacks_is_named(kind: str) -> None:
    left = [one for one in MEASURED if one.kind != kind]
    with pytest.raises(InputError, match=f"calibration.{kind}: .*run `workbench calibrate`"):
        this_machine.cluster(calibration(*left))
