"""Training needs torch (the extra `train`); without it those tests are not collected."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_head_training.py"]
