"""The link between constructors and ranks: a small protocol of our own over Unix sockets and TCP.

A trainer imports this, so it needs numpy and the standard library alone. See `frames` for what is on the wire,
`messages` for what is said, `batches` for how a batch travels, `server` for the side of the run, and
`msd.client.remote` for the side of the trainer.
"""

from msd.client.link.address import Address, kept_token, write_rendezvous
from msd.client.link.batches import Encoded, decode, encode
from msd.client.link.messages import Ended, Load, Moved, NotYet, Place, Stated, Welcome
from msd.client.link.server import LinkHandler, LinkServer

__all__ = [
    "Address",
    "Encoded",
    "Ended",
    "LinkHandler",
    "LinkServer",
    "Load",
    "Moved",
    "NotYet",
    "Place",
    "Stated",
    "Welcome",
    "decode",
    "encode",
    "kept_token",
    "write_rendezvous",
]
