"""The README of a folder of evidence: what each file is, what was taken out, and how to replay."""

from __future__ import annotations

TEXT = """\
# Evidence of a `workbench selftest`

`checks.json` has every check: its outcome (pass, fail or not_possible), the reason, seconds, measured numbers with
their units in the names, and its files. It is written anew after each check, so it holds if the command was killed.

`checks/NAME/` is what a check left:

| file | what it is |
| --- | --- |
| `NN-LABEL/config.json` | the exact configuration of a run; `workbench train config.json` runs it again |
| `NN-LABEL/status.json`, `summary.json` | how it ended, and its numbers |
| `NN-LABEL/logs/rank-R.log` | what a rank printed; over NCCL with variables set, also NCCL's own log |
| `NN-LABEL/flight/rank-R.json` | the last collectives of a rank that waited (torch's Flight Recorder) |
| `NN-LABEL/traces/*/rank-R.json` | a Chrome trace of torch.profiler; opens at https://ui.perfetto.dev |
| `machine/doctor.json`, `versions.json`, `fingerprint.json` | what is there, and in which version |
| `machine/environment.json` | variables of the checked list; of others that act on ranks only the names |
| `nvml/nvml.tape.json` | every answer of the driver, in the order in which it gave them |
| `calibration/calibration.json` | curves of a quick calibration |
| `output.log` | what the check printed; the traceback if it failed by a mistake of ours |

## What was taken out

Names of users and hosts, home folders and addresses are replaced, unless `--with-host-names` was given, which keeps
names and addresses of hosts. So are the values of environment variables that are not on the checked list
(`engine/config/environment_catalog.py`) wherever they occur, if they are 6 characters or longer (3 for those whose
names sound secret); shorter ones are told nowhere by name. UUIDs of GPUs are numbered. Records of runs are left out.

## How to replay

From a checkout, put a file into `tests/data/` and:

- `nvml.tape.json`: `Nvml(FakeNvml(path=...))` of `tests/support/fake_nvml.py` answers as the driver did.
- `flight/rank-R.json`: `profilers.collectives.flight_recorder.parse(document["dump"].encode())`, then
  `profilers.collectives.hang.find`.
- a rank's log over NCCL: `profilers.collectives.nccl_log.proof(name, value, lines)`.
- a trace: `workbench.trace_merge`.
- `summary.json`: `RunSummary.from_dict`.
"""
