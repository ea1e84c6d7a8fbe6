"""What `msd plan --simulate` prints: predicted seconds of a step, and what they rest on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msd.cli import output

if TYPE_CHECKING:
    from msd.config import Config
    from msd.simulator import Simulation


def simulation_of(config: "Config", settings: Sequence[str], steps: int) -> "Simulation":
    """Return the simulation of a configuration for a trainer given as `name=value` texts.

    Raises:
        ConfigError: If a setting of the trainer cannot mean anything.
    """
    import msd

    return msd.simulate(config, trainer_of(settings), steps=steps)


def trainer_of(settings: Sequence[str]) -> Mapping[str, Any]:
    """Return the trainer's settings from `name=value` texts; values are read as YAML.

    Raises:
        ConfigError: If a text has no `=`, or its value is not YAML.
    """
    import yaml

    from msd.errors import ConfigError

    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--trainer {text!r} must look like encoder=every_rank")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--trainer {text!r}: {value!r} is not a YAML value; quote it") from None
        if isinstance(found[name], str):
            # YAML reads 4e14 as text; 4.0e+14 is what it calls a number.
            found[name] = _number_or_text(found[name])
    return found


def print_simulation(simulation: "Simulation") -> None:
    """Print the assignments compared, then the assumptions."""
    from msd.simulator.assign import ASSIGNMENTS

    output.print_table(
        f"predicted steps on {simulation.mesh.world_size:,} ranks, mean of {simulation.num_steps}",
        ("assignment", "step s", "x dealt", "bubble", "backbone", "encoder", "row", "longest"),
        [_row(simulation, name) for name in simulation.names],
        caption=f"evenly shared, the same work takes {simulation.even_s:.4g} s. x dealt: times faster than samples "
        "dealt in order; bubble: stages waiting in their own pipeline; backbone, encoder: slowest over mean, less 1; "
        "row: costliest microbatch over the mean, all FLOPs; longest: tokens of a microbatch",
    )
    output.print_table(
        "what is compared",
        ("assignment", ""),
        [(name, ASSIGNMENTS[name]) for name in simulation.names],
        text_columns=2,
    )
    output.print_table("assumed", ("",), [(line,) for line in simulation.assumptions()])


def _row(simulation: "Simulation", name: str) -> tuple[object, ...]:
    return (
        name,
        f"{simulation.mean(name):.4g}",
        f"{simulation.speedup(name):.2f}",
        output.percent(simulation.mean(name, "bubble")),
        output.percent(simulation.mean(name, "backbone_imbalance")),
        output.percent(simulation.mean(name, "encoder_imbalance")),
        f"{simulation.mean(name, 'row_ratio'):.2f}",
        output.short(simulation.mean(name, "longest_row")),
    )


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
