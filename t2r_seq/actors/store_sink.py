"""Episodes that go to an EpisodeStore."""

from __future__ import annotations

from collections.abc import Callable

import gin

from t2r_seq import errors, specs
from t2r_seq import store as store_lib
from t2r_seq.actors import sinks


@gin.configurable
class StoreSink(sinks.WholeEpisodeSink):
  """Appends each episode to a store as it ends.

  The store is made where there is none. Actors that share one need segments of their
  own; an actor that is started again goes on in its segment.
  """

  def __init__(
    self,
    path: str = gin.REQUIRED,
    spec: specs.SpecStructure | Callable[[], specs.SpecStructure] = gin.REQUIRED,
    segment: str = "main",
    step_to_features_fn: sinks.StepToFeaturesFn | None = None,
    commit_every: int = 1,
    with_last_observation: bool = False,
  ) -> None:
    """Opens the store.

    Args:
      path: of the store's folder.
      spec: what is stored; see `WholeEpisodeSink`.
      segment: which part of the store this actor appends to.
      step_to_features_fn: see `WholeEpisodeSink`.
      commit_every: episodes between two commits, which wait for the disk.
      with_last_observation: see `EpisodeSink`.
    Raises:
      SpecError: a spec cannot be stored, or is not the store's.
      StoreError: the store is damaged, or another actor holds the segment.
    """
    super().__init__(spec, step_to_features_fn, with_last_observation)
    self._writer = self._open(path, segment, commit_every)

  def write_episode(self, structure: specs.TensorSpecStruct) -> None:
    """Appends the episode."""
    self._writer.append_episode(structure)

  def close(self) -> None:
    """Commits the episodes and lets go of the segment."""
    self._rows.clear()
    self._writer.close()

  def _open(
    self, path: str, segment: str, commit_every: int
  ) -> store_lib.EpisodeWriter:
    """Makes the store, or opens what another actor made, or an earlier run."""
    make, append = store_lib.EpisodeStore.create, store_lib.EpisodeStore.append
    try:
      return make(path, self.flat_spec, segment=segment, commit_every=commit_every)
    except errors.StoreError:
      return append(path, segment, self.flat_spec, commit_every)
