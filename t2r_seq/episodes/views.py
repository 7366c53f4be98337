"""`Episodes` and its views: immutable, lazy, composable; each changes one thing."""

from __future__ import annotations

import bisect
import itertools
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes import splits as splits_lib
from t2r_seq.episodes.casting import cast_values, find_casts
from t2r_seq.episodes.episodes import Episode, EpisodeReader, Values
from t2r_seq.imports import tf


class Dropped:
  """The paths that a user leaves out: 'next_obs' drops 'next_obs/image', too."""

  def __init__(self, names: Iterable[str] = ()) -> None:
    self.names = {name.strip("/") for name in names}
    self._matches: set[str] = set()
    self._paths: set[str] = set()

  def has(self, path: str) -> bool:
    """Whether a path is left out; records that it exists."""
    self._paths.add(path)
    matches = {n for n in self.names if path == n or path.startswith(f"{n}/")}
    self._matches |= matches
    return bool(matches)

  def filter(self, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specs that stay."""
    return {path: leaf for path, leaf in spec.items() if not self.has(path)}

  def check(self, operation: str) -> None:
    """Raises SpecError if a name matched no path of `has`."""
    mismatches = [
      errors.Mismatch(
        name,
        f"one of the paths {errors.listing(self._paths)}",
        "no such path",
        errors.nearest(name, self._paths),
      )
      for name in self.names - self._matches
    ]
    if mismatches:
      raise errors.mismatch_error(operation, mismatches)


class Episodes(EpisodeReader):
  """A data set of episodes: specs, lengths, splits and metadata; reads values.

  `select`, `filter`, `drop`, `rename`, `cast`, `map` and `join` return views, which are
  data sets, too, and lazy. The attributes are those of `EpisodeReader`; a format is a
  subclass, see `register_format`.

  >>> import numpy as np
  >>> from t2r_seq import specs, store
  >>> state = specs.ExtendedTensorSpec((2,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"state": state}) as writer:
  ...   for num_steps in (5, 3):
  ...     _ = writer.append_episode({"state": np.zeros((num_steps, 2), np.float32)})
  >>> from t2r_seq import episodes
  >>> demo = episodes.open_episodes("demo")
  >>> demo.select([1]).lengths.tolist(), demo.join(demo).lengths.tolist()
  ([3], [5, 3, 5, 3])
  >>> arm = demo.rename({"state": "arm/pose"}).cast({"arm/pose": "float64"})
  >>> arm.read(0)["arm/pose"].dtype, list(arm.drop(["arm"]).spec)
  (dtype('float64'), [])
  >>> doubled = demo.map(lambda values: {"state": 2 * values["state"]}, demo.spec)
  >>> doubled.read(0, start=1, stop=3)["state"].shape
  (2, 2)

  """

  def select(
    self, episodes: splits_lib.EpisodeNumbers | None = None, split: str | None = None
  ) -> Episodes:
    """Selects episodes, by number or by the name of a split, or both.

    Raises:
      SpecError: a split or episode is missing, no episode is left, or the number of
        episodes is unknown.
    """
    if episodes is None and split is None:
      return self
    where, count = f"select: {self.path}", self.num_episodes
    if count is None:
      raise errors.SpecError(
        f"{where}: expected a known number of episodes, got record files, which only "
        "reading counts. Convert them to a store first: t2r_seq convert."
      )
    chosen = splits_lib.choose_episodes(where, count, episodes, split, self.splits)
    return self if chosen is None else Selected(self, chosen)

  def filter(self, paths: Iterable[str]) -> Episodes:
    """Keeps only some paths.

    Raises:
      SpecError: a path is missing, or a kept one lacks its time stamps.
    """
    return Filtered(self, paths)

  def drop(self, names: Iterable[str]) -> Episodes:
    """Leaves out paths; a name leaves out all paths below it, too.

    Raises:
      SpecError: a name is not a path, or a kept path lacks its time stamps.
    """
    dropped = Dropped(names)
    kept = dropped.filter(self.spec)
    dropped.check(f"drop: {self.path}")
    return Filtered(self, kept)

  def rename(self, names: Mapping[str, str]) -> Episodes:
    """Returns the episodes with renamed paths, and all paths below them.

    Args:
      names: the new name by the old one.
    Raises:
      SpecError: an old name is missing, or two paths get the same name.
    """
    return Renamed(self, names)

  def cast(self, casts: Mapping[str, Any] | Iterable[str]) -> Episodes:
    """Returns the episodes with other dtypes; a loss other than rounding is an error.

    Args:
      casts: the new dtype by path, or by dtype for all paths of it:
        `{'float64': 'float32', 'state/position': 'float64'}`; or 'float64=float32', ...
    Raises:
      SpecError: a cast is invalid; all are listed.
    """
    if isinstance(casts, Mapping):
      casts = [f"{name}={dtype_name(dtype)}" for name, dtype in casts.items()]
    return Casted(self, casts)

  def map(
    self, function: Callable[[Values], Mapping[str, Any]], spec: specs.SpecStructure
  ) -> Episodes:
    """Calls a function with the values of each whole episode.

    Args:
      function: maps arrays by path, `[T, ...]`, to arrays of the new episode, with the
        same number of steps. Reading raises SpecError if they do not fit `spec`.
      spec: specs of the episodes that it returns.
    """
    return Mapped(self, function, spec)

  def join(self, *others: Episodes) -> Episodes:
    """Appends the episodes of other data sets with the same specs.

    Raises:
      SpecError: specs or clocks differ; all paths are listed.
    """
    return Joined([self, *others])


class View(Episodes):
  """Base of views, which change the values of episodes, or select episodes."""

  def __init__(
    self,
    base: Episodes,
    spec: specs.SpecStructure | None = None,
    names: Mapping[str, str] | None = None,
  ) -> None:
    """Wraps the data set that is read.

    Args:
      base: the data set.
      spec: flat specs of the view; None for those of the data set.
      names: names of its paths in the view; None: unchanged.
    """
    self._base = base
    self.path, self.format = base.path, base.format
    self.spec = base.spec if spec is None else specs.TensorSpecStruct(spec)
    self.splits, self.metadata = base.splits, base.metadata
    self.problems = base.problems
    if spec is None:  # The paths stay the same.
      self.derived_spec, self.depth = base.derived_spec, base.depth
    self._rename(names or {path: path for path in self.spec})

  def _rename(self, names: Mapping[str, str]) -> None:
    """Copies videos and clocks of the data set, under the names of the view."""
    base = self._base
    clocks = {path: clock for path, clock in base.clocks.items() if path in names}
    if lost := [path for path, clock in clocks.items() if clock not in names]:
      raise errors.SpecError(
        f"filter: {self.path}: {errors.listing({clocks[path] for path in lost})}: "
        f"expected the time stamps of {errors.listing(lost)}, got a view without them. "
        "Keep both, or drop both."
      )
    self.clocks = {names[path]: names[clock] for path, clock in clocks.items()}
    self.videos = [names[path] for path in base.videos if path in names]
    kept = base.kept_videos
    self.kept_videos = {names[path]: kept[path] for path in kept if path in names}

  def _wrap(self, base: Episodes) -> Episodes:
    """Returns the same view of another data set."""
    raise NotImplementedError

  @property
  def lengths(self) -> np.ndarray | None:  # type: ignore[override]
    """Steps of each episode; None if unknown before reading."""
    return self._base.lengths

  @property
  def num_episodes(self) -> int | None:
    """The number of episodes; None if unknown before reading."""
    return self._base.num_episodes

  @property
  def numbers(self) -> np.ndarray | None:  # type: ignore[override]
    """Numbers of the episodes in the whole data set; None for all."""
    return self._base.numbers

  @property
  def notes(self) -> Sequence[str]:  # type: ignore[override]
    """The notes of the data set; reading may add some."""
    return self._base.notes

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the changed episodes; see `Episodes.iterate`."""
    for episode in self._base.iterate(start):
      values = self._change(episode.values, episode.place)
      yield Episode(values, episode.place, episode.fraction_done)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads an episode, changed; see `Episodes.read`."""
    names = list(self.spec if paths is None else paths)
    sources = {self._source(path): path for path in names}
    # Values that are changed afterwards cannot be decoded into their final array.
    arrays = {s: (out or {})[p] for s, p in sources.items() if p in (out or {})}
    arrays = {s: array for s, array in arrays.items() if self._is_unchanged(s)}
    number = self._number(episode)
    values = self._base.read(number, [*sources], start, stop, arrays or None)
    return self._change(values, self._base.place(number))

  def place(self, episode: int) -> str:
    """Returns where an episode is stored in the whole data set."""
    return self._base.place(self._number(episode))

  def fingerprint(self) -> dict[str, Any]:
    """Returns the fingerprint of the data set."""
    return self._base.fingerprint()

  def check_files(self) -> Iterator[str]:
    """Yields the problems of the data set's files."""
    return self._base.check_files()

  def with_videos(self, formats: Collection[str], encoding: Any = None) -> Episodes:
    """Returns the same view with whole videos."""
    return self._wrap(self._base.with_videos(formats, encoding))

  # Hooks for views: episodes, paths and values.

  def _number(self, episode: int) -> int:
    """Returns the number of an episode in the data set."""
    return episode

  def _source(self, path: str) -> str:
    """Returns the path of the data set that a path of the view reads."""
    return path

  def _is_unchanged(self, source: str) -> bool:
    """Whether the values of a path of the data set stay the same."""
    del source
    return True

  def _change(self, values: Values, place: str) -> Values:
    """Returns the values of an episode of the view."""
    del place
    return values


class Filtered(View):
  """Some paths of a data set."""

  def __init__(self, base: Episodes, paths: Iterable[str]) -> None:
    """Keeps paths; see `Episodes.filter`."""
    leaves = {**base.spec, **base.derived_spec}
    paths = list(paths)
    missing = [
      errors.Mismatch(
        path, f"a path of {errors.listing(leaves)}", "", errors.nearest(path, leaves)
      )
      for path in paths
      if path not in leaves
    ]
    if missing:
      raise errors.mismatch_error(f"filter: {base.path}", missing)
    super().__init__(base, {path: leaves[path] for path in paths})
    self.depth = [path for path in base.depth if path in self.spec]

  def _wrap(self, base: Episodes) -> Episodes:
    return Filtered(base, self.spec)

  def cast(self, casts: Mapping[str, Any] | Iterable[str]) -> Episodes:
    """Casts numbers; see `Episodes.cast`. Depth is cast as the format does it."""
    if isinstance(casts, Mapping) and all(path in self.depth for path in casts):
      return self._wrap(self._base.cast(casts))
    return super().cast(casts)

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the episodes with the kept paths."""
    has_derived = any(path not in self._base.spec for path in self.spec)
    if has_derived and self._base.lengths is not None:
      return Episodes.iterate(self, start)
    return super().iterate(start)

  def compare_statistics(
    self, computed: Mapping[str, Mapping[str, np.ndarray]]
  ) -> list[str]:
    """Compares with the statistics of the data set."""
    return self._base.compare_statistics(computed)

  def _change(self, values: Values, place: str) -> Values:
    return {path: array for path, array in values.items() if path in self.spec}


class Renamed(View):
  """Paths under other names."""

  def __init__(self, base: Episodes, names: Mapping[str, str]) -> None:
    """Renames paths; see `Episodes.rename`."""
    mismatches: list[errors.Mismatch] = []
    new = {path: path for path in base.spec}
    for old, name in names.items():
      below = [p for p in base.spec if p == old or p.startswith(f"{old}/")]
      if not below:
        want = f"one of the paths {errors.listing(base.spec)}"
        near = errors.nearest(old, base.spec)
        mismatches.append(errors.Mismatch(old, want, "no such path", near))
      new |= {path: name + path[len(old) :] for path in below}
    for path in {name for name in new.values() if [*new.values()].count(name) > 1}:
      twice = [old for old, name in new.items() if name == path]
      want, got = "one path of that name", f"{errors.listing(twice)} renamed to it"
      mismatches.append(errors.Mismatch(path, want, got))
    if mismatches:
      raise errors.mismatch_error(f"rename: {base.path}", mismatches)
    self._new, self._old = new, {name: old for old, name in new.items()}
    spec = {
      # The name in a record follows the path that it was made from.
      name: specs.ExtendedTensorSpec.from_spec(
        base.spec[old], name=name if base.spec[old].name == old else base.spec[old].name
      )
      for old, name in new.items()
    }
    super().__init__(base, spec, new)

  def _wrap(self, base: Episodes) -> Episodes:
    return Renamed(base, {old: name for old, name in self._new.items() if old != name})

  def _source(self, path: str) -> str:
    return self._old[path]

  def _change(self, values: Values, place: str) -> Values:
    return {self._new[path]: array for path, array in values.items()}


class Casted(View):
  """Numbers of another dtype."""

  def __init__(self, base: Episodes, casts: Iterable[str]) -> None:
    """Casts numbers; see `Episodes.cast`."""
    self._texts = list(casts)
    self._casts = find_casts("cast", self._texts, base.spec)
    spec = {
      path: specs.ExtendedTensorSpec.from_spec(
        leaf, dtype=self._casts[path].dtype if path in self._casts else leaf.dtype
      )
      for path, leaf in base.spec.items()
    }
    super().__init__(base, spec)

  def _wrap(self, base: Episodes) -> Episodes:
    return Casted(base, self._texts)

  def _is_unchanged(self, source: str) -> bool:
    return source not in self._casts

  def _change(self, values: Values, place: str) -> Values:
    return {
      path: cast_values(path, array, self._casts[path], place)
      if path in self._casts
      else array
      for path, array in values.items()
    }


class Conformed(View):
  """A data set read with a user's specs: () for (1,), or the reverse."""

  def __init__(self, base: Episodes, spec: specs.TensorSpecStruct) -> None:
    """Filters and reshapes values for `spec`, whose paths the data set has."""
    super().__init__(base, spec)
    # Lazily: it imports TensorFlow, which reading a store does not need.
    from t2r_seq.specs.extended_tensor_spec import added_axes

    self._axes = {
      path: added_axes(base.spec[path].shape, leaf.shape) for path, leaf in spec.items()
    }

  def _wrap(self, base: Episodes) -> Episodes:
    kept = base.kept_videos
    spec = {p: base.spec[p] if p in kept else leaf for p, leaf in self.spec.items()}
    return Conformed(base, specs.TensorSpecStruct(spec))

  def _is_unchanged(self, source: str) -> bool:
    return not self._axes.get(source)

  def _change(self, values: Values, place: str) -> Values:
    changed = {path: array for path, array in values.items() if path in self.spec}
    for path, array in changed.items():
      if axes := self._axes[path]:
        changed[path] = array[..., np.newaxis] if axes > 0 else array[..., 0]
    return changed


class Mapped(View):
  """Episodes that a function has changed."""

  def __init__(
    self,
    base: Episodes,
    function: Callable[[Values], Mapping[str, Any]],
    spec: specs.SpecStructure,
  ) -> None:
    """Maps whole episodes; see `Episodes.map`."""
    super().__init__(base, specs.flatten_spec_structure(spec))
    self._function = function
    self.videos = ()

  def with_videos(self, formats: Collection[str], encoding: Any = None) -> Episodes:
    """Returns the same view: the function gets frames."""
    del formats, encoding
    return self

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Maps the whole episode, and returns the requested steps."""
    values = self._base.read(episode)
    changed = self._change(values, self._base.place(episode))
    return {
      path: array[start:stop] if self.spec[path].is_sequence else array
      for path, array in changed.items()
      if paths is None or path in paths
    }

  def _change(self, values: Values, place: str) -> Values:
    is_sequence = {path: leaf.is_sequence for path, leaf in self._base.spec.items()}
    num_steps = next((len(v) for p, v in values.items() if is_sequence[p]), None)
    result = {}
    mismatches: list[errors.Mismatch] = []
    for path, value in self._function(dict(values)).items():
      array = np.asarray(value)
      leaf = self.spec.get(path)
      if leaf is None:
        near = errors.nearest(path, self.spec)
        mismatches.append(errors.Mismatch(path, "a path of the spec", "another", near))
        continue
      shape = [None, *leaf.shape] if leaf.is_sequence else [*leaf.shape]
      if leaf.is_sequence and num_steps is not None:
        shape[0] = num_steps
      # Encoded images and strings are bytes objects of any shape.
      is_encoded = array.dtype == object
      if not is_encoded and not tf.TensorShape(shape).is_compatible_with(array.shape):
        want = f"{tuple(shape)} {leaf.dtype.name}"
        mismatches.append(errors.Mismatch(path, want, errors.describe(array)))
      elif not is_encoded and tf.as_dtype(array.dtype) != leaf.dtype:
        mismatches.append(
          errors.Mismatch(path, errors.describe(leaf), errors.describe(array))
        )
      result[path] = array
    mismatches += [
      errors.Mismatch(path, errors.describe(leaf), "nothing")
      for path, leaf in self.spec.items()
      if path not in result and not leaf.is_optional
    ]
    if mismatches:
      raise errors.mismatch_error(f"map: {place}", mismatches)
    return result


class Dealt(View):
  """Assigns the episodes to random splits."""

  def __init__(self, base: Episodes, shares: Mapping[str, float], seed: int) -> None:
    """Assigns the episodes; see `splits.make_splits`."""
    super().__init__(base)
    self._shares, self._seed = dict(shares), seed
    self._deal(base.num_episodes)

  def _wrap(self, base: Episodes) -> Episodes:
    return Dealt(base, self._shares, self._seed)

  def _deal(self, count: int | None) -> None:
    self.splits = {}
    if count is not None:
      self.splits = splits_lib.make_splits(self._shares, count, self._seed)

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the episodes; assigns them at the end, when their number is known."""
    count = start
    for episode in self._base.iterate(start):
      count += 1
      yield episode
    self._deal(count)


class Selected(View):
  """Some episodes of a data set, in its order."""

  def __init__(self, base: Episodes, selected: np.ndarray) -> None:
    """Selects episodes by rising numbers."""
    super().__init__(base)
    self._selected = selected
    self.splits = splits_lib.renumber(base.splits, selected)
    self.metadata = base.metadata_of(selected)

  def _wrap(self, base: Episodes) -> Episodes:
    return Selected(base, self._selected)

  def _number(self, episode: int) -> int:
    return int(self._selected[episode])

  @property
  def lengths(self) -> np.ndarray | None:  # type: ignore[override]
    """Steps of each selected episode."""
    lengths = self._base.lengths
    return None if lengths is None else lengths[self._selected]

  @property
  def num_episodes(self) -> int:
    """The number of selected episodes."""
    return len(self._selected)

  def cast(self, casts: Mapping[str, Any] | Iterable[str]) -> Episodes:
    """Casts numbers; see `Episodes.cast`. Depth is cast as the format does it."""
    return self._wrap(self._base.cast(casts))

  @property
  def numbers(self) -> np.ndarray:  # type: ignore[override]
    """Numbers of the selected episodes in the whole data set."""
    numbers = self._base.numbers
    return self._selected if numbers is None else numbers[self._selected]

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the selected episodes; consecutive ones are read in one iteration."""
    left = self._selected[start:]
    for run in np.split(left, np.flatnonzero(np.diff(left) != 1) + 1):
      if len(run):
        yield from itertools.islice(self._base.iterate(int(run[0])), len(run))

  def fingerprint(self) -> dict[str, Any]:
    """Returns the fingerprint of the data set, and of the selection."""
    numbers = zlib.crc32(self._selected.astype("<i8").tobytes())
    return {**self._base.fingerprint(), "selected": numbers}


class Joined(Episodes):
  """The episodes of several data sets, one data set after the other."""

  def __init__(self, parts: Sequence[Episodes]) -> None:
    """Joins data sets; see `Episodes.join`."""
    self._parts = list(parts)
    first = self._parts[0]
    self.path = ", ".join(part.path for part in self._parts)
    self.format = first.format
    mismatches = []
    for part in self._parts[1:]:
      for path in {**first.spec, **part.spec}:
        one, other = first.spec.get(path), part.spec.get(path)
        if one is None or other is None or _form(one) != _form(other):
          got = f"{errors.describe(other)} in {part.path}"
          hint = "Make them alike first: rename, cast or drop."
          mismatches.append(errors.Mismatch(path, errors.describe(one), got, hint))
    if mismatches:
      raise errors.mismatch_error(f"join: {self.path}", mismatches)
    self.spec = specs.TensorSpecStruct(
      (
        path,
        specs.ExtendedTensorSpec.from_spec(
          leaf, is_optional=any(part.spec[path].is_optional for part in self._parts)
        ),
      )
      for path, leaf in first.spec.items()
    )
    counts = [part.num_episodes for part in self._parts]
    self._count = None if None in counts else sum(int(count or 0) for count in counts)
    self._starts = np.cumsum([0, *(count or 0 for count in counts)])[:-1].tolist()
    if self._count is not None:
      joined: dict[str, list[int]] = {}
      for start, part in zip(self._starts, self._parts, strict=True):
        for name, numbers in part.splits.items():
          joined.setdefault(name, []).extend(start + number for number in numbers)
      self.splits = joined
    self.metadata = _common([part.metadata for part in self._parts])
    self.clocks = first.clocks
    if differ := [p for p in self._parts if dict(p.clocks) != dict(first.clocks)]:
      raise errors.SpecError(
        f"join: {differ[0].path}: expected the clocks {dict(first.clocks)}, as "
        f"{first.path} has, got {dict(differ[0].clocks)}. Rename paths, or read both "
        "with the same option."
      )
    self.videos = [p for p in first.videos if all(p in o.videos for o in self._parts)]
    kept = [part.kept_videos for part in self._parts]
    self.kept_videos = {
      path: form
      for path, form in kept[0].items()
      if all(other.get(path) == form for other in kept)
    }

  @property
  def lengths(self) -> np.ndarray | None:  # type: ignore[override]
    """Steps of each episode; None if unknown for a data set."""
    lengths = [part.lengths for part in self._parts]
    if any(each is None for each in lengths):
      return None
    return np.concatenate([np.asarray(each) for each in lengths])

  @property
  def num_episodes(self) -> int | None:
    """The number of episodes of all data sets; None if one is unknown."""
    return self._count

  @property
  def notes(self) -> Sequence[str]:  # type: ignore[override]
    """The notes of all data sets, each once."""
    return [*dict.fromkeys(note for part in self._parts for note in part.notes)]

  @property
  def problems(self) -> Sequence[str]:  # type: ignore[override]
    """The problems of all data sets."""
    return [problem for part in self._parts for problem in part.problems]

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the episodes of all data sets; see `Episodes.iterate`."""
    if self._count is None:
      chained = itertools.chain.from_iterable(part.iterate() for part in self._parts)
      yield from itertools.islice(chained, start, None)
      return
    for first, part in zip(self._starts, self._parts, strict=True):
      if start < first + (part.num_episodes or 0):
        yield from part.iterate(max(start - first, 0))

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads an episode of one of the data sets; see `Episodes.read`."""
    part, number = self._find(episode)
    return part.read(number, paths, start, stop, out)

  def place(self, episode: int) -> str:
    """Returns where an episode is stored."""
    part, number = self._find(episode)
    return part.place(number)

  def fingerprint(self) -> dict[str, Any]:
    """Returns the fingerprints of all data sets."""
    return {"joined": [part.fingerprint() for part in self._parts]}

  def check_files(self) -> Iterator[str]:
    """Yields the problems of all data sets' files."""
    return itertools.chain.from_iterable(part.check_files() for part in self._parts)

  def with_videos(self, formats: Collection[str], encoding: Any = None) -> Episodes:
    """Returns a view with whole videos, if all data sets have the same encoding."""
    parts = [part.with_videos(formats, encoding) for part in self._parts]
    is_alike = all(part.kept_videos == parts[0].kept_videos for part in parts)
    return Joined(parts) if is_alike else self

  def _find(self, episode: int) -> tuple[Episodes, int]:
    index = bisect.bisect_right(self._starts, episode) - 1
    return self._parts[index], episode - self._starts[index]


def _common(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the values that all metadata share, within nested objects, too."""
  shared: dict[str, Any] = {}
  for name, value in parts[0].items():
    others: list[Any] = [part.get(name) for part in parts[1:]]
    if isinstance(value, Mapping) and all(isinstance(o, Mapping) for o in others):
      shared[name] = _common([value, *others])
    elif all(other == value for other in others):
      shared[name] = value
  return shared


def _form(spec: specs.ExtendedTensorSpec) -> tuple[Any, ...]:
  """Returns the properties that must be equal in joined data sets."""
  return (spec.shape.as_list(), spec.dtype, spec.is_sequence, spec.data_format)


def dtype_name(dtype: Any) -> str:
  """Returns the name of a dtype of TensorFlow, numpy or Python."""
  return dtype if isinstance(dtype, str) else tf.as_dtype(dtype).name
