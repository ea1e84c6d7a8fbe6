"""Plans as tables for pandas."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.planner.explain import plan_table
from msd.planner.lineage import slices_of

if TYPE_CHECKING:
    import pandas


def plan_to_pandas(
    plans: StepPlan | Iterable[StepPlan], orders: Mapping[str, SourceOrder] | None = None
) -> "pandas.DataFrame":
    """Return one row a document of a plan, or of several, from where it came from to who holds which slice of it.

    Columns are those of `plan_table`, and `ranks` (that receive its bucket), `slices` (by slice: the stretches of the
    row that it holds of the document; empty where rows are not sliced), `epoch`, `shard` and `row` with `orders`.

    Args:
        plans: A step, or steps.
        orders: The sequence of each source, such as `engine.orders` of a local engine; a plan alone knows no files.
    """
    import pandas

    entries: list[dict[str, Any]] = []
    for plan in [plans] if isinstance(plans, StepPlan) else plans:
        for document, entry in enumerate(plan_table(plan)):
            entry["ranks"] = plan.consumers_B[entry["bucket"]]
            entry["slices"] = dict(slices_of(plan, document))
            if orders is not None:
                place = orders[entry["source"]].place_of(entry["ordinal"])
                entry |= {"epoch": place.epoch, "shard": place.shard, "row": place.row}
            entries.append(entry)
    return pandas.DataFrame(entries)
