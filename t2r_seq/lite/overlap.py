"""Executes a chunk of actions while the network computes the next one.

Which action is executed at a tick is a function of the tick and of the chunks that have
arrived. Real threads and simulated latency run the same code. TensorFlow is not
imported here.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.lite import policy_io
from t2r_seq.lite.policy_io import Prefix

SYNCHRONOUS, REAL_TIME, TRAINED = "synchronous", "real_time", "trained"
OVERLAPS = (SYNCHRONOUS, "asynchronous", REAL_TIME, TRAINED)
WITH_PREFIX = (REAL_TIME, TRAINED)
CHUNK_STEP, IS_HELD = "chunk_step", "is_held"
# The forecast of a delay is the longest of the latest ones.
_NUM_DELAYS = 10


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Actions of consecutive ticks; the first is of tick `requested`.

  Attributes:
    requested: the tick whose observation the network got.
    arrived: the first tick that can execute it.
    actions: [n, ...].
  """

  requested: int
  arrived: int
  actions: np.ndarray


@dataclasses.dataclass(frozen=True)
class Schedule:
  """When to request a chunk, and which action to execute; see `ChunkExecution`.

  Attributes:
    num_executed: ticks from a request to the next one, if the network is fast enough.
    ensemble_decay: decay of temporal ensembling; None does not average.
    overlap: mode, from `OVERLAPS`.
  """

  num_executed: int
  ensemble_decay: float | None = None
  overlap: str = "asynchronous"

  def __post_init__(self) -> None:
    """Checks the options; see `check_overlap`."""
    check_overlap("Schedule", self.overlap, self.ensemble_decay)

  def is_due(self, tick: int, last: Chunk | None, delay: int = 0) -> bool:
    """Whether to request a chunk at a tick, if no request is pending.

    Args:
      tick: current tick.
      last: the newest chunk, if there is one.
      delay: forecast of the ticks from a request to its arrival. The request is earlier
        if `last` would otherwise end before the new chunk arrives.
    """
    if last is None:
      return True
    if self.overlap == SYNCHRONOUS:
      # The robot waits for the chunk: its first action is executed at the arrival.
      return tick >= last.arrived + min(self.num_executed, len(last.actions))
    return tick - last.requested >= min(
      self.num_executed, max(1, len(last.actions) - delay)
    )

  def action(self, tick: int, chunks: Sequence[Chunk]) -> tuple[np.ndarray | None, int]:
    """Returns the action of a tick, None without one, and its step in the newest chunk.

    Args:
      tick: current tick.
      chunks: chunks that have arrived, the oldest first. Those that end before the tick
        may be left out, except in synchronous execution with temporal ensembling, where
        each counts as `num_executed` steps.
    """
    chunk_steps = [tick - chunk.requested for chunk in chunks]
    if self.overlap == SYNCHRONOUS and chunks:
      newest = tick - chunks[-1].arrived
      if newest >= self.num_executed:
        return None, newest  # The robot waits for the next chunk.
      newer_chunks = range(len(chunks) - 1, -1, -1)
      chunk_steps = [newest + count * self.num_executed for count in newer_chunks]
    covering = [
      (chunk.actions[step], step)
      for chunk, step in zip(chunks, chunk_steps, strict=True)
      if step < len(chunk.actions)
    ]
    if not covering:
      return None, chunk_steps[-1] if chunk_steps else 0
    action, chunk_step = covering[-1]
    if self.ensemble_decay is not None and len(covering) > 1:
      exponents = -self.ensemble_decay * np.arange(len(covering))
      weights = np.exp(exponents - exponents.max())
      planned = np.stack([each for each, _ in covering]).astype(np.float64)
      mean = np.tensordot(weights / weights.sum(), planned, 1)
      action = mean.astype(action.dtype)
    return action, chunk_step

  def prefix(self, tick: int, last: Chunk, delay: int) -> Prefix:
    """Returns the actions of `last`, the newest chunk, from a request's tick on.

    Those of the `delay` ticks until the next chunk arrives are frozen.
    """
    planned = last.actions[max(0, tick - last.requested) :]
    actions = np.zeros_like(last.actions)
    actions[: len(planned)] = planned
    counts = (min(delay, len(planned)), len(planned))
    return Prefix(actions[np.newaxis], *(np.array([n], np.int32) for n in counts))


