"""What a training loop iterates."""

from msd.client.client import BatchTransport, RankClient

__all__ = ["BatchTransport", "RankClient"]
