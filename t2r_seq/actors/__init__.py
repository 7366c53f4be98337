"""Collect and evaluate loops over Gymnasium environments."""

from t2r_seq.actors.collect import (
  CollectByExport,
  CollectThread,
  collect_episodes,
  collect_eval_loop,
)
from t2r_seq.actors.evaluation import ClosedLoopEvaluation, evaluate_policies
from t2r_seq.actors.robot import Safety, run_robot
from t2r_seq.actors.running import run_env, run_meta_env
from t2r_seq.actors.sinks import RecordSink, ReplaySink, StoreSink

__all__ = [
  "ClosedLoopEvaluation",
  "CollectByExport",
  "CollectThread",
  "RecordSink",
  "ReplaySink",
  "Safety",
  "StoreSink",
  "collect_episodes",
  "collect_eval_loop",
  "evaluate_policies",
  "run_env",
  "run_meta_env",
  "run_robot",
]
