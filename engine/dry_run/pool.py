"""The processes that build ranks which do not exist: torch and its process groups stay out of the one that asks.

Each rank has a process of its own, forked from a server that has torch loaded: what torch remembers of one world
would be wrong in the next.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection

from engine.config.errors import WorkbenchError
from engine.config.run_config import RunConfig
from engine.dry_run.rank import BuiltStage
from engine.launch.workers import begin

PATIENCE_SECONDS = 300.0
#: The first is what ranks that train are forked with: whoever starts the server first serves both.
PRELOAD = ["engine.launch.preload", "engine.dry_run.rank"]


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
    methods = multiprocessing.get_context("forkserver")
    methods.set_forkserver_preload(PRELOAD)
    pipe, theirs = methods.Pipe(duplex=False)
    process = methods.Process(target=_answer, args=(theirs, config, rank), daemon=True)
    begin(process)
    theirs.close()
    try:
        if not pipe.poll(patience_seconds):
            raise BuildError(f"rank {rank} was not built within {patience_seconds:.0f} s")
        answer: tuple[BuiltStage, ...] | str = pipe.recv()
    except EOFError:
        process.join()
        raise BuildError(f"the process that built rank {rank} died: exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        pipe.close()
    if isinstance(answer, str):
        raise BuildError(f"rank {rank} could not be built: {answer}")
    return answer


def _answer(pipe: Connection, config: RunConfig, rank: int) -> None:
    from engine.dry_run.rank import build

    with contextlib.suppress(OSError):
        try:
            pipe.send(build(config, rank))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            pipe.send(f"{type(error).__name__}: {reason}")
