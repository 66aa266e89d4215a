// Polls the server once a second while the dashboard is visible, and shows what it reports.
// A poll begins after the one before has ended.  Without an accepted key it stops until the dashboard is shown again.

import { ApiError } from "./api.js";
import { BlockPicture } from "./blocks.js";
import { ConfigurationTable } from "./configuration.js";
import { find, setText } from "./elements.js";
import { formatCount } from "./figures.js";
import { History } from "./history.js";
import { ModelTable } from "./loads.js";
import { parseMetrics } from "./metrics.js";
import { Tiles } from "./tiles.js";

const INTERVAL = 1000; // milliseconds
const NOT_LOADED = 409; // the status of facts about such a model

export class Dashboard {
  #visible = false;
  #polling = false;
  #past = new History();

  // `models` has the selected model: its blocks and configuration are shown.
  constructor(api, models) {
    [this.api, this.models] = [api, models];
    this.tiles = new Tiles();
    this.table = new ModelTable();
    this.picture = new BlockPicture();
    this.configuration = new ConfigurationTable();
  }

  setVisible(visible) {
    this.#visible = visible;
    if (visible && !this.#polling) this.#poll();
  }

  async #poll() {
    this.#polling = true;
    try {
      while (this.#visible) {
        const due = performance.now() + INTERVAL;
        if (!(await this.#update())) break;
        await new Promise((resolve) => setTimeout(resolve, due - performance.now()));
      }
    } finally {
      this.#polling = false;
    }
  }

  // Whether to go on.
  async #update() {
    try {
      await this.#read();
      this.#showTrouble("");
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#showTrouble(`No current figures: ${error.message}`);
      return error.status !== 401;
    }
  }

  async #read() {
    const { selected, measured } = this.models;
    const [text, facts] = await Promise.all([this.api.getText("metrics"), this.#readFacts(selected)]);
    const features = facts?.effective.features.map((one) => [one.feature, one.counter?.value ?? 0]);
    const counters = features ? new Map(features) : null;
    this.#past.add({ time: performance.now() / 1000, metrics: parseMetrics(text), model: selected, counters });
    const model = measured || this.#past.models[0];
    this.tiles.show(this.#past, model);
    this.table.show(this.#past, model);
    this.#showFacts(facts, selected || "The default model", model);
  }

  // The blocks and the configuration of a model; null while it is not loaded.
  async #readFacts(model) {
    const query = model ? `?${new URLSearchParams({ model })}` : "";
    try {
      const paths = [`debug/kv${query}`, `v1/engine/effective${query}`];
      const [kv, effective] = await Promise.all(paths.map((path) => this.api.getJson(path)));
      return { kv, effective };
    } catch (error) {
      if (error instanceof ApiError && error.status === NOT_LOADED) return null;
      throw error;
    }
  }

  // `name` is what requests call the model, `model` its name in metrics.
  #showFacts(facts, name, model) {
    find("unloaded").hidden = facts !== null;
    find("facts").hidden = facts === null;
    if (facts === null) {
      const seconds = this.#past.value("flyweight:model_loading_seconds", model);
      const state = seconds ? `is loading, ${formatCount(seconds)} s.` : "is not loaded. The next request to it loads it.";
      setText(find("unloaded"), `${name} ${state}`);
      return;
    }
    this.picture.show(facts.kv);
    this.configuration.show(facts.effective, this.#past);
  }

  #showTrouble(text) {
    const element = find("trouble");
    element.hidden = text === "";
    if (element.textContent !== text) element.textContent = text;
  }
}
