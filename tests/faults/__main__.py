"""`python -m tests.faults`: see fault_proof.py."""

import sys

from tests.faults.fault_proof import main

sys.exit(main())
