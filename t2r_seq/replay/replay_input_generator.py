"""The input generator that learns from a live replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import data, errors, specs, windows
from t2r_seq.data import input_generator, joint
from t2r_seq.replay import replay as replay_lib
from t2r_seq.replay.replay import Replay, SampleInfo, importance_weights
from t2r_seq.specs.extended_tensor_spec import TimeOffsets, cast_hint
from t2r_seq.specs.names import source_path
from t2r_seq.windows.cut import Padding

_EXPECTED = "expected a replay, or a function without arguments that makes one"
_HINT = "The replay has other specs than the model."
# What the replay tells of each sampled item, by the names of specs.
_KEY, _WEIGHT = input_generator.SAMPLE_KEY, input_generator.SAMPLE_WEIGHT
_TOLD = {
  _KEY: specs.ExtendedTensorSpec((), tf.int64, _KEY, is_optional=True),
  _WEIGHT: specs.ExtendedTensorSpec((), tf.float32, _WEIGHT, is_optional=True),
}


def add_sample_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Declares what a `ReplayInputGenerator` tells of each sampled item.

  They are optional: other generators leave them out. As labels they are not asked of a
  policy either.

  Args:
    spec_structure: specs of a model's labels, or features.
  Returns:
    Flat specs with 'sample/key', int64, which names the item for
    `hooks.PriorityUpdate`, and 'sample/weight', float32, its importance weight: in a
    mixture 0 and 1 for what comes from elsewhere.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  return specs.TensorSpecStruct({**flat, **_TOLD})


@gin.configurable
class ReplayInputGenerator(data.AbstractInputGenerator):
  """Feeds a model with windows of a replay, of either engine, while it is written.

  A spec of the model reads the window that the replay has at its path, or else at the
  path that is its name; the two have to show the same steps. There is no end in any
  mode. Specs of `add_sample_specs` read what is known of the sampled items.
  """

  def __init__(
    self,
    replay: Replay | Callable[[], Replay],
    batch_size: int = 32,
    importance_exponent: float = 0.4,
  ) -> None:
    """Creates the generator.

    Args:
      replay: to sample from; it is left open. Its sequences are its own, not the
        model's, and so is its padding: it may leave out what the model pads, and pads
        nothing in another way. Or what makes one, such as `@ReverbReplay` of gin; it is
        called when a replay is first needed.
      batch_size: windows in a batch, over all replicas together.
      importance_exponent: of the weights, from 0 for none to 1; `importance_weights`.
    Raises:
      SpecError: replay is none and makes none, or a number is out of range.
    """
    super().__init__(batch_size)
    self._exponent = replay_lib.check_exponent(importance_exponent)
    self._is_padding_set = False
    if not isinstance(replay, Replay) and not callable(replay):
      raise errors.SpecError(
        f"ReplayInputGenerator: replay: {_EXPECTED}, got {replay!r}. Give a "
        "ReplayBuffer or a ReverbReplay; in gin, @ReverbReplay."
      )
    self._replay = replay

  @property
  def replay(self) -> Replay:
    """What is sampled from."""
    if not isinstance(self._replay, Replay):
      made = self._replay()
      if not isinstance(made, Replay):
        raise errors.SpecError(
          f"ReplayInputGenerator: replay: {_EXPECTED}, got one that makes {made!r}. "
          "Return the replay."
        )
      self._replay = made
    return self._replay

  @property
  def n_step(self) -> windows.NStep | None:
    """How transitions are joined as they are sampled, if they are."""
    return self.replay.cut.n_step

  def set_padding(self, padding: Padding) -> None:
    """See the base class; the replay is asked whether it pads in another way."""
    super().set_padding(padding)
    self._is_padding_set = True

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Turns what a replay raised inside of TensorFlow into what it was."""
    with replay_lib.explained():  # The replay itself may not have been made yet.
      yield

  def watch(self) -> Callable[[], Any] | None:
    """Begins to watch over a wait for a batch; see the replay's."""
    return self.replay.watch()

  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    wanted = joint.join(self._feature_spec, self._label_spec_for(mode))
    told = [spec.name for spec in wanted.values() if spec.name in _TOLD]
    held = self.replay.spec_structure
    if self._is_padding_set:
      _check_padding(self.padding, self.replay.cut, held)
    sampled = self.replay.dataset(batch_size, with_info=bool(told))
    if told:
      sampled = sampled.map(self._with_info)
    sources = _find_sources(wanted, sampled.element_spec, held)

    @tf.autograph.experimental.do_not_convert
    def select(batch: Any) -> specs.TensorSpecStruct:
      return specs.TensorSpecStruct((p, batch[source]) for p, source in sources.items())

    return sampled.map(select)

  @tf.autograph.experimental.do_not_convert
  def _with_info(self, info: SampleInfo, batch: Any) -> specs.TensorSpecStruct:
    """Puts what is known of the items beside their windows."""
    # Bit by bit, as few operations know unsigned integers; and one more, as 0 is none.
    key = tf.bitcast(info.key, tf.int64) + 1
    weight = importance_weights(info, self._exponent)
    return specs.TensorSpecStruct({**batch, _KEY: key, _WEIGHT: weight})


