"""Optimizers and learning rates of the trainers' own files, as this project has them, and as it writes them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from workbench.export import importing
from workbench.export.mapping import learning
from workbench.export.mapping.rows import settings_of
from workbench.export.targets import find_target

FALLING = {"train.learning_rate_schedule": "cosine", "train.learning_rate_floor": 0.1}
LINE = {"train.learning_rate_schedule": "linear", "train.learning_rate_floor": 0.0}
FLAT = {"train.learning_rate_schedule": "constant"}
SGD = {"train.optimizer": "sgd", "train.momentum": 0.8}
_DS = {"train_micro_batch_size_per_gpu": 2}
_AUTO = {"step_scheduler.local_batch_size": 2, "step_scheduler.max_steps": 100}
#: Format, its own words, and what they are here.
FILES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("hf", {"max_steps": 100, "lr_scheduler_type": "linear"}, LINE),
    ("hf", {"max_steps": 100, "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs.min_lr_rate": 0.1}, FALLING),
    ("hf", {"max_steps": 100, "lr_scheduler_type": "cosine_with_min_lr", "learning_rate": 1e-3,
            "lr_scheduler_kwargs.min_lr": 1e-4}, FALLING),
    ("hf", {"optim": "sgd", "optim_args": "nesterov=true,momentum=0.8"}, SGD),
    ("hf", {"adam_beta2": 0.95, "adam_epsilon": 1e-6}, {"train.beta2": 0.95, "train.epsilon": 1e-6}),
    ("megatron", {"--train-iters": 100, "--lr": 1e-3, "--min-lr": 1e-4, "--lr-decay-style": "cosine"}, FALLING),
    ("megatron", {"--train-iters": 100, "--lr": 1e-3}, LINE),
    ("megatron", {"--optimizer": "sgd", "--sgd-momentum": 0.8}, SGD),
    ("megatron", {"--optimizer": "muon", "--muon-momentum": 0.95}, {"train.optimizer": "muon", "train.momentum": 0.95}),
    ("torchtitan", {"training.steps": 100, "lr_scheduler.warmup_steps": 2, "lr_scheduler.decay_type": "cosine",
                    "lr_scheduler.min_lr_factor": 0.1}, FALLING),
    ("torchtitan", {"training.steps": 100, "lr_scheduler.warmup_steps": 100}, FLAT),
    ("torchtitan", {"training.steps": 1000, "lr_scheduler.decay_ratio": 0.0}, FLAT),
    ("torchtitan", {"optimizer.lr": 1e-3}, {"train.beta2": 0.95}),
    ("deepspeed", _DS | {"scheduler.type": "WarmupCosineLR", "scheduler.params.total_num_steps": 100,
                         "scheduler.params.warmup_num_steps": 5, "scheduler.params.cos_min_ratio": 0.1}, FALLING),
    ("deepspeed", _DS | {"scheduler.type": "WarmupDecayLR", "scheduler.params.total_num_steps": 100,
                         "scheduler.params.warmup_num_steps": 5, "scheduler.params.warmup_max_lr": 1e-3}, LINE),
    ("deepspeed", _DS | {"optimizer.type": "SGD", "optimizer.params.lr": 1e-2, "optimizer.params.momentum": 0.8}, SGD),
    ("automodel", _AUTO | {"optimizer._target_": "torch.optim.AdamW", "optimizer.lr": 1e-3,
                           "lr_scheduler.min_lr": 1e-4}, FALLING),
    ("automodel", _AUTO | {"optimizer._target_": "torch.optim.SGD", "optimizer.momentum": 0.8}, SGD),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words", "meant"), FILES)
def test_a_trainers_words_are_read_as_they_are_meant(
    name: str, words: dict[str, Any], meant: dict[str, Any]
) -> None:
    form = find_target(name).format
    assert form is not None
    beside = {"model.preset": "mini"}
    found = importing.read_text(form, form.text(words), 2, beside).config.flat()
    assert {key: found[key] for key in meant} == meant


@pytest.mark.parametrize("name", ["hf", "megatron", "deepspeed", "automodel"])
def test_an_optimizer_that_is_not_there_is_told_and_its_adamw_is_written(name: str) -> None:
    form = find_target(name).format
    assert form is not None
    config = RunConfig().with_values({"train.optimizer": "lamb", "parallel.zero_stage": 1, "parallel.dp": 2})
    assert "train.optimizer" in {loss.setting for loss in form.unexpressed(config)}
    assert form.settings(form.make_document(config), 2)["train.optimizer"] == "adamw"


@pytest.mark.parametrize(
    ("name", "words", "field"),
    [
        ("deepspeed", {"optimizer.type": "SGD", "zero_optimization.stage": 2}, "optimizer.type"),
        ("deepspeed", {"optimizer.type": "AdamW", "optimizer.params.betas": [0.9]}, "betas"),
        ("torchtitan", {"optimizer.betas": [0.9, 0.95, 0.99]}, "betas"),
        ("hf", {"optim": "sgd", "optim_args": "momentum=high"}, "optim_args"),
    ],
)
def test_what_is_wrong_is_named(name: str, words: dict[str, Any], field: str) -> None:
    form = find_target(name).format
    assert form is not None
    with pytest.raises(InputError) as refused:
        importing.read_text(form, form.text(words), 2, {})
    assert field in refused.value.field


def test_what_the_optimizer_and_the_schedule_do_not_ask_for_is_not_lost() -> None:
    sgd = settings_of(RunConfig().with_values({"train.optimizer": "sgd", "train.beta1": 0.5}))
    assert "train.beta1" not in sgd
    assert "train.momentum" in sgd
    adamw = settings_of(RunConfig().with_values({"train.momentum": 0.5, "train.learning_rate_floor": 0.5}))
    assert not {"train.momentum", "train.learning_rate_floor"} & set(adamw)


def test_a_floor_comes_back_from_a_least_rate() -> None:
    for rate in (1e-3, 3e-4, 5e-5):
        for floor in (0.0, 0.1, 0.25, 0.3):
            assert learning.floor_of(rate * floor, rate) == floor
    assert learning.floor_of(None, 1e-3) == learning.floor_of(1e-3, None) == 0.0
