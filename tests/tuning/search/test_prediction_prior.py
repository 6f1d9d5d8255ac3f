"""Predictions as a prior: the numbers are the forecast's, and the search begins with the best of them."""

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.run_config import parse
from tuning.predict import target
from tuning.predict.forecast import forecasts
from tuning.search.acquisition import propose, skipped_candidates
from tuning.search.prediction_prior import features, prior_from_predictions
from tuning.search.surrogate import Observations

SELENE = target.parse_target("selene", 2)
LAYOUTS = [(16, 1, 1, 3), (2, 8, 1, 1), (4, 2, 2, 1), (16, 1, 1, 0)]
CONFIGS = [
    parse(
        {
            "model": {"preset": "22b"},
            "parallel": {"dp": dp, "tp": tp, "pp": pp, "zero_stage": stage},
            "batch": {"micro_batch": 1, "global_batch": 64},
            "precision": "bf16",
            "memory": {"parameters": "bf16"},
            "data": {"sequence_length": 2048},
        }
    )
    for dp, tp, pp, stage in LAYOUTS
]


def test_numbers_are_the_forecasts() -> None:
    prior, found = prior_from_predictions(CONFIGS, SELENE), forecasts(CONFIGS, SELENE)
    speeds = [one.tokens_per_second for one in found]
    assert np.exp(-prior.log_seconds) == pytest.approx(speeds)
    assert prior.risk == pytest.approx([one.out_of_memory_probability for one in found])
    assert prior.spread.min() > 0
    fits = [speed if risk < 0.05 else 0.0 for speed, risk in zip(speeds, prior.risk, strict=True)]
    first = propose(prior, Observations.from_lists([], []))
    assert first is not None
    assert first.row == int(np.argmax(fits))
    assert "of what a device can hold" in skipped_candidates(prior, Observations.from_lists([], []))[3]


def test_features_are_what_differs() -> None:
    points = [{"tp": 1, "stage": 0, "kind": "a", "same": 4}, {"tp": 8, "stage": 3, "kind": "b", "same": 4}]
    assert features(points).tolist() == [[0, 0, 1, 0], [3, 3, 0, 1]]
    assert features([{"tp": 1}, {"tp": 1}]).shape == (2, 0)


def test_there_must_be_something_to_predict() -> None:
    with pytest.raises(InputError, match="no configuration"):
        prior_from_predictions([], SELENE)
