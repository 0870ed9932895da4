"""Where arrays live: NumPy's on the host, or CuPy's where a GPU answers."""

import os
import sys
from typing import Any

import numpy as np

from numformer.errors import InputError

# A rank of MPI's number on its machine and of its GPU.
RANK_HERE = "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"
BACKENDS = ("numpy", "cupy", "auto")


def find_backend(name: str) -> Any:
    """The array module for `name`: "numpy", "cupy", or "auto" (cupy where a GPU answers).

    Raises InputError where "cupy" is asked for and no GPU can be used. `import cupy` succeeds
    without a GPU and without cuBLAS, which the first product loads: so a product is the test.
    """
    if name not in BACKENDS:
        raise InputError(
            f"the backend is one of {', '.join(BACKENDS)}",
            repr(name),
            "Set --backend (or NUMFORMER_BACKEND) to one of them.",
        )
    if name == "numpy":
        return np
    try:
        import cupy

        if not cupy.cuda.is_available():
            raise RuntimeError("CuPy finds no CUDA device")
        for name in {*RANK_HERE} & {*os.environ}:
            cupy.cuda.Device(int(os.environ[name])).use()
        ones = cupy.ones((2, 3), dtype=cupy.float32)
        if float((ones @ ones.T).sum()) != 12:
            raise RuntimeError("the GPU computes a wrong product")
        return cupy
    except Exception as problem:  # whatever breaks in a driver or an installation means: no GPU
        reason = f"{type(problem).__name__}: {problem}"
        if name == "auto":
            print(f"backend auto: using numpy ({reason})", file=sys.stderr)
            return np
        raise InputError(
            "backend cupy needs CuPy and an NVIDIA GPU",
            reason,
            "Install numformer[cuda12] or numformer[cuda13], or use --backend numpy.",
        ) from None


def default_backend() -> str:
    """The backend that scripts use unless told otherwise: NUMFORMER_BACKEND, or numpy."""
    return os.environ.get("NUMFORMER_BACKEND", "numpy")
