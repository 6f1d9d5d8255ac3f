"""``python printing.py --prints megatron --out FOLDER ...``: a trainer without torch, whose steps sleep.

It tells of steps as a well-known trainer does. Each process notes what it got, in ``FOLDER/argv-RANK.json``.

It ends in the ways of ``--ends``, after ``--after`` steps. With ``--ranks 2`` it is a launcher, too: its ranks have
sessions of their own, as those of torchrun, and it reports the first that fails as torchrun does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FORMATS = {
    "megatron": " [2026-11-20 10:00:00.123456] iteration {step:8d}/{total:8d} | consumed samples: {step:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-04 | global batch size:    16 | "
    "lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.9 | number of skipped iterations:   0 |",
    "torchtitan": "[titan] 2026-11-20 10:00:00,123 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {loss:8.5f}  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.2000  \x1b[36mmemory:  0.50GiB(1.20%)  \x1b[34mtps: 1,234  \x1b[35mmfu: 1.00%",
    "deepspeed": "[2026-11-20 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, "
    "lr=[0.001], mom=[(0.9, 0.999)]",
    "hf": "\r {percent:3d}%|##        | {step}/{total} [00:01<00:09,  1.90it/s]",
    "accelerate": "step {step}: loss {loss:.4f}",
    "generic": "iter {step}: loss {loss:.4f}, time {ms:.2f}ms",
    "json": '{{"step": {step}, "seconds": {seconds}, "loss": {loss}}}',
}
#: Seconds of a step by the micro-batch; the planted best is 4.
SECONDS = {1: 0.03, 2: 0.02, 4: 0.008, 8: 0.015}


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prints", default="generic", choices=[*FORMATS, "nothing", "ours", "file"])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--ends",
        default="",
        choices=["", "oom", "hang", "kill", "error", "well", "away", "on", "raises"],
    )
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--forgets", action="store_true", help="Rank 1 is started without its micro-batch.")
    for name in ("--micro-batch-size", "--per_device_train_batch_size", "--size"):
        parser.add_argument(name, type=int, default=None, dest="micro_batch")
    for name in ("--global-batch-size", "--num-layers", "--seq-length", "--log-interval"):
        parser.add_argument(name, type=int)
    parser.add_argument("--starts", type=float, default=0.0, help="Seconds before the first step.")
    parser.add_argument("--slow", type=lambda text: text == "True", default=False)
    return parser.parse_known_args() if "--lenient" in sys.argv else (parser.parse_args(), [])


def launch(asked: argparse.Namespace) -> int:
    """Start the ranks and wait for the first that fails."""
    words = sys.argv[1:]
    place = words.index("--ranks")
    del words[place : place + 2]
    ranks = []
    for rank in range(asked.ranks):
        mine = list(words)
        if rank == 1 and asked.forgets and "--micro-batch-size" in mine:
            at = mine.index("--micro-batch-size")
            del mine[at : at + 2]
        ranks.append(
            subprocess.Popen(
                [sys.executable, __file__, *mine],
                env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                start_new_session=True,
            )
        )
    while True:
        for rank, process in enumerate(ranks):
            if process.poll():
                print(
                    f"E failed (exitcode: {process.returncode}) local_rank: {rank} (pid: {process.pid}) of binary"
                )
                return 1
        if all(process.poll() == 0 for process in ranks):
            return 0
        time.sleep(0.01)


def end(how: str) -> None:
    """End as asked, in the last rank."""
    if how == "oom":
        raise MemoryError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")
    if how == "hang":
        time.sleep(1000)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "error":
        raise RuntimeError("the planted error")
    if how == "raises":
        raise ValueError("micro-batch 3 does not divide 8")
    if how == "well":
        sys.exit(0)


def away() -> None:
    """What a daemon does: the command is over at once, and what it started goes on in a session of its own. With
    ``--ends on`` it trains there.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.environ.clear()
    if "on" not in sys.argv:
        time.sleep(1000)


def tell(prints: str, out: Path | None, **what: object) -> None:
    """One step."""
    if prints in FORMATS:
        end_of_line = "" if prints == "hf" else "\n"
        sys.stderr.write(FORMATS[prints].format(**what) + end_of_line)
    elif prints == "ours":
        with (Path(os.environ["WORKBENCH_FOLDER"]) / "trainer.jsonl").open("a") as file:
            file.write(json.dumps({"event": "step", "step": what["step"], "seconds": what["seconds"]}) + "\n")
    elif prints == "file" and out is not None:
        with (out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"n": what["step"], "took": what["seconds"]}) + "\n")


def main() -> int:
    """Train."""
    asked, _ = arguments()
    if asked.ranks > 1:
        return launch(asked)
    rank = int(os.environ.get("RANK", "0"))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        noted = {"argv": sys.argv[1:], "threads": os.environ.get("OMP_NUM_THREADS"), "pid": os.getpid()}
        (asked.out / f"argv-{rank}.json").write_text(json.dumps(noted))
    if asked.ends in ("away", "on"):
        away()
    ending_rank = 1 if "RANK" in os.environ and asked.ends != "hang" else 0
    seconds = SECONDS.get(asked.micro_batch or 2, 0.02) * (3 if asked.slow else 1)
    time.sleep(asked.starts)
    for step in range(1, asked.steps + 1):
        if asked.ends not in ("", "on") and step > asked.after and rank == ending_rank:
            end(asked.ends)
        time.sleep(seconds)
        if rank == 0:
            percent = 100 * step // asked.steps
            told = {"ms": seconds * 1e3, "seconds": seconds, "loss": 3.0 / step, "total": asked.steps}
            tell(asked.prints, asked.out, step=step, percent=percent, **told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
