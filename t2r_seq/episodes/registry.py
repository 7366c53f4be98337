"""The formats of data sets: how each is recognised, opened and written.

A format is a module of `t2r_seq.formats` and registers itself; no code above depends on
the format of a data set.
"""

from __future__ import annotations

import dataclasses
import glob
import importlib
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from t2r_seq import errors, specs
from t2r_seq.episodes import reading, views, writing
from t2r_seq.episodes import splits as splits_lib
from t2r_seq.episodes.episodes import EpisodeWriter
from t2r_seq.episodes.views import Episodes
from t2r_seq.errors import Report

# The modules that register formats, in the order in which they recognise a path: a
# store may hold any file, and TFRecord files are all that no other format recognises.
_MODULES = ("store", "lerobot", "zarr", "robomimic", "minari", "mcap", "records")
_FALLBACK = "tfrecord"
_CONVENTIONS = "conventions.json"

_WITH_PYTHON = (
  "Read them with Python, and write the episodes to a store: EpisodeStore.create"
)
# Formats of robot data that are not read: file names, format, what to do.
_OTHER_FORMATS = (
  (r"episode_\d+\.npz", "CALVIN's steps, an .npz file each", _WITH_PYTHON),
  (
    r".*\.db3",
    "a bag of ROS 2 in SQLite",
    "Make MCAP of it: mcap convert a.db3 a.mcap",
  ),
  (r".*\.bag", "a bag of ROS 1", "Make MCAP of it: mcap convert a.bag a.mcap"),
  (
    r".*\.(tar|tar\.\w+|tgz)",
    "tar archives (WebDataset)",
    "Unpack them. Samples of WebDataset can be written to a store with Python: "
    "EpisodeStore.create",
  ),
  (
    r".*\.parquet",
    "Parquet files",
    "For a LeRobot dataset, name the folder with meta/info.json. Read others with "
    "Python, and write the episodes to a store: EpisodeStore.create",
  ),
  (
    r".*\.(pkl|pickle|p)",
    "Python pickles",
    "Unpickling runs code, so they are not read. Load those that you trust with "
    "Python, and write the episodes to a store: EpisodeStore.create",
  ),
  (r".*\.(npz|npy)", "numpy files", _WITH_PYTHON),
)


@dataclasses.dataclass(frozen=True)
class Format:
  """A format of data sets.

  Attributes:
    name: such as 'zarr'.
    open: `open(path, dropped, **options)` returns the episodes.
    description: noun for errors: 'a zarr group'; '' if it cannot be recognised.
    recognises: whether a path, which exists, is of this format.
    suffixes: suffixes of the files or folders that are written in this format.
    writer: makes an `EpisodeWriter`; None if the format is read only. See
      `write_episodes`.
    splits_by_file: whether a split is a set of files, chosen when they are opened.
    check: looks for damage without opening the episodes; see `register_format`.
  """

  name: str
  open: Callable[..., Episodes]
  description: str = ""
  recognises: Callable[[str], bool] | None = None
  suffixes: tuple[str, ...] = ()
  writer: Callable[..., EpisodeWriter] | None = None
  splits_by_file: bool = False
  check: Callable[..., Report | None] | None = None

  @property
  def has_specs(self) -> bool:
    """Whether the files have specs; else a user may pass them as an option `spec`."""
    return "spec" not in self.options

  @property
  def options(self) -> frozenset[str]:
    """Names of the options of `open_episodes` that this format takes."""
    return _option_names(self.open) - {"dropped"}

  @property
  def writer_options(self) -> frozenset[str]:
    """Names of the options of `write_episodes` that this format takes."""
    return _option_names(self.writer) - {"episodes"} if self.writer else frozenset()

  def files(self, path: str, options: Mapping[str, Any]) -> list[str]:
    """Returns the files, or the folder, that the writer makes with these options."""
    find = getattr(self.writer, "files", None)
    return find(path, **options) if find else [path]


def _option_names(function: Callable[..., Any]) -> frozenset[str]:
  parameters = [*inspect.signature(function).parameters.values()][1:]
  return frozenset(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)


_formats: dict[str, Format] = {}


