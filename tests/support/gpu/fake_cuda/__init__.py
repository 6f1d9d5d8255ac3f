"""A GPU that is not there: real steps of the engine on ``cuda:0``, with tensors that have shapes and no values.

``guard.cpp`` is what a CPU build of torch lacks, ``build.py`` compiles it. ``device.py`` stands for ``torch.cuda``,
``mode.py`` for the device's memory and kernels: whatever is made on CUDA is a fake tensor, whatever is on the host is
real, and one that meets the other fails. ``around.py`` stands for what lies around one rank: other ranks, and values
that decide over sizes. ``rank.py`` trains, in a process of its own that ``process.py`` talks to.
"""
