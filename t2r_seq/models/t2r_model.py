"""`T2RModel`: specs, network, loss and outputs of a trainable model in one class."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import errors, preprocessors, specs, windows
from t2r_seq.models import networks, optimizers
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct

# AutoGraph is for what users write: here it would only cost time.
_as_it_is = tf.autograph.experimental.do_not_convert


class T2RModel(abc.ABC):
  """A model as Tensor2Robot knows it, with networks that own their variables.

  A subclass says what it needs (`get_feature_specification`,
  `get_label_specification`), builds its layers once (`create_network`), and maps
  features to outputs (`inference_network_fn`) and outputs to a loss
  (`model_train_fn`). The input pipeline, the trainer and the exported policy are
  derived from that.
  """

  def __init__(
    self,
    preprocessor_cls: Callable[..., preprocessors.AbstractPreprocessor] | None = None,
    create_optimizer_fn: Callable[
      [], tf.keras.optimizers.Optimizer
    ] = optimizers.create_adam_optimizer,
    padding: str = "repeat",
  ) -> None:
    """Creates the model, without its network.

    Args:
      preprocessor_cls: called with the two specification functions; by default
        `default_preprocessor_cls`.
      create_optimizer_fn: gives the Keras optimizer.
      padding: what a window shows beyond the ends of an episode: 'repeat' or 'zero';
        'drop' trains on full windows only, and the exported policy, which must act on
        the first step too, repeats the first frame. Shared by training and policy.
    Raises:
      SpecError: the padding is not known.
    """
    windows.check_padding(padding)
    self._preprocessor_cls = preprocessor_cls
    self._create_optimizer_fn = create_optimizer_fn
    self._padding = padding
    self._preprocessor: preprocessors.AbstractPreprocessor | None = None
    self._network: Any = None

  @abc.abstractmethod
  def get_feature_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of the features that the network takes in that mode."""

  @abc.abstractmethod
  def get_label_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of the labels that the loss takes in that mode."""

  @abc.abstractmethod
  def create_network(self) -> Any:
    """Builds the layers; called once, under the distribution strategy.

    Returns:
      A Keras layer or model, a tf.Module, or a dict or list of them. It is
      `self.network` from then on.
    """

  @abc.abstractmethod
  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """Maps features to outputs.

    Args:
      features: packed as the feature specs, [B, ...]; absent optionals are None.
      labels: packed as the label specs, or None in mode 'infer'.
      mode: one of `ModeKeys`; call layers with `training=(mode == ModeKeys.TRAIN)`.
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
  ) -> tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Computes the loss.

    Args:
      features: packed as the feature specs, [B, ...].
      labels: packed as the label specs, [B, ...].
      inference_outputs: of `inference_network_fn`.
      mode: one of `ModeKeys`.
    Returns:
      The scalar loss, a mean over the batch; or (loss, scalars to log by name).
      Regularisation losses of Keras layers are added by the trainer.
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
      eval set, weighted by batch size.
    """
    loss, scalars = self._split_loss(
      self.model_train_fn(features, labels, inference_outputs, mode)
    )
    return {"loss": loss, **scalars}

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """Chooses what the exported policy returns; by default all outputs."""
    del features, mode
    return inference_outputs

  @property
  def default_preprocessor_cls(
    self,
  ) -> Callable[..., preprocessors.AbstractPreprocessor]:
    """The preprocessor where none is configured."""
    return preprocessors.NoOpPreprocessor

  @property
  def preprocessor(self) -> preprocessors.AbstractPreprocessor:
    """The preprocessor, built from this model's specs at first use."""
    if self._preprocessor is None:
      preprocessor_cls = self._preprocessor_cls or self.default_preprocessor_cls
      self._preprocessor = preprocessor_cls(
        self.get_feature_specification, self.get_label_specification
      )
    return self._preprocessor

  @property
  def padding(self) -> str:
    """What a window shows beyond the ends of an episode."""
    return self._padding

  @property
  def network(self) -> Any:
    """What `create_network` returned.

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
  def variables(self) -> list[tf.Variable]:
    """All variables of the network."""
    return networks.all_variables(self.network)

  @property
  def trainable_variables(self) -> list[tf.Variable]:
    """The trainable variables of the network."""
    return networks.trainable_variables(self.network)

  def build(self) -> None:
    """Creates the network and all of its variables; a second call does nothing.

    Call it under the scope of the strategy that is to hold the variables.
    """
    if self._network is not None:
      return
    self._network = self.create_network()
    networks.as_networks(self._network)
    # One pass on a batch of zeros makes the layers create their variables.
    feature_spec = self.get_feature_specification(ModeKeys.TRAIN)
    label_spec = self.get_label_specification(ModeKeys.TRAIN)
    features, labels = [
      specs.map_leaves(
        tf.convert_to_tensor, specs.make_constant_numpy(spec, 0, batch_size=1)
      )
      for spec in (feature_spec, label_spec)
    ]
    self.inference_network_fn(features, labels, ModeKeys.EVAL)

  def create_optimizer(self) -> tf.keras.optimizers.Optimizer:
    """Creates the optimizer and its slots for this model's variables.

    Raises:
      SpecError: `create_optimizer_fn` is no function.
    """
    if not callable(self._create_optimizer_fn):
      raise errors.SpecError(
        f"{type(self).__name__}: create_optimizer_fn: expected a function that creates "
        f"an optimizer, got {type(self._create_optimizer_fn).__name__}. In gin, leave "
        "out the parentheses: @create_adam_optimizer."
      )
    optimizer = self._create_optimizer_fn()
    optimizer.build(self.trainable_variables)
    return optimizer

  @_as_it_is
  def pack(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> tuple[SpecStructure, SpecStructure | None]:
    """Checks a preprocessed batch and packs it into the form of the specs.

    Raises:
      SpecError: the batch does not fit the model's specs; every path is named.
    """
    features = specs.validate_and_pack(
      self.get_feature_specification(mode), features, ignore_batch=True
    )
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
      (loss with regularisation, scalars to log by name).
    """
    mode = ModeKeys.TRAIN
    packed, targets = self.pack(features, labels, mode)
    outputs = self.inference_network_fn(packed, targets, mode)
    loss, scalars = self._split_loss(
      self.model_train_fn(packed, targets, outputs, mode)
    )
    penalties = networks.regularization_losses(self.network)
    if penalties:
      penalty = tf.add_n([tf.cast(p, loss.dtype) for p in penalties])
      scalars = {**scalars, "regularization_loss": penalty}
      loss = loss + penalty
    return loss, scalars

  def eval_metrics(
    self, features: TensorSpecStruct, labels: TensorSpecStruct
  ) -> dict[str, tf.Tensor]:
    """Runs the network on an eval batch; returns the scalars of `model_eval_fn`."""
    mode = ModeKeys.EVAL
    packed, targets = self.pack(features, labels, mode)
    outputs = self.inference_network_fn(packed, targets, mode)
    return self.model_eval_fn(packed, targets, outputs, mode)

  def export_outputs(self, raw_features: SpecStructure) -> dict[str, tf.Tensor]:
    """Maps raw features, as the preprocessor takes them, to the policy's outputs.

    Args:
      raw_features: fits the preprocessor's in feature specs in mode 'infer', [B, ...].
    Returns:
      Output tensors by name.
    """
    mode = ModeKeys.INFER
    features, _ = self.preprocessor.preprocess(raw_features, None, mode)
    features, _ = self.pack(features, None, mode)
    outputs = self.inference_network_fn(features, None, mode)
    return self.create_export_outputs_fn(features, outputs, mode)

  @_as_it_is
  def _split_loss(
    self, result: tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    loss, scalars = result if isinstance(result, tuple) else (result, {})
    found = [
      errors.Mismatch(name, "a scalar", errors.describe(value), "Reduce it to a mean.")
      for name, value in {"loss": loss, **scalars}.items()
      if value is None or tf.convert_to_tensor(value).shape.rank != 0
    ]
    if found:
      where = f"{type(self).__name__}.model_train_fn"
      raise errors.mismatch_error(where, found)
    return loss, scalars


AbstractT2RModel = T2RModel
"""Tensor2Robot's name of the class."""
