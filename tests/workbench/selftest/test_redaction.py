"""Nothing private gets into a selftest's evidence: what is planted is looked for in all its bytes."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.workbench.selftests import made_up
from workbench.selftest import evidence, runner
from workbench.selftest.isolation import SelftestRequest
from workbench.selftest.redaction import Redactor, names_here

SECRETS = {
    "DEPLOY_TOKEN": "hunter2-q8",
    "SHORT_PASSWORD": "k3y",
    "PLANTED_NUMBER": "314159265358979",
    "NCCL_SOCKET_IFNAME": "wg7",
    "LINES_OF_KEY": "BEGINNING-OF-IT\nthe-second-line\n",
    "QUOTED": 'say "friend" \\ and enter',
    "UNDERSCORED_NAME": "projectx",
}
HOST, USER = "zeppelin-17.lab.example", "mschmidt"
FOLDER = f"/home/{USER}/secret-project"
GPU = "GPU-ee7954ec-da95-fd7a-ddfd-c6b32cc2f8aa"
OTHER_HOME = "/home/somebody.else/models"
HOSTS_SHORT_NAME = HOST.partition(".")[0]
WORDS = f"{HOST}:4711:4712 [0] NCCL INFO {FOLDER}/run.py by {USER}@{HOSTS_SHORT_NAME}, {GPU}, {OTHER_HOME}, 10.1.2.3<0>"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A process with secrets, of a user and on a host that there are not."""
    for name, value in (
        SECRETS | {"PLANTED_WORDS": WORDS, "USER": USER, "HOSTNAME": HOST, "HOME": FOLDER}
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    return dict(os.environ)


def everything(folder: Path) -> bytes:
    """Names and contents of all files of the folder and of its zip."""
    packed = evidence.pack(folder)
    with zipfile.ZipFile(packed) as unpacked:
        inside = b"".join(name.encode() + unpacked.read(name) for name in unpacked.namelist())
    return inside + b"".join(
        str(path.relative_to(folder)).encode() + (path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    )


def run(folder: Path, scrubber: Redactor) -> bytes:
    folder.mkdir()
    runner.run(
        folder,
        [made_up("chatty")],
        SelftestRequest("cpu", 2),
        scrubber,
        lambda: False,
        lambda check, row: None,
    )
    assert {path.name for path in folder.rglob("*") if path.is_file()} >= {
        "output.log", "everything.json", "everything.txt", "rank-0.log", "rank-0.json", "status.json", "checks.json",
    }  # fmt: skip
    return everything(folder)


def test_what_is_planted_is_in_no_byte_of_the_evidence(tmp_path: Path, planted: dict[str, str]) -> None:
    found = run(tmp_path / "evidence", Redactor())
    private = [
        *SECRETS.values(),
        *"\n".join(SECRETS.values()).split("\n"),
        HOST,
        HOSTS_SHORT_NAME,
        USER,
        FOLDER,
    ]
    private += [
        GPU,
        OTHER_HOME,
        "somebody.else",
        "10.1.2.3",
        str(Path(__file__).parents[3]),
        "the-second-line",
    ]
    private += [value for name, value in planted.items() if len(value) > 9 and name != "OMP_NUM_THREADS"]
    told = [word for word in private if len(word) > 3 and word.encode() in found]
    assert told == []
    assert b'k3y"' not in found
    assert b"to wg7" not in found
    assert b"OMP_NUM_THREADS=2" in found
    assert b"<value of DEPLOY_TOKEN>" in found
    assert b"GPU-00000000-0000-0000-0000-000000000001" in found


def test_names_of_hosts_stay_where_that_is_asked_for(tmp_path: Path, planted: dict[str, str]) -> None:
    del planted["HOSTNAME"], planted["PLANTED_WORDS"]
    found = run(tmp_path / "evidence", Redactor(hosts=True, variables=planted))
    assert HOST.encode() in found
    assert b"10.1.2.3<0>" in found
    assert [word for word in (USER, FOLDER, SECRETS["DEPLOY_TOKEN"]) if word.encode() in found] == []


def test_this_machine_s_own_names_are_known() -> None:
    known = names_here()
    assert known[str(Path.home())] == "<home>"
    assert os.uname().nodename in known
    assert "<host>" not in names_here(hosts=True).values()


def test_numbers_and_words_that_everybody_has_stay() -> None:
    scrubber = Redactor(variables={"PORT": "8501", "MODE": "gloo", "LEVEL": "1"}, names={"vm": "<host>"})
    text = "gloo on vm: 8501 bytes, 1 step, nvml and vms stay; NCCL 2.27.5, cuDNN 9.10.2.21 on 127.0.0.1"
    assert scrubber.text(text) == text.replace("on vm:", "on <host>:")
    version = b'{"curand": "10.4.0.35"}'
    assert b"10.4.0.35" in scrubber.file("versions.json", version).encode()
    assert b"10.4.0.35" not in scrubber.file("status.json", version).encode()
    assert scrubber.tree({"a": [1, 2.5, None, True], "owner": {"host": "vm"}}) == {"a": [1, 2.5, None, True]}
