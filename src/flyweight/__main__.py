"""`python -m flyweight`: the command `flyweight`, where it is not on the path.

Invariant: the same words do the same.
"""

import sys

from flyweight.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
