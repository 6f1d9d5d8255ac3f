"""Published tables: what the readers return agrees with what the tables themselves, and their sources, add up to."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import llmfoundry, megatron, papers, playbook, vendors, vtrain
from benchmarks.published.columns import Columns, cases, take
from engine.config.errors import InputError
from tuning.predict.cluster.csv_table import DATA, read

SCORED = Path(__file__).parents[2] / "benchmarks" / "data"
FILES = sorted([*DATA.glob("*.csv"), *SCORED.glob("*.csv")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_table_tells_where_it_comes_from(path: Path) -> None:
    sheet = read(path)
    assert len(sheet) > 0
    assert sheet.comments
    if path.name not in ("models.csv", "accelerators.csv"):
        assert sheet.comments[0].startswith("Source: ")


def test_playbook_trials_fill_their_nodes_and_batches() -> None:
    trials = playbook.trials()
    assert (trials["dp"] * trials["tp"] * trials["pp"] == trials["devices"]).all()
    batch = trials["micro_batch"] * trials["micro_batches"] * trials["dp"]
    assert (batch == trials["global_batch"]).all()
    assert (cases(trials).world == trials["devices"]).all()


def test_playbook_failures_have_no_figures_and_successes_have_all() -> None:
    trials = playbook.trials()
    assert 0 < trials["failed"].sum() < len(trials["failed"])
    for name in ("iteration_seconds", "tokens_per_second", "memory_bytes", "mfu"):
        assert (np.isnan(trials[name]) == trials["failed"]).all()
    ran = take(trials, ~trials["failed"])
    assert ran["memory_bytes"].max() < 80 * 2**30
    per_device = ran["tokens_per_second"] / ran["devices"]
    assert np.allclose(per_device, ran["tokens_per_second_per_device"], atol=1)


def test_playbook_drops_rows_that_contradict_themselves() -> None:
    every, kept = playbook.trials(inconsistent=True), playbook.trials()
    flags = read(playbook.TRIALS).whole("gbs_consistent")
    assert len(every["model"]) == len(flags)
    assert len(kept["model"]) == flags.sum()


@pytest.mark.parametrize("model", ["1B", "3B", "8B", "80B"])
def test_playbook_shapes_are_those_that_ran(model: str) -> None:
    """MFU and tokens/s of a trial give the FLOPs of a token, and so layers, widths, vocabulary and sequence."""
    trials = playbook.trials()
    ran = take(trials, (trials["model"] == model) & (trials["mfu"] > 0.2))
    shape = cases(ran)
    embeddings = np.where((shape.tied > 0) & (shape.pp == 1), 1, 2) * shape.vocabulary * shape.hidden
    matrices = shape.layers * (4 * shape.hidden**2 + 3 * shape.hidden * shape.ffn_hidden)
    flops = 6 * (matrices + embeddings) + 12 * shape.layers * shape.hidden * shape.sequence
    assert abs(np.median(ran["reported_flops_per_token"] / flops) - 1) < 0.004
    assert np.mean(abs(ran["reported_flops_per_token"] / flops - 1) < 0.005) > (
        0.75 if model == "80B" else 0.98
    )


def test_playbook_bandwidths_fall_with_nodes() -> None:
    table = playbook.bandwidths()
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        one = take(table, table["collective"] == name)
        assert (np.diff(one["nodes"]) > 0).all()
        assert (np.diff(one["bytes_per_second"]) < 0).all()
        assert (one["devices"] == 8 * one["nodes"]).all()


def test_playbook_scaling_falls_with_degree() -> None:
    table = playbook.scaling(SCORED / "ultrascale_scaling.csv")
    for axis in ("TP", "TP+SP", "DP"):
        assert (np.diff(table["tokens_per_second_per_device"][table["axis"] == axis]) < 0).all()


@pytest.mark.parametrize("table", [vtrain.single, vtrain.multi])
def test_vtrain_iterations_are_whole(table: Callable[[], Columns]) -> None:
    rows = table()
    assert (rows["dp"] * rows["tp"] * rows["pp"] == rows["devices"]).all()
    assert (rows["micro_batches"] * rows["micro_batch"] * rows["dp"] == rows["global_batch"]).all()
    assert np.allclose(cases(rows).tokens / rows["tokens_per_second"], rows["iteration_seconds"])
    assert (rows["iteration_seconds"] < 1000).all()


def test_vtrain_multi_is_of_the_size_it_says() -> None:
    rows = vtrain.multi()
    assert np.allclose(cases(rows).parameters, rows["parameters"], rtol=0.02)


def test_vtrain_all_reduces_agree_with_their_bus_bandwidth() -> None:
    rows = vtrain.all_reduces()
    turns = 2 * (rows["ranks"] - 1) / rows["ranks"]
    assert np.allclose(rows["bytes"] * turns / rows["seconds"], rows["bus_bytes_per_second"], rtol=0.01)
    assert set(rows["accelerator"]) == {"a100-80gb", "v100-32gb"}


def test_llmfoundry_shapes_have_exactly_the_parameters_of_the_table() -> None:
    rows = llmfoundry.runs()
    shape = cases(rows)
    blocks = shape.layers * (12 * shape.hidden**2 + 13 * shape.hidden)
    counted = blocks + (shape.vocabulary + shape.positions) * shape.hidden + 2 * shape.hidden
    assert (counted == rows["parameters"]).all()


def test_llmfoundry_recomputation_is_what_divides_hfu_from_mfu() -> None:
    rows = llmfoundry.runs()
    assert (rows["micro_batch"] * rows["micro_batches"] * rows["dp"] == rows["global_batch"]).all()
    assert ((rows["hfu"] > 1.2 * rows["mfu"]) == (rows["recompute"] == 2)).all()
    assert set(rows["zero_stage"]) == {2, 3}


def test_megatron_table_1_implies_its_seconds() -> None:
    rows = megatron.weak_scaling(SCORED / "megatron_2104_table1.csv")
    seconds = rows["flops"] / (rows["devices"] * rows["flops_per_second_per_device"])
    assert np.allclose(seconds, rows["iteration_seconds"], rtol=0.01)
    assert (rows["dp"] * rows["tp"] * rows["pp"] == rows["devices"]).all()
    assert "micro_batch" not in rows
    with pytest.raises(TypeError, match="micro_batch"):
        cases(rows)
    shape = cases(rows | {"micro_batch": np.ones(10), "micro_batches": rows["global_batch"] / rows["dp"]})
    head = 6 * shape.tokens * shape.hidden * shape.vocabulary
    assert np.allclose((shape.model_flops - head) * 4 / 3 + head, rows["flops"], rtol=0.001)


def test_megatron_recomputation_gives_both_variants_of_each_model() -> None:
    rows = megatron.recomputation(SCORED / "megatron_2205_table3_table5.csv")
    sheet = read(SCORED / "megatron_2205_table3_table5.csv")
    assert sorted(rows["variant"]) == ["full"] * len(sheet) + ["present"] * len(sheet)
    full, present = (take(rows, rows["variant"] == name) for name in ("full", "present"))
    assert (full["iteration_seconds"] > present["iteration_seconds"]).all()
    utilisation = cases(present).model_flops / (present["iteration_seconds"] * present["devices"] * 312e12)
    assert np.allclose(utilisation, sheet.numbers("mfu_pct", 0.01), atol=0.003)


def test_megatron_activation_shares_and_memory() -> None:
    shares = megatron.activation_shares(SCORED / "megatron_2205_fig7_activation_pct.csv")
    memory = megatron.memory(SCORED / "megatron_2205_fig1_memory.csv")
    assert (shares["none"] == 1).all()
    found = memory["selective_activations_bytes"] / memory["activations_bytes"]
    assert np.allclose(found, shares["both"], atol=0.025)


def test_megatron_readme_tells_which_flops_it_counts() -> None:
    rows = megatron.readme(SCORED / "megatron_readme.csv")
    assert (rows["counts_recomputation"] == (rows["accelerator"] == "a100-80gb")).all()
    given = ~np.isnan(rows["tp"])
    assert (rows["tp"] * rows["pp"] == rows["model_parallel"])[given].all()


def test_vendor_tables_leave_open_what_a_cell_does_not_settle() -> None:
    rows = vendors.megatron_bridge(SCORED / "megatron_bridge_nemo.csv")
    raw = read(SCORED / "megatron_bridge_nemo.csv").texts("TP")
    assert np.isnan(rows["tp"][raw == "2 (4)"]).all()
    assert (rows["tp"][raw == "8"] == 8).all()
    assert not (rows["model"] == "").any()
    launcher = vendors.nemo_launcher(SCORED / "nemo_launcher_h100.csv")
    assert np.isnan(launcher["cp"]).sum() == (launcher["mode"] != "pretrain").sum()
    libai = vendors.libai(SCORED / "oneflow_libai.csv")
    assert (libai["dp"] * libai["tp"] * libai["pp"] == libai["devices"]).all()


def test_papers_keep_apart_what_was_read_and_what_was_recalled() -> None:
    layouts = papers.frontier_layouts(SCORED / "frontier_2312.csv")
    assert {str(name) for name in layouts["model"]} == {"22B", "175B", "1T"}
    assert (layouts["dp"] == np.floor(layouts["dp"])).all()
    results = papers.frontier_results(SCORED / "frontier_2312.csv")
    of_peak = dict(zip(results["model"], results["value"], strict=False))
    assert set(results["metric"]) == {"pct_of_peak", "weak_scaling_pct", "strong_scaling_pct"}
    assert of_peak
    holmes = papers.holmes(SCORED / "holmes_2312.csv")
    assert holmes["verified"].sum() == 8
    assert len(read(SCORED / "frontier_deephyper_space.csv")) == 4


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_sheet_keeps_comments_and_text(tmp_path: Path) -> None:
    sheet = read(write(tmp_path / "a.csv", '# Source: us\n# twice\nname,size\n"a, b",1\nc,\n'))
    assert sheet.comments == ("Source: us", "twice")
    assert list(sheet.texts("name")) == ["a, b", "c"]
    assert np.isnan(sheet.numbers("size")).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b\n1\n", "row 1.*1 cells.*2 columns"),
        ("a,c\n1,2\n", "no column 'b'; it has a, c"),
        ("a,b\n1,x\n", "row 1, column b='x'.*whole number"),
        ("a,b\n1,\n", "row 1, column b=''"),
    ],
)
def test_a_bad_table_is_told_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as told:
        read(write(tmp_path / "bad.csv", text)).whole("b")
    assert "\n" not in str(told.value)


def test_a_missing_table_and_an_unknown_model_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"model='2B'.*1B, 3B, 8B, 80B"):
        playbook.shape_columns("playbook", np.array(["2B"]))


def test_another_table_with_the_same_columns_is_read(tmp_path: Path) -> None:
    lines = playbook.TRIALS.read_text(encoding="utf-8").splitlines()
    body = [line for line in lines if not line.startswith("#")]
    few = playbook.trials(write(tmp_path / "other.csv", "\n".join(body[:6]) + "\n"))
    assert len(few["model"]) == 5
    bad = body[1].replace("1B,", "1B,x", 1)
    with pytest.raises(InputError, match=r"other2.csv: row 1, column nodes='x1'"):
        playbook.trials(write(tmp_path / "other2.csv", body[0] + "\n" + bad + "\n"))
