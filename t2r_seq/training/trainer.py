"""Train and eval steps under a distribution strategy, and the state they share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import AbstractInputGenerator, joint
from t2r_seq.models import T2RModel
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.training import workers
from t2r_seq.training.summaries import SummaryWriter

Scalars = dict[str, tf.Tensor]
# AutoGraph is for the model's code: here it would only cost time.
_no_autograph = tf.autograph.experimental.do_not_convert


class Trainer:
  """Holds a model's variables, its optimizer and the global step, and runs steps.

  Losses are means over each replica's part of the batch, weighted by its size, so that
  a batch trains the same on any number of replicas.
  """

  def __init__(
    self,
    model: T2RModel,
    strategy: tf.distribute.Strategy,
    jit_compile: bool = False,
  ) -> None:
    """Builds the model and its optimizer under the strategy.

    Args:
      model: a model, built or not.
      strategy: strategy for the variables and steps.
      jit_compile: whether XLA compiles the train step, once for each shape of batch;
        ignored on TPUs, where it always does.
    Raises:
      SpecError: `jit_compile` with several replicas, or the model cannot be built.
    """
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    self._is_compiled = jit_compile and not is_tpu
    if self._is_compiled and strategy.num_replicas_in_sync > 1:
      raise errors.SpecError(
        "train_eval_model: jit_compile: expected one replica, got "
        f"{strategy.num_replicas_in_sync}. Replicas exchange gradients inside of a "
        "step, which XLA does on TPUs only."
      )
    self.model = model
    self.strategy = strategy
    with strategy.scope():
      model.build()
      self._updates = model.create_updates()
    # Created outside of the scope: the host counts steps, replicas need no copy.
    self._global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
    model.follow_global_step(self._global_step)
    self._first_bad_step = tf.Variable(-1, dtype=tf.int64, trainable=False)
    # The part of the input that runs on the device; see the generator's `device_fn`.
    self.device_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None
    # The last step's tensors of each example, by name, of all replicas.
    self.outputs: dict[str, Any] = {}
    self._summaries: tuple[SummaryWriter, int] | None = None
    # Not inlined: in a loop, copies of a random operation would draw equal numbers.
    self._train_fn = tf.function(
      self._train_step,
      jit_compile=self._is_compiled,
      experimental_attributes={"_noinline": True},
    )
    self._loop_fn = tf.function(self._train_loop)
    self._eval_fn = tf.function(self._eval_step)

  @property
  def global_step(self) -> int:
    """Training steps done, over all runs in the folder."""
    return int(self._global_step.numpy())

  @property
  def optimizer(self) -> Any:
    """The Keras optimizer, or the `models.optimizers.GroupedOptimizer`."""
    return self._updates.optimizer

  @property
  def learning_rate(self) -> float:
    """The optimizer's present learning rate; with groups that of the first."""
    return float(tf.convert_to_tensor(self.optimizer.learning_rate))

  @property
  def learning_rates(self) -> dict[str, float]:
    """The present 'learning_rate'; with groups 'learning_rate/<pattern>'."""
    return self._updates.learning_rates

  @property
  def first_bad_step(self) -> int | None:
    """The first step of this run whose loss or gradients were not finite, if any."""
    step = int(self._first_bad_step.numpy())
    return None if step < 0 else step

  def checkpoint(self) -> tf.train.Checkpoint:
    """Returns the checkpoint of all state: step, weights, optimizer, averages, sums.

    The keys of weights are their names, such as 'model/tower/dense/kernel'.
    """
    state: dict[str, Any] = {
      "global_step": self._global_step,
      "model": _nest(self.model.named_variables),
      "optimizer": self._updates.state,
    }
    if self.model.averages:
      averages = self.model.averages.by_weight
      named = self.model.named_variables
      state["averages"] = _nest(
        {n: averages[id(v)] for n, v in named.items() if id(v) in averages}
      )
    if self._updates.gradient_sums:
      state["accumulated"] = self._updates.gradient_sums
    return tf.train.Checkpoint(**state)

  def write_summaries(self, writer: SummaryWriter, every_n_steps: int) -> None:
    """Sets the writer of the model's own `tf.summary` calls in train steps.

    Call it before the first step. With `jit_compile` they write nothing.

    Args:
      writer: the writer, open as long as steps are run.
      every_n_steps: they write at multiples of this step.
    """
    self._summaries = writer, every_n_steps

  def distribute(self, dataset: tf.data.Dataset) -> Iterable[Any]:
    """Splits the batches of a dataset among the replicas."""
    if workers.is_multi_worker(self.strategy):
      # Each worker reads all files and takes its part of every batch. The default,
      # whole files for each, fails on fewer files than workers.
      options = tf.data.Options()
      sharding = tf.data.experimental.AutoShardPolicy.DATA
      options.experimental_distribute.auto_shard_policy = sharding
      dataset = dataset.with_options(options)
    elif self.strategy.num_replicas_in_sync == 1:
      return dataset
    return self.strategy.experimental_distribute_dataset(dataset)

  def distribute_training(
    self, input_generator: AbstractInputGenerator, start_step: int = 0
  ) -> Iterable[Any]:
    """Creates the batches to train on, split among the replicas.

    Args:
      input_generator: has the model's specs. If its `reads_shards` is True, each of
        several workers reads its own part of the data.
      start_step: step at which a resumed run continues.
    Returns:
      Distributed batches, features and labels joined: see `train_step`.
    """

    def create(context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
      return input_generator.create_dataset(
        specs.ModeKeys.TRAIN,
        start_step=start_step,
        input_context=context,
        is_flat=True,
      )

    if input_generator.reads_shards and workers.is_multi_worker(self.strategy):
      batches = self.strategy.distribute_datasets_from_function(create)
    else:
      batches = self.distribute(create())
    self.device_fn = input_generator.device_fn
    return batches

  def first_replica(self, values: Any) -> Any:
    """Returns the part of a distributed batch that the first local replica gets."""
    local = self.strategy.experimental_local_results
    return tf.nest.map_structure(lambda value: local(value)[0], values)

  def train_step(self, features: Any, labels: Any = None) -> Scalars:
    """Runs one training step.

    Args:
      features: preprocessed features by path, [B, ...], or their parts per replica.
      labels: labels by path; None if `features` has both, as in `create_dataset` with
        is_flat=True.
    Returns:
      Scalars by name, 'loss' among them, averaged over the replicas.
    Raises:
      SpecError: the batch does not fit the model, or the loss reaches no variable.
    """
    batch = (features,) if labels is None else (features, labels)
    scalars, self.outputs = self._train_fn(*batch)
    return scalars

  def train_steps(self, batches: Sequence[tuple[Any, ...]]) -> Scalars:
    """Runs several training steps with one call, to save Python's overhead.

    Args:
      batches: batches, one for each step; the arguments of `train_step`.
    Returns:
      Scalars by name of the last step.
    """
    if len(batches) == 1:
      return self.train_step(*batches[0])
    scalars, self.outputs = self._loop_fn(tuple(batches))[-1]
    return scalars

  def eval_step(self, features: Any, labels: Any) -> tuple[Scalars, Scalars, tf.Tensor]:
    """Runs the model on one eval batch.

    Returns:
      (each metric's mean times the number of examples, sums of the model's tallies,
      number of examples in the batch).
    """
    return self._eval_fn(features, labels)

  @_no_autograph
  def _train_loop(
    self, batches: Sequence[tuple[Any, ...]]
  ) -> list[tuple[Scalars, dict[str, Any]]]:
    # All calls are of one function, traced once, and run in order. All results are
    # returned: otherwise TensorFlow would specialize it into two functions, in which
    # random operations count separately.
    return [self._train_fn(*batch) for batch in batches]

  def _train_step(self, *batch: Any) -> tuple[Scalars, dict[str, Any]]:
    with self._recording():
      scalars, outputs, replica_bad = self.strategy.run(self._replica_train_step, batch)
    num_bad = self._reduce(tf.distribute.ReduceOp.SUM, replica_bad)
    if self._updates.accumulation_steps > 1:
      num_bad += self._update_if_due()
    if self.model.averages:
      self.model.averages.overwrite_if_due(self.optimizer.iterations)
    self.model.after_train_step()
    self._global_step.assign_add(1)
    is_first_bad = (num_bad > 0) & (self._first_bad_step < 0)
    self._first_bad_step.assign(
      tf.where(is_first_bad, self._global_step, self._first_bad_step)
    )
    # Each replica returns its share of the mean over the batch; see `_share_of_mean`.
    return self._reduce(tf.distribute.ReduceOp.SUM, scalars), outputs

  @_no_autograph
  def _update_if_due(self) -> tf.Tensor:
    """Applies accumulated gradients if due; returns on how many replicas it was bad."""

    def update() -> tf.Tensor:
      is_bad = self.strategy.run(self._replica_update)
      return self._reduce(tf.distribute.ReduceOp.SUM, is_bad)

    count = self._global_step + 1
    is_due = tf.equal(count % self._updates.accumulation_steps, 0)
    return tf.cond(is_due, update, lambda: tf.constant(0))

  @_no_autograph
  def _recording(self) -> contextlib.AbstractContextManager[Any]:
    if self._summaries is None or self._is_compiled:  # XLA writes no files.
      return contextlib.nullcontext()
    writer, every_n_steps = self._summaries
    step = self._global_step + 1
    return writer.recording(step, tf.equal(step % every_n_steps, 0))

  def _replica_train_step(
    self, features: TensorSpecStruct, labels: TensorSpecStruct | None = None
  ) -> tuple[Scalars, Scalars, tf.Tensor]:
    if labels is None:
      features, labels = joint.split(features)
    if self.device_fn is not None:
      features, labels = self.device_fn(features, labels)
    scale, share = self._updates.loss_scale(), self._share(features)

    def scale_loss(loss: tf.Tensor) -> tf.Tensor:
      scaled = loss if share is None else loss * tf.cast(share, loss.dtype)
      return scaled if scale is None else scaled * tf.cast(scale, loss.dtype)

    loss, scalars, gradients = self.model.compute_gradients(
      features, labels, scale_loss
    )
    norm, is_bad = self._take_gradients(gradients, scale)
    outputs = {k: v for k, v in scalars.items() if tf.convert_to_tensor(v).shape.rank}
    scalars = {k: v for k, v in scalars.items() if k not in outputs}
    scalars = {"loss": loss, **scalars}
    scalars = {name: _share_of_mean(value, share) for name, value in scalars.items()}
    # The same on all replicas.
    scalars["gradient_norm"] = norm / self.strategy.num_replicas_in_sync
    is_bad |= ~tf.math.is_finite(loss)
    return scalars, outputs, tf.cast(is_bad, tf.int32)

  @_no_autograph
  def _share(self, features: TensorSpecStruct) -> tf.Tensor | None:
    """Returns this replica's part of the examples of the batch; None for all."""
    if self.strategy.num_replicas_in_sync == 1:
      return None
    count, replicas = _num_examples(features), tf.distribute.get_replica_context()
    return count / replicas.all_reduce(tf.distribute.ReduceOp.SUM, count)

  @_no_autograph
  def _take_gradients(
    self, gradients: Sequence[Any], scale: tf.Tensor | None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Applies, or accumulates, the gradients of a loss that was multiplied by `scale`.

    Returns:
      (norm of the gradients applied last, whether this step applied bad ones).
    """
    unscaled = self._updates.unscale(gradients, scale)
    if self._updates.accumulation_steps > 1:
      self._updates.accumulate(unscaled)
      return tf.identity(self._updates.accumulated_norm), tf.constant(False)
    return self._update(unscaled, scale)

  @_no_autograph
  def _replica_update(self) -> tf.Tensor:
    gradients = self._updates.take_accumulated()
    norm, is_bad = self._update(gradients, self._updates.loss_scale())
    self._updates.accumulated_norm.assign(norm)
    return tf.cast(is_bad, tf.int32)

  @_no_autograph
  def _update(
    self, gradients: Sequence[Any], scale: tf.Tensor | None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums unscaled gradients over replicas and applies them.

    Returns:
      (norm of the sum, whether the step is bad). It is bad if the sum is not finite. If
      the optimizer skips such steps and lowers the loss scale, it is bad only at a
      scale of at most 1.
    """
    gradients = self._updates.sum_gradients(gradients)
    norm = tf.linalg.global_norm(gradients)
    is_finite = tf.math.is_finite(norm)
    is_first = tf.equal(self.optimizer.iterations, 0)
    self._updates.apply(gradients, scale, is_finite)
    if self.model.averages:
      self.model.averages.update(is_first, is_finite)
    is_bad = ~is_finite
    if scale is not None and self._updates.skips_bad_steps:
      is_bad &= scale <= 1
    return norm, is_bad

  def _eval_step(
    self, features: Any, labels: Any
  ) -> tuple[Scalars, Scalars, tf.Tensor]:
    sums = self.strategy.run(self._replica_eval_step, (features, labels))
    return self._reduce(tf.distribute.ReduceOp.SUM, sums)

  def _replica_eval_step(
    self, features: TensorSpecStruct, labels: TensorSpecStruct
  ) -> tuple[Scalars, Scalars, tf.Tensor]:
    count = _num_examples(features)
    metrics, tallies = self.model.eval_metrics(features, labels)
    # The mean of an empty part is NaN, and must count as 0.
    sums = {
      name: tf.where(count > 0, tf.cast(value, tf.float32) * count, 0.0)
      for name, value in metrics.items()
    }
    return sums, tallies, count

  @_no_autograph
  def _reduce(self, op: tf.distribute.ReduceOp, values: Any) -> Any:
    return tf.nest.map_structure(
      lambda value: self.strategy.reduce(op, value, axis=None), values
    )


def _num_examples(features: TensorSpecStruct) -> tf.Tensor:
  first = next(iter(specs.flatten_spec_structure(features).values()))
  return tf.cast(tf.shape(first)[0], tf.float32)


def _share_of_mean(value: Any, share: tf.Tensor | None) -> tf.Tensor:
  """Returns a replica's share of a mean over the batch."""
  value = tf.convert_to_tensor(value)
  if share is None:
    return value
  value = value if value.dtype.is_floating else tf.cast(value, tf.float32)
  return value * tf.cast(share, value.dtype)


def _nest(variables: Mapping[str, tf.Variable]) -> dict[str, Any]:
  """Nests variables in dicts by the parts of their names."""
  tree: dict[str, Any] = {}
  for name, variable in variables.items():
    *scopes, leaf = name.split("/")
    branch = tree
    for scope in scopes:
      branch = branch.setdefault(scope, {})
    branch[leaf] = variable
  return tree
