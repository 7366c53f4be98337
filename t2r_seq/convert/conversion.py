"""Conversions that can be killed, go on, and prove what they wrote."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

import gin

from t2r_seq import errors, specs
from t2r_seq.convert import episodes, opening
from t2r_seq.convert.episodes import (
  Dropped,
  EpisodeSource,
  EpisodeTarget,
  ResumePoint,
  SelectedSource,
  check_same_specs,
)
from t2r_seq.convert.journal import EpisodeLine, Journal, Plan, Progress, episode_digest
from t2r_seq.convert.opening import ConversionOptions
from t2r_seq.store import layout, manifest


def new_plan(
  source: str,
  source_kind: str,
  destination_kind: str,
  spec: specs.SpecStructure | None,
  options: ConversionOptions,
) -> tuple[Plan, EpisodeSource]:
  """Plans a conversion that begins.

  Args:
    source: path.
    source_kind: of it.
    destination_kind: of the destination.
    spec: flat specs that the caller wants; None takes what there is.
    options: of the conversion.
  Returns:
    The plan, and the source with the wanted paths.
  Raises:
    SpecError: the source cannot be read, or has other specs than the wanted ones.
  """
  dropped = Dropped(options.drop)
  wanted = None
  if spec is not None:
    wanted = dropped.filter(specs.flatten_spec_structure(spec))
  is_parsed = source_kind in (opening.TFRECORD, opening.RLDS)
  reader = opening.open_source(
    source_kind, source, options, wanted if is_parsed else None, dropped
  )
  selected = dropped.filter(reader.spec)
  dropped.check(f"convert: {source}")
  if wanted is not None and not is_parsed:
    selected = check_same_specs(f"convert: {source}", wanted, selected)
  layout.make_columns(f"convert: {source}", selected)
  if reader.num_episodes == 0:
    raise errors.ConversionError(
      f"convert: {source}: expected at least one episode, got none."
    )
  plan = Plan(
    source=source if source_kind == opening.TFDS else os.path.abspath(source),
    source_kind=source_kind,
    destination_kind=destination_kind,
    options=options.to_json_dict(),
    fingerprint=reader.fingerprint(),
    source_spec=reader.spec.to_json(),
  )
  return plan, SelectedSource(reader, selected, options.decode_images, options.cast)


def reopen(
  journal: Journal, source: str, options: ConversionOptions, plan: Plan
) -> EpisodeSource:
  """Opens the source of a conversion as it was opened when it began.

  Args:
    journal: of the conversion.
    source: path.
    options: of the conversion.
    plan: of the conversion.
  Raises:
    SpecError: the source cannot be read.
  """
  source_spec = specs.TensorSpecStruct.from_json(plan.source_spec)
  dropped = Dropped(options.drop)
  reader = opening.open_source(plan.source_kind, source, options, source_spec, dropped)
  paths = list(journal.read_spec())
  missing = [path for path in paths if path not in reader.spec]
  if missing:
    raise errors.ConversionError(
      f"convert: {source}: expected what it had when the conversion began, got nothing "
      f"at {errors.listing(missing)}."
    )
  wanted = specs.TensorSpecStruct((path, reader.spec[path]) for path in paths)
  return SelectedSource(reader, wanted, options.decode_images, options.cast)


def check_same_plan(
  journal: Journal,
  plan: Plan,
  source: str,
  source_kind: str,
  destination_kind: str,
  spec: specs.SpecStructure | None,
  options: ConversionOptions,
) -> None:
  """Checks that a conversion goes on as it began.

  Args:
    journal: of the conversion.
    plan: of the conversion.
    source: path, now.
    source_kind: now.
    destination_kind: now.
    spec: that the caller wants now; None for no wish.
    options: now.
  Raises:
    SpecError: with every difference.
  """
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
    raise errors.mismatch_error(
      f"convert: {journal.folder}", found, errors.ConversionError
    )
  if spec is not None:
    wanted, _ = new_plan(source, source_kind, destination_kind, spec, options)
    check_same_columns(journal, wanted, plan)


def check_same_columns(journal: Journal, wanted: Plan, plan: Plan) -> None:
  """Checks that the specs of two plans are the same.

  Raises:
    SpecError: with every path that differs.
  """
  operation = f"convert: {journal.folder}"
  began = specs.TensorSpecStruct.from_json(plan.source_spec)
  now = specs.TensorSpecStruct.from_json(wanted.source_spec)
  columns = layout.make_columns(operation, began)
  manifest.check_spec(operation, now, columns, True)


def check_same_source(journal: Journal, plan: Plan, reader: EpisodeSource) -> None:
  """Checks that the source is what it was when the conversion began.

  Raises:
    ConversionError: it changed.
  """
  if reader.fingerprint() == plan.fingerprint:
    return
  raise errors.ConversionError(
    f"convert: {plan.source}: expected the data that the conversion began with, got "
    "files of other sizes or times: the source changed. Delete the destination and "
    f"{journal.folder}, and start anew."
  )


_MAX_NAMED = 20


@dataclasses.dataclass(frozen=True)
class ConversionReport:
  """What a conversion, or a check of one, did.

  Attributes:
    source_kind: 'store', 'lerobot', 'tfrecord', 'zarr' or 'hdf5'.
    destination_kind: the same.
    num_episodes: of the destination.
    num_steps: of all episodes.
    num_bytes: of their values; 0 where nothing was read.
    resumed_at: how many episodes earlier runs had converted.
    journal: the folder with the hash of each episode, and the specs.
    notes: what should be known of how the source was read; sentences.
    files: the files, or the folder, of the destination.
  """

  source_kind: str
  destination_kind: str
  num_episodes: int
  num_steps: int
  num_bytes: int
  resumed_at: int
  journal: str
  notes: tuple[str, ...] = ()
  files: tuple[str, ...] = ()


@dataclasses.dataclass
class Tally:
  """What was read.

  Attributes:
    episodes: how many.
    num_bytes: of their values.
  """

  episodes: int = 0
  num_bytes: int = 0


def verify_conversion(
  source: str | os.PathLike[str],
  destination: str | os.PathLike[str],
  progress: Progress | None = None,
) -> ConversionReport:
  """Reads both sides of a finished conversion and compares every episode's hash.

  Args:
    source: of the conversion.
    destination: of the conversion; its journal lies beside it.
    progress: shows how far it is; None shows nothing.
  Returns:
    What was read.
  Raises:
    ConversionError: no finished conversion, or episodes whose content is another; with
      each of them, of both sides.
    SpecError: a side cannot be read.
  """
  source, destination = os.fspath(source), os.path.normpath(os.fspath(destination))
  journal = Journal(destination)
  plan = journal.plan
  if plan is None or not plan.is_finished:
    raise errors.ConversionError(
      f"convert: {destination}: expected a finished conversion to verify, got "
      f"{'one that is not' if plan else 'nothing in ' + journal.folder}. Run it "
      "without --verify first."
    )
  options = ConversionOptions(**plan.options)
  lines = journal.load_lines()
  found: list[errors.SpecError] = []
  tally, spec = Tally(), journal.read_spec()
  lossy = opening.lossy_paths(plan.destination_kind, spec, options)
  with _collect(found):
    reader = reopen(journal, source, options, plan)
    tally = check_digests(f"the source {source}", reader, lines, progress, lossy)
  with _collect(found):
    written = opening.open_written(plan.destination_kind, destination, spec, options)
    side = f"what was written to {destination}"
    check_digests(side, written, lines, progress, lossy)
  if found:
    raise errors.ConversionError("\n".join(str(error) for error in found)) from found[0]
  return ConversionReport(
    plan.source_kind,
    plan.destination_kind,
    len(lines),
    sum(line.steps for line in lines),
    tally.num_bytes,
    len(lines),
    journal.folder,
    files=tuple(opening.destination_files(plan.destination_kind, destination, options)),
  )


def check_digests(
  side: str,
  source: EpisodeSource,
  lines: Sequence[EpisodeLine],
  progress: Progress | None = None,
  lossy: frozenset[str] = frozenset(),
) -> Tally:
  """Reads all episodes and compares their hashes with those that were kept.

  Args:
    side: what is read, for the error.
    source: reads the episodes.
    lines: what was kept of each.
    progress: shows how far it is.
    lossy: paths of which only shapes are compared.
  Returns:
    What was read.
  Raises:
    ConversionError: with every episode whose content is another, up to 20; or there
      are more or fewer.
  """
  tally, broken = Tally(), 0
  found: list[errors.Mismatch] = []
  if progress:
    progress.start("checking", 0, len(lines))
  for index, episode in enumerate(source.episodes(ResumePoint())):
    num_bytes = episodes.num_bytes(episode.values)
    tally = Tally(index + 1, tally.num_bytes + num_bytes)
    if progress:
      progress.advance(num_bytes)
    digest = episode_digest(episode.values, lossy)
    if index < len(lines) and digest != lines[index].digest:
      broken += 1
      want, got = f"the hash {lines[index].digest}", f"{digest} in {episode.place}"
      if broken <= _MAX_NAMED:
        found.append(errors.Mismatch(f"episode {index}", want, got))
  if tally.episodes != len(lines):
    want, got = f"{len(lines)}, as were converted", str(tally.episodes)
    found.append(errors.Mismatch("number of episodes", want, got))
  if broken > _MAX_NAMED:
    want, got = "their hashes", f"others for {broken - _MAX_NAMED} more"
    found.append(errors.Mismatch("further episodes", want, got))
  if found:
    operation = f"convert: checking {side}"
    raise errors.mismatch_error(operation, found, errors.ConversionError)
  return tally


@contextlib.contextmanager
def _collect(found: list[errors.SpecError]) -> Iterator[None]:
  """Keeps the error of one side, so that the other is looked at, too."""
  try:
    yield
  except errors.SpecError as error:
    found.append(error)


_COMMIT_EPISODES = 100
_COMMIT_BYTES = 1 << 26


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
  called again, and gives the same files as one that was not. In the end all that was
  written is read again, and each episode's hash is compared with that of the source.

  Args:
    source: a store, a folder of LeRobot's, TFRecord files (a pattern), a zarr group or
      an HDF5 file; or a TFDS dataset.
    destination: what to make.
    spec: flat specs of the source; for TFRecord files None proposes them from a look
      at all records, for the others it takes all paths.
    options: see `ConversionOptions`.
    source_kind: 'store', 'lerobot', 'tfrecord', 'zarr' or 'hdf5', if what is there
      doesn't tell; 'tfds' by way of TFDS; 'rlds' for specs that say nothing of RLDS.
    destination_kind: one of the first five, if the name doesn't tell.
    progress: shows how far it is; None shows nothing.
  Returns:
    What was done. Of a conversion that was finished before, nothing is read again.
  Raises:
    ConversionError: something else is at the destination, the source or the options
      changed since an earlier run, or an episode cannot be converted; says which.
    SpecError: the specs don't fit; with every path.
    ImportError: an extra is not installed; names it.
  """
  source, destination = os.fspath(source), os.path.normpath(os.fspath(destination))
  options = options or ConversionOptions()
  from_kind = opening.source_kind(source, source_kind)
  to_kind = opening.destination_kind(destination, from_kind, destination_kind)
  if os.path.realpath(source) == os.path.realpath(destination):
    raise errors.ConversionError(
      f"convert: {destination}: expected another place than the source, got the source."
    )
  journal = Journal(destination)
  with contextlib.closing(journal):
    if journal.plan is None:
      opening.check_vacant(to_kind, destination, options)
      plan, reader = new_plan(source, from_kind, to_kind, spec, options)
      opening.check_target(to_kind, destination, reader, options)
      journal.begin(plan, reader.spec)
    else:
      plan = journal.plan
      check_same_plan(journal, plan, source, from_kind, to_kind, spec, options)
      journal.lock()
      reader = reopen(journal, source, options, plan)
      check_same_source(journal, plan, reader)
    run = _Run(journal, plan, reader, destination, options, progress)
    if plan.is_finished:
      journal.remove_work()  # The earlier run may have been killed before it did.
      return run.report()
    return run.run()


