"""The study file: defaults, one-line refusals, and what makes two files the same study."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.config.errors import InputError
from tests.support.studies.fake import study
from tuning.spec import study_file

BASE = {"batch": {"global_batch": 16, "micro_batch": 4}}


def test_reads_what_a_person_writes(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: quickstart\nranks: 4\nbase:\n  batch: {global_batch: 16}\n  train: {learning_rate: 1e-3}\n"
        "space:\n  parallel.tp: [1, 2, 4]\n  schedule.kind: [1f1b, gpipe]\n"
        "  compression.ratio: {low: 0.01, high: 0.25, log: true}\n",
        encoding="utf-8",
    )
    file = study_file.load(path)
    assert file.config.train.learning_rate == 0.001
    assert [knob.key for knob in file.knobs] == ["parallel.tp", "schedule.kind", "compression.ratio"]
    assert file.text == path.read_text("utf-8")
    assert study_file.parse(file.resolve()).fingerprint() == file.fingerprint()


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"spaces": {}}, "spaces", "unknown key; known here: base, budget, budget_seconds"),
        ({"ranks": 0}, "ranks", "at least 1"),
        ({"ranks": "four"}, "ranks", "whole number"),
        ({"trials": 0}, "trials", "at least 1"),
        ({"name": "4 ranks"}, "name", "must begin with a letter"),
        ({"name": "a" * 201}, "name", "at most 200"),
        ({"name": "../elsewhere"}, "name", "must begin with a letter"),
        ({"objective": "loss"}, "objective", "tokens_per_second"),
        ({"base": {"modell": {}}}, "base.modell", "unknown key"),
        ({"base": {"train": {"steps": "many"}}}, "base.train.steps", "whole number"),
        ({"base": {"train": {"steps": 4, "warmup": 4}}}, "base.train.steps", "above warmup=4"),
        ({"base": {"model": {"preset": "huge"}}}, "model.preset", "unknown; choose one of"),
        ({"base": BASE | {"parallel": {"dp": 3}}}, "base.parallel.dp", "leave it out"),
        (
            {"space": {"parallel.tq": [1]}},
            "space.parallel.tq",
            "unknown key; a study can turn ranks, batch.accumulation, data.ahead",
        ),
        ({"space": {"parallel.tp": ["a"]}}, "space.parallel.tp", "whole number"),
        ({"space": {"parallel.tp": []}}, "space.parallel.tp", "no choices"),
        ({"space": {"parallel.tp": 2}}, "space.parallel.tp", "belongs in base"),
        ({"space": {"parallel.dp": [1, 2]}}, "space.parallel.dp", "follows from ranks"),
        ({"space": {"parallel.cp_method": ["rings"]}}, "space.parallel.cp_method", "'ring' or 'ulysses'"),
        ({"space": {"parallel.cp": [None]}}, "space.parallel.cp", "whole number"),
        (
            {"space": {"parallel.shard_ranks": {"low": None, "high": 4}}},
            "space.parallel.shard_ranks.low",
            "a number",
        ),
        ({"space": {"parallel.ep": {"low": 2, "high": 2}}}, "space.parallel.ep", "below high"),
        (
            {"space": {"schedule.stage_layers": [[1, 3]]}},
            "space.schedule.stage_layers",
            "between null and auto",
        ),
        ({"space": {"parallel.placement": [[1, 0]]}}, "space.parallel.placement", "between null and auto"),
        ({"base": BASE | {"parallel": {"cp": 8}}}, "base.parallel.cp", "must divide ranks=4"),
        ({"space": {"model.layers": [2, 4]}}, "space.model.layers", "stays the same"),
        ({"space": {"batch.global_batch": [8]}}, "space.batch.global_batch", "set it in base"),
        (
            {"space": {"train.learning_rate": {"low": 1e-4, "high": 1e-2}}},
            "space.train.learning_rate",
            "only studies of a time to a loss",
        ),
        ({"space": {"train.steps": [8]}}, "space.train.steps", "stays the same"),
        (
            {"space": {"compression.ratio": {"low": 0.2, "high": 0.1}}},
            "space.compression.ratio",
            "below high",
        ),
        ({"space": {"compression.ratio": {"low": 0.2}}}, "space.compression.ratio", "a range is"),
        ({"space": {"compression.ratio": {"low": 0.2, "high": 3.0}}}, "space.compression.ratio", "at most 1"),
        ({"space": {"memory.recompute": {"low": 1, "high": 2}}}, "space.memory.recompute", "no numbers"),
        ({"loss_guard": {"limit": 1}}, "loss_guard.limit", "unknown key"),
        ({"racing": {"settle": 0}}, "racing.settle", "above 0"),
        ({"racing": {"settled": 1}}, "racing.settled", "known here: least_steps, settle, spread"),
        ({"racing": "often"}, "racing", "true or false"),
        ({"price": {"per_gpu_hour": 1.0, "hour": 2}}, "price.hour", "known here: currency, per_gpu_hour"),
        ({"price": {}}, "price.per_gpu_hour", "is missing"),
        ({"price": {"per_gpu_hour": float("inf")}}, "price.per_gpu_hour", "finite"),
        ({"price": {"per_gpu_hour": 1.0, "currency": ""}}, "price.currency", "at least 1 character"),
        ({"budget": {"wall_seconds": float("inf")}}, "budget.wall_seconds", "finite"),
        ({"constraints": {"memory": 1}}, "constraints.memory", "memory_headroom"),
        (
            {"simulate": {"clusters": "frontier", "cluster": "frontier"}},
            "simulate.clusters",
            "cluster, noise",
        ),
    ],
)
def test_refuses_in_one_line(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        study_file.parse({"name": "first", "ranks": 4, "base": BASE} | changes)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_trials_of_a_time_may_have_any_number_of_steps_in_their_base() -> None:
    asked = {"name": "first", "ranks": 4, "objective": {"loss_at_seconds": 4}}
    train = {"steps": 4, "warmup": 4, "learning_rate_schedule": "linear", "learning_rate_warmup": 100}
    assert study_file.parse(asked | {"base": {"train": train}}).config.train.seconds == 4


def test_a_time_is_given_once() -> None:
    asked = {"name": "first", "ranks": 4, "objective": [{"loss_at_seconds": 4}, "peak_memory_bytes"]}
    with pytest.raises(InputError, match=r"base.train.seconds=5: the objective is the loss after 4 seconds"):
        study_file.parse(asked | {"base": {"train": {"seconds": 5}}})
    assert study_file.parse(asked | {"base": {"train": {"seconds": 4}}}).config.train.seconds == 4


@pytest.mark.parametrize(
    "content",
    [None, b"", b"- a\n- b\n", b"name: [1\n", b"\x00\xff\xfe", b"ranks: 4\n", b"name: a\n  b: c: d\n"],
)
def test_refuses_files_that_are_no_study(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "study.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        study_file.load(path)
    assert "\n" not in str(caught.value)


def test_a_study_may_grow_but_not_change_its_question() -> None:
    first = study()
    assert (
        study(trials=20, seed=3, budget_seconds=60.0, confirm_repeats=2).fingerprint() == first.fingerprint()
    )
    assert study(base={"batch": {"global_batch": 16, "micro_batch": 4}}).fingerprint() != first.fingerprint()
    assert study(space={"parallel.tp": [1, 2]}).fingerprint() != first.fingerprint()
    assert study(ranks=2).fingerprint() != first.fingerprint()
    assert study(loss_guard={"threshold": 0.1}).fingerprint() != first.fingerprint()


def test_one_device_has_no_layout_to_choose() -> None:
    file = study_file.parse({"name": "alone"})
    assert {knob.key for knob in file.knobs} == {"batch.micro_batch", "memory.recompute", "compile"}
    assert "one device" in file.space_note
    assert file.search_space.baseline[0]["batch.micro_batch"] == file.config.batch.micro_batch


def test_a_space_without_any_legal_point_is_refused() -> None:
    with pytest.raises(InputError, match="no legal combination for ranks=4") as caught:
        study_file.parse({"name": "a", "ranks": 4, "space": {"parallel.tp": [3]}})
    assert caught.value.field == "space"


def test_a_key_given_twice_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("name: a\nranks: 2\nranks: 4\n")
    with pytest.raises(InputError, match="'ranks' is given twice"):
        study_file.load(file)


def test_studies_of_whole_documents_say_how_long_these_are() -> None:
    data: dict[str, Any] = {"documents": "whole", "sequence_length": 64}
    base: dict[str, Any] = {"model": {"experts": 4}, "data": data, "lab": {"hosts": 4, "islands": 2},
                            "batch": {"micro_batch": 1}, "parallel": {"sequence_groups": 4}}  # fmt: skip
    with pytest.raises(InputError, match=r"batch.micro_batch is turned.* at most the 256 of base") as refused:
        study_file.parse({"name": "a", "ranks": 4, "base": base})
    assert refused.value.field == "base.data.longest_document"
    data["longest_document"] = 256
    file = study_file.parse({"name": "a", "ranks": 4, "base": base})
    usual = {"parallel.ep", "parallel.ep_island", "parallel.placement", "parallel.sequence_groups"}
    assert usual <= set(file.search_space.by_key)
    points = (file.search_space.random_point(Random(seed), ()) for seed in range(200))
    # What a rank holds alone, and what two do, is less than the longest: only with more micro-batch is it enough.
    sizes = {(point["parallel.sequence_groups"], point["batch.micro_batch"]) for point in points if point}
    held = {4: 4, "planned": 4, 2: 2, 1: 1}
    assert sizes and all(held[groups] * micro * 64 >= 256 for groups, micro in sizes)
    assert {groups for groups, _ in sizes} >= {4, "planned"}
    alone = study_file.parse({"name": "a", "ranks": 4, "base": base | {"data": {}, "parallel": {}}})
    assert alone.left_alone["parallel.sequence_groups"] == "samples are windows of text"
