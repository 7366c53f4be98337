"""Sources and targets, by their kind and by what a conversion is told."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes import open_episodes, registry
from t2r_seq.episodes.episodes import Episodes, EpisodeWriter
from t2r_seq.episodes.rates import check_rate, control_period
from t2r_seq.episodes.splits import (
  EpisodeNumbers,
  make_splits,
  parse_shares,
  read_episodes,
)
from t2r_seq.episodes.views import Dropped
from t2r_seq.formats import (
  hdf5,
  lerobot_folder,
  lerobot_writer,
  robomimic,
)
from t2r_seq.formats import records as records_lib
from t2r_seq.formats import zarr as zarr_group
from t2r_seq.formats.records import EpisodeBounds, RecordEpisodes
from t2r_seq.formats.store import StoreWriter
from t2r_seq.records.files import other_shards
from t2r_seq.store import EpisodeStore, layout, videos

STORE, TFRECORD, ZARR, HDF5 = "store", "tfrecord", "zarr", "hdf5"
LEROBOT = "lerobot"
# RLDS episodes can be read only.
RLDS = "rlds"
MINARI = "minari"  # In Arrow files; those in HDF5 are of that kind.
MCAP = "mcap"
KINDS = (STORE, TFRECORD, ZARR, HDF5, LEROBOT)


def source_kind(path: str, given: str | None = None) -> str:
  """Returns the format of a data set."""
  found = registry.find_format(path) if given is None else registry.get_format(given)
  return found.name


def destination_kind(path: str, source: str, given: str | None = None) -> str:
  """Returns the kind of a destination, by its name.

  Args:
    path: of the destination.
    source: kind of the source.
    given: the kind, if the caller knows better.
  Raises:
    ConversionError: the name doesn't tell; or neither side is a store.
  """
  kind = _check_kind(given) if given else _named_kind(path, source)
  if STORE not in (kind, source):
    raise errors.ConversionError(
      f"convert: {path}: expected a store on one of the two sides, got {source} to "
      f"{kind}. Convert to a store first (by any other name, or --to store), and the "
      f"store to {kind} then."
    )
  return kind


def _named_kind(path: str, source: str) -> str:
  name = os.path.basename(path.rstrip("/")).lower()
  if os.path.isdir(path) and os.path.exists(os.path.join(path, layout.MANIFEST)):
    return STORE
  if name.endswith(".zarr"):
    return ZARR
  if name.endswith(hdf5.SUFFIXES):
    return HDF5
  if name.endswith(".lerobot"):
    return LEROBOT
  if "tfrecord" in name:
    return TFRECORD
  if source != STORE:
    return STORE
  raise errors.ConversionError(
    f"convert: {path}: expected a name that tells what to convert the store to (.zarr, "
    ".hdf5, .h5, .lerobot, .tfrecord, .tfrecord.gz), got none of them. Say it with "
    f"--to, one of {errors.listing(KINDS)}."
  )


def _check_kind(kind: str, known: tuple[str, ...] = KINDS) -> str:
  if kind not in known:
    raise errors.ConversionError(
      f"convert: expected a kind of {errors.listing(known)}, got '{kind}'."
      f"{errors.nearest(kind, known)}"
    )
  return kind


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ConversionOptions:
  """What a conversion can be told; one that goes on must be told the same.

  Attributes:
    episode_key: records are steps, and this feature's value tells the episodes apart.
    first_key: this feature is 1 in the first step of an episode and 0 in the others, or
      'name=value' where another value says so; records are steps, or sequences, which
      are cut and joined.
    last_key: the same of the last step of an episode.
    episode_per_file: records are steps, and each file is an episode.
    drop: paths to leave out, with all below them.
    decode_images: turns encoded images into pixels; otherwise their bytes stay as they
      are.
    cast: numbers that get another dtype: 'float64=float32' for all of a dtype, or
      'path=float32' for a path and all below it. Floats are rounded; what another
      dtype does not have is an error.
    allow_nan: accepts NaN and infinity in numbers that go into a store.
    num_shards: TFRecord files to write.
    compression: of TFRecord files, 'GZIP', 'ZLIB' or '', where their suffixes don't
      tell; 'gzip' compresses the observations of an HDF5 file.
    split: names and shares, 'train=0.9,eval=0.1', of the episodes that are dealt by
      chance to splits, in place of those of the source; or the name of a split of the
      source, which alone is read: of a TFDS dataset by default 'train'.
    filter: the name of a split of the source, which alone is read.
    seed: of the dealing.
    episodes: numbers of the episodes of the source that alone are read, or a file that
      lists them; None for all.
    layout: a JSON file that says which datasets of an HDF5 file are which paths, and
      how episodes end, where that is none of those that are known; or which topics of
      MCAP files are, and whose clock gives the steps.
    fps: of a dataset of LeRobot's to write, whose steps have it: nothing is resampled;
      None takes what the source says.
    task: of such a dataset, the text of episodes that come without one.
    video_codec: of such a dataset, the encoder of its videos: pixels are encoded, and
      not exactly kept; 'png' keeps them, in larger files.
    video_gop: of its videos, frames from one key frame to the next.
    video_quality: of its videos, the codec's crf: lower is better.
    frames_by: how the frames of a dataset of LeRobot's are found: 'timestamp' or
      'index'; see `LeRobotFolder`.
    frame_tolerance: seconds that the nearest frame may be from a time stamp.
    keep_videos: a store that is made of a dataset of LeRobot's has its videos as they
      are, and not their pixels: see `store.VideoOptions`.
  """

  episode_key: str | None = None
  first_key: str | None = None
  last_key: str | None = None
  episode_per_file: bool = False
  drop: tuple[str, ...] = ()
  decode_images: bool = False
  cast: tuple[str, ...] = ()
  allow_nan: bool = False
  num_shards: int = 1
  compression: str | None = None
  split: str | None = None
  filter: str | None = None
  seed: int = 0
  episodes: EpisodeNumbers | None = None
  layout: str | None = None
  fps: float | None = None
  task: str | None = None
  video_codec: str = videos.VideoEncoding.codec
  video_gop: int = videos.VideoEncoding.gop
  video_quality: int = videos.VideoEncoding.quality
  frames_by: str | None = None
  frame_tolerance: float = videos.TOLERANCE
  keep_videos: bool = False

  def __post_init__(self) -> None:
    object.__setattr__(self, "drop", tuple(self.drop))
    object.__setattr__(self, "cast", tuple(self.cast))
    if self.episodes is not None:
      numbers = tuple(read_episodes("convert", self.episodes))
      object.__setattr__(self, "episodes", numbers)
    names = ("episode_key", "first_key", "last_key", "episode_per_file")
    given = [name for name in names if getattr(self, name)]
    if len(given) > 1:
      raise errors.ConversionError(
        f"convert: expected one of {errors.listing(names)}, got "
        f"{errors.listing(given)}."
      )
    lerobot_folder.check_frame_options("convert", self.frames_by, self.frame_tolerance)
    if self.filter and self.split and not self.shares:
      raise errors.ConversionError(
        f"convert: expected one of filter '{self.filter}' and split '{self.split}', "
        "got both. To deal what a filter leaves, give shares: train=0.9,eval=0.1."
      )

  @property
  def shares(self) -> dict[str, float]:
    """Shares of the episodes by the split that they are dealt to; none for none."""
    is_dealt = self.split is not None and "=" in self.split
    return parse_shares("convert: split", self.split or "") if is_dealt else {}

  @property
  def chosen_split(self) -> str | None:
    """The name of the split of the source that is read; None for all."""
    return self.filter or (None if self.shares else self.split)

  @property
  def bounds(self) -> EpisodeBounds:
    """How steps become episodes; false where records are episodes."""
    return EpisodeBounds(
      self.episode_key, self.first_key, self.last_key, self.episode_per_file
    )

  @property
  def writing(self) -> lerobot_writer.Writing:
    """How a dataset of LeRobot's is written."""
    encoding = None
    if self.video_codec != lerobot_writer.PNG:
      encoding = videos.VideoEncoding(
        self.video_codec, self.video_gop, self.video_quality
      )
    return lerobot_writer.Writing(encoding, self.fps, self.task)

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the fields as JSON has them."""
    numbers: Any = self.episodes
    kept = None if numbers is None else list(numbers)
    lists = {"drop": sorted(self.drop), "cast": list(self.cast), "episodes": kept}
    return {**dataclasses.asdict(self), **lists}

  def differences(self, earlier: Mapping[str, Any]) -> list[errors.Mismatch]:
    """Lists the fields that an earlier run had otherwise; NaN may be let in later.

    Args:
      earlier: of its `to_json_dict`.
    """
    hint = "Say the same, or delete the destination and this folder to start anew."
    began = {**ConversionOptions().to_json_dict(), **earlier}
    return [
      errors.Mismatch(name, f"{began[name]!r}, as it began", repr(value), hint)
      for name, value in self.to_json_dict().items()
      if began[name] != value and name != "allow_nan"
    ]


def conversion_folder(destination: str) -> str:
  """Returns the folder that a conversion leaves beside its destination."""
  return destination.rstrip("/") + ".conversion"


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
  """Opens a source, or the episodes of it that the options choose."""
  known = registry.get_format(kind)
  bounds = ("episode_key", "first_key", "last_key", "episode_per_file")
  names = {*known.options} & {"layout", "frames_by", "frame_tolerance", *bounds}
  names |= {*known.options} & {"compression"}
  given = {name: getattr(options, name) or None for name in names}
  if "spec" in known.options:
    given["spec"] = spec
  chosen = options.episodes if episodes is None else episodes
  split = options.chosen_split
  return open_episodes(
    path,
    kind,
    split=split,
    episodes=chosen,
    drop=dropped.names if dropped else (),
    **given,
  )


def keep_videos(
  source: Episodes, source_kind: str, kind: str, options: ConversionOptions
) -> Episodes:
  """Copies videos without re-encoding if both formats store them."""
  is_lossless = kind == LEROBOT and options.writing.encoding is None
  if {source_kind, kind} <= {STORE, LEROBOT} and not is_lossless:
    formats = specs.VIDEO_FORMATS if kind == STORE else ("mp4",)
    encoding = options.writing.encoding if options.keep_videos else None
    return source.with_videos(() if options.decode_images else formats, encoding)
  return source


def final_splits(
  source: Episodes, options: ConversionOptions, count: int
) -> dict[str, list[int]]:
  """Returns the splits of what a conversion makes: dealt, or those of the source.

  Args:
    source: of the conversion.
    options: of it.
    count: its episodes.
  Raises:
    SpecError: a share is too small.
  """
  if options.shares:
    return make_splits(options.shares, count, options.seed)
  return {name: list(numbers) for name, numbers in source.splits.items()}


def write_splits(
  kind: str, path: str, source: Episodes, options: ConversionOptions
) -> None:
  """Keeps the splits in a store that is complete; others got them as they began."""
  if kind == STORE:
    found = final_splits(source, options, len(EpisodeStore(path)))
    if found:
      EpisodeStore.write_splits(path, found)


def check_target(
  kind: str, path: str, source: Episodes, options: ConversionOptions
) -> None:
  """Checks, before anything is written, that a target can hold a source's episodes.

  Args:
    kind: of the target.
    path: of the target.
    source: what will be written.
    options: of the conversion.
  Raises:
    ImportError: an extra is not installed.
    SpecError: with every path that it cannot hold.
  """
  if options.fps is not None:
    check_rate(f"convert: {path}", source, options.fps)
  if kind == STORE:
    layout.make_columns(f"convert: {path}", source.spec, source.kept_videos)
  elif kind == ZARR:
    zarr_group.check_spec(path, source.spec)
  elif kind == HDF5:
    robomimic.check_spec(path, source.spec, options.compression)
  elif kind == LEROBOT:
    writing = _writing(source, options)
    lerobot_writer.check_spec(path, source.spec, source.metadata, writing)
  else:
    count = source.num_episodes or 0
    records_lib.check_spec(path, source.spec, count, options.num_shards)


def open_target(
  kind: str,
  path: str,
  work: str,
  source: Episodes,
  options: ConversionOptions,
) -> EpisodeWriter:
  """Opens a target, new or as a killed conversion left it.

  Args:
    kind: of it.
    path: of it.
    work: a folder for what is not yet whole.
    source: what will be written.
    options: of the conversion.
  Raises:
    StoreError: another process writes to the store.
    OSError: the folder cannot be written.
  """
  spec, metadata = source.spec, source.metadata
  if kind == STORE:
    return StoreWriter(path, spec, metadata, options.allow_nan, source.kept_videos)
  count = source.num_episodes or 0
  if splits := final_splits(source, options, count):
    metadata = {**metadata, "splits": splits}
  if kind == HDF5:
    return robomimic.RobomimicWriter(
      path, work, spec, metadata, count, options.compression
    )
  if kind == TFRECORD:
    num_shards, compression = options.num_shards, options.compression
    return records_lib.RecordEpisodesWriter(path, spec, count, num_shards, compression)
  if kind == LEROBOT:
    writing = _writing(source, options)
    return lerobot_writer.LeRobotWriter(
      path, work, spec, metadata, writing, source.kept_videos
    )
  ends = np.cumsum(source.lengths).tolist()
  return zarr_group.ZarrWriter(path, work, spec, metadata, ends)


def _writing(source: Episodes, options: ConversionOptions) -> lerobot_writer.Writing:
  """Returns how a dataset of LeRobot's is written: at the rate of its videos."""
  rates = {how.fps for how in source.kept_videos.values()}
  is_known = options.fps or control_period(source.metadata)
  if is_known or len(rates) != 1:
    return options.writing
  return dataclasses.replace(options.writing, fps=rates.pop())


