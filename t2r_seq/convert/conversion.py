"""Conversions that can be killed, go on, and be checked.

What the target has committed is where a conversion goes on. A folder
`<destination>.conversion` beside it says what was asked for: `conversion.json`, which
also tells whether it is finished, and `spec.json`, the specs of the episodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, files, specs
from t2r_seq.convert import opening
from t2r_seq.convert.opening import ConversionOptions
from t2r_seq.convert.selected import SelectedSource, check_same_specs
from t2r_seq.episodes import episodes
from t2r_seq.episodes.episodes import Episode, Episodes, EpisodeWriter
from t2r_seq.episodes.views import Dropped
from t2r_seq.progress import Progress
from t2r_seq.store import EpisodeStore, layout, manifest

FORMAT = "t2r_seq.conversion"
VERSION = 1
_COMMIT_EPISODES = 100
_COMMIT_BYTES = 1 << 26
_MAX_NAMED = 20


@dataclasses.dataclass(frozen=True)
class ConversionReport:
  """What a conversion, or a check of one, did.

  Attributes:
    source_kind: such as 'store'; all are those of `t2r_seq convert --from`.
    destination_kind: likewise, of `--to`.
    num_episodes: of the destination.
    num_steps: of all episodes.
    num_bytes: of the values that were read.
    resumed_at: how many episodes earlier runs had converted.
    notes: what should be known of how the source was read; sentences.
    files: the files, or the folder, of the destination.
  """

  source_kind: str
  destination_kind: str
  num_episodes: int
  num_steps: int
  num_bytes: int
  resumed_at: int
  notes: tuple[str, ...] = ()
  files: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a conversion was asked for.

  Attributes:
    source: its path, for people.
    source_kind: see `ConversionReport`.
    destination_kind: likewise.
    options: JSON values; a conversion goes on only with the same ones.
    fingerprint: of the source; a conversion goes on only with the same one.
    source_spec: JSON of the flat specs that the source is read with.
    is_finished: the destination is complete.
  """

  source: str
  source_kind: str
  destination_kind: str
  options: dict[str, Any]
  fingerprint: dict[str, Any]
  source_spec: str
  is_finished: bool = False


class ConversionFolder:
  """Keeps, beside a destination, what a conversion needs to go on and to be checked.

  Attributes:
    path: of the folder.
  """

  def __init__(self, destination: str) -> None:
    """Names the folder, and makes nothing."""
    self.path = opening.conversion_folder(destination)

  @property
  def work(self) -> str:
    """Where a target keeps what is not yet whole; gone when it is."""
    return os.path.join(self.path, "work")

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """Makes the folder, and keeps other conversions out.

    Raises:
      ConversionError: another process is at it.
    """
    files.make_folders(self.path)
    lock = files.FileLock(
      os.path.join(self.path, "lock"),
      lambda owner: errors.ConversionError(
        f"convert: {self.path}: expected no other process at this conversion, got "
        f"{owner}. Wait for it to end."
      ),
    )
    try:
      yield
    finally:
      lock.release()

  def read(self) -> tuple[Plan, specs.TensorSpecStruct] | None:
    """Returns the plan and the specs of the episodes; None if there is none.

    Raises:
      ConversionError: it is damaged, or of a newer version.
    """
    place = os.path.join(self.path, "conversion.json")
    try:
      with open(place, "rb") as file:
        values = json.loads(file.read())
      if values.pop("format") != FORMAT or values.pop("version") != VERSION:
        raise ValueError("another format or version")
      plan = Plan(**values)
      if not all(isinstance(v, dict) for v in (plan.options, plan.fingerprint)):
        raise ValueError("options or a fingerprint that are no objects")
      with open(os.path.join(self.path, "spec.json"), encoding="utf-8") as text:
        return plan, specs.TensorSpecStruct.from_json(text.read())
    except (FileNotFoundError, NotADirectoryError):
      return None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
      raise errors.ConversionError(
        f"convert: {place}: expected the plan of a conversion, version {VERSION}, got "
        f"{error!r:.120}. Delete {self.path} and the destination, and start anew."
      ) from error

  def write(self, plan: Plan, spec: specs.TensorSpecStruct) -> None:
    """Replaces the plan."""
    values = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(plan)}
    files.replace_file(os.path.join(self.path, "spec.json"), spec.to_json().encode())
    text = json.dumps(values, indent=2).encode() + b"\n"
    files.replace_file(os.path.join(self.path, "conversion.json"), text)


