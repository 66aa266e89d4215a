// The list of models that the server has, and the one that is selected.

import { find, make } from "./elements.js";

export class ModelList {
  constructor(api) {
    this.api = api;
    this.select = find("model");
    this.select.addEventListener("focus", () => this.load()); // the list may change while the server runs
  }

  // "" while the list is not known: the server then takes its default model.
  get selected() {
    return this.select.value;
  }

  async load() {
    let names;
    try {
      names = (await this.api.getJson("v1/models")).data.map((model) => model.id);
    } catch {
      return; // the list stays as it is; the chat and the dashboard show what is wrong
    }
    const known = [...this.select.options].map((option) => option.value);
    if (names.join("\n") === known.join("\n")) return;
    const { selected } = this;
    this.select.replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
    if (names.includes(selected)) this.select.value = selected;
  }
}
