// Markdown to elements: blocks (code, headings, lists, quotes, tables, paragraphs).
// Text comes from a model and may be hostile.  It only becomes text nodes; elements are of a fixed set, images are never
// loaded, and the time is linear in the text (nesting is bounded).

import { make } from "./elements.js";
import { appendInline } from "./inline.js";

const FENCE = /^\s*(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_LINE = /^[\s|:-]+$/;
const MAX_DEPTH = 6;

// A text that grows: blocks that did not change keep their elements.
export class MarkdownView {
  #sources = [];

  constructor(element) {
    this.element = element;
  }

  update(text) {
    const sources = splitBlocks(text);
    const { children } = this.element;
    sources.forEach((source, i) => {
      if (source === this.#sources[i]) return;
      const block = make("div", { className: "block" }, ...renderBlock(source));
      if (children[i]) children[i].replaceWith(block);
      else this.element.append(block);
    });
    while (children.length > sources.length) this.element.lastChild.remove();
    this.#sources = sources;
  }
}

// Parts that blank lines or fences separate.  A fence that is not closed is a block up to the end.
function splitBlocks(text) {
  const blocks = [];
  let lines = [];
  let fence = "";
  const end = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
    fence = "";
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1] ?? "";
    if (fence) {
      lines.push(line);
      if (mark.startsWith(fence) && line.trim() === mark) end();
    } else if (mark) {
      end();
      fence = mark;
      lines.push(line);
    } else if (line.trim() === "") end();
    else lines.push(line);
  }
  end();
  return blocks;
}

function renderBlock(source) {
  const lines = source.split("\n");
  return FENCE.test(lines[0]) ? [renderCode(lines)] : renderLines(lines, 0);
}

function renderCode(lines) {
  const [, fence, words] = FENCE.exec(lines[0]);
  const language = words.trim().split(/\s/, 1)[0];
  const indent = lines[0].length - lines[0].trimStart().length;
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(fence);
  const text = lines.slice(1, closed ? -1 : undefined).map((line) => removeIndent(line, indent)).join("\n");
  const copy = make("button", { type: "button", textContent: "Copy" });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
  });
  const head = make("div", { className: "code-head" }, make("span", { textContent: language.slice(0, 30) }), copy);
  const code = make("pre", { tabIndex: 0 }, make("code", { textContent: text }));
  return make("div", { className: "code" }, head, code);
}

function removeIndent(line, most) {
  const indent = line.length - line.trimStart().length;
  return line.slice(Math.min(indent, most));
}

function renderLines(lines, depth) {
  const nodes = [];
  for (let i = 0; i < lines.length; ) {
    const [node, next] = renderNext(lines, i, depth);
    nodes.push(node);
    i = next;
  }
  return nodes;
}

// The element that begins with line `i`, and the line after it.
function renderNext(lines, i, depth) {
  const heading = HEADING.exec(lines[i]);
  if (heading) {
    const tag = `h${Math.min(heading[1].length + 2, 6)}`; // below the headings of the page
    return [appendInline(make(tag), heading[2]), i + 1];
  }
  if (RULE.test(lines[i])) return [make("hr"), i + 1];
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(lines[i])) return renderQuote(lines, i, depth);
    if (ITEM.test(lines[i])) return renderList(lines, i, depth);
  }
  if (isTable(lines, i)) return renderTable(lines, i);
  let next = i + 1;
  while (next < lines.length && !beginsBlock(lines, next, depth)) next++;
  const text = lines.slice(i, next).map((line) => line.trimStart()).join("\n");
  return [appendInline(make("p"), text), next];
}

function beginsBlock(lines, i, depth) {
  const nests = depth < MAX_DEPTH && (QUOTE.test(lines[i]) || ITEM.test(lines[i]));
  return nests || HEADING.test(lines[i]) || RULE.test(lines[i]) || isTable(lines, i);
}

function renderQuote(lines, i, depth) {
  const inner = [];
  for (let found; i < lines.length && (found = QUOTE.exec(lines[i])); i++) inner.push(found[1]);
  return [make("blockquote", {}, ...renderLines(inner, depth + 1)), i];
}

function renderList(lines, i, depth) {
  const [, indent, mark] = ITEM.exec(lines[i]);
  const numbered = /\d/.test(mark);
  const items = [];
  for (; i < lines.length; i++) {
    const found = ITEM.exec(lines[i]);
    if (found && found[1].length <= indent.length) {
      if (/\d/.test(found[2]) !== numbered) break;
      items.push([found[3]]);
    } else if (!found && beginsBlock(lines, i, depth)) break;
    else items.at(-1).push(removeIndent(lines[i], indent.length + mark.length + 1));
  }
  const list = make(numbered ? "ol" : "ul");
  if (numbered) list.start = parseInt(mark, 10);
  for (const item of items) list.append(make("li", {}, ...renderLines(item, depth + 1)));
  return [list, i];
}

function isTable(lines, i) {
  const below = lines[i + 1] ?? "";
  return lines[i].includes("|") && below.includes("|") && below.includes("-") && TABLE_LINE.test(below);
}

function renderTable(lines, i) {
  const table = make("table");
  const addRow = (part, tag, line) => {
    const row = part.insertRow();
    for (const text of splitCells(line)) row.append(appendInline(make(tag), text));
  };
  addRow(table.createTHead(), "th", lines[i]);
  const body = table.createTBody();
  for (i += 2; i < lines.length && lines[i].includes("|"); i++) addRow(body, "td", lines[i]);
  return [make("div", { className: "scroll" }, table), i];
}

function splitCells(line) {
  let inner = line.trim();
  if (inner.startsWith("|")) inner = inner.slice(1);
  if (inner.endsWith("|")) inner = inner.slice(0, -1);
  return inner.split("|").map((cell) => cell.trim());
}
