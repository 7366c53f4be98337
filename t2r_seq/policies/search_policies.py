"""Policies that choose: among sampled actions by a critic, or among a few actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.policies import cross_entropy, policy, predictors
from t2r_seq.policies.exploration_policies import Generators

PackFn = Callable[[Any, Any, Any, Any, np.ndarray], Any]


@gin.configurable
class CEMPolicy(policy.Policy):
  """Chooses the action that a critic values most, by the cross-entropy method.

  Here the search is in Python, and calls the predictor once an iteration, with any
  critic and packing. An export of a `CriticModel` with a `search` does the same inside
  of one `step`, several times as fast, and is run by a `RegressionPolicy` with
  `action_key='action'`.
  """

  def __init__(
    self,
    t2r_model: Any = None,
    action_size: int = 2,
    cem_iters: int = 3,
    cem_samples: int = 64,
    num_elites: int = 10,
    pack_fn: PackFn | None = None,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    decay: float = 0.0,
    low: Any = None,
    high: Any = None,
    seed: int | None = None,
  ) -> None:
    """Creates the policy; the arguments up to `predictor` are Tensor2Robot's.

    Args:
      t2r_model: is handed to `pack_fn`; not needed by the default one.
      action_size: elements of an action.
      cem_iters: iterations of the search.
      cem_samples: actions drawn in each.
      num_elites: the best of them, which the next are drawn from.
      pack_fn: maps (t2r_model, state, context, timestep, samples [n, action_size]) to
        the features that the predictor takes. By default the critic's single action
        feature gets the samples, and all others come from state and context.
      predictor: of a critic: gives 'q_predicted'.
      decay: see `cross_entropy.NormalCrossEntropyMethod`.
      low: of the action's elements, a number or one for each; None for no bound.
      high: likewise.
      seed: of the samples.
    """
    super().__init__(predictor)
    self._critic: predictors.AbstractPredictor = predictor
    self._t2r_model = t2r_model
    self._action_size = action_size
    self._cem_iters = cem_iters
    self._cem_samples = cem_samples
    self._num_elites = num_elites
    self.pack_fn = pack_fn or self._default_pack_fn
    self._decay, self._low, self._high = decay, low, high
    self._rngs = Generators(seed)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the samples repeatable from here on."""
    self._rngs.seed(seed, env)

  def get_cem_action(
    self, objective_fn: Callable[[np.ndarray], Any]
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Looks for what maximises a function.

    Args:
      objective_fn: maps samples [cem_samples, action_size] to their values.
    Returns:
      (the best of the last samples; its value 'q_predicted', its number 'best_idx' and
      the 'final_params' of the distribution).
    """
    shape = (self._cem_samples, self._action_size)
    sample, update = cross_entropy.normal_search(
      self._rngs[0], shape, self._decay, self._low, self._high
    )
    params = {"mean": np.zeros(shape[1]), "stddev": np.ones(shape[1])}
    samples, values, params = cross_entropy.CrossEntropyMethod(
      sample, objective_fn, update, params, self._num_elites, self._cem_iters
    )
    best = int(np.argmax(values))
    found = {"q_predicted": values[best], "final_params": params, "best_idx": best}
    return samples[best], found

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Selects the action with the highest value, [action_size]."""
    return self._search(state, context, timestep)[0]

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Selects the action, and returns what the search found out beside it."""
    del explore_prob
    return self._search(obs, None, None)

  def _search(
    self, state: Any, context: Any, timestep: int | None
  ) -> tuple[np.ndarray, dict[str, Any]]:
    def objective(samples: np.ndarray) -> np.ndarray:
      return self._evaluate(state, context, timestep, samples)["q_predicted"]

    return self.get_cem_action(objective)

  def _evaluate(
    self, state: Any, context: Any, timestep: int | None, samples: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Asks the critic about all samples."""
    packed = self.pack_fn(self._t2r_model, state, context, timestep, samples)
    outputs = self._critic.predict(packed)
    if "q_predicted" not in outputs:
      raise errors.SpecError(
        f"select action: the model has no output 'q_predicted', only "
        f"{errors.listing(outputs)}. It takes a critic."
      )
    return outputs

  def _default_pack_fn(
    self, t2r_model: Any, state: Any, context: Any, timestep: Any, samples: np.ndarray
  ) -> Any:
    """Packs the features of an exported critic: of one state, or of as many."""
    del t2r_model, timestep
    spec = self._critic.get_feature_specification()
    paths = [p for p in spec if p == "action" or p.startswith("action/")]
    if len(paths) != 1:
      raise errors.SpecError(
        "CEMPolicy: pack_fn: expected a critic with one feature below 'action', got "
        f"{errors.listing(paths)}. Give a pack_fn."
      )
    (path,) = paths
    rest = specs.TensorSpecStruct((p, s) for p, s in spec.items() if p != path)
    features = policy.pack_observation(state, rest, context)
    dtype = spec[path].dtype.as_numpy_dtype
    candidates, size = samples.size, spec[path].shape.num_elements()
    if size == candidates:  # action_batch_size
      actions, count = samples.reshape([1, *spec[path].shape]), 1
    elif size != self._action_size:
      raise errors.SpecError(
        f"CEMPolicy: action_size: expected that of the critic's {path}, "
        f"{errors.describe(spec[path])}, or cem_samples of them, got action_size "
        f"{self._action_size} and cem_samples {self._cem_samples}."
      )
    else:
      actions, count = samples.reshape([len(samples), *spec[path].shape]), len(samples)
    packed = {p: np.repeat(x[np.newaxis], count, axis=0) for p, x in features.items()}
    return {**packed, path: actions.astype(dtype)}


@gin.configurable
class LSTMCEMPolicy(CEMPolicy):
  """A `CEMPolicy` of a critic that remembers: the chosen action's state is kept.

  The critic gives 'lstm_hidden_state' for each sample; `pack_fn` gets the hidden state
  in the place of the context.
  """

  def __init__(self, hidden_state_size: int = gin.REQUIRED, **kwargs: Any) -> None:
    """Creates the policy.

    Args:
      hidden_state_size: elements of the hidden state, zeros to begin with.
      **kwargs: of `CEMPolicy`; `pack_fn` is required.
    Raises:
      SpecError: there is no `pack_fn`, which alone knows where the state goes.
    """
    super().__init__(**kwargs)
    if kwargs.get("pack_fn") is None:
      raise errors.SpecError(
        "LSTMCEMPolicy: pack_fn: expected a function that packs the hidden state, got "
        "none."
      )
    self._hidden_state_size = hidden_state_size
    self.reset()

  def reset(self) -> None:
    """Starts an episode, with a hidden state of zeros."""
    self._hidden_state = np.zeros([self._hidden_state_size], np.float32)

  def _search(
    self, state: Any, context: Any, timestep: int | None
  ) -> tuple[np.ndarray, dict[str, Any]]:
    del context
    hidden: list[np.ndarray] = []

    def objective(samples: np.ndarray) -> np.ndarray:
      outputs = self._evaluate(state, self._hidden_state, timestep, samples)
      shape = [len(samples), self._hidden_state_size]
      hidden.append(outputs["lstm_hidden_state"].reshape(shape))
      return outputs["q_predicted"]

    action, found = self.get_cem_action(objective)
    self._hidden_state = hidden[-1][found["best_idx"]]
    return action, found


@gin.configurable
@dataclasses.dataclass(frozen=True)
class LinearSchedule:
  """A number that moves from one to another during training, and stays there.

  Attributes:
    initial: at step 0.
    final: from `num_steps` on.
    num_steps: training steps in between.
  """

  initial: float = 1.0
  final: float = 0.05
  num_steps: int = 10000

  def __call__(self, step: int) -> float:
    """Returns the number at a training step."""
    done = min(max(step, 0) / self.num_steps, 1.0)
    return self.initial + done * (self.final - self.initial)


@gin.configurable
class EpsilonGreedyPolicy(policy.RegressionPolicy):
  """Chooses the action of the highest score; with the probability epsilon, any.

  For models that give one score for each of a few actions, e.g. 'q_predicted' or
  'a_predicted', [B, num_actions]. The action is its number.
  """

  def __init__(
    self,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    action_key: str = "q_predicted",
    epsilon: float | Callable[[int], float] = 0.0,
    seed: int | None = None,
  ) -> None:
    """Creates the policy; by default a greedy one.

    Args:
      predictor: has `step`.
      action_key: the model's output that scores the actions.
      epsilon: the probability of a random action, or a function of the training step,
        such as a `LinearSchedule`.
      seed: of the random actions.
    """
    super().__init__(predictor, action_key)
    self._epsilon = epsilon
    self._rngs = Generators(seed)

  @property
  def epsilon(self) -> float:
    """The probability of a random action at the model's training step."""
    if callable(self._epsilon):
      return float(self._epsilon(self.global_step))
    return self._epsilon

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the random actions in an environment repeatable from here on."""
    super().seed(seed, env)
    self._rngs.seed(seed, env)

  def explore(self, action: np.ndarray, env: int = 0) -> Any:
    """Chooses by the scores, [num_actions]."""
    if action.ndim != 1:
      raise errors.SpecError(
        f"EpsilonGreedyPolicy: {self._action_key}: expected one score for each action, "
        f"(batch, num_actions), got {errors.describe(action)} of one environment."
      )
    rng = self._rngs[env]
    # Both are drawn always: a schedule doesn't shift what comes after.
    is_random, anyone = rng.random() < self.epsilon, rng.integers(len(action))
    return np.int64(anyone if is_random else np.argmax(action))
