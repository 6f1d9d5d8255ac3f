"""The page of a lossy run shows its loss beside the exact baseline's: three figures, a line in words, or a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.run import run_folder
from tests.support.workbench.sent_figures import figures_of
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.analysis.quality import values_of
from workbench.home import runs

TITLE = "Loss on held-out text"


def rows(loss: float, seconds: float, size: float) -> list[dict[str, Any]]:
    return [
        {"step": step, "loss": loss + 1 / step, "seconds": seconds * step, "wire_bytes": size * step}
        for step in (10, 20, 30)
    ]


def pair(home: Path) -> tuple[Path, Path]:
    """Two finished runs that differ in compression alone, with losses on the way."""
    full_home(home)
    ended = [folder for folder in runs.run_folders(home) if runs.load(folder).outcome == "completed"]
    lossy, exact = ended[-1], ended[0]
    config = json.loads((exact / run_folder.CONFIG).read_text())
    config["compression"] = {"method": "none"}
    run_folder.write_json(exact / run_folder.CONFIG, config)
    run_folder.write_json(lossy / run_folder.CONFIG, config | {"compression": {"method": "sign"}})
    for folder, values in ((lossy, rows(2.02, 0.2, 1e6)), (exact, rows(2.0, 0.8, 8e6))):
        summary = json.loads((folder / run_folder.SUMMARY).read_text())
        run_folder.write_json(folder / run_folder.SUMMARY, summary | {"quality": values})
    return lossy, exact


def drawn(app: AppTest) -> dict[str, Any]:
    (figure,) = [one for one in figures_of(app) if one["layout"]["title"]["text"] == TITLE]
    return dict(figure)


def test_a_lossy_run_stands_beside_its_baseline(home: Path) -> None:
    lossy, exact = pair(home)
    app = visit("runs", id=lossy.name, section="Loss and memory")
    assert not app.exception
    said = texts(app)
    assert f"and 2.0333 for {exact.name}: +0.98 %" in said
    assert "It sent 8 times fewer bytes until then" in said
    figure = drawn(app)
    assert [trace["name"] for trace in figure["data"]] == ["this run", "exact baseline"] * 3
    assert [trace["showlegend"] for trace in figure["data"]] == [True, True, False, False, False, False]
    titles = [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "xaxis2", "xaxis3", "yaxis")]
    assert titles == ["steps", "seconds of training", "MB sent by a rank", "loss, nats per token"]


def test_without_a_baseline_it_says_what_makes_one(home: Path) -> None:
    lossy, exact = pair(home)
    config = json.loads((exact / run_folder.CONFIG).read_text())
    config["train"] = (config.get("train") or {}) | {"seed": 99}
    run_folder.write_json(exact / run_folder.CONFIG, config)
    app = visit("runs", id=lossy.name, section="Loss and memory")
    assert not app.exception
    assert "No exact run with the same configuration" in texts(app)
    assert any("--set compression.method=none" in code.value for code in app.code)
    assert [trace["name"] for trace in drawn(app)["data"]] == ["this run"] * 3


def test_an_exact_run_has_its_curve_and_no_baseline(home: Path) -> None:
    _, exact = pair(home)
    assert values_of(exact)["compression.method"] == "none"
    app = visit("runs", id=exact.name, section="Loss and memory")
    assert not app.exception
    assert "exact baseline" not in texts(app)
    assert TITLE not in texts(app)  # it stands in the chart alone
    assert len(drawn(app)["data"]) == 3


def experts_page() -> None:
    from profilers.model.rows import ExpertRow
    from profilers.model.run_summary import RunSummary
    from workbench.pages.run import quality

    rows = [
        ExpertRow(0, [0.5, 0.5], 0.0, 0.0, 1.0, 1.0, 0.13, 0.5),
        ExpertRow(1, [0.9, 0.1], 0.4, 0.3, 1.5, 1.8, 0.14, 0.7),
    ]
    quality.draw_experts(RunSummary("x", {}, 1, "gloo", 1, 1, experts=rows), "look")
    quality.draw_experts(RunSummary("y", {}, 1, "gloo", 1, 1), "look")


def test_the_load_of_each_layers_experts_is_drawn_and_listed_once() -> None:
    found = AppTest.from_function(experts_page).run()
    assert not found.exception
    (heat,) = [figure["data"][0] for figure in figures_of(found)]
    assert heat["z"] == [[1.0, 1.0], pytest.approx([1.8, 0.2])] and heat["y"] == ["0", "1"]
    (table,) = found.dataframe
    assert list(table.value["busiest expert"]) == [0, 0]
    assert list(table.value["dropped, %"]) == [0.0, 30.0]
    assert list(table.value["busiest ep rank"]) == [1.0, 1.8]
    assert list(table.value["sent, %"]) == pytest.approx([13.0, 14.0])
    assert list(table.value["residual, %"]) == pytest.approx([50.0, 70.0])


def update_page() -> None:
    from profilers.model.rows import UpdatedLayerRow, UpdateRow
    from profilers.model.run_summary import RunSummary
    from workbench.pages.run import quality

    layers = [UpdatedLayerRow("blocks.0", 16, 4, True, 0.25), UpdatedLayerRow("last", 10, 0, True, None)]
    row = UpdateRow("auto", 4096, {"weights": 1024, "gradients": 512}, {"weights": 1536}, 512, layers)
    quality.draw_update(RunSummary("x", {}, 1, "gloo", 1, 1, update=row))
    quality.draw_update(RunSummary("y", {}, 1, "gloo", 1, 1))


def test_what_is_trained_within_a_budget_is_listed_once_with_its_bytes() -> None:
    found = AppTest.from_function(update_page).run()
    assert not found.exception
    (table,) = found.dataframe
    assert list(table.value["their weights trained"]) == [4, 0]
    assert list(table.value["biases trained"]) == ["yes", "yes"]
    (caption,) = found.caption
    assert "weights of 1 of 2 layers, biases of 2, in 1.5 KiB of 4.0 KiB (weights 1.0 KiB" in caption.value
    assert "as many were counted" in caption.value and "sends 0.5 KiB" in caption.value


def adapted_page() -> None:
    from profilers.model.rows import AdapterRow
    from profilers.model.run_summary import RunSummary
    from workbench.pages.run import quality

    row = AdapterRow("losa", 8, 1_000, 99_000, 0.01, "a-run", "a" * 64, "b" * 64, False)
    quality.draw_adapted(RunSummary("x", {}, 1, "gloo", 1, 1, adapted=row))
    quality.draw_adapted(RunSummary("y", {}, 1, "gloo", 1, 1))


def test_what_learned_beside_a_frozen_model_is_told_once_and_that_it_changed() -> None:
    found = AppTest.from_function(adapted_page).run()
    assert not found.exception
    (caption,) = found.caption
    assert (
        "LoSA of rank 8 trained 1,000 parameters, 1 % of all; the 99,000 frozen ones changed" in caption.value
    )


def partial_page() -> None:
    from profilers.model.rows import PartialProductsRow
    from profilers.model.run_summary import RunSummary
    from workbench.pages.run import quality

    for key, share in (("train.slice_keep", 0.75), ("memory.sample_tokens", 0.3)):
        row = PartialProductsRow(key, share, 3 << 20, 5 << 20)
        quality.draw_trained({}, RunSummary("x", {}, 1, "gloo", 1, 1, partial_products=row))
    quality.draw_trained({}, RunSummary("y", {}, 1, "gloo", 1, 1))


def test_what_steps_leave_out_is_told_once_with_what_that_spares() -> None:
    found = AppTest.from_function(partial_page).run()
    assert not found.exception
    sliced, sampled = (one.value for one in found.caption)
    assert (
        "A step trains 75 % of each block's heads and, experts aside, feed-forward width; by formula"
        in sliced
    )
    assert "Weight gradients come from 30 % of the tokens; by formula" in sampled
    left, spared = "a micro-batch leaves 3.0 MiB of", "in a stage in place of 5.0 MiB."
    assert sliced.endswith(f"{left} activations {spared}")
    assert sampled.endswith(f"{left} activations and remembered norms of gradients {spared}")


def test_a_sampled_run_tells_so_on_its_page_and_while_it_goes(home: Path) -> None:
    sampled, exact = pair(home)
    summary = json.loads((sampled / run_folder.SUMMARY).read_text())
    row = {"key": "memory.sample_tokens", "share": 0.3, "kept_bytes": 3 << 20, "whole_bytes": 5 << 20}
    run_folder.write_json(sampled / run_folder.SUMMARY, summary | {"partial_products": row})
    told = "Weight gradients come from 30 % of the tokens"
    for page in ({"id": sampled.name, "section": "Loss and memory"}, {"id": exact.name}):
        app = visit("runs", **page)
        assert not app.exception
        assert texts(app).count(told) == (page["id"] == sampled.name)
    app = visit("live", run=sampled.name)
    assert not app.exception
    assert texts(app).count(told) == 1


def tasks_page() -> None:
    from profilers.model.rows import TaskRow
    from profilers.model.run_summary import RunSummary
    from workbench.pages.run import quality

    rows = [
        TaskRow("large", 8, {0: 5, 1: 3}, [5.0, None, 4.0]),
        TaskRow("small", 2, {1: 2}, [6.0, None, 5.5]),
    ]
    quality.draw_tasks(RunSummary("x", {}, 2, "gloo", 1, 1, tasks=rows), "look")
    quality.draw_tasks(RunSummary("y", {}, 1, "gloo", 1, 1), "look")


def test_each_task_s_loss_and_ranks_are_drawn_and_told_once() -> None:
    found = AppTest.from_function(tasks_page).run()
    assert not found.exception
    (table,) = found.dataframe
    assert list(table.value["task"]) == ["large", "small"]
    assert list(table.value["ranks"]) == [2, 1]
    assert list(table.value["last loss"]) == [4.0, 5.5]
    (told,) = found.caption
    assert told.value.endswith(
        "Of 10 micro-batches a step large has 8 on 2 ranks, small has 2 on 1 rank; each rank has 5."
    )


def documents_page() -> None:
    from profilers.model.rows import SequenceGroupRow, SequencePlanRow
    from profilers.model.run_summary import RunSummary
    from workbench.pages.run import quality

    groups = [
        SequenceGroupRow(4, 0, 4, 1, 600, 0.2, 0.25),
        SequenceGroupRow(4, 1, 1, 3, 100, 0.1, 0.1),
        SequenceGroupRow(5, 0, 1, 2, 100, 0.3, 0.2),
    ]
    plans = [SequencePlanRow(4, 0.3, 0.1, True), SequencePlanRow(5, 0.1, 0.0, False, {"1": 1.25, "4": 0.5})]
    found = RunSummary("x", {}, 4, "gloo", 1, 1, sequence_groups=groups, sequence_plans=plans)
    quality.draw_sequences(found)
    quality.draw_sequences(RunSummary("y", {}, 1, "gloo", 1, 1))


def test_groups_that_shared_documents_are_listed_by_size_with_what_they_were_to_take() -> None:
    found = AppTest.from_function(documents_page).run()
    assert not found.exception
    (table,) = found.dataframe
    assert list(table.value["ranks"]) == [1, 4] and list(table.value["groups"]) == [2, 1]
    assert list(table.value["documents"]) == [5, 1] and list(table.value["tokens"]) == [200, 600]
    assert list(table.value["predicted, ms"]) == pytest.approx([200, 200])
    assert list(table.value["measured, ms"]) == pytest.approx([150, 250])
    (caption,) = found.caption
    assert "Of 800 tokens in the last 2 steps 25 % to groups of 1, 75 % to groups of 4" in caption.value
    assert r"beside the start's measurements\: of 1 1.25 times, of 4 0.50 times" in caption.value
    assert "off by 23 %" in caption.value and "50 % are proven" in caption.value
