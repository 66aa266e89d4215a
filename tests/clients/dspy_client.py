"""DSPy over /v1, by way of litellm: `dspy_client.py URL MODEL KEY`."""

import os
import sys
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request for its list of prices

import dspy
from dspy.lm15 import (
    AccessPolicy,
    ModelSupport,
    OpenAIChatCompat,
    ProviderDefinition,
    register_provider,
)
from dspy.utils.exceptions import AdapterParseError

# DSPy sends a schema only to providers that it knows to keep to one.
FLYWEIGHT = AccessPolicy(
    "flyweight", env_keys=("FLYWEIGHT_API_KEY",), base_url="http://127.0.0.1:8000/v1"
)


class Look(dspy.Signature):
    """Look at the cat."""

    seen: str = dspy.InputField()
    asleep: bool = dspy.OutputField()
    legs: Literal[3, 4] = dspy.OutputField()


def main() -> None:
    url, model, key = sys.argv[1:]
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    given = {"api_base": f"{url}/v1", "api_key": key, "temperature": 0}
    chat = dspy.LM(f"openai/{model}", max_tokens=100, **given)
    (text,) = chat("A cat sat.")
    assert text and [text] == chat(messages=[{"role": "user", "content": "A cat sat."}])
    prompt = dspy.LM(f"text-completion-openai/{model}", model_type="text", max_tokens=12, **given)
    assert prompt("Once upon a time")[0]

    keeps = ProviderDefinition.chat(FLYWEIGHT, compat=OpenAIChatCompat(json_schema="send"))
    register_provider(keeps, supports=ModelSupport(response_schema=True))
    shaped = dspy.LM(f"flyweight/{model}", max_tokens=300, **given)
    with dspy.context(lm=shaped, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Look)(seen="A cat sat.")
        assert isinstance(found.asleep, bool) and found.legs in (3, 4)
    # Its own marks are text that a model has to write by itself; the story model does not.
    with dspy.context(lm=chat, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        try:
            dspy.Predict(Look)(seen="A cat sat.")
        except AdapterParseError as error:
            assert error.lm_response
    embed = dspy.Embedder(f"openai/{model}", batch_size=2, api_base=f"{url}/v1", api_key=key)
    assert embed(["A cat", "A dog", "A cow"]).shape[0] == 3


if __name__ == "__main__":
    main()
