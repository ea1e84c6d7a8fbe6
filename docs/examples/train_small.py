"""Train a small vision-language transformer on the demo corpus; `docs/tutorials/train.md` explains it line by line.

    msd corpus demo-corpus
    python docs/examples/train_small.py demo-corpus/corpus.yaml --steps 20

One process plays every data-parallel rank in turn: the gradients add up to those of a real run.
"""

# B = sequences of a row. S = tokens of a sequence. T = B * S. H = heads, G = key-value heads. K = width of a head.

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import msd
from msd.build import build_chains


def rotated(x_BHSK: Tensor, position_BS: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with the position in the document (RoPE, Su et al. 2021)."""
    half = x_BHSK.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=x_BHSK.dtype, device=x_BHSK.device) / half)
    angle = (position_BS[..., None] * frequency)[:, None]
    left, right = x_BHSK[..., :half], x_BHSK[..., half:]
    return torch.cat([left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()], dim=-1)


class Block(nn.Module):
    """Attention within documents, with shared key-value heads, then a gated MLP."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.shape = [heads, kv_heads, kv_heads]
        self.head_dim = dim // heads
        self.norm, self.mlp_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv = nn.Linear(dim, sum(self.shape) * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate_up, self.down = nn.Linear(dim, 6 * dim, bias=False), nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: Tensor, position: Tensor, may_attend: Tensor) -> Tensor:
        """Return x of shape [B, S, dim] after one layer; `may_attend` is [B, 1, S, S]."""
        split = self.qkv(self.norm(x)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2).split(self.shape, dim=1)
        q, k, v = rotated(split[0], position), rotated(split[1], position), split[2]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=may_attend, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class SmallTransformer(nn.Module):
    """A decoder over packed rows; image placeholders are replaced by projected patches."""

    def __init__(
        self,
        vocab: int,
        *,
        dim: int = 64,
        layers: int = 2,
        heads: int = 4,
        kv_heads: int = 2,
        patch: int = 14,
        merge: int = 2,
    ) -> None:
        super().__init__()
        self.merge = merge
        self.tokens = nn.Embedding(vocab, dim)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)
        self.patches = nn.Linear(3 * (patch * merge) ** 2, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)

    def embed(self, row: dict) -> Tensor:
        """Return [T, dim]: token embeddings, with each image's merged patches at its placeholders."""
        x = self.tokens(row["input_ids"])
        images = row["images"]
        if images is None:
            return x
        count_I = images["grids"].prod(dim=1) // self.merge**2
        spot = torch.cat(
            [s + torch.arange(n) for s, n in zip(images["starts"].tolist(), count_I.tolist(), strict=True)]
        )
        # Patches come in groups of merge * merge neighbours; one group stands at one placeholder.
        groups = images["pixels"].to(x.dtype).reshape(len(spot), -1) / 127.5 - 1
        return x.index_copy(0, spot, self.patches(groups))

    def loss(self, row: dict, sequence_length: int) -> Tensor:
        """Return the summed cross-entropy over the labelled positions of one microbatch."""
        x = self.embed(row).unflatten(0, (-1, sequence_length))
        position, segment = (row[name].reshape(-1, sequence_length) for name in ("position_ids", "segment_ids"))
        may_attend = (segment[:, :, None] == segment[:, None, :]) & (position[:, None, :] <= position[:, :, None])
        for block in self.blocks:
            x = block(x, position, may_attend[:, None])
        is_labelled = row["labels"] != -100
        logits = self.norm(x).flatten(0, 1)[is_labelled] @ self.tokens.weight.T
        return F.cross_entropy(logits, row["labels"][is_labelled], reduction="sum")


def model_for(config: msd.Config) -> SmallTransformer:
    """Return a model with the vocabulary and image geometry of the configured sources."""
    chains = build_chains(config).values()
    top = [size for chain in chains for size in (chain.vocab_size, chain.image_token) if size is not None]
    geometry = {name: getattr(chain, name) for chain in chains for name in ("patch", "merge") if getattr(chain, name)}
    return SmallTransformer(max(top) + 1, **geometry)


def train_step(
    model: SmallTransformer, optimizer: torch.optim.Optimizer, batches: tuple, sequence_length: int
) -> float:
    """Take one optimizer step over what all ranks received, and return its loss per labelled token."""
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for batch in batches:
        for row in batch.microbatches:
            loss = model.loss(row, sequence_length) / batch.global_num_valid_tokens
            loss.backward()
            total += loss.item()
    optimizer.step()
    return total


def train(config: msd.Config, *, steps: int, lr: float = 3e-3, checkpoint: Path | None = None) -> list[float]:
    """Train up to step `steps`, going on from `checkpoint` if that exists, and return the loss of each step taken."""
    config = config.replace(mesh={"pp": 1, "cp": 1, "tp": 1})
    torch.manual_seed(config.seed)
    model = model_for(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    saved = torch.load(checkpoint, weights_only=True) if checkpoint and checkpoint.exists() else None
    first = saved["step"] if saved else 0
    if saved and first >= steps:
        print(
            f"{checkpoint} stands at step {first}: nothing is left of {steps} steps; raise --steps to go on", flush=True
        )
        return []
    losses = []
    with msd.start(config) as engine:
        num_ranks, left = engine.mesh.world_size, max(0, steps - first)
        ranks = [msd.torch.DataLoader(engine, rank=rank, steps=left) for rank in range(num_ranks)]
        if saved:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            for rank in ranks:
                rank.load_state_dict(saved["loader"])
        for batches in zip(*ranks, strict=True):
            losses.append(train_step(model, optimizer, batches, config.batch.sequence_length))
            tokens = batches[0].global_num_valid_tokens
            print(f"step {batches[0].step:4d}  loss {losses[-1]:.4f}  tokens {tokens}", flush=True)
        if checkpoint is not None:
            state = {"step": first + len(losses), "loader": ranks[0].state_dict()}
            torch.save(state | {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small transformer from the local engine.")
    parser.add_argument("config", nargs="?", type=Path, default=Path("demo-corpus/corpus.yaml"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, help="file to go on from, and to write at the end")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="override a setting")
    options = parser.parse_args()
    train(msd.load_config(options.config, options.set), steps=options.steps, checkpoint=options.checkpoint)
