// A small line of recent values.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [160, 32];
const [FEWEST, MOST] = [30, 120]; // points of the whole width

export class Chart {
  constructor() {
    this.element = document.createElementNS(SVG, "svg");
    for (const [name, value] of [["viewBox", `0 0 ${WIDTH} ${HEIGHT}`], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) {
      this.element.setAttribute(name, value);
    }
    this.area = this.#add("area");
    this.line = this.#add("line");
  }

  // The newest value is at the right edge; `most` is the top, at least the largest value.
  draw(values, most = 0) {
    const shown = values.slice(-MOST);
    const width = Math.max(shown.length, FEWEST);
    const top = Math.max(most, ...shown) || 1;
    const x = (i) => (WIDTH * (width - shown.length + i)) / (width - 1);
    const points = shown.map((value, i) => `${x(i).toFixed(1)} ${(HEIGHT - 1 - (HEIGHT - 2) * (value / top)).toFixed(1)}`);
    if (points.length === 1) points.unshift(`0 ${points[0].split(" ")[1]}`);
    const path = `M${points.join("L")}`;
    this.line.setAttribute("d", path);
    this.area.setAttribute("d", `${path}L${x(shown.length - 1)} ${HEIGHT}L${x(0)} ${HEIGHT}Z`);
  }

  #add(name) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    path.setAttribute("vector-effect", "non-scaling-stroke");
    this.element.append(path);
    return path;
  }
}
