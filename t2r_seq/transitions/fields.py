"""Which field of a transition is what, from its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

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