def register_format(
  name: str,
  *,
  suffixes: Sequence[str] = (),
  recognises: Callable[[str], bool] | None = None,
  description: str = "",
  writer: Callable[..., EpisodeWriter] | None = None,
  splits_by_file: bool = False,
  check: Callable[..., Report | None] | None = None,
) -> Callable[[Any], Any]:
  """Registers a format, as a decorator of its class of `Episodes`.

  The class, or a function that returns episodes, is called with the path, `dropped` (a
  `views.Dropped`) and the options of `open_episodes` that its signature names.

  Args:
    name: name of the format.
    suffixes: suffixes of files or folders in this format.
    recognises: whether an existing path is of this format; None: by its suffix.
    description: noun for errors, such as 'a zarr group'.
    writer: called with the path, the episodes to write (their specs, metadata and
      splits) and the options of `write_episodes` that its signature names.
    splits_by_file: a split is a set of files, chosen by an option `split` of the class.
    check: `check(path, spec, label_spec, values, **options)` looks for damage that
      would prevent opening the episodes; `values` are the keyword arguments of
      `checks.check`, options those of `open_episodes`. Returns a report, in which
      `paths` is None if the values are not checked yet; or None for no report.
  Returns:
    The decorator, which raises SpecError if another class has this name.
  """

  def register(opener: Any) -> Any:
    earlier = _formats.get(name)
    if earlier is not None and earlier.open.__qualname__ != opener.__qualname__:
      raise errors.SpecError(
        f"register_format: {name}: expected a new name, got that of {earlier.open}."
      )
    _formats[name] = Format(
      name,
      opener,
      description or (f"{name} files" if suffixes or recognises else ""),
      recognises or (lambda path: path.lower().rstrip("/").endswith(tuple(suffixes))),
      tuple(suffixes),
      writer,
      splits_by_file,
      check,
    )
    return opener

  return register


def formats() -> Mapping[str, Format]:
  """Returns all formats by name, in the order in which they recognise a path."""
  for name in _MODULES:
    importlib.import_module(f"t2r_seq.formats.{name}")
  return dict(sorted(_formats.items(), key=lambda item: _rank(item[1])))


def _rank(each: Format) -> int:
  """Returns the rank of a format: that of its module; users' precede the fallback."""
  if each.name == _FALLBACK:
    return len(_MODULES)
  module = each.open.__module__.removeprefix("t2r_seq.formats.")
  return _MODULES.index(module) if module in _MODULES else len(_MODULES) - 1


def get_format(name: str) -> Format:
  """Returns a format by its name; ConversionError if it is unknown."""
  all_formats = formats()
  if name not in all_formats:
    raise errors.ConversionError(
      f"open_episodes: expected a format of {errors.listing(all_formats)}, got "
      f"'{name}'.{errors.nearest(name, all_formats)}"
    )
  return all_formats[name]


def find_format(path: str | os.PathLike[str], format: str | None = None) -> Format:
  """Recognises the format of a data set.

  Args:
    path: a folder, a file, or patterns of TFRecord files.
    format: name of the format; None recognises it.
  Raises:
    ConversionError: the name is unknown, or the path is missing or a folder of no known
      format.
  """
  if format is not None:
    return get_format(format)
  path = os.fspath(path)
  if os.path.exists(path):
    recognised = _recognise(path)
    if recognised is not None:
      return recognised
    if os.path.isdir(path):
      raise _unknown_folder(path)
    return get_format(_FALLBACK)
  is_pattern = glob.has_magic(path) or ":" in path
  if is_pattern or any(glob.glob(part.strip()) for part in path.split(",")):
    return get_format(_FALLBACK)
  folder = os.path.dirname(os.path.abspath(path))
  siblings = os.listdir(folder) if os.path.isdir(folder) else []
  raise errors.ConversionError(
    f"open_episodes: {path}: expected {_readable()}, got nothing there."
    f"{errors.nearest(os.path.basename(path), siblings)} The current folder is "
    f"{os.getcwd()}"
  )


def _recognise(path: str) -> Format | None:
  for each in formats().values():
    if each.recognises is not None and each.recognises(path):
      return each
  return None


