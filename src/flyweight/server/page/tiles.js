// The figures at the top of the dashboard: now, or of the last minute where the caption has `1 min`; `in all` is since the
// server's start.  They are of all models together, but for the K/V blocks: each model has its own.

import { Chart } from "./chart.js";
import { find, make, setText } from "./elements.js";
import { formatCount, formatMs, formatPercent, formatRate } from "./figures.js";

const NONE = "–"; // nothing was measured
const RATE = 3; // seconds
const RECENT = 60; // seconds
const TTFT = "vllm:time_to_first_token_seconds";
const ITL = "vllm:inter_token_latency_seconds";

// Title, and from the history and the name of the model that is shown: the figure, its caption and the values of its chart.
const TILES = {
  Requests: (past) => ({
    figure: `${formatCount(past.value("vllm:num_requests_running"))} running`,
    caption: `${formatCount(past.value("vllm:num_requests_waiting"))} waiting`,
    values: past.values("vllm:num_requests_running"),
  }),
  "Generated tokens": (past) => {
    const rates = past.rates("vllm:generation_tokens_total", RATE);
    const prompts = past.rates("vllm:prompt_tokens_total", RATE).at(-1);
    return {
      figure: `${formatRate(rates.at(-1))} /s`,
      caption: `prompts ${formatRate(prompts)} /s · ${formatCount(past.value("vllm:generation_tokens_total"))} in all`,
      values: rates,
    };
  },
  "Time to first token": (past) => describeLatency(past, TTFT),
  "Time per token": (past) => describeLatency(past, ITL),
  "K/V blocks in use": (past, model) => {
    const evicted = `${formatCount(past.value("flyweight:evicted_blocks_total", model))} evicted in all`;
    return {
      figure: past.value("flyweight:engine_up", model) ? formatPercent(past.value("vllm:kv_cache_usage_perc", model)) : NONE,
      caption: past.models.length > 1 ? `of ${model} · ${evicted}` : evicted,
      values: past.values("vllm:kv_cache_usage_perc", model),
      most: 1,
    };
  },
  "Prefix cache hits": (past) => {
    const [hits, queries] = ["hits", "queries"].map((word) => `vllm:prefix_cache_${word}_total`);
    return {
      figure: describeShare(past.growth(hits, RECENT), past.growth(queries, RECENT)),
      caption: `1 min · ${describeShare(past.value(hits), past.value(queries))} in all`,
      values: past.rates(hits, RATE),
    };
  },
  Preemptions: (past) => ({
    figure: formatCount(past.growth("vllm:num_preemptions_total", RECENT)),
    caption: `1 min · ${formatCount(past.value("vllm:num_preemptions_total"))} in all`,
    values: past.rates("vllm:num_preemptions_total", RATE),
  }),
  "Drafts accepted": (past) => {
    const [accepted, proposed] = ["accepted", "draft"].map((word) => `vllm:spec_decode_num_${word}_tokens_total`);
    return {
      figure: describeShare(past.growth(accepted, RECENT), past.growth(proposed, RECENT)),
      caption: `1 min · ${formatCount(past.value(accepted))} of ${formatCount(past.value(proposed))} in all`,
      values: past.rates(accepted, RATE),
    };
  },
};

export class Tiles {
  constructor() {
    this.tiles = Object.entries(TILES).map(([title, describe]) => {
      const [figure, caption, chart] = [make("p", { className: "figure" }), make("p", { className: "caption" }), new Chart()];
      const tile = make("section", { className: "tile", "aria-label": title }, make("h2", { textContent: title }), figure);
      tile.append(caption, chart.element);
      find("tiles").append(tile);
      return { describe, figure, caption, chart };
    });
  }

  show(past, model) {
    for (const { describe, figure, caption, chart } of this.tiles) {
      const shown = describe(past, model);
      setText(figure, shown.figure);
      setText(caption, shown.caption);
      chart.draw(shown.values, shown.most);
    }
  }
}

function describeLatency(past, name) {
  const [half, most] = [0.5, 0.95].map((share) => past.quantile(name, share, RECENT));
  return {
    figure: half === null ? NONE : formatMs(1000 * half),
    caption: `median, 1 min · p95 ${most === null ? NONE : formatMs(1000 * most)}`,
    values: past.readings.map((one) => past.meanBefore(one, name, RATE)),
  };
}

function describeShare(part, whole) {
  return whole > 0 ? formatPercent(part / whole) : NONE;
}
