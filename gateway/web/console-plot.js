/** A small plot over time: axes with units, a line per series, a dashed goal, values under the pointer. Plain SVG. */

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 100;
const MARGIN = {left: 40, right: 10, top: 8, bottom: 18};
const GAP_S = 25; // points further apart are not connected

/** Make an element of SVG. */
function make(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

/** The next round number: 1, 2 or 5 times a power of ten. */
export function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * power).find(step => step >= value * 0.9999);
}

/** A number for display: two digits, or a whole number. */
export function readable(value) {
  if (value === null || value === undefined) return "–";
  return value >= 10 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}

/** One plot in a `<figure>`. */
export class Plot {
  #points = [];
  #now = 0;
  #spanS = 3600;
  #scale = null;

  /**
   * @param {{title: string, unit: string, series: string[], optional?: string[], goal?: number, least: number,
   *   note?: string}} options `least`: the axis ends there or above it; `goal`: drawn as a dashed line; `optional`:
   *   series that are not mentioned while they have no points; `note`: what exactly is shown.
   */
  constructor({title, unit, series, optional = [], goal, least, note = ""}) {
    Object.assign(this, {title, unit, series, optional: new Set(optional), goal, least});
    this.element = document.createElement("figure");
    this.element.className = "card plot";
    this.element.title = note;
    const caption = document.createElement("figcaption");
    const name = document.createElement("h3");
    name.append(title);
    const unitText = document.createElement("span");
    unitText.className = "unit";
    unitText.textContent = unit;
    name.append(" ", unitText);
    this.legend = document.createElement("p");
    this.legend.className = "legend figure";
    caption.append(name, this.legend);
    this.svg = make("svg", {role: "img", height: HEIGHT});
    this.element.append(caption, this.svg);
    // In the next frame: drawing writes the legend, which may change the height that is being reported.
    new ResizeObserver(() => requestAnimationFrame(() => this.#draw())).observe(this.element);
    this.svg.addEventListener("pointermove", event => this.#read(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.#read(null));
  }

  /**
   * Show these points.
   * @param {{at: number, value: number|null}[][]} points of each series, oldest first.
   * @param {number} now right end of the axis, seconds on the points' clock.
   * @param {number} spanS width of the axis.
   */
  show(points, now, spanS) {
    this.#points = points;
    this.#now = now;
    this.#spanS = spanS;
    this.#draw();
  }

  #draw() {
    const width = this.svg.clientWidth;
    if (!width) return;
    const values = this.#points.flat().map(point => point.value).filter(value => value !== null);
    const top = round(Math.max(this.least, ...values));
    const {left, right, bottom} = MARGIN;
    const x = at => left + (width - left - right) * (1 - (this.#now - at) / this.#spanS);
    const y = value => HEIGHT - bottom - (HEIGHT - MARGIN.top - bottom) * value / top;
    this.#scale = {x, y, width};
    const parts = [];
    for (const value of [0, top / 2, top]) {
      parts.push(make("line", {class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value)}));
      parts.push(make("text", {x: left - 6, y: y(value) + 3.5, "text-anchor": "end"}, readable(value)));
    }
    for (const [ago, anchor] of [[this.#spanS, "start"], [this.#spanS / 2, "middle"], [0, "end"]]) {
      const text = ago === 0 ? "now" : this.#spanS <= 120 ? `−${ago} s` : `−${ago / 60} min`;
      parts.push(make("text", {x: x(this.#now - ago), y: HEIGHT - 4, "text-anchor": anchor}, text));
    }
    if (this.goal && this.goal <= top) {
      parts.push(make("line", {class: "goal", x1: left, x2: width - right, y1: y(this.goal), y2: y(this.goal)}));
    }
    this.#points.forEach((points, index) => parts.push(...this.#line(points, index)));
    parts.push(make("line", {class: "cursor", y1: MARGIN.top, y2: HEIGHT - bottom, visibility: "hidden"}));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...parts);
    this.#read(null);
  }

  #line(points, index) {
    const {x, y} = this.#scale;
    let path = "";
    let last = null;
    for (const {at, value} of points) {
      if (value === null || at < this.#now - this.#spanS) continue;
      path += `${last !== null && at - last < GAP_S ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      last = at;
    }
    if (!path) return [];
    // A single point has no length: the round cap shows it.
    return [make("path", {class: `line series-${index}`, d: path.replace(/(M[^ML]+)(?=M|$)/g, "$1h0.01")})];
  }

  /** Show the values at a position, or the newest ones (null). */
  #read(offset) {
    const cursor = this.svg.querySelector(".cursor");
    let at = Infinity;
    if (offset !== null && cursor) {
      const {left, right} = MARGIN;
      at = this.#now - this.#spanS * (1 - (offset - left) / (this.#scale.width - left - right));
      cursor.setAttribute("x1", offset);
      cursor.setAttribute("x2", offset);
    }
    cursor?.setAttribute("visibility", offset === null ? "hidden" : "visible");
    const told = this.series.map((name, index) => {
      const value = this.#points[index]?.findLast(point => point.value !== null && point.at <= at && this.#now - point.at < this.#spanS)?.value;
      return {name, text: readable(value ?? null)};
    });
    this.legend.replaceChildren(...told.map(({name, text}, index) => {
      if (text === "–" && this.optional.has(name)) return "";
      const entry = document.createElement("span");
      entry.className = `key series-${index}`;
      const strong = document.createElement("b");
      strong.textContent = text;
      entry.append(name, " ", strong);
      return entry;
    }));
    if (offset === null) {
      const words = told.filter(({name, text}) => text !== "–" || !this.optional.has(name)).map(({name, text}) => `${name} ${text === "–" ? "none yet" : `${text} ${this.unit}`.trim()}`);
      this.svg.setAttribute("aria-label", `${this.title}: ${words.join(", ")}`);
    }
  }
}
