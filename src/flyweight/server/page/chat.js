// The conversation: sends it, streams the answer, stops and regenerates.
// It is kept in this object only.  At most one answer is being generated.

import { find } from "./elements.js";
import { describeAnswer } from "./figures.js";
import { AssistantMessage, UserMessage } from "./message.js";
import { readEvents } from "./stream.js";
import { LoadWatch } from "./wait.js";

const ENDS = {
  length: "The answer reached the maximum number of tokens.",
  repetition: "The answer repeated itself and was ended.",
};

export class Chat {
  #turns = []; // messages as the API has them
  #views = []; // one per message
  #running = null; // the AbortController of the answer being generated
  #again = null; // the button below the last answer

  constructor(api, settings, getModel) {
    [this.api, this.settings, this.getModel] = [api, settings, getModel];
    this.list = find("messages");
    this.prompt = find("prompt");
    this.#listen();
  }

  get isRunning() {
    return this.#running !== null;
  }

  stop() {
    this.#running?.abort();
  }

  #listen() {
    find("compose").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    find("stop").addEventListener("click", () => this.stop());
    find("clear").addEventListener("click", () => this.#clear());
    // Follows the text unless the user has scrolled up.
    let follows = true;
    this.list.addEventListener("scroll", () => {
      follows = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    });
    this.list.addEventListener("drawn", () => {
      if (follows) this.list.scrollTop = this.list.scrollHeight;
    });
  }

  #send() {
    const content = this.prompt.value.trim();
    if (!content || this.isRunning) return;
    this.prompt.value = "";
    this.#add({ role: "user", content }, new UserMessage(content));
    this.list.scrollTop = this.list.scrollHeight;
    this.#answer();
  }

  #regenerate() {
    if (this.isRunning) return;
    this.#remove();
    this.#answer();
    this.prompt.focus();
  }

  #clear() {
    this.stop();
    while (this.#turns.length) this.#remove();
    this.#showEmpty();
    this.prompt.focus();
  }

  #add(turn, view) {
    this.#turns.push(turn);
    this.#views.push(view);
    this.list.append(view.element);
    this.#showEmpty();
  }

  #remove() {
    this.#turns.pop();
    this.#views.pop().element.remove();
  }

  #showEmpty() {
    find("empty").hidden = this.#turns.length > 0;
  }

  async #answer() {
    const model = this.getModel();
    const turn = { role: "assistant", content: "" };
    const view = new AssistantMessage(model || "the default model");
    const messages = [...this.settings.readSystemMessages(), ...listMessages(this.#turns)];
    this.#add(turn, view);
    this.#again?.remove();
    this.#running = new AbortController();
    this.#showRunning();
    try {
      await this.#stream(model, messages, turn, view, this.#running.signal);
    } catch (error) {
      if (error.name === "AbortError") view.showNote("Stopped.", false);
      else view.showNote(error.message, true);
    }
    this.#running = null;
    this.#showRunning();
    this.#again = view.addButton("Regenerate", () => this.#regenerate());
    view.end();
  }

  async #stream(model, messages, turn, view, signal) {
    const streaming = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    const body = { ...(model ? { model } : {}), messages, ...this.settings.read(), ...streaming };
    const watch = new LoadWatch(this.api, model, (text) => view.showWait(text));
    const response = await this.api.post("v1/chat/completions", body, signal).finally(() => watch.end());
    let reasoning = "";
    for await (const { choices, usage, metrics } of readEvents(response)) {
      for (const { delta, finish_reason: reason } of choices) {
        turn.content += delta.content ?? "";
        reasoning += delta.reasoning ?? "";
        if (ENDS[reason]) view.showNote(ENDS[reason], false);
      }
      view.show(turn.content, reasoning);
      view.showFigures(describeAnswer(usage, metrics));
    }
  }

  #showRunning() {
    find("stop").hidden = !this.isRunning;
    find("send").hidden = this.isRunning;
  }
}

// The turns as they are sent.  An answer without text is left out, and the messages around it become one, as some
// templates refuse two of a user's in a row.
function listMessages(turns) {
  const messages = [];
  for (const { role, content } of turns.filter((one) => one.content)) {
    const last = messages.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return messages;
}
