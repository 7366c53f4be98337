"""RLDS episodes of a TFDS dataset as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t2r_seq import records, specs
from t2r_seq.conversions.episodes import EpisodeSource, ResumePoint, SourceEpisode


class TfdsSource(EpisodeSource):
  """Reads episodes by way of TFDS; images stay encoded."""

  def __init__(
    self,
    source: Any,
    split: str | None = None,
    leave_out: Callable[[str], bool] | None = None,
  ) -> None:
    """Opens the dataset; see `records.TfdsEpisodes`."""
    self._name = str(source)
    self._episodes = records.TfdsEpisodes(source, split or "train", leave_out)

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The specs that TFDS tells."""
    return self._episodes.spec

  @property
  def num_episodes(self) -> int | None:
    """The episodes of the split."""
    return self._episodes.num_episodes

  def fingerprint(self) -> dict[str, Any]:
    """Returns the data set's name, version and sizes."""
    return self._episodes.fingerprint

  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields the episodes from a point on; see `EpisodeSource.episodes`."""
    dataset = self._episodes.dataset(decode_images=False).skip(start.episode)
    for number, episode in enumerate(dataset, start.episode):
      values = {path: _to_array(value.numpy()) for path, value in episode.items()}
      yield SourceEpisode(values, f"episode {number} of {self._name}", (number + 1,))

  def fraction(self, position: tuple[int, ...]) -> float | None:
    """Returns how many of the episodes lie before a position."""
    total = max(self._episodes.num_episodes, 1)
    return position[0] / total if position else 0.0


def _to_array(value: Any) -> np.ndarray:
  if not isinstance(value, bytes):
    return np.asarray(value)
  scalar = np.empty((), object)
  scalar[()] = value
  return scalar
