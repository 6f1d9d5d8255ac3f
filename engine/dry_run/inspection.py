"""Looks at a workload before it runs, so that what is wrong with a person's code is told in one line. No torch here."""

from __future__ import annotations

from engine.config.errors import InputError
from engine.config.presets import FIELD, WorkloadFacts, facts_of, is_decoder, remember
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.dry_run.child import PATIENCE_SECONDS, ChildError, ask


def look_at(config: RunConfig, patience_seconds: float = PATIENCE_SECONDS) -> WorkloadFacts | None:
    """What a workload that is not the decoder was found to be; this process knows it from then on. None of the decoder,
    and of a configuration that breaks a rule anyway.

    Its code runs in a process of its own.

    Raises:
        InputError: its factory, its parts, its weights or its data cannot be used.
    """
    if is_decoder(config.model) or any(rules.problems(config)):
        return None
    if (known := facts_of(config.model)) is not None:
        return known
    try:
        found: WorkloadFacts = ask("engine.rank.workload_report:of_config", (config,), patience_seconds)
    except ChildError as error:
        raise InputError(FIELD, config.model.workload, f"could not be looked at: {error}") from None
    remember(config.model, found)
    return found
