"""Opens data sets for callers that do not yet use `t2r_seq.episodes`."""

from __future__ import annotations

import dataclasses
import os

from t2r_seq import specs
from t2r_seq.episodes import open_episodes, registry
from t2r_seq.episodes.episodes import Episodes
from t2r_seq.episodes.splits import EpisodeNumbers
from t2r_seq.episodes.views import Dropped
from t2r_seq.store import videos

STORE, TFRECORD, RLDS, LEROBOT, TFDS = "store", "tfrecord", "rlds", "lerobot", "tfds"


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
  """The options of `open_episodes`."""

  episode_key: str | None = None
  first_key: str | None = None
  last_key: str | None = None
  episode_per_file: bool = False
  drop: tuple[str, ...] = ()
  compression: str | None = None
  split: str | None = None
  filter: str | None = None
  episodes: EpisodeNumbers | None = None
  layout: str | None = None
  frames_by: str | None = None
  frame_tolerance: float = videos.TOLERANCE

  @property
  def chosen_split(self) -> str | None:
    """The split that is read."""
    return self.filter or self.split


def source_kind(path: str, given: str | None = None) -> str:
  """Returns the format of a data set."""
  found = registry.find_format(path) if given is None else registry.get_format(given)
  return found.name


def foreign_kind(path: str) -> str | None:
  """Returns the format of a data set that is neither a store nor TFRecord files."""
  if not os.path.exists(path):
    return None
  kind = source_kind(path)
  return kind if kind not in (STORE, TFRECORD) else None


def open_source(
  kind: str,
  path: str,
  options: ConversionOptions,
  spec: specs.TensorSpecStruct | None = None,
  dropped: Dropped | None = None,
  episodes: EpisodeNumbers | None = None,
) -> Episodes:
  """Opens a data set."""
  known = registry.get_format(kind).options
  names = {field.name for field in dataclasses.fields(options)}
  given = {n: getattr(options, n) or None for n in (names & known) - {"split"}}
  if "spec" in known:
    given["spec"] = spec
  return open_episodes(
    path,
    kind,
    split=options.chosen_split,
    episodes=options.episodes if episodes is None else episodes,
    drop=dropped.names if dropped else (),
    **given,
  )
