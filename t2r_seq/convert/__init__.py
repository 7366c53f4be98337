"""Conversions between the formats that robot data comes in."""

from t2r_seq.convert.conversion import convert, verify_conversion
from t2r_seq.formats.lerobot_folder import LeRobotFolder, delta_time_offsets

__all__ = ["LeRobotFolder", "convert", "delta_time_offsets", "verify_conversion"]
