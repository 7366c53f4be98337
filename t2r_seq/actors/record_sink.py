"""Episodes that go to TFRecord files."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import gin
from absl import logging

from t2r_seq import records, specs
from t2r_seq.actors import sinks


@gin.configurable
class RecordSink(sinks.WholeEpisodeSink):
  """Writes each episode as a record, a few records a file.

  A file appears, whole, when it has its number of episodes or the sink is closed. Its
  name has the time and a token of this sink, so that neither another actor nor an
  earlier run is ever overwritten: 'a/collect.tfrecord.gz' becomes
  'a/collect-20261120T193000-3fa9c21b-00000.tfrecord.gz' and so on.

  Attributes:
    files: the paths written.
  """

  def __init__(
    self,
    output_path: str = gin.REQUIRED,
    spec: specs.SpecStructure | Callable[[], specs.SpecStructure] = gin.REQUIRED,
    episodes_per_file: int = 1,
    step_to_features_fn: sinks.StepToFeaturesFn | None = None,
    with_last_observation: bool = False,
  ) -> None:
    """Creates the sink; the first file begins with the first episode.

    Args:
      output_path: the name of the files, but for what is put into it. A suffix '.gz'
        compresses.
      spec: what is stored; see `WholeEpisodeSink`.
      episodes_per_file: how many records a file has, >= 1; the last one may have fewer.
      step_to_features_fn: see `WholeEpisodeSink`.
      with_last_observation: see `EpisodeSink`.
    Raises:
      ValueError: episodes_per_file is below 1.
    """
    super().__init__(spec, step_to_features_fn, with_last_observation)
    if episodes_per_file < 1:
      raise ValueError(
        f"RecordSink: episodes_per_file must be >= 1, got {episodes_per_file}."
      )
    self._output_path = output_path
    self._episodes_per_file = episodes_per_file
    self._token = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
    self._writer: records.RecordWriter | None = None
    self._path = ""
    self.files: list[str] = []

  def write_episode(self, structure: specs.TensorSpecStruct) -> None:
    """Writes the episode, into a new file where the one before is full."""
    if self._writer is None:
      token = f"{self._token}-{len(self.files):05d}"
      self._path = records.token_path(self._output_path, token)
      self._writer = records.RecordWriter(self._path, self.flat_spec)
    self._writer.write(structure)
    if self._writer.num_records == self._episodes_per_file:
      self._finish_file()

  def close(self) -> None:
    """Finishes the file in progress."""
    self._rows.clear()
    self._finish_file()

  def _finish_file(self) -> None:
    if self._writer is None:
      return
    self._writer.close()
    self._writer = None
    self.files.append(self._path)
    logging.info("Wrote %s.", self._path)
