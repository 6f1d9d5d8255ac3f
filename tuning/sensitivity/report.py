"""What mattered in a study, as one document: each part with how many trials it stands on, or why it is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuning.analysis import leaderboard
from tuning.sensitivity import data, job
from tuning.sensitivity.effects import Neighbour, dependence, neighbours
from tuning.sensitivity.job import NAMES, Method, needed
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState
from tuning.storage.study_folder import StudyView

Document = dict[str, Any]
#: From this chance on a predicted neighbour is said to be likely to fail.
RISKY = 0.2


def document(view: StudyView, importance: Document | None = None) -> Document:
    """Of a study as its folder shows it. ``importance``: PED-ANOVA's, by default that of the result kept last.

    ``fanova`` and ``shap`` are what was worked out before; ``trials`` tells of how many trials everything is.
    """
    state, file = view.journal, view.file
    head: Document = {"study": view.name, "trials": data.ended(state)}
    if file is None:
        return head | {"reason": "the study's file cannot be read by this version"}
    shap = _kept(view.folder, "shap", state)
    return head | {
        "reason": "",
        "objective": file.objective,
        "target_loss": file.target_loss,
        "measured": len(data.measured(state)),
        "failed": sum(1 for _, bad in data.judged(state) if bad),
        "importance": importance or (view.result or {}).get("importance") or _LATER,
        "fanova": _kept(view.folder, "fanova", state),
        "shap": shap,
        "dependence": _dependence(state, file, shap),
        "winner": _winner(state, file),
        "neighbours": [one.as_dict() for one in _neighbours(state, file, shap)],
    }


_LATER: Document = {"values": None, "reason": "PED-ANOVA is worked out when a trial ends"}


def _kept(folder: Path, method: Method, state: StudyState) -> Document:
    """The newest outcome with what makes it old, if anything; without one, how to get it."""
    trials = data.ended(state)
    found = job.newest(folder, method, trials)
    if found is None:
        ask = f"is worked out when asked for: workbench sensitivity {folder.name} --method {method}"
        return {"known": False, "reason": f"{NAMES[method]} {needed(method) or ask}"}
    notes = []
    if found["of_trials"] < trials:
        notes.append(f"of the first {found['of_trials']} of {trials} trials")
    if not found.get("complete"):
        notes.append(f"stopped after {found.get('trees')} trees")
    return found | {"known": True, "note": "; ".join(notes)}


def _dependence(state: StudyState, file: StudyFile, shap: Document) -> list[Document]:
    """What was measured at each value, and beside it what the model predicts for the same trials moved there."""
    said = {
        (row["key"], str(at["value"])): at for row in shap.get("dependence") or [] for at in row["values"]
    }
    rows = dependence(state, file.search_space)
    for row in rows:
        for at in row["values"]:
            at["predicted"] = said.get((row["key"], str(at["value"])), {}).get("mean")
    return rows


def _winner(state: StudyState, file: StudyFile) -> Document | None:
    best = leaderboard.standing(state, file).best
    if best is None:
        return None
    label = file.search_space.label(best.config)
    return {"trial": best.number, "label": label, "value": best.value, "config": best.config}


def _neighbours(state: StudyState, file: StudyFile, shap: Document) -> Sequence[Neighbour]:
    """Neighbours that were not measured take the model's word, where its winner is still the winner."""
    said = {(row["key"], str(row["value"])): row for row in shap.get("neighbours") or []}
    best = _winner(state, file)
    if not best or shap.get("winner") != best["trial"]:
        said = {}
    found = [_with_word(one, said.get((one.key, str(one.value))), shap) for one in neighbours(state, file)]
    return sorted(found, key=lambda one: one.place)


def _with_word(one: Neighbour, word: Document | None, shap: Document) -> Neighbour:
    if one.stands != "unknown":
        return one
    if word is None:
        return replace(one, reason=_no_word(shap))
    chance = word.get("failure_chance")
    bounds = {name: word[name] for name in ("loss_percent", "low_percent", "high_percent")}
    risky = "" if chance is None or chance < RISKY else f"likely to fail ({chance:.0%})"
    return replace(one, stands="predicted", reason=risky, **bounds)


def _no_word(shap: Document) -> str:
    if not shap["known"]:
        return "SHAP's model may predict it"
    if shap["value"]["knobs"] is None:
        return "the model is not good enough to predict it"
    return "the model knew another winner, or has not seen this value"
