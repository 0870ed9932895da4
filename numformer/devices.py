"""Choose the backend: NumPy, which computes on the host, or CuPy, which computes on a GPU."""

import os
import sys
from typing import Any

import numpy as np

from numformer.errors import InputError

# Each variable holds the number of an MPI rank on its machine, which also selects its GPU.
LOCAL_RANK_VARIABLES = "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"
BACKENDS = ("numpy", "cupy", "auto")


def find_backend(name: str) -> Any:
    """Return the array module for `name`: "numpy", "cupy", or "auto" (cupy if a GPU works).

    Raises InputError for "cupy" if no GPU works. `import cupy` succeeds even without a GPU or
    cuBLAS, which CuPy loads for the first product, so this function tries a product.
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
        for variable in {*LOCAL_RANK_VARIABLES} & {*os.environ}:
            cupy.cuda.Device(int(os.environ[variable])).use()
        ones = cupy.ones((2, 3), dtype=cupy.float32)
        if float((ones @ ones.T).sum()) != 12:
            raise RuntimeError("the GPU computes a wrong product")
        return cupy
    except Exception as problem:  # a broken driver or installation may raise any error
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
    """Return the default of --backend: the environment variable NUMFORMER_BACKEND, or numpy."""
    return os.environ.get("NUMFORMER_BACKEND", "numpy")
