// What each of several models does now, as a table; it is hidden where there is only one.

import { fillRows, find, make } from "./elements.js";
import { formatCount, formatPercent, formatRate } from "./figures.js";

const RATE = 3; // seconds
const COLUMNS = ["Model", "State", "Running", "Waiting", "K/V in use", "Tokens/s", "Loaded"];

export class ModelTable {
  constructor() {
    const table = find("models");
    const head = make("tr", {}, ...COLUMNS.map((text) => make("th", { scope: "col", textContent: text })));
    table.createTHead().append(head);
    this.body = table.createTBody();
  }

  // `model` is the one whose blocks and configuration are shown.
  show(past, model) {
    const names = past.models;
    find("models-panel").hidden = names.length < 2;
    fillRows(this.body, names.map((name) => describeModel(past, name)));
    names.forEach((name, i) => this.body.rows[i].classList.toggle("shown", name === model));
  }
}

function describeModel(past, name) {
  const value = (metric) => past.value(metric, name);
  const loads = value("flyweight:model_loads_total");
  const often = `${formatCount(loads)} ${loads === 1 ? "time" : "times"}`;
  if (!value("flyweight:engine_up")) {
    const seconds = value("flyweight:model_loading_seconds");
    return [name, seconds ? `loading, ${formatCount(seconds)} s` : "not loaded", "", "", "", "", often];
  }
  return [
    name, "loaded", formatCount(value("vllm:num_requests_running")), formatCount(value("vllm:num_requests_waiting")),
    formatPercent(value("vllm:kv_cache_usage_perc")), formatRate(past.rate("vllm:generation_tokens_total", RATE, name)), often,
  ];
}
