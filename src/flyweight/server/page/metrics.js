// Reads Prometheus' text format: sums over labels, sums of each model, and histograms.

const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LE = /(?:^|,)le="([^"]+)"/;
const MODEL = /(?:^|,)model_name="((?:[^"\\]|\\.)*)"/;

// Names to sums over all labels.  `models` has, by name, the sum of each model: shares of different models must not be added.
// `buckets` has, by name, pairs of a bound and the number of observations up to it.
export function parseMetrics(text) {
  const sums = new Map();
  const models = new Map();
  const buckets = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const [, name, labels = "", value] = found;
    const number = Number(value.replace("Inf", "Infinity"));
    const bound = name.endsWith("_bucket") ? LE.exec(labels) : null;
    if (bound) {
      addTo(buckets, name, bound[1], number);
      continue;
    }
    sums.set(name, (sums.get(name) ?? 0) + number);
    const model = MODEL.exec(labels);
    if (model) addTo(models, name, unescapeLabel(model[1]), number);
  }
  return { sums, models, buckets };
}

function addTo(tables, name, key, number) {
  const table = tables.get(name) ?? new Map();
  table.set(key, (table.get(key) ?? 0) + number);
  tables.set(name, table);
}

function unescapeLabel(text) {
  return text.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
}

// How many observations each bucket got between two readings, by its upper bound.
export function countBetween(before, after, name) {
  const old = before.buckets.get(`${name}_bucket`);
  let below = 0;
  return [...(after.buckets.get(`${name}_bucket`) ?? [])].map(([bound, total]) => {
    const upTo = total - (old?.get(bound) ?? 0);
    const count = upTo - below;
    below = upTo;
    return [bound === "+Inf" ? Infinity : Number(bound), count];
  });
}

// The value that a share of the observations is below, interpolated in its bucket as Prometheus does; null without any.
export function findQuantile(counts, share) {
  const total = counts.reduce((sum, [, count]) => sum + count, 0);
  if (total <= 0) return null;
  let [left, lower] = [share * total, 0];
  for (const [bound, count] of counts) {
    if (count > 0 && left <= count) return bound === Infinity ? lower : lower + ((bound - lower) * left) / count;
    left -= count;
    lower = bound;
  }
  return lower;
}
