"""Each private name of torch's is there and does what the project needs of it; nobody else uses one."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.library import Library

from profilers import torch_private
from profilers.torch_private import TorchDispatchMode, tree_leaves
from tests.support.ranks import on_ranks

ROOT = Path(__file__).parents[2]
#: Attributes with a leading underscore of torch's modules and objects.
PRIVATE = re.compile(
    r"\btorch(\.\w+)*\._[a-z]|from torch[\w.]*\._|\b_C\b|\bc10d\._|_get_backend|_get_fsdp|_fsdp_param_group\b(?!\.py)"
    r"|\._schema\b|\._cdata\b|\._version\b|_orig_size|_engine_run_backward|library\._"
    r"|\._allgather_base\b|\._reduce_scatter_base\b|\._set_unshard|_scaled_dot_product_"
)


def test_nobody_else_uses_a_private_name() -> None:
    files = [
        path
        for name in ("profilers", "engine", "tuning", "workbench")
        for path in (ROOT / name).rglob("*.py")
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        if path.name != "torch_private.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if PRIVATE.search(line.partition("  #")[0])
    ]
    assert not found


def test_lists_of_tensors_in_one_call() -> None:
    xs, ys = [torch.ones(2), torch.ones(3)], [torch.full((2,), 3.0), torch.full((3,), 4.0)]
    torch_private.foreach_copy_(xs, ys)
    torch_private.foreach_mul_(xs, 2.0)
    assert [float(x[0]) for x in xs] == [6.0, 8.0]
    assert [float(norm) for norm in torch_private.foreach_norm(ys)] == pytest.approx([18**0.5, 48**0.5])
    torch_private.foreach_zero_(xs)
    assert not any(x.any() for x in xs)


def test_tensors_that_share_memory_are_one_and_versions_count_changes() -> None:
    x = torch.zeros(4)
    assert torch_private.memory_identity(x) == torch_private.memory_identity(x[1:])
    assert torch_private.memory_identity(x) != torch_private.memory_identity(torch.zeros(4))
    before = torch_private.version_of(x)
    x.add_(1)
    assert torch_private.version_of(x) == before + 1


def test_a_reduction_has_its_name_in_every_shape() -> None:
    factor = 0.5
    scaled = dist._make_nccl_premul_sum(factor)
    shapes = [dist.ReduceOp.AVG, dist.ReduceOp(dist.ReduceOp.MIN), scaled]
    assert [torch_private.reduction_name(shape) for shape in shapes] == ["AVG", "MIN", "PREMUL_SUM"]


def test_operators_are_seen_and_redispatched() -> None:
    seen: list[str] = []
    operator = torch.ops.c10d.allreduce_.default
    names = [argument.name for argument in torch_private.schema_of(operator).arguments]
    assert {"tensors", "process_group"} <= set(names)
    assert not torch_private.keys_below_backend_select().has(torch._C.DispatchKey.BackendSelect)
    assert callable(torch_private.wait_of_functional_collectives())
    library = Library("c10d", "FRAGMENT")
    torch_private.remove_kernels(library)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.ones(2) + 1
    assert "aten.add.Tensor" in seen
    assert tree_leaves([1, (2, {"x": 3})]) == [1, 2, 3]


def test_a_fake_tensor_has_a_shape_and_no_memory() -> None:
    with torch_private.fake_tensors():
        assert (torch.empty(1 << 20, 1 << 20) @ torch.empty(1 << 20, 2)).shape == (1 << 20, 2)


def test_a_fused_attention_returns_what_joins_blocks_of_keys() -> None:
    """Its result, and the logarithm of the sum of exponentials; then the gradients."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 6, 8, generator=generator, requires_grad=True) for _ in range(3))
    scores = query @ key.transpose(-1, -2) / 8**0.5
    expected = scores.softmax(-1) @ value
    forward, backward = torch_private.attention_kernel("flash_attention_for_cpu")
    with torch.no_grad():
        out, log_sum = forward(query, key, value, 0.0, False)
        gradients = backward(torch.ones_like(out), query, key, value, out, log_sum, 0.0, False)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(log_sum, scores.logsumexp(-1))
    expected.sum().backward()
    for found, tensor in zip(gradients, (query, key, value), strict=True):
        torch.testing.assert_close(found, tensor.grad)
    for name in ("flash_attention", "efficient_attention"):
        assert None not in torch_private.attention_kernel(name)
    assert torch_private.attention_kernel("no_such") == (None, None)


def test_where_a_backward_pass_and_an_operator_stand() -> None:
    assert torch_private.BACKWARD.co_name == "_engine_run_backward"
    assert Path(torch_private.OPERATORS_FILE).name == "_ops.py"


def test_the_folders_and_the_lock_of_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    used, default = torch_private.compiled_code_folders()
    assert (used, default) == (str(tmp_path / "cache"), default)
    with torch_private.compiler_lock(str(tmp_path / "one.lock"), 1.0):
        assert (tmp_path / "one.lock").exists()


def in_a_group(rank: int, folder: Path) -> None:
    group = dist.group.WORLD
    assert group is not None
    backend = torch_private.backend_of(group, torch.device("cpu"))
    assert backend.name() == "gloo"
    mine, both, one = torch.full((2,), float(rank)), torch.empty(4), torch.empty(2)
    torch_private.gather_start(backend)(both, mine).wait()
    assert both.tolist() == [0.0, 0.0, 1.0, 1.0]
    torch_private.scatter_start(backend)(one, both).wait()
    assert one.tolist() == [2.0 * rank, 2.0 * rank]
    store = torch_private.own_store("mine")
    if rank == 0:
        store.set("key", "value")
    store.wait(["key"], timedelta(seconds=20))
    assert store.get("key") == b"value"
    assert isinstance(json.loads(torch_private.flight_dumps(of_nccl=False)[-1]), dict)
    module = nn.Linear(4, 6)
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    shapes = [
        torch_private.whole_shape(one)
        for unit in torch_private.fsdp_groups(module)
        for one in unit.fsdp_params
    ]
    assert shapes == [(6, 4), (6,)]
    torch_private.gather_asynchronously(module, True)
    assert all(unit.unshard_async_op for unit in torch_private.fsdp_groups(module))
    found = torch_private.functional_collectives.all_reduce(torch.ones(2), "sum", group)
    assert found.tolist() == [2.0, 2.0]
    (folder / str(rank)).touch()


def test_groups_stores_and_shards(tmp_path: Path) -> None:
    on_ranks(2, in_a_group, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1"}


def test_the_gpu_allocator_s_functions_are_there() -> None:
    """They need a GPU; without one their first call says so."""
    if torch.cuda.is_available():
        torch_private.record_allocations(100)
        assert "allocator_settings" in torch_private.allocator_snapshot()
        torch_private.record_allocations(None)
    else:
        assert callable(torch.cuda.memory._snapshot)
        assert callable(torch.cuda.memory._record_memory_history)
