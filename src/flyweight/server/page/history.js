// The readings of the last minutes, and what changed between them.
// A reading has the time in seconds, the metrics, the model that is shown, and the counters of its effective configuration (null
// while it is not loaded).  Values are those of one model where one is given, otherwise the sums over all.

import { countBetween, findQuantile } from "./metrics.js";

const KEPT = 180; // seconds
const GAP = 10; // seconds without a reading after which older ones say nothing about now

export class History {
  readings = [];

  add(reading) {
    const last = this.readings.at(-1);
    if (last && (reading.time - last.time > GAP || hasRestarted(last, reading))) this.readings = [];
    this.readings.push(reading);
    while (reading.time - this.readings[0].time > KEPT) this.readings.shift();
  }

  get last() {
    return this.readings.at(-1);
  }

  // The newest reading that is at least so many seconds older than the last, otherwise the oldest.
  before(seconds, last = this.last) {
    const i = this.readings.findLastIndex((one) => last.time - one.time >= seconds - 0.5);
    return this.readings[Math.max(i, 0)];
  }

  // The names of the server's models; the first is the default.
  get models() {
    return [...(this.last.metrics.models.get("flyweight:model_loads_total")?.keys() ?? [])];
  }

  value(name, model = null) {
    return read(this.last, name, model);
  }

  // How much a total has grown in the last seconds.
  growth(name, seconds, model = null) {
    return this.value(name, model) - read(this.before(seconds), name, model);
  }

  // A total's growth per second before each reading.
  rates(name, seconds, model = null) {
    return this.readings.map((one) => this.#rate(one, name, seconds, model));
  }

  // The same before the last one.
  rate(name, seconds, model = null) {
    return this.#rate(this.last, name, seconds, model);
  }

  values(name, model = null) {
    return this.readings.map((one) => read(one, name, model));
  }

  // The mean of a histogram's observations in the seconds before a reading; 0 without any.
  meanBefore(reading, name, seconds) {
    const earlier = this.before(seconds, reading);
    const [sum, count] = ["sum", "count"].map((part) => read(reading, `${name}_${part}`) - read(earlier, `${name}_${part}`));
    return count > 0 ? sum / count : 0;
  }

  quantile(name, share, seconds) {
    return findQuantile(countBetween(this.before(seconds).metrics, this.last.metrics, name), share);
  }

  // How much a feature's counter of the model that is shown has grown in the last seconds.  Counters of different models are
  // not compared.
  featureGrowth(feature, seconds) {
    const { time, model, counters } = this.last;
    const earlier = this.readings.find(
      (one) => one.model === model && one.counters !== null && time - one.time <= seconds + 0.5,
    );
    return counters.get(feature) - (earlier.counters.get(feature) ?? 0);
  }

  #rate(reading, name, seconds, model) {
    const earlier = this.before(seconds, reading);
    const elapsed = reading.time - earlier.time;
    return elapsed > 0 ? (read(reading, name, model) - read(earlier, name, model)) / elapsed : 0;
  }
}

function read(reading, name, model = null) {
  const { sums, models } = reading.metrics;
  return (model === null ? sums.get(name) : models.get(name)?.get(model)) ?? 0;
}

// Totals that shrink are those of another process.
function hasRestarted(before, after) {
  const name = "http_requests_total";
  return read(after, name) < read(before, name);
}
