// The effective configuration as a table: each technique, what is in effect and why, what it has done, and whether it is
// doing something now.

import { fillRows, find, make, setText } from "./elements.js";
import { formatCount } from "./figures.js";

const RECENT = 10; // seconds
const COLUMNS = ["Feature", "In effect", "Effect", "Why", "Requested"];

export class ConfigurationTable {
  constructor() {
    const table = find("techniques");
    const head = make("tr", {}, ...COLUMNS.map((text) => make("th", { scope: "col", textContent: text })));
    table.createTHead().append(head);
    this.body = table.createTBody();
  }

  // `effective` is the reply of /v1/engine/effective.
  show(effective, past) {
    const { model, requests, sequences } = effective;
    const words = [
      `${model.family}, ${formatCount(model.parameters)} parameters`, model.method || model.quantisation,
      `context ${formatCount(model.max_model_len)}`, `${formatCount(requests.begun)} requests`,
      `${formatCount(sequences.finished)} sequences finished, ${formatCount(sequences.aborted)} aborted`,
    ];
    setText(find("configuration-summary"), words.join(" · "));
    this.#showWarnings(effective.warnings);
    const growths = effective.features.map((one) => (one.counter ? past.featureGrowth(one.feature, RECENT) : 0));
    fillRows(this.body, effective.features.map((one, i) => describeFeature(one, growths[i], effective.speculation)));
    effective.features.forEach((one, i) => {
      this.body.rows[i].classList.toggle("active", growths[i] > 0);
      this.body.rows[i].classList.toggle("off", one.effective === "off");
    });
  }

  #showWarnings(warnings) {
    const list = find("warnings");
    const shown = [...list.children].map((item) => item.textContent);
    if (warnings.join("\n") !== shown.join("\n")) {
      list.replaceChildren(...warnings.map((text) => make("li", { textContent: text })));
    }
  }
}

function describeFeature(one, growth, speculation) {
  const effect = one.counter && one.effective !== "off" ? describeEffect(one, growth, speculation) : "";
  return [one.feature, one.effective, effect, one.reason, one.requested];
}

function describeEffect({ feature, counter }, growth, speculation) {
  const now = growth > 0 ? `active: +${formatCount(growth)} in ${RECENT} s` : "idle";
  if (feature !== "speculation" || !speculation.draft_tokens) {
    return `${now}\n${formatCount(counter.value)} ${counter.counts}`;
  }
  const { accepted_tokens: accepted, draft_tokens: proposed, speedup } = speculation;
  const speed = speedup === null ? "" : `; decoding ${speedup.toFixed(2)}× as fast`;
  return `${now}\n${formatCount(accepted)} of ${formatCount(proposed)} ${counter.counts}${speed}`;
}
