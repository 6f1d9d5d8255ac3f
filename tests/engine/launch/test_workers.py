"""The server that ranks are forked from."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import importlib
from engine.launch.workers import ForkServers
if __name__ == "__main__":
    process = ForkServers().start(importlib.import_module, ("torch",), {})
    process.join()
    raise SystemExit(process.exitcode)
"""


def test_modules_of_the_folder_one_is_in_are_not_python_s(tmp_path: Path) -> None:
    (tmp_path / "timeit.py").write_text("")  # imported without an error, and lacks everything
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
