"""A study on one run of real ranks: its windows are steps of that run, which learns as if nobody turned anything."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.knobs.catalogue import live_parts
from engine.config.run_config import RunConfig, load
from engine.run import commands, run_folder
from engine.run.outcome import Ending, RunOutcome
from engine.run.run_folder import RunStatus
from engine.session import Session
from profilers.analysis.rounds import wall_seconds
from profilers.analysis.steps import join_steps
from profilers.records.reader import RunRecords
from tests.support.waiting import wait_until
from tuning.execution.executor import EndOfTrialsError
from tuning.execution.live.exploitation import RunWatch, train_to_completion
from tuning.execution.live.limits import SlowdownBudget
from tuning.execution.live.ongoing_run import RUNS
from tuning.execution.live.starter import Starter
from tuning.execution.live.windows import IDLE_SECONDS, LiveWindows
from tuning.spec.study_file import StudyFile, parse
from tuning.storage import commands as inbox
from tuning.storage.study_folder import STUDIES, StudyReader
from tuning.study import run_study

pytestmark = pytest.mark.drawn(6, of="windows of a real run")

STEPS = 240
PATIENCE_SECONDS = 60.0


def live_study(**changes: Any) -> StudyFile:
    tree: dict[str, Any] = {
        "name": "live",
        "ranks": 2,
        "trials": 4,
        "confirm_repeats": 1,
        "live": {"steps": STEPS, "checkpoint_every": 20},
        "base": {
            "model": {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 2, "ffn_hidden": 64},
            "data": {"sequence_length": 32},
            "batch": {"global_batch": 8, "micro_batch": 1},
            "train": {"steps": 12, "warmup": 2},
            "device": "cpu",
        },
        "space": {"batch.micro_batch": [1, 2, 4], "memory.recompute": ["none", "full"]},
    }
    return parse(tree | changes)


class Live:
    """A live study in a home of its own."""

    def __init__(self, home: Path, file: StudyFile) -> None:
        assert file.live is not None
        self.home, self.file, self.folder = home, file, home / STUDIES / file.name
        self.starter = Starter(home, self.folder, file.name, file.live)
        self.windows = LiveWindows(home, self.starter, SlowdownBudget(file.live))

    def search(self) -> dict[str, Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return run_study(self.file, self.folder, self.windows).as_dict()

    def to_the_end(self) -> Path:
        """The run trains on with the baseline; its folder."""
        outcome = train_to_completion(self.windows, self.file.config, self.file.name, lambda: False)
        assert outcome is not None and outcome.ending is Ending.COMPLETED, outcome
        return self.run

    @property
    def run(self) -> Path:
        """The last run that was tuned."""
        return self.home / json.loads((self.folder / RUNS).read_text())["runs"][-1]

    def covered(self, found: dict[str, Any]) -> list[tuple[int, int]]:
        """First step and end of each window, in order of trials."""
        rows = sorted([*found["trials"], *found["confirmations"]], key=lambda row: row["number"])
        said = [
            json.loads((self.home / row["run"] / run_folder.STATUS).read_text())["window"] for row in rows
        ]
        return [(one["first"], one["end"]) for one in said]


def losses(folder: Path) -> dict[int, float]:
    """The mean loss over ranks of every step."""
    records = RunRecords(folder / run_folder.RECORDS)
    steps = join_steps({rank: records.table(rank, "step") for rank in records.ranks()})
    return dict(zip(steps.steps.tolist(), steps.values["loss"].mean(axis=0).tolist(), strict=True))


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run of the baseline that nobody turns."""
    begun: list[Path] = []
    with Session(tmp_path_factory.mktemp("untouched")) as session:
        config = live_study().config.with_values({"train.steps": STEPS})
        session.execute(config, {}, lambda: False, begun.append)
    return losses(begun[0])


@pytest.mark.timeout(240)
def test_trials_are_windows_of_one_run_which_learns_as_if_untouched(
    tmp_path: Path, untouched: dict[int, float]
) -> None:
    live = Live(tmp_path / "home", live_study())
    found = live.search()
    assert found["state"] == "ended" and len(found["trials"]) == 4
    covered = live.covered(found)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(covered)), covered
    run = live.to_the_end()
    assert json.loads((live.folder / RUNS).read_text())["runs"] == [run.name]

    records = RunRecords(run / run_folder.RECORDS)
    steps = join_steps({rank: records.table(rank, "step") for rank in records.ranks()})
    assert len(steps.steps) == STEPS
    rows = sorted([*found["trials"], *found["confirmations"]], key=lambda row: row["number"])
    for row, (first, end) in zip(rows, covered, strict=True):
        settling = json.loads((live.home / row["run"] / run_folder.STATUS).read_text())["window"]["settling"]
        assert 0 <= settling <= (end - first) // 2, "what settles is less than half of what a window has"
        measured = wall_seconds(steps.select_range(first, end))[settling:]
        assert row["value"] == pytest.approx(8 * 32 / measured.mean(), rel=1e-6), row
        config = load(live.home / row["run"] / run_folder.CONFIG).flat()
        assert {key: config[key] for key in row["config"]} == row["config"]

    assert losses(run) == pytest.approx(untouched, rel=1e-5)


