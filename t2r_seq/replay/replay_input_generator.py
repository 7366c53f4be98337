"""The input generator of a live replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import data, errors, specs, windows
from t2r_seq.data import input_generator, joint
from t2r_seq.data.input_generator import BatchRequest
from t2r_seq.replay import replay as replay_lib
from t2r_seq.replay.replay import Replay, SampleInfo, importance_weights
from t2r_seq.specs.extended_tensor_spec import TimeOffsets, cast_hint
from t2r_seq.specs.names import source_path
from t2r_seq.windows.cut import Padding, time_span

_EXPECTED = "expected a replay, or a function without arguments that makes one"
_HINT = "The replay has other specs than the model."
# Specs of the information on sampled items, by name.
_KEY, _WEIGHT = input_generator.SAMPLE_KEY, input_generator.SAMPLE_WEIGHT
_INFO = {
  _KEY: specs.ExtendedTensorSpec((), tf.int64, _KEY, is_optional=True),
  _WEIGHT: specs.ExtendedTensorSpec((), tf.float32, _WEIGHT, is_optional=True),
}


def add_sample_specs(spec_structure: specs.SpecStructure) -> specs.TensorSpecStruct:
  """Adds optional specs of a sampled item's key and importance weight.

  Other generators leave them out. Add them to the labels: policies need no labels.

  Args:
    spec_structure: specs of a model's labels, or features.
  Returns:
    Flat specs with 'sample/key', int64, which identifies the item for
    `hooks.PriorityUpdate`, and 'sample/weight', float32, its importance weight. In a
    mixture, examples of other sources have the key 0 and the weight 1.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  return specs.TensorSpecStruct({**flat, **_INFO})


