"""Who computes a training step: this process, several of this machine, or ranks of many."""
