"""Embeddings of images travel from the ranks that encode them to those whose rows hold them."""

from typing import Any

import torch
import torch.distributed as dist

from msd.errors import ConfigError


class EmbeddingExchange:
    """Sends embeddings from the ranks that encode images to those whose rows hold them, and gradients back.

    For `strategy: vlm_hybrid`. All ranks of `share["ranks"]` call it once a round, in order, also those that have no
    image to encode or no embedding to receive:

        exchange = msd.torch.EmbeddingExchange()
        for row, share in zip(batch.microbatches, batch.encoder):  # encoder.every: slot
            embeddings = encoder(share["pixels"], share["grids"])
            received = exchange(embeddings, share)
            x = tokens(row["input_ids"]).index_copy(0, share["positions"], received)

    With `encoder.every: step` one round is for all rows: those of row m are `received[share["slots"] == m]`. Either all
    ranks run the backward pass through what they received, also where that is empty, or none: it is a collective too.
    Gradients sum up at the rank that encoded; scale the loss as for the rows.
    """

    def __init__(self, group: Any = None) -> None:
        """Exchange within a process group (gloo, nccl); None is all processes."""
        self._group = group

    def __call__(self, embeddings: Any, share: dict[str, Any]) -> Any:
        """Return the embeddings that this rank receives, in the order of `share["positions"]`: [received, dim].

        Args:
            embeddings: [share["num_embeddings"], dim], of the images that this rank encodes, in their order.
            share: An entry of `TorchBatch.encoder`.

        Raises:
            ConfigError: If these are not the embeddings of the share, or the group has other ranks than the exchange.
        """
        if embeddings.ndim != 2 or len(embeddings) != share["num_embeddings"]:
            raise ConfigError(
                f"the exchange takes embeddings of shape [{share['num_embeddings']}, dim], one for each placeholder of "
                f"the images in share['pixels'], got {list(embeddings.shape)}"
            )
        ranks = dist.get_process_group_ranks(self._group or dist.group.WORLD)
        if ranks != share["ranks"]:
            raise ConfigError(
                f"the process group has ranks {_few(ranks)}, the exchange is among {_few(share['ranks'])}; pass "
                "EmbeddingExchange(torch.distributed.new_group(share['ranks']))"
            )
        return _Exchanged.apply(embeddings, share, self._group)


class _Exchanged(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(ctx: Any, embeddings: Any, share: dict[str, Any], group: Any) -> Any:
        ctx.share, ctx.group, ctx.shape = share, group, embeddings.shape
        sent = embeddings.index_select(0, share["send_rows"])
        return _all_to_all(sent, share["send_counts"], share["receive_counts"], group)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
        share, returns = ctx.share, ctx.share["returns"]
        is_returned = returns[share["ranks"].index(dist.get_rank())]
        counts = [count * is_returned for count in share["receive_counts"]]
        back_counts = [count * flag for count, flag in zip(share["send_counts"], returns, strict=True)]
        came_back = _all_to_all(gradient[: sum(counts)], counts, back_counts, ctx.group)
        pieces = share["send_rows"].split(share["send_counts"])
        rows = torch.cat([piece for piece, flag in zip(pieces, returns, strict=True) if flag])
        return gradient.new_zeros(ctx.shape).index_add_(0, rows, came_back), None, None


def _all_to_all(rows: Any, send_counts: list[int], receive_counts: list[int], group: Any) -> Any:
    received = rows.new_empty(sum(receive_counts), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive_counts, send_counts, group=group)
    return received


def _few(ranks: list[int], shown: int = 8) -> str:
    return f"{ranks}" if len(ranks) <= shown else f"{ranks[:shown]} and {len(ranks) - shown} more"
