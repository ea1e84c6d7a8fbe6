"""Strategies that come with msd, written with the same primitives as a user's own."""

from collections.abc import Mapping

BUILT_IN: Mapping[str, str] = {
    "default": f"{__name__}.packed_lm:packed_lm",
    **{
        name: f"{__name__}.{name}:{name}"
        for name in ("packed_lm", "long_short", "curriculum", "vlm_backbone", "vlm_joint", "vlm_hybrid")
    },
}
"""By the name that a configuration says: where the function is."""
