"""Mutants that compute what the library computes, each with the proof: no test can notice them."""

EQUIVALENT: dict[str, str] = {}
