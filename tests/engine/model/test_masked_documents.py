"""Documents of their real lengths in one sequence: each is computed as if it were alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks import _plain as plain
from benchmarks._ranks import whole_weights
from engine.config.errors import LayoutError
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.config.validation.rules import check
from engine.model.activation_memory import Activations, Recompute
from engine.model.axes import Axes, LocalExperts
from engine.model.data import BORDER, open_corpus
from engine.model.decoder import Decoder
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel
from tests.support.runs import small


class OneByOne(plain.PlainDecoder):
    """Each document of a sequence alone, from position 0 on: no mask, no padding."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of all documents, one after the other."""
        rows = [torch.cat([self._alone(part) for part in documents(row)]) for row in tokens]
        return torch.stack(rows)

    def _alone(self, document: torch.Tensor) -> torch.Tensor:
        x = self.embedding(document[None])
        for block in self.blocks:
            x = block(x, self.cosine[: len(document)], self.sine[: len(document)])
        logits: torch.Tensor = self.head(self.norm(x))[0]
        return logits


def documents(row: torch.Tensor) -> list[torch.Tensor]:
    """A sequence cut in front of each first token."""
    starts = [at for at in (row == BORDER).nonzero().flatten().tolist() if at > 0]
    return list(row.tensor_split(starts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files of very different lengths, most of them shorter than a sequence."""
    path = tmp_path_factory.mktemp("documents")
    words = ["was", "es", "auch", "sei", "das", "Alter", "ist", "nur", "geehrt", "unter", "der", "Bedingung"]
    for number in range(160):
        length = 3 + (number * 37) % 29 + (400 if number % 40 == 7 else 0)
        text = " ".join(words[(number * at) % len(words)] for at in range(length))
        (path / f"{number:03}.txt").write_text(text[:length], "utf-8")
    return str(path)


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of every parameter."""
    names = dict(model.named_parameters())
    return dict(zip(names, torch.autograd.grad(loss, list(names.values())), strict=True))


def oracle(
    config: RunConfig, model: type[plain.PlainDecoder], windows: torch.Tensor
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of plain modules."""
    made = model(plain.Sizes(**asdict(resolve(config.model))), config.data.sequence_length)
    made.load_state_dict(whole_weights(config))
    loss = F.cross_entropy(made(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    return loss.item(), gradients(made, loss)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_each_document_is_computed_as_if_alone(folder: str, kv_heads: int, recompute: Recompute) -> None:
    config = small(data__path=folder, data__documents="masked", model__kv_heads=kv_heads, model__layers=2)
    windows = torch.from_numpy(open_corpus(config.data, 0).training(0, 2))
    axes = Axes(TensorParallel(), WholeSequence(), LocalExperts())
    decoder = Decoder(resolve(config.model), range(2), axes, sequence_length=64, masked=True,
                      activations=Activations(recompute))  # fmt: skip
    decoder.load_state_dict(whole_weights(config))
    loss = decoder.loss(decoder(windows[:, :-1]), windows[:, 1:])
    ours = gradients(decoder, loss)
    right_loss, right = oracle(config, OneByOne, windows)
    _, joined = oracle(config, plain.PlainDecoder, windows)
    assert loss.item() == pytest.approx(right_loss, abs=1e-5, rel=0)
    assert max((ours[name] - right[name]).abs().max().item() for name in right) < 1e-5
    assert max((joined[name] - right[name]).abs().max().item() for name in right) > 1e-3


@pytest.mark.parametrize(
    "values",
    [
        {"parallel__pp": 2},
        {"parallel__cp": 2},
        {"model__workload": "vision"},
        *(
            {"schedule__kind": kind, "schedule__chunks": 2}
            for kind in ("layered", "breadth_first", "interleaved")
        ),
    ],
)
def test_what_has_no_whole_sequence_of_tokens_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(LayoutError, match=r"data\.documents='masked'"):
        check(small(data__documents="masked", **values))


def test_every_document_begins_with_its_border_and_loses_nothing(folder: str) -> None:
    corpus = open_corpus(small(data__path=folder, data__documents="masked").data, 0)
    text = b"".join(part.tobytes() for part in corpus.parts)
    files = [file.read_bytes() for file in sorted(Path(folder).iterdir())]
    assert text == b"".join(b"\xff" + file for file in files)
    assert len(open_corpus(small(data__documents="masked").data, 0).parts) > 100
