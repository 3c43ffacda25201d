/** From Prometheus text to percentiles over time. Pure: the clock is an argument. */

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/**
 * Counters, gauges and histograms of an exposition; series that differ only in other labels are summed.
 * @param {string} text Prometheus text format 0.0.4.
 * @returns {{values: Map<string, number>, buckets: Map<string, Map<number, number>>}} `buckets`: for each histogram,
 *   the number of observations at or below each upper bound.
 */
export function parse(text) {
  const values = new Map();
  const buckets = new Map();
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    const [, name, labels = "", value] = found;
    if (name.endsWith("_bucket")) {
      const le = Object.fromEntries([...labels.matchAll(LABEL)].map(([, key, text]) => [key, text])).le;
      const family = name.slice(0, -"_bucket".length);
      if (!buckets.has(family)) buckets.set(family, new Map());
      const bound = le === "+Inf" ? Infinity : Number(le);
      buckets.get(family).set(bound, (buckets.get(family).get(bound) ?? 0) + Number(value));
    } else {
      values.set(name, (values.get(name) ?? 0) + Number(value));
    }
  }
  return {values, buckets};
}

/**
 * The quantile of the observations between two snapshots of a histogram, interpolated within its bucket.
 * @param {Map<number, number>|undefined} before
 * @param {Map<number, number>|undefined} now
 * @param {number} q 0 to 1
 * @returns {number|null} null if there were no observations; the last finite bound if it is above that.
 */
export function quantile(before, now, q) {
  if (!now) return null;
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const upTo = bound => now.get(bound) - (before?.get(bound) ?? 0);
  const total = upTo(Infinity);
  if (!(total > 0)) return null;
  const rank = q * total;
  let lower = 0;
  let below = 0;
  for (const bound of bounds) {
    const count = upTo(bound);
    if (count >= rank && count > below) {
      return bound === Infinity ? lower : lower + (bound - lower) * (rank - below) / (count - below);
    }
    if (bound !== Infinity) lower = bound;
    below = count;
  }
  return lower;
}

const FINE_S = 600; // all snapshots are kept for this long
const COARSE_S = 10; // least distance of older ones

/**
 * The server's memory of the last hour as snapshots, oldest first.
 * @param {{bounds: Object<string, number[]>, steps: {ageS: number, values: object, buckets: Object<string, number[]>}[]}} figures
 *   the answer of `GET /v1/figures`.
 * @param {number} now seconds on the clock of the snapshots.
 */
export function remembered({bounds, steps}, now) {
  return steps.map(({ageS, values, buckets}) => ({
    at: now - ageS,
    values: new Map(Object.entries(values)),
    buckets: new Map(Object.entries(buckets).map(([family, counts]) => [family, new Map([...bounds[family], Infinity].map((bound, index) => [bound, counts[index]]))])),
  }));
}

/** Snapshots of the last hour. */
export class History {
  /** @param {number} spanS length of the history in seconds. */
  constructor(spanS = 3600) {
    this.spanS = spanS;
    /** @type {{at: number, values: Map<string, number>, buckets: Map<string, Map<number, number>>}[]} */
    this.snapshots = [];
  }

  /**
   * @param {number} at seconds on any steady clock.
   * @param {ReturnType<typeof parse>} figures
   */
  add(at, figures) {
    this.snapshots.push({at, ...figures});
    while (this.snapshots[0].at < at - this.spanS) this.snapshots.shift();
    const fine = this.snapshots.findIndex(({at: one}) => one > at - FINE_S);
    if (fine >= 2 && this.snapshots[fine - 1].at - this.snapshots[fine - 2].at < COARSE_S) this.snapshots.splice(fine - 1, 1);
  }

  /** The snapshot that is `windowS` older than number `index`; the oldest one if none is that old. */
  #before(index, windowS) {
    let earlier = index;
    while (earlier > 0 && this.snapshots[index].at - this.snapshots[earlier].at < windowS) earlier--;
    return earlier === index ? null : this.snapshots[earlier];
  }

  /**
   * A quantile over a sliding window, for each snapshot.
   * @returns {{at: number, value: number|null}[]}
   */
  quantiles(family, q, windowS) {
    return this.#map((snapshot, before) => quantile(before.buckets.get(family), snapshot.buckets.get(family), q), windowS);
  }

  /** A histogram's mean over a sliding window. */
  means(family, windowS) {
    return this.#map((snapshot, before) => {
      const of = (name, {values}) => values.get(`${family}_${name}`) ?? 0;
      const count = of("count", snapshot) - of("count", before);
      return count > 0 ? (of("sum", snapshot) - of("sum", before)) / count : null;
    }, windowS);
  }

  /** The growth of a counter per minute, over a sliding window. */
  rates(name, windowS) {
    return this.#map((snapshot, before) => {
      const grown = (snapshot.values.get(name) ?? 0) - (before.values.get(name) ?? 0);
      return Math.max(0, grown) / (snapshot.at - before.at) * 60;
    }, windowS);
  }

  /** The values of a gauge; 0 before the first one. */
  gauge(name) {
    return this.snapshots.map(({at, values}) => ({at, value: values.get(name) ?? 0}));
  }

  #map(work, windowS) {
    return this.snapshots.map((snapshot, index) => {
      const before = this.#before(index, windowS);
      return {at: snapshot.at, value: before && work(snapshot, before)};
    });
  }
}
