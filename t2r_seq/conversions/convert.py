"""Conversions that can be killed, go on, and prove what they wrote."""

from __future__ import annotations

import contextlib
import dataclasses
import os

import gin

from t2r_seq import errors, specs
from t2r_seq.conversions import episodes as episodes_lib
from t2r_seq.conversions import kinds, opening, planning, verifying
from t2r_seq.conversions.digests import episode_digest
from t2r_seq.conversions.episodes import EpisodeSource, EpisodeTarget, ResumePoint
from t2r_seq.conversions.journal import EpisodeLine, Journal, Plan
from t2r_seq.conversions.options import ConversionOptions
from t2r_seq.conversions.progress import Progress
from t2r_seq.conversions.verifying import ConversionReport

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
  """Converts episodes between a store and TFRecord files, zarr or HDF5.

  One of the two sides is a store. A conversion that was killed goes on when it is
  called again, and gives the same files as one that was not. In the end all that was
  written is read again, and each episode's hash is compared with that of the source.

  Args:
    source: a store, TFRecord files (a pattern), a zarr group or an HDF5 file; or a TFDS
      dataset.
    destination: what to make.
    spec: flat specs of the source; for TFRecord files None proposes them from a look
      at all records, for the others it takes all paths.
    options: see `ConversionOptions`.
    source_kind: 'store', 'tfrecord', 'zarr' or 'hdf5', if what is there doesn't tell;
      'tfds' by way of TFDS; 'rlds' for specs that say nothing of RLDS.
    destination_kind: one of the first four, if the name doesn't tell.
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
  from_kind = kinds.source_kind(source, source_kind)
  to_kind = kinds.destination_kind(destination, from_kind, destination_kind)
  if os.path.realpath(source) == os.path.realpath(destination):
    raise errors.ConversionError(
      f"convert: {destination}: expected another place than the source, got the source."
    )
  journal = Journal(destination)
  with contextlib.closing(journal):
    if journal.plan is None:
      opening.check_vacant(to_kind, destination, options)
      plan, reader = planning.new_plan(source, from_kind, to_kind, spec, options)
      opening.check_target(to_kind, destination, reader, options)
      journal.begin(plan, reader.spec)
    else:
      plan = journal.plan
      planning.check_same_plan(journal, plan, source, from_kind, to_kind, spec, options)
      journal.lock()
      reader = planning.reopen(journal, source, options, plan)
      planning.check_same_source(journal, plan, reader)
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
    planning.check_same_source(self.journal, self.plan, self.reader)
    spec = self.journal.read_spec()
    tally = verifying.check_digests(
      f"what was written to {self.destination}",
      opening.open_written(kind, self.destination, spec, self.options),
      self.journal.lines,
      self.progress,
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
    if self.progress:
      self.progress.start("converting", index, self.reader.num_episodes)
    for episode in self.reader.episodes(start):
      num_bytes = episodes_lib.num_bytes(episode.values)
      steps = episodes_lib.num_steps(episode.values, self.reader.spec)
      # The line comes first: it is cut off if the episode does not follow.
      self.journal.add(
        EpisodeLine(
          episode_digest(episode.values), steps, episode.position, episode.label
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