def lossy_paths(
  source_kind: str, kind: str, spec: specs.TensorSpecStruct, options: ConversionOptions
) -> frozenset[str]:
  """Returns the paths whose values a target does not keep exactly: videos.

  Args:
    source_kind: of the source.
    kind: of the target.
    spec: of the episodes.
    options: of the conversion.
  """
  if source_kind == LEROBOT:  # What no key frame begins is encoded anew.
    return frozenset(path for path, leaf in spec.items() if specs.is_video_spec(leaf))
  if kind != LEROBOT:
    return frozenset()
  return lerobot_writer.lossy_paths(spec, options.writing)


def open_written(
  kind: str, path: str, spec: specs.TensorSpecStruct, options: ConversionOptions
) -> Episodes:
  """Opens what a conversion has written, to read it again.

  Args:
    kind: of the destination.
    path: of the destination.
    spec: of its episodes.
    options: of the conversion.
  Raises:
    SpecError: it cannot be read.
  """
  if kind != TFRECORD:
    plain = ConversionOptions(layout=options.layout)
    return open_source(kind, path, plain, spec if kind == HDF5 else None)
  names = destination_files(kind, path, options)
  return RecordEpisodes(names, records_lib.record_spec(spec), options.compression)


def destination_files(kind: str, path: str, options: ConversionOptions) -> list[str]:
  """Lists the files, or the folder, that a conversion writes."""
  if kind != TFRECORD:
    return [path]
  return records_lib.shard_names(path, options.num_shards)


