# SPDX-License-Identifier: BSD-3-Clause
"""``MultiheadAttention`` whose projections are linear layers, so that they can be quantized."""

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from .shared.arguments import check


class MultiheadAttention(nn.Module):  # type: ignore[misc]
    """``torch.nn.MultiheadAttention`` with a linear layer for each projection.

    PyTorch's module packs three weights into one parameter, and reads the weight of its output
    projection without calling that layer. Here ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``
    are layers that are called, so they can be quantized. Arguments, shapes and results are those of
    PyTorch; there is no fused evaluation, and nested tensors are not taken.

    Args:
        embed_dim: Size of the query and of the output.
        num_heads: The number of heads, a divisor of ``embed_dim``.
        dropout: Probability to drop an attention weight in training.
        bias: Whether the projections have a bias.
        kdim: Size of the key; None: ``embed_dim``.
        vdim: Size of the value; None: ``embed_dim``.
        batch_first: Whether the batch is the first dimension, else the second.
        device: The device of the parameters.
        dtype: The dtype of the parameters.

    Raises:
        ValueError: ``num_heads`` does not divide ``embed_dim``.

    Example:
        >>> attention = baraquant.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(1, 5, 8)
        >>> output, weights = attention(x, x, x)
        >>> output.shape, weights.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 5, 5]))
    """

    embed_dim: Final[int]
    num_heads: Final[int]
    head_dim: Final[int]
    batch_first: Final[bool]
    dropout: float
    _has_views = False  # of the parameters of a packed module

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        fits = num_heads > 0 and embed_dim % num_heads == 0
        wanted = f"num_heads to divide embed_dim ({embed_dim})"
        check("MultiheadAttention", fits, wanted, num_heads)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        # PyTorch's encoder layer reads these attributes before it bypasses the modules; these
        # values prevent that.
        self.in_proj_bias = None
        self._qkv_same_embed_dim = False
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, embed_dim, **options)
        self.k_proj = nn.Linear(self.kdim, embed_dim, **options)
        self.v_proj = nn.Linear(self.vdim, embed_dim, **options)
        self.out_proj = nn.Linear(embed_dim, embed_dim, **options)

    @staticmethod
    def why_not(attention: nn.MultiheadAttention) -> str | None:
        """Return why one of PyTorch's modules cannot be replaced; None if it can."""
        if type(attention).forward is not nn.MultiheadAttention.forward:
            return f"{type(attention).__name__} has a forward of its own"
        if attention.bias_k is not None or attention.add_zero_attn:
            return "there is no quantized form of add_bias_kv and add_zero_attn"
        return None

    @classmethod
    def from_float(cls, attention: nn.MultiheadAttention) -> Self:
        """Return a module with copies of the packed weights; it shares the other parameters.

        Raises:
            ValueError: The module cannot be replaced (:meth:`why_not`).
        """
        new = cls.sharing(attention)
        new.own_memory_()
        return new

    @classmethod
    def sharing(cls, attention: nn.MultiheadAttention) -> Self:
        """Return a module whose parameters are views of the packed ones, where they are aligned.

        Raises:
            ValueError: The module cannot be replaced (:meth:`why_not`).
        """
        reason = cls.why_not(attention)
        if reason is not None:
            raise ValueError(f"MultiheadAttention: {reason}")
        copied = "embed_dim", "num_heads", "dropout", "kdim", "vdim", "batch_first"
        options = {name: getattr(attention, name) for name in copied}
        new = cls(**options, bias=attention.in_proj_bias is not None, device="meta")
        if attention._qkv_same_embed_dim:
            weights = _parts(attention.in_proj_weight)
        else:
            names = "q_proj_weight", "k_proj_weight", "v_proj_weight"
            weights = [getattr(attention, name) for name in names]
        new._has_views = bool(attention._qkv_same_embed_dim)
        biases = [None] * 3 if attention.in_proj_bias is None else _parts(attention.in_proj_bias)
        for projection, weight, bias in zip(new._projections(), weights, biases, strict=True):
            projection.weight, projection.bias = weight, bias
        new.out_proj.weight, new.out_proj.bias = attention.out_proj.weight, attention.out_proj.bias
        new.train(attention.training)
        return new

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def own_memory_(self) -> None:
        """Copy what is still a view of packed parameters, which would stay in memory as a whole."""
        for projection in self._projections() if self._has_views else ():
            for parameter in projection._parameters.values():
                if parameter is None:
                    continue
                if parameter.untyped_storage().nbytes() > parameter.nbytes:
                    parameter.data = parameter.data.clone()
        self._has_views = False

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _projections(self) -> list[nn.Module]:
        return [self.q_proj, self.k_proj, self.v_proj]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the attention weights if requested, as PyTorch's module does."""
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "MultiheadAttention: expected an attn_mask beside is_causal, but got None"
            )
        is_batched = query.dim() == 3
        if not is_batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        q = self._heads(self.q_proj(query))  # [batch, heads, length, head_dim]
        k = self._heads(self.k_proj(key))
        v = self._heads(self.v_proj(value))
        # The hint is enough: a fused kernel then needs no mask.
        is_hint = is_causal and key_padding_mask is None and not need_weights
        mask: Tensor | None = None
        if not is_hint:
            mask = self._mask(q, attn_mask, key_padding_mask)
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / self.head_dim)) @ k.transpose(-2, -1)
            scores = scores if mask is None else scores + mask
            attention = F.dropout(scores.softmax(dim=-1), dropout, dropout > 0.0)
            output = attention @ v
            weights = attention.mean(dim=1) if average_attn_weights else attention
        else:
            output = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_hint)
        output = self.out_proj(output.transpose(1, 2).flatten(2))  # [batch, length, embed_dim]
        if not is_batched:
            output = output.squeeze(0)
            weights = None if weights is None else weights.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights

    def _heads(self, projected: Tensor) -> Tensor:
        shape = [projected.shape[0], projected.shape[1], self.num_heads, self.head_dim]
        return projected.reshape(shape).transpose(1, 2)

    def _mask(
        self, q: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        """Return what is added to the scores ``[batch, heads, length, keys]``, or None."""
        mask: Tensor | None = None
        if attn_mask is not None:
            mask = self._added(attn_mask, q)
            if mask.dim() == 3:  # [batch * heads, length, keys]
                mask = mask.reshape(q.shape[0], self.num_heads, mask.shape[1], mask.shape[2])
        if key_padding_mask is not None:
            padding = self._added(key_padding_mask, q)[:, None, None, :]
            mask = padding if mask is None else mask + padding
        return mask

    def _added(self, mask: Tensor, q: Tensor) -> Tensor:
        if mask.dtype == torch.bool:
            return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -math.inf)
        return mask.to(q.dtype)

    def extra_repr(self) -> str:
        """Return the sizes, for ``repr``."""
        return f"{self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def _parts(packed: nn.Parameter) -> list[nn.Parameter]:
    """Return the thirds of a packed parameter as separate parameters.

    They are views where they begin at multiples of 64 bytes, as memory of their own does: the last
    bits of a product may depend on the alignment of what it multiplies.
    """
    parts = packed.detach().chunk(3)
    is_aligned = parts[0].nbytes % 64 == 0
    return [
        nn.Parameter(part if is_aligned else part.clone(), requires_grad=packed.requires_grad)
        for part in parts
    ]
