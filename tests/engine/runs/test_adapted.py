"""Runs that train beside a frozen model: on two ranks as on one, sent and saved no more than what learns."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.checkpoint_folder import last_of
from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.footprint.side_factors import side_factors, side_parameters
from engine.run.outcome import Ending
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.engine.checkpoints import whole
from tests.support.engine.own_models import HERE
from tests.support.runs import execute, small
from tests.tuning.predict.traffic.test_rank import first_difference, recorded
from workbench.export.launchers import torchrun
from workbench.export.targets import find_target
from workbench.home.runs import load
from workbench.text import run as run_text
from workbench.text import step as step_text

LAYERS = 2
BASE: dict[str, Any] = {
    "model__layers": LAYERS,
    "model__hidden": 48,
    "model__heads": 4,
    "model__kv_heads": 4,
    "model__ffn_hidden": 96,
    "data__sequence_length": 32,
    "checkpoint__every_steps": 2,
}
KINDS = ("lora", "losa")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm


@pytest.fixture(scope="module")
def base(session: Session) -> Path:
    """A run of two steps."""
    return run(session, small(**BASE, train__steps=2))[1]


def run(session: Session, config: RunConfig) -> tuple[RunSummary, Path]:
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    return summary, session.home / summary.id


def adapting(base: Path, kind: str, **more: Any) -> RunConfig:
    values = {"train__steps": 6, "train__adapt": kind, "train__adapt_rank": 3, "train__resume": str(base)}
    return small(**BASE | values | {"train__learning_rate": 0.01} | more)


@pytest.fixture(scope="module")
def alone(session: Session, base: Path) -> dict[str, RunSummary]:
    """Four steps on one rank, by kind."""
    return {kind: run(session, adapting(base, kind))[0] for kind in KINDS}


LAYOUTS: list[dict[str, Any]] = [
    {"parallel__dp": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 1, "overlap__bucket_mb": 0.001},
]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["dp", "zero1"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_learn_what_one_does(
    session: Session, base: Path, alone: dict[str, RunSummary], kind: str, layout: dict[str, Any]
) -> None:
    one, (two, _) = alone[kind], run(session, adapting(base, kind, **layout))
    assert len(set(one.losses)) == len(one.losses) == 4
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert two.validation_loss == pytest.approx(one.validation_loss, rel=1e-5)
    assert two.adapted is not None and two.adapted.kept


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_frozen_stays_what_it_was_and_that_is_told(
    base: Path, alone: dict[str, RunSummary], tmp_path: Path, kind: str
) -> None:
    summary, learned = alone[kind], side_parameters(adapting(base, kind))
    row = summary.adapted
    assert row is not None and row.kept and row.method == kind
    assert row.sha256 == row.sha256_at_end == sha256_of(base, tmp_path / "base")
    assert row.side_parameters == learned
    assert row.share == pytest.approx(learned / (summary.parameters + learned))
    told = dict(run_text.lines(summary))["adapted"]
    assert f"{learned:,} parameters" in told and "are to the bit what they were" in told
    assert "changed: SHA-256" in step_text.adapted_text(replace(row, kept=False))


@pytest.mark.parametrize("kind", KINDS)
def test_its_export_trains_beside_the_same_checkpoint(
    session: Session, base: Path, alone: dict[str, RunSummary], kind: str
) -> None:
    view = load(base.parent / alone[kind].id)
    files = torchrun.render(view).files
    config = parse(json.loads(files["config.json"]))
    assert (config.train.adapt, config.train.resume) == (kind, str(last_of(base)))
    assert f"beside the frozen checkpoint of `{base.name}`" in files["README.md"]
    assert run(session, config)[0].losses == alone[kind].losses
    lost = {loss.setting for loss in find_target("hf").render(view, None).unexpressed}
    assert {"train.adapt", "train.adapt_rank", "train.resume"} <= lost


def sha256_of(run: Path, scratch: Path) -> str:
    """Of the parameters in a checkpoint, taken apart from the engine."""
    checkpoint = last_of(run)
    assert checkpoint is not None
    total = hashlib.sha256()
    for name, one in sorted(whole(checkpoint, scratch).items()):
        if name.startswith("model."):
            total.update(f"{name.removeprefix('model.')} torch.float32 {tuple(one.shape)}".encode())
            total.update(one.numpy().tobytes())
    return total.hexdigest()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [0, 1])
def test_data_ranks_send_what_learns_and_nothing_else(
    session: Session, base: Path, kind: str, stage: int
) -> None:
    layout = {"parallel__dp": 2, "parallel__zero_stage": stage, "overlap__bucket_mb": 0.002}
    config = adapting(base, kind, **layout, profile__budget=None, train__validation_batches=0)
    for rank, rows in enumerate(recorded(session, config)):
        assert first_difference(config, rank, rows) is None
        gradients = [row for row in rows if row.operation == ("reduce_scatter" if stage else "all_reduce")]
        sent = sum(row.bytes or 0 for row in gradients if row.dtype == "float32")
        assert sent == pytest.approx(4 * side_parameters(config), rel=0, abs=64 * stage)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_holds_what_learns_and_goes_on_beside_the_same_model(
    session: Session, base: Path, alone: dict[str, RunSummary], tmp_path: Path, kind: str
) -> None:
    through = alone[kind]
    _, half = run(session, adapting(base, kind, train__steps=4))
    checkpoint = last_of(half)
    assert checkpoint is not None
    saved = whole(checkpoint, tmp_path / "saved")
    names = {name.removeprefix("model.") for name in saved if name.startswith("model.")}
    assert len(names) == len(side_factors(adapting(base, kind), range(LAYERS)))
    assert all("side" in name for name in names)
    elements = sum(one.numel() for name, one in saved.items() if name.startswith("model."))
    assert elements == side_parameters(adapting(base, kind))
    rest, folder = run(session, adapting(half, kind, parallel__dp=2))
    assert rest.losses == pytest.approx(through.losses[2:], rel=1e-5)
    files = torchrun.render(load(folder)).files
    assert json.loads(files["config.json"])["train"]["resume"] == str(last_of(base)), "the half has no model"
    assert f"beside the frozen checkpoint of `{base.name}` after 2 steps" in files["README.md"]
    assert f"the run continued `{half.name}` after 4 steps" in files["README.md"]
    assert rest.adapted is not None and through.adapted is not None
    assert rest.adapted.sha256 == through.adapted.sha256


def test_what_does_not_fit_a_checkpoint_beside_a_model_is_refused(session: Session, tmp_path: Path) -> None:
    _, base = run(session, small(**BASE, train__steps=2))
    _, side = run(session, adapting(base, "losa", train__steps=4))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"train__adapt": "none"}, "set train.adapt=losa"),
        ({"train__adapt_rank": 2}, "set train.adapt_rank=3"),
        ({"train__adapt": "lora"}, "set train.adapt=losa"),
        ({"data__sequence_length": 16}, "set data.sequence_length=32"),
    ]
    for values, remedy in wrong:
        with pytest.raises(InputError) as refused:
            session.execute(adapting(side, "losa", **values), {}, lambda: False)
        assert refused.value.field == "train.resume" and remedy in refused.value.remedy
    assert torchrun.render(load(side)).unexpressed == ()
    frozen = last_of(base)
    shutil.move(base / "checkpoints", tmp_path / "elsewhere")
    with pytest.raises(
        InputError, match=rf"was trained beside {frozen}, which is needed: .*put it back at that"
    ):
        session.execute(adapting(side, "losa"), {}, lambda: False)
    for target in ("torchrun", "slurm", "k8s"):
        exported = find_target(target).render(load(side), None)
        (told,) = exported.unexpressed
        assert (told.setting, told.value) == ("train.resume", str(frozen))
        assert find_target(target).facts(exported)["losses"] == [told.as_dict()]
        assert told.why in exported.files["README.md"]


#: Of rank 3: factors of four matrices of 64 x 192, 64 x 64, 64 x 256 and 256 x 64 in four blocks; or two mixers of
#: channels, and two of 16 places as well.
ON_IMAGES = {"lora": 4 * 3 * (256 + 128 + 320 + 320), "losa": 2 * 2 * 3 * 64 + 2 * (2 * 3 * 64 + 2 * 3 * 16)}


@pytest.fixture(scope="module")
def images(session: Session) -> Path:
    """A run of two steps on images."""
    values = {"model__workload": "vision", "checkpoint__every_steps": 2, "train__steps": 2}
    return run(session, small(**values))[1]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_images_is_adapted_as_well(
    session: Session, images: Path, tmp_path: Path, kind: str
) -> None:
    values = {"model__workload": "vision", "train__adapt": kind, "train__adapt_rank": 3, "train__steps": 6}
    values |= {"train__resume": str(images), "checkpoint__every_steps": 2, "train__learning_rate": 0.01}
    one, folder = run(session, small(**values))
    two, _ = run(session, small(**values, parallel__dp=2, profile__budget=None))
    assert len(set(one.losses)) == 4
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert two.validation_loss == pytest.approx(one.validation_loss, rel=1e-5)
    for summary in (one, two):
        row = summary.adapted
        assert row is not None and row.kept and row.side_parameters == ON_IMAGES[kind]
        assert row.sha256 == sha256_of(images, tmp_path / summary.id)
        assert summary.model_flops_per_step is None
    sent = sum(row.bytes for row in two.communication if row.axis == "dp")
    assert sent == 4 * ON_IMAGES[kind]
    checkpoint = last_of(folder)
    assert checkpoint is not None
    saved = whole(checkpoint, tmp_path / "saved")
    assert sum(one.numel() for name, one in saved.items() if name.startswith("model.")) == ON_IMAGES[kind]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"train__adapt_rank": 65}, "is above 64, the narrowest side; choose"),
        ({"train__adapt": "losa", "train__adapt_rank": 17}, "is above 16, the narrowest side"),
        ({"train__adapt": "losa", "model__workload": f"{HERE}:shrinking"}, "set this to lora"),
    ],
)
def test_what_cannot_stand_beside_a_model_of_ones_own_is_refused(
    session: Session, images: Path, values: dict[str, Any], told: str
) -> None:
    wanted = {"model__workload": "vision", "train__adapt": "lora", "train__resume": str(images)}
    outcome, _ = session.execute(small(**wanted | values), {}, lambda: False)
    assert outcome.ending is Ending.ILLEGAL and told in outcome.reason
