"""Cuts episodes into samples: options as values, and index arithmetic.

`Cut` has the options for windows, `NStep` those for joined transitions, and
`WindowGrid` is the arithmetic of both: which anchors an episode has, and which of its
steps a window shows. It is written once, for ints, numpy arrays and tensors. The
functions derive flat specs, spans and masks from the time offsets of specs.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import gin
import numpy as np

from t2r_seq import errors, imports, specs
from t2r_seq.imports import tf

# Limit of stacks, strides and shifts: the product of two is a step, an int64.
_MOST = 2**31 - 1

DISCOUNT = "discount"
NUM_STEPS = "num_steps"

# Key of the store's metadata that describes its transitions.
TRANSITIONS_KEY = "transitions"

PADDINGS = ("drop", "repeat", "zero")

Padding = str | tuple[str, str]
# One default for models, generators, loaders and replays, so that a user inspects the
# windows of the training.
DEFAULT_PADDING = "repeat"


# Registered and not configurable: gin binds only a `@Cut()` in a configuration, and not
# the objects that the library makes from arguments.
@gin.register
@dataclasses.dataclass(frozen=True)
class NStep:
  """Joins one-step transitions to transitions of up to n steps, when they are read.

  Transition t joins m <= n steps, up to the first flag or the episode's last step:

      rew        sum of gamma^k * rew[t + k] for k < m
      next_obs   of step t + m - 1: after a truncation the final observation
      done       of step t + m - 1, and so is `truncated`, if there is one
      discount   gamma^m, and 0 after a terminal; of the shape of `done`
      num_steps  m

  and has the other fields of step t. So `rew + discount * value(next_obs)` is the
  target at terminals and truncations, too. An episode of T transitions has T + 1
  steps, the last with the last observation. It may have T if `next_x` or `final_x`
  below has that observation, or if the last transition is terminal. Declarations:

      done       time_offsets=0: the flag of the transition; 1: of the state that it
                 leads to. `is_terminal` and `is_last` of RLDS are read at 1.
      rew        time_offsets=1 if it is stored with the state that it leads to
      next_x     a column of next observations, at the time_offsets of x
      final_x    a context feature: the last observation, after the last row of x

  Attributes:
    n: steps, at least 1.
    gamma: discount of one step, from 0 to 1.
    rew: path of the reward, or of a nested dict of rewards.
    done: path of the terminal flag.
    truncated: path of the truncation flag, if there is one.
    branches: first components of paths that are not part of these names, such as
      'features' and 'labels' if one structure has both.
  """

  n: int
  gamma: float
  rew: str = "rew"
  done: str = "done"
  truncated: str = "truncated"
  branches: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    """Raises SpecError if `n` or `gamma` is invalid."""
    n = errors.check_count("n_step", "n", self.n)
    is_number = isinstance(self.gamma, numbers.Real) and self.gamma is not True
    if not is_number or not 0 <= self.gamma <= 1:
      raise errors.SpecError(
        f"n_step: gamma: expected a number from 0 to 1, got {self.gamma!r}."
      )
    object.__setattr__(self, "n", n)
    object.__setattr__(self, "gamma", float(self.gamma))

  @classmethod
  def of(cls, n_step: tuple[int, float] | NStep | None) -> NStep | None:
    """Converts a user's declaration, (n, gamma).

    Raises:
      SpecError: the value is not a pair (n, gamma), or one of them is invalid.
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


def check_one_step(
  operation: str, metadata: Mapping[str, Any], n_step: NStep | None
) -> None:
  """Raises SpecError if n-step transitions would be joined a second time.

  Args:
    operation: for the error, with the path of the store.
    metadata: metadata of the store.
    n_step: how transitions are joined; None if they are not.
  """
  transitions = metadata.get(TRANSITIONS_KEY)
  joined = transitions.get("n_step") if isinstance(transitions, Mapping) else None
  if n_step is not None and joined:
    raise errors.SpecError(
      f"{operation}: n_step: expected one-step transitions, got "
      f"{NStep(joined['n'], joined['gamma'])}. Returns of returns would be wrong: read "
      "them without n_step."
    )


