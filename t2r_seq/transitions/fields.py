"""Which field of a transition is what, and what a store says about them."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from t2r_seq import errors

_NEXT = "next_"


@dataclasses.dataclass(frozen=True)
class TransitionFields:
  """The fields of transitions and what part each plays.

  A field `next_x` is `x` one step later, for branches too: `next_obs/image` goes with
  `obs/image`. It is stored with `x`.

  Attributes:
    paths: of all fields, in the order in which they were given.
    next_of: by path of a `next_` field, the path that it is the next of.
    rew: path of the reward, or of a branch of several.
    done: path of the flag of terminals.
    truncated: path of the flag of steps after which an episode was cut off, if any.
  """

  paths: tuple[str, ...]
  next_of: Mapping[str, str]
  rew: str
  done: str
  truncated: str | None

  @classmethod
  def from_paths(
    cls,
    operation: str,
    paths: Iterable[str],
    rew: str = "rew",
    done: str = "done",
    truncated: str = "truncated",
  ) -> TransitionFields:
    """Tells the fields apart.

    Args:
      operation: for the error.
      paths: of all fields.
      rew: path of the reward, or of a branch of several.
      done: path of the flag of terminals.
      truncated: path of the flag of truncations; there may be none.
    Returns:
      The fields.
    Raises:
      SpecError: with every field that lacks its partner, and the reward or the flag of
        terminals where they are missing.
    """
    paths = tuple(paths)
    next_of = {path: path[len(_NEXT) :] for path in paths if path.startswith(_NEXT)}
    found = [*_unpaired(paths, next_of), *_missing(paths, rew, done)]
    if found:
      raise errors.mismatch_error(operation, found)
    has_truncated = truncated if truncated in paths else None
    return cls(paths, next_of, rew, done, has_truncated)

  @property
  def stored(self) -> tuple[str, ...]:
    """The fields that have a column: all but those that are the next of another."""
    return tuple(path for path in self.paths if path not in self.next_of)

  @property
  def observed(self) -> tuple[str, ...]:
    """The fields that have a next one."""
    return tuple(self.next_of.values())

  @property
  def rewards(self) -> tuple[str, ...]:
    """The fields that are rewards."""
    return tuple(path for path in self.paths if _is_in(path, self.rew))

  @property
  def flags(self) -> tuple[str, ...]:
    """The fields that end a chain where they are set."""
    return (self.done,) if self.truncated is None else (self.done, self.truncated)


def _is_in(path: str, branch: str) -> bool:
  return path == branch or path.startswith(f"{branch}/")


def _unpaired(
  paths: tuple[str, ...], next_of: Mapping[str, str]
) -> Iterable[errors.Mismatch]:
  if not next_of:
    want = "a field and its next one, such as obs and next_obs"
    yield errors.Mismatch("the transitions", want, errors.listing(paths))
  branches = {path.split("/")[0] for path in next_of.values()}
  for path in paths:
    if path in next_of and next_of[path] not in paths:
      others = (other for other in paths if other not in next_of)
      hint = errors.nearest(next_of[path], others)
      hint = hint or f"Where it is no next one, name it without '{_NEXT}'."
      yield errors.Mismatch(
        next_of[path], f"the field that {path} follows", "nothing", hint
      )
    elif path.split("/")[0] in branches and _NEXT + path not in next_of:
      hint = errors.nearest(_NEXT + path, next_of)
      yield errors.Mismatch(_NEXT + path, f"the next of {path}", "nothing", hint)


def _missing(paths: tuple[str, ...], rew: str, done: str) -> Iterable[errors.Mismatch]:
  if not any(_is_in(path, rew) for path in paths):
    hint = errors.nearest(rew, paths) or "Name it: save_transitions(..., rew='...')."
    yield errors.Mismatch(rew, "the reward", "nothing", hint)
  if done not in paths:
    hint = errors.nearest(done, paths) or "Name it: save_transitions(..., done='...')."
    yield errors.Mismatch(done, "the flag of terminals", "nothing", hint)


KEY = "transitions"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class NStep:
  """How transitions were joined to n-step ones.

  Attributes:
    n: steps, at least 1.
    gamma: discount of one step, from 0 to 1.
  """

  n: int
  gamma: float

  def __post_init__(self) -> None:
    is_integer = isinstance(self.n, numbers.Integral) and not isinstance(self.n, bool)
    if not is_integer or self.n < 1:
      raise errors.SpecError(
        f"n_step: n: expected an integer of at least 1, got {self.n!r}."
      )
    is_number = isinstance(self.gamma, numbers.Real) and self.gamma is not True
    if not is_number or not 0 <= self.gamma <= 1:
      raise errors.SpecError(
        f"n_step: gamma: expected a number from 0 to 1, got {self.gamma!r}."
      )
    object.__setattr__(self, "n", int(self.n))
    object.__setattr__(self, "gamma", float(self.gamma))

  @classmethod
  def of(cls, n_step: tuple[int, float] | NStep | None) -> NStep | None:
    """Converts what users write, (n, gamma).

    Raises:
      SpecError: it is no such pair.
    """
    if n_step is None or isinstance(n_step, NStep):
      return n_step
    try:
      n, gamma = n_step
    except (TypeError, ValueError):
      raise errors.SpecError(
        f"n_step: expected (n, gamma) or None, got {n_step!r}."
      ) from None
    return cls(n, gamma)

  def __str__(self) -> str:
    return f"{self.n}-step transitions with gamma {self.gamma}"


def describe_n_step(n_step: NStep | None) -> str:
  """Says whether transitions are n-step ones, for messages."""
  return "one-step transitions" if n_step is None else str(n_step)


@dataclasses.dataclass(frozen=True)
class TransitionsMetadata:
  """The part of a store's metadata that makes it a store of transitions.

  Attributes:
    fields: which field is what.
    n_step: what had been done to the transitions before they were saved.
    num_transitions: how many were to be saved.
  """

  fields: TransitionFields
  n_step: NStep | None
  num_transitions: int

  def to_json_dict(self) -> dict[str, Any]:
    """Returns JSON values."""
    return {
      "format_version": FORMAT_VERSION,
      "fields": list(self.fields.paths),
      "rew": self.fields.rew,
      "done": self.fields.done,
      "truncated": self.fields.truncated,
      "n_step": None if self.n_step is None else dataclasses.asdict(self.n_step),
      "num_transitions": self.num_transitions,
    }

  @classmethod
  def from_metadata(
    cls, place: str, metadata: Mapping[str, Any]
  ) -> TransitionsMetadata:
    """Reads it from the metadata of a store.

    Args:
      place: of the store, for errors.
      metadata: of the store.
    Returns:
      The part about transitions.
    Raises:
      StoreError: there is none, or a damaged or newer one.
    """
    values = metadata.get(KEY)
    if not isinstance(values, Mapping):
      raise errors.StoreError(
        f"load_transitions: {place}: expected transitions, got an EpisodeStore of "
        f"episodes. Read it with EpisodeStore(path); save_transitions makes a store of "
        "transitions."
      )
    version = values.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
      is_newer = isinstance(version, int) and version > FORMAT_VERSION
      hint = "A newer t2r_seq wrote them: upgrade t2r_seq to read them."
      raise errors.StoreError(
        f"load_transitions: {place}: expected transitions of format version "
        f"{FORMAT_VERSION}, got {version!r}. "
        f"{hint if is_newer else 'The store is damaged.'}"
      )
    try:
      return cls._from_values(place, values)
    except (KeyError, TypeError, ValueError) as error:
      raise errors.StoreError(
        f"load_transitions: {place}: metadata: {error!r}. The store is damaged."
      ) from error

  @classmethod
  def _from_values(cls, place: str, values: Mapping[str, Any]) -> TransitionsMetadata:
    n_step = values["n_step"]
    return cls(
      TransitionFields.from_paths(
        f"load_transitions: {place}",
        map(str, values["fields"]),
        str(values["rew"]),
        str(values["done"]),
        str(values["truncated"]),
      ),
      None if n_step is None else NStep(n_step["n"], n_step["gamma"]),
      int(values["num_transitions"]),
    )
