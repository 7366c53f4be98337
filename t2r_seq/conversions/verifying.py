"""Are the episodes, on either side, what they were when they were converted?"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

from t2r_seq import errors
from t2r_seq.conversions import episodes as episodes_lib
from t2r_seq.conversions import opening, planning
from t2r_seq.conversions.digests import episode_digest
from t2r_seq.conversions.episodes import EpisodeSource, ResumePoint
from t2r_seq.conversions.journal import EpisodeLine, Journal
from t2r_seq.conversions.options import ConversionOptions
from t2r_seq.conversions.progress import Progress

_MAX_NAMED = 20


@dataclasses.dataclass(frozen=True)
class ConversionReport:
  """What a conversion, or a check of one, did.

  Attributes:
    source_kind: 'store', 'tfrecord', 'zarr' or 'hdf5'.
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
  tally = Tally()
  with _collect(found):
    reader = planning.reopen(journal, source, options, plan)
    tally = check_digests(f"the source {source}", reader, lines, progress)
  with _collect(found):
    spec = journal.read_spec()
    written = opening.open_written(plan.destination_kind, destination, spec, options)
    check_digests(f"what was written to {destination}", written, lines, progress)
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
) -> Tally:
  """Reads all episodes and compares their hashes with those that were kept.

  Args:
    side: what is read, for the error.
    source: reads the episodes.
    lines: what was kept of each.
    progress: shows how far it is.
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
    num_bytes = episodes_lib.num_bytes(episode.values)
    tally = Tally(index + 1, tally.num_bytes + num_bytes)
    if progress:
      progress.advance(num_bytes)
    digest = episode_digest(episode.values)
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