@pytest.mark.timeout(240)
def test_a_run_that_dies_goes_on_from_its_last_checkpoint(
    tmp_path: Path, untouched: dict[int, float]
) -> None:
    """No step counts twice, and the window that it died in is measured again."""
    live = Live(tmp_path / "home", live_study())
    killed: list[int] = []
    execute = live.windows.__call__

    def killing(config: RunConfig, labels: dict[str, str], *more: Any) -> Any:
        if labels["trial"] == "2" and not killed:
            run = live.starter.current
            assert run is not None
            assert wait_until(lambda: run.step > 40, PATIENCE_SECONDS)
            assert run.status.owner is not None
            killed.append(run.status.owner.pid)
            os.kill(killed[0], signal.SIGKILL)
        return execute(config, labels, *more)

    live.folder.mkdir(parents=True)
    found = run_study(live.file, live.folder, killing).as_dict()
    assert killed and found["state"] == "ended"
    first, second = json.loads((live.folder / RUNS).read_text())["runs"]
    run = live.to_the_end()
    assert run.name == second
    after = losses(run)
    assert min(after) > 0 and max(after) == STEPS - 1
    whole = losses(live.home / first) | after
    assert sorted(whole) == list(range(STEPS))
    assert whole == pytest.approx(untouched, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {"parallel.tp": [1, 2]}}, ("space.parallel.tp", "when a run starts", "batch.micro_batch")),
        ({"space": {"batch.micro_batch": [1]}}, ("space", "nothing that can be turned")),
        ({"simulate": {"cluster": "frontier"}}, ("simulate", "one run", "leave it out")),
        ({"side_by_side": 2}, ("side_by_side", "2", "one run")),
        ({"live": {"steps": 0}}, ("live.steps", "0")),
        ({"live": {"over": 3}}, ("live.over", "unknown key")),
        ({"live": {"steps": 12}}, ("live.steps", "12", "second window")),
        ({"base": {"train": {"seconds": 5.0}}}, ("base.train.seconds", "live.steps", "leave it out")),
    ],
)
def test_what_cannot_be_tuned_live_is_refused(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        live_study(**changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_live_study_that_names_no_space_turns_what_can_be_turned() -> None:
    keys = {knob.key for knob in live_study(space=None).knobs}
    assert {"batch.micro_batch", "memory.recompute"} <= keys <= set(live_parts())


@pytest.mark.timeout(240)
def test_between_windows_the_run_has_the_fastest_values_and_what_is_set_by_hand_counts(
    tmp_path: Path,
) -> None:
    """A window in which somebody set a value measures nothing; what is set after the search stays."""
    live = Live(tmp_path / "home", live_study(live={"steps": 100_000, "max_slowdown": 100.0}))
    live.folder.mkdir(parents=True)

    def window(should_stop: Callable[[], bool] = lambda: False, **values: Any) -> RunOutcome:
        config = live.file.config.with_values({"parallel.dp": 2} | values)
        return live.windows(config, {"study": "live", "trial": "0"}, should_stop)[0]

    def by_hand() -> bool:
        run = live.starter.current
        assert run is not None
        if not sent and run.config.memory.recompute == "full":  # not while the leader is looked at before
            sent.append(inbox.send(run.folder, commands.SET, {"memory.recompute": "none"}, "somebody"))
        return False

    sent: list[str] = []
    try:
        rates = {size: window(**{"batch.micro_batch": size}).ending for size in (4, 1)}
        assert set(rates.values()) == {Ending.COMPLETED}
        run = live.starter.current
        assert run is not None
        fastest = live.windows._fastest
        assert fastest is not None
        size = fastest.batch.micro_batch
        assert wait_until(lambda: run.config.batch.micro_batch == size, PATIENCE_SECONDS)
        outcome = window(by_hand, **{"memory.recompute": "full", "train.steps": 100_000})
        assert (outcome.ending, "memory.recompute was set by hand" in outcome.reason) == (
            Ending.STOPPED,
            True,
        )
        live.windows.leave(live.file.config.with_values({"parallel.dp": 2, "batch.micro_batch": 2}), "live")
        assert run.config.batch.micro_batch == 2
        assert run.turn({"batch.micro_batch": 4}, "somebody").has_changed
        time.sleep(2 * IDLE_SECONDS)
        assert run.config.batch.micro_batch == 4
    finally:
        live.starter.stop()


@pytest.mark.timeout(240)
def test_what_was_set_by_hand_while_the_controller_was_gone_stays(tmp_path: Path) -> None:
    """It was killed, somebody turned the run, and the same command goes on."""
    file = live_study(live={"steps": 100_000})
    before, after = (Live(tmp_path / "home", file) for _ in range(2))
    before.folder.mkdir(parents=True)
    config = file.config.with_values({"parallel.dp": 2, "batch.micro_batch": 2})
    labels = {"study": "live", "trial": "0"}
    try:
        assert before.windows(config, labels, lambda: False)[0].ending is Ending.COMPLETED
        before.windows._idle.cancel()
        run = before.starter.current
        assert run is not None
        run.turn({"overlap.bucket_mb": 1.0, "memory.recompute": "full"}, "somebody")
        assert after.windows(config, labels, lambda: False)[0].ending is Ending.COMPLETED
        assert run.config.memory.recompute == "full" and run.config.overlap.bucket_mb == 1.0
        assert after.windows._hand.values == {"overlap.bucket_mb": 1.0, "memory.recompute": "full"}
    finally:
        after.starter.stop()


@pytest.mark.timeout(240)
def test_a_window_after_a_stop_covers_the_steps_that_it_measured(tmp_path: Path) -> None:
    """The same command goes on where the run was stopped; one that somebody stops meanwhile stays stopped."""
    file = live_study(live={"steps": 100_000})
    before, after = (Live(tmp_path / "home", file) for _ in range(2))
    before.folder.mkdir(parents=True)
    config, labels = file.config.with_values({"parallel.dp": 2}), {"study": "live", "trial": "0"}
    before.windows(config, labels, lambda: False)
    before.starter.stop()
    folders: list[Path] = []
    try:
        assert after.windows(config, labels, lambda: False, folders.append)[0].ending is Ending.COMPLETED
        covered = json.loads((folders[0] / run_folder.STATUS).read_text())["window"]
        recorded = losses(after.run)
        assert after.run.name == covered["run"]
        assert covered["first"] == min(recorded) >= 12
        # As many as are measured of a trial: of a run that goes on there is no warm-up to wait for.
        assert covered["end"] - covered["first"] >= file.config.train.steps - file.config.train.warmup
        inbox.send(after.run, "stop")
        assert wait_until(lambda: RunStatus.from_folder(after.run).state == "ended", PATIENCE_SECONDS)
        with pytest.raises(EndOfTrialsError, match="was stopped"):
            after.windows(config, labels, lambda: False)
        assert len(json.loads((after.folder / RUNS).read_text())["runs"]) == 2
    finally:
        after.starter.stop()


def test_the_baseline_is_what_the_run_has() -> None:
    """Not plain data parallelism: nothing but what is turned between two steps differs from it."""
    base = live_study()._dump_given()["base"]
    base |= {"parallel": {"tp": 2}, "memory": {"recompute": "full"}}
    file = live_study(base=base, space={"batch.micro_batch": [1, 2], "overlap.tp_chunks": [1, 2]})
    point, note = file.search_space.baseline
    config = file.search_space.config(point)
    assert (note, config.flat()["parallel.tp"], config.memory.recompute) == ("", 2, "full")
    assert config.with_values({"parallel.world_size": None}) == file.config.with_values(
        {"parallel.world_size": None}
    )


def test_a_baseline_that_cannot_run_is_refused() -> None:
    base = live_study()._dump_given()["base"] | {"parallel": {"tp": 2}}
    base["model"] |= {"heads": 1, "kv_heads": 1}
    with pytest.raises(InputError, match="base: cannot run") as refused:
        live_study(base=base)
    assert "begins with" in refused.value.remedy


@pytest.mark.timeout(240)
def test_what_is_set_by_hand_after_the_search_outlives_the_controller(tmp_path: Path) -> None:
    """It is no drift either, and a search that goes on gives the run its values again."""
    file = live_study(live={"steps": 100_000, "look_again": 0.01})
    live = Live(tmp_path / "home", file)
    live.folder.mkdir(parents=True)
    usual = file.search_space.config(file.search_space.baseline[0])
    labels = {"study": "live", "trial": "0"}
    try:
        live.windows(usual, labels, lambda: False)
        live.windows.leave(usual, "live")
        run = live.starter.current
        assert run is not None and run.turn({"batch.micro_batch": 4}, "somebody").has_changed
        again = Live(tmp_path / "home", file)
        since = time.monotonic()
        stopped = train_to_completion(
            again.windows, usual, "live", lambda: time.monotonic() - since > 6, RunWatch(drift=0.01)
        )
        assert isinstance(stopped, RunOutcome), "no drift, whatever its steps take"
        assert run.config.batch.micro_batch == 4
        assert stopped.ending is Ending.STOPPED
        once_more = Live(tmp_path / "home", file)
        once_more.windows(usual, labels, lambda: False)
        assert not once_more.starter.was_left
    finally:
        live.starter.stop()
        Live(tmp_path / "home", file).starter.stop()


@pytest.mark.timeout(240)
def test_what_is_set_by_hand_in_a_study_is_pinned_and_stays(tmp_path: Path) -> None:
    """Every window after it has the value, and so has the run in the end."""
    live = Live(tmp_path / "home", live_study(trials=6, live={"steps": 100_000, "max_slowdown": 100.0}))

    def update(_: Any) -> None:
        """A window that has the value already is not turned: until one is."""
        run = live.starter.current
        if run is not None and run.step > 10 and not live.windows._hand.values:
            inbox.send(run.folder, commands.SET, {"memory.recompute": "full"}, "somebody")

    live.folder.mkdir(parents=True)
    try:
        run_study(live.file, live.folder, live.windows, update)
        state = StudyReader(live.folder).view().journal
        pinned = next(answer for answer in state.answers.values() if answer.command == "pin")
        assert pinned.accepted and pinned.by == "set by hand on the run", pinned
        later = [
            trial
            for trial in state.trials
            if trial.proposed_unix > pinned.at_unix and trial.value is not None
        ]
        assert all(trial.config["memory.recompute"] == "full" for trial in later), later
        assert live.starter.current is not None
        faster = live.starter.current.config.with_values({"memory.recompute": "none"})
        live.windows.remember(faster, 1e9, 0)
        live.windows._rest_meanwhile("live")
        assert live.starter.current.config.memory.recompute == "full", (
            "nor does the fastest so far take it back"
        )
        live.windows.leave(live.file.search_space.config(live.file.search_space.baseline[0]), "live")
        assert live.starter.current.config.memory.recompute == "full"
        live.windows.release()
        live.windows.leave(live.file.search_space.config(live.file.search_space.baseline[0]), "live")
        assert live.starter.current.config.memory.recompute == "none", (
            "back to the start is back to all of it"
        )
    finally:
        live.starter.stop()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("key", "value"), [("overlap.bucket_mb", 1.0), ("memory.recompute", "selective")])
def test_what_the_study_does_not_search_may_be_set_by_hand(tmp_path: Path, key: str, value: Any) -> None:
    """Later windows have another key's value; a value of a searched key that no trial may have ends the search."""
    live = Live(tmp_path / "home", live_study(trials=4, live={"steps": 100_000, "max_slowdown": 100.0}))
    assert live.file.config.flat()[key] != value

    def update(_: Any) -> None:
        run = live.starter.current
        if run is not None and run.step > 10 and not live.windows._hand.values:
            inbox.send(run.folder, commands.SET, {key: value}, "somebody")

    live.folder.mkdir(parents=True)
    try:
        run_study(live.file, live.folder, live.windows, update)
        state = StudyReader(live.folder).view().journal
        pinned = next(answer for answer in state.answers.values() if answer.command == "pin")
        assert not pinned.accepted, pinned
        later = [trial for trial in state.trials if trial.proposed_unix > pinned.at_unix and trial.outcome]
        if key == "overlap.bucket_mb":
            assert later and not any(trial.outcome == "illegal" for trial in state.trials)
            configs = [load(live.home / str(trial.run) / run_folder.CONFIG) for trial in later]
            assert {config.overlap.bucket_mb for config in configs} == {value}
        else:
            assert not later and "memory.recompute=selective was set by hand" in " ".join(state.notes)
        assert live.starter.current is not None and live.starter.current.config.flat()[key] == value
    finally:
        live.starter.stop()
