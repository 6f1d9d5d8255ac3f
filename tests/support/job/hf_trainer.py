"""``torchrun .../hf_trainer.py OUT``: a small Llama in the Trainer of transformers, as users write it.

A callback notes when steps end, and has torch.profiler watch some of them. Nothing is downloaded.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS = 24
#: Steps that torch.profiler watches.
PROFILED = (6, 8)


class Text(torch.utils.data.Dataset):
    """Sequences of chance."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 512, (64,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": tokens, "labels": tokens}


class Watch(TrainerCallback):
    """Steps are counted from 0."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.profiler = torch.profiler.profile(record_shapes=True)

    def on_step_end(self, args, state, control, **more):
        step = state.global_step - 1
        self.ends.append(time.perf_counter())
        if step == PROFILED[0] - 1:
            self.profiler.start()
        if step == PROFILED[1]:
            self.profiler.stop()


def main() -> None:
    out, watch = Path(sys.argv[1]), Watch()
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, **shape))
    arguments = TrainingArguments(
        output_dir=str(out / "trainer"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Text(), callbacks=[watch]).train()
    events = [[one.name, one.input_shapes] for one in watch.profiler.events() if one.name.startswith("gloo:")]
    document = {"ends": watch.ends, "events": events}
    (out / f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main()