@gin.register
@dataclasses.dataclass(frozen=True)
class Cut:
  """Options for cutting episodes into windows.

  >>> import numpy as np
  >>> from t2r_seq import specs, windows
  >>> pair = specs.ExtendedTensorSpec((2,), "int64", "x", time_offsets=(-1, 0))
  >>> cut = windows.Cut(padding="zero")
  >>> values = {"x": np.arange(7, 10)}
  >>> windows.gather_windows(values, [0], {"x": pair}, cut)["x"].numpy()
  array([[0, 7]])

  Attributes:
    sequence_length: L, stacks in a sequence, for specs with is_sequence=True; None for
      single windows.
    stride: steps between the stacks of one sequence.
    shift: stacks between the starts of two sequences; for single windows, steps
      between two anchors in units of `stride`.
    padding: values where a window leaves its episode: 'repeat' repeats the edge step,
      'zero' gives zeros and empty strings, 'drop' keeps full windows only. One word for
      both ends, or two, (front, end): for transitions, ('repeat', 'drop') pads before
      the first step, and adds nothing after the last one. By default `DEFAULT_PADDING`,
      as in models.
    masks: adds a bool '<path>_mask' for every windowed path, true for real steps; masks
      that the specs declare (`add_mask_specs`) are always added.
    n_step: joins transitions; `NStep`, or (n, gamma). Then only the front is padded:
      after the last step, only a terminal has a padded observation, of weight 0.
    clock: the times of the steps, for time offsets in seconds (`specs.Seconds`): the
      path of their time stamps, floats of seconds or integers of nanoseconds, or the
      seconds from a step to the next one. None: no times, or those that the data has.
    clocks: path of the time stamps by path of a value on another clock than the
      steps'; see `Episodes.clocks`.
    max_rate: maximum steps per second, if `clock` is a path. Required if windows by
      time are cut before the stamps are known, as in a replay.
  """

  sequence_length: int | None = None
  stride: int = 1
  shift: int = 1
  padding: Padding = DEFAULT_PADDING
  masks: bool = False
  n_step: NStep | None = None
  clock: str | float | None = None
  clocks: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
  max_rate: float | None = None

  def __post_init__(self) -> None:
    """Raises SpecError if a field is invalid."""
    object.__setattr__(self, "padding", check_padding(self.padding))
    object.__setattr__(self, "n_step", NStep.of(self.n_step))
    if self.sequence_length is not None:
      errors.check_count("windows", "sequence_length", self.sequence_length, most=_MOST)
      if self.n_step is not None:
        raise errors.SpecError(
          "windows: sequence_length: expected None with n_step, got "
          f"{self.sequence_length}."
        )
    for field in ("stride", "shift"):
      errors.check_count("windows", field, getattr(self, field), most=_MOST)
    if isinstance(self.clock, numbers.Real) and not isinstance(self.clock, bool):
      object.__setattr__(self, "clock", float(self.clock))
    is_rate = isinstance(self.max_rate, numbers.Real) and 0 < self.max_rate < math.inf
    if self.max_rate is not None and not is_rate:
      raise errors.SpecError(
        f"windows: max_rate: expected steps per second, > 0, got {self.max_rate!r}."
      )
    is_valid = isinstance(self.clock, str) or self.clock is None
    if not (is_valid or (isinstance(self.clock, float) and 0 < self.clock < math.inf)):
      raise errors.SpecError(
        "windows: clock: expected the path of time stamps, or seconds > 0 from a step "
        f"to the next one, got {self.clock!r}."
      )

  @classmethod
  def of(cls, operation: str, cut: Cut | None, fields: Mapping[str, Any]) -> Cut:
    """Returns a cut with the fields of another one, some of them replaced.

    Args:
      operation: name of the called function, for errors.
      cut: a cut; None for `Cut()`.
      fields: fields to replace, by name.
    Raises:
      SpecError: `cut` is not a Cut, a field is unknown, or its value is invalid.
    """
    names = [field.name for field in dataclasses.fields(cls)]
    for name in fields:
      if name not in names:
        raise errors.SpecError(
          f"{operation}: {name}: expected an argument that it has, got an unexpected "
          f"one.{errors.nearest(name, names)}"
        )
    if cut is None:
      return cls(**fields)
    if not isinstance(cut, Cut):
      raise errors.SpecError(
        f"{operation}: cut: expected a Cut, got {cut!r}. Name its fields, or make one: "
        "windows.Cut(sequence_length=3, stride=2)."
      )
    return dataclasses.replace(cut, **fields)

  @property
  def period(self) -> float | None:
    """Seconds from a step to the next one; None for time stamps."""
    return self.clock if isinstance(self.clock, float) else None

  @property
  def num_stacks(self) -> int:
    """The number of anchors of a window."""
    return self.sequence_length or 1

  @property
  def front(self) -> str:
    """Padding before the first step of an episode."""
    return self.padding if isinstance(self.padding, str) else self.padding[0]

  @property
  def end(self) -> str:
    """Padding after the last step."""
    if self.n_step is not None:
      return "drop"
    return self.padding if isinstance(self.padding, str) else self.padding[1]

  @property
  def pads_front(self) -> bool:
    """Whether windows may show padding before the first step."""
    return self.front != "drop"

  @property
  def pads_end(self) -> bool:
    """Whether windows may show padding after the last step."""
    return self.end != "drop"

  def for_policy(self) -> Cut:
    """Returns the cut of a policy's history.

    A policy acts at the first step, too, so 'drop' becomes 'repeat'.
    """
    return Cut(padding=self.front if self.pads_front else "repeat")

  def find_unlike(
    self, expected: Cut, span: tuple[int, int]
  ) -> list[tuple[str, str, str]]:
    """Finds the ends at which windows show other padding than those of `expected`.

    Args:
      expected: the cut to compare with.
      span: smallest and largest time offset of the windows.
    Returns:
      For each such end: 'front' or 'end', the padding of `expected`, and that of this.
    """
    ends = [("front", expected.front, self.front)] if span[0] < 0 else []
    ends += [("end", expected.end, self.end)] if span[1] > 0 else []
    return [(end, want, got) for end, want, got in ends if got not in (want, "drop")]