def check_overlap(operation: str, overlap: str, ensemble_decay: float | None) -> None:
  """Raises a SpecError if the mode is unknown, or does not allow averaging chunks."""
  if overlap not in OVERLAPS:
    raise errors.SpecError(
      f"{operation}: overlap: expected one of {errors.listing(OVERLAPS)}, got "
      f"{overlap!r}."
    )
  if overlap in WITH_PREFIX and ensemble_decay is not None:
    raise errors.SpecError(
      f"{operation}: ensemble_decay: expected None with overlap='{overlap}', whose "
      f"chunks continue each other, got {ensemble_decay}."
    )


class ThreadedPlanner:
  """Computes chunks in a thread, one at a time."""

  def __init__(self) -> None:
    # The thread starts at the first request.
    self._pool = futures.ThreadPoolExecutor(1, "overlap")
    self._pending: futures.Future[np.ndarray] | None = None

  def seed(self, seed: int) -> None:
    """Has no effect: the latency is real."""

  def start(
    self, plan: Callable[[], np.ndarray], period: float | None
  ) -> tuple[np.ndarray, int]:
    """Waits for an episode's first chunk; returns it, and a chunk's delay in ticks."""
    actions = self._pool.submit(plan).result()
    if period is None:
      return actions, 0
    # A network's first call is slower than all others, so that a second is measured.
    started = time.perf_counter()
    self._pool.submit(plan).result()
    return actions, math.ceil((time.perf_counter() - started) / period)

  def ask(self, plan: Callable[[], np.ndarray], tick: int) -> None:
    """Requests a chunk at a tick."""
    del tick
    self._pending = self._pool.submit(plan)

  def answer(self, tick: int) -> np.ndarray | None:
    """Returns the requested chunk if it has arrived; raises the network's error."""
    del tick
    if self._pending is None or not self._pending.done():
      return None
    done, self._pending = self._pending, None
    return done.result()

  def forget(self) -> None:
    """Drops the pending request, if there is one."""
    self._pending = None

  def close(self) -> None:
    """Waits for the thread."""
    self._pool.shutdown()


class SimulatedLatency:
  """Delays chunks by a latency in simulated time, for evaluation."""

  def __init__(
    self, latency: float, jitter: float = 0.0, control_rate: float = 1.0
  ) -> None:
    """Creates the model of a slow network.

    Args:
      latency: seconds from a request to its answer.
      jitter: latencies are uniform between `latency - jitter` and `latency + jitter`.
      control_rate: ticks per second.
    Raises:
      SpecError: a number is out of range.
    """
    for name, value, is_good in (
      ("latency", latency, latency >= 0),
      ("jitter", jitter, 0 <= jitter <= latency),
      ("control_rate", control_rate, control_rate > 0),
    ):
      if not (is_good and math.isfinite(value)):
        expected = "seconds >= 0"
        if name == "jitter":
          expected = f"seconds between 0 and the latency, {latency}"
        if name == "control_rate":
          expected = "ticks per second, > 0"
        raise errors.SpecError(
          f"SimulatedLatency: {name}: expected {expected}, got {value}."
        )
    self._latency, self._jitter, self._rate = latency, jitter, control_rate
    self._answer: np.ndarray | None = None
    self._due = 0
    self.seed(0)

  def seed(self, seed: int) -> None:
    """Makes the latencies from now on repeatable; drops a pending request."""
    self._rng = np.random.default_rng([seed % (1 << 63), 2])
    self.forget()

  def _delay(self) -> int:
    """Returns a random latency in ticks."""
    seconds = self._latency + self._jitter * self._rng.uniform(-1, 1)
    # 0.15 s at 20 Hz is three ticks, although 0.15 * 20 is a little more.
    return math.ceil(seconds * self._rate - 1e-6)

  def start(
    self, plan: Callable[[], np.ndarray], period: float | None
  ) -> tuple[np.ndarray, int]:
    """See `ThreadedPlanner`: an episode starts when its first chunk is ready."""
    del period
    return plan(), self._delay()

  def ask(self, plan: Callable[[], np.ndarray], tick: int) -> None:
    """See `ThreadedPlanner`."""
    self._answer, self._due = plan(), tick + self._delay()

  def answer(self, tick: int) -> np.ndarray | None:
    """See `ThreadedPlanner`."""
    if self._answer is None or tick < self._due:
      return None
    answer = self._answer
    self.forget()
    return answer

  def forget(self) -> None:
    """See `ThreadedPlanner`."""
    self._answer, self._due = None, 0

  def close(self) -> None:
    """See `ThreadedPlanner`."""


