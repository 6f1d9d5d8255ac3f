"""A run's verdicts, judged again with other thresholds. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.config import run_config as runconfig
from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from profilers.model.verdict import Thresholds, Verdict, judge, rate
from workbench.home.inputs import assignments
from workbench.home.runs import RunView

_OPTION = "--threshold"


def thresholds_of(tree: dict[str, Any] | None, overrides: dict[str, Any] | None = None) -> Thresholds:
    """Those of a run's configuration, with some asked for in their place.

    Raises:
        InputError: there is no such threshold, or it is no fraction.
    """
    recorded = ((tree or {}).get("profile") or {}).get("thresholds") or {}
    wanted = runconfig.parse({"profile": {"thresholds": recorded | (overrides or {})}})
    return Thresholds(**wanted.profile.thresholds.model_dump())


def rejudge(view: RunView, texts: list[str], tree: dict[str, Any] | None) -> RunView:
    """The view with its verdicts by ``["bubble=0.1"]``; ``tree`` is its configuration.

    A summary of an older version has no findings, so its records are gone through again.

    Raises:
        InputError: there is no such threshold, or it is no fraction.
    """
    for text in texts:
        if "=" not in text:
            raise InputError(_OPTION, text, f"write it as NAME=FRACTION; known: {', '.join(usual())}")
    try:
        wanted = thresholds_of(tree, assignments(texts))
    except InputError as error:
        raise InputError(_OPTION, f"{error.field.rpartition('.')[2]}={error.value}", error.remedy) from None
    if view.summary is not None and view.summary.measured_steps and not view.summary.findings:
        view = _with_findings(view)
    if view.summary is None:
        return view
    findings = view.summary.findings
    summary = replace(view.summary, findings=rate(findings, wanted), verdicts=judge(findings, wanted))
    return replace(view, summary=summary)


def _with_findings(view: RunView) -> RunView:
    from workbench.home.runs import add_numbers_so_far

    summary = add_numbers_so_far(replace(view, summary=None)).summary
    if view.summary is None or summary is None or not summary.findings:
        raise InputError(
            _OPTION, None, "the run's records are gone, and its summary holds no findings to judge"
        )
    return replace(view, summary=replace(view.summary, findings=summary.findings))


def minor_verdicts(findings: list[Verdict], verdicts: list[Verdict]) -> list[Verdict]:
    """What has a share that is not above its threshold, the closest to it first."""
    over = {(verdict.name, verdict.axis) for verdict in verdicts}
    under = [finding for finding in findings if finding.share and (finding.name, finding.axis) not in over]
    return sorted(
        under, key=lambda finding: (finding.share or 0.0) / (finding.threshold or 1.0), reverse=True
    )


def usual() -> dict[str, float]:
    """The thresholds that hold where nothing else was asked for."""
    return RunConfig().profile.thresholds.model_dump()
