"""`Statistics` of a source, their JSON file, and tables of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, files, specs

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
NUMBERS, BYTES, UNSUPPORTED = "numbers", "bytes", "unsupported"
HISTOGRAM, SKETCH = "histogram", "sketch"


@dataclasses.dataclass(frozen=True)
class PathStatistics:
  """Statistics of the finite values of one path; NaNs and infinities are counted.

  Attributes:
    spec: spec of one step, without time offsets.
    kind: 'numbers'; 'bytes' (strings, images that were not decoded) and 'unsupported'
      (complex numbers) are only counted: their statistics are None.
    rows: number of steps; of episodes for a context feature; or of plain records.
    per: level of the statistics: 'element', 'channel' (index of the last axis) or
      'tensor'; '' if values are only counted.
    count: number of finite values, int64, in the shape of all statistics: that of a
      step, of its last axis, or () by `per`.
    nan: number of NaNs, int64.
    posinf: number of positive infinities, int64.
    neginf: number of negative infinities, int64.
    mean: float64; NaN where the count is 0, as are the following.
    std: standard deviation of the values (numpy's ddof=0), float64.
    min: exact minimum: integers for integers and bools if every count is above 0, else
      float64.
    max: exact maximum, as `min`.
    quantiles: float64 by fraction: 0.01, 0.1, 0.5, 0.9, 0.99; values that occur, but
      interpolated ones after pooling.
    method: method of the quantiles: 'histogram' (exact) or 'sketch'.
    rank_error: maximum error of the rank of a quantile, as a fraction of the count; 1
      after pooling.
    transform: the preprocessors or the function that changed the values, such as
      'Relative > Clip'; '' for stored values.
  """

  spec: specs.ExtendedTensorSpec
  kind: str
  rows: int
  per: str = ""
  count: np.ndarray | None = None
  nan: np.ndarray | None = None
  posinf: np.ndarray | None = None
  neginf: np.ndarray | None = None
  mean: np.ndarray | None = None
  std: np.ndarray | None = None
  min: np.ndarray | None = None
  max: np.ndarray | None = None
  quantiles: dict[float, np.ndarray] = dataclasses.field(default_factory=dict)
  method: str = ""
  rank_error: float = 0.0
  transform: str = ""

  def measure(self, name: str) -> np.ndarray:
    """Returns `count` or one of `MEASURES` as float64; SpecError without statistics."""
    values: np.ndarray | None = getattr(self, name)
    if values is None:
      raise errors.SpecError(
        f"statistics: {errors.describe(self.spec)}: expected a path with a {name}, got "
        f"one of {self.kind}, which are only counted."
      )
    return values.astype(np.float64)

  @property
  def rounding_noise(self) -> np.ndarray:
    """Maximum distance of values from their center by rounding alone, float64."""
    low, high = self.measure("min"), self.measure("max")
    spacing = _ROUNDING.get(self.spec.dtype.name, 0.0)
    return spacing * np.maximum(np.abs(low), np.abs(high))

  @property
  def constant(self) -> np.ndarray:
    """Elements that do not move by more than rounding noise, bool."""
    half = (self.measure("max") - self.measure("min")) / 2
    return np.asarray(half <= self.rounding_noise)

  def check(self) -> None:
    """Raises ValueError if shapes differ or values are impossible, as in a bad file."""
    if self.count is None:
      return
    shape, spec_shape = self.count.shape, self.spec.shape
    if (
      len(shape) > spec_shape.rank
      or not spec_shape[spec_shape.rank - len(shape) :] == shape
    ):
      raise ValueError(f"expected numbers of {errors.describe(self.spec)}, got {shape}")
    measures = {name: getattr(self, name) for name in (*COUNTS, *MEASURES)}
    measures |= {f"quantile {q}": values for q, values in self.quantiles.items()}
    for name, values in measures.items():
      if values.shape != shape or np.any(np.isinf(values)):
        got = f"{values.shape} {values.tolist()!s:.80}"
        raise ValueError(
          f"{name}: expected {shape} numbers without infinities, got {got}"
        )
      if name in (*COUNTS, "std") and np.any(values < 0):
        raise ValueError(f"{name}: expected none below 0, got {values.tolist()}")
    if np.any(measures["min"] > measures["max"]):
      raise ValueError(f"min: expected none above max, got {measures['min'].tolist()}")
    if {*self.quantiles} != {*QUANTILES} or not 0 <= self.rank_error <= 1:
      got = f"{[*self.quantiles]} and {self.rank_error}"
      raise ValueError(
        f"expected quantiles {QUANTILES}, a rank_error from 0 to 1, got {got}"
      )

  @property
  def num_not_finite(self) -> int:
    """NaNs and infinities of all elements."""
    counts = (self.nan, self.posinf, self.neginf)
    return sum(int(count.sum()) for count in counts if count is not None)


# Rounding noise relative to the magnitude. The values of a sensor at rest are a few
# neighbouring floats, 8 spacings of float32 and float64, but one of the coarse 16-bit
# formats. Integers are exact, but float64 statistics round those above 2^53.
_ROUNDING = {
  "int64": 2.0**-53,
  "uint64": 2.0**-53,
  "float16": 2.0**-10,
  "bfloat16": 2.0**-7,
  "float32": 2.0**-20,
  "float64": 2.0**-49,
}
COUNTS = ("count", "nan", "posinf", "neginf")
MEASURES = ("mean", "std", "min", "max")


_MAX_BINS = 20


@dataclasses.dataclass(frozen=True)
class LengthStatistics:
  """The lengths of episodes in steps; all values are exact.

  Attributes:
    num_episodes: number of episodes.
    num_steps: number of steps of all episodes.
    min: steps of the shortest episode.
    max: steps of the longest episode.
    mean: mean number of steps.
    quantiles: lengths by fraction: 0.01, 0.1, 0.5, 0.9, 0.99.
    edges: bins of the histogram: bin i counts lengths in [edges[i], edges[i + 1]).
    counts: episodes in each bin.
  """

  num_episodes: int
  num_steps: int
  min: int
  max: int
  mean: float
  quantiles: dict[float, int]
  edges: tuple[int, ...]
  counts: tuple[int, ...]

  @classmethod
  def of(cls, num_episodes: Mapping[int, int]) -> LengthStatistics | None:
    """Makes them of the number of episodes by length; None without episodes."""
    if not num_episodes:
      return None
    lengths, counts = np.asarray(sorted(num_episodes.items()), np.int64).T
    ranks = np.cumsum(counts)
    total, steps = int(ranks[-1]), int(lengths @ counts)
    targets = np.ceil(np.asarray(QUANTILES) * total).clip(1)
    quantiles = lengths[np.searchsorted(ranks, targets)].tolist()
    low, high = int(lengths[0]), int(lengths[-1])
    width = -(-(high - low + 1) // _MAX_BINS)
    edges = np.arange(low, high + width + 1, width)
    bins, _ = np.histogram(lengths, edges, weights=counts)
    return cls(
      num_episodes=total,
      num_steps=steps,
      min=low,
      max=high,
      mean=steps / total,
      quantiles=dict(zip(QUANTILES, quantiles, strict=True)),
      edges=tuple(edges.tolist()),
      counts=tuple(int(count) for count in bins),
    )


_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


def file_fingerprints(filenames: Iterable[str]) -> dict[str, str]:
  """Returns the fingerprints of files.

  They have the size, and a checksum of 16 samples of 64 KiB with the first and the last
  bytes; up to 1 MiB, of the whole file. They have no times: a copy is not a change.
  Names are relative to the folder that the files have in common.
  """
  names = [name if "://" in name else os.path.abspath(name) for name in filenames]
  levels = zip(*(name.split("/")[:-1] for name in names), strict=False)
  num_common = len([*itertools.takewhile(lambda parts: len({*parts}) == 1, levels)])
  return {"/".join(name.split("/")[num_common:]): _fingerprint(name) for name in names}


def _fingerprint(name: str) -> str:
  with tf.io.gfile.GFile(name, "rb") as file:
    size = file.size()
    last = max(size - _SAMPLE_BYTES, 0)
    step = _SAMPLE_BYTES
    if size > _SAMPLES * _SAMPLE_BYTES:
      step = -(-last // (_SAMPLES - 1))
    crc = 0
    for start in [*range(0, last, step), last]:
      file.seek(start)
      crc = zlib.crc32(file.read(_SAMPLE_BYTES), crc)
  return f"{size}-{crc:08x}"


FORMAT = "t2r_seq.statistics"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Statistics:
  """Statistics of a source.

  Attributes:
    kind: kind of the source: 'records' for paths of TFRecord files, 'store', or
      'episodes' for others.
    fingerprint: fingerprints of the source by name of a file or part.
    transform: name of the transform of the episodes, or ''.
    images: whether encoded images were decoded.
    num_items: number of episodes, or of plain records.
    lengths: lengths of the episodes; None for plain records.
    paths: statistics by path.
  """

  kind: str
  fingerprint: dict[str, str]
  transform: str
  images: bool
  num_items: int
  lengths: LengthStatistics | None
  paths: dict[str, PathStatistics]

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The specs of one step, by path."""
    return specs.TensorSpecStruct((path, p.spec) for path, p in self.paths.items())

  def find_changes(self, fingerprint: Mapping[str, str]) -> list[str]:
    """Returns a phrase for each file of the source that has changed, sorted by name."""
    before, changes = self.fingerprint, []
    for name in sorted({*before, *fingerprint}):
      if name not in fingerprint:
        changes.append(f"{name} is gone")
      elif name not in before:
        changes.append(f"{name} is new")
      elif before[name] != fingerprint[name]:
        changes.append(f"{name} has changed")
    return changes

  def to_json(self) -> str:
    """Returns the JSON text; NaN is null."""
    values = {
      "format": FORMAT,
      "version": VERSION,
      "source": {"kind": self.kind, "fingerprint": self.fingerprint},
      "transform": self.transform,
      "images": self.images,
      "num_items": self.num_items,
      "lengths": _lengths_to_json(self.lengths),
      "paths": {path: _path_to_json(p) for path, p in self.paths.items()},
    }
    return _dump(values) + "\n"

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes the JSON file, atomically.

    Raises:
      OSError: the file cannot be written.
    """
    try:
      files.write_output(path, self.to_json().encode())
    except OSError as error:
      hint = "Name a file in a folder that exists and may be written to."
      raise _os_error(path, error, hint) from error


def load_statistics(path: str | os.PathLike[str]) -> Statistics:
  """Reads statistics from their JSON file.

  Raises:
    SpecError: the file has no statistics, is damaged, or of a newer version.
    OSError: the file cannot be read.
  """
  try:
    with open(path, encoding="utf-8") as file:
      values = json.load(file)
    form = values["format"], values["version"]
  except OSError as error:
    raise _os_error(path, error, "`t2r_seq stats SOURCE` writes it.") from error
  except (RecursionError, ValueError) as error:
    raise _no_statistics(path, f"no JSON: {error}") from error
  except (KeyError, TypeError) as error:
    raise _no_statistics(path, "other JSON") from error
  if form != (FORMAT, VERSION):
    is_newer = form[0] == FORMAT
    hint = " Upgrade t2r_seq, or compute them again." if is_newer else ""
    raise _no_statistics(path, f"format {form[0]!r}, version {form[1]!r}", hint)
  try:
    all_paths = str(values["transform"])
    return Statistics(
      kind=str(values["source"]["kind"]),
      fingerprint={k: str(v) for k, v in values["source"]["fingerprint"].items()},
      transform=all_paths,
      images=bool(values["images"]),
      num_items=int(values["num_items"]),
      lengths=_lengths_from_json(values["lengths"]),
      paths={
        # Older files name the transform of all paths only.
        name: _path_from_json(name, {"transform": re.split("[:.]", all_paths)[-1], **p})
        for name, p in values["paths"].items()
      },
    )
  except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
    raise _no_statistics(path, f"{type(error).__name__}: {error}") from error


def _os_error(path: str | os.PathLike[str], error: OSError, hint: str) -> OSError:
  reason = error.strerror or str(error)
  return OSError(error.errno, f"statistics: {os.fspath(path)}: {reason}. {hint}")


def _dump(value: Any, indent: str = "") -> str:
  """Renders JSON with a line for each field, and lists on one line."""
  if not isinstance(value, dict) or not value:
    return json.dumps(value, allow_nan=False)
  inner = f"{indent}  "
  lines = [f"{inner}{json.dumps(k)}: {_dump(v, inner)}" for k, v in value.items()]
  return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _no_statistics(
  path: str | os.PathLike[str], got: str, hint: str = ""
) -> errors.SpecError:
  return errors.SpecError(
    f"load_statistics: {os.fspath(path)}: expected format '{FORMAT}', version "
    f"{VERSION}, got {got}.{hint}"
  )


def _path_to_json(measured: PathStatistics) -> dict[str, Any]:
  described: dict[str, Any] = {
    "spec": measured.spec.to_json_dict(),
    "kind": measured.kind,
    "rows": measured.rows,
    "transform": measured.transform,
  }
  if measured.kind != NUMBERS:
    return described
  described["per"] = measured.per
  for name in (*COUNTS, *MEASURES):
    described[name] = _numbers_to_json(getattr(measured, name))
  described["quantiles"] = {
    str(q): _numbers_to_json(numbers) for q, numbers in measured.quantiles.items()
  }
  return {**described, "method": measured.method, "rank_error": measured.rank_error}


def _path_from_json(path: str, described: Mapping[str, Any]) -> PathStatistics:
  spec = specs.ExtendedTensorSpec.from_json_dict(described["spec"])
  kind, rows = str(described["kind"]), int(described["rows"])
  transform = str(described["transform"])
  if kind != NUMBERS:
    return PathStatistics(spec, kind, rows, transform=transform)
  quantiles = {
    float(q): np.asarray(numbers, np.float64)
    for q, numbers in described["quantiles"].items()
  }
  measured = PathStatistics(
    spec=spec,
    kind=kind,
    rows=rows,
    per=str(described["per"]),
    **{name: np.asarray(described[name], np.int64) for name in COUNTS},
    **{name: np.asarray(described[name], np.float64) for name in ("mean", "std")},
    **{name: _extreme_from_json(described[name]) for name in ("min", "max")},
    quantiles=quantiles,
    method=str(described["method"]),
    rank_error=float(described["rank_error"]),
    transform=transform,
  )
  try:
    measured.check()
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  return measured


def _extreme_from_json(numbers: Any) -> np.ndarray:
  """Returns integers exactly: numpy makes floats of int64 and uint64 in one list."""
  exact = np.asarray(numbers, object)
  if not all(type(number) is int for number in exact.flat):
    return np.asarray(numbers, np.float64)
  is_unsigned = any(number > np.iinfo(np.int64).max for number in exact.flat)
  return exact.astype(np.uint64 if is_unsigned else np.int64)


def _numbers_to_json(numbers: Any) -> Any:
  """Returns nested lists with None for NaN, which JSON does not have."""

  def convert(value: Any) -> Any:
    if isinstance(value, list):
      return [convert(item) for item in value]
    return value if math.isfinite(value) else None

  return convert(numbers.tolist())


def _lengths_to_json(lengths: LengthStatistics | None) -> dict[str, Any] | None:
  if lengths is None:
    return None
  values = dataclasses.asdict(lengths)
  values["quantiles"] = {str(q): n for q, n in lengths.quantiles.items()}
  return values


def _lengths_from_json(values: Mapping[str, Any] | None) -> LengthStatistics | None:
  if values is None:
    return None
  numbers = ("num_episodes", "num_steps", "min", "max")
  mean = float(values["mean"])
  if not math.isfinite(mean):
    raise ValueError(f"lengths: mean: expected a finite number, got {mean}")
  return LengthStatistics(
    **{name: int(values[name]) for name in numbers},
    mean=mean,
    quantiles={float(q): int(n) for q, n in values["quantiles"].items()},
    edges=tuple(map(int, values["edges"])),
    counts=tuple(map(int, values["counts"])),
  )


HEADER = ("path", "one step", "rows", "mean", "std", "min", "1 %", "50 %", "99 %",
          "max", "rank error")  # fmt: skip
_MAX_NOTED = 8


def table_rows(statistics: Statistics, elements: bool = False) -> list[list[str]]:
  """Returns rows of texts under `HEADER`: one per path, or per element of it."""
  rows = []
  for path, measured in statistics.paths.items():
    if elements and measured.count is not None and measured.count.ndim:
      for index in np.ndindex(measured.count.shape):
        name = f"{path}[{', '.join(map(str, index))}]"
        rows.append(_row(name, measured, index))
    else:
      rows.append(_row(path, measured, ...))
  return rows


def describe_lengths(lengths: LengthStatistics) -> str:
  """Describes the lengths of the episodes in a line."""
  values = ", ".join(f"{100 * q:g} %: {n}" for q, n in lengths.quantiles.items())
  return (
    f"{lengths.num_episodes} episodes of {lengths.min} to {lengths.max} steps, mean "
    f"{lengths.mean:.4g}, {lengths.num_steps} in all ({values})"
  )


def describe_problems(statistics: Statistics) -> list[str]:
  """Describes paths without statistics, values that are not finite, and constants."""
  lines = []
  for path, measured in statistics.paths.items():
    if measured.kind == BYTES:
      lines.append(f"{path}: bytes, counted only.")
    elif measured.kind == UNSUPPORTED:
      lines.append(f"{path}: {measured.spec.dtype.name}, counted only.")
    if measured.num_not_finite:
      lines.append(f"{path}: {_not_finite(measured)}. The statistics exclude them.")
    if measured.count is not None and not np.all(measured.count):
      lines.append(f"{path}: no finite value {_where(measured.count == 0)}.")
    if measured.std is not None and measured.count is not None:
      is_constant = measured.constant & (measured.count > 0)
      is_exact = is_constant & (measured.min == measured.max)
      if np.any(is_exact):
        lines.append(f"{path}: constant {_where(is_exact)}.")
      if np.any(is_constant & ~is_exact):
        where = _where(is_constant & ~is_exact)
        lines.append(f"{path}: constant but for rounding noise {where}.")
  return lines


def _row(name: str, measured: PathStatistics, index: Any) -> list[str]:
  step = errors.describe(measured.spec)
  if measured.mean is None:
    return [name, step, str(measured.rows), *[""] * 8]
  quantiles = [measured.quantiles[q] for q in (0.01, 0.5, 0.99)]
  columns = (
    measured.mean,
    measured.std,
    measured.min,
    *quantiles,
    measured.max,
  )
  exact = measured.rank_error == 0
  return [
    name,
    f"{step} per {measured.per}",
    str(measured.rows),
    *(_span(np.asarray(numbers)[index]) for numbers in columns),
    "exact" if exact else f"{100 * measured.rank_error:.2g} %",
  ]


def _span(numbers: Any) -> str:
  if not np.size(numbers) or np.all(np.isnan(numbers)):
    return "-"
  low, high = np.nanmin(numbers), np.nanmax(numbers)
  return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"


def _not_finite(measured: PathStatistics) -> str:
  kinds = {"NaN": measured.nan, "+inf": measured.posinf, "-inf": measured.neginf}
  return ", ".join(
    f"{int(count.sum())} {name} {_where(count > 0)}"
    for name, count in kinds.items()
    if count is not None and count.any()
  )


def _where(mask: np.ndarray) -> str:
  """Names the elements that a mask selects; 'throughout' for a mask of shape ()."""
  if not mask.ndim:
    return "throughout"
  places = np.argwhere(mask)
  indices = places[:, 0].tolist() if mask.ndim == 1 else places.tolist()
  more = f" and {len(indices) - _MAX_NOTED} more" if len(indices) > _MAX_NOTED else ""
  numbers = ", ".join(str(index) for index in indices[:_MAX_NOTED])
  return f"in element{'' if len(indices) == 1 else 's'} {numbers}{more}"
