"""The page and the terminal show the environment variables that a run asked for, and whether they took effect."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from engine.run import run_folder
from profilers.model.environment import NO, YES, EnvironmentRow
from profilers.model.run_summary import RunSummary
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.home import runs
from workbench.text import run as run_text

ROWS = [
    EnvironmentRow("OMP_NUM_THREADS", "2", "2", "2", YES, "torch.get_num_threads", [0, 1]),
    EnvironmentRow("NCCL_ALGO", "Tree", "Tree", "ring", NO, "NCCL's log of its choices", [1]),
]


def test_a_run_shows_what_came_of_its_variables(home: Path) -> None:
    full_home(home)
    folder = next(one for one in runs.run_folders(home) if runs.load(one).summary)
    found = json.loads((folder / run_folder.SUMMARY).read_text())
    rows = [asdict(row) for row in ROWS]
    (folder / run_folder.SUMMARY).write_text(json.dumps(found | {"environment": rows}))
    assert runs.document(runs.load(folder))["environment"] == rows
    app = visit("runs", id=folder.name, section="Configuration")
    assert not app.exception
    assert "Environment of the ranks" in texts(app)
    table = next(frame.value for frame in app.dataframe if "took effect" in frame.value)
    assert table["took effect"].tolist() == [YES, NO]
    assert table["used by the library"].tolist() == ["2", "ring"]
    summary = RunSummary.from_dict(found | {"environment": rows})
    assert [text for label, text in run_text.lines(summary) if label == "environment"] == [
        "OMP_NUM_THREADS=2; took effect: yes (torch.get_num_threads)",
        "NCCL_ALGO=Tree, ring used; took effect: no (NCCL's log of its choices)",
    ]
