"""How a trainer is started: the parts of an export's ``run.sh``."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.errors import several

#: Starts ranks on this host; ``where`` says which hosts there are.
_WHERE = """\
if (( NNODES == 1 )); then
  where=(--standalone)
else
  where=(--nnodes "$NNODES" --node-rank "${NODE_RANK:?give NODE_RANK, 0 on the first machine}"
         --master-addr "${MASTER_ADDR:?give MASTER_ADDR, the first machine}"
         --master-port "${MASTER_PORT:-29500}")
fi
"""
_HEAD = """\
#!/usr/bin/env bash
# Starts {what} on {on_ranks} with {file}, from run {run}.
#   ./run.sh {arguments}
# On several machines, start it on each with the same values but for NODE_RANK:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=first.machine MASTER_PORT=29500 ./run.sh ...
set -euo pipefail
HERE="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
RANKS={ranks}
NNODES="${{NNODES:-1}}"
if [[ ! "$NNODES" =~ ^[1-9][0-9]*$ ]] || (( RANKS % NNODES )); then
  echo "error: NNODES=$NNODES: must divide the $RANKS ranks of this layout" >&2
  exit 2
fi
{needed}{exports}
"""
_NEEDED = """\
if (( $# == 0 )); then
  echo "error: give {needs}" >&2
  exit 2
fi
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a trainer is started: ``arguments`` for people, what it ``needs`` from them ("" if nothing), and the end of
    the script, where HERE is the export's folder, and RANKS and NNODES are numbers.
    """

    what: str
    arguments: str
    needs: str
    end: str

    def script(self, file: str, ranks: int, run: str, exports: str) -> str:
        """The text of ``run.sh``; ``exports`` are its lines that set variables."""
        requirement = _NEEDED.format(needs=self.needs) if self.needs else ""
        words = {"what": self.what, "arguments": self.arguments, "file": file, "ranks": ranks, "run": run}
        words["on_ranks"] = several(ranks, "ranks")
        return _HEAD.format(needed=requirement, exports=exports, **words) + self.end + "\n"


def torchrun_command(command: str, before: str = "") -> str:
    """The end of a script that starts a command by torchrun, after what comes ``before``."""
    line = 'exec python3 -m torch.distributed.run "${where[@]}" --nproc-per-node "$((RANKS / NNODES))" \\\n'
    return f"{_WHERE}{before}{line}  {command}"


def script_launch(trainer: str, command: str) -> Launch:
    """A trainer whose users bring the training script, the first argument."""
    return Launch(trainer, "train.py [its arguments]", "your training script", torchrun_command(command))
