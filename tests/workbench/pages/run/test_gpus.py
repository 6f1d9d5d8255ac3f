"""The page shows the GPUs of a run, or says why there are none."""

from __future__ import annotations

from pathlib import Path

from engine.run import run_folder
from profilers.records.writer import RecordWriter
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit


def test_a_run_with_gpus_has_their_numbers_and_charts(home: Path) -> None:
    full_home(home)
    app = visit("runs", section="GPUs")
    with_gpus = next(name for name in app.dataframe[0].value["id"] if name.endswith("a7e2"))
    app.selectbox(key="id").set_value(with_gpus).run()
    assert not app.exception
    [rows] = [one.value for one in app.dataframe if "clocks throttled by" in one.value]
    assert list(rows["GPU"]) == [0, 1, 2, 3]
    assert all(0 < share <= 100 for share in rows["tensor cores, %"])
    assert any("power cap" in words for words in rows["clocks throttled by"])
    app.button_group(key="run-gpu").set_value(2).run()
    assert not app.exception


def test_the_table_shows_which_ranks_used_a_gpu(home: Path) -> None:
    full_home(home)
    run = next(path for path in home.iterdir() if path.name.endswith("a7e2"))
    summary = run_folder.read_json(run / run_folder.SUMMARY)
    assert summary is not None
    for row, ranks in zip(summary["gpus"], ([0], [1, 1_002], [], None), strict=True):
        row["ranks"] = ranks
    run_folder.write_json(run / run_folder.SUMMARY, summary)
    app = visit("runs", section="GPUs")
    app.selectbox(key="id").set_value(run.name).run()
    assert not app.exception
    [rows] = [one.value for one in app.dataframe if "clocks throttled by" in one.value]
    assert list(rows["ranks"]) == ["0", "1, 1,002", "—", "not known"]


def test_a_run_without_gpus_says_why(home: Path) -> None:
    full_home(home)
    app = visit("runs", section="GPUs")
    failed = next(name for name in app.dataframe[0].value["id"] if name.endswith("03f3"))
    app.selectbox(key="id").set_value(failed).run()
    assert not app.exception
    assert "no GPU:" in texts(app) or "no GPU was sampled" in texts(app)


def test_of_several_hosts_one_is_chosen(home: Path) -> None:
    full_home(home)
    run = next(path for path in home.iterdir() if path.name.endswith("a7e2"))
    records = run / run_folder.RECORDS
    for path in [*records.glob("launcher.*")]:
        path.rename(records / path.name.replace("launcher", "host-first"))
    with RecordWriter(records, "host-second") as writer:
        writer.event("host", name="second", ranks=[9])
        writer.event("nvml_unavailable", reason="the driver of the second host is gone")
    app = visit("runs", section="GPUs")
    app.selectbox(key="id").set_value(run.name).run()
    assert not app.exception
    assert app.selectbox(key="run-gpu-host").options == ["first", "second"]
    assert "the second host is gone" not in texts(app)
    app.selectbox(key="run-gpu-host").set_value("second").run()
    assert not app.exception
    assert "no GPU:" in texts(app)
    app = visit("runs", id=run.name, section="Host")
    assert app.selectbox(key="run-host").options == ["first", "second"]
