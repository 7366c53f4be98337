"""What is counted: episodes of any format, or record files, read once by parts."""

from __future__ import annotations

import abc
import dataclasses
import importlib
import inspect
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.episodes import Episodes, open_episodes, registry
from t2r_seq.episodes.episodes import Values, num_steps
from t2r_seq.records import framing
from t2r_seq.records.files import FilePatterns, check_file_types
from t2r_seq.records.framing import iterate_records
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.specs.extended_tensor_spec import added_axes
from t2r_seq.specs.names import source_paths
from t2r_seq.statistics import statistics
from t2r_seq.statistics.statistics import Statistics, file_fingerprints, load_statistics
from t2r_seq.store import EpisodeStore, layout
from t2r_seq.windows.n_step import final_path

# Parts are read whole, one for each worker and a few in waiting.
PART_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Item:
  """An episode, or a block of plain records.

  Attributes:
    values: by path, as the specs say: [T, ...] and context features of an episode,
      [B, ...] of a block. Absent optionals are left out.
    skipped: rows by path that were not read, because they are bytes.
    num_steps: T; None for a block.
  """

  values: Values
  skipped: dict[str, int]
  num_steps: int | None


class Source(abc.ABC):
  """Episodes or records, of specs that are known before the first is read.

  Attributes:
    kind: 'records', 'store' or 'episodes', of another format.
    spec: flat specs by path.
    is_blocks: items are blocks of plain records, not episodes.
    fingerprint: tells whether the source has changed; texts by name of a file.
  """

  kind: str
  spec: specs.TensorSpecStruct
  is_blocks: bool
  fingerprint: dict[str, str]

  @abc.abstractmethod
  def parts(self) -> Iterator[Any]:
    """Yields parts, a few episodes or records each, that `read` knows how to read.

    Where they end is always the same.
    """

  @abc.abstractmethod
  def read(self, part: Any) -> Iterator[Item]:
    """Yields the items of a part; called by several threads at a time."""


Rows = dict[str, tuple[ExtendedTensorSpec, np.ndarray]]


class Transform(abc.ABC):
  """Turns the values of an episode, or of a block, into rows.

  Attributes:
    name: for people.
  """

  name: str = ""

  def stored_specs(self, stored: TensorSpecStruct | None) -> TensorSpecStruct | None:
    """Returns the flat specs of the values to read; None for all of them.

    Args:
      stored: the specs of the source by path; None for records, which have names.
    Raises:
      SpecError: the source lacks a path.
    """
    del stored
    return None

  def prepare(self, source: Source) -> None:  # noqa: B027
    """Checks, before the first episode, that the source has what is needed."""

  @abc.abstractmethod
  def to_rows(self, values: Values, source: Source) -> Rows:
    """Returns (spec of a row, rows [n, ...]) by path."""

  def representation(self, path: str) -> str:
    """Returns what has changed the values of a path; '' for nothing."""
    del path
    return ""


class NoTransform(Transform):
  """Takes the values as they are."""

  def to_rows(self, values: Values, source: Source) -> Rows:
    return {
      path: (source.spec[path], _as_rows(value, source, path))
      for path, value in values.items()
    }


class FunctionTransform(Transform):
  """Calls a user's function with every episode."""

  def __init__(self, function: Callable[[Values], Mapping[str, Any]]) -> None:
    """Wraps the function: arrays by path to a structure of arrays or tensors."""
    self._function = function
    self._changed: set[str] = set()
    self.name = _name(function)

  def to_rows(self, values: Values, source: Source) -> Rows:
    # Copies, as the function may change its input.
    given = {path: value.copy() for path, value in values.items()}
    returned = specs.flatten_spec_structure(self._function(given))
    rows: Rows = {}
    for path, value in returned.items():
      # A copy: the function may use its memory again.
      array = np.array(value.numpy() if tf.is_tensor(value) else value)
      if path not in values or not _is_equal(array, values[path]):
        self._changed.add(path)
      array = _as_rows(array, source, path)
      if not array.ndim:
        raise errors.SpecError(
          f"{self.name}: {path}: expected values of every step, (T, ...), got "
          f"{errors.describe(array)}."
        )
      rows[path] = (_row_spec(source.spec.get(path), array), array)
    return rows

  def representation(self, path: str) -> str:
    """Returns the name of the function if it changed a value in any episode."""
    name = re.split(r"[:.]", self.name)[-1]
    return name if path in self._changed else ""


