"""Real parallel training over NCCL or gloo, recorded through the profilers."""

import os

# Read when a process makes its first NCCL group. From torch 2.15 on "nccl" builds another class, ProcessGroupNCCL2: one
# communicator and stream for all messages of a group, where receives that pipelines post ahead could block sends, and
# no Flight Recorder of its own. This asks for the class that all releases have. What a user has set stays.
_CLASS = "TORCH_DIST_USE_NCCL2"
#: Variables that are only set because of this: a job that is not ours does not get them.
ADDED = () if _CLASS in os.environ else (_CLASS,)
os.environ.setdefault(_CLASS, "0")
