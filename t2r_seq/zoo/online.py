"""Reinforcement learning in one job: collects, learns, evaluates, exports the best."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import (
  actors,
  data,
  errors,
  hooks,
  models,
  policies,
  replay,
  specs,
  training,
)
from t2r_seq.actors import rollouts
from t2r_seq.data.input_generator import SAMPLE_KEY, SAMPLE_WEIGHT, BatchRequest
from t2r_seq.policies.policy import Generators
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.training.callbacks import Run
from t2r_seq.training.exports import Exporter
from t2r_seq.zoo.environment import make_environment
from t2r_seq.zoo.online_model import OnlineModel
from t2r_seq.zoo.spaces import EnvSignature

# Numbers of seed streams, so that collection and evaluation do not share episodes.
_COLLECT, _EVALUATE = 4, 5
_REPLAY_FOLDER = "replay"
METRIC = "closed_loop/reward"


@gin.configurable
@dataclasses.dataclass(frozen=True)
class OnlineSchedule:
  """Numbers of environment and train steps of an online training.

  A round is `steps_per_round` environment steps and then `updates_per_round` train
  steps. Both run in one thread; acting uses the current weights. Runs with equal seeds
  are equal, except for floating-point summation order in multi-threaded ops. Steps
  count over all environments.

  Attributes:
    num_steps: environment steps of the training; the last ones, if they do not fill a
      round, are left out.
    learning_starts: environment steps with random actions before the first round.
    steps_per_round: environment steps of a round; a multiple of `num_envs`.
    updates_per_round: train steps of a round.
    num_envs: environments that are stepped together.
    num_evaluations: maximum number of evaluations, each after a checkpoint. Checkpoints
      truncate running episodes, so that a resumed run equals an uninterrupted one.
    eval_episodes: episodes of each evaluation.
  """

  num_steps: int = 100_000
  learning_starts: int = 1_000
  steps_per_round: int = 1
  updates_per_round: int = 1
  num_envs: int = 1
  num_evaluations: int = 10
  eval_episodes: int = 10

  def __post_init__(self) -> None:
    """Checks the numbers.

    Raises:
      SpecError: a number is below 1, `steps_per_round` is not a multiple of `num_envs`,
        or there is no round.
    """
    where = "OnlineSchedule"
    for field in dataclasses.fields(self):
      errors.check_count(where, field.name, getattr(self, field.name))
    if self.steps_per_round % self.num_envs:
      raise errors.SpecError(
        f"{where}: steps_per_round: expected a multiple of num_envs, {self.num_envs}, "
        f"got {self.steps_per_round}."
      )
    if self.num_rounds < 1:
      raise errors.SpecError(
        f"{where}: num_steps: expected more than learning_starts, "
        f"{self.learning_starts}, got {self.num_steps}."
      )

  @property
  def num_rounds(self) -> int:
    """Number of rounds, all after `learning_starts`."""
    return (self.num_steps - self.learning_starts) // self.steps_per_round

  @property
  def num_updates(self) -> int:
    """Train steps of all rounds."""
    return self.num_rounds * self.updates_per_round

  @property
  def updates_per_evaluation(self) -> int:
    """Train steps between two evaluations, in whole rounds."""
    rounds = math.ceil(self.num_rounds / self.num_evaluations)
    return rounds * self.updates_per_round

  def steps_before(self, update: int) -> int:
    """Returns the environment steps before the round of train step `update`, >= 0."""
    return (
      self.learning_starts + update // self.updates_per_round * self.steps_per_round
    )


class CollectingPolicy(policies.RegressionPolicy):
  """Explores with a model while it is trained; first with random actions.

  Attributes:
    num_steps: environment steps so far; a `Collector` sets it.
  """

  def __init__(self, model: OnlineModel, schedule: OnlineSchedule) -> None:
    """Creates the policy, which uses the model's weights without a copy.

    Args:
      model: the model, whose `explore` chooses actions.
      schedule: schedule of the training.
    """
    predictor = policies.ModelPredictor(model, copies_weights=False)
    super().__init__(predictor, model.exploration_output)
    self.num_steps = 0
    self._model, self._schedule = model, schedule
    self._rngs = Generators(None)

  def seed(self, seed: int, env: int = 0) -> None:
    """Seeds the exploration in an environment."""
    super().seed(seed, env)
    self._rngs.seed(seed, env)

  def explore(self, action: np.ndarray, env: int = 0) -> Any:
    """Returns a random action before `learning_starts`, then the model's."""
    rng = self._rngs[env]
    if self.num_steps < self._schedule.learning_starts:
      return self._model.signature.random_action(rng)
    return self._model.explore(action, rng, self.num_steps / self._schedule.num_steps)


