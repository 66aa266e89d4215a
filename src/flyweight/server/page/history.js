// The readings of the last minutes, and what changed between them.
// A reading has the time in seconds, the metrics and the counters of the effective configuration.

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

  value(name) {
    return read(this.last, name);
  }

  // How much a total has grown in the last seconds.
  growth(name, seconds) {
    return this.value(name) - read(this.before(seconds), name);
  }

  // A total's growth per second before each reading.
  rates(name, seconds) {
    return this.readings.map((one) => {
      const earlier = this.before(seconds, one);
      const elapsed = one.time - earlier.time;
      return elapsed > 0 ? (read(one, name) - read(earlier, name)) / elapsed : 0;
    });
  }

  values(name) {
    return this.readings.map((one) => read(one, name));
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

  // How much a feature's counter has grown in the last seconds.
  featureGrowth(feature, seconds) {
    return this.last.counters.get(feature) - (this.before(seconds).counters.get(feature) ?? 0);
  }
}

function read(reading, name) {
  return reading.metrics.sums.get(name) ?? 0;
}

// Totals that shrink are those of another process.
function hasRestarted(before, after) {
  const name = "http_requests_total";
  return read(after, name) < read(before, name);
}
