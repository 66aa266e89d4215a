"""`python -m flyweight.entrypoints.openai.api_server`: `flyweight serve` by the name of vLLM's
module, with the same words.
"""

import sys

from flyweight.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
