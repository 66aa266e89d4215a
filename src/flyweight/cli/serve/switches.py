"""`--default-chat-template-kwargs`: variables of a chat template, as an object.

Invariant: what is returned could stand in a request.  Whether a model's template reads a switch is
not known here.
"""

from typing import Any

from flyweight.arguments.objects import parsed
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import shown

SWITCHES, LONGEST_NAME, LONGEST_TEXT = 32, 64, 4096  # what a request may have of them too


def switches(option: str, text: str) -> dict[str, Any]:
    """Variables of a chat template, as `chat_template_kwargs` of a request has them."""
    from flyweight.text.messages import OPTIONS, OWN  # Jinja is for chats alone

    given = parsed(option, text)
    if len(given) > SWITCHES:
        raise ConfigError(f"{option}: {len(given)} switches; allowed: up to {SWITCHES}")
    for name, value in given.items():
        if name in OWN or name in OPTIONS or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(
                f"{option}: {shown(name)} is not a switch of a template; allowed: names of its own "
                f"variables, as enable_thinking, of up to {LONGEST_NAME} characters"
            )
        plain = value is None or isinstance(value, bool | int | float | str)
        if not plain or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            raise ConfigError(
                f"{option}: {name} = {shown(value)} is not valid; allowed: true, false, null, a "
                f"number, or text of up to {LONGEST_TEXT} characters"
            )
    return given
