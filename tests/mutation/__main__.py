"""`python -m tests.mutation`: see mutation_proof.py."""

import sys

from tests.mutation.mutation_proof import main

sys.exit(main())
