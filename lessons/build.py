"""The pages of the course: python -m lessons.build --out site"""

import sys

from lessons.kit.build import main
from toy_tasks.command_line import exit_code

if __name__ == "__main__":
    sys.exit(exit_code(main))
