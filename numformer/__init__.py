"""The Transformer of "Attention Is All You Need", forward and backward by hand.

Letters that shapes are written in: B batch, S source length, T target length, D d_model,
H heads, K d_k (and d_v where it is the same), F d_ff, V vocabulary. A gradient is `d` and the
name: `dx`.
"""
