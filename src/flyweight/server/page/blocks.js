// The K/V cache as a picture: a cell for each block, or for several where there are many.
// A block is free, cached (free, but its contents can be found), or held by one or more requests.

import { fillRows, find, make, setText } from "./elements.js";
import { formatCount } from "./figures.js";

const SIDES = [14, 11, 9, 7, 5, 4]; // pixels of a cell with its gap; the largest that fits is used
const HEIGHT = 224; // pixels at most
const COLOURS = 8; // of requests: --request-0 ... in theme.css
const ROWS = 12; // of the table
const COLUMNS = ["Request", "State", "Tokens", "Computed", "From cache", "Blocks"];
const [FREE, CACHED, SHARED] = [-1, -2, -3];

export class BlockPicture {
  #shown = null;

  constructor() {
    this.canvas = find("kv");
    const head = make("tr", {}, ...COLUMNS.map((text) => make("th", { scope: "col", textContent: text })));
    this.table = find("kv-requests");
    this.table.createTHead().append(head);
    this.body = this.table.createTBody();
    this.legend = new Legend(find("kv-legend"));
    this.canvas.addEventListener("mousemove", (event) => this.#describeCell(event));
    new ResizeObserver(() => this.#draw()).observe(this.canvas.parentElement);
    document.addEventListener("themechange", () => this.#draw());
  }

  // `kv` is the reply of /debug/kv.
  show(kv) {
    this.#shown = kv;
    this.owners = findOwners(kv);
    const used = kv.blocks - kv.free_blocks;
    const words = [
      `${formatCount(kv.blocks)} blocks of ${kv.block_size} tokens`, `${formatCount(used)} in use`,
      `${formatCount(kv.cached_blocks)} cached`, `${formatCount(kv.free_blocks - kv.cached_blocks)} free`,
    ];
    setText(find("kv-summary"), words.join(" · "));
    this.#draw();
    this.#fillTable(kv.sequences);
  }

  #fillTable(sequences) {
    this.table.hidden = sequences.length === 0;
    const rows = sequences.slice(0, ROWS).map((one) => [
      nameSequence(one), one.state, formatCount(one.tokens), formatCount(one.computed), formatCount(one.cached),
      formatCount(one.blocks.length),
    ]);
    if (sequences.length > ROWS) rows.push([`and ${sequences.length - ROWS} more`, "", "", "", "", ""]);
    fillRows(this.body, rows);
    [...this.body.rows].forEach((row, i) => {
      row.cells[0].className = i < ROWS ? `request request-${chooseColour(sequences[i].request)}` : "";
    });
  }

  #draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.#shown || !width) return;
    this.grid = makeGrid(this.#shown.blocks, width);
    const { side, columns, rows, cells, each } = this.grid;
    const scale = window.devicePixelRatio;
    this.canvas.width = columns * side * scale;
    this.canvas.height = rows * side * scale;
    this.canvas.style.width = `${columns * side}px`;
    const context = this.canvas.getContext("2d");
    const colours = readColours();
    context.scale(scale, scale);
    for (let cell = 0; cell < cells; cell++) {
      const [x, y] = [(cell % columns) * side, Math.floor(cell / columns) * side];
      const owner = mergeOwners(this.owners, cell * each, each);
      context.fillStyle = colours.get(owner);
      context.fillRect(x, y, side - 1, side - 1);
    }
    this.legend.show(each);
  }

  #describeCell(event) {
    if (!this.grid) return;
    const { side, columns, cells, each } = this.grid;
    const cell = Math.floor(event.offsetY / side) * columns + Math.floor(event.offsetX / side);
    if (cell >= cells) return;
    const block = cell * each;
    const held = this.#shown.sequences.filter((one) => one.blocks.some((b) => b >= block && b < block + each));
    const state = mergeOwners(this.owners, block, each) === CACHED ? "cached" : "free";
    const words = held.length ? held.map(nameSequence).join(", ") : state;
    this.canvas.title = `${each > 1 ? `blocks ${block} to ${block + each - 1}` : `block ${block}`}: ${words}`;
  }
}

class Legend {
  constructor(element) {
    this.note = make("span");
    const entries = [["free", "free"], ["cached", "cached"], ["request-0", "held by a request (a colour each)"], ["shared", "shared"]];
    for (const [name, text] of entries) element.append(make("span", { className: `key ${name}` }, text));
    element.append(this.note);
  }

  show(each) {
    setText(this.note, each > 1 ? `one cell is ${each} blocks` : "");
  }
}

// What each block is: FREE, CACHED, SHARED, or the colour of its request.
function findOwners(kv) {
  const owners = new Int8Array(kv.blocks).fill(FREE);
  for (const [first, count] of kv.cached_runs) owners.fill(CACHED, first, first + count);
  const requests = new Map();
  for (const { request, blocks } of kv.sequences) {
    for (const block of blocks) {
      const known = requests.get(block);
      owners[block] = known === undefined || known === request ? chooseColour(request) : SHARED;
      requests.set(block, known ?? request);
    }
  }
  return owners;
}

// A cell of several blocks shows a held one if there is any, then a cached one.
function mergeOwners(owners, first, count) {
  let found = FREE;
  for (const owner of owners.subarray(first, first + count)) {
    if (owner >= 0 || owner === SHARED) return owner;
    if (owner === CACHED) found = CACHED;
  }
  return found;
}

function makeGrid(blocks, width) {
  for (let each = 1; ; each *= 2) {
    const cells = Math.ceil(blocks / each);
    for (const side of SIDES) {
      const columns = Math.floor(width / side);
      const rows = Math.ceil(cells / columns);
      if (rows * side <= HEIGHT) return { side, columns, rows, cells, each };
    }
  }
}

function chooseColour(request) {
  return Number(/\d*$/.exec(request)[0]) % COLOURS;
}

function nameSequence({ request, choice }) {
  return choice ? `${request}, choice ${choice}` : request;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name);
  const requests = Array.from({ length: COLOURS }, (_, i) => [i, read(`--request-${i}`)]);
  return new Map([[FREE, read("--block-free")], [CACHED, read("--block-cached")], [SHARED, read("--block-shared")], ...requests]);
}
