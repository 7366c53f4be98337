"""An input generator that mixes others, in proportion within every batch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import joint, presence
from t2r_seq.data.abstract_input_generator import AbstractInputGenerator
from t2r_seq.data.mixtures import (
  mixing,
  mixture_arguments,
  mixture_schedule,
  mixture_sources,
)
from t2r_seq.data.mixtures.mixture_arguments import BY_SIZE, Weights
from t2r_seq.data.mixtures.mixture_report import MixtureReport


@gin.configurable
class MixtureInputGenerator(AbstractInputGenerator):
  """Mixes sources: records, stores, Python generators, replay, other mixtures.

  In mode 'train' every batch holds the sources in proportion to their weights, rounded
  up and down in turns, so that the proportions are exact in the long run; which row
  is of which source is shuffled. The other modes are one pass, one source after the
  other. The same seed gives the same batches if the sources' own seeds do; a source
  without a seed gets one.

  A source delivers what the mixture's specs ask for. One that stores something else
  has a preprocessor that turns it into that, or comes with specs and a preprocess_fn
  of its own. What is optional and not there is filled with zeros; declare masks
  (`add_presence_specs`) to tell these from stored ones.
  """

  def __init__(
    self,
    sources: Mapping[str, AbstractInputGenerator],
    weights: Weights = None,
    batch_size: int = 32,
    seed: int = 0,
    preprocessors: Mapping[str, Any] | None = None,
  ) -> None:
    """Creates the mixture.

    Args:
      sources: input generators by name; their own batch sizes don't count.
      weights: by name or in the order of the sources, above 0, of any scale;
        'by_size': as many as a pass has examples, counted if need be; None: all equal.
      batch_size: examples in a batch, over all replicas together.
      seed: of the order within batches, and of sources that have none.
      preprocessors: by name, for sources whose data is not yet what the mixture
        delivers: a preprocessor, or a class of them that is called with functions from
        a mode to the mixture's feature and label specs, as a model calls it.
    Raises:
      SpecError: sources, weights and preprocessors do not belong together.
    """
    super().__init__(batch_size)
    self._sources = dict(sources)
    self._weights = weights
    self._seed = self._check_count("seed", seed, minimum=0)
    self._preprocessors = dict(preprocessors or {})
    mixture_arguments.check(
      self._where, self._sources, self._weights, self._preprocessors
    )
    # Specs that were set before this are the source's own, and stay.
    self._with_own_specs = {
      name for name, source in self._sources.items() if source.has_specifications
    }

  @property
  def num_examples(self) -> int | None:
    """Examples of one pass over all sources; None if one of them can't tell."""
    sizes = [source.num_examples for source in self._sources.values()]
    return None if None in sizes else sum(size for size in sizes if size)

  def count_examples(self) -> int | None:
    """Returns the examples of one pass over all sources; None if one can't tell."""
    sizes = [source.count_examples() for source in self._sources.values()]
    return None if None in sizes else sum(size for size in sizes if size)

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Lets the sources explain what made TensorFlow fail."""
    with contextlib.ExitStack() as stack:
      for source in self._sources.values():
        stack.enter_context(source.explain_failures())
      yield

  def watch(self) -> Callable[[], Any] | None:
    """Begins to watch over a wait for a batch: all sources do."""
    looks = [look for s in self._sources.values() if (look := s.watch()) is not None]
    return (lambda: [look() for look in looks]) if looks else None

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    self._set_specifications(mode)
    report = None if self._is_portable else MixtureReport(self._sources)
    if mode == specs.ModeKeys.TRAIN:
      dataset = self._mixed(batch_size, report)
    else:
      dataset = self._one_after_another(mode, batch_size, report)
    self._report = report
    return dataset.map(joint.split)

  def _mixed(self, batch_size: int, report: MixtureReport | None) -> tf.data.Dataset:
    schedule = mixture_schedule.make_schedule(
      self._resolved_weights(), batch_size, self._seed
    )
    given = schedule.given(self._start_step)
    counts = schedule.counts_from(self._start_step)
    params = [
      # At a source that can resume exactly, the last batch may be used in part.
      {"batch_size": int(size), "start_step": int(start // size), "seed": seed}
      for size, start, seed in zip(
        counts.max(axis=0), given, self._source_seeds(), strict=True
      )
    ]
    datasets = self._source_datasets(specs.ModeKeys.TRAIN, params)
    parts = [
      mixing.cut(dataset, counts[:, i], int(given[i] % params[i]["batch_size"]))
      for i, dataset in enumerate(datasets)
    ]
    return mixing.interleave(parts, batch_size, self._seed, self._start_step, report)

  def _one_after_another(
    self, mode: str, batch_size: int, report: MixtureReport | None
  ) -> tf.data.Dataset:
    params = [{"batch_size": batch_size, "seed": seed} for seed in self._source_seeds()]
    datasets = self._source_datasets(mode, params)
    for name, dataset in zip(self._sources, datasets, strict=True):
      if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise errors.SpecError(
          f"{self._where}: {name}: expected a source that ends in mode '{mode}', got "
          "one that does not. Evaluate it on its own."
        )
    counted = [mixing.count(d, i, report) for i, d in enumerate(datasets)]
    return functools.reduce(tf.data.Dataset.concatenate, counted)

  def _source_datasets(
    self, mode: str, params: Sequence[Mapping[str, Any]]
  ) -> list[tf.data.Dataset]:
    """Creates the sources' datasets, of batches with the same paths, joined."""
    # Nobody is told to keep its position: TensorFlow cannot save that of a `rebatch`.
    datasets = {
      name: source.create_dataset(mode, {**own, "is_portable": self._is_portable})
      for (name, source), own in zip(self._sources.items(), params, strict=True)
    }
    self._raise(
      errors.Mismatch(
        name, "a source that stacks its windows itself", "one with stack_on_device"
      )
      for name, source in self._sources.items()
      if source.device_fn is not None
    )
    wanted = joint.join(self._feature_spec, self._label_spec_for(mode))
    masks = joint.join_paths(self._feature_masks, self._label_masks)
    given = {name: mixture_sources.element_specs(d) for name, d in datasets.items()}
    self._raise(mixture_sources.find_mismatches(wanted, given))
    delivered = mixture_sources.delivered_specs(wanted, masks, given)
    mixture_sources.log_filled(delivered, given)
    return [
      dataset.map(mixture_sources.make_filler(masks, given[name], delivered))
      for name, dataset in datasets.items()
    ]

  def _set_specifications(self, mode: str) -> None:
    """Tells each source what to deliver, by way of its preprocessor if it has one."""
    features, labels = self._specs_with_masks()
    given, problems = {}, []
    for name, source in self._sources.items():
      source.set_padding(self.padding)
      if name in self._with_own_specs:
        continue
      if name not in self._preprocessors:
        source.set_feature_specifications(features)
        source.set_label_specifications(labels)
        source.set_preprocess_fn(None)
        continue
      try:
        given[name] = self._set_preprocessor(name, mode)
      except errors.SpecError as e:
        problems.append(f"\n  {name}: {e}")
    if problems:
      raise errors.SpecError(f"{self._where}: preprocessors:{''.join(problems)}")
    wanted = joint.join(self._feature_spec, self._label_spec_for(mode))
    self._raise(mixture_sources.find_mismatches(wanted, given))

  def _set_preprocessor(self, name: str, mode: str) -> specs.TensorSpecStruct:
    """Puts a preprocessor into a source; returns what comes out of it, joined."""
    preprocessor, source = self._preprocessors[name], self._sources[name]
    if not hasattr(preprocessor, "preprocess") or isinstance(preprocessor, type):
      preprocessor = preprocessor(
        lambda mode: self._specs_with_masks()[0],
        lambda mode: self._specs_with_masks()[1],
      )
    out_features = preprocessor.get_out_feature_specification(mode)
    out_labels = preprocessor.get_out_label_specification(mode)
    source.set_feature_specifications(
      preprocessor.get_in_feature_specification(mode), out_features
    )
    source.set_label_specifications(
      preprocessor.get_in_label_specification(mode), out_labels
    )
    source.set_preprocess_fn(functools.partial(preprocessor.preprocess, mode=mode))
    has_labels = mode != specs.ModeKeys.INFER
    return joint.join(out_features, out_labels if has_labels else None)

  def _specs_with_masks(self) -> tuple[Any, Any]:
    """Returns structs of their own, of features and labels."""
    return (
      presence.join_masks(self._feature_spec, self._feature_masks),
      presence.join_masks(self._label_spec, self._label_masks),
    )

  def _resolved_weights(self) -> Sequence[float]:
    names = list(self._sources)
    if self._weights is None:
      return [1] * len(names)
    if isinstance(self._weights, str):
      return self._sizes()
    if isinstance(self._weights, Mapping):
      return [self._weights[name] for name in names]
    return list(self._weights)

  def _sizes(self) -> list[int]:
    sizes = {name: source.count_examples() for name, source in self._sources.items()}
    self._raise(
      errors.Mismatch(
        name,
        f"a source whose size can be told, for weights='{BY_SIZE}'",
        "none" if size == 0 else "one that can't",
        "Give weights.",
      )
      for name, size in sizes.items()
      if not size
    )
    return [size for size in sizes.values() if size]

  def _source_seeds(self) -> list[int]:
    state = np.random.SeedSequence(self._seed).generate_state(len(self._sources))
    return state.tolist()

  @property
  def _where(self) -> str:
    return type(self).__name__

  def _raise(self, mismatches: Any) -> None:
    if found := list(mismatches):
      raise errors.mismatch_error(self._where, found)
