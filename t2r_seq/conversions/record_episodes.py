"""TFRecord files of tf.train.SequenceExamples: a record is an episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from t2r_seq import errors, records, specs
from t2r_seq.conversions.episodes import EpisodeSource, ResumePoint, SourceEpisode
from t2r_seq.conversions.record_files import RecordFiles, RecordParser


class RecordEpisodes(EpisodeSource):
  """Reads a record as an episode."""

  def __init__(
    self,
    patterns: records.FilePatterns,
    spec: specs.TensorSpecStruct | None = None,
    compression: str | None = None,
    num_episodes: int | None = None,
  ) -> None:
    """Finds the files.

    Args:
      patterns: see `records.get_data_format_and_filenames`.
      spec: flat specs of the records; None proposes some from a look at all of them.
      compression: of all files, if the suffixes don't tell.
      num_episodes: how many records there are, if that is known.
    Raises:
      SpecError: no file, or a spec that cannot be parsed, or no sequence among them.
    """
    self._files = RecordFiles(patterns, compression)
    self._num_episodes = num_episodes
    self._notes: list[str] = []
    if spec is None:
      summary = records.inspect_records(self._files.names, compression=compression)
      spec = records.propose_spec(summary)
      self._notes.append("The specs were proposed from the files: look at them.")
    self._spec = records.parsed_specs(spec)
    if not any(leaf.is_sequence for leaf in self._spec.values()):
      raise errors.ConversionError(
        f"convert: {self._files.names[0]}: expected sequences, because a record is an "
        f"episode, got none in {errors.listing(self._spec)}. Where a record is a step, "
        "say how episodes end: --episode_key, --last_key or --episode_per_file."
      )
    self._parser = RecordParser(self._spec, False, compression)

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The flat specs that the records are parsed with."""
    return self._spec

  @property
  def num_episodes(self) -> int | None:
    """The records, where they have been counted."""
    return self._num_episodes

  @property
  def notes(self) -> list[str]:
    """What was left out, and why."""
    return self._notes

  def fingerprint(self) -> dict[str, Any]:
    """Returns the files' names, sizes and times."""
    return self._files.fingerprint()

  def fraction(self, position: tuple[int, ...]) -> float | None:
    """Returns how many of the bytes lie before a position."""
    return self._files.fraction(position)

  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields a record each from a point on; see `EpisodeSource.episodes`."""
    for file_index, record in self._files.read(start.position):
      values = self._parser.parse([record])
      for path in self._parser.absent(record):
        del values[path]
      position = self._files.position_after(file_index, record)
      yield SourceEpisode(values, record.place, position)
