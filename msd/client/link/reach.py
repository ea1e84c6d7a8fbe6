"""From an address to a connection on which a rank is welcome."""

import os
import socket
from collections.abc import Callable
from dataclasses import asdict

from msd.client.link.address import Address, is_file, resolve
from msd.client.link.certificates import Certificates
from msd.client.link.channel import Channel
from msd.client.link.frames import Frame, Kind
from msd.client.link.messages import Place, Stated, Welcome, WrongRun, places_of, value, welcome_of

_MOST_NAMED = 4


class Reach:
    """The way of one rank to whoever serves it: one try after the other, until one of them works."""

    def __init__(
        self,
        address: str,
        rank: int,
        *,
        client: str,
        adopt: Callable[[Channel], None],
        waits_for: Callable[[str], None],
        certificates: Certificates | None = None,
    ) -> None:
        """Get ready; nothing is dialled.

        Args:
            address: Of a registry or constructor, or of a file that names one: looked up at each try.
            rank: Of the trainer mesh.
            client: Who speaks for it.
            adopt: Called with each connection before anything is awaited on it, so that it can be cut; may raise.
            waits_for: Called with what the run waits for while it is at work on an answer.
            certificates: Of the rank; None speaks no TLS.
        """
        self._address = address
        self._rank = rank
        self._client = client
        self._adopt = adopt
        self._waits_for = waits_for
        self._certificates = certificates
        self._failed: dict[str, str] = {}

    @property
    def failures(self) -> str:
        """Which addresses were tried since a rank was last welcome, and why each did not work, the latest last."""
        entries = [f"{address} ({why})" for address, why in self._failed.items()]
        left_out = f"{len(entries) - _MOST_NAMED} more, " if len(entries) > _MOST_NAMED else ""
        return left_out + ", ".join(entries[-_MOST_NAMED:])

    def attempt(self, stated: Stated | None) -> tuple[Channel, Welcome]:
        """Ask where the rank is served, go to the nearest place and say hello there.

        Args:
            stated: Where the rank stands if it was connected before: whoever serves it there decides whether it fits.
                One that starts takes the run that the address names, or any.

        Raises:
            OSError: If it does not work now; worth another try. `failures` says what was tried.
            MsdError: If the rank is refused.
        """
        channel = self._registry(stated)
        try:
            answer = _ready(channel.ask(Kind.WHERE, {"rank": self._rank}, self._waits_for))
            nearest = _nearest(channel.address, places_of(answer.header))
            if nearest:
                channel = self._follow(channel, nearest)
            hello = {
                "rank": self._rank,
                "client": self._client,
                "stated": None if stated is None else asdict(stated),
            }
            answer = _ready(channel.ask(Kind.HELLO, hello, self._waits_for))
            welcome = welcome_of(answer.header)
        except OSError as error:
            self._note(str(channel.address), error)
            channel.close()
            raise
        except BaseException:
            channel.close()
            raise
        self._failed.clear()
        return channel, welcome

    def _registry(self, stated: Stated | None) -> Channel:
        try:
            at = resolve(self._address)
        except OSError as error:
            self._note(self._address.partition("?")[0], error)
            raise
        try:
            return self._dial(at, at.run if stated is None else None)
        except WrongRun as error:
            if not is_file(self._address):
                raise
            # A run that was started again at the same place writes its file a moment after it listens.
            self._note(str(at), error)
            raise ConnectionError(str(error)) from None

    def _dial(self, address: Address, run: str | None) -> Channel:
        try:
            channel = Channel(address, self._certificates)
        except OSError as error:
            self._note(str(address), error)
            raise
        try:
            self._adopt(channel)
            channel.open(run)
        except OSError as error:
            self._note(str(address), error)
            channel.close()
            raise
        except BaseException:
            channel.close()
            raise
        return channel

    def _follow(self, channel: Channel, nearest: list[Address]) -> Channel:
        """Return a connection to the first address that answers, which may be the present one."""
        for number, address in enumerate(nearest):
            if address == channel.address:
                return channel
            try:
                nearer = self._dial(address, channel.run)
            except (OSError, WrongRun) as error:
                # Where one of another run answers, ours is gone and its port was given on.
                self._note(str(address), error)
                if number == len(nearest) - 1:
                    raise ConnectionError(f"the run is not at {address}: {reason(error)}") from None
            else:
                channel.close()
                return nearer
        return channel

    def _note(self, address: str, error: Exception) -> None:
        self._failed.pop(address, None)
        self._failed[address] = reason(error)


def _ready(answer: Frame) -> Frame:
    if answer.kind == Kind.NOT_YET:
        raise ConnectionError(f"it waits for {value(answer.header, 'waits_for', str)}")
    return answer


def reason(error: Exception) -> str:
    """Return why something did not work, in few words."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _is_ours(path: str) -> bool:
    """Return whether there is a socket that nobody but us, or who may do anything, can have made."""
    try:
        return os.stat(path).st_uid in (os.geteuid(), 0) or os.geteuid() == 0
    except OSError:
        return False


def _nearest(present: Address, places: list[Place]) -> list[Address]:
    """Return addresses by nearness: sockets of this host, TCP of this host, TCP elsewhere. None says: stay here."""
    here = socket.gethostname()
    ranked: list[tuple[int, Address]] = []
    for place in places:
        for text in place.addresses:
            address = present.at(text)
            if address.path:
                if place.host == here and _is_ours(address.path):
                    ranked.append((0, address))
            else:
                ranked.append((1 if place.host == here else 2, address))
    if places and not ranked:
        raise ConnectionError(f"it is served on {places[0].host}, which cannot be reached from {here}")
    return [address for _, address in sorted(ranked, key=lambda entry: entry[0])]
