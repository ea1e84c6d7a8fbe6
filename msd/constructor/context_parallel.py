"""A row, cut into what each context-parallel rank holds."""

# T = tokens of a row. C = ranks on the slice axis.

from typing import Any

from msd.core.arrays import Int64Array
from msd.core.batch import TOKEN_FIELDS, Microbatch


def slice_row(row: Microbatch, position_CT: Int64Array) -> tuple[Microbatch, ...]:
    """Return the slice of each rank on the axis: token arrays are cut, boundaries and images stay the whole row's.

    The slices are views into one reordered copy of the row.

    Args:
        row: A whole row, with all its fields.
        position_CT: The positions that each rank holds; see `msd.core.slices`.
    """
    reordered: dict[str, Any] = {name: getattr(row, name)[position_CT] for name in TOKEN_FIELDS}
    return tuple(
        Microbatch(
            **{name: array_CT[index] for name, array_CT in reordered.items()},
            num_tokens=position_CT.shape[1],
            cu_seqlens=row.cu_seqlens,
            cu_seqlens_padded=row.cu_seqlens_padded,
            max_seqlen=row.max_seqlen,
            images=row.images,
        )
        for index in range(len(position_CT))
    )