class Collector(training.Callback):
  """Collects the environment steps of a schedule into a replay.

  As a callback it ends running episodes and saves the replay at each checkpoint, and
  logs 'collect/num_steps' and the mean return 'collect/episode_reward'.
  """

  def __init__(
    self,
    create_env: Callable[[], Any],
    policy: CollectingPolicy,
    buffer: replay.ReplayBuffer,
    schedule: OnlineSchedule,
    seed: int,
  ) -> None:
    """Creates the collector; it makes the environment when it first collects.

    Args:
      create_env: makes one environment.
      policy: the policy that acts.
      buffer: replay for the steps; it has a `checkpoint_dir`.
      schedule: schedule of the training.
      seed: seed of environments and policy.
    """
    self._create_env = functools.partial(create_envs, create_env, schedule.num_envs)
    self._policy, self._buffer, self._schedule = policy, buffer, schedule
    self._seed = seed
    self._sink = actors.ReplaySink(buffer)
    self._env: Any = None
    self._steps: rollouts.Steps | None = None
    self._running: dict[int, rollouts.EpisodeStep] = {}
    self._returns: dict[int, float] = {}
    self._ended: list[float] = []

  def collect(self, num_steps: int, update: int) -> None:
    """Takes environment steps.

    Args:
      num_steps: environment steps of the training so far, those of this call included.
      update: train steps so far; seeds episodes that start after a checkpoint.
    """
    if self._steps is None:
      self._start(update)
    assert self._steps is not None
    policy = self._policy
    while policy.num_steps < num_steps:
      env, step = next(self._steps)
      self._running[env] = step
      self._sink.add(step, env)
      policy.num_steps += 1
      self._returns[env] = self._returns.get(env, 0.0) + step["reward"]
      if rollouts.is_last(step):
        del self._running[env]
        self._ended.append(self._returns.pop(env))

  @property
  def step_interval(self) -> int:
    """Train steps between two collections; see the base class."""
    return self._schedule.updates_per_round

  def on_begin(self, run: Run) -> None:
    """Restores the replay if the training resumes."""
    if run.step:
      self._buffer.resume()
      # If the training was stopped within a round, its steps were already taken.
      last = run.step + self._schedule.updates_per_round - 1
      self._policy.num_steps = self._schedule.steps_before(last)

  def after_log(self, run: Run, scalars: Mapping[str, float]) -> None:
    """Writes the steps so far, and the mean return of episodes since the last log."""
    values: dict[str, float] = {"collect/num_steps": self._policy.num_steps}
    if self._ended:
      values["collect/episode_reward"] = float(np.mean(self._ended))
      self._ended.clear()
    run.write_scalars(values)

  def after_checkpoint(self, run: Run, path: str) -> None:
    """Ends running episodes and saves the replay."""
    self._end_episodes()
    self._buffer.checkpoint()

  def on_end(self, run: Run) -> None:
    """Ends running episodes and closes the environment."""
    self._end_episodes()
    self._sink.close()
    if self._env is not None:
      self._env.close()

  def _start(self, update: int) -> None:
    """Starts episodes whose seeds are a function of the train step."""
    if self._env is None:
      self._env = self._create_env()
      rollouts.restore_policy(self._policy)
    seed = rollouts.episode_seed(self._seed, update, _COLLECT)
    self._policy.reset()
    # 2**62 episodes are more than a training has: `_end_episodes` stops them.
    self._steps = rollouts.generate_steps(self._env, self._policy, 2**62, seed)

  def _end_episodes(self) -> None:
    if self._steps is not None:
      self._steps.close()
      self._steps = None
    for env, step in self._running.items():
      self._sink.append(rollouts.last_observation(step), env)
      self._sink.end_episode(env)
    self._running.clear()
    self._returns.clear()


