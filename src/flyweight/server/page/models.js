// The list of models that the server has, and the one that is selected.

import { find, make } from "./elements.js";

export class ModelList {
  #roots = new Map(); // the models' names in metrics, by the names that requests use

  constructor(api) {
    this.api = api;
    this.select = find("model");
    this.select.addEventListener("focus", () => this.load()); // the list may change while the server runs
  }

  // "" while the list is not known: the server then takes its default model.
  get selected() {
    return this.select.value;
  }

  // The name of the selected model in metrics: an adapter's is that of its base model.
  get measured() {
    return this.#roots.get(this.selected) ?? this.selected;
  }

  async load() {
    let models;
    try {
      models = (await this.api.getJson("v1/models")).data;
    } catch {
      return; // the list stays as it is; the chat and the dashboard show what is wrong
    }
    this.#roots = new Map(models.map(({ id, root }) => [id, root]));
    const described = models.map((model) => (model.state === "loaded" ? model.id : `${model.id} (${model.state})`));
    const known = [...this.select.options].map((option) => option.textContent);
    if (described.join("\n") === known.join("\n")) return;
    const { selected } = this;
    const options = models.map((model, i) => make("option", { value: model.id, textContent: described[i] }));
    this.select.replaceChildren(...options);
    if (models.some((model) => model.id === selected)) this.select.value = selected;
  }
}
