"""Collect and evaluate loops over Gymnasium environments."""

from t2r_seq.actors.collect import collect_episodes, run_env
from t2r_seq.actors.collect_eval import (
  CollectByExport,
  CollectThread,
  collect_eval_loop,
)
from t2r_seq.actors.evaluation import (
  ClosedLoopEvaluation,
  Evaluation,
  ends_in_success,
  evaluate_policies,
  evaluation_table,
)
from t2r_seq.actors.meta import run_meta_env
from t2r_seq.actors.robot import run_robot
from t2r_seq.actors.rollouts import (
  Episode,
  is_last,
)
from t2r_seq.actors.sinks import (
  EpisodeSink,
  RecordSink,
  ReplaySink,
  StoreSink,
  WholeEpisodeSink,
)

__all__ = [
  "ClosedLoopEvaluation",
  "CollectByExport",
  "CollectThread",
  "Episode",
  "EpisodeSink",
  "Evaluation",
  "RecordSink",
  "ReplaySink",
  "StoreSink",
  "WholeEpisodeSink",
  "collect_episodes",
  "collect_eval_loop",
  "ends_in_success",
  "evaluate_policies",
  "evaluation_table",
  "is_last",
  "run_env",
  "run_meta_env",
  "run_robot",
]
