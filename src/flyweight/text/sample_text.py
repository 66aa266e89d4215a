"""A text for users who name none: the topics of Python's help texts, English with code, which every
installation of Python has.

Invariant: the parts for calibration and for evaluation share no topic.  It depends on the version
of Python, which is part of its name.
"""

import sys

from flyweight.errors import ConfigError

CALIBRATION, EVALUATION = 0, 1  # every other topic


def read_sample(part: int) -> tuple[str, str]:
    """A name and the text of one part, about 230,000 characters.  Raises `ConfigError` where this
    Python comes without its help.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError("is needed: this Python comes without pydoc_data", "text") from None
    names = sorted(topics)[part::2]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    word = ("calibration", "evaluation")[part]
    return f"help of Python {version}, {word} part", "\n".join(topics[name] for name in names)
