"""Whether NCCL took a setting, from lines in the form that its sources print them."""

import pytest

from profilers.environment_rows import NO, UNTOLD, YES
from profilers.nccl_proof import proof

HEAD = "gpu01:4242:4301 [0] NCCL INFO "
LOG = [
    f"{HEAD}NCCL_ALGO set by environment to Tree",
    f"{HEAD}NCCL_PROTO set by environment to LL",
    f"{HEAD}NCCL_NTHREADS set by environment to 256.",
    f"{HEAD}NCCL_P2P_LEVEL set by environment to NVL",
    f"{HEAD}NCCL_MIN_CTAS set by environment to 4.",
    f"{HEAD}NCCL_MAX_CTAS set by environment to 6.",
    f"{HEAD}8 coll channels, 0 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer",
    f"{HEAD}AllReduce: 4096 Bytes -> Algo TREE proto LL channel{{Lo..Hi}}={{0..1}}",
    f"{HEAD}AllGather: 32768 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}",
    "step 3 of 10: NCCL_BUFFSIZE set by environment to 1024 is what somebody printed",
]


@pytest.mark.parametrize(
    ("name", "asked", "used", "proven"),
    [
        ("NCCL_ALGO", "Tree", "tree, ring", YES),
        ("NCCL_PROTO", "LL", "LL", YES),
        ("NCCL_NTHREADS", "256", "256", YES),
        ("NCCL_NTHREADS", "128", "256", NO),
        ("NCCL_P2P_LEVEL", "NVL", "NVL", YES),
        ("NCCL_MIN_CTAS", "4", "8", YES),
        ("NCCL_MAX_CTAS", "6", "8", NO),
        ("NCCL_BUFFSIZE", "1024", None, NO),
        ("NCCL_IB_QPS_PER_CONNECTION", "4", None, NO),
    ],
)
def test_what_the_log_says(name: str, asked: str, used: str | None, proven: str) -> None:
    found = proof(name, asked, LOG)
    assert (found.used, found.proven) == (used, proven), found


def test_another_algorithm_is_seen() -> None:
    other = [line for line in LOG if "TREE" not in line]
    assert proof("NCCL_ALGO", "Tree", other)[:2] == ("ring", NO)
    nvls = [
        f"{HEAD}NCCL_ALGO set by environment to NVLSTree",
        f"{HEAD}AllReduce: 8 Bytes -> Algo NVLS_TREE proto SIMPLE",
    ]
    assert proof("NCCL_ALGO", "NVLSTree", nvls).proven == YES


def test_a_silent_log_proves_nothing() -> None:
    assert proof("NCCL_ALGO", "Tree", ["step 1"]).proven == UNTOLD
    assert proof("NCCL_ALGO", "Tree", LOG[:1]).proven == UNTOLD
    assert proof("NCCL_MIN_CTAS", "4", LOG[4:5]).proven == UNTOLD
