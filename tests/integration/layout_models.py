"""A tiny decoder, fed by the conventions of each trainer: how it masks, where it shifts, what its kernel writes.

Kernels that leave positions unwritten leave NaN here, so a boundary that covers too little shows in every weight.
"""

# T = tokens of a row. H = heads, K = width of a head. V = vocabulary.

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
VOCAB, DIM, HEADS, MAX_POSITION = 260, 16, 2, 64
# Several test processes share the cores: a thread pool in each costs more than it brings.
torch.set_num_threads(1)


class TinyDecoder(nn.Module):
    """One layer with learned absolute positions, which show where a document's count begins."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(MAX_POSITION, DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens_T: Tensor, position_T: Tensor, attend: Attention) -> Tensor:
        """Return logits [T, V]; `attend` takes and returns [T, H, K]."""
        x = self.tokens(tokens_T) + self.places(position_T)
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(x).chunk(3, dim=-1))
        x = x + self.out(attend(q, k, v).flatten(-2))
        return self.head(x)


def tiny_decoder() -> TinyDecoder:
    """Return the model in float64, always with the same weights."""
    torch.manual_seed(0)
    return TinyDecoder().double()


def internal(model: TinyDecoder, row: dict) -> Tensor:
    """Loss of a row in the layout of this package, summed."""
    segment_T = row["segment_ids"]
    mask_TT = (segment_T[:, None] == segment_T[None]).tril()
    logits = model(row["input_ids"], row["position_ids"], masked(mask_TT))
    return F.cross_entropy(logits, row["labels"], reduction="sum")


def megatron(model: TinyDecoder, row: dict) -> Tensor:
    """Lines of one sequence each, a mask that is True where nothing may be seen, a loss that reads every label."""
    num_lines, length = row["tokens"].shape
    blocked = row.get(
        "attention_mask", torch.ones(length, length, dtype=torch.bool).triu(1).expand(num_lines, 1, -1, -1)
    )

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lines = [part.unflatten(0, (num_lines, length)).transpose(1, 2) for part in (q, k, v)]
        return F.scaled_dot_product_attention(*lines, attn_mask=~blocked).transpose(1, 2).flatten(0, 1)

    logits = model(row["tokens"].flatten(), row["position_ids"].flatten(), attend)
    assert row["labels"].min() >= 0
    losses = F.cross_entropy(logits, row["labels"].flatten(), reduction="none")
    return (losses * row["loss_mask"].flatten()).sum()


def megatron_packed(model: TinyDecoder, *rows: dict) -> Tensor:
    """THD with two lists of boundaries: attention computes real tokens, and padding comes out as zero."""
    params = rows[0]["packed_seq_params"]
    starts, lengths = params["cu_seqlens_q_padded"].tolist(), params["cu_seqlens_q"].diff().tolist()
    assert params["qkv_format"] == "thd"
    # Rotary embeddings are made for this many positions and applied to padded documents.
    assert params["max_seqlen_q"] >= max(end - start for start, end in itertools.pairwise(starts))
    held = [zigzag(starts, index, len(rows)) for index in range(len(rows))]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = torch.zeros_like(q)
        for start, length in zip(starts, lengths, strict=False):
            span = slice(start, start + length)
            mixed[span] = causal(q[span], k[span], v[span])
        return mixed

    whole = {name: gathered([row[name][0] for row in rows], held) for name in ("tokens", "labels", "position_ids")}
    logits = model(whole["tokens"], whole["position_ids"], attend)
    losses = F.cross_entropy(logits, whole["labels"], reduction="none")
    return (losses * gathered([row["loss_mask"][0] for row in rows], held)).sum()


def hf(model: TinyDecoder, row: dict) -> Tensor:
    """Keyword arguments; the model shifts labels, and its kernel knows one list of boundaries."""
    begins = row["position_ids"][0] == 0
    assert begins.nonzero().flatten().tolist() == row["cu_seq_lens_q"][:-1].tolist()
    assert (begins.cumsum(0) - 1 == row["seq_idx"][0]).all()
    attend = varlen(row["cu_seq_lens_q"], row["max_length_q"])
    logits = model(row["input_ids"][0], row["position_ids"][0], attend)
    return F.cross_entropy(logits[:-1], row["labels"][0, 1:], reduction="sum", ignore_index=-100)


def flash(model: TinyDecoder, *rows: dict) -> Tensor:
    """The varlen kernel; over several ranks its zigzag ring, which knows the boundaries of a slice."""
    starts = (rows[0]["cu_seqlens_q"] * len(rows)).tolist()
    held = [zigzag(starts, index, len(rows)) for index in range(len(rows))]
    attend = varlen(torch.tensor(starts), rows[0]["max_seqlen_q"] * len(rows))
    whole = {name: gathered([row[name] for row in rows], held) for name in ("input_ids", "labels", "position_ids")}
    logits = model(whole["input_ids"], whole["position_ids"], attend)
    return F.cross_entropy(logits, whole["labels"], reduction="sum", ignore_index=-100)


def torchtitan(model: TinyDecoder, row: tuple[dict, Tensor]) -> Tensor:
    """Inputs and labels; documents are found by the positions that are 0."""
    inputs, labels = row
    document_T = (inputs["positions"] == 0).cumsum(0)
    logits = model(inputs["input"], inputs["positions"], masked((document_T[:, None] == document_T[None]).tril()))
    assert torch.equal(document_T.bincount()[1:], inputs["cu_seq_q"].diff())
    assert inputs["max_q"] == inputs["cu_seq_q"].diff().max()
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=-100)


def qwen(model: TinyDecoder, row: dict) -> Tensor:
    """As Hugging Face, with text positions first and three directions after, which are equal in a text."""
    text, *places = row["position_ids"]
    assert all(torch.equal(text, place) for place in places)
    return hf(model, row | {"position_ids": text})


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one document, [T, H, K]."""
    return F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in (q, k, v)), is_causal=True).transpose(0, 1)


def masked(may_attend_TT: Tensor) -> Attention:
    """Attention under a mask that is True where a key may be seen."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lines = [part.transpose(0, 1) for part in (q, k, v)]
        return F.scaled_dot_product_attention(*lines, attn_mask=may_attend_TT).transpose(0, 1)

    return attend


def varlen(cu_seqlens: Tensor, max_seqlen: int) -> Attention:
    """A kernel for packed rows: what lies outside the boundaries, or beyond `max_seqlen`, is never written."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = torch.full_like(q, torch.nan)
        for begin, end in itertools.pairwise(cu_seqlens.tolist()):
            span = slice(begin, min(end, begin + max_seqlen))
            mixed[span] = causal(q[span], k[span], v[span])
        return mixed

    return attend


def zigzag(starts: Sequence[int], index: int, degree: int) -> list[int]:
    """Return the positions that a context-parallel rank holds: of each document one chunk and its mirror."""
    held: list[int] = []
    for begin, end in itertools.pairwise(starts):
        chunks = torch.arange(begin, end).chunk(2 * degree) if degree > 1 else [torch.arange(begin, end)]
        numbers = (index, 2 * degree - 1 - index) if degree > 1 else (0,)
        held += [position for number in numbers for position in chunks[number].tolist()]
    return held


def gathered(parts: Sequence[Tensor], held: Sequence[Sequence[int]]) -> Any:
    """Return the whole row of what each rank holds."""
    whole = torch.zeros(sum(map(len, parts)), dtype=parts[0].dtype)
    for part, positions in zip(parts, held, strict=True):
        whole[list(positions)] = part
    return whole
