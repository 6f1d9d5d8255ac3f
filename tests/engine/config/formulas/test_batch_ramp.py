"""The batch of each step by definition, and sums of it by counting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.config.formulas.batch_ramp import batch_of, grows, sequences, steps_for
from engine.config.run_config import RunConfig, parse


def config(steps: int, first: int, levels: int, share: float) -> RunConfig:
    batch = {"global_batch": first * levels, "ramp_from": first, "ramp_share": share, "micro_batch": 1}
    return parse({"batch": batch, "train": {"steps": steps}})


SIZES = (st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.sampled_from((0.1, 0.5, 0.6, 0.9)))


@given(*SIZES)
def test_it_rises_by_as_much_as_it_began_with_to_the_whole(
    steps: int, first: int, levels: int, share: float
) -> None:
    made = config(steps, first, levels, share)
    batches = [batch_of(made, step) for step in range(steps)]
    assert batches == sorted(batches)
    assert set(batches) <= {first * level for level in range(1, levels + 1)}
    assert batches[0] == first
    whole = [step for step in range(steps) if step >= share * steps]
    assert all(batches[step] == first * levels for step in whole)
    assert grows(made) == (levels > 1)


@given(*SIZES, st.data())
def test_sums_are_those_of_the_steps(
    steps: int, first: int, levels: int, share: float, data: st.DataObject
) -> None:
    made = config(steps, first, levels, share)
    begin = data.draw(st.integers(0, steps))
    end = data.draw(st.integers(begin, steps))
    assert sequences(made, begin, end) == sum(batch_of(made, step) for step in range(begin, end))


@given(*SIZES, st.integers(0, 20), st.integers(0, 500))
def test_as_many_steps_as_sequences_last(
    steps: int, first: int, levels: int, share: float, begin: int, count: int
) -> None:
    made = config(steps, first, levels, share)
    found = steps_for(made, begin, count)

    def taken(length: int) -> int:
        return sequences(config(max(length, 1), first, levels, share), begin, length)

    assert found >= begin
    assert taken(found) <= count < taken(found + 1)