@gin.configurable
def convert(
  source: str | os.PathLike[str],
  destination: str | os.PathLike[str],
  spec: specs.SpecStructure | None = None,
  options: ConversionOptions | None = None,
  source_kind: str | None = None,
  destination_kind: str | None = None,
  progress: Progress | None = None,
) -> ConversionReport:
  """Converts episodes between a store and LeRobot, TFRecord, zarr or HDF5.

  One of the two sides is a store. A conversion that was killed goes on when it is
  called again, and gives the same files as one that was not.

  Args:
    source: a store, a folder of LeRobot's, TFRecord files (a pattern), a zarr group or
      an HDF5 file; or a TFDS dataset.
    destination: what to make.
    spec: flat specs of the source; for TFRecord files None proposes them from a look
      at all records, for the others it takes all paths.
    options: see `ConversionOptions`.
    source_kind: see `ConversionReport`, if what is there doesn't tell; 'tfds' by way
      of TFDS; 'rlds' for specs that say nothing of RLDS.
    destination_kind: likewise, if the name doesn't tell.
    progress: shows how far it is; None shows nothing.
  Returns:
    What was done. Of a conversion that was finished before, nothing is read again.
  Raises:
    ConversionError: something else is at the destination, the source or the options
      changed since an earlier run, or an episode cannot be converted; says which.
    SpecError: the specs don't fit; with every path.
    ImportError: an extra is not installed; names it.
  """
  errors.check_local("convert", destination)
  source, destination = os.fspath(source), os.path.normpath(os.fspath(destination))
  options = options or ConversionOptions()
  from_kind = opening.source_kind(source, source_kind)
  to_kind = opening.destination_kind(destination, from_kind, destination_kind)
  if os.path.realpath(source) == os.path.realpath(destination):
    raise errors.ConversionError(
      f"convert: {destination}: expected another place than the source, got the source."
    )
  folder = ConversionFolder(destination)
  begun = folder.read()
  if begun is None:
    opening.check_vacant(to_kind, destination, options)
    plan, reader = _new_plan(source, from_kind, to_kind, spec, options)
    opening.check_target(to_kind, destination, reader, options)
  else:
    plan, columns = begun
    _check_same_plan(folder, plan, source, from_kind, to_kind, spec, options)
  with folder.locked():
    if begun is not None:
      reader = _reopen(source, options, plan, columns, keeps_videos=True)
      _check_same_source(folder, plan, source, reader)
    elif folder.read() is None:
      folder.write(plan, reader.spec)
    else:
      raise errors.ConversionError(
        f"convert: {folder.path}: expected a new conversion, got one that another "
        "process has begun. Run it again to go on with that."
      )
    resumed_at, num_bytes = None, 0
    if not plan.is_finished:
      target = opening.open_target(to_kind, destination, folder.work, reader, options)
      resumed_at = target.num_committed
      num_bytes = _copy(source, reader, target, progress)
      _check_same_source(folder, plan, source, reader)
      opening.write_splits(to_kind, destination, reader, options)
      folder.write(dataclasses.replace(plan, is_finished=True), reader.spec)
    # An earlier run may have been killed before it did.
    shutil.rmtree(folder.work, ignore_errors=True)
    return _report(plan, reader, destination, options, num_bytes, resumed_at)


def verify_conversion(
  source: str | os.PathLike[str],
  destination: str | os.PathLike[str],
  progress: Progress | None = None,
) -> ConversionReport:
  """Reads both sides of a finished conversion, and compares every value.

  Args:
    source: of the conversion.
    destination: of the conversion.
    progress: shows how far it is; None shows nothing.
  Returns:
    What was read.
  Raises:
    ConversionError: no finished conversion, or episodes whose content is another; with
      each of them, up to 20.
    SpecError: a side cannot be read.
  """
  source, destination = os.fspath(source), os.path.normpath(os.fspath(destination))
  folder = ConversionFolder(destination)
  begun = folder.read()
  if begun is None or not begun[0].is_finished:
    raise errors.ConversionError(
      f"convert: {destination}: expected a finished conversion to verify, got "
      f"{'one that is not' if begun else 'nothing in ' + folder.path}. Run it without "
      "--verify first."
    )
  plan, spec = begun
  options = ConversionOptions(**plan.options)
  reader = _reopen(source, options, plan, spec)
  kind = plan.destination_kind
  written = opening.open_written(kind, destination, spec, options)
  lossy = opening.lossy_paths(plan.source_kind, kind, spec, options)
  operation = f"convert: comparing {source} and {destination}"
  num_bytes = _compare(operation, reader, written, lossy, progress)
  return _report(plan, reader, destination, options, num_bytes)