@gin.configurable
class ReplayInputGenerator(data.AbstractInputGenerator):
  """Feeds a model with windows of a replay, of either engine, while it is written.

  A spec of the model reads the replay's window at its path, or else at the path that is
  its name; both specs must show the same steps. Batches are endless in every mode.
  Specs of `add_sample_specs` read the information on sampled items.
  """

  def __init__(
    self,
    replay: Replay | Callable[[], Replay],
    batch_size: int = 32,
    importance_exponent: float = 0.4,
  ) -> None:
    """Creates the generator.

    Args:
      replay: the replay to sample from, which the generator does not close; or a
        function that returns it, such as gin's `@ReverbReplay`, called at first use.
        Its sequence length and padding apply, not the model's. It may drop windows that
        the model pads, but not pad in another way.
      batch_size: windows in a batch, over all replicas together.
      importance_exponent: exponent of the weights, 0 to 1; see `importance_weights`.
    Raises:
      SpecError: `replay` is neither a replay nor a function, or a number is out of
        range.
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
    """The replay to sample from; SpecError if the function returns none."""
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
    """Options of n-step transitions, or None."""
    return self.replay.cut.n_step

  def set_padding(self, padding: Padding) -> None:
    """See the base class; the replay must not pad in another way."""
    super().set_padding(padding)
    self._is_padding_set = True

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    with replay_lib.explain_errors():  # The replay may not have been created yet.
      yield

  def watch(self) -> Callable[[], Any] | None:
    return self.replay.watch()

  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    expected = joint.join(self._feature_spec, self._label_spec_for(request.mode))
    info = [spec.name for spec in expected.values() if spec.name in _INFO]
    replay_specs = self.replay.spec_structure
    if self._is_padding_set:
      _check_padding(self.padding, self.replay.cut, replay_specs)
    sampled = self.replay.dataset(request.batch_size, with_info=bool(info))
    if info:
      sampled = sampled.map(self._with_info)
    sources = _find_sources(expected, sampled.element_spec, replay_specs)

    @tf.autograph.experimental.do_not_convert
    def select(batch: Any) -> specs.TensorSpecStruct:
      return specs.TensorSpecStruct((p, batch[source]) for p, source in sources.items())

    return sampled.map(select)

  @tf.autograph.experimental.do_not_convert
  def _with_info(self, info: SampleInfo, batch: Any) -> specs.TensorSpecStruct:
    """Adds the keys and weights of the items to their windows."""
    # Few operations support unsigned integers; 0 is the key of other sources.
    key = tf.bitcast(info.key, tf.int64) + 1
    weight = importance_weights(info, self._exponent)
    return specs.TensorSpecStruct({**batch, _KEY: key, _WEIGHT: weight})


def _check_padding(
  padding: Padding, cut: windows.Cut, replay_specs: specs.TensorSpecStruct
) -> None:
  """Raises SpecError if a replay pads in another way than the model."""
  expected = windows.Cut(padding=padding, n_step=cut.n_step)
  mismatches = [
    errors.Mismatch(
      f"padding at the {end}",
      f"{want!r}, the model's, or 'drop'",
      f"{got!r} of the replay",
      "Give the replay and the model one padding.",
    )
    for end, want, got in cut.find_unlike(expected, time_span(replay_specs))
  ]
  if mismatches:
    raise errors.mismatch_error("ReplayInputGenerator", mismatches)


def _find_sources(
  expected: specs.TensorSpecStruct, given: Any, replay_specs: specs.TensorSpecStruct
) -> dict[str, str]:
  """Returns the paths of the replay for a model's paths.

  Raises:
    SpecError: paths are missing or different; all are named.
  """
  sources, mismatches = {}, []
  for path, spec in expected.items():
    own_path = path.partition("/")[2]
    source = source_path(own_path, spec, given)
    if source not in given:
      if not spec.is_optional:
        hint = errors.nearest(own_path, given)
        mismatches.append(errors.Mismatch(path, errors.describe(spec), "nothing", hint))
      continue
    got = tf.TensorSpec(given[source].shape[1:], given[source].dtype)
    shape = spec.shape
    if spec.is_sequence:
      shape = tf.TensorShape([None]).concatenate(shape)
    if got.dtype != spec.dtype or not shape.is_compatible_with(got.shape):
      want = errors.describe(tf.TensorSpec(shape, spec.dtype))
      hint = cast_hint(got.dtype, spec.dtype) or _HINT
      mismatches.append(errors.Mismatch(path, want, errors.describe(got), hint))
    elif source in replay_specs and not _shows_same_steps(
      spec, source, replay_specs, got.shape
    ):
      want, have = (_steps(s.time_offsets) for s in (spec, replay_specs[source]))
      mismatches.append(errors.Mismatch(path, want, have, _HINT))
    sources[path] = source
  if mismatches:
    raise errors.mismatch_error("ReplayInputGenerator", mismatches)
  return sources


def _shows_same_steps(
  spec: specs.ExtendedTensorSpec,
  source: str,
  replay_specs: specs.TensorSpecStruct,
  shape: tf.TensorShape,
) -> bool:
  """Whether a path of the replay shows the steps of a model's spec.

  `shape` is that of a window at `source`; it fits the model's spec.
  """
  leaf = replay_specs[source]
  num_axes = leaf.shape.rank + leaf.is_sequence
  if shape.rank != num_axes or shape[leaf.is_sequence :] != leaf.shape:
    return True  # Specs of flat windows declare only the number of steps.
  if spec.is_sequence and spec.time_offsets is None:
    return True
  if spec.is_sequence != leaf.is_sequence and isinstance(spec.time_offsets, tuple):
    return False
  expected, given = _as_tuple(spec.time_offsets), _as_tuple(leaf.time_offsets)
  # A model may declare the next observation as a separate path at its own step.
  is_alias = (
    leaf.name != source and leaf.name in replay_specs and leaf.name != spec.name
  )
  return expected == given or (is_alias and expected == (0,))


def _as_tuple(offsets: TimeOffsets) -> tuple[Any, ...]:
  """Returns the steps of a spec; without offsets its anchor's own step."""
  return offsets if isinstance(offsets, tuple) else (offsets or 0,)


def _steps(offsets: TimeOffsets) -> str:
  return f"the steps at time_offsets {offsets}"
