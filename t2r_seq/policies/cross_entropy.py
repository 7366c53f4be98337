"""The cross-entropy method: searches the maximum of an objective, such as a critic.

Draws samples, fits the distribution to the best, and repeats (Rubinstein, 1999), as
QT-Opt chooses its actions (Kalashnikov et al., 2018). The numpy functions have
Tensor2Robot's names and order of arguments; `CrossEntropySearch` is for graphs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, randomness, specs
from t2r_seq.policies import policy, predictors
from t2r_seq.policies.policy import Generators
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

_no_autograph = tf.autograph.experimental.do_not_convert

Params = dict[str, Any]


def CrossEntropyMethod(
  sample_fn: Callable[..., Any],
  objective_fn: Callable[[Any], Any],
  update_fn: Callable[[Params, Any], Params],
  initial_params: Params,
  num_elites: int,
  num_iterations: int = 1,
  threshold_to_terminate: float | None = None,
) -> tuple[Any, np.ndarray, Params]:
  """Maximises an objective with any distribution.

  Args:
    sample_fn: called with the parameters by name; returns n samples: an array or list,
      or a dictionary of them by name.
    objective_fn: maps the samples to n values.
    update_fn: maps (parameters, elites) to the next parameters; the best elite is last.
    initial_params: the first parameters, by name.
    num_elites: the number of best samples, which `update_fn` gets.
    num_iterations: the largest number of iterations.
    threshold_to_terminate: ends the search once a value is above it; None: never.
  Returns:
    (the last iteration's samples, their values [n], the parameters fitted to them).
  """
  params = initial_params
  samples, values = None, np.zeros([0])
  for _ in range(num_iterations):
    samples = sample_fn(**params)
    values = np.asarray(objective_fn(samples)).reshape(-1)
    elite = np.argsort(values, kind="stable")[-num_elites:]
    if isinstance(samples, Mapping):
      elites = {name: np.asarray(each)[elite] for name, each in samples.items()}
      params = update_fn(params, elites)
    else:
      params = update_fn(params, np.asarray(samples)[elite])
    if threshold_to_terminate is not None and values.max() > threshold_to_terminate:
      break
  return samples, values, params


def NormalCrossEntropyMethod(
  objective_fn: Callable[[np.ndarray], Any],
  mean: Any,
  stddev: Any,
  num_samples: int,
  num_elites: int,
  num_iterations: int = 1,
  decay: float = 0.0,
  low: Any = None,
  high: Any = None,
  seed: int | np.random.Generator | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Maximises an objective over vectors, with independent normal distributions.

  Args:
    objective_fn: maps samples [num_samples, D] to their values.
    mean: initial mean, a scalar or [D].
    stddev: initial standard deviation, a scalar or [D].
    num_samples: samples per iteration.
    num_elites: the number of best samples that the next ones are fitted to, >= 2.
    num_iterations: rounds of the search.
    decay: the share of the old parameters in the new ones, in [0, 1).
    low: lower bound of the samples, a scalar or [D]; None for no bound.
    high: upper bound of the samples, as `low`.
    seed: seed of the samples, or their generator.
  Returns:
    The final (mean, stddev), [D].
  """
  size = np.broadcast(mean, stddev).size
  rng = np.random.default_rng(seed)
  search = normal_search(rng, (num_samples, size), decay, low, high)
  params = {"mean": mean, "stddev": stddev}
  _, _, params = CrossEntropyMethod(
    search[0], objective_fn, search[1], params, num_elites, num_iterations
  )
  return params["mean"], params["stddev"]


def normal_search(
  rng: np.random.Generator,
  shape: tuple[int, int],
  decay: float = 0.0,
  low: Any = None,
  high: Any = None,
) -> tuple[Callable[..., np.ndarray], Callable[[Params, Any], Params]]:
  """Returns the functions (sample_fn, update_fn) of `NormalCrossEntropyMethod`."""

  def sample(mean: Any, stddev: Any) -> np.ndarray:
    samples = mean + stddev * rng.standard_normal(shape)
    is_bounded = low is not None or high is not None
    return np.clip(samples, low, high) if is_bounded else samples

  def update(params: Params, elites: np.ndarray) -> Params:
    new = {"mean": elites.mean(axis=0), "stddev": elites.std(axis=0, ddof=1)}
    return {
      name: decay * np.asarray(params[name]) + (1 - decay) * new[name] for name in new
    }

  return sample, update


def CategoricalCrossEntropyMethod(
  objective_fn: Callable[[np.ndarray], Any],
  probabilities: Any,
  num_samples: int,
  num_elites: int,
  num_iterations: int = 1,
  decay: float = 0.0,
  seed: int | np.random.Generator | None = None,
) -> np.ndarray:
  """Maximises an objective over independent categories.

  Args:
    objective_fn: maps samples [num_samples, D], integers below C, to their values.
    probabilities: initial probabilities, [D, C]; each row sums to 1.
    num_samples: samples per iteration.
    num_elites: the number of best samples that the next ones are fitted to, >= 1.
    num_iterations: rounds of the search.
    decay: the share of the old probabilities in the new ones, in [0, 1).
    seed: seed of the samples, or their generator.
  Returns:
    The final probabilities, [D, C].
  """
  rng = np.random.default_rng(seed)
  initial = np.asarray(probabilities, np.float64)

  def sample(probabilities: np.ndarray) -> np.ndarray:
    below = np.cumsum(probabilities, axis=1)[:, :-1]
    draws = rng.random((num_samples, len(probabilities), 1))
    return (draws >= below).sum(axis=-1)

  def update(params: Params, elites: np.ndarray) -> Params:
    counts = (elites[..., np.newaxis] == np.arange(initial.shape[1])).mean(axis=0)
    return {"probabilities": decay * params["probabilities"] + (1 - decay) * counts}

  _, _, params = CrossEntropyMethod(
    sample, objective_fn, update, {"probabilities": initial}, num_elites, num_iterations
  )
  return params["probabilities"]


@gin.configurable
@dataclasses.dataclass(frozen=True)
class CrossEntropySearch:
  """Searches an exported critic for its best action, in one call of `step`.

  Floating point actions are drawn from normal distributions, integers from the
  categories `low`, ..., `high`. The result is the best action of all rounds.

  Attributes:
    num_iterations: rounds.
    num_samples: actions drawn in each round.
    num_elites: the number of best actions, to which the next distribution is fitted.
    mean: mean of the first round, in units of the raw action; a number, or one for each
      element of the action, flattened. Integers ignore it.
    stddev: standard deviation of the first round, as `mean`.
    low: lower bound of the action; a number or one for each element; None for no bound.
      Integers need both bounds.
    high: upper bound of the action, as `low`.
    decay: the share of the old distribution in the new one, in [0, 1).
    min_stddev: smallest standard deviation after the first round.
  """

  num_iterations: int = 3
  num_samples: int = 64
  num_elites: int = 10
  mean: float | Sequence[float] = 0.0
  stddev: float | Sequence[float] = 1.0
  low: float | Sequence[float] | None = None
  high: float | Sequence[float] | None = None
  decay: float = 0.0
  min_stddev: float = 0.0

  def __post_init__(self) -> None:
    """Checks the options.

    Raises:
      SpecError: a number of rounds or samples, or `decay`, is out of range.
    """
    for name, is_good, want in (
      ("num_iterations", self.num_iterations >= 1, "at least 1"),
      ("num_elites", self.num_elites >= 2, "at least 2"),
      ("num_samples", self.num_samples >= self.num_elites, "at least num_elites"),
      ("decay", 0 <= self.decay < 1, "a number in [0, 1)"),
    ):
      if not is_good:
        raise errors.SpecError(
          f"CrossEntropySearch: {name}: expected {want}, got {getattr(self, name)}."
        )

  def check(self, action_spec: TensorSpecStruct) -> None:
    """Checks that actions of these specs can be searched.

    Args:
      action_spec: specs of one action, by path.
    Raises:
      SpecError: a shape is unknown, a dtype is no number, integers have no bounds, or
        an option has another number of elements; lists all mismatches.
    """
    mismatches = []
    for path, spec in action_spec.items():
      got = errors.describe(spec)
      if not spec.shape.is_fully_defined():
        mismatches.append(errors.Mismatch(path, "a known shape", got))
      elif spec.dtype.is_integer and (self.low is None or self.high is None):
        hint = "Set low and high: they are its categories."
        mismatches.append(errors.Mismatch(path, "bounds of the integers", got, hint))
      elif not spec.dtype.is_integer and not spec.dtype.is_floating:
        mismatches.append(errors.Mismatch(path, "numbers to search among", got))
    size = sum(int(np.prod(spec.shape)) for spec in action_spec.values())
    for name in ("mean", "stddev", "low", "high"):
      value = getattr(self, name)
      if value is not None and np.size(value) not in (1, size):
        expected = f"one number, or {size}, one for each element of the action"
        mismatches.append(errors.Mismatch(name, expected, str(np.size(value))))
    if mismatches:
      raise errors.mismatch_error("CrossEntropySearch", mismatches)

  @_no_autograph
  def maximize(
    self,
    objective: Callable[[TensorSpecStruct], tf.Tensor],
    action_spec: TensorSpecStruct,
    seeds: tf.Tensor,
  ) -> tuple[TensorSpecStruct, tf.Tensor]:
    """Returns the best action that the search finds in each of N environments.

    Args:
      objective: maps actions, [N, num_samples, ...] by path, to values,
        [N, num_samples]; called `num_iterations` times.
      action_spec: specs of one action, by path.
      seeds: int32 [N, 2]; an environment's samples depend on its own seed only.
    Returns:
      (the actions, [N, ...] by path; their values, [N]).
    """
    leaves = _Leaf.all_of(self, action_spec)
    size = sum(leaf.size for leaf in leaves)
    shape = [2, self.num_iterations, self.num_samples, size]
    drawn = randomness.of_seeds(seeds, math.prod(shape))
    first, second = tf.unstack(tf.reshape(drawn, [-1, *shape]), axis=1)
    best: TensorSpecStruct | None = None
    best_value = tf.zeros([0])
    num_envs = tf.shape(seeds)[0]
    params = {leaf.path: leaf.initial(num_envs) for leaf in leaves}
    for iteration in range(self.num_iterations):
      samples = TensorSpecStruct(
        (
          leaf.path,
          leaf.sample(params[leaf.path], first[:, iteration], second[:, iteration]),
        )
        for leaf in leaves
      )
      values = objective(samples)
      top, index = tf.math.top_k(values, self.num_elites)
      elites = TensorSpecStruct(
        (path, tf.gather(each, index, axis=1, batch_dims=1))
        for path, each in samples.items()
      )
      params = {
        leaf.path: leaf.update(params[leaf.path], elites[leaf.path]) for leaf in leaves
      }
      solution = TensorSpecStruct((path, each[:, 0]) for path, each in elites.items())
      if best is None:
        best, best_value = solution, top[:, 0]
      else:
        is_better = top[:, 0] > best_value
        best = TensorSpecStruct(
          (path, tf.where(_like(is_better, each), each, best[path]))
          for path, each in solution.items()
        )
        best_value = tf.maximum(top[:, 0], best_value)
    assert best is not None
    return best, best_value


class _Leaf:
  """The distribution of one path of an action."""

  def __init__(
    self, search: CrossEntropySearch, path: str, spec: ExtendedTensorSpec, start: int
  ) -> None:
    self.path = path
    self.size = int(np.prod(spec.shape))
    self._search = search
    self._spec = spec
    self._part = slice(start, start + self.size)

  @classmethod
  def all_of(
    cls, search: CrossEntropySearch, action_spec: TensorSpecStruct
  ) -> list[_Leaf]:
    """Returns the distributions of an action's paths."""
    leaves: list[_Leaf] = []
    start = 0
    for path, spec in action_spec.items():
      leaves.append(cls(search, path, spec, start))
      start += leaves[-1].size
    return leaves

  def initial(self, num_envs: tf.Tensor) -> list[tf.Tensor]:
    """Returns the first round's parameters, [N, ...]."""
    if self._spec.dtype.is_integer:
      low, high = self._numbers("low"), self._numbers("high")
      num = int((high - low).max()) + 1
      is_one = np.arange(num) <= (high - low)[:, np.newaxis]
      params = [is_one / is_one.sum(axis=1, keepdims=True)]
    else:
      params = [self._numbers("mean"), self._numbers("stddev")]
    return [
      tf.repeat(tf.constant(each[np.newaxis], tf.float32), num_envs, axis=0)
      for each in params
    ]

  def sample(
    self, params: list[tf.Tensor], first: tf.Tensor, second: tf.Tensor
  ) -> tf.Tensor:
    """Maps two uniform draws from [0, 1), [N, S, D], to samples, [N, S, ...]."""
    first, second = first[..., self._part], second[..., self._part]
    if self._spec.dtype.is_integer:
      below = tf.cumsum(params[0], axis=-1)[:, tf.newaxis, :, :-1]
      is_above = tf.cast(first[..., tf.newaxis] >= below, tf.int32)
      flat = tf.reduce_sum(is_above, axis=-1) + self._numbers("low").astype(np.int32)
    else:
      # The Box-Muller transform, as LiteRT has no inverse normal distribution.
      radius = tf.sqrt(-2.0 * tf.math.log(1.0 - first))
      normal = radius * tf.cos(2 * math.pi * second)
      flat = params[0][:, tf.newaxis] + params[1][:, tf.newaxis] * normal
      if self._search.low is not None:
        flat = tf.maximum(flat, tf.constant(self._numbers("low"), tf.float32))
      if self._search.high is not None:
        flat = tf.minimum(flat, tf.constant(self._numbers("high"), tf.float32))
    shape = [-1, self._search.num_samples, *self._spec.shape]
    return tf.cast(tf.reshape(flat, shape), self._spec.dtype)

  def update(self, params: list[tf.Tensor], elites: tf.Tensor) -> list[tf.Tensor]:
    """Fits the parameters to the elites, [N, E, ...]."""
    flat = tf.reshape(elites, [-1, self._search.num_elites, self.size])
    if self._spec.dtype.is_integer:
      shifted = tf.cast(flat, tf.int32) - self._numbers("low").astype(np.int32)
      hot = tf.one_hot(shifted, params[0].shape[-1])
      new = [tf.reduce_mean(hot, axis=1)]
    else:
      flat = tf.cast(flat, tf.float32)
      mean = tf.reduce_mean(flat, axis=1)
      square = tf.reduce_sum(tf.square(flat - mean[:, tf.newaxis]), axis=1)
      stddev = tf.sqrt(square / (self._search.num_elites - 1))  # Bessel's correction.
      new = [mean, stddev]
    decay = self._search.decay
    new = [
      decay * old + (1 - decay) * each for old, each in zip(params, new, strict=True)
    ]
    if len(new) > 1:
      new[1] = tf.maximum(new[1], self._search.min_stddev)
    return new

  def _numbers(self, name: str) -> np.ndarray:
    """Returns an option for each element, [D]."""
    value = np.asarray(getattr(self._search, name), np.float32).ravel()
    return np.broadcast_to(value, [self.size]) if value.size == 1 else value[self._part]


def _like(values: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  return tf.reshape(values, [-1] + [1] * (other.shape.rank - 1))


PackFn = Callable[[Any, Any, Any, Any, np.ndarray], Any]


@gin.configurable
class CEMPolicy(policy.Policy):
  """Chooses the action that a critic values most, by the cross-entropy method.

  The search is in Python, and calls the predictor once per iteration, with any critic
  and packing. An export of a `CriticModel` with a `search` searches inside of one
  `step`, several times as fast: act with a `RegressionPolicy`, `action_key='action'`.
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
      t2r_model: an argument of `pack_fn`; not needed by the default one.
      action_size: number of elements of an action.
      cem_iters: iterations of the search.
      cem_samples: actions drawn in each iteration.
      num_elites: the number of best samples that the next ones are fitted to, >= 2.
      pack_fn: maps (t2r_model, state, context, timestep, samples [n, action_size]) to
        the features of the predictor. By default the critic's single action feature
        gets the samples, and all others come from state and context.
      predictor: predictor of a critic, with the output 'q_predicted'.
      decay: see `NormalCrossEntropyMethod`.
      low: lower bound, a number or one for each element; None for no bound.
      high: upper bound, as `low`.
      seed: seed of the samples; None for others in each run.
    """
    super().__init__(predictor)
    self._critic: predictors.AbstractPredictor = predictor
    self._t2r_model = t2r_model
    self._action_size = action_size
    self._cem_iters = cem_iters
    self._cem_samples = cem_samples
    self._num_elites = num_elites
    self._pack_fn = pack_fn
    self._decay, self._low, self._high = decay, low, high
    self._rngs = Generators(seed)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the samples repeatable."""
    self._rngs.seed(seed, env)

  def get_cem_action(
    self, objective_fn: Callable[[np.ndarray], Any]
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Maximises a function of samples, [cem_samples, action_size].

    Returns:
      (the best sample of the last iteration; a dictionary with its value 'q_predicted',
      its index 'best_idx', and the next distribution's mean and stddev 'final_params').
    """
    shape = (self._cem_samples, self._action_size)
    sample, update = normal_search(
      self._rngs[0], shape, self._decay, self._low, self._high
    )
    params = {"mean": np.zeros(shape[1]), "stddev": np.ones(shape[1])}
    samples, values, params = CrossEntropyMethod(
      sample, objective_fn, update, params, self._num_elites, self._cem_iters
    )
    best = int(np.argmax(values))
    debug = {"q_predicted": values[best], "final_params": params, "best_idx": best}
    return samples[best], debug

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Selects the action with the highest value, [action_size].

    Raises:
      SpecError: the observation or the action does not fit, or the model is no critic.
      predictors.NoModelError: no model is loaded.
    """
    return self._search(state, context, timestep)[0]

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Selects the action, and also returns the results of the search."""
    del explore_prob
    return self._search(obs, None, None)

  def _search(
    self, state: Any, context: Any, timestep: int | None
  ) -> tuple[np.ndarray, dict[str, Any]]:
    evaluate = self._evaluator(state, context, timestep)
    return self.get_cem_action(lambda samples: evaluate(samples)["q_predicted"])

  def _evaluator(
    self, state: Any, context: Any, timestep: int | None
  ) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    pack = self._create_pack_fn(state, context, timestep)

    def evaluate(samples: np.ndarray) -> dict[str, np.ndarray]:
      outputs = self._critic.predict(pack(samples))
      if "q_predicted" not in outputs:
        raise errors.SpecError(
          f"select action: the model has no output 'q_predicted', only "
          f"{errors.listing(outputs)}. CEMPolicy requires a critic."
        )
      return outputs

    return evaluate

  def _create_pack_fn(
    self, state: Any, context: Any, timestep: int | None
  ) -> Callable[[np.ndarray], Any]:
    """Returns a function from samples to the predictor's features."""
    if self._pack_fn is not None:
      return functools.partial(self._pack_fn, self._t2r_model, state, context, timestep)
    spec = self._critic.get_feature_specification()
    paths = [p for p in spec if p == "action" or p.startswith("action/")]
    if len(paths) != 1:
      raise errors.SpecError(
        "CEMPolicy: pack_fn: expected a critic with one feature below 'action', got "
        f"{errors.listing(paths)}. Give a pack_fn."
      )
    (path,) = paths
    shape, size = spec[path].shape.as_list(), self._action_size
    batch_size = self._cem_samples
    if math.prod(shape) == self._cem_samples * size:
      # The critic takes all samples as one action feature (its `action_batch_size`).
      batch_size = 1
    elif math.prod(shape) != size:
      raise errors.SpecError(
        f"CEMPolicy: action_size: expected that of the critic's {path}, "
        f"{errors.describe(spec[path])}, or cem_samples of them, got action_size "
        f"{size} and cem_samples {self._cem_samples}."
      )
    rest = specs.TensorSpecStruct((p, s) for p, s in spec.items() if p != path)
    features = policy.pack_observation(state, rest, context)
    packed = {p: np.repeat(x[None], batch_size, axis=0) for p, x in features.items()}
    dtype = spec[path].dtype.as_numpy_dtype
    return lambda samples: {
      **packed,
      path: samples.reshape([batch_size, *shape]).astype(dtype),
    }


@gin.configurable
class LSTMCEMPolicy(CEMPolicy):
  """A `CEMPolicy` for recurrent critics: keeps the hidden state of the chosen action.

  The critic's output 'lstm_hidden_state' has the next hidden state for each sample.
  `pack_fn` gets the current hidden state in place of the context.
  """

  def __init__(self, hidden_state_size: int = gin.REQUIRED, **kwargs: Any) -> None:
    """Creates the policy.

    Args:
      hidden_state_size: number of elements of the hidden state, initially zeros.
      **kwargs: arguments of `CEMPolicy`; `pack_fn` is required.
    Raises:
      SpecError: there is no `pack_fn`.
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
    evaluate = self._evaluator(state, self._hidden_state, timestep)

    def objective(samples: np.ndarray) -> np.ndarray:
      outputs = evaluate(samples)
      shape = [len(samples), self._hidden_state_size]
      hidden.append(outputs["lstm_hidden_state"].reshape(shape))
      return outputs["q_predicted"]

    action, debug = self.get_cem_action(objective)
    self._hidden_state = hidden[-1][debug["best_idx"]]
    return action, debug
