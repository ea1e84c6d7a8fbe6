"""Sources without an end among the sequences of a run: how they are made, read, compared with a state, let go of."""

from collections.abc import Mapping

from msd.core.order import SourceOrder
from msd.core.state import StateDict
from msd.core.unbounded import UnboundedOrder
from msd.loader.admitted import AdmittedRows
from msd.sources.config import ReaderConfig
from msd.sources.unending import Unending


def unbounded_order(name: str, source: ReaderConfig, *, seed: int, consumes: bool) -> UnboundedOrder:
    """Return the sequence of a source without an end.

    Args:
        name: Of the source.
        source: Its configuration.
        seed: Of the run.
        consumes: Whether rows may be taken from a queue.

    Raises:
        ConfigError: If the class of a queue cannot be imported.
        SourceError: If its ledger is damaged, or of another source.
    """
    admissions = Unending(name, source, consumes=consumes)
    # What is wrong with a ledger is told now, and what there is of it is known.
    admissions.count()
    return UnboundedOrder(
        seed=seed, source=name, admissions=admissions, shuffle=source.is_shuffled, window=source.window
    )


def admitted_rows(order: UnboundedOrder, *, read_bytes: int) -> AdmittedRows:
    """Return what reads a sequence that `unbounded_order` made."""
    return AdmittedRows(order, _unending(order), read_bytes=read_bytes)


def expect_ledgers(orders: Mapping[str, SourceOrder], progress: StateDict) -> None:
    """Refuse a position in ledgers that are not those of this run.

    Args:
        orders: The sequence of each source.
        progress: A planner's, which was read.

    Raises:
        StateError: If a ledger is shorter than where it was saved, or differs: naming the source and the difference.
    """
    for name, order in orders.items():
        ledger = progress["sources"].get(name, {}).get("ledger")
        if ledger and isinstance(order, UnboundedOrder):
            _unending(order).expect(*ledger)


def close_orders(orders: Mapping[str, SourceOrder]) -> None:
    """Let go of what sequences hold: consumers of queues."""
    for order in orders.values():
        if isinstance(order, UnboundedOrder):
            _unending(order).close()


def _unending(order: UnboundedOrder) -> Unending:
    assert isinstance(order.admissions, Unending), "as unbounded_order makes them"
    return order.admissions
