"""The model of a batch as its requests see it: an `LLM` under the limits and defaults of a server.

Invariant: nothing here computes; what is refused is what `flyweight serve` refuses.
"""

from flyweight.llm import LLM
from flyweight.requests.preparing import RequestChecks, RequestPreparer, list_special_tokens
from flyweight.sampling.grammar import TrialCompiler
from flyweight.server.lifecycle.loading import choose_names, set_template
from flyweight.server.observability.log import ServerLog
from flyweight.server.request_model import RequestModel
from flyweight.server.settings import ServerSettings


def make_request_model(llm: LLM, server: ServerSettings) -> RequestModel:
    """Raises `ConfigError` where the settings contradict the model."""
    spec, limits, settings = llm.loaded.spec, llm.loaded.limits, llm.settings
    tokenizer = set_template(llm.tokenizer, server.chat_template)
    checks = RequestChecks(
        spec.vocab, limits.max_model_len, limits.scored, llm.loaded.stop_ids,
        tuple(settings.adapters), settings.max_logprobs,
    )  # fmt: skip
    judge = TrialCompiler(lambda: list_special_tokens(tokenizer))
    preparer = RequestPreparer(
        tokenizer, checks, settings.seed, judge, reasoning=server.reasoning_parser
    )
    found = {**llm.read_generation_defaults(), **server.sampling_defaults}
    defaults = {name: value for name, value in found.items() if value is not None}
    names, aliases = choose_names(settings.model, server.served_model_name, settings.adapters)
    return RequestModel(server, preparer, defaults, names, aliases, ServerLog())
