// The form of sampling settings.  An empty field is not sent, so that the server's default applies; values are checked
// by the server, whose refusal names the field and its range.

import { find, make } from "./elements.js";

const NUMBERS = [
  ["temperature", "Temperature", "0 is greedy"],
  ["top_p", "Top p", "share of probability to keep"],
  ["top_k", "Top k", "tokens to keep"],
  ["min_p", "Min p", "relative to the most likely token"],
  ["repetition_penalty", "Repetition penalty", "1 is off"],
  ["presence_penalty", "Presence penalty", "0 is off"],
  ["frequency_penalty", "Frequency penalty", "0 is off"],
  ["max_tokens", "Max tokens", "of an answer"],
  ["seed", "Seed", "for the same answer again"],
];

export class Settings {
  constructor() {
    this.system = make("textarea", { id: "system", rows: 2, placeholder: "none" });
    const box = find("fields");
    box.append(make("label", { className: "wide" }, "System message ", this.system));
    this.inputs = new Map(NUMBERS.map(([name, label, hint]) => [name, addNumber(box, name, label, hint)]));
    const reset = make("button", { type: "button", textContent: "Use the server's defaults" });
    reset.addEventListener("click", () => this.clear());
    box.append(reset);
  }

  // The fields of a request.  Throws an error if one is not a number.
  read() {
    const fields = {};
    for (const [name, input] of this.inputs) {
      if (input.validity.badInput) throw new Error(`${name} is not a number`);
      if (input.value !== "") fields[name] = Number(input.value);
    }
    return fields;
  }

  readSystemMessages() {
    const content = this.system.value.trim();
    return content ? [{ role: "system", content }] : [];
  }

  clear() {
    this.system.value = "";
    for (const input of this.inputs.values()) input.value = "";
  }
}

function addNumber(box, name, label, hint) {
  const input = make("input", { type: "number", step: "any", placeholder: "default", name });
  box.append(make("label", { title: hint }, `${label} `, input));
  return input;
}
