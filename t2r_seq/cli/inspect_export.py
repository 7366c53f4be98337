"""What `t2r_seq inspect` shows of policies: of an export, and of a lite folder."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq.cli import console
from t2r_seq.lite import lite_policy, policy_io

_MOST_FIGURES = 4
_STATE = "policy_state_"
_SHOWN_STATE = {
  "age": "steps of the episode",
  "seed": "of what is drawn",
  "history": "frames that windows look back at",
  "recurrent": "what the network carries",
  "chunk": "the action chunk in execution",
}


@dataclasses.dataclass(frozen=True)
class _TensorRow:
  """A tensor of one environment, as a table shows it."""

  path: str
  shape: Sequence[Any]
  dtype: str
  offsets: Any = None
  note: str = ""

  @property
  def num_bytes(self) -> int:
    """Its size; 0 where that is not known."""
    if self.dtype == "string" or any(size is None for size in self.shape):
      return 0
    return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def render_policy(path: str) -> str | None:
  """Renders a lite folder or the newest export of a folder; None if it is neither."""
  if os.path.exists(os.path.join(path, lite_policy.LAYOUT_FILE)):
    return _render_lite(path)
  names = os.listdir(path)
  if "saved_model.pb" not in names and not any(map(str.isdecimal, names)):
    return None
  from t2r_seq import policies

  found = policies.list_exports(path)
  return _render_export(found[-1].path) if found else None


def _render_lite(path: str) -> str:
  """Renders what a lite folder holds, without TensorFlow."""
  layout = lite_policy.Layout.read(path)
  masked = {window.mask for window in layout.windows.values()}
  features = [
    _TensorRow(
      name,
      leaf.shape,
      leaf.dtype.name,
      layout.windows[name].offsets if name in layout.windows else None,
      "and its mask" if name in layout.windows and layout.windows[name].mask else "",
    )
    for name, leaf in layout.observation.items()
    if name not in masked
  ]
  state = [
    _TensorRow(p, leaf.shape, leaf.dtype.name) for p, leaf in layout.state.items()
  ]
  heading = f"a lite policy of step {layout.global_step:,}, {layout.weights} weights"
  parts = [f"{path}:\n{heading}", _features(features), _state(state)]
  parts.append(console.fill(f"outputs: {', '.join(layout.outputs)}", 0))
  return "\n\n".join([*parts, *_record(layout.record), _sizes(path)])


def _render_export(path: str) -> str:
  """Renders what an export holds; its graph is read, and not run."""
  from t2r_seq import policies, specs
  from t2r_seq.policies import loaded_export
  from t2r_seq.windows.cut import mask_paths

  assets = specs.load_t2r_assets_to_file(loaded_export.assets_path(path))
  spec = specs.TensorSpecStruct.from_proto(assets.feature_spec)
  record = policies.PolicyRecord.load(path)
  masks = mask_paths(spec)
  masked = set(masks.values())
  features = [
    _TensorRow(
      name,
      leaf.frame_shape.as_list(),
      leaf.dtype.name,
      leaf.time_offsets,
      "and its mask" if name in masked else "a sequence" if leaf.is_sequence else "",
    )
    for name, leaf in spec.items()
    if name not in masks
  ]
  signatures = loaded_export.read_signatures(path)
  state = [
    _TensorRow(name, leaf.shape, leaf.dtype.name.replace("object", "string"))
    for name, leaf in (record.state or {}).items()
  ]
  parts = [
    f"{path}:\nan export of step {int(assets.global_step):,}",
    _features(features),
    *([_state(state)] if state else []),
    _signatures(signatures),
    *_record(record.to_fields()),
    _sizes(path),
  ]
  return "\n\n".join(parts)


def _features(leaves: Iterable[_TensorRow]) -> str:
  rows = [
    [leaf.path, leaf.dtype, _shape(leaf.shape), _offsets(leaf.offsets), leaf.note]
    for leaf in leaves
  ]
  header = ["observation", "dtype", "one step", "steps seen, 0 is now", ""]
  return console.format_table(header, rows, (), is_narrow=True)


def _state(leaves: Sequence[_TensorRow]) -> str:
  rows = [
    [
      leaf.path,
      leaf.dtype,
      _shape(leaf.shape),
      f"{leaf.num_bytes:,}",
      _SHOWN_STATE.get(re.split("[_/]", leaf.path)[0], ""),
    ]
    for leaf in sorted(leaves, key=lambda leaf: leaf.path)
  ]
  total = sum(leaf.num_bytes for leaf in leaves)
  table = console.format_table(
    ["state", "dtype", "shape", "bytes", ""], rows, ("bytes",), is_narrow=True
  )
  return f"{table}\n{total:,} bytes are remembered of each environment"


def _signatures(
  signatures: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> str:
  def names(tensors: Mapping[str, Any]) -> str:
    found = [key for key in sorted(tensors) if not key.startswith(_STATE)]
    found += ["the state"] if len(found) < len(tensors) else []
    return ", ".join(found) or "nothing"

  lines = [
    console.fill(f"{name}: takes {names(takes)}, gives {names(gives)}")
    for name, (takes, gives) in sorted(signatures.items())
  ]
  return "\n".join(["signatures:", *lines])


def _record(record: Mapping[str, Any] | None) -> Iterator[str]:
  """Yields how the policy was trained and acts; nothing for older exports."""
  if record is None:
    return
  padding, period = record["padding"], record["control_period"]
  lines = [f"padding: {padding if isinstance(padding, str) else ', '.join(padding)}"]
  if period is not None:
    lines.append(f"control period: {1e3 * period:.4g} ms ({1 / period:.4g} Hz)")
  if execution := record["execution"]:
    averaged = execution["ensemble_decay"]
    how = "" if averaged is None else f", averaged with a decay of {averaged:g}"
    outputs = ", ".join(execution["outputs"])
    lines.append(f"chunks of {outputs}: {execution['num_executed']} executed{how}")
  if sources := record.get("source_preprocessing"):
    listed = policy_io.list_stages(sources)
    lines.append(f"not in the export, done by training's input before: {listed}")
  yield "\n".join(console.fill(line, 0) for line in lines)
  if figures := record.get("normalization"):
    rows = [
      [path, each["mode"], _figures(each["center"]), _figures(each["scale"])]
      for path, each in figures.items()
    ]
    header = ["normalised inside", "mode", "center", "scale"]
    yield console.format_table(header, rows, (), is_narrow=True)


def _sizes(path: str) -> str:
  """Renders how large the files are."""
  places = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
  sizes = {os.path.relpath(place, path): os.path.getsize(place) for place in places}
  rows = [[name, f"{size:,}"] for name, size in sorted(sizes.items())]
  table = console.format_table(["file", "bytes"], rows, ("bytes",), is_narrow=True)
  return f"{table}\n{sum(sizes.values()):,} bytes on disk"


def _shape(shape: Sequence[Any]) -> str:
  return "x".join("?" if size is None else str(size) for size in shape) or "scalar"


def _offsets(offsets: Any) -> str:
  if offsets is None:
    return "the present one"
  if isinstance(offsets, (int, str)):
    return str(offsets)
  shown = [str(offset) for offset in offsets]
  if len(shown) > 8:
    shown = [*shown[:3], "...", *shown[-2:]]
  return " ".join(shown)


def _figures(values: Any) -> str:
  flat = np.ravel(np.asarray(values, np.float64))
  more = f" ... of {flat.size:,}" if flat.size > _MOST_FIGURES else ""
  return " ".join(f"{value:.4g}" for value in flat[:_MOST_FIGURES]) + more
