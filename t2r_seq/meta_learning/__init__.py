"""Meta-learning: models and data of several episodes of a task per sample."""

from t2r_seq.meta_learning.maml_inner_loop import MAMLInnerLoopGradientDescent
from t2r_seq.meta_learning.maml_model import MAMLModel
from t2r_seq.meta_learning.meta_example import make_meta_example
from t2r_seq.meta_learning.meta_policies import (
  FixedLengthSequentialRegressionPolicy,
  MAMLCEMPolicy,
  MAMLRegressionPolicy,
  MetaLearningPolicy,
  ScheduledExplorationMAMLRegressionPolicy,
  WatchTryLearnPolicy,
  pack_condition,
)
from t2r_seq.meta_learning.meta_tf_models import MetalearningModel, MetaPreprocessor
from t2r_seq.meta_learning.meta_tfdata import (
  flatten_batch_examples,
  multi_batch_apply,
  parallel_read,
  split_train_val,
  unflatten_batch_examples,
)
from t2r_seq.meta_learning.preprocessors import (
  FixedLenMetaExamplePreprocessor,
  MAMLPreprocessorV2,
  create_maml_feature_spec,
  create_maml_label_spec,
  create_metaexample_spec,
)
from t2r_seq.meta_learning.task_embedding_model import (
  TaskEmbeddingModel,
)
from t2r_seq.meta_learning.task_input_generators import (
  TaskRecordInputGenerator,
  TaskReplayInputGenerator,
  TaskStoreInputGenerator,
)

__all__ = [
  "FixedLenMetaExamplePreprocessor",
  "FixedLengthSequentialRegressionPolicy",
  "MAMLCEMPolicy",
  "MAMLInnerLoopGradientDescent",
  "MAMLModel",
  "MAMLPreprocessorV2",
  "MAMLRegressionPolicy",
  "MetaLearningPolicy",
  "MetaPreprocessor",
  "MetalearningModel",
  "ScheduledExplorationMAMLRegressionPolicy",
  "TaskEmbeddingModel",
  "TaskRecordInputGenerator",
  "TaskReplayInputGenerator",
  "TaskStoreInputGenerator",
  "WatchTryLearnPolicy",
  "create_maml_feature_spec",
  "create_maml_label_spec",
  "create_metaexample_spec",
  "flatten_batch_examples",
  "make_meta_example",
  "multi_batch_apply",
  "pack_condition",
  "parallel_read",
  "split_train_val",
  "unflatten_batch_examples",
]