def open_episodes(
  path: str | os.PathLike[str],
  format: str | None = None,
  *,
  split: str | None = None,
  episodes: splits_lib.EpisodeNumbers | None = None,
  drop: Iterable[str] | views.Dropped = (),
  conventions: Mapping[str, Any] | None = None,
  **options: Any,
) -> Episodes:
  """Opens a data set of any format; returns its episodes.

  A file `conventions.json` in its folder, or beside its files, declares the meaning of
  numbers by path, if the format cannot store it.

  >>> import numpy as np
  >>> from t2r_seq import specs, store
  >>> state = specs.ExtendedTensorSpec((2,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"state": state}) as writer:
  ...   for num_steps in (5, 3):
  ...     _ = writer.append_episode({"state": np.zeros((num_steps, 2), np.float32)})
  >>> from t2r_seq.episodes import open_episodes
  >>> episodes = open_episodes("demo")
  >>> episodes.lengths.tolist(), episodes.read(1)["state"].shape
  ([5, 3], (3, 2))

  Args:
    path: a store, a LeRobot folder, RLDS or other TFRecord files (patterns), HDF5, zarr
      or MCAP files, or a Minari data set.
    format: name of the format, such as 'zarr'; by default the path decides.
    split: the only split to read; None for all.
    episodes: numbers of the only episodes to read, or a file that lists them.
    drop: paths to leave out, with all paths below them. They are not read at all.
    conventions: `Convention`s of paths, or their fields; they override those of the
      file and of the format.
    **options: options of the format: `spec`, `compression`, `episode_key`, `first_key`,
      `last_key`, `episode_per_file` and `index` of TFRecord files, `layout` of HDF5 and
      MCAP files, `clocks` of MCAP, `frames_by` and `frame_tolerance` of LeRobot.
  Raises:
    ConversionError: the path is missing or of no known format.
    SpecError: the data is damaged, the format does not have an option, a convention is
      invalid, or a split, episode or path is missing.
    ImportError: an extra is not installed; names it.
  """
  path = os.fspath(path)
  chosen = find_format(path, format)
  given = {name: value for name, value in options.items() if value is not None}
  check_options(f"open_episodes: {path}", chosen.name, given, chosen.options)
  if split is not None and chosen.splits_by_file:
    given["split"], split = split, None
  dropped = drop if isinstance(drop, views.Dropped) else views.Dropped(drop)
  if "dropped" in _option_names(chosen.open):
    given["dropped"] = dropped
  opened = chosen.open(path, **given)
  opened.path, opened.format = opened.path or path, chosen.name
  kept = dropped.filter(opened.fields)
  if dropped is not drop:
    dropped.check(f"open_episodes: {path}")
  if shared := splits_lib.describe_overlaps(opened.splits):
    opened.notes = [*opened.notes, *shared]
  if len(kept) != len(opened.fields):
    opened = views.Filtered(opened, kept)
  _declare(opened, path, conventions)
  return opened.select(episodes, split)


def _declare(
  opened: Episodes, path: str, conventions: Mapping[str, Any] | None
) -> None:
  """Adds the conventions of a file and of an argument to the specs."""
  folder = path if os.path.isdir(path) else os.path.dirname(path)
  name = os.path.join(folder, _CONVENTIONS)
  declared: dict[str, Any] = {}
  if os.path.isfile(name):
    declared = reading.read_json_object(name)
  for source, given in ((name, declared), ("conventions", conventions or {})):
    for place, convention in given.items():
      if place in opened.spec:
        opened.spec[place] = specs.ExtendedTensorSpec.from_spec(
          opened.spec[place], convention=specs.Convention.of(convention)
        )
      elif source != name:
        raise errors.SpecError(
          f"open_episodes: {path}: {source}: expected paths of "
          f"{errors.listing(opened.spec)}, got '{place}'."
          f"{errors.nearest(place, opened.spec)}"
        )


