"""A model of what a row costs, whichever it is: predicts, says when it guesses, is saved without pickle."""

from typing import Any, TypeAlias

from msd.cost.linear import LinearModel
from msd.cost.trees import TreesModel
from msd.errors import ConfigError

RowModel: TypeAlias = LinearModel | TreesModel


def model_from(saved: dict[str, Any]) -> RowModel:
    """Return the model that `as_dict` said, which predicts the same.

    Raises:
        ConfigError: If it is no model.
    """
    kinds: dict[str, type[LinearModel] | type[TreesModel]] = {"linear": LinearModel, "trees": TreesModel}
    try:
        return kinds[saved["kind"]].from_dict(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this is no cost model of this release ({type(error).__name__}: {error}); profile again"
        ) from None