def _check_padding(
  padding: Padding, cut: windows.Cut, held: specs.TensorSpecStruct
) -> None:
  """Raises SpecError where a replay makes up what the model's windows do not show."""
  expected = windows.Cut(padding=padding, n_step=cut.n_step)
  found = [
    errors.Mismatch(
      f"padding at the {end}",
      f"{want!r}, the model's, or 'drop'",
      f"{got!r} of the replay",
      "Give the replay and the model one padding.",
    )
    for end, want, got in cut.find_unlike(expected, windows.time_span(held))
  ]
  if found:
    raise errors.mismatch_error("ReplayInputGenerator", found)


def _find_sources(
  wanted: specs.TensorSpecStruct, given: Any, held: specs.TensorSpecStruct
) -> dict[str, str]:
  """Returns where the replay has what a model wants.

  Args:
    wanted: specs by path, 'features/...' and 'labels/...'.
    given: of the replay's batches, by path.
    held: the replay's own specs, by path.
  Returns:
    From the paths that are wanted to those of the replay.
  Raises:
    SpecError: something is missing or different; all is named.
  """
  sources, found = {}, []
  for path, spec in wanted.items():
    own_path = path.partition("/")[2]
    source = source_path(own_path, spec, given)
    if source not in given:
      if not spec.is_optional:
        hint = errors.nearest(own_path, given)
        found.append(errors.Mismatch(path, errors.describe(spec), "nothing", hint))
      continue
    got = tf.TensorSpec(given[source].shape[1:], given[source].dtype)
    shape = spec.shape
    if spec.is_sequence:
      shape = tf.TensorShape([None]).concatenate(shape)
    if got.dtype != spec.dtype or not shape.is_compatible_with(got.shape):
      want = errors.describe(tf.TensorSpec(shape, spec.dtype))
      hint = cast_hint(got.dtype, spec.dtype) or _HINT
      found.append(errors.Mismatch(path, want, errors.describe(got), hint))
    elif source in held and not _shows_same_steps(spec, source, held, got.shape):
      want, have = (_steps(s.time_offsets) for s in (spec, held[source]))
      found.append(errors.Mismatch(path, want, have, _HINT))
    sources[path] = source
  if found:
    raise errors.mismatch_error("ReplayInputGenerator", found)
  return sources


def _shows_same_steps(
  spec: specs.ExtendedTensorSpec,
  source: str,
  held: specs.TensorSpecStruct,
  shape: tf.TensorShape,
) -> bool:
  """Whether a path of the replay shows the steps that a model's spec names.

  Args:
    spec: of the model.
    source: the path in the replay.
    held: the replay's specs, by path.
    shape: of a window at the path, which fits the model's.
  """
  own = held[source]
  num_axes = own.shape.rank + own.is_sequence
  if shape.rank != num_axes or shape[own.is_sequence :] != own.shape:
    return True  # Of flat windows the model says nothing but how many steps there are.
  if spec.is_sequence and spec.time_offsets is None:
    return True  # Steps, as they come.
  if spec.is_sequence != own.is_sequence and isinstance(spec.time_offsets, tuple):
    return False
  wanted, given = _as_tuple(spec.time_offsets), _as_tuple(own.time_offsets)
  # To a model the next observation may be a path of its own, read at its own step.
  is_alias = own.name != source and own.name in held and own.name != spec.name
  return wanted == given or (is_alias and wanted == (0,))


def _as_tuple(offsets: TimeOffsets) -> tuple[int | str, ...]:
  """Without offsets a spec shows its anchor's own step."""
  return offsets if isinstance(offsets, tuple) else (offsets or 0,)


def _steps(offsets: TimeOffsets) -> str:
  return f"the steps at time_offsets {offsets}"
