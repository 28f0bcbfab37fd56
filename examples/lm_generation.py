# SPDX-License-Identifier: BSD-3-Clause
"""Text that the deployed models of ``language_model.py`` write, and how fast they do."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_decoder import Cache, Decoder
from minilm_speed import measure

BATCHES = (1, 32)
ROUNDS = 5


def deployed(model: Decoder, dtype: torch.dtype) -> Decoder:
    """Return a copy for evaluation, whose floating weights and products have ``dtype``.

    Integers stay as they are, and so do buffers: scales, and the tables of rotary positions.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model


@dataclass(frozen=True)
class Decoded:
    """How fast a scheme's model writes text.

    Attributes:
        scheme: Its name.
        batch: Texts at a time.
        tokens_per_second: Of all texts together; the prompt is not in it.
        faster: How many times as fast as the first model: the median over the rounds.
        how: ``CUDA graph``, or ``eager``, with the reason where a graph failed.
    """

    scheme: str
    batch: int
    tokens_per_second: float
    faster: float
    how: str


class Decoding:
    """Writes the most likely next bytes after a prompt, again and again.

    On a GPU one step is a CUDA graph, which is replayed for each byte.

    Args:
        model: For evaluation; its stream has the dtype of its embedding.
        prompt: int64 ``[batch, time]``.
        count: Bytes to write; with the prompt less than the context.
    """

    @torch.inference_mode()
    def __init__(self, model: Decoder, prompt: Tensor, count: int) -> None:
        batch, self.start = prompt.shape
        self.model, self.count = model, count
        self.cache = Cache(model.size, batch, prompt.device, model.embedding.weight.dtype)
        self.text = torch.zeros(
            batch, model.size.context, dtype=torch.int64, device=prompt.device
        )  # [batch, context]
        self.text[:, : self.start] = prompt
        self._write(model(prompt, self.cache))
        self.how, self.graph = "eager", None
        if prompt.is_cuda:
            try:
                self.graph, self.how = self._captured(), "CUDA graph"
            except RuntimeError as error:
                self.how = f"eager, because a CUDA graph failed: {str(error).splitlines()[0]}"

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Return the graph of one step."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()  # what is made once, such as the workspace of a product, is made before
            self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph

    def _step(self) -> None:
        """Read the last byte, and write the one after it."""
        last = self.text.index_select(1, self.cache.length)
        self._write(self.model(last, self.cache))

    def _write(self, logits: Tensor) -> None:
        self.text.index_copy_(1, self.cache.length, logits[:, -1:].argmax(dim=-1))

    @torch.inference_mode()
    def __call__(self, first: Tensor) -> Tensor:
        """Return the bytes ``[batch, count]`` that follow the prompt and ``first``, one of each."""
        self.cache.length.fill_(self.start)
        self.text[:, self.start : self.start + 1] = first
        for _ in range(self.count):
            self._step() if self.graph is None else self.graph.replay()
        return self.text[:, self.start + 1 : self.start + 1 + self.count]


def decoding_speeds(models: Mapping[str, Decoder], windows: Tensor) -> list[Decoded]:
    """Measure the models in turns.

    Args:
        models: By scheme; the first is what the others are compared with.
        windows: Text, int64 ``[rows, time]``; each row begins with a prompt.
    """
    found = []
    for batch in BATCHES:
        count = next(iter(models.values())).size.context // 4  # for the prompt and what follows it
        rows = windows.repeat(-(-batch // len(windows)), 1)[:batch]
        prompt, first = rows[:, :count], rows[:, count : count + 1]
        decodings = {name: Decoding(model, prompt, count) for name, model in models.items()}
        for name, speed in measure(decodings, {"first": first}, ROUNDS).items():
            pace = batch * count / speed.seconds
            found.append(Decoded(name, batch, pace, speed.faster, decodings[name].how))
    return found


@torch.inference_mode()
def continued(model: Decoder, prompt: str, count: int) -> str:
    """Return the prompt and up to ``count`` bytes that follow it, drawn as the model says."""
    weight = model.embedding.weight
    text = list(prompt.encode())
    generator = torch.Generator().manual_seed(0)
    cache = Cache(model.size, 1, weight.device, weight.dtype)
    new = text
    for _ in range(min(count, model.size.context - len(text))):
        logits = model(torch.tensor([new], device=weight.device), cache)[0, -1].float().cpu()
        new = torch.multinomial((logits / 0.8).softmax(dim=0), 1, generator=generator).tolist()
        text += new
    return bytes(text).decode(errors="replace")