class OnlineInputGenerator(data.AbstractInputGenerator):
  """Samples batches from a replay; collects into it before the first batch of a round.

  Batches are sampled on demand, without prefetching, so that each uses the newest
  priorities, and steps that the newest weights collected.
  """

  def __init__(
    self,
    collector: Collector,
    buffer: replay.ReplayBuffer,
    schedule: OnlineSchedule,
    batch_size: int,
    importance_exponent: float | None = None,
  ) -> None:
    """Creates the generator.

    Args:
      collector: collector of the steps.
      buffer: replay that the collector fills.
      schedule: schedule of the training.
      batch_size: transitions in a batch.
      importance_exponent: exponent of the weights of prioritized samples; None: no
        weights.
    """
    super().__init__(batch_size)
    self._collector, self._buffer, self._schedule = collector, buffer, schedule
    self._exponent = importance_exponent

  def describe(self) -> str:
    """Describes the batches for people."""
    return f"replay of what is collected, batches of {self.batch_size}"

  @property
  def device_fn(self) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    """The model's preprocessor, which runs in the train step."""
    return self._preprocess_fn

  def create_dataset(  # type: ignore[override]
    self, mode: str, *args: Any, start_step: int = 0, **kwargs: Any
  ) -> Iterable[tuple[TensorSpecStruct, TensorSpecStruct]]:
    """Returns an endless iterator of (features, labels), from train step `start_step`.

    Raises:
      SpecError: the first round collects too few steps for a transition.
    """
    self._check_ready(mode)
    return self._batches(start_step)

  def _batches(
    self, update: int
  ) -> Iterator[tuple[TensorSpecStruct, TensorSpecStruct]]:
    schedule = self._schedule
    while True:
      if update % schedule.updates_per_round == 0:
        num_steps = schedule.steps_before(update) + schedule.steps_per_round
        self._collector.collect(num_steps, update)
        if not self._buffer.counters.num_items:  # Sampling would block.
          raise errors.SpecError(
            "OnlineSchedule: learning_starts: expected enough steps for a transition, "
            f"got {schedule.learning_starts}. Raise it above num_envs * n_step."
          )
      yield self._sample()
      update += 1

  def _sample(self) -> tuple[TensorSpecStruct, TensorSpecStruct]:
    if self._exponent is None:
      batch = self._buffer.sample(self.batch_size)
    else:
      info, batch = self._buffer.sample_with_info(self.batch_size)
      # Keys of items count from 0; in batches 0 stands for no item.
      batch[SAMPLE_KEY] = info.key.view(np.int64) + 1
      batch[SAMPLE_WEIGHT] = replay.importance_weights(info, self._exponent)
    assert self._feature_spec is not None and self._label_spec is not None
    return tuple(  # type: ignore[return-value]
      TensorSpecStruct(
        (path, tf.convert_to_tensor(batch[path])) for path in spec if path in batch
      )
      for spec in (self._feature_spec, self._label_spec)
    )

  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    raise errors.SpecError("OnlineInputGenerator: expected to train, got another mode.")


def create_envs(create_env: Callable[[], Any], num_envs: int) -> Any:
  """Returns one environment, or several that are stepped together."""
  if num_envs == 1:
    return create_env()
  from gymnasium import vector

  mode = vector.AutoresetMode.DISABLED
  return vector.SyncVectorEnv([create_env] * num_envs, autoreset_mode=mode)


