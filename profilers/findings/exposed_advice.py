"""What to turn where ranks wait for an operation on an axis."""

from __future__ import annotations

from profilers.findings.exposure import POINT_TO_POINT, UNKNOWN

#: (operation, first letters of the axis) -> what to turn; the first that fits. Empty letters fit any axis.
_ADVICE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "all_reduce",
        "dp",
        (
            "send less with compression.method, hide more with overlap.bucket_mb, or reduce less often with a larger "
            "batch.global_batch",
            *("compression.method", "overlap.bucket_mb", "batch.global_batch"),
        ),
    ),
    ("all_reduce", "tp", ("a smaller parallel.tp, inside one host", "parallel.tp")),
    (
        "all_gather",
        "dp",
        (
            "gather less often with a smaller parallel.zero_stage, fewer bytes with compression.weights, or beside "
            "computation with overlap.prefetch (zero_stage 2, 3) or overlap.gather_with_optimizer (1)",
            *(
                "parallel.zero_stage",
                "compression.weights",
                "overlap.prefetch",
                "overlap.gather_with_optimizer",
            ),
        ),
    ),
    (
        "all_gather",
        "tp",
        (
            "keep what was gathered with parallel.tp_regather=false, gather beside products with overlap.tp_chunks, or "
            "a smaller parallel.tp",
            *("parallel.tp_regather", "overlap.tp_chunks", "parallel.tp"),
        ),
    ),
    (
        "reduce_scatter",
        "dp",
        (
            "send less with compression.method, scatter once a step with parallel.reduce_every_micro_batch=false, or "
            "among fewer ranks with parallel.shard_ranks",
            *("compression.method", "parallel.reduce_every_micro_batch", "parallel.shard_ranks"),
        ),
    ),
    (
        "reduce_scatter",
        "tp",
        (
            "scatter beside products with overlap.tp_chunks, or a smaller parallel.tp, inside one host",
            *("overlap.tp_chunks", "parallel.tp"),
        ),
    ),
    (
        "all_to_all",
        "cp",
        ("parallel.cp_method=ring, or a smaller parallel.cp", "parallel.cp_method", "parallel.cp"),
    ),
    (
        "all_to_all",
        "",
        (
            "fewer bytes with compression.experts, fewer tokens with model.capacity_factor or "
            "model.experts_per_token, or a smaller parallel.ep",
            *("compression.experts", "model.capacity_factor", "model.experts_per_token", "parallel.ep"),
        ),
    ),
    (
        POINT_TO_POINT,
        "pp",
        (
            "fewer borders between stages with a smaller schedule.chunks or parallel.pp",
            *("schedule.chunks", "parallel.pp"),
        ),
    ),
    (
        POINT_TO_POINT,
        "cp",
        ("parallel.cp_method=ulysses, or a smaller parallel.cp", "parallel.cp_method", "parallel.cp"),
    ),
    (
        UNKNOWN,
        "",
        ("record what it is with profile.collectives=true", "profile.collectives"),
    ),
)
_ANY_ADVICE = (
    "a layout with less traffic: a smaller parallel.tp or parallel.zero_stage",
    *("parallel.tp", "parallel.zero_stage"),
)


def advice(operation: str, axis: str) -> tuple[str, ...]:
    """A sentence, and the keys of the configuration that it names."""
    fitting = (
        found
        for named, letters, found in _ADVICE
        if named == operation and axis.removeprefix("e").startswith(letters)
    )
    return next(fitting, _ANY_ADVICE)
