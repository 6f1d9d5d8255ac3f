"""A compression method is one entry and one file: a made-up one is legal, offered, on the form, counted, predicted,
planned by layer, trained and exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.compression.compressor import layer_errors
from engine.compression.interface import Message, Method, MethodInput, MethodState, Reduction
from engine.compression.randomness import RandomStreams
from engine.config.compression import Settings, candidates, keeps_errors, settings_of, usual_value
from engine.config.errors import InputError
from engine.config.knobs.catalogue import acts
from engine.config.methods.compression_methods import (
    BITS,
    COMPRESSION_METHODS,
    CompressionMethod,
    Parameter,
    TorchHook,
    Value,
)
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.footprint.footprint import largest
from engine.rank.worker import train_in_group
from engine.run import run_folder
from profilers.analysis.events import uncompressed_parameters
from profilers.records.reader import RunRecords
from profilers.records.schema import CommSample, StepSample
from tests.support.ranks import on_ranks
from tests.support.runs import small
from tuning.predict.model.cases import reduce_bytes
from tuning.space.knobs import offered_space
from workbench.export.formats.deepspeed import DEEPSPEED
from workbench.export.formats.hf import HF
from workbench.export.formats.megatron import MEGATRON
from workbench.export.mapping import hooks
from workbench.export.mapping.rows import Format
from workbench.pages.widgets.forms import field

NAME = "double"
LAST = list(COMPRESSION_METHODS)[-1]


class Double:
    """All-reduce in fp64: twice the bytes, and nothing lost."""

    def __init__(self, given: MethodInput) -> None:
        self._link, self._spans = given.link, given.partition.spans
        count = sum(span.count for span in self._spans)
        self._wide = given.content.flat.new_empty(count, dtype=torch.float64)

    def exchange(self, values: Tensor, flat: Tensor, streams: RandomStreams) -> Reduction:
        parts = self._wide.split([span.count for span in self._spans])
        for span, wide in zip(self._spans, parts, strict=True):
            wide.copy_(values[span.start : span.stop] / self._link.size)
            if values is not flat:
                values[span.start : span.stop].zero_()
        yield self._link.all_reduce(self._wide)
        for span, wide in zip(self._spans, parts, strict=True):
            flat[span.start : span.stop].copy_(wide)

    def messages(self) -> list[Message]:
        return [self._link.reduce_message(len(self._wide), 8)]

    def state(self) -> list[MethodState]:
        return []

    def merge_residual_into(self, memory: Tensor) -> None:
        pass


def build(given: MethodInput) -> Method:
    return Double(given)


def no_errors(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    return [0.0 for _ in values]


def _vectors(parameter: Parameter) -> str:
    return "only matrices are doubled" if len(parameter.shape) < 2 else ""


ENTRY = CompressionMethod(
    "0000.00000",
    __name__,
    "build",
    value=4,
    wire_bytes=lambda traffic: 8.0,
    message_bytes=lambda traffic: 8.0,
    layer_value=BITS,
    errors="no_errors",
    fields=("bucket_values",),
    uses_error_feedback=False,
    why_uncompressed=_vectors,
    offered=True,
    torch_hook=TorchHook(
        "default_hooks", "allreduce_hook", "given({bucket_values}, {start_step}, {error_feedback})", 3
    ),
    export_names={"deepspeed": "fp64", "megatron": "--grad-reduce-in-fp64"},
)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPRESSION_METHODS, NAME, ENTRY)


def config(**values: Any) -> RunConfig:
    given = {"parallel__dp": 2, "compression__method": NAME, "compression__start_step": 0}
    return small(**{**given, **values})


def test_without_its_entry_it_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError, match=rf"compression\.method.*'none', 'fp16'.* or '{LAST}'"):
        parse({"compression": {"method": NAME}})


@pytest.mark.usefixtures("made_up")
def test_it_is_legal_offered_and_on_the_form() -> None:
    assert next(problems(config()), None) is None
    assert next(problems(config(parallel__zero_stage=1))).field == "compression.method"
    assert next(problems(config(compression__layers={"*": 12}))).field == "compression.layers.*"
    assert NAME in offered_space(config(), 4)["compression.method"]
    assert NAME in field(RunConfig, "compression.method").options


@pytest.mark.usefixtures("made_up")
def test_its_fields_act_with_it_alone() -> None:
    values = config().flat()
    assert acts("compression.bucket_values", values)
    assert acts("compression.plan", values)
    assert not acts("compression.stochastic", values)
    assert not acts("compression.ratio", values)


@pytest.mark.usefixtures("made_up")
def test_its_memory_and_bytes_are_counted() -> None:
    plain, doubled = config(compression__method="none"), config()
    assert largest(doubled).total_bytes - largest(plain).total_bytes > 0
    assert reduce_bytes(doubled) == 2 * reduce_bytes(plain) == 8


@pytest.mark.usefixtures("made_up")
def test_a_plan_chooses_among_its_values() -> None:
    compression = config(compression__plan="l_greco").compression
    settings = settings_of(compression)
    assert (usual_value(compression), keeps_errors(NAME, None)) == (4, False)
    assert candidates(settings) == [2, 3, 4, 5, 6, 7, 8]
    assert layer_errors(torch.ones(4), (2, 2), settings, [2, 4]) == [0.0, 0.0]


def trained(rank: int, folder: Path, method: str) -> None:
    COMPRESSION_METHODS[NAME] = ENTRY
    train_in_group(rank, config(compression__method=method), folder, torch.device("cpu"), None)


@pytest.mark.usefixtures("made_up")
def test_it_trains_as_without_compression_and_its_bytes_are_seen(tmp_path: Path) -> None:
    losses, sent = {}, {}
    for method in ("none", NAME):
        folder = run_folder.create(tmp_path / method, config(compression__method=method), {})
        on_ranks(2, trained, folder, method)
        records = RunRecords(folder / run_folder.RECORDS)
        steps: list[StepSample] = records.table(1, "step").rows()  # type: ignore[assignment]
        calls: list[CommSample] = records.table(1, "comm").rows()  # type: ignore[assignment]
        losses[method] = [step.loss for step in steps]
        sent[method] = sum(
            call.bytes for call in calls if call.axis == "dp" and call.operation == "all_reduce"
        )
    assert len(losses[NAME]) == config().train.steps
    assert losses[NAME] == pytest.approx(losses["none"], abs=1e-6)
    assert 1.9 < sent[NAME] / sent["none"] < 2, "all but the vectors are sent in fp64"
    assert set(uncompressed_parameters(records).values()) == {"only matrices are doubled"}


@pytest.mark.usefixtures("made_up")
def test_it_is_exported_as_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(compression__start_step=1, compression__bucket_values=64)
    written = hooks.files(asked, HF.unexpressed(asked))["gradient_hook.py"]
    assert (
        "state = given(64, 3, False)\n    ddp.register_comm_hook(state, default_hooks.allreduce_hook)"
        in written
    )
    monkeypatch.setitem(COMPRESSION_METHODS, NAME, replace(ENTRY, torch_hook=None))
    written = hooks.files(asked, HF.unexpressed(asked))["gradient_hook.py"]
    assert f'NotImplementedError("{NAME} is not part of torch' in written


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("form", "asked", "key", "value"),
    [
        (DEEPSPEED, {}, "communication_data_type", "fp64"),
        (MEGATRON, {"precision": "bf16"}, "--grad-reduce-in-fp64", True),
    ],
)
def test_other_trainers_that_have_it_are_told_by_their_name(
    form: Format, asked: dict[str, Any], key: str, value: object
) -> None:
    document = form.make_document(config(**asked))
    assert document[key] == value
    assert form.row("compression.method").read(document, 2) == {"compression.method": NAME}
    lost = [loss.setting for loss in form.unexpressed(config(**asked))]
    assert "compression.method" not in lost


@pytest.mark.parametrize("value", [None, 5, ["int8"], {"a": 1}])
def test_what_is_no_name_is_refused_with_the_names_there_are(value: object) -> None:
    with pytest.raises(InputError, match=rf"'none', 'fp16'.* or '{LAST}'"):
        parse({"compression": {"method": value}})


def test_a_method_that_is_gone_kept_its_errors() -> None:
    assert keeps_errors("gone", None)
    assert not keeps_errors("gone", False)
