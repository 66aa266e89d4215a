// Numbers as texts.

export function formatMs(ms) {
  if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 1 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

export function formatRate(rate) {
  return rate >= 100 ? rate.toFixed(0) : rate.toFixed(1);
}

export function formatCount(count) {
  return Math.round(count).toLocaleString("en");
}

export function formatPercent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

// What an answer cost, as the server reports it: `usage` and `metrics` of the last events.
export function describeAnswer(usage, metrics) {
  const parts = [];
  if (metrics) {
    if (metrics.load_time_ms !== undefined) parts.push(`model loaded in ${formatMs(metrics.load_time_ms)}`);
    parts.push(`${formatRate(metrics.tokens_per_second)} tokens/s`);
    parts.push(`first token ${formatMs(metrics.time_to_first_token_ms)}`);
    if (metrics.queue_time_ms >= 1) parts.push(`queued ${formatMs(metrics.queue_time_ms)}`);
    if (metrics.mean_itl_ms !== null) parts.push(`${formatMs(metrics.mean_itl_ms)} per token`);
    if (metrics.draft_speedup !== undefined) parts.push(`${metrics.draft_speedup.toFixed(2)}× by drafts`);
  }
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${formatCount(usage.completion_tokens)} tokens`);
    parts.push(`prompt ${formatCount(usage.prompt_tokens)}, ${formatCount(cached)} cached`);
  }
  return parts.join(" · ");
}
