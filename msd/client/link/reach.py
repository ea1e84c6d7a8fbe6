"""From an address to a connection on which a rank is welcome."""

import os
import socket
from collections.abc import Callable
from dataclasses import asdict

from msd.client.link.address import Address, resolve
from msd.client.link.channel import Channel
from msd.client.link.frames import Frame, Kind
from msd.client.link.messages import Place, Stated, Welcome, places_of, value, welcome_of

_HELLO_S = 60.0
"""Whoever serves a rank may have to find out first where the run stands."""


def reach(
    address: str, rank: int, *, client: str, stated: Stated | None, adopt: Callable[[Channel], None]
) -> tuple[Channel, Welcome]:
    """Ask where a rank is served, go to the nearest place and say hello there.

    Args:
        address: Of a registry or constructor, or of a file that names one.
        rank: Of the trainer mesh.
        client: Who speaks for the rank.
        stated: Where it stands if it was connected before: whoever serves it there decides whether it fits. One that
            starts takes the run that the address names, or any.
        adopt: Called with each connection before anything is awaited on it, so that it can be cut; may raise.

    Raises:
        OSError: If it does not work now; worth another try.
        MsdError: If the rank is refused.
    """
    at = resolve(address)
    channel = _dial(at, at.run if stated is None else None, adopt)
    try:
        answer = _ready(channel.ask(Kind.WHERE, {"rank": rank}))
        nearest = _nearest(channel.address, places_of(answer.header))
        if nearest:
            channel = _follow(channel, nearest, adopt)
        hello = {"rank": rank, "client": client, "stated": None if stated is None else asdict(stated)}
        return channel, welcome_of(_ready(channel.ask(Kind.HELLO, hello, patience_s=_HELLO_S)).header)
    except BaseException:
        channel.close()
        raise


def _dial(address: Address, run: str | None, adopt: Callable[[Channel], None]) -> Channel:
    channel = Channel(address)
    try:
        adopt(channel)
        channel.open(run)
    except BaseException:
        channel.close()
        raise
    return channel


def _ready(answer: Frame) -> Frame:
    if answer.kind == Kind.NOT_YET:
        raise ConnectionError(f"it waits for {value(answer.header, 'waits_for', str)}")
    return answer


def _nearest(present: Address, places: list[Place]) -> list[Address]:
    """Return addresses by nearness: sockets of this host, TCP of this host, TCP elsewhere. None says: stay here."""
    here = socket.gethostname()
    ranked: list[tuple[int, Address]] = []
    for place in places:
        for text in place.addresses:
            address = present.at(text)
            if address.path:
                if place.host == here and os.path.exists(address.path):
                    ranked.append((0, address))
            else:
                ranked.append((1 if place.host == here else 2, address))
    if places and not ranked:
        raise ConnectionError(f"it is served on {places[0].host}, which cannot be reached from {here}")
    return [address for _, address in sorted(ranked, key=lambda entry: entry[0])]


def _follow(channel: Channel, nearest: list[Address], adopt: Callable[[Channel], None]) -> Channel:
    """Return a connection to the first address that answers, which may be the present one."""
    for number, address in enumerate(nearest):
        if address == channel.address:
            return channel
        try:
            nearer = _dial(address, channel.run, adopt)
        except OSError as error:
            if number == len(nearest) - 1:
                raise ConnectionError(f"nobody answers at {address}: {error}") from None
        else:
            channel.close()
            return nearer
    return channel
