"""A process that has the library behind nvidia-ml-py and works out what it is asked, one expression after the other.

In a process of its own, since nvidia-ml-py loads the library by its name, and the loader looks where it was told to at
the start.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.gpu.nvml_library.scenario import Scenario


class Session:
    """``with Session(scenario) as ask: ask("library.sample(0).power_watts")``; errors come back as RuntimeError.

    Names: ``pynvml``; ``library``, a ``profilers.gpu.nvml.Nvml`` at 5 s unix time; ``sample(gpu)``, what it says of a
    GPU, without None; ``wait(seconds)``, which moves its clock and not the driver's; ``visible()``, the GPUs that ranks
    may use; ``record()``, after which the answers are recorded, and ``save(path)``, which writes them.
    """

    def __init__(self, scenario: Scenario, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=scenario.environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
        assert process.returncode == 0 or kind is not None

    def __call__(self, expression: str) -> Any:
        """What an expression of one line comes to, in JSON's types."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the process died"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]


def main() -> None:
    """Answer one line of JSON for each line of stdin."""
    import pynvml

    from profilers.gpu.nvml import Nvml

    now = [100.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    def sample(gpu: int) -> dict[str, Any]:
        told = dataclasses.asdict(names["library"].sample(gpu))
        return {name: value for name, value in told.items() if value is not None}

    def visible() -> list[int | None]:
        from engine.run.devices import selection

        return selection.visible(names["library"])

    def record() -> None:
        from profilers.gpu.nvml_call_recorder import NvmlCallRecorder

        recorder = NvmlCallRecorder(pynvml)
        names["library"] = Nvml(recorder, lambda: 5.0, lambda: now[0])
        names["save"] = lambda path: recorder.save(Path(path), "")

    names: dict[str, Any] = {"pynvml": pynvml, "library": Nvml(None, lambda: 5.0, lambda: now[0])}
    names |= {function.__name__: function for function in (wait, sample, visible, record)}
    for line in sys.stdin:
        try:
            print(json.dumps({"value": eval(line, names)}), flush=True)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            pynvml.NVMLError,
        ) as error:
            print(json.dumps({"error": repr(error)}), flush=True)


if __name__ == "__main__":
    main()
