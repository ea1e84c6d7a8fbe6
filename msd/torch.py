"""What a PyTorch training loop iterates, and what its ranks exchange: `from msd.torch import DataLoader`."""

from msd.client.torch import DataLoader, EmbeddingExchange, TorchBatch

__all__ = ["DataLoader", "EmbeddingExchange", "TorchBatch"]
