// Polls the server once a second while the dashboard is visible, and shows what it reports.
// A poll begins after the one before has ended.  Without an accepted key it stops until the dashboard is shown again.

import { ApiError } from "./api.js";
import { BlockPicture } from "./blocks.js";
import { ConfigurationTable } from "./configuration.js";
import { find } from "./elements.js";
import { History } from "./history.js";
import { parseMetrics } from "./metrics.js";
import { Tiles } from "./tiles.js";

const INTERVAL = 1000; // milliseconds

export class Dashboard {
  #visible = false;
  #polling = false;
  #past = new History();

  // `findModel()` is the name of the selected model: its blocks and configuration are shown.
  constructor(api, findModel) {
    [this.api, this.findModel] = [api, findModel];
    this.tiles = new Tiles();
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
    const model = this.findModel();
    const query = model ? `?${new URLSearchParams({ model })}` : "";
    const [text, kv, effective] = await Promise.all([
      this.api.getText("metrics"), this.api.getJson(`debug/kv${query}`), this.api.getJson(`v1/engine/effective${query}`),
    ]);
    const counters = new Map(effective.features.map((one) => [one.feature, one.counter?.value ?? 0]));
    this.#past.add({ time: performance.now() / 1000, metrics: parseMetrics(text), counters });
    this.tiles.show(this.#past);
    this.picture.show(kv);
    this.configuration.show(effective, this.#past);
  }

  #showTrouble(text) {
    const element = find("trouble");
    element.hidden = text === "";
    if (element.textContent !== text) element.textContent = text;
  }
}
