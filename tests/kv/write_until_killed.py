"""Writes blocks to a store until it is killed: `python write_until_killed.py FILE`."""

import sys
from itertools import count
from pathlib import Path

from store_cases import opened, save

with opened(Path(sys.argv[1]), most=40, size=100_000) as store:
    for number in count():
        store.advance()
        save(store, number % 200)
        print(number, flush=True)