def _new_plan(
  source: str,
  source_kind: str,
  destination_kind: str,
  spec: specs.SpecStructure | None,
  options: ConversionOptions,
) -> tuple[Plan, Episodes]:
  """Plans a conversion that begins, and opens its source with the wanted paths."""
  dropped = Dropped(options.drop)
  wanted = None
  if spec is not None:
    wanted = dropped.filter(specs.flatten_spec_structure(spec))
  is_parsed = source_kind in (opening.TFRECORD, opening.RLDS)
  reader = opening.open_source(
    source_kind, source, options, wanted if is_parsed else None, dropped
  )
  reader = opening.keep_videos(reader, source_kind, destination_kind, options)
  selected = dropped.filter(reader.spec)
  if wanted is not None and not is_parsed:
    selected = check_same_specs(f"convert: {source}", wanted, selected)
  kept = {p: how for p, how in reader.kept_videos.items() if p in selected}
  layout.make_columns(f"convert: {source}", selected, kept)
  if reader.num_episodes == 0:
    raise errors.ConversionError(
      f"convert: {source}: expected at least one episode, got none."
    )
  plan = Plan(
    source=_full_name(source, source_kind),
    source_kind=source_kind,
    destination_kind=destination_kind,
    options=options.to_json_dict(),
    fingerprint=reader.fingerprint(),
    source_spec=reader.spec.to_json(),
  )
  return plan, SelectedSource(reader, selected, options.decode_images, options.cast)


def _reopen(
  source: str,
  options: ConversionOptions,
  plan: Plan,
  spec: specs.TensorSpecStruct,
  keeps_videos: bool = False,
) -> Episodes:
  """Opens the source of a conversion as it was opened when it began.

  To be compared it gives the frames of videos that are kept.
  """
  source_spec = specs.TensorSpecStruct.from_json(plan.source_spec)
  dropped = Dropped(options.drop)
  reader = opening.open_source(plan.source_kind, source, options, source_spec, dropped)
  if keeps_videos:
    kinds = (plan.source_kind, plan.destination_kind)
    reader = opening.keep_videos(reader, *kinds, options)
  missing = [path for path in spec if path not in reader.spec]
  if missing:
    raise errors.ConversionError(
      f"convert: {source}: expected what {plan.source} had when the conversion began, "
      f"got nothing at {errors.listing(missing)}."
    )
  # The shape of one number is the user's choice: () or (1,).
  wanted = specs.TensorSpecStruct(
    (path, specs.ExtendedTensorSpec.from_spec(reader.spec[path], shape=leaf.shape))
    for path, leaf in spec.items()
  )
  return SelectedSource(reader, wanted, options.decode_images, options.cast)


def _check_same_plan(
  folder: ConversionFolder,
  plan: Plan,
  source: str,
  source_kind: str,
  destination_kind: str,
  spec: specs.SpecStructure | None,
  options: ConversionOptions,
) -> None:
  """Checks that a conversion goes on as it began.

  Raises:
    SpecError: with every difference.
  """
  operation = f"convert: {folder.path}"
  found = options.differences(plan.options)
  for name, began, now in (
    ("source", plan.source_kind, source_kind),
    ("destination", plan.destination_kind, destination_kind),
  ):
    if began != now:
      hint = "Delete the destination and this folder, or choose another destination."
      want = f"{began}, as it began"
      found.append(errors.Mismatch(f"kind of the {name}", want, now, hint))
  if found:
    raise errors.mismatch_error(operation, found, errors.ConversionError)
  if spec is not None:
    wanted, _ = _new_plan(source, source_kind, destination_kind, spec, options)
    begun_spec, wanted_spec = (
      specs.map_leaves(specs.frame_spec, specs.TensorSpecStruct.from_json(text))
      for text in (plan.source_spec, wanted.source_spec)
    )
    columns = layout.make_columns(operation, begun_spec)
    manifest.check_spec(operation, wanted_spec, columns, True)


def _check_same_source(
  folder: ConversionFolder, plan: Plan, source: str, reader: Episodes
) -> None:
  if reader.fingerprint() == plan.fingerprint:
    return
  now = _full_name(source, plan.source_kind)
  if now != plan.source:
    raise errors.ConversionError(
      f"convert: {folder.path}: expected the source that it was begun from, "
      f"{plan.source}, got {now}. Name that one; or delete the destination and this "
      "folder, or choose another destination."
    )
  raise errors.ConversionError(
    f"convert: {plan.source}: expected the data that the conversion began with, got "
    "files of other sizes or times: the source changed. Delete the destination and "
    f"{folder.path}, and start anew."
  )


def _full_name(source: str, kind: str) -> str:
  return os.path.abspath(source)


