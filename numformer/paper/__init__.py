"""The paper "Attention Is All You Need" in its own order, and nothing later."""
