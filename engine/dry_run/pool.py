"""The processes that build ranks which do not exist: torch and its process groups stay out of the one that asks.

Each rank has a process of its own, forked from a server that has torch loaded: what torch remembers of one world
would be wrong in the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.errors import WorkbenchError
from engine.config.run_config import RunConfig
from engine.dry_run.child import PATIENCE_SECONDS, ChildError, ask
from engine.dry_run.rank import BuiltStage


class BuildError(WorkbenchError):
    """A legal configuration could not be built."""


def build_ranks(
    config: RunConfig, ranks: Sequence[int], patience_seconds: float = PATIENCE_SECONDS
) -> list[tuple[BuiltStage, ...]]:
    """The stages of some ranks of a configuration that keeps every rule.

    Raises:
        BuildError: a rank could not be built, or not in time.
    """
    return [_build_rank(config, rank, patience_seconds) for rank in ranks]


def _build_rank(config: RunConfig, rank: int, patience_seconds: float) -> tuple[BuiltStage, ...]:
    try:
        built: tuple[BuiltStage, ...] = ask("engine.dry_run.rank:build", (config, rank), patience_seconds)
    except ChildError as error:
        raise BuildError(f"rank {rank} could not be built: {error}") from None
    return built