@dataclasses.dataclass
class _Run:
  """One run of a conversion."""

  journal: Journal
  plan: Plan
  reader: EpisodeSource
  destination: str
  options: ConversionOptions
  progress: Progress | None

  def run(self) -> ConversionReport:
    """Converts what is left, and checks all of it."""
    kind = self.plan.destination_kind
    target = opening.open_target(
      kind, self.destination, self.journal, self.reader, self.options
    )
    start = self._copy(target)
    check_same_source(self.journal, self.plan, self.reader)
    opening.write_splits(kind, self.destination, self.reader, self.options)
    spec = self.journal.read_spec()
    tally = check_digests(
      f"what was written to {self.destination}",
      opening.open_written(kind, self.destination, spec, self.options),
      self.journal.lines,
      self.progress,
      opening.lossy_paths(kind, spec, self.options),
    )
    self.journal.update(dataclasses.replace(self.plan, is_finished=True))
    self.journal.remove_work()
    return self.report(start.episode, tally.num_bytes)

  def report(
    self, resumed_at: int | None = None, num_bytes: int = 0
  ) -> ConversionReport:
    """Says what there is; of a run that had nothing to do by default."""
    lines = self.journal.lines or self.journal.load_lines()
    kind = self.plan.destination_kind
    opening.check_there(kind, self.destination, self.options)
    return ConversionReport(
      self.plan.source_kind,
      kind,
      len(lines),
      sum(line.steps for line in lines),
      num_bytes,
      len(lines) if resumed_at is None else resumed_at,
      self.journal.folder,
      tuple(self.reader.notes),
      tuple(opening.destination_files(kind, self.destination, self.options)),
    )

  def _copy(self, target: EpisodeTarget) -> ResumePoint:
    """Appends the episodes that the target does not have."""
    try:
      start = self.journal.resume(target.num_committed)
      self._append_all(target, start)
      target.finish()
    except BaseException:
      # Whole episodes are kept, whatever went wrong after them.
      with contextlib.suppress(OSError, errors.SpecError):
        self.journal.sync()
        target.commit()
      with contextlib.suppress(OSError, errors.SpecError):
        target.close()
      raise
    return start

  def _append_all(self, target: EpisodeTarget, start: ResumePoint) -> None:
    index, uncommitted, size = start.episode, 0, 0
    lossy = opening.lossy_paths(
      self.plan.destination_kind, self.reader.spec, self.options
    )
    if self.progress:
      self.progress.start("converting", index, self.reader.num_episodes)
    for episode in self.reader.episodes(start):
      num_bytes = episodes.num_bytes(episode.values)
      steps = episodes.num_steps(episode.values, self.reader.spec)
      # The line comes first: it is cut off if the episode does not follow.
      self.journal.add(
        EpisodeLine(
          episode_digest(episode.values, lossy),
          steps,
          episode.position,
          episode.label,
        )
      )
      try:
        target.append(episode.values)
      except errors.SpecError as error:
        raise errors.ConversionError(
          f"convert: episode {index} ({episode.place}): {error}"
        ) from error
      index, uncommitted, size = index + 1, uncommitted + 1, size + num_bytes
      if uncommitted == _COMMIT_EPISODES or size >= _COMMIT_BYTES:
        self.journal.sync()
        target.commit()
        uncommitted = size = 0
      if self.progress:
        fraction = self.reader.fraction(episode.position)
        self.progress.advance(num_bytes, fraction)
    self.journal.sync()
    if not index:
      raise errors.ConversionError(
        f"convert: {self.plan.source}: expected at least one episode, got none."
      )
