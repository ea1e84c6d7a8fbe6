"""What the coordinator has constructors do, as plain values on their way to `ConstructorActor.perform`."""

from typing import TypeAlias

from msd.coordinator import Coordinator
from msd.coordinator.commands import Assign, Command, Drop, Finish, Refuse, Rewind
from msd.core.state import StateDict, canonical_json
from msd.errors import EngineError, MsdError
from msd.runtime.dask.wire import Wire, plan_to_wire
from msd.runtime.state import run_state

ForConstructor: TypeAlias = Assign | Drop | Finish | Rewind | Refuse


def start_of(coordinator: Coordinator) -> Wire:
    """Return where ranks begin that have taken nothing of the present generation."""
    return {
        "generation": coordinator.generations.generation,
        "first_step": coordinator.first_step,
        "progress": coordinator.progress_before(coordinator.first_step),
    }


def orders_for(
    commands: list[Command], coordinator: Coordinator, identity: StateDict
) -> list[tuple[Command, Wire | None]]:
    """Return each command, and what its constructor is told if it is for one; on the coordinator's own thread."""
    position: Wire | None = None
    found: list[tuple[Command, Wire | None]] = []
    for command in commands:
        if isinstance(command, Rewind) and position is None:
            position = _position(coordinator, identity)
        found.append((command, _order(command, position) if isinstance(command, ForConstructor) else None))
    return found


def plain(error: Exception) -> MsdError:
    """Return an error that can be sent to any process: what users raise may have a class that only they have."""
    if isinstance(error, MsdError) and type(error).__module__.partition(".")[0] == "msd":
        return error
    return EngineError(f"the run failed with {type(error).__name__}: {error}")


def _position(coordinator: Coordinator, identity: StateDict) -> Wire:
    start = start_of(coordinator)
    return {
        "generation": start["generation"],
        "first_step": start["first_step"],
        "position": canonical_json(run_state(start["progress"], identity)),
    }


def _order(command: ForConstructor, position: Wire | None) -> Wire:
    match command:
        case Assign():
            return {
                "kind": "assign",
                "generation": command.generation,
                "version": command.placement_version,
                "number": command.number,
                "plan": plan_to_wire(command.plan),
                "owners": {
                    source: [[ordinal, host, partition] for ordinal, (host, partition) in entries.items()]
                    for source, entries in command.owners.items()
                },
            }
        case Drop():
            return {
                "kind": "drop",
                "generation": command.generation,
                "through": command.through,
                "number": command.number,
            }
        case Finish():
            return {"kind": "finish", "generation": command.generation, "step": command.step}
        case Refuse():
            return {
                "kind": "refuse",
                "generation": command.generation,
                "rank": command.rank,
                "session": command.session,
                "error": plain(command.error),
            }
        case Rewind():
            assert position is not None
            return {"kind": "rewind", **position}
