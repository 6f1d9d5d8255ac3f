"""Masks by number: what is asked for, and what is shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.model.workloads.masked_text import IGNORED, MASK, MaskedWindows, accuracy, workload


def test_each_window_asks_for_equally_many_bytes_and_hides_most_of_them() -> None:
    batches = workload(sequence_length=100).batches
    assert isinstance(batches, MaskedWindows)
    inputs, targets = batches.training(5, 200)
    asked = targets != IGNORED
    assert (asked.sum(axis=1) == 15).all()
    plain = batches.corpus.training(5, 200)[:, :-1]
    assert (targets[asked] == plain[asked]).all()
    assert (inputs[~asked] == plain[~asked]).all()
    shares = [(inputs[asked] == MASK).mean(), (inputs[asked] == plain[asked]).mean()]
    # 3,000 draws: five standard deviations of a share of 0.8 are 0.037, of 0.1 0.028.
    assert shares == pytest.approx([0.8, 0.1], abs=0.04)


def test_a_sample_depends_on_its_number_alone() -> None:
    batches = workload().batches
    whole, part = batches.training(0, 8), batches.training(3, 2)
    assert all(np.array_equal(a[3:5], b) for a, b in zip(whole, part, strict=True))
    assert not np.array_equal(batches.validation(0, 8)[0], whole[0])


def test_accuracy_counts_what_was_asked_for() -> None:
    targets = torch.tensor([[2, IGNORED, 0, 1]])
    logits = torch.eye(3)[torch.tensor([[2, 2, 0, 0]])]
    assert float(accuracy(logits, targets)) == pytest.approx(2 / 3)
