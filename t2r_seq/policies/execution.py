"""Which actions of a predicted chunk are executed, and when."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.lite.overlap import CHUNK_STEP, SYNCHRONOUS, check_overlap
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

_no_autograph = tf.autograph.experimental.do_not_convert

_Outputs = dict[str, tf.Tensor]
CHUNK_SUFFIX = "_chunk"


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ChunkExecution:
  """Executes `num_executed` actions of each chunk, then runs the network again.

  The history sees every observation, whether the network runs or not.

  - `ChunkExecution()`: the first action only, a new chunk every step.
  - `ChunkExecution(num_executed=4)`: receding horizon, four actions of each chunk.
  - `ChunkExecution(4, overlap="asynchronous")`: the next chunk is computed from the
    newest observation while this one is executed, by a `lite.OverlappedPolicy`. The
    export's `step` is the same as for 'synchronous'.
  - `ChunkExecution(ensemble_decay=0.01)`: temporal ensembling, as in ACT (Zhao et al.,
    2023): the mean of this step's action in all chunks so far, the oldest with the
    weight 1, the next with exp(-decay), exp(-2 decay) ... A negative decay weights the
    newest most. Can be combined with `num_executed`.

  Attributes:
    num_executed: actions executed of each chunk.
    ensemble_decay: k of the weights exp(-k i), of any sign; None does not average.
    outputs: names of the model's outputs that are chunks, [B, n, ...].
    overlap: 'synchronous' waits for each chunk. The others compute it while the robot
      moves: 'asynchronous' skips the actions of ticks that have passed; 'real_time'
      inpaints a chunk that continues the actions executed meanwhile; 'trained' is for
      a model that was trained to continue them.
  """

  num_executed: int = 1
  ensemble_decay: float | None = None
  outputs: tuple[str, ...] = ("inference_output",)
  overlap: str = SYNCHRONOUS

  def __post_init__(self) -> None:
    """Checks the options.

    Raises:
      SpecError: an option is out of range, or `ensemble_decay` is set for the overlap
        'real_time' or 'trained'.
    """
    if self.num_executed < 1:
      raise errors.SpecError(
        f"ChunkExecution: num_executed: expected at least 1, got {self.num_executed}."
      )
    if self.ensemble_decay is not None and not math.isfinite(self.ensemble_decay):
      raise errors.SpecError(
        "ChunkExecution: ensemble_decay: expected a finite number, or None, got "
        f"{self.ensemble_decay}."
      )
    if isinstance(self.outputs, str) or not self.outputs:
      raise errors.SpecError(
        "ChunkExecution: outputs: expected names of the model's outputs, got "
        f"{self.outputs!r}."
      )
    check_overlap("ChunkExecution", self.overlap, self.ensemble_decay)


class ChunkRunner:
  """Executes the chunks of a model in a policy's step, and defines the state for it."""

  def __init__(
    self,
    execution: ChunkExecution,
    outputs: Mapping[str, tf.TensorSpec],
    lengths: Collection[int],
  ) -> None:
    """Binds an execution to a model.

    Args:
      execution: the declaration.
      outputs: the model's outputs by name, [None, ...].
      lengths: lengths of the chunks of the model's labels.
    Raises:
      SpecError: an output is no chunk that can be executed in this way, has the name of
        an added output, or has an unknown shape; all are named.
    """
    self._execution = execution
    self._outputs = dict(outputs)
    self._lengths = sorted(lengths)
    problems = [self._mismatch(name) for name in execution.outputs]
    problems += [
      errors.Mismatch(
        name, "no model output with this name, which a step adds", "one", "Rename it."
      )
      for name in (CHUNK_STEP, *(name + CHUNK_SUFFIX for name in execution.outputs))
      if name in outputs
    ]
    problems += [
      errors.Mismatch(name, "a known shape, as of any state", errors.describe(spec))
      for name, spec in outputs.items()
      if self.keeps_outputs and not spec.shape[1:].is_fully_defined()
    ]
    mismatches = [mismatch for mismatch in problems if mismatch is not None]
    if mismatches:
      raise errors.mismatch_error("execute chunks", mismatches)
    self._length = outputs[execution.outputs[0]].shape[1]

  @property
  def keeps_outputs(self) -> bool:
    """Whether some steps use the outputs of an earlier step."""
    return self._execution.num_executed > 1

  @property
  def state_spec(self) -> TensorSpecStruct:
    """The state of one environment, by path."""
    state = TensorSpecStruct()
    for name in self._execution.outputs:
      state[f"plan/{name}"] = self._leaf(name)
    if self._execution.ensemble_decay is not None:
      state["count"] = ExtendedTensorSpec((self._length,), tf.int32)
    if self.keeps_outputs:
      state["since"] = ExtendedTensorSpec((), tf.int32)
      for name in self._outputs:
        state[f"output/{name}"] = self._leaf(name)
    return state

  @_no_autograph
  def step(
    self,
    run_network: Callable[[], _Outputs],
    state: TensorSpecStruct,
    begins: tf.Tensor,
    runs_always: bool,
  ) -> tuple[_Outputs, TensorSpecStruct]:
    """Takes the next action in every environment.

    Args:
      run_network: returns the outputs of the network, [N, ...].
      state: see `state_spec`, [N, ...].
      begins: bool [N]; true where an episode starts.
      runs_always: whether the network runs at each step, because it is recurrent.
    Returns:
      (outputs, the next state): each chunk's name has the action to execute,
      `<name>_chunk` the newest chunk, `chunk_step` the place in it; all other outputs
      are from the newest chunk's step.
    """
    new = TensorSpecStruct()
    if self.keeps_outputs:
      needs = begins | (state["since"] >= self._execution.num_executed)
      kept = {name: state[f"output/{name}"] for name in self._outputs}
      if runs_always:
        fresh = run_network()
      else:
        fresh = tf.cond(tf.reduce_any(needs), run_network, lambda: kept)
      newest = {name: _where(needs, fresh[name], kept[name]) for name in self._outputs}
      since = tf.where(needs, 0, state["since"])
      new["since"] = since + 1
      for name, value in newest.items():
        new[f"output/{name}"] = value
    else:
      newest, needs = run_network(), tf.ones_like(begins)
      since = tf.zeros_like(begins, tf.int32)
    counts = None
    if self._execution.ensemble_decay is not None:
      counts = tf.where(begins[:, tf.newaxis], 0, _shift(state["count"]))
      new["count"] = counts + tf.cast(needs, tf.int32)[:, tf.newaxis]
    outputs = dict(newest)
    for name in self._execution.outputs:
      plan = self._plan(newest[name], _shift(state[f"plan/{name}"]), needs, counts)
      new[f"plan/{name}"] = plan
      outputs[name] = plan[:, 0]
      outputs[name + CHUNK_SUFFIX] = newest[name]
    outputs[CHUNK_STEP] = since
    return outputs, new

  def _plan(
    self, chunk: tf.Tensor, plan: tf.Tensor, needs: tf.Tensor, counts: tf.Tensor | None
  ) -> tf.Tensor:
    """Returns the actions of this step and the next ones, [N, n, ...].

    Args:
      chunk: [N, n, ...], the newest.
      plan: [N, n, ...], the earlier plan for the same steps.
      needs: bool [N]; where the chunk is of this step.
      counts: int32 [N, n]; the number of chunks in each planned action's mean.
    """
    decay = self._execution.ensemble_decay
    if counts is not None and decay is not None:
      # The newest of c + 1 chunks has the share exp(-k c) / sum_i exp(-k i), which is
      # 1 / sum_i exp(k i). If a large k overflows to infinity, the share is rightly 0.
      with np.errstate(over="ignore"):
        shares = 1 / np.cumsum(np.exp(decay * np.arange(self._length + 1)))
      share = _like(tf.gather(tf.constant(shares, chunk.dtype), counts), chunk)
      mean = plan * (1 - share) + chunk * share
      # Actions without an earlier plan stay unchanged, to the last bit.
      chunk = tf.where(_like(counts, chunk) > 0, mean, chunk)
    return _where(needs, chunk, plan)

  def _leaf(self, name: str) -> ExtendedTensorSpec:
    spec = self._outputs[name]
    return ExtendedTensorSpec(spec.shape[1:], spec.dtype)

  def _mismatch(self, name: str) -> errors.Mismatch | None:
    """Returns why a chunk cannot be executed."""
    if name not in self._outputs:
      hint = errors.nearest(name, self._outputs)
      got = f"only {errors.listing(self._outputs)}"
      return errors.Mismatch(name, "the name of a model output", got, hint)
    spec = self._outputs[name]
    got, num_executed = errors.describe(spec), self._execution.num_executed
    length: Any = spec.shape[1] if (spec.shape.rank or 0) > 1 else None
    if length not in self._lengths:
      steps = " or ".join(map(str, self._lengths)) or "several"
      expected = f"an action chunk, (batch, {steps} steps, ...)"
      hint = "A label with several time offsets makes its output a chunk."
      return errors.Mismatch(name, expected, got, hint)
    if length < num_executed:
      expected = f"a chunk of at least num_executed={num_executed} steps"
      return errors.Mismatch(name, expected, got, "Lower num_executed.")
    first = self._outputs.get(self._execution.outputs[0])
    if first is not None and first.shape[1:2] != spec.shape[1:2]:
      expected = f"as many steps as {self._execution.outputs[0]} has, {first.shape[1]}"
      return errors.Mismatch(name, expected, got)
    if self._execution.ensemble_decay is not None and not spec.dtype.is_floating:
      expected = "a float output, which ensembling averages"
      return errors.Mismatch(name, expected, got, "Set ensemble_decay=None.")
    return None


def _shift(plan: tf.Tensor) -> tf.Tensor:
  """Moves a plan, [N, n, ...], on by one step, with zeros for the last one."""
  return tf.concat([plan[:, 1:], tf.zeros_like(plan[:, :1])], axis=1)


def _like(values: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  """Adds axes of size 1 at the end, up to the rank of `other`."""
  axes = [1] * (other.shape.rank - values.shape.rank)
  return tf.reshape(values, tf.concat([tf.shape(values), axes], 0)) if axes else values


def _where(which: tf.Tensor, yes: tf.Tensor, no: tf.Tensor) -> tf.Tensor:
  """Chooses whole rows by bool [N]."""
  return tf.where(_like(which, yes), yes, no)
