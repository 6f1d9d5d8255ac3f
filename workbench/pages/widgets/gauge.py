"""What a configuration would need of this machine and how long its step would take, said while one types.

Formulas answer in the page's process, each configuration once; nothing runs, and nothing of torch is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from engine.config.run_config import RunConfig, parse
from workbench.pages.widgets.common import home
from workbench.services import predictions
from workbench.services.predictions import Gauge, MemoryGauge
from workbench.text import words

if TYPE_CHECKING:
    from tuning.predict.target import Target

#: A calibration, or what finished runs taught, counts so late at the most.
FRESH_SECONDS = 60.0
#: From this probability on it is said that memory may not suffice; with even odds, that it does not.
_SAFE, _EVEN = 0.05, 0.5
_MEMORY_HELP = (
    "Of the rank that holds most. By formula: parameters, gradients, optimizer state, activations at the peak and "
    "buffers of communication. What formulas leave out (libraries, gaps of the allocator) is in the range of 90 %."
)
_STEP_HELP = (
    "Median and range of 90 %, by closed forms on this machine's calibration and what finished runs taught."
)


@st.cache_resource(ttl=FRESH_SECONDS, show_spinner=False)
def _target(home_folder: Path) -> Target | str:
    return predictions.find_target(home_folder)


@st.cache_data(ttl=FRESH_SECONDS, max_entries=256, show_spinner=False)
def _gauge(home_folder: Path, config: str) -> Gauge:
    return predictions.gauge(parse(json.loads(config)), _target(home_folder))


def draw(config: RunConfig, owner: str = "") -> None:
    """Two lines on a configuration that keeps every rule; ``owner`` begins them."""
    gauge = _gauge(home(), config.dumps())
    if gauge.memory is not None:
        st.caption(
            f":material/memory: {_begin(owner, 'Memory')}: {memory_words(gauge.memory)}", help=_MEMORY_HELP
        )
    left_out = "".join(f"\n- {words.escape(note)}" for note in gauge.notes)
    st.caption(
        f":material/timer: {_begin(owner, 'Step')}: {words.escape(step_words(gauge))}.",
        help=f"{_STEP_HELP}{left_out}",
    )


def _begin(owner: str, noun: str) -> str:
    return f"{owner} {noun.lower()}" if owner else noun


def memory_words(memory: MemoryGauge) -> str:
    """What is counted, with what that comes to, beside the limit; coloured where it may not suffice."""
    counted_text, range_ = words.gib(memory.counted_bytes), memory.bytes
    whole_text = (
        f"{words.gib(range_.median)} ({words.gib(range_.low)} to {words.gib(range_.high)}) with all else"
    )
    text = f"{counted_text} by formula on rank {memory.rank:,}, {whole_text}"
    if memory.limit_bytes is None or memory.out_of_memory_probability is None:
        return f"{text}; the limit is not known: the driver did not tell it."
    of_limit = f"{text}, of {words.gib(memory.limit_bytes)} ({memory.limit})"
    return f"{of_limit}{_warn(memory.out_of_memory_probability)}"


def _warn(probability: float) -> str:
    if probability <= _SAFE:
        return "."
    color = "red" if probability >= _EVEN else "orange"
    return f". :{color}[Runs out of memory with a probability of {words.percent(probability)}.]"


def step_words(gauge: Gauge) -> str:
    """The predicted time of a step with its range and rate, or why there is none."""
    if gauge.step_seconds is None or gauge.tokens_per_second is None:
        return f"not modelled here ({gauge.unknown})"
    seconds = gauge.step_seconds
    interval = f"{words.seconds(seconds.low)} to {words.seconds(seconds.high)}"
    rate = f"{words.number(gauge.tokens_per_second)} tokens/s"
    left_out_text = (
        f"; the time of {words.several(len(gauge.left_out), 'settings')} is not modelled"
        if gauge.left_out
        else ""
    )
    return f"{words.seconds(seconds.median)} predicted ({interval}), {rate}{left_out_text}"
