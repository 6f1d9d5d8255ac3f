"""Knobs that would do nothing where they are, and whose entries say that this is a mistake. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.config.errors import LayoutError
from engine.config.knobs.catalogue import KNOBS, default_of
from engine.config.run_config import RunConfig


class ConfigValues(Mapping[str, Any]):
    """A configuration by its dotted keys; what is asked for is read, and nothing else."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def __getitem__(self, key: str) -> Any:
        return self._config.value_of(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._config.flat())

    def __len__(self) -> int:
        return len(self._config.flat())


def inactive_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Of each knob with an ``inactive_problem``: another value than its default where it does not act."""
    for key, knob in KNOBS.items():
        if not knob.inactive_problem:
            continue
        value = config.value_of(key)
        if value != default_of(key) and not knob.acts(ConfigValues(config)):
            yield LayoutError(key, value, knob.inactive_problem)
