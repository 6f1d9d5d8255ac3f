"""What a process of a foreign job meets as it starts: its own files come first, and nothing of ours gets in its way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from profilers.rank import hook
from profilers.rank.job_rank import NOT_RECORDED, SEATS, TORCH_SEEN
from tests.support.job import command

pytestmark = pytest.mark.drawn(4, of="the hook in foreign ranks")

HOOK = Path(hook.__file__).parent
_ONE_STEP = """
import torch

w = torch.nn.Parameter(torch.ones(2))
o = torch.optim.SGD([w], lr=0.1)
for _ in range(3):
    w.sum().backward()
    o.step()
"""


def _python(folder: Path, *arguments: str, path: tuple[Path, ...] = (), cwd: Path | None = None) -> str:
    for part in (SEATS, "records"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    places = ":".join(map(str, (HOOK, *path)))
    done = subprocess.run(
        [sys.executable, *arguments],
        env=command.environment(PYTHONPATH=places, WORKBENCH_RECORD=str(folder)),
        cwd=cwd or folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_job_s_own_sitecustomize_runs_as_always(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = __file__\n")
    text = "import sys, sitecustomize; print(sys.mine == sitecustomize.__file__)"
    assert _python(tmp_path / "run", "-c", text, path=(tmp_path,)) == "True\n"


def test_a_process_without_torch_has_nothing_of_ours(tmp_path: Path) -> None:
    text = (
        "import sys; print([p for p in sys.path if 'hook' in p], "
        "[m for m in sys.modules if m.partition('.')[0] in ('profilers', 'numpy', 'msgspec', 'torch')])"
    )
    assert _python(tmp_path, "-c", text) == "[] []\n"
    assert not (tmp_path / TORCH_SEEN).exists()


def test_packages_of_the_job_that_are_called_as_ours_are_its_own(tmp_path: Path) -> None:
    """Also where torch came first: nothing but ``profilers`` can be found, and that after everything else."""
    for name in ("engine", "workbench", "tuning", "app"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    names = "engine, workbench, tuning, app"
    text = f"{_ONE_STEP}\nimport {names}\nprint(*(one.mine for one in ({names})))"
    assert _python(tmp_path / "run", "-c", text, path=(tmp_path,)) == "True True True True\n"
    assert (tmp_path / "run" / "records" / "rank-0.step").exists()


def test_a_module_is_run_as_always(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{_ONE_STEP}\nprint(__name__, __spec__.name)\n")
    assert _python(tmp_path / "run", "-m", "mine", path=(tmp_path,)) == "__main__ mine\n"
    assert (tmp_path / "run" / "records" / "rank-0.step").exists()


def test_torch_is_found_and_loaded_as_always(tmp_path: Path) -> None:
    text = (
        "import sys, torch; print(type(torch.__loader__).__name__, 'exec_module' in vars(torch.__loader__))"
    )
    assert _python(tmp_path, "-c", text) == "SourceFileLoader False\n"
    assert (tmp_path / TORCH_SEEN).exists()


def test_what_is_missing_is_one_line_and_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['msgspec'] = None\n")
    assert _python(tmp_path / "run", "-c", f"{_ONE_STEP}\nprint('through')", path=(tmp_path,)) == "through\n"
    [line] = (tmp_path / "run" / NOT_RECORDED).read_text().splitlines()
    assert line == f"{sys.executable}: msgspec is missing: pip install msgspec"


def test_nothing_but_torch_numpy_and_msgspec_is_needed(tmp_path: Path) -> None:
    missing = ("psutil", "pydantic", "pynvml", "yaml", "typer", "rich", "pyarrow", "optuna")
    text = "".join(f"sys.modules[{name!r}] = None\n" for name in missing)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{text}")
    _python(tmp_path / "run", "-c", _ONE_STEP, path=(tmp_path,))
    assert not (tmp_path / "run" / NOT_RECORDED).exists()
    assert (tmp_path / "run" / "records" / "rank-0.memory").exists()


def test_older_pythons_can_read_the_file_that_says_so() -> None:
    ast.parse((HOOK / "sitecustomize.py").read_text(), feature_version=(3, 7))


def test_a_mistake_of_ours_ends_the_recording_alone(tmp_path: Path) -> None:
    text = f"""
from profilers.rank import recording
def broken(*_): raise RuntimeError("ours")
recording.JobSteps.optimizer_began = broken
{_ONE_STEP}
print("through")"""
    assert _python(tmp_path, "-c", f"import torch{text}") == "through\n"
    assert "RuntimeError: ours" in (tmp_path / NOT_RECORDED).read_text()


def test_workers_of_a_data_loader_and_other_children_are_no_ranks(tmp_path: Path) -> None:
    text = f"""
import os, torch
{_ONE_STEP}
def work(_):
    w = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([w], lr=0.1)
    w.sum().backward(); o.step(); o.step()
    return torch.ones(1)
child = os.fork()
if not child:
    work(0); os._exit(0)
assert os.waitpid(child, 0)[1] == 0
class Data(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, place): return work(place)
print(len(list(torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="fork"))))
"""
    assert _python(tmp_path, "-c", text) == "2\n"
    assert not (tmp_path / NOT_RECORDED).exists()
    from profilers.records.reader import RunRecords

    assert RunRecords(tmp_path / "records").table(0, "step").column("step").tolist() == [1, 2]


def test_a_second_process_that_comes_as_the_same_rank_is_not_recorded(tmp_path: Path) -> None:
    _python(tmp_path, "-c", _ONE_STEP)
    _python(tmp_path, "-c", _ONE_STEP)
    assert "came as rank 0 after process" in (tmp_path / NOT_RECORDED).read_text()