def check_vacant(kind: str, path: str, options: ConversionOptions) -> None:
  """Checks that a new conversion overwrites nothing.

  Raises:
    ConversionError: something is there.
  """
  names = destination_files(kind, path, options)
  there = [name for name in names if os.path.lexists(name)]
  is_empty = there == [path] and os.path.isdir(path) and not os.listdir(path)
  if there and not (kind == STORE and is_empty):
    is_data = all(os.path.isfile(name) or os.path.isdir(name) for name in there)
    # Nobody is to delete a device, such as /dev/null, or a FIFO.
    way_out = "Delete it, or choose" if is_data else "Choose"
    raise errors.ConversionError(
      f"convert: {path}: expected nothing there, or an unfinished conversion to "
      f"resume, got {errors.listing(there, limit=5)}. {way_out} another destination."
    )
  others = other_shards(path, names) if kind == TFRECORD else []
  if others:
    raise errors.ConversionError(
      f"convert: {path}: expected no other files of that name, got "
      f"{errors.listing(others, limit=5)}, which patterns would read along with "
      "the new ones. Delete them, or choose another destination."
    )
  if glob.has_magic(path):
    raise errors.ConversionError(
      f"convert: {path}: expected the name of a destination, got a pattern."
    )


def check_there(kind: str, path: str, options: ConversionOptions) -> None:
  """Checks that what a finished conversion wrote is still there.

  Raises:
    ConversionError: with every file that is not.
  """
  names = destination_files(kind, path, options)
  missing = [name for name in names if not os.path.exists(name)]
  if missing:
    raise errors.ConversionError(
      f"convert: {path}: expected what was converted before, got nothing at "
      f"{errors.listing(missing, limit=5)}. To convert anew, delete "
      f"{conversion_folder(path)}"
    )
