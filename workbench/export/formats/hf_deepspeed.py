"""What Hugging Face's Trainer puts into DeepSpeed's JSON file in place of "auto", and refuses to see said otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import InputError
from workbench.export.formats import hf_fsdp
from workbench.export.mapping.rows import DeepspeedFile, Document


def says(document: Document, ranks: int) -> Document:
    """By DeepSpeed's keys."""
    micro, accumulation = document["per_device_train_batch_size"], document["gradient_accumulation_steps"]
    steps, rise = document.get("max_steps", -1), document.get("warmup_steps") or 0
    rate = document.get("learning_rate")
    said: Document = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": micro * accumulation * ranks,
        "gradient_clipping": document.get("max_grad_norm"),
        "optimizer.params.lr": rate,
        "optimizer.params.betas": [document.get("adam_beta1"), document.get("adam_beta2")],
        "optimizer.params.eps": document.get("adam_epsilon"),
        "optimizer.params.weight_decay": document.get("weight_decay"),
        "scheduler.params.warmup_max_lr": rate,
        "fp16.enabled": _is_on(document, "fp16"),
        "bf16.enabled": _is_on(document, "bf16"),
    }
    if steps > 0:
        said["scheduler.params.total_num_steps"] = steps
    if steps > 0 or rise >= 1 or not rise:  # else it is a share of steps that the data decides
        said["scheduler.params.warmup_num_steps"] = max(1, int(rise) if rise >= 1 else _share(rise, steps))
    return said


def _share(share: float, steps: int) -> int:
    return -int(-share * steps // 1) if share else 0


def _is_on(document: Document, name: str) -> bool:
    return bool(document.get(name) or document.get(f"{name}_full_eval"))


def problems(document: Document) -> Iterator[InputError]:
    """It refuses to shard twice."""
    if document.get(hf_fsdp.SWITCH):
        yield InputError(
            "fsdp", document[hf_fsdp.SWITCH], "is refused beside deepspeed; leave one of them out"
        )


NAMED = DeepspeedFile(key="deepspeed", says=says, insists=True, problems=problems, batch=True)
