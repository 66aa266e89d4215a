"""The server's limits on one request: choices, stop strings, log-probabilities, tokens.

Invariant: what a request may cost is checked before its prompts are tokenized, and again while they
are; a refusal names the option that sets the limit.  Knows no HTTP.
"""

from flyweight.errors import RequestError
from flyweight.params.tasks import BeamSearchParams
from flyweight.requests.preparing import Params
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.settings import ServerSettings
from flyweight.types import SamplingParams


def check_options(limits: ServerSettings, prompts: int, params: Params) -> None:
    """Raises `RequestError` for options that no request of so many prompts may have."""
    check_range("prompt", prompts, limits.max_prompts, "prompts")
    if isinstance(params, BeamSearchParams):
        check_range("n", params.beam_width, limits.max_choices, "beams of a prompt")
        check_range(
            "n", params.beam_width * prompts, limits.max_request_choices, "beams of all prompts"
        )
    if not isinstance(params, SamplingParams):
        return
    choices = max(params.n, params.best_of or 1)
    check_range("n", choices, limits.max_choices, "choices of a prompt")
    check_range("n", choices * prompts, limits.max_request_choices, "choices of all prompts")
    check_range("stop", len(params.stop), limits.max_stop_strings, "strings", least=0)
    longest = max((len(one.encode()) for one in params.stop), default=0)
    check_range("stop", longest, limits.max_stop_bytes, "bytes of a string", least=0)
    for name in ("logprobs", "prompt_logprobs"):
        check_range(name, getattr(params, name) or 0, limits.max_logprobs, "of a token", least=0)
    listed = len(params.logprob_token_ids)
    check_range("logprob_token_ids", listed, limits.max_logprobs, "ids", least=0)
    check_range("logit_bias", len(params.logit_bias), limits.max_logit_bias, "entries", least=0)


class RequestTotals:
    """What the prompts of one request, and their choices, may cost together.  Log-probabilities of
    a prompt are returned `copies` times.
    """

    def __init__(self, limits: ServerSettings, max_model_len: int, copies: int = 1) -> None:
        self.limits, self.max_model_len, self.copies = limits, max_model_len, copies
        self.tokens = self.prompt_scores = self.max_response_logprobs = 0

    def add(self, prompt: PreparedPrompt) -> None:
        """Raises `RequestError` where the sum exceeds a limit."""
        params = prompt.params
        length, answer = len(prompt.tokens), self._longest_answer(prompt)
        self.tokens += count_sequences(prompt) * (length + answer)
        most = self.limits.max_request_tokens
        check_range("max_tokens", self.tokens, most, "tokens of all prompts and choices", least=0)
        if params.prompt_logprobs is not None:
            self.prompt_scores += self.copies * length * (1 + params.prompt_logprobs)
            self._check_prompt_scores(params)
        if params.scored is not None:
            self.max_response_logprobs += count_sequences(prompt) * answer * (1 + params.scored)
            self._check_answer_scores(params)

    def _longest_answer(self, prompt: PreparedPrompt) -> int:
        """The most tokens of a choice."""
        most = (prompt.beam or prompt.params).max_tokens
        room = self.max_model_len - len(prompt.tokens)
        return room if most is None else min(room, most)

    def _check_prompt_scores(self, params: SamplingParams) -> None:
        found, most = self.prompt_scores, self.limits.max_response_prompt_logprobs
        if found <= most:
            return
        repeated = params.echo and params.logprobs == params.prompt_logprobs
        name = "logprobs" if repeated else "prompt_logprobs"
        raise RequestError(
            f"would return {found} log-probabilities of prompts (n x tokens of the prompts "
            f"x (1 + {name}))",
            name,
            value=params.prompt_logprobs,
            allowed=(
                f"0 to {most}, with fewer choices (n), shorter prompts or fewer "
                "alternatives (--max-response-prompt-logprobs)"
            ),
        )

    def _check_answer_scores(self, params: SamplingParams) -> None:
        """Log-probabilities are kept until an answer has ended, streamed or not."""
        found, most = self.max_response_logprobs, self.limits.max_response_logprobs
        if found <= most:
            return
        listed = bool(params.logprob_token_ids)
        name = "logprob_token_ids" if listed else "logprobs"
        value = f"of {params.scored} ids" if listed else f"= {params.scored}"
        raise RequestError(
            f"{value} may return {found} log-probabilities of answers (choices x "
            f"max_tokens x (1 + {params.scored}))",
            name,
            allowed=(
                f"0 to {most}, with fewer choices (n), a smaller max_tokens or fewer "
                "alternatives (--max-response-logprobs)"
            ),
        )


def count_sequences(prompt: PreparedPrompt) -> int:
    """The number of sequences that answer a prompt."""
    if prompt.pooling is not None:
        return 1
    if prompt.beam is not None:
        return prompt.beam.beam_width
    return max(prompt.params.n, prompt.params.best_of or 1)


def check_range(name: str, found: int, most: int, what: str, least: int = 1) -> None:
    if not least <= found <= most:
        raise RequestError(f": {found} {what}", name, allowed=f"{least} to {most}")
