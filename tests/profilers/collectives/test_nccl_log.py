"""NCCL's choices from its log. The lines are NCCL's own, as people posted them.

The first is of a LLaMA run (NCCL before 2.24, numbers), the others of NCCL 2.24 and later, from public tuning notes.
"""

from profilers.collectives.nccl_log import Choice, choices

LINES = [
    "2: node-0:309:309 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008",
    "1: node-3:278:278 [0] NCCL INFO AllGather: opCount 1606 sendbuff 0x93fd44a00 recvbuff 0x96d44e200 count 2359808",
    "NCCL INFO Broadcast:    32768 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}",
    "NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..0}",
    "NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}",
    "NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}",
]


def test_names_and_numbers() -> None:
    assert choices(LINES) == [
        Choice("all_gather", 37_756_928, "ring", "simple"),
        Choice("broadcast", 32_768, "ring", "simple"),
        Choice("all_reduce", 1024, "tree", "simple"),
        Choice("all_reduce", 4096, "tree", "LL"),
    ]
    assert str(choices(LINES)[0]) == "all_gather of 37,756,928 bytes: ring, simple"


def test_what_a_later_nccl_may_add_is_kept_as_it_is() -> None:
    told = choices(["NCCL INFO AllToAll: 8 Bytes -> Algo SPIRAL proto 9 time 1.0"])
    assert told == [Choice("alltoall", 8, "spiral", "number 9")]
    assert choices([]) == choices(["step 3 took 8 Bytes -> Algo"]) == []
