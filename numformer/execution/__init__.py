"""Executors of training steps: in one process, in several, or in ranks on many machines."""
