"""The line of planned groups says what was kept, whichever way it falls; its runs are legal, its texts long-tailed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _sequences as sequences
from benchmarks import _sequences_paced as paced
from benchmarks import _table as table
from benchmarks.literature import flexsp
from engine.config.layout import longest_document
from engine.config.validation.rules import check


def kept(seconds: float, off: float, apart: float = 0.0) -> dict[str, Any]:
    """As if planned groups had taken so long, beside 2 s of groups of eight, and so much more than was predicted."""

    def one(name: str) -> dict[str, Any]:
        whole = name in (sequences.PLANNED, sequences.WHOLE, sequences.AGAIN)
        planned = name == sequences.PLANNED
        return {
            "seconds": seconds if planned else 2.0,
            "tokens": 1000,
            "losses": [5.0, 4.0 + planned * apart],
            "norms": [1.0, 1.0],
            "cut": "1 of 9 documents" if whole else "3 of 9 documents",
            "groups": [[8, 500, 1.0, 1.0 + off], [1, 100, 1.0, 1.0 + off]]
            if name != sequences.WINDOWS
            else [],
            "micro_batches": 2,
            "planner": [[0.5, 0.5, True], [0.25, 0.0, True]],
            "payload": 64.0,
            "formula": 64.0,
            "said": 100,
            "counted": 101,
        }

    names = [sequences.PLANNED, sequences.AGAIN, *sequences.STATIC, sequences.WINDOWS]
    lengths = [20, 100, 500, 2000, 6000]
    return {
        "settings": {name: [one(name)] for name in names},
        "rounds": 1,
        "lengths": lengths,
        "documents": 9,
    }


def kept_of_paced(seconds: float, off: float) -> dict[str, Any]:
    """The same of ranks whose work is paced."""
    return {
        "seconds": {kind: [seconds if kind == sequences.PLANNED else 2.0] * 4 for kind in paced.KINDS},
        "groups": {kind: [[[8, 1.0, 1.0 + off], [1, 1.0, 1.0 + off]]] * 4 for kind in paced.KINDS},
    }


@pytest.mark.parametrize(
    ("seconds", "off", "apart", "words"),
    [
        (1.0, 0.05, 0.0, "pays where the longest documents need many ranks"),
        (1.0, 0.25, 0.0, "its predictions miss their bar"),
        (1.9, 0.05, 0.0, "gains less than its bar"),
        (1.9, 0.25, 0.0, "misses the bars of gain and prediction"),
        (1.0, 0.05, 1e-3, "not exact"),
    ],
)
def test_the_verdict_is_that_of_the_bars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, off: float, apart: float, words: str
) -> None:
    monkeypatch.setattr(sequences, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(paced, "KEPT", tmp_path / "paced.json")
    table.keep(sequences.KEPT, kept(seconds, off, apart))
    table.keep(paced.KEPT, kept_of_paced(seconds, off))
    line = flexsp.SYSTEMS["sequences"].line(Namespace(), False)
    assert words in line[-1]
    assert f"{2 / seconds:.2f} times as fast" in line[4] and "A/A 1.00" in line[4]
    assert "a plan takes 0.25 s, of which 0.000 s" in line[4] and "within 1.00%" in line[2]
    assert f"off by {1 - 1 / (1 + off):.1%}" in line[3] and "two equal runs by 0.0%" in line[3]


def test_every_run_is_legal_and_the_largest_groups_alone_hold_the_longest_text(tmp_path: Path) -> None:
    lengths = sequences.write_texts(tmp_path)
    assert len(lengths) == len(list(tmp_path.iterdir())) > 1000
    assert lengths[len(lengths) // 2] < sequences.HOLDS and lengths[-1] > 4 * sequences.HOLDS
    for kind in paced.KINDS:
        check(paced.config_of(tmp_path, kind))
    for name, config in sequences.settings(tmp_path).items():
        check(config)
        if name in (sequences.PLANNED, sequences.WHOLE, sequences.AGAIN):
            assert longest_document(config) == sequences.LARGEST * sequences.HOLDS