class Anchors(NamedTuple):
  """Places of windows in the rows of one or many episodes; int64 of one shape.

  Attributes:
    rows: rows of the (first) anchors.
    before: number of steps before them in their episodes; a count may stop at those
      that windows show.
    after: number of steps after them, counted in the same way.
    stride: rows from a step to the next one.
  """

  rows: Any
  before: Any
  after: Any
  stride: int = 1


@dataclasses.dataclass(frozen=True)
class WindowGrid:
  """The anchors of an episode, and the steps around them that a window may show.

  If the front is 'drop', the first anchor is the first step with all steps before it
  that its window shows; otherwise it is step 0. If the end is 'drop', a sequence must
  have all steps after it. Otherwise the last sequence may run over the end, so that
  every later step on the stride is an anchor, except those that `shift` leaves out.

  Attributes:
    span: smallest and largest time offset; 0 is within.
    cut: how episodes become windows.
  """

  span: tuple[int, int]
  cut: Cut = dataclasses.field(default_factory=Cut)

  @classmethod
  def of(cls, spec_structure: specs.SpecStructure, cut: Cut) -> WindowGrid:
    """Returns the grid of the windows of specs."""
    return cls(time_span(spec_structure, cut.period), cut)

  @property
  def first_anchor(self) -> int:
    """The first anchor of the first sequence."""
    return 0 if self.cut.pads_front else -self.span[0]

  @property
  def period(self) -> int:
    """Steps from the start of a sequence to the start of the next one."""
    return self.cut.shift * self.cut.stride

  @property
  def num_after(self) -> int:
    """Steps that must follow the first anchor of one more sequence."""
    if self.cut.pads_end:
      return max(self.cut.num_stacks - self.cut.shift, 0) * self.cut.stride
    return (self.cut.num_stacks - 1) * self.cut.stride + self.span[1]

  @property
  def min_steps(self) -> int:
    """The shortest episode that gives a window."""
    return self.first_anchor + 1 + (0 if self.cut.pads_end else self.num_after)

  def num_windows(self, num_steps: Any) -> Any:
    """Returns how many windows (sequences) an episode gives.

    Args:
      num_steps: episode length(s); int, array or integer tensor.
    Returns:
      The counts, of the same kind.
    """
    if not self.cut.pads_end:
      return self.num_complete(num_steps, self.num_after)
    xp = array_module(num_steps)
    least = xp.minimum(xp.maximum(num_steps - self.first_anchor, 0), 1)
    count = xp.maximum(self.num_complete(num_steps, self.num_after), least)
    return int(count) if isinstance(num_steps, int) else count

  def num_complete(self, num_steps: Any, num_after: int) -> Any:
    """Returns how many windows have `num_after` steps after their first anchors.

    Args:
      num_steps: number of steps of an episode; int, array or integer tensor.
      num_after: number of steps.
    Returns:
      The counts, of the same kind.
    """
    last_anchor = num_steps - 1 - num_after
    count = (last_anchor - self.first_anchor) // self.period + 1
    count = array_module(num_steps).maximum(count, 0)
    return int(count) if isinstance(num_steps, int) else count

  def start(self, window: Any) -> Any:
    """Returns the first anchor of the window with that index in its episode."""
    return self.first_anchor + window * self.period

  def is_anchor(self, step: Any) -> Any:
    """Whether a window starts at that step, given enough steps after it."""
    if self.period == 1:
      return step >= self.first_anchor
    return (step >= self.first_anchor) & ((step - self.first_anchor) % self.period == 0)

  def clip(self, offsets: Any, before: Any, after: Any) -> Any:
    """Clips offsets to the episode at the ends that are padded.

    At an end with 'drop' no window leaves the episode, so they stay unchanged.

    Args:
      offsets: steps relative to an anchor, int64.
      before: steps before the anchor.
      after: steps after the anchor.
    Returns:
      The offsets of the steps to read, of the shape that the arguments broadcast to.
    """
    xp = array_module(offsets, before, after)
    if self.cut.pads_front:
      offsets = xp.maximum(offsets, -before)
    return xp.minimum(offsets, after) if self.cut.pads_end else offsets

  def steps(
    self, offsets: Any, before: Any, after: Any
  ) -> tuple[Any, Any | None, Any | None]:
    """Returns the steps that windows read.

    Args:
      offsets: steps relative to an anchor, int64.
      before: steps before the anchor.
      after: steps after the anchor.
    Returns:
      The offsets of the steps to read; whether each is a real step, None if all are;
      and whether its values are shown (True) or replaced by zeros (False), None if all
      are shown.
    """
    front, end = self.cut.front, self.cut.end
    if front == end == "drop":
      return offsets, None, None
    clipped = self.clip(offsets, before, after)
    xp = array_module(clipped)
    real = xp.equal(clipped, offsets)
    if "zero" not in (front, end):
      return clipped, real, None
    if front != "zero":  # Zeros at the end only.
      return clipped, real, xp.greater_equal(clipped, offsets)
    if end != "zero":
      return clipped, real, xp.less_equal(clipped, offsets)
    return clipped, real, real