class OverlappedPolicy:
  """Acts at every tick while the network computes; for one environment.

  The history sees every observation. An episode starts when its first chunk is ready.
  If no chunk has an action for a tick, the last action is repeated, and the output
  `is_held` is True.

  Attributes:
    num_requests: chunks that were requested in this episode.
    num_held: ticks of this episode at which the last action was repeated.
    delays: ticks from requests to arrivals of the latest chunks.
  """

  def __init__(
    self,
    policy: Any,
    overlap: str | None = None,
    num_executed: int | None = None,
    planner: Any = None,
    action_key: str = "inference_output",
  ) -> None:
    """Binds a policy.

    Args:
      policy: a predictor with a model, a `lite.LitePolicy` or a
        `serving.PolicyClient`.
      overlap: mode, from `OVERLAPS`; None: that of the export's `ChunkExecution`.
      num_executed: actions per chunk, as in `ChunkExecution`; None for the export's.
      planner: a `SimulatedLatency`; None computes in a thread.
      action_key: the output that is the chunk.
    Raises:
      SpecError: the policy does not execute chunks, cannot overlap in this way, or
        `num_executed` is below 1.
      policies.predictors.NoModelError: the predictor has no model.
    """
    self._policy, self._action_key = policy, action_key
    self._overlap, self._num_executed = overlap, num_executed
    self._planner = planner or ThreadedPlanner()
    self._source: Any = None
    self._bind()
    self.reset()

  def _bind(self) -> None:
    """Uses a newly loaded model, and reads how it executes chunks."""
    model = getattr(self._policy, "pure", self._policy)
    if model is getattr(self, "_model", None):
      return
    self._model = model
    record = model.describe().get("record") or {}
    execution = record.get("execution")
    if execution is None or self._action_key not in execution["outputs"]:
      raise errors.SpecError(
        f"overlap: {self._action_key}: expected a policy that executes its chunks, got "
        f"{'whole chunks' if execution is None else execution['outputs']}. Give the "
        "model an execution, policies.ChunkExecution(...), and export it again."
      )
    num_executed = self._num_executed
    self._schedule = Schedule(
      execution["num_executed"] if num_executed is None else num_executed,
      execution["ensemble_decay"],
      self._overlap or execution.get("overlap", SYNCHRONOUS),
    )
    errors.check_count("overlap", "num_executed", self._schedule.num_executed)
    prefix = record.get("prefix_mode")
    if self._schedule.overlap in WITH_PREFIX and self._schedule.overlap != prefix:
      modes = ["synchronous", "asynchronous", *([prefix] if prefix else [])]
      raise errors.SpecError(
        f"overlap: expected one of {errors.listing(modes)}, as this model can do, got "
        f"'{self._schedule.overlap}'. {_HINTS[self._schedule.overlap]}"
      )
    self._max_delay = record.get("max_delay")
    # A PolicyClient's server keeps the state; a PurePolicy needs a StatefulPolicy.
    keeps_state = hasattr(model, "observe_one")
    self._source = model if keeps_state else policy_io.StatefulPolicy(model)

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if known."""
    return self._model.control_period

  @property
  def is_timed(self) -> bool:
    """Whether the history is by time stamps, which makes it right at any rate."""
    return bool(getattr(self._model, "time_paths", ()))

  def restore(self) -> bool:
    """Loads the newest model if the policy can; returns whether it is in use."""
    is_newest = getattr(self._policy, "restore", lambda: True)()
    self._bind()
    return bool(is_newest)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes random numbers repeatable: the network's, and a simulated latency's."""
    del env
    self._source.seed(seed)
    self._planner.seed(seed)

  def reset(self) -> None:
    """Starts an episode: the next observation is its first."""
    self._source.start_episode()
    self._planner.forget()
    self._tick, self._requested = 0, 0
    self._is_pending = False
    self._chunks: list[Chunk] = []
    self._last: np.ndarray | None = None
    self.num_requests = self.num_held = 0
    self.delays: collections.deque[int] = collections.deque(maxlen=_NUM_DELAYS)

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns this tick's action, and outputs with `chunk_step` and `is_held`.

    `explore_prob` is ignored.

    Raises:
      SpecError: the observation does not fit; the tick does not count.
      Exception: the network raised it in its thread.
    """
    del explore_prob
    seen, tick = self._source.observe_one(obs), self._tick
    self._tick += 1
    # A chunk that has arrived by now allows the next request.
    self._collect(tick)
    last = self._chunks[-1] if self._chunks else None
    if last is None:
      plan = self._request(seen, None)
      actions, delay = self._planner.start(plan, self.control_period)
      self._chunks.append(Chunk(tick, tick, actions))
      self.delays.append(delay)
    elif not self._is_pending:
      delay = max(self.delays)
      if self._schedule.is_due(tick, last, delay):
        prefix = None
        if self._schedule.overlap in WITH_PREFIX:
          num_frozen = delay if self._max_delay is None else min(delay, self._max_delay)
          prefix = self._schedule.prefix(tick, last, num_frozen)
        self._planner.ask(self._request(seen, prefix), tick)
        self._requested, self._is_pending = tick, True
        self._collect(tick)  # The answer may be ready at once, such as without latency.
    action, chunk_step = self._schedule.action(tick, self._chunks)
    is_held = action is None
    if action is not None:
      self._last = action
    self.num_held += is_held
    assert self._last is not None  # The first chunk was waited for.
    outputs = {self._action_key: self._last, CHUNK_STEP: chunk_step, IS_HELD: is_held}
    return self._last.copy(), outputs

  def skip(self, num_ticks: int) -> None:
    """Counts ticks that have passed without an observation."""
    self._tick += num_ticks

  def _request(self, seen: Any, prefix: Prefix | None) -> Callable[[], np.ndarray]:
    """Returns the function that a planner calls for the chunk of an observation."""
    self.num_requests += 1
    source, name = self._source, self._action_key
    return lambda: np.asarray(source.plan_one(seen, prefix)[name])

  def _collect(self, tick: int) -> None:
    """Adds the requested chunk if it has arrived."""
    actions = self._planner.answer(tick) if self._is_pending else None
    if actions is None:
      return
    self._is_pending = False
    self.delays.append(tick - self._requested)
    self._chunks.append(Chunk(self._requested, tick, actions))
    # Chunks are requested at least a tick apart, so that older ones have ended.
    del self._chunks[: -len(actions) - 1]

  def close(self) -> None:
    """Waits for the thread and ends it."""
    self._planner.close()


_HINTS: Mapping[str, str] = {
  REAL_TIME: "Inpainting needs a flow or diffusion head, such as zoo.FlowModel's.",
  TRAINED: "Train the model with max_delay, such as zoo.FlowModel's.",
}