def as_episodes(
  source: str | os.PathLike[str] | Episodes,
  format: str | None = None,
  *,
  spec: specs.SpecStructure | None = None,
  **options: Any,
) -> Episodes:
  """Returns episodes unchanged, and opens a path; see `open_episodes`.

  `spec` has specs of the features, for formats whose files have no specs.
  """
  if isinstance(source, Episodes):
    return source
  path = os.fspath(source)
  chosen = find_format(path) if format is None else get_format(format)
  if spec is not None and not chosen.has_specs:
    flat = specs.flatten_spec_structure(spec)
    options["spec"] = specs.TensorSpecStruct(
      (path, specs.ExtendedTensorSpec.to_spec(leaf).as_stored())
      for path, leaf in flat.items()
    )
  return open_episodes(path, chosen.name, **options)


def check_options(
  operation: str, name: str, given: Iterable[str], options: Iterable[str]
) -> None:
  """Raises SpecError if a given option of `name`, a format, is not in `options`."""
  options = sorted(options)
  want = f"no options for {name}"
  if options:
    want = f"an option of {name} {errors.listing(options, 30)}"
  mismatches = [
    errors.Mismatch(option, want, f"'{option}'", errors.nearest(option, options))
    for option in given
    if option not in options
  ]
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)


def written_format(path: str | os.PathLike[str], format: str | None = None) -> Format:
  """Returns the format in which a path is written, by `format` or its suffix.

  Raises:
    ConversionError: the format or the suffix is unknown, or the format is read only.
  """
  path = os.fspath(path)
  writable = {name: each for name, each in formats().items() if each.writer is not None}
  if format is not None:
    if get_format(format).name not in writable:
      raise errors.ConversionError(
        f"write: {path}: expected a format of {errors.listing(writable)}, got "
        f"'{format}', which is read only."
      )
    return writable[format]
  name = os.path.basename(path.rstrip("/")).lower()
  for each in writable.values():
    if any(name.endswith(suffix) for suffix in each.suffixes):
      return each
  if ".tfrecord" in name or name.endswith("tfrecords"):
    return writable[_FALLBACK]
  suffixes = [suffix for each in writable.values() for suffix in each.suffixes]
  raise errors.ConversionError(
    f"write: {path}: expected a name that ends in {errors.listing(suffixes)}, or one "
    f"of the formats {errors.listing(writable)}, got neither."
  )


def open_writer(
  path: str | os.PathLike[str],
  episodes: Episodes,
  format: str | None = None,
  **options: Any,
) -> EpisodeWriter:
  """Opens a writer of a new data set; `options` are those of `write_episodes`.

  Raises:
    SpecError: the format cannot hold the episodes, or does not have an option.
  """
  path = os.fspath(path)
  chosen = written_format(path, format)
  given = {name: value for name, value in options.items() if value is not None}
  check_options(f"write: {path}", chosen.name, given, chosen.writer_options)
  assert chosen.writer is not None
  if episodes.clocks and chosen.name != "store":
    raise errors.SpecError(
      f"write: {path}: expected values of the steps, as {chosen.name} has one clock, "
      f"got {errors.listing(episodes.clocks)} on other clocks. Convert them by name: "
      "resample='hold', --resample hold; or write a store."
    )
  return chosen.writer(path, episodes, **given)


def write_episodes(
  episodes: Episodes,
  path: str | os.PathLike[str],
  format: str | None = None,
  **options: Any,
) -> None:
  """Writes a data set, which appears at its path when it is complete.

  >>> from t2r_seq.episodes import open_episodes, write_episodes
  >>> write_episodes(open_episodes("demo").select([1]), "one.tfrecord")
  >>> [episode.values["state"].shape for episode in open_episodes("one.tfrecord")]
  [(3, 2)]

  Args:
    episodes: episodes to write; views select, rename, drop, cast and join.
    path: path of the new data set.
    format: name of the format; by default the suffix decides.
    **options: options of the format: `num_shards` and `compression` of TFRecord files,
      `compression` of robomimic, `fps` and `task` of LeRobot, `allow_nan` and
      `keep_videos` of a store; `video_codec`, `video_gop`, `video_quality` of both.
  Raises:
    SpecError: the path is a URL, or the format cannot hold a path or does not have an
      option.
    ConversionError: the path exists or has no known suffix, an episode cannot be
      written, or no episode exists.
    OSError: the disk is full or failed.
  """
  path = os.fspath(path)
  errors.check_local("write", path)
  check_vacant(f"write: {path}", path, written_format(path, format), options)
  writer = open_writer(path, episodes, format, **options)
  writing.copy_episodes(f"write: {path}", episodes, writer)