def too_short_error(
  where: str, min_steps: int, num_episodes: int, longest: int
) -> errors.RecordError:
  """Builds the error raised when every episode is shorter than one window.

  Args:
    where: the operation and the data, for the message.
    min_steps: length of a window, in steps.
    num_episodes: episodes that were read.
    longest: length of the longest episode, in steps.
  """
  shorter = "the only episode is"
  if num_episodes != 1:
    shorter = f"all {num_episodes} episodes are"
  return errors.RecordError(
    f"{where}: expected episodes with at least the {min_steps} steps of a window, got "
    f"none: {shorter} shorter; the longest has {longest}. "
    "Use longer episodes, a smaller span or sequence_length, or padding 'repeat'."
  )


def array_module(*values: Any) -> Any:
  """Returns the array module: TensorFlow if one is a tensor, otherwise numpy."""
  return tf if any(map(imports.is_tensor, values)) else np


def check_padding(padding: Any) -> Padding:
  """Returns a valid padding, one word if both ends have the same; else SpecError."""
  words = [padding] if isinstance(padding, str) else padding
  is_pair = isinstance(words, (tuple, list)) and 1 <= len(words) <= 2
  for word in words if is_pair else [padding]:
    if word not in PADDINGS:
      raise errors.SpecError(
        f"windows: padding: expected one of {', '.join(PADDINGS)}, or two of them for "
        f"the front and the end, got {padding!r}.{errors.nearest(str(word), PADDINGS)}"
      )
  return words[0] if words[0] == words[-1] else (words[0], words[1])


def add_axes(values: Any, count: Any) -> Any:
  """Appends `count` axes of size 1; by one cheap op if at most one size is unknown."""
  if not imports.is_tensor(values):
    return np.reshape(values, np.shape(values) + (1,) * count) if count else values
  sizes = [-1 if size is None else size for size in values.shape]
  if isinstance(count, int) and sizes.count(-1) <= 1:
    return tf.reshape(values, [*sizes, *[1] * count])
  ones = tf.ones([count], tf.int32)
  return tf.reshape(values, tf.concat([tf.shape(values), ones], 0))


_MASK_SUFFIX = "_mask"


def is_windowed(spec_structure: specs.SpecStructure) -> bool:
  """Whether any spec of the structure has time offsets."""
  flat = specs.flatten_spec_structure(spec_structure)
  return any(getattr(spec, "time_offsets", None) is not None for spec in flat.values())


