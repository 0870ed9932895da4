"""Executors of training steps: one process, several on one machine, or ranks on many machines."""
