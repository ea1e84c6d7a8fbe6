"""A configuration as YAML with comments that say what was seen and what to change."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from msd.look.look import Finding, Look

_HEAD = """\
# Written by `msd init`. Paths are relative to this file. Next:
#   msd validate THIS     check the files and transform the first rows
#   msd plan THIS --steps 20     what each source will give, how full and how even the batches are
#   msd preview THIS      read the first rows as they will be trained on

seed: 17    # the order of every sample is a function of this file and this number

sources:
"""

_TAIL = """
mixture:
  unit: tokens    # what a weight counts: tokens or samples
  weights: {weights}    # relative shares; 0 leaves a source out

batch:
  sequence_length: {sequence_length}
  global_batch_size: {global_batch_size}    # sequences of a step over all ranks; a multiple of dp * num_microbatches
  packing: {{method: best_fit}}    # concat cuts documents to fill every sequence, none pads one document a sequence
{document_multiple}
mesh: {{dp: {dp}}}    # sizes of the trainer's axes pp, dp, cp, tp
num_microbatches: {num_microbatches}    # per data-parallel rank and step

cost: {{backbone: {{kind: transformer, hidden: 1024, layers: 24}}}}    # your model: what balancing evens out

runtime: {{kind: local}}
"""


def render_yaml(seen: Look, *, base: Path | None, sequence_length: int) -> str:
    """Return the text of a configuration over what was seen.

    Args:
        seen: From `look`.
        base: Folder that the file will lie in, to write local paths relative to it; None writes them absolute.
        sequence_length: Tokens of a training sequence.
    """
    lines = [_HEAD]
    for finding in seen.findings:
        lines.append(_source(finding, base))
    if seen.needs_tokenizer and seen.tokenizer == "bytes":
        lines.append(f"  # tokenizer: {seen.tokenizer_reason}\n")
    for reason in seen.left_out[:20]:
        lines.append(f"  # left out: {_comment(reason)}\n")
    if len(seen.left_out) > 20:
        lines.append(f"  # left out: and {len(seen.left_out) - 20} more\n")
    weights = _flow({finding.name: 1 for finding in seen.findings})
    sizes = {"sequence_length": sequence_length, "global_batch_size": 8, "dp": 1, "num_microbatches": 2}
    sizes |= next((finding.batch for finding in seen.findings if finding.batch), {})
    multiple = sizes.pop("document_multiple", 1)
    written = f"  document_multiple: {multiple}    # as the packed sequences have it\n" if multiple > 1 else ""
    return "".join(lines) + _TAIL.format(weights=weights, document_multiple=written, **sizes)


def _source(finding: Finding, base: Path | None) -> str:
    paths = [_path(path, base) for path in finding.path]
    text = f"  {_flow(finding.name)}:    # {finding.num_files} files, {finding.nbytes:,} bytes\n"
    for reason in (*finding.reasons, *finding.warnings):
        text += f"    # {_comment(reason)}\n"
    if finding.fields:
        described = "; ".join(f"{field.name} ({field})" for field in finding.fields[:12])
        text += f"    # fields: {_comment(described)}\n"
    text += f"    format: {finding.format}\n"
    text += f"    path: {_flow(paths[0] if len(paths) == 1 else paths)}\n"
    if finding.options:
        text += f"    options: {_flow(_with_paths(finding.options, base))}\n"
    text += "    transforms:\n" if finding.transforms else ""
    for transform in finding.transforms:
        text += f"      - {_flow(_with_paths(transform, base))}\n"
    if finding.max_rate is not None:
        text += f"    on_error: {{max_rate: {finding.max_rate:g}}}\n"
    return text


def _with_paths(transform: Mapping[str, Any], base: Path | None) -> dict[str, Any]:
    tokenizer = transform.get("tokenizer")
    changed = {} if tokenizer in (None, "bytes") else {"tokenizer": _path(str(tokenizer), base)}
    return {**transform, **changed}


def _path(path: str, base: Path | None) -> str:
    """Return a path relative to `base`, unless it is a URL or lies far away."""
    if base is None or "://" in path:
        return path
    relative = os.path.relpath(path, base)
    return path if relative.startswith(os.path.join("..", "..", "..")) else relative


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 30, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _comment(text: str) -> str:
    return " ".join(text.split())
