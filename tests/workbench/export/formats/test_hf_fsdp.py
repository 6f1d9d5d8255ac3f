"""What a file of ``TrainingArguments`` says of FSDP, in today's form and in the words of older releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.trainers.environments import asked, require
from tests.support.trainers.training import small
from workbench.export import importing
from workbench.export.formats import hf_fsdp
from workbench.export.formats.hf import HF

#: ``fsdp`` and ``fsdp_config``, the ZeRO stage and the offload that they are, and what no setting is made of.
GIVEN: list[tuple[Any, dict[str, Any], int, str, dict[str, Any]]] = [
    (True, {}, 3, "none", {}),
    (True, {"reshard_after_forward": False}, 2, "none", {}),
    (True, {"reshard_after_forward": "False"}, 2, "none", {}),
    (True, {"fsdp_reshard_after_forward": False, "fsdp_version": 2}, 2, "none", {}),
    ("full_shard", {}, 3, "none", {}),
    ("full_shard auto_wrap", {}, 3, "none", {}),
    ("shard_grad_op auto_wrap", {}, 2, "none", {}),
    (["shard_grad_op"], {}, 2, "none", {}),
    ("shard_grad_op", {"reshard_after_forward": True}, 3, "none", {}),
    ("full_shard offload", {}, 3, "optimizer", {}),
    ("offload", {}, 3, "optimizer", {}),
    ("offload", {"cpu_offload": False}, 3, "none", {}),
    (True, {"fsdp_cpu_offload": True}, 3, "optimizer", {}),
    ("", {"cpu_offload": True, "activation_checkpointing": True}, 0, "none",
     {"fsdp_config.cpu_offload": True, "fsdp_config.activation_checkpointing": True}),
    (True, {"version": 1}, 3, "none", {"fsdp_config.version": 1}),
    (True, {"version": 1, "reshard_after_forward": "SHARD_GRAD_OP"}, 2, "none", {"fsdp_config.version": 1}),
    ("SHARD_GRAD_OP", {"version": 1}, 2, "none", {"fsdp_config.version": 1}),
    ("hybrid_shard", {"version": 1}, 3, "none",
     {"fsdp_config.version": 1, "fsdp_config.reshard_after_forward": "hybrid_shard"}),
    ("hybrid_shard_zero2", {"fsdp_version": 1}, 2, "none",
     {"fsdp_config.version": 1, "fsdp_config.reshard_after_forward": "hybrid_shard_zero2"}),
]  # fmt: skip
#: Refused by transformers, too.
REFUSED: list[tuple[Any, dict[str, Any]]] = [("hybrid_shard", {}), ("full_shrd", {}), ("FULL_SHARD", {})]


def text_of(fsdp: object, settings: dict[str, Any]) -> str:
    return json.dumps({"output_dir": "out", "fsdp": fsdp, "fsdp_config": settings})


@pytest.mark.parametrize(("fsdp", "settings", "stage", "offload", "left_out"), GIVEN)
def test_words_are_what_they_stand_for(
    fsdp: object, settings: dict[str, Any], stage: int, offload: str, left_out: dict[str, Any]
) -> None:
    found = importing.read_text(HF, text_of(fsdp, settings), 2, {})
    assert found.config.parallel.zero_stage == stage
    assert found.config.memory.offload == offload
    assert found.config.memory.recompute == "none"
    assert found.left_out == left_out


@pytest.mark.slow
def test_transformers_takes_them_for_the_same() -> None:
    require("hf")
    texts = [text_of(fsdp, settings) for fsdp, settings, *_ in GIVEN]
    given = json.dumps(texts + [text_of(*one) for one in REFUSED])
    found = json.loads(asked("hf", "fsdp_hf", given=given).splitlines()[-1])
    for text, theirs, (_, _, stage, offload, _) in zip(texts, found[: len(GIVEN)], GIVEN, strict=True):
        if not stage:
            assert theirs is None, text
            continue
        ours, whole = hf_fsdp.read(text), theirs["reshard_after_forward"]
        assert theirs["fsdp_version"] == ours.get(hf_fsdp.VERSION, 2), text
        strategy = ours.get(hf_fsdp.RESHARD, "full_shard" if theirs["fsdp_version"] == 1 else True)
        assert (whole.lower() if isinstance(whole, str) else bool(whole)) == strategy, text
        assert bool(theirs.get("cpu_offload")) == (offload == "optimizer"), text
    assert all(isinstance(words, str) for words in found[len(GIVEN) :])


def test_on_cpus_only_what_is_not_sharded_says_so() -> None:
    """accelerate has no FSDP for ranks on CPUs: where they shard, the list of losses says that a GPU may be used."""
    for stage, written in ((0, True), (1, None), (2, None), (3, None)):
        config = small(2, parallel__zero_stage=stage, device="cpu")
        document = HF.make_document(config)
        assert document.get("use_cpu") is written and list(HF.problems(document, 2)) == []
        (told,) = [loss for loss in HF.unexpressed(config) if loss.setting == "device"] or [None]
        assert (told is None) == bool(written)
        assert told is None or "shards nothing" in told.why
