"""Demonstrations of a lunar lander, ready policies trained on them, and a picture."""
