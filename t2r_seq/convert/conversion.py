"""Converts data sets: opens sources, changes them by views, and writes another format.

A killed conversion resumes after the episodes that the destination has committed. The
file `<destination>.conversion/conversion.json` has the sources and options of the
conversion, with which it resumes, and whether it is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, files, specs
from t2r_seq.convert.comparison import Decoded, compare_episodes
from t2r_seq.episodes import open_episodes, registry, views
from t2r_seq.episodes.episodes import EpisodeWriter, num_steps
from t2r_seq.episodes.rates import Resampled, check_rate
from t2r_seq.episodes.splits import parse_shares, read_episodes
from t2r_seq.episodes.views import Episodes
from t2r_seq.episodes.writing import copy_episodes
from t2r_seq.progress import Progress
from t2r_seq.store import layout, manifest

_FORMAT = "t2r_seq.conversion"
_VERSION = 2  # Of the record of a conversion, conversion.json.
# Options of `convert` itself; the formats have further ones.
_OWN = (
  *("episodes", "split", "filter", "seed", "drop", "rename", "cast"),
  *("decode_images", "fps", "resample"),
)

Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Episodes


@dataclasses.dataclass(frozen=True)
class ConversionReport:
  """The result of a conversion, or of a comparison of its source and destination.

  Attributes:
    source_format: format of the source, such as 'store'; see `episodes.registry`.
    destination_format: format of the destination.
    num_episodes: number of episodes of the destination.
    num_steps: number of steps of all episodes.
    num_bytes: bytes of the values that this run read.
    resumed_at: number of episodes that earlier runs had converted.
    notes: sentences for the user on how the source was read.
    files: the files, or the folder, of the destination.
  """

  source_format: str
  destination_format: str
  num_episodes: int
  num_steps: int
  num_bytes: int
  resumed_at: int
  notes: tuple[str, ...] = ()
  files: tuple[str, ...] = ()


@gin.configurable
def convert(
  sources: Sources,
  destination: str | os.PathLike[str],
  spec: specs.SpecStructure | None = None,
  *,
  source_format: str | None = None,
  format: str | None = None,
  progress: Progress | None = None,
  **options: Any,
) -> ConversionReport:
  """Converts data sets of any format to one of any format that can be written.

  A conversion to a store or to TFRecord shards that was killed resumes when it is
  called again, and gives the same files. Other formats start again.

  >>> import numpy as np
  >>> from t2r_seq import convert, specs, store
  >>> x = specs.ExtendedTensorSpec((1,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"x": x}) as writer:
  ...   _ = writer.append_episode({"x": np.zeros((3, 1), np.float32)})
  >>> convert.convert("demo", "other", rename={"x": "state"}).num_episodes
  1

  Args:
    sources: a path for `open_episodes`; or several, which are joined; or episodes.
    destination: path of the new data set.
    spec: flat specs of the sources; None takes all paths, and for TFRecord files
      proposes specs from a sample of the records.
    source_format: format of the sources, if the paths do not show it.
    format: format of the destination; None: by its name, and a store if unknown.
    progress: shows how many episodes are converted; None shows nothing.
    **options: `episodes`, `split`, `drop`, `rename` ({'old': 'new'}), `cast`,
      `decode_images`. `split='train=0.9,eval=0.1'` assigns the episodes to random
      splits, by `seed` (0); `filter` then selects a split of the sources. `fps` is
      compared with the rate of the data, and does not resample it. `resample` ('hold'
      or 'nearest') makes values of the steps from values on other clocks. Further ones
      are those of `open_episodes` and `write_episodes` for the two formats.
  Returns:
    The report. If the conversion was complete before, no episode is read.
  Raises:
    ConversionError: something else is at the destination; the source or the options
      changed since an earlier run; another process converts to it; there are no
      episodes; or an episode cannot be converted, which is named.
    SpecError: the specs do not fit (every path is named), an option is unknown, or the
      destination is a URL.
    ImportError: an extra is not installed; names it.
  """
  errors.check_local("convert", destination)
  path = os.path.normpath(os.fspath(destination))
  plan = _Plan.make(sources, path, spec, source_format, format, options)
  earlier = _read_record(path)
  present = [name for name in plan.files(path) if os.path.lexists(name)]
  if earlier is not None and not present:
    earlier = None
  if earlier is None:
    chosen = registry.get_format(plan.format)
    registry.check_vacant(f"convert: {path}", path, chosen, plan.writing)
  else:
    plan.check_same(path, earlier["plan"])
  episodes = plan.open(sources)
  if "fps" in plan.edits:
    check_rate(f"convert: {path}", episodes, plan.edits["fps"])
  record = {
    "format": _FORMAT,
    "version": _VERSION,
    "source": ", ".join(plan.sources),
    "plan": dataclasses.asdict(plan),
    "fingerprint": _as_json(episodes.fingerprint()),
    "is_finished": False,
  }
  if earlier is not None:
    _check_same_source(path, earlier, record)
    if earlier["is_finished"]:
      _check_present(path, plan)
      return _report(plan, path, episodes, earlier, 0)
  if episodes.num_episodes == 0:
    raise errors.ConversionError(
      f"convert: {episodes.path}: expected at least one episode, got none."
    )
  with _lock_destination(path):
    if _read_record(path) != earlier and present:
      raise errors.ConversionError(
        f"convert: {path}: expected no other conversion to it, got one that another "
        "process has started. Run it again to resume that one."
      )
    _write_record(path, record)
    writer: EpisodeWriter | None = None
    try:
      writer = registry.open_writer(path, episodes, plan.format, **plan.writing)
      resumed_at = writer.num_committed
      copied = copy_episodes("convert", episodes, writer, progress)
    except BaseException:
      if writer is None or not writer.num_committed:
        os.remove(_record_name(path))
      raise
    now = {**record, "fingerprint": _as_json(episodes.fingerprint())}
    _check_same_source(path, record, now)
    counts = copied.num_episodes, copied.num_steps
    if resumed_at:
      counts = _count(plan.open_written(path, episodes))
    record |= {"is_finished": True, "num_episodes": counts[0], "num_steps": counts[1]}
    _write_record(path, record)
  source = writer.episodes or episodes
  return _report(plan, path, source, record, copied.num_bytes, resumed_at)


def verify_conversion(
  sources: Sources,
  destination: str | os.PathLike[str],
  progress: Progress | None = None,
) -> ConversionReport:
  """Compares the values of a complete conversion with its sources, bit by bit.

  The sources are opened with the options of the conversion. For videos that may have
  been encoded again, only dtypes and shapes are compared.

  Args:
    sources: sources of the conversion.
    destination: destination of the conversion.
    progress: shows how many episodes are compared; None shows nothing.
  Returns:
    The report, with the numbers of episodes, steps and bytes compared.
  Raises:
    ConversionError: the conversion is incomplete or missing, or episodes differ (names
      the first 20 paths).
    SpecError: the source or the destination cannot be read.
  """
  path = os.path.normpath(os.fspath(destination))
  record = _read_record(path)
  if record is None or not record["is_finished"]:
    got = "an incomplete one" if record else f"nothing in {_folder(path)}"
    raise errors.ConversionError(
      f"convert: {path}: expected a complete conversion to verify, got {got}. "
      "Convert first: convert(...), or t2r_seq convert without --verify."
    )
  plan = _Plan(**record["plan"])
  _check_present(path, plan)
  episodes = plan.open(sources)
  written = plan.open_written(path, episodes)
  # `rows()` is not None for stores only. A store copies the videos of a store byte by
  # byte; other formats may encode them again.
  is_exact = written.rows() is not None and episodes.format == plan.format
  lossy = frozenset(() if is_exact else written.videos)
  operation = f"convert: comparing {episodes.path} and {path}"
  num_bytes = compare_episodes(operation, episodes, written, lossy, progress)
  return _report(plan, path, episodes, record, num_bytes)


@dataclasses.dataclass(frozen=True)
class _Plan:
  """The sources and the options of a conversion; all fields are JSON values.

  Attributes:
    sources: absolute paths, for messages.
    source_format: format of all sources; None to recognize each.
    format: format of the destination.
    spec: JSON of the flat specs of the sources; None for all paths.
    edits: options of `convert` itself.
    reading: options of `open_episodes`.
    writing: options of `write_episodes`.
  """

  sources: list[str]
  source_format: str | None
  format: str
  spec: str | None
  edits: dict[str, Any]
  reading: dict[str, Any]
  writing: dict[str, Any]

  @classmethod
  def make(
    cls,
    sources: Sources,
    path: str,
    spec: specs.SpecStructure | None,
    source_format: str | None,
    format: str | None,
    options: Mapping[str, Any],
  ) -> _Plan:
    """Groups the options by the function that uses them."""
    names = _names(sources)
    if os.path.realpath(path) in map(os.path.realpath, names):
      raise errors.ConversionError(
        f"convert: {path}: expected another place than the source, got the source."
      )
    readers: list[registry.Format] = []
    if not isinstance(sources, Episodes):
      readers = [registry.find_format(name, source_format) for name in names]
    read = {each.name for each in readers}
    if isinstance(sources, Episodes):
      read = {sources.format}
    target = _destination_format(path, format, read)
    given = {name: value for name, value in options.items() if value is not None}
    readable = {name for each in readers for name in each.options} - {*_OWN, "spec"}
    registry.check_options(
      f"convert: {path}",
      f"a conversion from {errors.listing(read)} to {target.name}",
      given,
      {*_OWN, *target.writer_options, *readable},
    )
    fields = {*_OWN} - target.writer_options
    edits = {name: _edit_as_json(name, given[name]) for name in fields if name in given}
    others = {n: _as_json(value) for n, value in given.items() if n not in fields}
    writing = {n: v for n, v in others.items() if n in target.writer_options}
    reading = {n: v for n, v in others.items() if n not in writing}
    flat = None if spec is None else specs.flatten_spec_structure(spec)
    plan = cls(
      [os.path.abspath(name) for name in names],
      source_format,
      target.name,
      None if flat is None else specs.TensorSpecStruct(flat).to_json(),
      edits,
      reading,
      writing,
    )
    split = edits.get("split")
    if edits.get("filter") and split and not plan.shares:
      raise errors.ConversionError(
        f"convert: expected one of filter '{edits['filter']}' and split '{split}', got "
        "both. To assign the filtered episodes to splits, give shares: "
        "train=0.9,eval=0.1."
      )
    return plan

  @property
  def shares(self) -> dict[str, float]:
    """Share of the episodes that each random split gets, by its name."""
    split = self.edits.get("split") or ""
    return parse_shares("convert: split", split) if "=" in split else {}

  def files(self, path: str) -> list[str]:
    """Returns the files, or the folder, of the destination."""
    return registry.get_format(self.format).files(path, self.writing)

  def check_same(self, path: str, earlier: Mapping[str, Any]) -> None:
    """Raises ConversionError if options other than `allow_nan` have changed."""
    before, now = _Plan(**earlier)._options(), self._options()
    hint = (
      f"Give the same, or delete the destination and {_folder(path)} to start again."
    )
    mismatches = [
      errors.Mismatch(
        name,
        f"{before.get(name)!r:.200}, as at its start",
        f"{now.get(name)!r:.200}",
        hint,
      )
      for name in {**before, **now}
      if before.get(name) != now.get(name)
    ]
    if mismatches:
      raise errors.mismatch_error(
        f"convert: {path}", mismatches, errors.ConversionError
      )

  def _options(self) -> dict[str, Any]:
    options = {**self.edits, **self.reading, **self.writing}
    options |= {"format": self.format, "source_format": self.source_format}
    if self.spec is not None:
      options["spec"] = {
        name: errors.describe(leaf)
        for name, leaf in specs.TensorSpecStruct.from_json(self.spec).items()
      }
    options.pop("allow_nan", None)
    return options

  def open(self, sources: Sources) -> Episodes:
    """Opens the sources, edited and joined."""
    edits = self.edits
    dropped = views.Dropped(edits.get("drop", ()))
    split = edits.get("filter") or (None if self.shares else edits.get("split"))
    numbers = edits.get("episodes")
    names = _names(sources)
    is_one = len(names) == 1
    if isinstance(sources, Episodes):
      kept = sources.filter(dropped.filter(sources.spec)) if dropped.names else sources
      parts = [kept.select(numbers, split)]
    else:
      parts = [
        self._open_part(name, dropped, split, numbers if is_one else None)
        for name in names
      ]
    dropped.check(f"convert: {', '.join(names)}")
    renames, casts = edits.get("rename", {}), edits.get("cast", [])
    # A single data set gets all renames (or casts) at once, so an error names them all.
    by_one = [{old: new} for old, new in renames.items()]
    for names_of in [renames] if is_one and renames else by_one:
      parts = _edit(parts, operator.methodcaller("rename", names_of))
    for casts_of in [casts] if is_one and casts else [[cast] for cast in casts]:
      parts = _edit(parts, operator.methodcaller("cast", casts_of))
    if resampled := edits.get("resample"):
      parts = [Resampled(part, resampled) for part in parts]
    if edits.get("decode_images"):
      parts = [Decoded(part) for part in parts]
    episodes = parts[0] if is_one else parts[0].join(*parts[1:])
    if numbers is not None and not is_one:
      episodes = episodes.select(numbers)
    if self.shares:
      episodes = views.Dealt(episodes, self.shares, edits.get("seed", 0))
    return episodes

  def _open_part(
    self, name: str, dropped: views.Dropped, split: str | None, numbers: Any
  ) -> Episodes:
    chosen = registry.find_format(name, self.source_format)
    options = {n: v for n, v in self.reading.items() if n in chosen.options}
    declared = None
    if self.spec is not None:
      declared = dropped.filter(specs.TensorSpecStruct.from_json(self.spec))
      if "spec" in chosen.options:
        options["spec"], declared = declared, None
    part = open_episodes(
      name, chosen.name, split=split, episodes=numbers, drop=dropped, **options
    )
    if declared is not None:
      conformed = _check_same_specs(f"convert: {name}", declared, part.spec)
      part = views.Conformed(part, conformed)
    return part

  def open_written(self, path: str, episodes: Episodes) -> Episodes:
    """Opens the destination, to read it again."""
    chosen = registry.get_format(self.format)
    options: dict[str, Any] = {}
    if "spec" in chosen.options:
      options["spec"] = specs.TensorSpecStruct(
        (p, specs.ExtendedTensorSpec(**{**leaf.fields(), "name": leaf.name or p}))
        for p, leaf in episodes.spec.items()
      )
    if "compression" in chosen.options and "compression" in self.writing:
      options["compression"] = self.writing["compression"]
    names = self.files(path)
    written: Episodes = chosen.open(names if len(names) > 1 else path, **options)
    return written


def _names(sources: Sources) -> list[str]:
  if isinstance(sources, Episodes):
    return [sources.path]
  if isinstance(sources, (str, os.PathLike)):
    return [os.fspath(sources)]
  return [os.fspath(source) for source in sources]


def _edit_as_json(name: str, value: Any) -> Any:
  """Returns the value of an option of `convert` itself as JSON has it."""
  if name == "episodes":
    return read_episodes("convert", value)
  if name == "drop":
    return sorted(value)
  if name == "cast" and isinstance(value, Mapping):
    return [f"{path}={views.dtype_name(dtype)}" for path, dtype in value.items()]
  if name == "rename" and not isinstance(value, Mapping):
    return dict(text.partition("=")[::2] for text in value)
  return _as_json(value)


def _as_json(value: Any) -> Any:
  return json.loads(json.dumps(value, default=os.fspath))


def _destination_format(
  path: str, given: str | None, sources: Collection[str]
) -> registry.Format:
  """Returns the format of a destination: by its name, or a store if unknown."""
  if given is not None:
    return registry.written_format(path, given)
  store = registry.get_format("store")
  if os.path.isfile(os.path.join(path, layout.MANIFEST)):
    return store
  try:
    return registry.written_format(path)
  except errors.ConversionError:
    # A store that is converted to 'x.npz' should not become a store of that name.
    if "store" in sources and os.path.splitext(path)[1]:
      raise
    return store


def _edit(
  parts: list[Episodes], edit: Callable[[Episodes], Episodes]
) -> list[Episodes]:
  """Edits every data set that has the paths; raises if none of them has."""
  edited, failed = [], []
  for part in parts:
    try:
      edited.append(edit(part))
    except errors.SpecError as error:
      failed.append(error)
      edited.append(part)
  if len(failed) == len(parts):
    raise failed[0]
  return edited


def _check_same_specs(
  operation: str, spec_structure: specs.SpecStructure, spec: specs.TensorSpecStruct
) -> specs.TensorSpecStruct:
  """Returns the user's specs for a data set's paths; SpecError if they do not fit."""
  columns = layout.make_columns(
    operation, specs.map_leaves(specs.extended_tensor_spec.frame_spec, spec)
  )
  manifest.check_spec(operation, spec_structure, columns, False)
  return specs.TensorSpecStruct(
    # The data set determines how videos are stored.
    (
      path,
      spec[path]
      if specs.extended_tensor_spec.is_video_spec(spec[path])
      else specs.extended_tensor_spec.frame_spec(leaf),
    )
    for path, leaf in specs.flatten_spec_structure(spec_structure).items()
    if path in spec
  )


# The record of a conversion.


def _folder(path: str) -> str:
  return f"{path}.conversion"


def _record_name(path: str) -> str:
  return os.path.join(_folder(path), "conversion.json")


def _read_record(path: str) -> dict[str, Any] | None:
  """Returns the record of an earlier run; None for the first run."""
  name = _record_name(path)
  try:
    with open(name, "rb") as file:
      record = json.loads(file.read())
    if (record["format"], record["version"]) != (_FORMAT, _VERSION):
      raise ValueError("another format or version")
    _check_types(record, _RECORD_TYPES)
    _check_types(record["plan"], _PLAN_TYPES)
    if record["is_finished"]:
      _check_types(record, {"num_episodes": int, "num_steps": int})
    _Plan(**record["plan"])
    return dict(record)
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
    raise errors.ConversionError(
      f"convert: {name}: expected the record of a conversion, version {_VERSION}, got "
      f"{error!r:.120}. Delete {_folder(path)} and the destination to start again."
    ) from error


_RECORD_TYPES = {"source": str, "plan": dict, "fingerprint": dict, "is_finished": bool}
_PLAN_TYPES = {
  **dict.fromkeys(("edits", "reading", "writing"), dict),
  **dict.fromkeys(("source_format", "spec"), (str, type(None))),
  **{"sources": list, "format": str},
}


def _check_types(values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
  for name, kind in types.items():
    if not isinstance(values[name], kind):
      raise ValueError(f"{name}: {values[name]!r:.60}")


def _write_record(path: str, record: Mapping[str, Any]) -> None:
  files.replace_file(_record_name(path), json.dumps(record, indent=2).encode() + b"\n")


@contextlib.contextmanager
def _lock_destination(path: str) -> Iterator[None]:
  """Locks a destination; afterwards removes its folder if it has no record."""
  folder = _folder(path)
  files.make_folders(folder)
  lock = files.FileLock(
    os.path.join(folder, "lock"),
    lambda owner: errors.ConversionError(
      f"convert: {path}: expected no other conversion to it, got {owner}. Wait for it "
      "to end."
    ),
  )
  try:
    yield
  finally:
    if not os.path.exists(_record_name(path)):
      # The lock is still held: no other conversion uses the folder.
      shutil.rmtree(folder, ignore_errors=True)
    lock.release()


def _check_same_source(
  path: str, earlier: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
  if earlier["fingerprint"] == now["fingerprint"]:
    return
  if earlier["source"] != now["source"]:
    raise errors.ConversionError(
      f"convert: {path}: expected the source that it started from, "
      f"{earlier['source']}, got {now['source']}. Name that one; or delete the "
      f"destination and {_folder(path)}, or choose another destination."
    )
  raise errors.ConversionError(
    f"convert: {earlier['source']}: expected the data of the first run, "
    "got files of other sizes or times: the source changed. Delete the destination and "
    f"{_folder(path)} to start again."
  )


def _check_present(path: str, plan: _Plan) -> None:
  """Raises ConversionError if the output of a complete conversion is gone."""
  missing = [name for name in plan.files(path) if not os.path.exists(name)]
  if missing:
    raise errors.ConversionError(
      f"convert: {path}: expected the files of the earlier conversion, got nothing at "
      f"{errors.listing(missing, limit=5)}. To convert it again, delete {_folder(path)}"
      " and the destination."
    )


def _count(episodes: Episodes) -> tuple[int, int]:
  if episodes.lengths is not None:
    return len(episodes.lengths), int(np.sum(episodes.lengths))
  steps = [num_steps(episode.values, episodes.spec) for episode in episodes]
  return len(steps), sum(steps)


def _report(
  plan: _Plan,
  path: str,
  episodes: Episodes,
  record: Mapping[str, Any],
  num_bytes: int,
  resumed_at: int | None = None,
) -> ConversionReport:
  count = record["num_episodes"]
  return ConversionReport(
    episodes.format,
    plan.format,
    count,
    record["num_steps"],
    num_bytes,
    count if resumed_at is None else min(resumed_at, count),
    (*episodes.notes, *episodes.problems),
    tuple(plan.files(path)),
  )
