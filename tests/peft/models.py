# SPDX-License-Identifier: BSD-3-Clause
"""Small models of every kind that adapters know, and what the tests of adapters do with them."""

import copy
import importlib
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import baraquant
from tests.support.models.made import quantized
from tests.support.optional_packages import package


class _Later:
    """A package that is imported when it is first used: importing PEFT takes seconds."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        module = package(self.name)
        if self.name == "peft":
            importlib.import_module("baraquant.peft")
        return getattr(module, attribute)


peft, transformers = _Later("peft"), _Later("transformers")
WIDTH, TOKENS = 32, 20
MLP = ("0", "2")  # the paths of the linear layers of mlp()

# All forms that a converted linear layer can take.
SCHEMES: dict[str, Any] = {
    "dynamic": baraquant.W8A8(),
    "dynamic asymmetric": baraquant.W8A8(symmetric=False),
    "static": baraquant.W8A8Static(),
    "static asymmetric": baraquant.W8A8Static(symmetric=False),
    "smoothed dynamic": baraquant.SmoothQuant(),
    "smoothed static": baraquant.SmoothQuant(activation=baraquant.W8A8Static()),
    "weight only": baraquant.W8A16(),
    "4 bits": baraquant.W4A16(group_size=None),
    "4 bits in groups": baraquant.W4A16(group_size=16),
    "4 bits in groups, asymmetric": baraquant.W4A16(group_size=16, symmetric=False),
    "4 bits in groups, int8 input": baraquant.W4A8(group_size=16, group_factors=False),
    "4 bits, int8 input": baraquant.W4A8(group_size=None),
    "rotated dynamic": baraquant.W8A8(rotate=16),
    "rotated static": baraquant.W8A8Static(symmetric=False, rotate=32),
    "rotated 4 bits in groups": baraquant.W4A16(group_size=16, rotate=64),
}


def mlp(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    up, down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    return nn.Sequential(up, nn.GELU(), down).to(dtype)


def of_tokens() -> nn.Module:
    """A table and an mlp, to whose adapters the input needs no gradient."""
    table = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
    return nn.Sequential(OrderedDict(table=table, body=mlp()))


def conv(dimensions: int) -> nn.Module:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    return nn.Sequential(OrderedDict(conv=kind(8, 16, 3, stride=2, padding=1)))


def _built(kind: str, sizes: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    return model(model.config_class(vocab_size=TOKENS, **sizes)).to(dtype)


_SIZES = {
    "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
_WRITES = {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
llama = partial(_built, "LlamaForCausalLM", {**_SIZES, **_WRITES, "num_key_value_heads": 1})
bert = partial(_built, "BertForSequenceClassification", {**_SIZES, "num_labels": 3})
gpt2 = partial(_built, "GPT2LMHeadModel", {"n_embd": WIDTH, "n_layer": 2, "n_head": 2,
    "n_positions": 64, "loss_type": "ForCausalLM", **_WRITES})  # fmt: skip


def inputs(dtype: torch.dtype = torch.float32, rows: int = 6) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(7)).to(dtype)


def base(scheme: str = "dynamic", dtype: torch.dtype = torch.float32) -> Any:
    return quantized(mlp(dtype), SCHEMES[scheme], inputs(dtype, 32))


def tokens(batch: int = 2, length: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, TOKENS, (batch, length), generator=generator)


def adapted(model: nn.Module, targets: Any = "all-linear", **options: Any) -> Any:
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, r=4, **options))


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    if batch.is_floating_point() or not hasattr(model, "config"):
        return (model(batch).float() - 1).square().mean()
    labels = batch[:, 0] % 3 if model.config.model_type == "bert" else batch
    return model(input_ids=batch, labels=labels).loss


def train(model: nn.Module, batch: Tensor, steps: int = 3, loss: Any = loss_of) -> list[float]:
    """The losses of some steps of AdamW."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(steps):
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


def evaluate(model: nn.Module, batch: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        output = model(batch)
    result: Tensor = output if isinstance(output, Tensor) else output.logits
    return result


def base_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that belong to no adapter, and no range that a batch moves."""
    others = ("lora_", "modules_to_save", "input_fake_quant")
    state = copy.deepcopy(model.state_dict())
    return {k: t for k, t in state.items() if not any(part in k for part in others)}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def check_life(
    model: Any, batch: Any, folder: Path, near: float, targets: Any = "all-linear", **options: Any
) -> Any:
    """An adapter trains alone, is saved and loaded with its bits, merges, and comes back.

    It is loaded onto `again`, or onto a copy. Returns the model with the adapter merged into it.
    """
    again = options.pop("again", None) or copy.deepcopy(model)
    before = evaluate(model, batch)
    adapter = adapted(model, targets, **options)
    own = {n: p.detach().clone() for n, p in adapter.named_parameters() if p.requires_grad}
    assert own and all("lora_" in name for name in own)
    if not options and targets == "all-linear":
        assert torch.equal(evaluate(adapter, batch), before), "an adapter starts as nothing"
    integers = base_state(adapter)
    losses = train(adapter, batch, 6)
    assert min(losses[3:]) < losses[0] and same(base_state(adapter), integers)
    parameters = dict(adapter.named_parameters())
    assert all(not torch.equal(parameters[name], old) for name, old in own.items())
    assert all(p.grad is None for name, p in parameters.items() if name not in own)
    after = evaluate(adapter, batch)
    assert after.dtype == before.dtype
    adapter.save_pretrained(folder, save_embedding_layers=False)
    assert all(".lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    loaded = peft.PeftModel.from_pretrained(again, folder)
    assert torch.equal(evaluate(loaded, batch), after)
    if targets == "all-linear":  # PEFT itself casts adapters of tables to new parameters
        assert not any(p.requires_grad for p in loaded.parameters())
    for safe in (False, True):
        adapter.merge_adapter(safe_merge=safe)
        merged = evaluate(adapter, batch)
        assert (merged.float() - after.float()).norm() < near * after.float().norm()
        adapter.unmerge_adapter()
        assert same(base_state(adapter), integers)
        assert torch.equal(evaluate(adapter, batch), after)
    result = adapter.merge_and_unload()
    assert torch.equal(evaluate(result, batch), merged)
    return result


def lora_layers(model: nn.Module) -> Iterator[Any]:
    return (m for m in model.modules() if isinstance(m, peft.tuners.lora.LoraLayer))
