"""Whether NCCL took a setting, from lines in the form that its sources print them."""

import pytest

from profilers.collectives.nccl_log import proof, settings
from profilers.model.environment import ELSEWHERE, NO, UNTOLD, YES

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
    assert proof("NCCL_ALGO", "Tree", LOG[:1]).proven == ELSEWHERE
    assert proof("NCCL_MIN_CTAS", "4", LOG[4:5]).proven == UNTOLD


#: A process's second run: most variables are cached and logged no more, algorithm and protocol are read anew.
SECOND = [
    "step 1 of 3",
    f"{HEAD}ncclCommInitRank comm 0x7f2c60 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 1b000 commId 0x5e - Init START",
    f"{HEAD}NCCL_ALGO set by environment to Tree",
    f"{HEAD}4 coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer",
    f"{HEAD}AllReduce: 4096 Bytes -> Algo TREE proto SIMPLE channel{{Lo..Hi}}={{0..1}}",
]


@pytest.mark.parametrize(
    ("name", "asked", "used", "proven"),
    [
        ("NCCL_NTHREADS", "256", "256", YES),
        ("NCCL_P2P_LEVEL", "NVL", "NVL", YES),
        ("NCCL_MAX_CTAS", "6", "4", YES),
        ("NCCL_MIN_CTAS", "8", "4", NO),
        ("NCCL_PROTO", "LL", "SIMPLE", NO),
        ("NCCL_BUFFSIZE", "1024", None, NO),
    ],
)
def test_a_second_run_of_a_process_knows_what_the_first_one_read(
    name: str, asked: str, used: str | None, proven: str
) -> None:
    """What was read then holds; channels and choices are those of this run's communicators."""
    earlier = settings(LOG)
    assert len(earlier) == 6
    found = proof(name, asked, SECOND, earlier)
    assert (str(found.used).lower(), found.proven) == (str(used).lower(), proven), found