def check_vacant(
  operation: str, path: str, chosen: Format, options: Mapping[str, Any]
) -> None:
  """Raises ConversionError if a new data set would overwrite something."""
  names = chosen.files(path, options)
  present = [name for name in names if os.path.lexists(name)]
  is_empty = present == [path] and os.path.isdir(path) and not os.listdir(path)
  # Formats without a suffix are folders: they may fill one that `mktemp -d` made.
  if present and not (is_empty and not chosen.suffixes):
    is_data = all(os.path.isfile(name) or os.path.isdir(name) for name in present)
    # Nobody should delete a device, such as /dev/null, or a FIFO.
    way_out = "Delete it, or choose" if is_data else "Choose"
    raise errors.ConversionError(
      f"{operation}: expected nothing there, got {errors.listing(present, limit=5)}. "
      f"{way_out} another destination."
    )
  if glob.has_magic(path):
    raise errors.ConversionError(
      f"{operation}: expected the name of a destination, got a pattern."
    )


# Entries of an unknown folder to search, and to list in an error.
_MAX_ENTRIES, _MAX_SHOWN = 50, 5


def _readable() -> str:
  descriptions = [each.description for each in formats().values() if each.description]
  return f"{', '.join(descriptions[:-1])} or {descriptions[-1]}"


def _unknown_folder(path: str) -> errors.ConversionError:
  names = sorted(os.listdir(path))
  other = other_format(names)
  got = other[0] if other else f"a folder with {errors.listing(names, _MAX_SHOWN)}"
  return errors.ConversionError(
    f"open_episodes: {path}: expected {_readable()}, got {got}. "
    f"{_way_out(path, names, other)}"
  )


def _way_out(path: str, names: list[str], other: tuple[str, str] | None) -> str:
  """Returns the advice for a folder of unknown format."""
  if "segments" in names:
    return (
      "It looks like a store without its store.json: t2r_seq doctor "
      f"{path} --spec SPEC --salvage OUT"
    )
  if {"saved_model.pb", "policy.json", "export"} & {*names}:
    return "It looks like a policy, or a training with exports: t2r_seq inspect EXPORT"
  if _has_records(names):
    return f"Name the files in it: '{os.path.join(path, '*.tfrecord*')}'"
  within = [*itertools.islice(_datasets_in(path, depth=2), _MAX_ENTRIES)]
  if within:
    return f"There are datasets in it: name one of {errors.listing(within, _MAX_SHOWN)}"
  place = os.path.abspath(path)
  for above in (os.path.dirname(place), os.path.dirname(os.path.dirname(place))):
    recognised = _recognise(above) if os.path.isdir(above) else None
    if recognised is not None and recognised.name in ("store", "lerobot"):
      return f"It is a part of a dataset: name {above}"
  return other[1] if other else "Name the files of the dataset, or their folder."


def _datasets_in(path: str, depth: int) -> Iterator[str]:
  """Yields the paths or patterns of the data sets below a folder, to a depth."""
  for name in sorted(os.listdir(path))[:_MAX_ENTRIES]:
    place = os.path.join(path, name)
    if not os.path.isdir(place):
      continue
    try:
      if _recognise(place) is not None:
        yield place
      elif _has_records(os.listdir(place)):
        yield f"'{os.path.join(place, '*.tfrecord*')}'"
      elif depth > 1:
        yield from _datasets_in(place, depth - 1)
    except (OSError, errors.ConversionError):
      continue


def other_format(names: Iterable[str]) -> tuple[str, str] | None:
  """Recognises unsupported files: returns (format, advice), or None."""
  bases = [os.path.basename(name).lower() for name in names]
  for pattern, format_name, hint in _OTHER_FORMATS:
    if any(re.fullmatch(pattern, base) for base in bases):
      return format_name, f"{hint}."
  return None


def _has_records(names: Iterable[str]) -> bool:
  return any(".tfrecord" in name or ".array_record" in name for name in names)
