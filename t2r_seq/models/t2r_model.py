"""`T2RModel`: specs, network, loss and outputs of a trainable model in one class."""

from __future__ import annotations

import abc
import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, policies, preprocessors, specs
from t2r_seq.lite import policy_io
from t2r_seq.models import networks, optimizers, updates, warm_start
from t2r_seq.models.updates import WeightAverages
from t2r_seq.policies.policy_model import PolicyModel, record_network_inputs
from t2r_seq.preprocessors.abstract_preprocessor import create_preprocessor
from t2r_seq.preprocessors.convert_conventions import restore_outputs
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct
from t2r_seq.specs.samples import make_constant_numpy
from t2r_seq.windows.cut import DEFAULT_PADDING, Padding, check_padding

# Only users' code needs AutoGraph: here it would cost time.
_no_autograph = tf.autograph.experimental.do_not_convert

# Held while any model creates its network. Models are copied, and locks cannot be, so
# all models share one.
_BUILDING = threading.RLock()

_Tensors: TypeAlias = dict[str, tf.Tensor]
Loss: TypeAlias = (
  tf.Tensor | tuple[tf.Tensor, _Tensors] | tuple[tf.Tensor, _Tensors, _Tensors]
)
"""Result of `model_train_fn`; see there."""


class T2RModel(PolicyModel):
  """A model as in Tensor2Robot, with networks that own their variables.

  A subclass declares its inputs (`get_feature_specification`,
  `get_label_specification`), builds its layers once (`create_network`), and maps
  features to outputs (`inference_network_fn`) and outputs to a loss (`model_train_fn`).
  The input pipeline, the trainer and the exported policy are derived from these.
  """

  # Steps of the sequences that the network is built with.
  _example_length = 3

  def __init__(
    self,
    preprocessor_cls: Callable[..., preprocessors.AbstractPreprocessor] | None = None,
    create_optimizer_fn: Callable[
      [], tf.keras.optimizers.Optimizer
    ] = optimizers.default_create_optimizer_fn,
    padding: Padding = DEFAULT_PADDING,
    use_avg_model_params: bool = False,
    avg_model_params_decay: float = 0.999,
    execution: policies.ChunkExecution | None = None,
    init_from_checkpoint_fn: Callable[..., None] | None = None,
    filter_trainables_fn: warm_start.NameFilter | None = None,
    control_period: float | None = None,
    dtype_policy: str | None = None,
  ) -> None:
    """Creates the model, without its network.

    Args:
      preprocessor_cls: called with `model_feature_specification_fn` and
        `model_label_specification_fn`; by default `default_preprocessor_cls`.
      create_optimizer_fn: creates the Keras optimizer, or a `GroupedOptimizer`.
      padding: values of a window beyond the ends of an episode: 'repeat' or 'zero';
        'drop' trains on full windows only, and the exported policy, which must act on
        the first step too, repeats the first frame. Or two words, (front, end):
        ('repeat', 'drop') adds nothing after the last step, which is right for specs
        that look ahead, such as transitions. Training and policy share it.
      use_avg_model_params: evaluates and exports exponential moving averages of the
        weights, and continues to train the raw weights; checkpoints have both. An
        optimizer's own `use_ema` does the same, with its `ema_momentum`.
      avg_model_params_decay: decay of the averages, in [0, 1).
      execution: how the exported policy executes the model's action chunks; None
        returns them whole.
      init_from_checkpoint_fn: called with the built model when a run begins, but not
        when it resumes; see `default_init_from_checkpoint_fn`.
      filter_trainables_fn: called with a variable's name in `named_variables`; returns
        whether it is trained. None trains all.
      control_period: seconds from a step of the data to the next one, for exports;
        None: that of the training's input, if known.
      dtype_policy: Keras' dtype policy for the layers that `create_network` creates,
        such as 'mixed_bfloat16'; None leaves the process's policy unchanged.
    Raises:
      SpecError: `padding` or `dtype_policy` is unknown, or `avg_model_params_decay` or
        `control_period` is out of range.
    """
    if control_period is not None and not control_period > 0:
      raise errors.SpecError(
        f"{type(self).__name__}: control_period: expected seconds > 0, or None, got "
        f"{control_period}."
      )
    if not 0 <= avg_model_params_decay < 1:
      raise errors.SpecError(
        f"{type(self).__name__}: avg_model_params_decay: expected a number in [0, 1), "
        f"got {avg_model_params_decay}."
      )
    self._dtype_policy = networks.check_dtype_policy(type(self).__name__, dtype_policy)
    self._preprocessor_cls = preprocessor_cls
    self._create_optimizer_fn = create_optimizer_fn
    self._padding = check_padding(padding)
    self._execution = execution
    self._control_period = control_period
    self._value_periods: Mapping[str, float] = {}
    self._source_preprocessing: Mapping[str, list[dict[str, Any]]] = {}
    self._init_from_checkpoint_fn = init_from_checkpoint_fn
    self._filter_trainables_fn = filter_trainables_fn
    self._averages_decay = avg_model_params_decay if use_avg_model_params else None
    self._preprocessor: preprocessors.AbstractPreprocessor | None = None
    self._network: Any = None
    self._averages: WeightAverages | None = None
    self._global_step: tf.Variable | tf.Tensor | None = None
    self._is_step_held = False

  @abc.abstractmethod
  def get_feature_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of the network's features in a mode."""

  @abc.abstractmethod
  def get_label_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of the loss's labels in a mode."""

  @abc.abstractmethod
  def create_network(self) -> Any:
    """Builds the layers; called once, under the distribution strategy.

    Returns:
      A Keras layer or model, a tf.Module, or a dict or list of them; afterwards it is
      `self.network`.
    """

  @abc.abstractmethod
  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """Maps features to outputs.

    Args:
      features: packed as the feature specs, [B, ...]; absent optionals are None.
      labels: packed as the label specs, or None in mode 'infer'.
      mode: value of `ModeKeys`; call layers with `training=(mode == ModeKeys.TRAIN)`.
    Returns:
      Output tensors by name, [B, ...].
    """

  @abc.abstractmethod
  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Computes the loss.

    Args:
      features: packed as the feature specs, [B, ...].
      labels: packed as the label specs, [B, ...].
      inference_outputs: outputs of `inference_network_fn`.
      mode: value of `ModeKeys`.
    Returns:
      The scalar loss, a mean over the batch; or (loss, scalars to log by name); or
      (loss, scalars, tensors [B, ...] by name, which callbacks find in `run.outputs`,
      such as TD errors). In training, regularisation losses of Keras layers are added.
    """

  def model_eval_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Computes the eval metrics of a batch; by default those of `model_train_fn`.

    Returns:
      Scalars by name, each a mean over the batch; the trainer averages them over the
      eval set, weighted by batch size. A missing 'loss' is that of `model_train_fn`.
    """
    loss, scalars, _ = self._split_loss(
      self.model_train_fn(features, labels, inference_outputs, mode)
    )
    return {"loss": loss, **scalars}

  def eval_tallies_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Returns sums for metrics that are not batch means, such as precision.

    Returns:
      Tensors by name, by default none. The trainer sums them over the eval set and
      passes the sums to `eval_results_fn`.
    """
    del features, labels, inference_outputs, mode
    return {}

  def eval_results_fn(self, tallies: dict[str, np.ndarray]) -> dict[str, float]:
    """Computes metrics from the sums of `eval_tallies_fn`.

    Args:
      tallies: sums over the eval set, float64.
    Returns:
      Metrics by name, beside those of `model_eval_fn`.
    """
    del tallies
    return {}

  def after_train_step(self) -> None:
    """Updates untrained variables, such as a target network; by default none.

    Each train step calls it after the update of the weights, in cross-replica context,
    and counts itself in `global_step` afterwards.
    """
    return  # AutoGraph warns about a body that is only a docstring.

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """Selects the outputs of the exported policy; by default all."""
    del features, mode
    return inference_outputs

  @property
  def output_labels(self) -> Mapping[str, str]:
    """Label paths by output; an export restores the labels' conventions of the data."""
    return {}

  @property
  def default_preprocessor_cls(
    self,
  ) -> Callable[..., preprocessors.AbstractPreprocessor]:
    """The default preprocessor."""
    return preprocessors.NoOpPreprocessor

  @property
  def preprocessor(self) -> preprocessors.AbstractPreprocessor:
    """The preprocessor, built from this model's specs at first use."""
    if self._preprocessor is None:
      preprocessor_cls = self._preprocessor_cls or self.default_preprocessor_cls
      self._preprocessor = create_preprocessor(
        preprocessor_cls, self.get_feature_specification, self.get_label_specification
      )
    return self._preprocessor

  @property
  def step_preprocessor(self) -> preprocessors.AbstractPreprocessor:
    """Preprocesses the observations of the exported policy's step."""
    return self.preprocessor

  @property
  def padding(self) -> Padding:
    """Padding of a window beyond the ends of an episode."""
    return self._padding

  @property
  def execution(self) -> policies.ChunkExecution | None:
    """How the exported policy executes action chunks; None returns them whole."""
    return self._execution

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the data to the next one, if that is known."""
    return self._control_period

  @property
  def value_periods(self) -> Mapping[str, float]:
    """Seconds between values on other clocks than the steps', by path of the data."""
    return self._value_periods

  def follow_periods(
    self, control: float | None, values: Mapping[str, float] | None = None
  ) -> None:
    """Records the periods of the training's input.

    Args:
      control: seconds between its steps; ignored if the model already has a period.
      values: seconds between values on other clocks, by path; None without such values.
    """
    if self._control_period is None:
      self._control_period = control
    self._value_periods = values or {}

  @property
  def source_preprocessing(self) -> Mapping[str, list[dict[str, Any]]]:
    """Preprocessing of the training's input that the export lacks, by source."""
    return self._source_preprocessing

  def follow_source_preprocessing(
    self, stages: Mapping[str, list[dict[str, Any]]]
  ) -> None:
    """Records the stages before the preprocessor; warns about stages that are new.

    Args:
      stages: see `AbstractInputGenerator.source_preprocessing`.
    """
    if any(stages.values()) and stages != self._source_preprocessing:
      first = next(iter(stages.values()))
      more = ""
      if all(each == first for each in stages.values()):
        more = (
          " All data gets the same, so move it to the model's preprocessor_cls, where "
          "the export has it, too."
        )
      logging.warning(
        "The export holds the model's preprocessor, and nothing that the input does "
        "before it: %s. A robot has to do the same, and to undo it for actions; "
        "policy.json in the export lists it.%s",
        policy_io.list_stages(stages),
        more,
      )
    self._source_preprocessing = stages

  @property
  def network(self) -> Any:
    """The result of `create_network`.

    Raises:
      SpecError: the model has not been built.
    """
    if self._network is None:
      raise errors.SpecError(
        f"{type(self).__name__}: network: expected a built model. The trainer builds "
        "it; elsewhere call model.build() first."
      )
    return self._network

  @property
  def global_step(self) -> tf.Tensor:
    """Training steps done, int64, for schedules; 0 before a trainer has the model.

    An export keeps the number of the step at which it is made.
    """
    if self._global_step is None:
      return tf.zeros([], tf.int64)
    if self._is_step_held:
      with tf.init_scope():
        step = int(self._global_step.numpy())
      return tf.constant(step, tf.int64)
    return tf.convert_to_tensor(self._global_step)

  def follow_global_step(self, variable: tf.Variable | tf.Tensor) -> None:
    """Makes `global_step` read an int64 scalar, such as a trainer's variable."""
    self._global_step = variable

  @property
  def variables(self) -> list[tf.Variable]:
    """All variables of the network."""
    return networks.all_variables(self.network)

  @property
  def trainable_variables(self) -> list[tf.Variable]:
    """The variables that are trained.

    Raises:
      SpecError: `filter_trainables_fn` selects none.
    """
    variables = networks.trainable_variables(self.network)
    if self._filter_trainables_fn is None:
      return variables
    names = {id(variable): name for name, variable in self.named_variables.items()}
    chosen = [v for v in variables if self._filter_trainables_fn(names[id(v)])]
    if not chosen:
      raise errors.SpecError(
        f"{type(self).__name__}: filter_trainables_fn: expected to choose some of "
        f"{errors.listing(names[id(v)] for v in variables)}, got none."
      )
    return chosen

  @property
  def named_variables(self) -> dict[str, tf.Variable]:
    """All variables of the network by name, as checkpoints have them."""
    return networks.named_variables(self.network)

  def twin(self) -> T2RModel:
    """Returns a copy of this model with a separate network, built.

    For threads that need constant weights while training changes this model's; see
    `take_weights`. Calls `create_network` again.
    """
    twin = self._unbuilt_copy()
    twin.build()
    return twin

  def _unbuilt_copy(self) -> Any:
    """Returns a copy without a network; override it to copy models in attributes."""
    copied = copy.copy(self)
    copied._network = copied._averages = copied._global_step = None
    return copied

  @property
  def policy_weights(self) -> dict[str, np.ndarray]:
    """Copies of the weights for policies, by name: averages, if this model has any."""
    averages = self._averages.by_weight if self._averages else {}
    return {
      name: tf.convert_to_tensor(averages.get(id(variable), variable)).numpy()
      for name, variable in self.named_variables.items()
    }

  def take_weights(self, weights: Mapping[str, Any], global_step: int) -> None:
    """Sets all variables.

    Args:
      weights: values of all `named_variables`, such as the original's `policy_weights`.
      global_step: train step of the weights; `global_step` returns it afterwards.
    """
    for name, variable in self.named_variables.items():
      variable.assign(weights[name])
    self.follow_global_step(tf.constant(global_step, tf.int64))

  def maybe_init_from_checkpoint(self) -> None:
    """Initializes the variables by `init_from_checkpoint_fn`, if given."""
    if self._init_from_checkpoint_fn is not None:
      self._init_from_checkpoint_fn(self)

  @property
  def is_built(self) -> bool:
    """Whether `build`, which a trainer calls, has created the network."""
    return self._network is not None

  def build(self) -> None:
    """Creates the network and all of its variables; a second call does nothing.

    Call it in the scope of the strategy for the variables. If two threads build a
    model, such as an actor and a trainer, the second waits for the first.

    Raises:
      SpecError: `create_network` returns something else than networks, or lacks layers
        that are used; or the outputs are not a dict, or the loss is not a scalar.
    """
    with _BUILDING:
      if self._network is None:
        self._build()

  def _build(self) -> None:
    with networks.dtype_policy(self._dtype_policy):
      network = self._create_and_trace()
    unused = [layer.name for layer in networks.layers(network) if not layer.built]
    if unused:
      logging.warning(
        "%s: the layers %s of create_network are used neither in mode 'train' nor in "
        "'eval'. They have no variables: nothing of them is trained or saved.",
        type(self).__name__,
        unused,
      )

  def _create_and_trace(self) -> Any:
    network = self.create_network()
    networks.as_networks(network)
    self._network = network
    # One pass makes the layers create their variables. A second one creates those of
    # layers that only the loss uses. It is traced and not run, so that it changes no
    # variable, such as a moving statistic.
    features, labels = self._example_batch(ModeKeys.TRAIN)
    with self._explain_summaries():
      self._infer(*self._example_batch(ModeKeys.EVAL), ModeKeys.EVAL)
      with tf.variable_creator_scope(_create_outside):
        tf.function(self._trace_loss).get_concrete_function(features, labels)
    return network

  def create_updates(self) -> updates.Updates:
    """Creates the optimizer and its slots, and `averages` if requested.

    If layers compute in float16, an optimizer without loss scaling gets it, as in
    Keras' `compile`.

    Raises:
      SpecError: the model is not built, `create_optimizer_fn` is not a function or
        returns no Keras optimizer, no variable is trained, or groups do not fit the
        variables or each other.
    """
    name = type(self).__name__
    if not callable(self._create_optimizer_fn):
      raise errors.SpecError(
        f"{name}: create_optimizer_fn: expected a function that creates "
        f"an optimizer, got {type(self._create_optimizer_fn).__name__}. In gin, leave "
        "out the parentheses: @create_adam_optimizer."
      )
    optimizer = self._create_optimizer_fn()
    is_grouped = isinstance(optimizer, optimizers.GroupedOptimizer)
    for each in optimizer.groups.values() if is_grouped else [optimizer]:
      if not hasattr(each, "build"):
        raise errors.SpecError(
          f"{name}: create_optimizer_fn: expected a tf.keras.optimizers.Optimizer, got "
          f"{type(each).__module__}.{type(each).__name__}."
        )
    names = {id(variable): name for name, variable in self.named_variables.items()}
    trained = {names[id(v)]: v for v in self.trainable_variables}
    layers = networks.layers(self.network)
    is_float16 = any(getattr(each, "compute_dtype", "") == "float16" for each in layers)
    created = updates.Updates(optimizer, trained, list(names.values()), is_float16)
    decay, frequency = created.averaging or (self._averages_decay, None)
    if decay is not None:
      is_trained = {id(variable) for variable in trained.values()}
      others = [v for v in self.variables if id(v) not in is_trained]
      self._averages = WeightAverages(list(trained.values()), others, decay, frequency)
    return created

  def create_optimizer(self) -> Any:
    """Calls `create_updates`; returns the optimizer, which is built."""
    return self.create_updates().optimizer

  @property
  def averages(self) -> WeightAverages | None:
    """The averages of the weights; None before `create_updates`, or without any."""
    return self._averages

  @contextlib.contextmanager
  def averaged_weights(self) -> Iterator[None]:
    """Swaps in the averaged weights, if the model averages them; can be nested.

    Evaluations and exports run inside it.
    """
    with self._averages.in_use() if self._averages else contextlib.nullcontext():
      yield

  @_no_autograph
  def pack(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> tuple[SpecStructure, SpecStructure | None]:
    """Checks a preprocessed batch and packs it as the model's specs.

    Raises:
      SpecError: the batch does not fit the specs; every path is named.
    """
    # Reverts casts for the transfer to the device, such as to bfloat16.
    features, labels = self.preprocessor.receive(features, labels, mode)
    features = specs.validate_and_pack(
      self.get_feature_specification(mode), features, ignore_batch=True
    )
    record_network_inputs(features)
    if labels is not None:
      labels = specs.validate_and_pack(
        self.get_label_specification(mode), labels, ignore_batch=True
      )
    return features, labels

  def train_loss(
    self, features: TensorSpecStruct, labels: TensorSpecStruct
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Runs the network on a training batch.

    Args:
      features: preprocessed features by path, [B, ...].
      labels: preprocessed labels by path, [B, ...].
    Returns:
      (loss with regularisation, scalars to log and tensors of each example by name).
    Raises:
      SpecError: the batch, outputs, loss or scalars do not have the declared form.
    """
    mode = ModeKeys.TRAIN
    packed, targets = self.pack(features, labels, mode)
    outputs = self._infer(packed, targets, mode)
    loss, scalars, examples = self._split_loss(
      self.model_train_fn(packed, targets, outputs, mode)
    )
    if loss.dtype in (tf.float16, tf.bfloat16):
      loss = tf.cast(loss, tf.float32)  # The scaled loss may exceed float16.
    penalties = networks.regularization_losses(self.network)
    if penalties:
      penalty = tf.add_n([tf.cast(p, loss.dtype) for p in penalties])
      scalars = {**scalars, "regularization_loss": penalty}
      loss = loss + penalty
    return loss, {**scalars, **examples}

  def compute_gradients(
    self,
    features: TensorSpecStruct,
    labels: TensorSpecStruct,
    scale: Callable[[tf.Tensor], tf.Tensor],
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor], Sequence[Any]]:
    """Computes the gradients for the optimizer; override it for other gradients.

    Args:
      features: preprocessed features by path, [B, ...].
      labels: preprocessed labels by path, [B, ...].
      scale: multiplies a loss by the factors of replicas and optimizer. Differentiate
        scaled losses only.
    Returns:
      (the loss, not scaled; scalars to log, and tensors of each example, by name; the
      gradients of `trainable_variables`, None for those that do not affect the loss).
    """
    with tf.GradientTape() as tape:
      loss, scalars = self.train_loss(features, labels)
      scaled = scale(loss)
    return loss, scalars, tape.gradient(scaled, self.trainable_variables)

  def eval_metrics(
    self, features: TensorSpecStruct, labels: TensorSpecStruct
  ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Runs the network on an eval batch of preprocessed features and labels.

    Returns:
      (the scalars of `model_eval_fn`, with the loss of `model_train_fn` if they lack
      one; the tensors of `eval_tallies_fn`).
    """
    mode = ModeKeys.EVAL
    packed, targets = self.pack(features, labels, mode)
    outputs = self._infer(packed, targets, mode)
    metrics = self.model_eval_fn(packed, targets, outputs, mode)
    if "loss" not in metrics:
      loss, *_ = self._split_loss(self.model_train_fn(packed, targets, outputs, mode))
      metrics = {"loss": loss, **metrics}
    return metrics, self.eval_tallies_fn(packed, targets, outputs, mode)

  def eval_metric_names(self) -> list[str]:
    """Returns the names of an evaluation's metrics, without running it."""
    traced = tf.function(self.eval_metrics)
    batch = self._example_batch(ModeKeys.EVAL)
    metrics, tallies = traced.get_concrete_function(*batch).structured_outputs
    nothing = {name: np.zeros(spec.shape) for name, spec in tallies.items()}
    return sorted({**metrics, **self.eval_results_fn(nothing)})

  def export_outputs(self, raw_features: SpecStructure) -> dict[str, tf.Tensor]:
    """Maps raw features, before the preprocessor, to the policy's outputs.

    Args:
      raw_features: fits the preprocessor's in feature specs in mode 'infer', [B, ...].
    Returns:
      Output tensors by name.
    Raises:
      SpecError: `raw_features` does not fit, or the outputs are not a dict.
    """
    mode = ModeKeys.INFER
    features, _ = self.preprocessor.preprocess(raw_features, None, mode)
    features, _ = self.pack(features, None, mode)
    with self._holding_step():
      outputs = self._infer(features, None, mode)
      return self._export_outputs(features, raw_features, outputs)

  def _export_outputs(
    self, features: SpecStructure, raw: SpecStructure, outputs: dict[str, tf.Tensor]
  ) -> dict[str, tf.Tensor]:
    outputs = self.create_export_outputs_fn(features, outputs, ModeKeys.INFER)
    return restore_outputs(self.preprocessor, raw, outputs, self.output_labels)

  @_no_autograph
  @contextlib.contextmanager
  def _holding_step(self) -> Iterator[None]:
    """Makes `global_step` a constant: an export lacks the trainer's variable."""
    before, self._is_step_held = self._is_step_held, True
    try:
      yield
    finally:
      self._is_step_held = before

  def _infer(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    outputs = self.inference_network_fn(features, labels, mode)
    self._check_outputs("inference_network_fn", outputs)
    return outputs

  @_no_autograph
  def _check_outputs(
    self, method: str, outputs: Any, required: str | None = None
  ) -> None:
    if isinstance(outputs, Mapping):
      if required is not None and required not in outputs:
        raise errors.SpecError(
          f"{type(self).__name__}.{method}: {required}: expected this output, got "
          f"{errors.listing(outputs)}.{errors.nearest(required, outputs)}"
        )
      return
    got, hint = type(outputs).__name__, ""
    if isinstance(outputs, tuple) and outputs and isinstance(outputs[0], Mapping):
      got = "a tuple that begins with it"
      hint = (
        " There are no update_ops in TensorFlow 2: layers update what they remember "
        "where they are called. Return the outputs alone."
      )
    raise errors.SpecError(
      f"{type(self).__name__}.{method}: outputs: expected a dict of tensors by name, "
      f"got {got}.{hint}"
    )

  def _example_batch(self, mode: str) -> tuple[SpecStructure, SpecStructure]:
    """Returns (features, labels) of one example of zeros, packed as the specs."""
    features, labels = [
      specs.map_leaves(
        tf.convert_to_tensor,
        make_constant_numpy(spec, 0, 1, self._example_length),
      )
      for spec in (
        self.get_feature_specification(mode),
        self.get_label_specification(mode),
      )
    ]
    return features, labels

  def _trace_loss(self, features: SpecStructure, labels: SpecStructure) -> tf.Tensor:
    """Computes the loss; raises if it reads variables outside of the network."""
    mode = ModeKeys.TRAIN
    with tf.GradientTape() as tape:
      outputs = self._infer(features, labels, mode)
      loss, *_ = self._split_loss(self.model_train_fn(features, labels, outputs, mode))
    self._check_all_tracked(tape.watched_variables())
    return loss

  @_no_autograph
  def _check_all_tracked(self, used: Sequence[tf.Variable]) -> None:
    local = tf.distribute.get_strategy().experimental_local_results
    # Compares handles: the tape has the variable inside of Keras 2's wrapper for mixed
    # precision, and that of each replica.
    tracked = {id(v.handle) for variable in self.variables for v in local(variable)}
    lost = [v.name for v in used if id(v.handle) not in tracked]
    if lost:
      raise errors.SpecError(
        f"{type(self).__name__}: the network: expected every layer in what "
        f"create_network returns, got {errors.listing(lost)} in use beside it. "
        "Return all layers, as a dict or list."
      )

  @contextlib.contextmanager
  def _explain_summaries(self) -> Iterator[None]:
    """Explains the error of `tf.summary.scalar` without TensorBoard."""
    try:
      yield
    except Exception as e:
      if "TensorBoard is not installed" not in str(e):
        raise
      raise errors.SpecError(
        f"{type(self).__name__}: tf.summary: expected the package tensorboard, which "
        "tf.summary.scalar, image, histogram and text need, got none. Those of "
        "t2r_seq.models.summaries need none; or return scalars beside the loss: "
        "(loss, {name: value})."
      ) from e

  @_no_autograph
  def _split_loss(
    self, result: Loss
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    loss, scalars, *rest = result if isinstance(result, tuple) else (result, {})
    examples = rest[0] if rest else {}
    mismatches = [
      errors.Mismatch(name, "a scalar", errors.describe(value), "Reduce it to a mean.")
      for name, value in {"loss": loss, **scalars}.items()
      if value is None or tf.convert_to_tensor(value).shape.rank != 0
    ]
    mismatches += [
      errors.Mismatch(name, "one for each example, [B, ...]", errors.describe(value))
      for name, value in examples.items()
      if not tf.convert_to_tensor(value).shape.rank
    ]
    if mismatches:
      where = f"{type(self).__name__}.model_train_fn"
      raise errors.mismatch_error(where, mismatches)
    return loss, scalars, examples


@gin.configurable
def training_specification(model: T2RModel = gin.REQUIRED) -> TensorSpecStruct:
  """Returns the specs of a model's training data: raw features and labels by path.

  For a `StoreSink`, a `ReplayBuffer` or a record. They include the results of `n_step`
  for transitions, such as their discounts.

  Args:
    model: the model with the preprocessor.
  Raises:
    SpecError: a path is both a feature's and a label's.
  """
  preprocessor, mode = model.preprocessor, ModeKeys.TRAIN
  features, labels = map(
    specs.flatten_spec_structure,
    (
      preprocessor.get_in_feature_specification(mode),
      preprocessor.get_in_label_specification(mode),
    ),
  )
  both = [path for path in features if path in labels]
  if both:
    raise errors.SpecError(
      f"training_specification: {type(model).__name__}: expected other paths of labels "
      f"than of features, got {errors.listing(both)} of both. Rename one, and give it "
      "the other's path as its name."
    )
  return TensorSpecStruct({**features, **labels})


def _create_outside(next_creator: Callable[..., Any], **kwargs: Any) -> tf.Variable:
  """Creates a variable outside of the function that is being traced.

  Keras 3 creates variables in the current scope, which a strategy of several replicas
  allows outside of functions only.
  """
  value = kwargs.get("initial_value")
  if tf.executing_eagerly() or not callable(value):
    return next_creator(**kwargs)
  parameters = inspect.signature(tf.Variable.__init__).parameters
  with tf.init_scope():
    return tf.Variable(**{k: v for k, v in kwargs.items() if k in parameters})


AbstractT2RModel = T2RModel
"""Tensor2Robot's name of the class."""
