"""What a conversion can be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gin

from t2r_seq import errors
from t2r_seq.conversions.record_steps import EpisodeBounds


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ConversionOptions:
  """What a conversion can be told; one that goes on must be told the same.

  Attributes:
    episode_key: records are steps, and this feature's value tells the episodes apart.
    last_key: records are steps, and this feature is not zero in the last of an episode.
    episode_per_file: records are steps, and each file is an episode.
    drop: paths to leave out, with all below them.
    decode_images: turns encoded images into pixels; otherwise their bytes stay as they
      are.
    allow_nan: accepts NaN in numbers that go into a store.
    num_shards: TFRecord files to write.
    compression: of TFRecord files, 'GZIP', 'ZLIB' or '', where their suffixes don't
      tell; 'gzip' compresses the observations of an HDF5 file.
    split: of a TFDS dataset, by default 'train'.
  """

  episode_key: str | None = None
  last_key: str | None = None
  episode_per_file: bool = False
  drop: tuple[str, ...] = ()
  decode_images: bool = False
  allow_nan: bool = False
  num_shards: int = 1
  compression: str | None = None
  split: str | None = None

  def __post_init__(self) -> None:
    object.__setattr__(self, "drop", tuple(self.drop))
    given = [self.episode_key, self.last_key, self.episode_per_file]
    if sum(bool(value) for value in given) > 1:
      raise errors.ConversionError(
        "convert: expected one of episode_key, last_key and episode_per_file, got "
        f"{sum(bool(value) for value in given)} of them."
      )

  @property
  def bounds(self) -> EpisodeBounds:
    """How steps become episodes; false where records are episodes."""
    return EpisodeBounds(self.episode_key, self.last_key, self.episode_per_file)

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the fields as JSON has them."""
    return {**dataclasses.asdict(self), "drop": sorted(self.drop)}

  def differences(self, earlier: Mapping[str, Any]) -> list[errors.Mismatch]:
    """Lists the fields that an earlier run had otherwise; NaN may be let in later.

    Args:
      earlier: of its `to_json_dict`.
    """
    hint = "Say the same, or delete the destination and this folder to start anew."
    return [
      errors.Mismatch(name, f"{earlier.get(name)!r}, as it began", repr(value), hint)
      for name, value in self.to_json_dict().items()
      if earlier.get(name) != value and name != "allow_nan"
    ]
