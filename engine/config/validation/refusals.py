"""Keys that have to keep their defaults in some runs, as their entries say. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.config.errors import value_text
from engine.config.knobs.catalogue import KNOBS, default_of
from engine.config.knobs.facts import Context, Refusal
from engine.config.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class RefusedSetting:
    """A key that has another value than it may have in a context."""

    key: str
    value: Any
    #: Empty where the context's own words are enough.
    why: str
    #: What to do, said beside the key, and where the key has to be named.
    remedy: str
    named_remedy: str


def refused_settings(config: RunConfig, context: Context) -> Iterator[RefusedSetting]:
    """Those of a run that is of this kind."""
    for key, knob in KNOBS.items():
        if context not in knob.refused:
            continue
        value, refusals = config.value_of(key), knob.refused[context]
        refusal = Refusal(refusals) if isinstance(refusals, str) else refusals
        if value != default_of(key) and value not in refusal.legal:
            yield _describe(key, value, refusal)


def _describe(key: str, value: Any, refusal: Refusal) -> RefusedSetting:
    choices = [value_text(value) for value in (default_of(key), *refusal.legal)]
    legal = " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
    remedy, named = f"set it to {legal}", f"set {key} to {legal}"
    if default_of(key) is None:
        remedy, named = "leave it out", f"leave out {key}"
    if refusal.remedy:
        remedy = named = refusal.remedy.format(value=value)
    return RefusedSetting(key, value, refusal.why.format(value=value), remedy, named)