def _is_equal(one: np.ndarray, other: np.ndarray) -> bool:
  is_float = one.dtype == other.dtype and one.dtype.kind == "f"
  return np.array_equal(one, other, equal_nan=is_float)


class PreprocessorTransform(Transform):
  """Runs a preprocessor in mode 'train' on all windows of an episode.

  The statistics are of its out features and labels. A stack of K steps counts as K
  rows, so figures are of single steps. Steps that padding makes up don't count.
  """

  def __init__(self, preprocessor: Any, images: bool, cut: windows.Cut) -> None:
    """Wraps the preprocessor.

    Args:
      preprocessor: an `AbstractPreprocessor`.
      images: whether encoded images are decoded.
      cut: how the windows are cut.
    Raises:
      SpecError: images are needed.
    """
    if cut.n_step is not None:
      n_step = dataclasses.replace(cut.n_step, branches=_BRANCHES)
      cut = dataclasses.replace(cut, n_step=n_step)
    self._preprocessor = preprocessor
    self._cut = cut
    self.name = _name(type(preprocessor))
    mode = ModeKeys.TRAIN
    self._in = _join(
      preprocessor.get_in_feature_specification(mode),
      preprocessor.get_in_label_specification(mode),
    )
    self._out = _join(
      preprocessor.get_out_feature_specification(mode),
      preprocessor.get_out_label_specification(mode),
    )
    # A class that only has the methods of the protocol changes every path.
    self._representations = dict(getattr(preprocessor, "representations", dict)())
    self._readers: dict[frozenset[str], windows.WindowReader] = {}
    flat = windows.flat_specs(self._in, cut.n_step)
    encoded = [p for p, s in flat.items() if specs.is_encoded_image_spec(s)]
    if encoded and not images:
      shown = errors.listing([path.partition("/")[2] for path in encoded])
      raise errors.SpecError(
        f"statistics: {self.name}: expected decoded images at {shown}"
        ", got images=False. Ask for them with images=True, or --images."
      )

  def stored_specs(self, stored: TensorSpecStruct | None) -> TensorSpecStruct | None:
    """Returns the specs of the input by 'features/<path>', or those stored for it."""
    flat = windows.flat_specs(self._in, self._cut.n_step)
    if stored is None:
      return TensorSpecStruct(
        (path, ExtendedTensorSpec.from_spec(spec, name=spec.name or _own(path)))
        for path, spec in flat.items()
      )
    named = {p: spec for p, spec in self._named(stored).items() if p in flat}
    missing = [
      errors.Mismatch(
        path, errors.describe(spec), "nothing", errors.nearest(_own(path), stored)
      )
      for path, spec in named.items()
      if spec.name not in stored and not spec.is_optional
    ]
    if missing:
      raise errors.mismatch_error(f"statistics: {self.name}", missing)
    sources = [spec.name for spec in named.values() if spec.name in stored]
    if self._cut.n_step is not None:  # The last observations of episodes.
      sources += [p for p in map(final_path, sources) if p in stored]
    return TensorSpecStruct((source, stored[source]) for source in sources)

  def _named(self, stored: Mapping[str, Any]) -> TensorSpecStruct:
    """Names each spec after what it reads: the stored path, as in training."""
    named = TensorSpecStruct()
    for branch in _BRANCHES:
      own = {_own(p): s for p, s in self._in.items() if p.startswith(f"{branch}/")}
      sources = source_paths(own, stored)
      for path, spec in own.items():
        name = sources[path]
        named[f"{branch}/{path}"] = ExtendedTensorSpec.from_spec(spec, name=name)
    return named

  def prepare(self, source: Source) -> None:
    """Plans the windows, so that specs that don't fit are an error before any data."""
    if not source.is_blocks and self._is_cut(source):
      self._reader(source, source.spec)

  def _is_cut(self, source: Source) -> bool:
    """Whether episodes are cut into windows; sequences can count as a whole."""
    if windows.is_windowed(self._in) or self._cut.sequence_length is not None:
      return True
    named = self._named(source.spec)
    return any(
      not spec.is_sequence
      and getattr(source.spec.get(path, source.spec.get(spec.name)), "is_sequence", 0)
      for path, spec in named.items()
    )

  def _reader(self, source: Source, present: Iterable[str]) -> windows.WindowReader:
    key = frozenset(present)
    if key not in self._readers:
      element = {
        path: tf.TensorSpec([None] * spec.is_sequence + spec.shape, spec.dtype)
        for path, spec in source.spec.items()
        if path in key
      }
      named = self._named(element)
      self._readers[key] = windows.WindowReader(element, named, self._cut)
    return self._readers[key]

  def to_rows(self, values: Values, source: Source) -> Rows:
    tensors = {path: tf.convert_to_tensor(value) for path, value in values.items()}
    starts, num_steps = np.zeros(0, np.int64), 0
    if source.is_blocks:
      batch = self._select(tensors)
    elif not self._is_cut(source):
      batch = {path: t[None] for path, t in self._select(tensors).items()}
    else:
      reader = self._reader(source, values)
      # A terminal transition may begin with the last row.
      num_steps = int(reader.num_rows_of(tensors, reader.num_steps(tensors)))
      starts = reader.grid.start(np.arange(reader.grid.num_windows(num_steps)))
      if not len(starts):
        return {}
      batch = dict(reader.read(tensors, starts))
    inputs = [
      TensorSpecStruct((_own(p), batch[p]) for p in batch if p.startswith(f"{branch}/"))
      for branch in _BRANCHES
    ]
    results = self._preprocessor.preprocess(*inputs, ModeKeys.TRAIN)
    return {
      self._name_of(branch, path): self._out_rows(
        f"{branch}/{path}", value.numpy(), starts, num_steps
      )
      for branch, result in zip(_BRANCHES, results, strict=True)
      for path, value in (result or {}).items()
    }

  def _select(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    named = self._named(tensors)
    sources = {p: p if p in tensors else s.name for p, s in named.items()}
    return {path: tensors[s] for path, s in sources.items() if s in tensors}

  def _name_of(self, branch: str, path: str) -> str:
    """Returns the path of the statistics: with its branch if both branches have it."""
    is_shared = all(f"{each}/{path}" in self._out for each in _BRANCHES)
    return f"{branch}/{path}" if is_shared else path

  def representation(self, path: str) -> str:
    """Returns the stages that changed the values of a path."""
    for key in (path, *(f"{branch}/{path}" for branch in _BRANCHES)):
      if key in self._representations:
        found = self._representations[key]
        return type(self._preprocessor).__name__ if found is None else found
    return type(self._preprocessor).__name__

  def _out_rows(
    self, path: str, value: np.ndarray, starts: np.ndarray, num_steps: int
  ) -> tuple[ExtendedTensorSpec, np.ndarray]:
    spec = self._out.get(path)
    lead = 1
    if spec is not None:
      lead += spec.is_sequence + isinstance(spec.time_offsets, tuple)
    rows = value.reshape(-1, *value.shape[lead:])
    if spec is not None and len(starts):
      steps = starts
      if spec.is_sequence and self._cut.sequence_length is not None:
        stacks = self._cut.stride * np.arange(self._cut.sequence_length)
        steps = steps[:, None] + stacks
      if spec.time_offsets not in (None, "last"):
        offsets = np.asarray(spec.time_offsets)
        steps = steps.reshape(*steps.shape, *[1] * offsets.ndim) + offsets
      if steps.shape == value.shape[:lead]:
        rows = rows[((steps >= 0) & (steps < num_steps)).reshape(-1)]
    return _row_spec(spec, rows), rows


_BRANCHES = ("features", "labels")


def _own(path: str) -> str:
  """Returns a path without its branch, 'features' or 'labels'."""
  return path.partition("/")[2]


def _join(features: Any, labels: Any) -> TensorSpecStruct:
  """Puts specs below 'features/' and 'labels/'."""
  return TensorSpecStruct(
    (f"{branch}/{path}", ExtendedTensorSpec.to_spec(spec))
    for branch, structure in zip(_BRANCHES, (features, labels), strict=True)
    for path, spec in specs.flatten_spec_structure(structure or {}).items()
  )


def create_transform(
  transform: Any, images: bool, cut: windows.Cut | None = None
) -> Transform:
  """Wraps what a user gives.

  Args:
    transform: None, a function of an episode, a preprocessor, a model or its class, or
      'module:name' of one of these.
    images: whether encoded images are decoded.
    cut: of the windows of a preprocessor; None for `windows.Cut()`.
  Returns:
    The transform.
  Raises:
    SpecError: it is none of these, or a cut is given where nothing is cut.
  """
  if isinstance(transform, str):
    transform = _import(transform)
  if inspect.isclass(transform) and hasattr(transform, "step_preprocessor"):
    transform = transform()  # The class of a model.
  is_instance = not inspect.isclass(transform)
  if is_instance and hasattr(transform, "step_preprocessor"):
    cut = cut or windows.Cut(padding=transform.padding)
    preprocessor = transform.step_preprocessor.before_normalization()
    return PreprocessorTransform(preprocessor, images, cut)
  if is_instance and hasattr(transform, "preprocess"):
    return PreprocessorTransform(transform, images, cut or windows.Cut())
  if cut is not None:
    raise errors.SpecError(
      "statistics: cut: expected None, as only a preprocessor or a model sees windows, "
      f"got {cut}. Give one of them as the transform."
    )
  if transform is None:
    return NoTransform()
  if not callable(transform) or inspect.isclass(transform):
    raise errors.SpecError(
      "statistics: transform: expected a function of an episode or a preprocessor, got "
      f"{errors.describe(transform)}."
    )
  return FunctionTransform(transform)


def _import(source: str) -> Any:
  module_name, separator, name = source.partition(":")
  if not (module_name and separator and name):
    raise errors.SpecError(
      f"statistics: transform: expected MODULE:NAME, got {source!r}."
    )
  module = importlib.import_module(module_name)
  if not hasattr(module, name):
    raise errors.SpecError(
      f"statistics: transform: expected a name of {module_name}, got {name!r}."
      f"{errors.nearest(name, vars(module))}"
    )
  return getattr(module, name)


def _as_rows(value: np.ndarray, source: Source, path: str) -> np.ndarray:
  """Gives context features of an episode the axis of rows; what is new has one."""
  spec = source.spec.get(path)
  is_context = not source.is_blocks and spec is not None and not spec.is_sequence
  return value[None] if is_context else value


def _row_spec(spec: ExtendedTensorSpec | None, rows: np.ndarray) -> ExtendedTensorSpec:
  """Describes rows; keeps what the spec says where it still fits."""
  dtype = tf.string if rows.dtype.kind in "SUO" else tf.as_dtype(rows.dtype)
  if spec is None:
    return ExtendedTensorSpec(rows.shape[1:], dtype, is_sequence=True)
  if (
    spec.time_offsets is None
    and spec.dtype == dtype
    and spec.shape.is_compatible_with(rows.shape[1:])
  ):
    return ExtendedTensorSpec.from_spec(spec, shape=rows.shape[1:])
  if spec.dtype.is_integer and dtype == tf.string:
    return spec  # An encoded image, as it is.
  is_sequence = spec.is_sequence or spec.time_offsets is not None
  return ExtendedTensorSpec(rows.shape[1:], dtype, spec.name, is_sequence=is_sequence)


def _name(function: Any) -> str:
  module = getattr(function, "__module__", "")
  return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


class RecordSource(Source):
  """Reads files one after the other; their records are parsed by the workers."""

  kind = "records"

  def __init__(
    self,
    file_patterns: FilePatterns,
    spec: specs.SpecStructure | None,
    images: bool,
    reads_bytes: bool,
    compression: str | None = None,
  ) -> None:
    """Finds the files and makes the parser.

    Args:
      file_patterns: of the files.
      spec: flat specs; None infers them from the first records.
      images: decodes encoded images.
      reads_bytes: gives strings and encoded images; otherwise counts them.
      compression: of all files, if the suffixes don't tell.
    Raises:
      SpecError: no file, or a spec that cannot be parsed.
      RecordError: a file that is none of TFRecords.
    """
    _, self._files = records.get_data_format_and_filenames(file_patterns)
    check_file_types(self._files, compression)
    self._compression = compression
    self.spec = self._infer() if spec is None else specs.flatten_spec_structure(spec)
    self.is_blocks = not any(leaf.is_sequence for leaf in self.spec.values())
    self.fingerprint = statistics.file_fingerprints(self._files)
    self._reads_bytes = reads_bytes
    self._absent = {p: s for p, s in self.spec.items() if _may_be_absent(s)}
    self._lengths = {p: f"{p}_length" for p, s in self.spec.items() if s.is_sequence}
    self._decoders = {
      path: _make_decoder(path, leaf)
      for path, leaf in self.spec.items()
      if images and specs.is_encoded_image_spec(leaf)
    }
    parse = records.create_parse_tf_example_fn(
      specs.add_sequence_length_specs(self.spec), decode_images=False
    )
    rank = [None] if self.is_blocks else []
    self._parse = _traced(parse, tf.TensorSpec(rank, tf.string))

  def _infer(self) -> specs.TensorSpecStruct:
    # All of them: a list that is empty once would not fit what the first ones have.
    summary = records.inspect_records(self._files, compression=self._compression)
    proposed = records.propose_spec(summary)
    for line in summary.describe_odd_values():
      logging.warning("%s", line)
    padded = [
      path
      for path, leaf in proposed.items()
      if leaf.varlen_default_value is not None and leaf.dtype != tf.string
    ]
    if padded:
      hint = (
        "Its records have different numbers of values, and what would fill them up is "
        "no data. Name it in a spec to have it count; t2r_seq doctor tells the records "
        "apart."
      )
      if len(padded) == len(proposed):
        found = [
          errors.Mismatch(p, "as many values in every record", "others", hint)
          for p in padded
        ]
        raise errors.mismatch_error(f"statistics: {self._files[0]}", found)
      for path in padded:
        logging.warning("No statistics of '%s'. %s", path, hint)
    return specs.TensorSpecStruct(
      (p, s) for p, s in proposed.items() if p not in padded
    )

  def parts(self) -> Iterator[tuple[str, list[bytes]]]:
    """See the base class; the files are read here, checksums verified."""
    for name in self._files:
      with records.explain_failures([name], self.spec):
        yield from self._file_parts(name)

  def _file_parts(self, name: str) -> Iterator[tuple[str, list[bytes]]]:
    kind = records.files.compression_type(name, self._compression)
    dataset = tf.data.TFRecordDataset(name, compression_type=kind)
    found: list[bytes] = []
    num_bytes = total = 0
    lengths = map(len, dataset.as_numpy_iterator())
    size = framing.batch_size(lengths, PART_BYTES)
    for batch in dataset.batch(size).as_numpy_iterator():
      found += batch.tolist()
      num_bytes += sum(map(len, batch)) + framing.FRAME_SIZE * len(batch)
      if num_bytes >= PART_BYTES:
        yield name, found
        total += num_bytes
        found, num_bytes = [], 0
    if not kind and total + num_bytes != tf.io.gfile.stat(name).length:
      _find_end(name)
    yield name, found

  def read(self, part: tuple[str, list[bytes]]) -> Iterator[Item]:
    name, serialized = part
    with records.explain_failures([name], self.spec):
      if not self.is_blocks:
        yield from self._episodes(name, serialized)
        return
      step = 1 if self._absent else len(serialized)
      for start in range(0, len(serialized), step):
        yield self._block(serialized[start : start + step])

  def _episodes(self, name: str, serialized: Iterable[bytes]) -> Iterator[Item]:
    """Yields those that have steps, as every reader does."""
    num_empty = 0
    for record in serialized:
      item = self._episode(record)
      num_empty += not item.num_steps
      if item.num_steps:
        yield item
    if num_empty:
      logging.warning(
        "statistics: %s: %d episodes without a step are left out.", name, num_empty
      )

  def _episode(self, record: bytes) -> Item:
    parsed = self._parse(tf.constant(record))
    for path, length in self._lengths.items():
      parsed[path] = parsed[path][: parsed[length]]
    values, skipped = self._split(parsed, [record])
    counts = [
      int(parsed[length])
      for path, length in self._lengths.items()
      if path in values or path in skipped
    ]
    return Item(values, skipped, max(counts, default=0))

  def _block(self, serialized: Sequence[bytes]) -> Item:
    return Item(*self._split(self._parse(tf.constant(serialized)), serialized), None)

  def _split(
    self, parsed: Any, serialized: Sequence[bytes]
  ) -> tuple[Values, dict[str, int]]:
    """Leaves out what is absent, and counts the bytes that nobody reads."""
    present = records.present_names(serialized[0]) if self._absent else set()
    values: Values = {}
    skipped: dict[str, int] = {}
    for path, spec in self.spec.items():
      if path in self._absent and spec.name not in present:
        continue
      kind = object if parsed[path].dtype == tf.string else None
      value = np.asarray(parsed[path].numpy(), kind)
      has_rows = self.is_blocks or spec.is_sequence
      if spec.is_sequence and not self._reads_bytes:
        value = _without_missing(spec, value)
      if path in self._decoders:
        pixels = self._decoders[path](value if has_rows else value[None])
        values[path] = pixels if has_rows else pixels[0]
      elif kind is object and not self._reads_bytes:
        skipped[path] = len(value) if has_rows else 1
      else:
        values[path] = value
    return values, skipped


def _without_missing(spec: specs.ExtendedTensorSpec, rows: np.ndarray) -> np.ndarray:
  """Returns the rows but for those with an image that is missing: an empty string."""
  if not specs.is_encoded_image_spec(spec) or rows.dtype != object:
    return rows
  is_there = np.asarray(rows != b"", bool)
  return rows[is_there.all(axis=tuple(range(1, rows.ndim)))]


def _find_end(name: str) -> None:
  """Raises what is wrong with the end, which TensorFlow's reader passes over."""
  for _ in iterate_records(name):
    pass


def _may_be_absent(spec: specs.ExtendedTensorSpec) -> bool:
  is_varlen = spec.varlen_default_value is not None
  return spec.is_optional or (spec.is_sequence and is_varlen)


def _traced(function: Callable[..., Any], signature: tf.TensorSpec) -> Any:
  """Traces apart from the call: five first calls in a row would look like retracing."""
  traced = tf.function(function, input_signature=[signature], autograph=False)
  return traced.get_concrete_function()


def _make_decoder(
  path: str, spec: specs.ExtendedTensorSpec
) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a function of encoded images [n, ...] that gives their pixels."""
  outer = [None] * (spec.shape.rank - 3 + 1)

  def decode_images(encoded: tf.Tensor) -> tf.Tensor:
    return records.decode_images(encoded, spec, path)

  decode = _traced(decode_images, tf.TensorSpec(outer, tf.string))

  def to_pixels(encoded: np.ndarray) -> np.ndarray:
    pixels = decode(tf.constant(encoded, tf.string)).numpy()
    return pixels.reshape(len(encoded), *spec.shape)

  return to_pixels


_MAX_EPISODES = 4096


class EpisodesSource(Source):
  """Reads whole episodes of any format.

  With random access the workers read the episodes. Otherwise they are read here, one
  after the other, and the workers decode images and count.
  """

  is_blocks = False

  def __init__(
    self,
    episodes: Episodes,
    wanted: TensorSpecStruct | None,
    images: bool,
    reads_bytes: bool,
  ) -> None:
    """Plans what is read.

    Args:
      episodes: as from `open_episodes`.
      wanted: flat specs of the paths to read; None for all. Without images, frames
        that would have to be decoded from videos are left out.
      images: decodes encoded images, and videos.
      reads_bytes: gives strings and encoded images; otherwise counts them.
    Raises:
      SpecError: with every path that the episodes lack, or have otherwise.
    """
    store = episodes.rows()
    self.kind = "episodes" if store is None else "store"
    if store is None:
      found = episodes.fingerprint().items()
      self.fingerprint = {name: json.dumps(value) for name, value in found}
    else:
      self.fingerprint = _store_fingerprint(store)
    if not images:
      # Whole videos are counted, where they are columns; nothing is decoded.
      episodes = episodes.with_videos(specs.VIDEO_FORMATS)
    self._episodes = episodes
    decoded = () if images else {*episodes.videos} - {*episodes.kept_videos}
    paths = [path for path in episodes.spec if path not in decoded]
    if wanted is not None:
      _check_specs(episodes, wanted)
      paths = [*wanted]
    self.spec = TensorSpecStruct((path, episodes.spec[path]) for path in paths)
    encoded = {p: s for p, s in self.spec.items() if specs.is_encoded_image_spec(s)}
    self._decoders = {p: _make_decoder(p, s) for p, s in encoded.items() if images}
    self._counted = {
      path
      for path, leaf in self.spec.items()
      if not reads_bytes
      and (path in encoded or leaf.dtype == tf.string or specs.is_video_spec(leaf))
      and path not in self._decoders
    }
    self._reads_bytes = reads_bytes
    # Optional ones are read, as only their values tell which are there.
    self._read = [
      path
      for path, leaf in self.spec.items()
      if path not in self._counted or leaf.is_optional
    ]

  def parts(self) -> Iterator[Any]:
    """Yields ranges of episodes, cut by the bytes that are read; or their values."""
    lengths = self._episodes.lengths
    if lengths is None:
      yield from self._values()
      return
    row_bytes = sum(
      int(np.prod(leaf.shape.as_list())) * max(leaf.dtype.size, 1)
      for path, leaf in self.spec.items()
      if leaf.is_sequence and path not in self._counted
    )
    total = np.cumsum(lengths, dtype=np.int64) * max(row_bytes, 1)
    start = 0
    while start < len(lengths):
      before = int(total[start - 1]) if start else 0
      end = int(np.searchsorted(total, before + PART_BYTES)) + 1
      end = min(end, start + _MAX_EPISODES, len(lengths))
      yield range(start, end)
      start = end

  def _values(self) -> Iterator[list[Values]]:
    size = 0
    group: list[Values] = []
    for episode in self._episodes:
      group.append(episode.values)
      size += sum(value.nbytes for value in episode.values.values())
      if size >= PART_BYTES or len(group) == _MAX_EPISODES:
        yield group
        group, size = [], 0
    if group:
      yield group

  def read(self, part: range | list[Values]) -> Iterator[Item]:
    """See the base class."""
    lengths = self._episodes.lengths
    if isinstance(part, range) and lengths is not None:
      for number in part:
        yield self._item(self._episodes.read(number, self._read), int(lengths[number]))
      return
    for values in part:
      assert isinstance(values, dict)
      yield self._item(values, num_steps(values, self._episodes.spec))

  def _item(self, values: Mapping[str, np.ndarray], length: int) -> Item:
    found: Values = {}
    skipped: dict[str, int] = {}
    for path, spec in self.spec.items():
      if path not in values:
        if path in self._counted and not spec.is_optional:
          skipped[path] = length if spec.is_sequence else 1
        continue
      value = values[path]
      if spec.is_sequence and not self._reads_bytes:
        value = _without_missing(spec, value)
      if path in self._counted and value.dtype == object:
        skipped[path] = len(value) if spec.is_sequence else 1
        continue
      if path in self._decoders:
        pixels = self._decoders[path](value if spec.is_sequence else value[None])
        value = pixels if spec.is_sequence else pixels[0]
      found[path] = value
    return Item(found, skipped, length)


def _check_specs(episodes: Episodes, wanted: TensorSpecStruct) -> None:
  """Checks that the episodes have what is read."""
  found = []
  for path, spec in wanted.items():
    given = episodes.spec.get(path)
    if given is None:
      near = errors.nearest(path, episodes.spec)
      found.append(errors.Mismatch(path, errors.describe(spec), "nothing", near))
    elif given.dtype not in (spec.dtype, spec.stored_dtype) or not (
      spec.shape.is_compatible_with(given.shape)
      or specs.is_encoded_image_spec(given)
      or added_axes(given.shape, spec.shape)
    ):
      got = errors.describe(given)
      found.append(errors.Mismatch(path, errors.describe(spec), got))
  if found:
    raise errors.mismatch_error(f"statistics: {episodes.path}", found)


def _store_fingerprint(opened: EpisodeStore) -> dict[str, str]:
  """Returns that of the specs, the lengths and the checksums of the episodes.

  A merge of segments leaves it unchanged: only offsets of bytes differ after one.
  """
  columns = opened.columns
  names = layout.file_names(columns)
  offsets = {c.offsets_file for c in columns.values() if c.is_bytes}
  kept = [index for index, name in enumerate(names) if name not in offsets]
  crc = zlib.crc32(opened.episode_lengths.astype("<i8").tobytes())
  for segment in opened.segments:
    path = os.path.join(segment.folder, layout.CHECKSUMS)
    sums = np.fromfile(path, "<u4", len(segment) * len(names))
    crc = zlib.crc32(sums.reshape(-1, len(names))[:, kept].tobytes(), crc)
  spec_crc = zlib.crc32(opened.spec.to_json().encode())
  return {"specs": f"{spec_crc:08x}", "episodes": f"{len(opened)}-{crc:08x}"}


_MAX_SHOWN = 10
SourceName = FilePatterns | os.PathLike[str] | Episodes
"""A path of any format, patterns of TFRecord files, or episodes."""


def _open_episodes(source: SourceName) -> Episodes | None:
  """Returns episodes; None for TFRecord files, whose records are read by blocks."""
  if isinstance(source, Episodes):
    return source
  if isinstance(source, (str, os.PathLike)) and registry.find_format(source).has_specs:
    return open_episodes(source)
  patterns: Any = source
  names = records.get_data_format_and_filenames(patterns)[1]
  # TensorFlow does not read ArrayRecord.
  return open_episodes(",".join(names)) if framing.is_array_record(names[0]) else None


def open_source(
  source: SourceName,
  spec: specs.SpecStructure | None,
  transform: Transform,
  images: bool,
  compression: str | None = None,
) -> Source:
  """Opens a source; see `compute_statistics`."""
  wanted = None if spec is None else windows.flat_specs(spec)
  reads_bytes = bool(transform.name)
  episodes = _open_episodes(source)
  if wanted is None:
    wanted = transform.stored_specs(None if episodes is None else episodes.spec)
  if episodes is not None:
    return EpisodesSource(episodes, wanted, images, reads_bytes)
  patterns: Any = source
  return RecordSource(patterns, wanted, images, reads_bytes, compression)


def check_statistics(path: str | os.PathLike[str], source: SourceName) -> Statistics:
  """Reads statistics, and checks that their source has not changed since.

  Args:
    path: of the JSON file.
    source: as for `compute_statistics`.
  Returns:
    The statistics.
  Raises:
    SpecError: the file is none of statistics, or the source has changed; every file
      that has is named.
  """
  statistics = load_statistics(path)
  episodes = _open_episodes(source)
  if episodes is not None:
    now = EpisodesSource(episodes, None, False, False).fingerprint
  else:
    patterns: Any = source
    now = file_fingerprints(records.get_data_format_and_filenames(patterns)[1])
  changes = statistics.find_changes(now)
  if changes:
    shown = "; ".join(changes[:_MAX_SHOWN])
    if len(changes) > _MAX_SHOWN:
      shown += f"; {len(changes) - _MAX_SHOWN} changes more"
    raise errors.SpecError(
      f"statistics: {os.fspath(path)}: expected the source that they were computed "
      f"from, got another: {shown}. Compute them again."
    )
  return statistics