def has_seconds(spec_structure: specs.SpecStructure) -> bool:
  """Whether any spec of the structure has time offsets in seconds."""
  flat = specs.flatten_spec_structure(spec_structure).values()
  return any(isinstance(getattr(s, "time_offsets", 0), specs.Seconds) for s in flat)


def time_span(
  spec_structure: specs.SpecStructure, period: float | None = None
) -> tuple[int, int]:
  """Returns the smallest and largest offset that any spec reads; 0 is included.

  Args:
    spec_structure: specs, any of which may have time offsets.
    period: seconds from a step to the next one; None: offsets in seconds count as one
      step back or ahead.
  Returns:
    (min_offset <= 0, max_offset >= 0), in steps.
  """
  offsets = {0}
  for spec in specs.flatten_spec_structure(spec_structure).values():
    offsets.update(_offsets(spec, period))
  return min(offsets), max(offsets)


def history_length(spec_structure: specs.SpecStructure) -> int:
  """Returns the number of steps, with the current one, that a policy must remember."""
  return 1 - time_span(spec_structure)[0]


def flat_length(num_stacks: int, span: tuple[int, int], stride: int = 1) -> int:
  """Returns the flat steps that a sequence of stacks needs.

  With stride 1 and K consecutive frames that is `num_stacks + K - 1`, as in Reverb's
  frame-stacking example.

  Args:
    num_stacks: L >= 1, stacks in the sequence.
    span: smallest and largest offset, as from `time_span`.
    stride: steps between the stacks.
  Returns:
    `(L - 1) * stride + max_offset - min_offset + 1`.
  """
  return (num_stacks - 1) * stride + span[1] - span[0] + 1


def own_path(path: str, branches: tuple[str, ...]) -> str:
  """Returns a path without a first component that is only a branch."""
  first, _, rest = path.partition("/")
  return rest if first in branches and rest else path


def computed_paths(
  flat: specs.TensorSpecStruct, n_step: NStep | None
) -> dict[str, str]:
  """Finds declared paths that `n_step` computes and that are not stored.

  Args:
    flat: specs by path.
    n_step: how transitions are joined; None if they are not.
  Returns:
    Maps such a path to `DISCOUNT` or `NUM_STEPS`, without paths that read a step.
  """
  if n_step is None:
    return {}
  return {
    path: name
    for path, spec in flat.items()
    if (name := own_path(path, n_step.branches)) in (DISCOUNT, NUM_STEPS)
    and getattr(spec, "time_offsets", None) is None
    and not getattr(spec, "is_sequence", False)
  }


def flat_specs(
  spec_structure: specs.SpecStructure, n_step: NStep | tuple[int, float] | None = None
) -> specs.TensorSpecStruct:
  """Derives the specs of an episode record, which has each step once.

  A spec with time offsets becomes a sequence spec of one step. A spec without offsets
  is unchanged: a sequence, or a context feature of the whole episode. Computed paths
  are left out: masks (see `add_mask_specs`), and the results of `n_step`. Features that
  are cast while reading have the stored dtype.

  >>> from t2r_seq import specs, windows
  >>> pair = specs.ExtendedTensorSpec((2, 7), "float32", "pose", time_offsets=(-1, 0))
  >>> flat = windows.flat_specs({"pose": pair})["pose"]
  >>> flat.shape, flat.is_sequence
  (TensorShape([7]), True)

  Args:
    spec_structure: the specs of a window.
    n_step: how transitions are joined; None if they are not.
  Returns:
    Flat specs by path, none with time offsets.
  Raises:
    SpecError: the structure or `n_step` is invalid.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  computed = {**mask_paths(flat), **computed_paths(flat, NStep.of(n_step))}
  return specs.TensorSpecStruct(
    (path, _flat_spec(specs.ExtendedTensorSpec.to_spec(spec)))
    for path, spec in flat.items()
    if path not in computed
  )


def appended_specs(
  spec_structure: specs.SpecStructure, n_step: NStep | tuple[int, float] | None = None
) -> specs.TensorSpecStruct:
  """Derives the specs of one step as an actor appends it; each step is stored once.

  As `flat_specs`, but specs of one name are one feature, as in records, which is
  appended once: at the path that is their name, or else at the first path. `next_obs`
  with name='obs' and time_offsets=1 shows later steps of `obs`.

  Args and Returns: see `flat_specs`.
  """
  flat = flat_specs(spec_structure, n_step)
  # The name of a spec without one is its path.
  names = {path: spec.name or path for path, spec in flat.items()}
  owners: dict[str, str] = {}
  for path, name in names.items():
    if names.get(name) == name:
      owners[name] = name
    elif flat[path].is_sequence:
      owners.setdefault(name, path)
  return specs.TensorSpecStruct(
    (path, spec) for path, spec in flat.items() if owners.get(names[path], path) == path
  )


def add_mask_specs(
  spec_structure: specs.SpecStructure, paths: Iterable[str] | None = None
) -> specs.TensorSpecStruct:
  """Adds a bool spec '<path>_mask' that is true where a window shows a real step.

  Declaring the mask is what makes the input pipeline deliver it.

  >>> from t2r_seq import specs, windows
  >>> next_state = specs.ExtendedTensorSpec((3,), "float32", "state", time_offsets=1)
  >>> sorted(windows.add_mask_specs({"next": next_state}))
  ['next', 'next_mask']

  Args:
    spec_structure: specs with time offsets.
    paths: paths that get a mask; by default all with time offsets, except 'last'.
  Returns:
    Flat specs with the masks, of shape [K] for a stack and () for an int offset.
  Raises:
    SpecError: the structure is invalid, or a path has no time offsets, or 'last'.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  windowed = [path for path, spec in flat.items() if _offsets(spec)]
  for path in windowed if paths is None else paths:
    if path not in windowed:
      raise errors.SpecError(
        f"add_mask_specs: {path}: expected a spec with time offsets."
        f"{errors.nearest(path, windowed)} There is {errors.listing(windowed)}."
      )
    flat[path + _MASK_SUFFIX] = mask_spec(flat[path])
  return flat