def _copy(
  name: str, reader: Episodes, target: EpisodeWriter, progress: Progress | None
) -> int:
  """Appends the episodes that a target does not have; returns their bytes."""
  try:
    num_bytes = _append_all(name, reader, target, progress)
    target.finish()
  except BaseException:
    # Whole episodes are kept, whatever went wrong after them.
    with contextlib.suppress(OSError, errors.SpecError):
      target.commit()
    with contextlib.suppress(OSError, errors.SpecError):
      target.close()
    raise
  return num_bytes


def _append_all(
  name: str, reader: Episodes, target: EpisodeWriter, progress: Progress | None
) -> int:
  start = index = target.num_committed
  uncommitted = size = num_bytes = 0
  if progress:
    progress.start("converting", start, reader.num_episodes)
  for index, episode in enumerate(reader.iterate(start), start + 1):
    try:
      target.append(episode.values)
    except errors.SpecError as error:
      raise errors.ConversionError(
        f"convert: episode {index - 1} ({episode.place}): {error}"
      ) from error
    of_episode = episodes.num_bytes(episode.values)
    uncommitted, size = uncommitted + 1, size + of_episode
    num_bytes += of_episode
    if uncommitted == _COMMIT_EPISODES or size >= _COMMIT_BYTES:
      target.commit()
      uncommitted = size = 0
    if progress:
      progress.advance(of_episode, episode.done)
  if not index:
    raise errors.ConversionError(
      f"convert: {name}: expected at least one episode, got none."
    )
  return num_bytes


def _compare(
  operation: str,
  reader: Episodes,
  written: Episodes,
  lossy: frozenset[str],
  progress: Progress | None,
) -> int:
  """Compares the episodes of both sides, but the values of lossy paths."""
  counts, num_bytes, num_others = [0, 0], 0, 0
  found: list[errors.Mismatch] = []
  if progress:
    progress.start("checking", 0, written.num_episodes)
  both = itertools.zip_longest(reader, written)
  for index, (one, other) in enumerate(both):
    counts[0] += one is not None
    counts[1] += other is not None
    if one is None or other is None:
      continue
    for path in _differing(one, other, lossy):
      num_others += 1
      if num_others <= _MAX_NAMED:
        want, got = f"the values of {one.place}", f"others in {other.place}"
        found.append(errors.Mismatch(f"episode {index}: {path}", want, got))
    of_episode = episodes.num_bytes(one.values)
    num_bytes += of_episode
    if progress:
      progress.advance(of_episode, one.done)
  if counts[0] != counts[1]:
    want, got = f"{counts[0]}, as the source has", str(counts[1])
    found.append(errors.Mismatch("number of episodes", want, got))
  if num_others > _MAX_NAMED:
    got = f"others at {num_others - _MAX_NAMED} more paths of episodes"
    found.append(errors.Mismatch("further episodes", "the same values", got))
  if found:
    raise errors.mismatch_error(operation, found, errors.ConversionError)
  return num_bytes


def _differing(one: Episode, other: Episode, lossy: frozenset[str]) -> Iterator[str]:
  """Yields the paths at which two episodes differ, in the bits of their values."""
  for path in sorted({*one.values, *other.values}):
    if (
      path not in one.values
      or path not in other.values
      or not _is_same(one.values[path], other.values[path], path in lossy)
    ):
      yield path


def _is_same(one: np.ndarray, other: np.ndarray, is_lossy: bool) -> bool:
  a, b = (v.astype(v.dtype.newbyteorder("="), copy=False) for v in (one, other))
  if a.dtype != b.dtype or a.shape != b.shape or is_lossy:
    return a.dtype == b.dtype and a.shape == b.shape
  if a.dtype == object:
    return bool(a.tolist() == b.tolist())
  return a.tobytes() == b.tobytes()  # A NaN is one only if it has the same bits.


def _report(
  plan: Plan,
  reader: Episodes,
  destination: str,
  options: ConversionOptions,
  num_bytes: int,
  resumed_at: int | None = None,
) -> ConversionReport:
  """Says what there is; all of it was there by default."""
  kind = plan.destination_kind
  opening.check_there(kind, destination, options)
  # One of the two sides is a store, which knows.
  ends = [] if reader.lengths is None else np.cumsum(reader.lengths).tolist()
  if kind == opening.STORE:
    ends = EpisodeStore(destination).episode_ends.tolist()
  return ConversionReport(
    plan.source_kind,
    kind,
    len(ends),
    ends[-1] if ends else 0,
    num_bytes,
    len(ends) if resumed_at is None else resumed_at,
    (*reader.notes, *reader.problems),
    tuple(opening.destination_files(kind, destination, options)),
  )
