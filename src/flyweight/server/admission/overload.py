"""What is done to new requests while the queue fills, before they are refused: the steps of
--overload-steps.

Invariant: without steps nothing is changed; what was changed is in the reply.  A step is applied
when a request begins, never to one that runs.  Knows no API.
"""

from collections.abc import Sequence
from dataclasses import replace

from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.queue import AdmissionQueue
from flyweight.server.model_directory import ModelDirectory
from flyweight.server.model_entry import ModelEntry
from flyweight.server.overload_steps import OverloadStep, parse_overload_steps
from flyweight.server.served_model import ServedModel
from flyweight.server.settings import ServerSettings


class OverloadLadder:
    """The steps of one server."""

    def __init__(self, settings: ServerSettings, queue: AdmissionQueue) -> None:
        self.steps = parse_overload_steps(settings.overload_steps, settings.overload_percent)
        self.queue = queue

    def list_active(self) -> list[OverloadStep]:
        """The steps that apply now."""
        filled = self.queue.measure_fill()
        return [step for step in self.steps if filled >= step.share]

    def choose_model(
        self, directory: ModelDirectory, name: str | None
    ) -> tuple[ModelEntry, OverloadStep] | None:
        """The model that answers in place of the one that a request names, and the step that says
        so; None where the named one does.  Only a model that is loaded takes its place; requests
        for an adapter, or for that model, are not changed.
        """
        entry = directory.find(name)
        if name is not None and name not in (*entry.own, *entry.also):
            return None
        found: tuple[ModelEntry, OverloadStep] | None = None
        for step in self.list_active():
            other = directory.find(step.model) if step.kind == "model" else entry
            if other is not entry and other.model is not None and other.client.ready:
                found = other, step
        return found

    def change_prompts(
        self, model: ServedModel, prompts: Sequence[PreparedPrompt]
    ) -> tuple[list[PreparedPrompt], list[OverloadStep]]:
        """The prompts after the steps that apply now, and those of the steps that changed any."""
        found, done = list(prompts), list[OverloadStep]()
        for step in self.list_active():
            if step.kind == "max_tokens":
                changed = [shorten(one, step.tokens, model.max_model_len) for one in found]
            elif step.kind == "no_speculation" and model.client.facts.get("draft_tokens"):
                changed = [stop_drafts(one) for one in found]
            else:
                continue
            if any(new is not old for new, old in zip(changed, found, strict=True)):
                found = changed
                done.append(step)
        return found, done


def shorten(prompt: PreparedPrompt, tokens: int, context: int) -> PreparedPrompt:
    """A prompt whose answer has fewer tokens.  One that must have a format stays as it is: a part
    of it would be of no use.
    """
    params = prompt.params
    if prompt.pooling is not None or params.structured_outputs is not None:
        return prompt
    given = (prompt.beam or params).max_tokens
    room = max(1, context - len(prompt.tokens))
    most = max(tokens, params.min_tokens)
    if most >= (room if given is None else min(given, room)):
        return prompt
    if prompt.beam is not None:
        return replace(prompt, beam=replace(prompt.beam, max_tokens=most))
    return replace(prompt, params=replace(params, max_tokens=most))


def stop_drafts(prompt: PreparedPrompt) -> PreparedPrompt:
    """A prompt for which nothing is drafted."""
    usable = prompt.pooling is None and prompt.beam is None and prompt.lane.drafted
    return replace(prompt, lane=replace(prompt.lane, drafted=False)) if usable else prompt