def mask_spec(spec: specs.ExtendedTensorSpec) -> specs.ExtendedTensorSpec:
  """Returns the spec of the mask that belongs to a windowed spec.

  The mask of an optional path is optional, too: they are absent together.
  """
  shape = spec.shape[:1] if spec.is_stacked else tf.TensorShape(())
  return specs.ExtendedTensorSpec(
    shape, tf.bool, is_optional=spec.is_optional, is_sequence=spec.is_sequence
  )


def step_spec(spec: specs.ExtendedTensorSpec) -> specs.ExtendedTensorSpec:
  """Returns the spec of one step of a sequence; other specs unchanged."""
  if not spec.is_sequence:
    return spec
  offsets = 0 if spec.time_offsets is None else spec.time_offsets
  return specs.ExtendedTensorSpec.from_spec(
    spec, is_sequence=False, time_offsets=offsets
  )


def mask_paths(flat: Mapping[str, Any]) -> dict[str, str]:
  """Maps the path of every declared mask to the path that it masks."""
  return {
    path: path.removesuffix(_MASK_SUFFIX)
    for path, spec in flat.items()
    if path.endswith(_MASK_SUFFIX)
    and spec.name is None
    and spec.dtype == "bool"
    and _offsets(flat.get(path.removesuffix(_MASK_SUFFIX)))
  }


def invented_paths(spec_structure: specs.SpecStructure, cut: Cut) -> list[str]:
  """Returns the paths that show padding after an episode's end, and have no mask.

  Args:
    spec_structure: the specs of a window.
    cut: how the windows are cut.
  """
  if not cut.pads_end or cut.masks:
    return []
  flat = specs.flatten_spec_structure(spec_structure)
  masked = mask_paths(flat).values()
  return [
    path
    for path, spec in flat.items()
    if max(_offsets(spec), default=0) > 0 and path not in masked
  ]


def mask_path(path: str) -> str:
  """Returns the path of a path's mask."""
  return path + _MASK_SUFFIX


def _offsets(
  spec: tf.TensorSpec | None, period: float | None = None
) -> tuple[int, ...]:
  offsets = getattr(spec, "time_offsets", None)
  if isinstance(offsets, specs.Seconds):
    if period is None:
      return tuple(np.sign(offsets.array).astype(int).ravel().tolist())
    exact = offsets.steps(period)
    steps = offsets.array / period if exact is None else exact
    return int(np.floor(steps.min())), int(np.ceil(steps.max()))
  if offsets is None or offsets == "last":  # Each episode has a last step.
    return ()
  return offsets if isinstance(offsets, tuple) else (offsets,)


def _flat_spec(spec: specs.ExtendedTensorSpec) -> specs.ExtendedTensorSpec:
  spec = spec.as_stored()
  if spec.time_offsets is None:
    return spec
  return specs.ExtendedTensorSpec.from_spec(
    spec, shape=spec.frame_shape, is_sequence=True, time_offsets=None
  )
