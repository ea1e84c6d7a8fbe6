"""Which loader hosts there are: those that own windows, and shadows that stand by to take over."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msd.coordinator.placement import Placement
from msd.core.allocation import Seating


class Hosts:
    """Bookkeeping of loader hosts. A lost one's windows go to a shadow if there is one, else to those that are left."""

    def __init__(self, placement: Placement, shadows: Iterable[str] = ()) -> None:
        """Begin with the hosts of a placement, and shadows that hold nothing."""
        self.placement = placement
        self._shadows = dict.fromkeys(shadows)
        self._draining: set[str] = set()
        self._is_steered = False
        """Whether somebody gives hosts their loaders: one that comes holds nothing until then."""
        self.orphaned_by: str | None = None
        """The host that was lost last and took all windows with it; None while somebody holds them."""

    @property
    def shadows(self) -> tuple[str, ...]:
        """Hosts that stand by, the first to take over first."""
        return tuple(self._shadows)

    @property
    def all(self) -> tuple[str, ...]:
        """All that are there."""
        return (*self.placement.alive, *self._shadows)

    @property
    def is_sized(self) -> bool:
        """Whether somebody says how many workers loaders have, of some at least."""
        return any(seat.workers for eras in self.placement.eras.values() for one in eras for seat in one.seating.seats)

    def lose(self, host: str) -> bool:
        """Note that a host is gone; return whether rows have other owners now."""
        if host in self._shadows:
            del self._shadows[host]
            return False
        if host not in self.placement.alive:
            return False
        self._draining.discard(host)
        heir = next(iter(self._shadows), None)
        if heir is not None:
            del self._shadows[heir]
            self.placement = self.placement.handed_over(host, heir)
        else:
            self.placement = self.placement.without(host, spared=self._draining)
            if not self.placement.alive:
                self.orphaned_by = host
        return True

    def join(self, host: str, *, is_shadow: bool) -> bool:
        """Note that a host came which holds nothing; return whether rows that nobody prepared have an owner now."""
        if is_shadow and self.orphaned_by is None:
            self._shadows[host] = None
            return False
        self._shadows.pop(host, None)
        was_orphaned, self.orphaned_by = self.orphaned_by is not None, None
        if self._is_steered and not was_orphaned:
            self.placement = self.placement.joined(host)
        else:
            self.placement = self.placement.with_host(host)
        return was_orphaned

    def seat(self, changes: Mapping[str, tuple[int, Seating]]) -> None:
        """Give sources other loaders, each from an ordinal on.

        Seats on hosts that are gone by now are left out: whoever decided had not heard of it yet.
        """
        self._is_steered = True
        for source, (start, seating) in changes.items():
            seats = tuple(seat for seat in seating.seats if seat.host in self.placement.alive)
            if seats:
                self.placement = self.placement.changed(source, replace(seating, seats=seats), start=start)

    def drain(self, host: str) -> None:
        """Note that a host is to go: what others lose does not come to it."""
        if host in self.placement.alive:
            self._draining.add(host)

    def prune(self, released: Mapping[str, int]) -> bool:
        """Forget loaders of which every row was let go; return whether there were any."""
        before, self.placement = self.placement, self.placement.pruned(released)
        return before is not self.placement

    def drained(self) -> tuple[str, ...]:
        """Return the hosts that were to be drained and hold nothing any more; each once."""
        done = tuple(sorted(host for host in self._draining if not self.placement.seats_of(host)))
        for host in done:
            self._draining.discard(host)
            self.placement = self.placement.left(host)
        return done
