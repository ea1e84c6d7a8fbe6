"""What a PyTorch training loop iterates, and what its ranks exchange. The only folder that imports torch."""

from msd.client.torch.batch import TorchBatch
from msd.client.torch.exchange import EmbeddingExchange
from msd.client.torch.loader import DataLoader

__all__ = ["DataLoader", "EmbeddingExchange", "TorchBatch"]
