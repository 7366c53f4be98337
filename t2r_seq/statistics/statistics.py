"""`Statistics`: the figures of a source, and their JSON file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, files, specs
from t2r_seq.specs import serialization
from t2r_seq.statistics import figures, fingerprints
from t2r_seq.statistics.figures import PathStatistics
from t2r_seq.statistics.lengths import LengthStatistics

FORMAT = "t2r_seq.statistics"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Statistics:
  """What is known of the values of a source.

  Attributes:
    kind: of the source: 'records' or 'store'.
    fingerprint: of its files.
    transform: name of what was done to the episodes before; '' for nothing.
    images: whether encoded images were decoded.
    num_items: episodes, or plain records.
    lengths: of the episodes; None for plain records.
    paths: figures by path.
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
    """Says in which files a source differs from the one of these figures."""
    return fingerprints.find_changes(self.fingerprint, fingerprint)

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
    """Writes the JSON file, whole or not at all.

    Args:
      path: of the file, in a folder that is there.
    Raises:
      OSError: it cannot be written.
    """
    try:
      files.replace_file(os.path.abspath(os.fspath(path)), self.to_json().encode())
    except OSError as error:
      hint = "Name a file in a folder that is there and may be written to."
      raise _os_error(path, error, hint) from error


def load_statistics(path: str | os.PathLike[str]) -> Statistics:
  """Reads statistics from their JSON file.

  Args:
    path: of the file.
  Returns:
    The statistics, as they were saved.
  Raises:
    SpecError: the file is none of statistics, is damaged, or of a newer version.
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
    return Statistics(
      kind=str(values["source"]["kind"]),
      fingerprint=dict(values["source"]["fingerprint"]),
      transform=str(values["transform"]),
      images=bool(values["images"]),
      num_items=int(values["num_items"]),
      lengths=_lengths_from_json(values["lengths"]),
      paths={name: _path_from_json(name, p) for name, p in values["paths"].items()},
    )
  except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
    raise _no_statistics(path, f"{type(error).__name__}: {error}") from error


def _os_error(path: str | os.PathLike[str], error: OSError, hint: str) -> OSError:
  reason = error.strerror or str(error)
  return OSError(error.errno, f"statistics: {os.fspath(path)}: {reason}. {hint}")


def _dump(value: Any, indent: str = "") -> str:
  """Writes JSON with a line for each field, and lists on one line."""
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


def _path_to_json(found: PathStatistics) -> dict[str, Any]:
  described: dict[str, Any] = {
    "spec": serialization.spec_to_json_dict(found.spec),
    "kind": found.kind,
    "rows": found.rows,
  }
  if found.kind != figures.NUMBERS:
    return described
  described["per"] = found.per
  for name in (*figures.COUNTS, *figures.MEASURES):
    described[name] = _numbers_to_json(getattr(found, name))
  described["quantiles"] = {
    str(q): _numbers_to_json(numbers) for q, numbers in found.quantiles.items()
  }
  return {**described, "method": found.method, "rank_error": found.rank_error}


def _path_from_json(path: str, described: Mapping[str, Any]) -> PathStatistics:
  spec = serialization.spec_from_json_dict(described["spec"])
  kind, rows = str(described["kind"]), int(described["rows"])
  if kind != figures.NUMBERS:
    return PathStatistics(spec, kind, rows)
  quantiles = {
    float(q): np.asarray(numbers, np.float64)
    for q, numbers in described["quantiles"].items()
  }
  found = PathStatistics(
    spec=spec,
    kind=kind,
    rows=rows,
    per=str(described["per"]),
    **{name: np.asarray(described[name], np.int64) for name in figures.COUNTS},
    **{name: np.asarray(described[name], np.float64) for name in figures.MEASURES},
    quantiles=quantiles,
    method=str(described["method"]),
    rank_error=float(described["rank_error"]),
  )
  try:
    found.check()
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  return found


def _numbers_to_json(numbers: Any) -> Any:
  """Returns nested lists; JSON has no NaN, and None is read back as one."""

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
  return LengthStatistics(
    **{
      **values,
      "quantiles": {float(q): n for q, n in values["quantiles"].items()},
      "edges": tuple(values["edges"]),
      "counts": tuple(values["counts"]),
    }
  )
