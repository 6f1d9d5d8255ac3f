"""Export as a Slurm batch file: this project's trainer, with the exact configuration, one launcher on each node."""

from __future__ import annotations

from engine.config.errors import several
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from workbench.export.bundle import Bundle
from workbench.export.launchers import torchrun

#: Ranks that a node is taken to have devices for; sbatch's own options say otherwise.
MOST_RANKS_A_NODE = 8
_JOB = """\
#!/usr/bin/env bash
# Trains config.json again on {on_ranks}: {layout}.
#   sbatch job.sbatch [--out FOLDER]      where the run folder goes; default ./runs where it was submitted
# Another number of nodes: sbatch --nodes=N job.sbatch, if it divides the ranks. Partition and account are the site's.
# PYTHON names an interpreter that has the package training-workbench on every node; default: python3.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{devices}
#SBATCH --output=%x-%j.log
set -euo pipefail

RANKS={ranks}
NODES="${{SLURM_JOB_NUM_NODES:?submit it with sbatch}}"
if (( RANKS % NODES )); then
  echo "error: --nodes=$NODES: must divide the $RANKS ranks of this layout" >&2
  exit 2
fi
{exports}
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MASTER_ADDR MASTER_PORT="${{MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}}" EACH=$((RANKS / NODES)) NODES
export PYTHON="${{PYTHON:-python3}}" CONFIG="$SLURM_SUBMIT_DIR/config.json"
# shellcheck disable=SC2016  # each node fills in its own number
srun --kill-on-bad-exit=1 bash -c 'exec "$PYTHON" -m torch.distributed.run --nnodes "$NODES" \\
  --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --nproc-per-node "$EACH" \\
  -m engine.launch.torchrun "$CONFIG" "$@"' job "$@"
"""


def nodes_of(config: RunConfig) -> tuple[int, int]:
    """Nodes, and ranks on each: as many as divide the ranks, up to ``MOST_RANKS_A_NODE``."""
    ranks = layout_of(config).world_size
    ranks_per_node = max(n for n in range(1, min(ranks, MOST_RANKS_A_NODE) + 1) if ranks % n == 0)
    return ranks // ranks_per_node, ranks_per_node


def _batch_file(bundle: Bundle, config: RunConfig) -> str:
    layout, (nodes, ranks_per_node) = layout_of(config), nodes_of(config)
    return _JOB.format(
        ranks=layout.world_size,
        on_ranks=several(layout.world_size, "ranks"),
        layout=f"dp={layout.dp} tp={layout.tp} pp={layout.pp} zero_stage={layout.zero_stage}",
        name="".join(letter for letter in bundle.name if letter.isalnum() or letter in "-_."),
        nodes=nodes,
        devices=f"#SBATCH --cpus-per-task={ranks_per_node}"
        if config.device == "cpu"
        else f"#SBATCH --gpus-per-node={ranks_per_node}",
        exports=torchrun.exports_of(config),
    )


SLURM = torchrun.Launcher(
    "job.sbatch", _batch_file, "`sbatch job.sbatch` trains it again; see its first lines"
)
