"""Which kind of source a name stands for, and whether it has changed."""

from __future__ import annotations

import os
from collections.abc import Iterable

from t2r_seq import errors, records, specs, windows
from t2r_seq.statistics.fingerprints import file_fingerprints
from t2r_seq.statistics.record_source import RecordSource
from t2r_seq.statistics.sources import Source
from t2r_seq.statistics.statistics import Statistics, load_statistics
from t2r_seq.statistics.store_source import StoreSource, is_store
from t2r_seq.statistics.transforms import Transform

_MAX_SHOWN = 10
SourceName = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def open_source(
  source: SourceName,
  spec: specs.SpecStructure | None,
  transform: Transform,
  images: bool,
  compression: str | None = None,
) -> Source:
  """Opens a source; see `compute_statistics`."""
  wanted = transform.wanted if spec is None else windows.flat_specs(spec)
  if is_store(source):
    return StoreSource(os.fspath(source), wanted, images, bool(transform.name))
  return RecordSource(source, wanted, images, bool(transform.name), compression)


def check_statistics(path: str | os.PathLike[str], source: SourceName) -> Statistics:
  """Reads statistics, and checks that their source has not changed since.

  Args:
    path: of the JSON file.
    source: as for `compute_statistics`.
  Returns:
    The statistics.
  Raises:
    SpecError: the file is none of statistics, or the source has changed; every file
      that has is named.
  """
  statistics = load_statistics(path)
  if is_store(source):
    now = StoreSource(
      os.fspath(source), None, images=False, reads_bytes=False
    ).fingerprint
  else:
    now = file_fingerprints(records.get_data_format_and_filenames(source)[1])
  changes = statistics.find_changes(now)
  if changes:
    shown = "; ".join(changes[:_MAX_SHOWN])
    if len(changes) > _MAX_SHOWN:
      shown += f"; {len(changes) - _MAX_SHOWN} changes more"
    raise errors.SpecError(
      f"statistics: {os.fspath(path)}: expected the source that they were computed "
      f"from, got another: {shown}. Compute them again."
    )
  return statistics