@gin.configurable
def train_online(
  model_class: Callable[..., OnlineModel] = gin.REQUIRED,
  env: str | Callable[[], Any] = gin.REQUIRED,
  model_dir: str = gin.REQUIRED,
  schedule: OnlineSchedule | None = None,
  batch_size: int = 64,
  replay_steps: int = 100_000,
  sampler: Any = None,
  importance_exponent: float = 0.4,
  seed: int = 0,
  show_progress: bool = True,
) -> dict[str, float]:
  """Trains a policy in an environment, in one process.

  In a folder with checkpoints it resumes from the newest. The best export has the
  highest mean return in evaluation episodes, whose seeds are not those of collection.

  Args:
    model_class: called with the `EnvSignature`, such as `DQNModel`.
    env: the id of a Gymnasium environment, or a function that makes one.
    model_dir: folder of checkpoints, replay, event files and exports.
    schedule: numbers of steps; None for `OnlineSchedule()`.
    batch_size: transitions in a batch.
    replay_steps: environment steps that the replay holds.
    sampler: sampler of the replay; None for `replay.Uniform()`. With
      `replay.Prioritized` the TD errors become priorities, and importance weights
      correct the loss.
    importance_exponent: exponent of those weights.
    seed: seed of everything random.
    show_progress: prints progress on stderr.
  Returns:
    The result of `training.train_eval_model`; 'closed_loop/reward' is the mean return.
  Raises:
    ImportError: Gymnasium or a package of the environment is missing.
    SpecError: an unknown environment, spaces that the policy cannot use, an invalid
      option, or a checkpoint of another model. Nothing is trained then.
    training.checkpoints.NanLossError: a loss or gradient was not finite.
  """
  schedule = schedule or OnlineSchedule()
  is_prioritized = isinstance(sampler, replay.Prioritized)
  create_env = _create_env_fn(env)
  model = _create_model(model_class, create_env)
  model.seed = seed
  buffer = replay.ReplayBuffer(
    _stored_specs(model),
    capacity_steps=replay_steps,
    num_writers=schedule.num_envs,
    n_step=model.n_step,
    padding=model.padding,
    seed=seed,
    checkpoint_dir=os.path.join(model_dir, _REPLAY_FOLDER),
    keep_checkpoints=1,
    initial_priority=None if is_prioritized else 1.0,
    sampler=replay.Uniform() if sampler is None else sampler,
  )
  policy = CollectingPolicy(model, schedule)
  collector = Collector(create_env, policy, buffer, schedule, seed)
  exponent = importance_exponent if is_prioritized else None
  generator = OnlineInputGenerator(collector, buffer, schedule, batch_size, exponent)
  evaluation = actors.ClosedLoopEvaluation(
    functools.partial(create_envs, create_env, schedule.eval_episodes),
    num_episodes=schedule.eval_episodes,
    seed=rollouts.episode_seed(seed, 0, _EVALUATE),
  )
  updates = [hooks.PriorityUpdate(buffer)] if is_prioritized else []
  every = schedule.updates_per_evaluation
  return training.train_eval_model(
    model,
    generator,
    max_train_steps=schedule.num_updates,
    model_dir=model_dir,
    eval_throttle_secs=0.0,
    create_exporters_fn=_create_exporters,
    callbacks=[collector, evaluation, *updates],
    run_config=training.RunConfig(
      save_checkpoints_steps=every,
      log_every_n_steps=_part_of(every, schedule.updates_per_round),
      steps_per_loop=_steps_per_loop(schedule.updates_per_round),
      seed=seed,
      show_progress=show_progress,
    ),
  )


def _create_env_fn(env: Any) -> Callable[[], Any]:
  if isinstance(env, str):
    return functools.partial(make_environment, env)
  if not callable(env) or (hasattr(env, "reset") and not isinstance(env, type)):
    raise errors.SpecError(
      "train: env: expected a name, or a function that makes an environment, got "
      f"{env}."
    )
  return env


def _create_model(
  model_class: Callable[..., OnlineModel], create_env: Callable[[], Any]
) -> OnlineModel:
  env = create_env()
  try:
    return model_class(EnvSignature.of(env))
  finally:
    env.close()


def _create_exporters() -> list[Exporter]:
  best = training.BestExporter(metric=METRIC, larger_is_better=True)
  return [training.LatestExporter(), best]


def _stored_specs(model: OnlineModel) -> TensorSpecStruct:
  stored = models.training_specification(model)
  return TensorSpecStruct(
    (path, spec)
    for path, spec in specs.flatten_spec_structure(stored).items()
    if path not in (SAMPLE_KEY, SAMPLE_WEIGHT)
  )


def _part_of(steps: int, round_steps: int) -> int:
  """Returns a divisor of `steps` that is a multiple of `round_steps`, near 250."""
  rounds = steps // round_steps
  num_parts = max(1, round(rounds * round_steps / 250))
  parts = next(n for n in range(num_parts, rounds + 1) if rounds % n == 0)
  return steps // parts


def _steps_per_loop(updates: int) -> int:
  """Returns how many train steps of a round one call runs: a divisor, at most 32."""
  return max(n for n in range(1, min(updates, 32) + 1) if updates % n == 0)
