// How long the server has been loading the model that an answer waits for.

const FIRST = 300; // milliseconds until the first look
const INTERVAL = 1000;

// Looks up the state of a model ("": the default) until it is loaded, and shows it as a text while the model loads, else "".
export class LoadWatch {
  #ended = false;

  constructor(api, model, show) {
    [this.api, this.model, this.show] = [api, model, show];
    this.timer = setTimeout(() => this.#look(), FIRST);
  }

  end() {
    this.#ended = true;
    clearTimeout(this.timer);
    this.show("");
  }

  async #look() {
    let loaded = false;
    try {
      const { data } = await this.api.getJson("v1/models");
      const found = data.find(({ id }) => id === this.model) ?? data[0];
      const text = found.state === "loading" ? `loading ${found.root}, ${Math.round(found.loading_seconds)} s` : "";
      loaded = found.state === "loaded"; // from now on the answer waits for other things
      if (!this.#ended) this.show(text);
    } catch {
      // The request for the answer reports what is wrong.
    }
    if (!this.#ended && !loaded) this.timer = setTimeout(() => this.#look(), INTERVAL);
  }
}
