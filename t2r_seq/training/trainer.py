"""Train and eval steps under a distribution strategy, and the state they share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import AbstractInputGenerator, joint
from t2r_seq.models import T2RModel, optimizers
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.training import workers
from t2r_seq.training.summaries import SummaryWriter

Scalars = dict[str, tf.Tensor]
# AutoGraph is for the model: here it would only cost time.
_as_it_is = tf.autograph.experimental.do_not_convert


class Trainer:
  """Holds a model's variables, its optimizer and the global step, and runs steps.

  Losses are means over a replica's part of the batch; gradients are their mean over
  the replicas, so that a batch trains the same on any number of them.
  """

  def __init__(self, model: T2RModel, strategy: tf.distribute.Strategy) -> None:
    """Builds the model and its optimizer under the strategy.

    Args:
      model: a model, built or not.
      strategy: where the variables live and the steps run.
    """
    self.model = model
    self.strategy = strategy
    with strategy.scope():
      model.build()
      self.optimizer = model.create_optimizer()
    # The steps count on the host; no replica needs a copy.
    self._global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
    model.follow_global_step(self._global_step)
    self._first_bad_step = tf.Variable(-1, dtype=tf.int64, trainable=False)
    # What an input generator leaves to the device; see its `device_fn`.
    self.device_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None
    # What the model gave for each example of the last step, by name; of all replicas.
    self.outputs: dict[str, Any] = {}
    self._summaries: tuple[SummaryWriter, int] | None = None
    self._train_fn = tf.function(self._train_step)
    self._eval_fn = tf.function(self._eval_step)

  @property
  def global_step(self) -> int:
    """Training steps done, over all runs in the folder."""
    return int(self._global_step.numpy())

  @property
  def learning_rate(self) -> float:
    """The optimizer's present learning rate."""
    return float(tf.convert_to_tensor(self.optimizer.learning_rate))

  @property
  def first_bad_step(self) -> int | None:
    """The first step of this run whose loss or gradients were not finite, if any."""
    step = int(self._first_bad_step.numpy())
    return None if step < 0 else step

  def checkpoint(self) -> tf.train.Checkpoint:
    """Returns the checkpoint of all state: step, weights, optimizer, averages.

    Its keys of weights are their names: 'model/tower/dense/kernel'.
    """
    state: dict[str, Any] = {
      "global_step": self._global_step,
      "model": _nested(self.model.named_variables),
      "optimizer": optimizers.state(self.optimizer),
    }
    if self.model.averages:
      state["averages"] = self.model.averages.variables
    return tf.train.Checkpoint(**state)

  def write_summaries(self, writer: SummaryWriter, every_n_steps: int) -> None:
    """Gives the model's own `tf.summary` calls a place to write to, in train steps.

    Args:
      writer: open as long as steps are run; call this before the first of them.
      every_n_steps: they write at steps that this divides.
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
    self, input_generator: AbstractInputGenerator, params: Mapping[str, Any]
  ) -> Iterable[Any]:
    """Creates the batches to train on, split among the replicas.

    Args:
      input_generator: has the model's specs. Where there are several workers and it
        `reads_shards`, each reads its own part of the data and no other.
      params: of `create_dataset`.
    Returns:
      Distributed batches, features and labels joined: see `train_step`.
    """

    def create(context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
      return input_generator.create_dataset(
        specs.ModeKeys.TRAIN, {**params, "input_context": context, "is_joint": True}
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
      labels: the same for the labels; None where both are joined in `features`, as
        `create_dataset` gives them with params['is_joint'].
    Returns:
      Scalars by name, 'loss' among them, averaged over the replicas.
    Raises:
      SpecError: the batch does not fit the model, or the loss reaches no variable.
    """
    batch = (features,) if labels is None else (features, labels)
    scalars, self.outputs = self._train_fn(*batch)
    return scalars

  def eval_step(self, features: Any, labels: Any) -> tuple[Scalars, Scalars, tf.Tensor]:
    """Runs the model on one eval batch.

    Returns:
      (sums over the batch of each metric times its examples, sums of the model's
      tallies, examples in the batch).
    """
    return self._eval_fn(features, labels)

  def _train_step(self, *batch: Any) -> tuple[Scalars, dict[str, Any]]:
    with self._recording():
      scalars, outputs, is_bad = self.strategy.run(self._replica_train_step, batch)
    mean = self._reduce(tf.distribute.ReduceOp.MEAN, scalars)
    bad = self._reduce(tf.distribute.ReduceOp.SUM, is_bad)
    if self.model.averages:
      self.model.averages.overwrite_if_due(self.optimizer.iterations)
    self.model.after_train_step()
    self._global_step.assign_add(1)
    is_first_bad = (bad > 0) & (self._first_bad_step < 0)
    self._first_bad_step.assign(
      tf.where(is_first_bad, self._global_step, self._first_bad_step)
    )
    return mean, outputs

  @_as_it_is
  def _recording(self) -> contextlib.AbstractContextManager[Any]:
    if self._summaries is None:
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
    scale = optimizers.loss_scale(self.optimizer)

    def scale_loss(loss: tf.Tensor) -> tf.Tensor:
      scaled = loss / tf.cast(self.strategy.num_replicas_in_sync, loss.dtype)
      return scaled if scale is None else scaled * tf.cast(scale, loss.dtype)

    loss, scalars, gradients = self.model.compute_gradients(
      features, labels, scale_loss
    )
    norm, is_bad = self._update(gradients, scale, loss)
    outputs = {k: v for k, v in scalars.items() if tf.convert_to_tensor(v).shape.rank}
    scalars = {k: v for k, v in scalars.items() if k not in outputs}
    scalars = {"loss": loss, "gradient_norm": norm, **scalars}
    return scalars, outputs, tf.cast(is_bad, tf.int32)

  @_as_it_is
  def _update(
    self, gradients: Sequence[Any], scale: tf.Tensor | None, loss: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Applies the gradients of a loss that was multiplied by `scale`.

    Returns:
      (norm of the unscaled gradients, whether the step is bad). A step is bad if the
      loss or a gradient is not finite; but where the optimizer leaves out steps whose
      scaled gradients overflow, such a step is bad only if it can't scale less.
    """
    variables = self.model.trainable_variables
    reached = [
      (g, v) for g, v in zip(gradients, variables, strict=True) if g is not None
    ]
    if not reached:
      raise errors.SpecError(
        "train_eval_model: loss: expected a loss that depends on the network's "
        f"variables, got one that reaches none of {len(variables)}."
      )
    scaled, reached_variables = zip(*reached, strict=True)
    unscaled = optimizers.unscale_gradients(self.optimizer, scaled, scale)
    norm = tf.linalg.global_norm(unscaled)
    is_finite = tf.math.is_finite(norm)
    is_first = tf.equal(self.optimizer.iterations, 0)
    # Keras optimizers sum gradients over the replicas themselves.
    optimizers.apply_gradients(self.optimizer, scaled, unscaled, reached_variables)
    if self.model.averages:
      self.model.averages.update(is_first, self._on_all_replicas(is_finite))
    is_bad = ~is_finite
    if scale is not None and optimizers.skips_bad_steps(self.optimizer):
      is_bad &= scale <= 1
    return norm, is_bad | ~tf.math.is_finite(loss)

  def _on_all_replicas(self, flag: tf.Tensor) -> tf.Tensor:
    replicas = tf.distribute.get_replica_context()
    count = tf.cast(~flag, tf.int32)
    if replicas.num_replicas_in_sync > 1:
      count = replicas.all_reduce(tf.distribute.ReduceOp.SUM, count)
    return tf.equal(count, 0)

  def _eval_step(
    self, features: Any, labels: Any
  ) -> tuple[Scalars, Scalars, tf.Tensor]:
    sums = self.strategy.run(self._replica_eval_step, (features, labels))
    return self._reduce(tf.distribute.ReduceOp.SUM, sums)

  def _replica_eval_step(
    self, features: TensorSpecStruct, labels: TensorSpecStruct
  ) -> tuple[Scalars, Scalars, tf.Tensor]:
    first = next(iter(specs.flatten_spec_structure(features).values()))
    count = tf.cast(tf.shape(first)[0], tf.float32)
    metrics, tallies = self.model.eval_metrics(features, labels)
    # The mean of an empty part is not a number, and counts for nothing.
    sums = {
      name: tf.where(count > 0, tf.cast(value, tf.float32) * count, 0.0)
      for name, value in metrics.items()
    }
    return sums, tallies, count

  @_as_it_is
  def _reduce(self, op: tf.distribute.ReduceOp, values: Any) -> Any:
    return tf.nest.map_structure(
      lambda value: self.strategy.reduce(op, value, axis=None), values
    )


def _nested(variables: Mapping[str, tf.Variable]) -> dict[str, Any]:
  """Makes dicts in dicts of names with slashes."""
  tree: dict[str, Any] = {}
  for name, variable in variables.items():
    *scopes, leaf = name.split("/")
    branch = tree
    for scope in scopes:
      branch = branch.setdefault(scope, {})
    branch[leaf] = variable
  return tree
