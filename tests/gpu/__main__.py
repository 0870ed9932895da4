"""`python -m tests.gpu`: see gpu_report.py."""

import sys

from tests.gpu.gpu_report import main

sys.exit(main())
