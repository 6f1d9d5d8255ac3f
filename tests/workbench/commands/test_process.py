"""The installed command, for real: what it loads, a run on two ranks, Ctrl-C, the page, and an export that trains."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config import run_config
from engine.run import progress, run_folder
from tests.workbench.commands.test_bad_input import free_port

COMMAND = [sys.executable, "-m", "workbench"]
SMALL = ["model.layers=2", "model.hidden=64", "model.ffn_hidden=128", "data.sequence_length=32",
         "batch.global_batch=8", "device=cpu"]  # fmt: skip
PATIENCE_SECONDS = 60.0


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts the command; whatever still runs after the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: object) -> subprocess.Popen[str]:
        command = [*COMMAND, *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("model: {preset: tiny}\n")
    return path


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from workbench import cli; code = cli.run(sys.argv[1:]);"
        "print([name for name in ('torch', 'optuna', 'streamlit', 'plotly', 'numpy', 'pandas', 'yaml')"
        " if name in sys.modules], code)"
    )
    for arguments in (["--help"], ["train", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "[] 0"


@pytest.mark.drawn(1, of="runs under torchrun")
def test_a_run_its_export_and_the_same_first_losses(
    asked: Path, home: Path, tmp_path: Path, start: Start
) -> None:
    code, out, err = finish(
        start("train", asked, "--set", "parallel.dp=2", *SMALL, "train.steps=3", "train.warmup=1", "--json")
    )
    assert code == 0, err
    document = json.loads(out)
    assert document["outcome"] == "completed"
    assert len(document["losses"]) == 3
    assert run_config.load(home / document["id"] / run_folder.CONFIG).parallel.dp == 2
    code, _, err = finish(start("export", document["id"], "--to", "torchrun", "--out", tmp_path / "out"))
    assert code == 0, err
    script = [tmp_path / "out" / "run.sh", "--out", tmp_path / "again"]
    scratch = os.environ | {"TMPDIR": str(tmp_path)}  # torchrun leaves a folder there
    again = subprocess.run(
        script, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, env=scratch
    )
    assert again.returncode == 0, again.stderr
    folder = next((tmp_path / "again").iterdir())
    summary = run_folder.read_json(folder / run_folder.SUMMARY) or {}
    assert summary["losses"] == pytest.approx(document["losses"], abs=1e-5)


@pytest.mark.drawn(1, of="commands that end early")
def test_ctrl_c_stops_in_order(asked: Path, home: Path, start: Start) -> None:
    process = start("train", asked, *SMALL, "train.steps=100000", "--json")
    until(lambda: [rank for folder in home.iterdir() for rank in progress.read(folder) if rank.step > 2])
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the ranks get it too
    code, out, err = finish(process)
    document = json.loads(out)
    assert (code, document["outcome"]) == (1, "stopped"), err
    assert document["losses"]
    assert "Ctrl-C again" in err


def test_the_page_comes_up_and_ends_with_ctrl_c(start: Start) -> None:
    port = free_port()
    process = start("ui", "--port", port)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"The page is at http://127.0.0.1:{port}.")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
        assert answer.status == 200
    assert (_upgraded(port, "localhost"), _upgraded(port, "evil.example")) == (101, 403)
    os.kill(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == 0
    assert "keep running" in err
    until(lambda: not _listens(port))


def test_beyond_this_machine_the_page_asks_for_its_token_and_says_what_is_exposed(
    start: Start, home: Path
) -> None:
    port = free_port()
    process = start("ui", "--port", port, "--address", "0.0.0.0")
    assert process.stdout is not None and process.stderr is not None
    assert (
        str(home) in (warning := process.stderr.readline())
        and "warning: the page listens at 0.0.0.0" in warning
    )
    assert "token" not in process.stdout.readline()
    link, reader = (process.stdout.readline().partition("?token=")[2].strip() for _ in range(2))
    assert link != reader
    local = f"http://127.0.0.1:{port}"
    for path in ("/", "/_stcore/metrics", "/workbench/plotly.min.js"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(local + path, timeout=5)
    for token in (link, reader):
        asked = urllib.request.Request(
            f"{local}/_stcore/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked, timeout=5) as answer:
            assert answer.status == 200
    shown = Path(f"/proc/{process.pid}/cmdline").read_bytes() + b"".join(
        Path(f"/proc/{child.pid}/cmdline").read_bytes() for child in psutil.Process(process.pid).children()
    )
    assert link.encode() not in shown
    os.kill(process.pid, signal.SIGINT)
    assert finish(process)[0] == 0


def _upgraded(port: int, host: str) -> int:
    """The status with which a web socket that was asked for under a name is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    headers = {
        "Host": host,
        "Origin": f"http://{host}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    try:
        connection.request("GET", "/_stcore/stream", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _listens(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("options", "word"), [("ro", "Read-only"), ("size=4k", "No space left")])
def test_a_home_that_is_read_only_or_full(options: str, word: str, asked: Path, home: Path) -> None:
    mount = f"mount -t tmpfs -o {options} none '{home}' || exit 99"
    fill = f"head -c 9000 /dev/zero >'{home}/filled'"
    train = shlex.join([*COMMAND, "train", str(asked), "--device", "cpu"])
    listed = shlex.join([*COMMAND, "ls"])
    script = f"{{ {mount}; {fill}; }} 2>/dev/null; {train}; echo $?; {listed}; echo $?"
    unshared = ["unshare", "-m", "bash", "-c", script]
    try:
        done = subprocess.run(unshared, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if done.returncode == 99 or done.stderr.startswith("unshare:"):
        pytest.skip("this user may not mount anything")
    assert done.stdout.split() == ["2", "0"]
    assert done.stderr.startswith(f"error: home='{home}'")
    assert word in done.stderr.splitlines()[0]
