"""Looks at a workload before it runs, so that what is wrong with a person's code is told in one line. No torch here."""

from __future__ import annotations

from collections.abc import Callable

from engine.config.errors import InputError
from engine.config.presets import FIELD, WorkloadFacts, facts_of, is_decoder, remember
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.dry_run.child import SLOW_SECONDS, ChildError, UnansweredError, ask

#: Nothing is trained meanwhile, so it has no longer than a step, but at least so long: packages may be large.
LEAST_PATIENCE_SECONDS = 60.0


def inspect_workload(
    config: RunConfig, patience_seconds: float | None = None, tell: Callable[[str], None] | None = None
) -> WorkloadFacts | None:
    """What a workload that is not the decoder was found to be; this process knows it from then on. None of the decoder,
    and of a configuration that breaks a rule anyway.

    Its code runs in a process of its own; who waits for it is told once that it takes long.

    Raises:
        InputError: its factory, its parts, its weights or its data cannot be used.
    """
    if is_decoder(config.model) or any(rules.problems(config)):
        return None
    if (facts := facts_of(config.model)) is not None:
        return facts
    usual = max(LEAST_PATIENCE_SECONDS, config.train.step_timeout_seconds)
    patience = usual if patience_seconds is None else patience_seconds

    def slow() -> None:
        if tell is not None:
            action = f"{FIELD}={config.model.workload!r}: importing it and building its parts"
            tell(f"{action} has taken {SLOW_SECONDS:g} s so far; it has {patience:g}")

    try:
        workload_facts: WorkloadFacts = ask(
            "engine.rank.workload_report:workload_facts", (config,), patience, slow
        )
    except UnansweredError as error:
        longer = "a larger train.step_timeout_seconds gives it longer"
        raise InputError(FIELD, config.model.workload, f"gives {error}; {longer}") from None
    except ChildError as error:
        raise InputError(FIELD, config.model.workload, f"could not be looked at: {error}") from None
    remember(config.model, workload_facts)
    return workload_facts
