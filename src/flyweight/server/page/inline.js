// Markdown within a line: code, bold, italic, struck through, links.
// Links lead to http and https only; they open in a tab that cannot reach this page.  Images become links.  A mark without
// its counterpart is text, and is not searched for again.

import { make } from "./elements.js";

const SPECIAL = /\\([!-/:-@[-`{-~])|(`+)|(\*\*|__|~~|\*|_)|!?\[|<?\bhttps?:\/\/[^\s<>"]+>?/g;
const TAGS = { "**": "strong", "__": "strong", "~~": "del", "*": "em", _: "em" };
const WORD = /[\p{L}\p{N}]/u;
const MAX_DEPTH = 8;
const MAX_ADDRESS = 2000; // characters

// Appends a text to an element, and returns the element.
export function appendInline(parent, text, depth = 0) {
  const reader = new InlineReader(parent, text, depth);
  reader.read();
  return parent;
}

class InlineReader {
  #failed = new Set(); // marks that have no counterpart in the rest
  #label = -1; // the end of the next label

  constructor(parent, text, depth) {
    this.parent = parent;
    this.text = text;
    this.depth = depth;
  }

  read() {
    let done = 0;
    const special = new RegExp(SPECIAL);
    if (this.depth >= MAX_DEPTH) special.lastIndex = this.text.length;
    for (let found; (found = special.exec(this.text)); ) {
      const [node, end] = this.#convert(found) ?? [];
      if (node === undefined) continue;
      this.parent.append(this.text.slice(done, found.index), node);
      special.lastIndex = done = end;
    }
    this.parent.append(this.text.slice(done));
  }

  // What a special text becomes, and where it ends; undefined if it is plain text.
  #convert(found) {
    const [whole, escaped, ticks, mark] = found;
    const start = found.index + whole.length;
    if (escaped) return [escaped, start];
    if (ticks) return this.#convertCode(ticks, start);
    if (mark) return this.#convertMark(mark, found.index, start);
    if (whole.endsWith("[")) return this.#convertLink(start);
    return this.#convertAddress(whole, found.index);
  }

  #convertCode(ticks, start) {
    if (this.#failed.has(ticks)) return undefined;
    for (let end = start; (end = this.text.indexOf(ticks, end)) >= 0; ) {
      let after = end + ticks.length;
      while (this.text[after] === "`") after++;
      if (after === end + ticks.length) {
        return [make("code", { textContent: this.text.slice(start, end).trim() }), after];
      }
      end = after;
    }
    this.#failed.add(ticks);
    return undefined;
  }

  #convertMark(mark, index, start) {
    const before = this.text[index - 1] ?? " ";
    if (/\s/.test(this.text[start] ?? " ") || (mark.includes("_") && WORD.test(before))) return undefined;
    const end = this.#failed.has(mark) ? -1 : this.#findClosing(mark, start + 1);
    if (end < 0) {
      this.#failed.add(mark);
      return undefined;
    }
    const inner = this.text.slice(start, end);
    return [appendInline(make(TAGS[mark]), inner, this.depth + 1), end + mark.length];
  }

  #findClosing(mark, from) {
    const { text } = this;
    for (let end = from; (end = text.indexOf(mark, end)) >= 0; end++) {
      while (mark.length === 2 && text[end + 2] === mark[0]) end++; // `**a *b***`
      const single = mark.length === 1 && (text[end - 1] === mark || text[end + 1] === mark);
      const within = mark.includes("_") && WORD.test(text[end + mark.length] ?? " ");
      if (!single && !within && !/\s/.test(text[end - 1])) return end;
    }
    return -1;
  }

  #convertLink(start) {
    if (this.#label < start && !this.#failed.has("[")) this.#label = this.text.indexOf("](", start);
    if (this.#label < start) {
      this.#failed.add("[");
      return undefined;
    }
    const inner = this.text.indexOf("[", start);
    if (inner >= 0 && inner < this.#label) return undefined;
    const from = this.#label + 2;
    const end = this.#findParenthesis(from);
    const address = end < 0 ? null : readAddress(this.text.slice(from, end).trim().split(/\s/, 1)[0]);
    if (address === null || this.#isInLink()) return undefined;
    const label = this.text.slice(start, this.#label);
    return [appendInline(makeLink(address), label || address, this.depth + 1), end + 1];
  }

  #findParenthesis(from) {
    const last = Math.min(this.text.length, from + MAX_ADDRESS);
    for (let i = from, open = 1; i < last; i++) {
      if (this.text[i] === "(") open++;
      if (this.text[i] === ")" && --open === 0) return i;
    }
    return -1;
  }

  #convertAddress(whole, index) {
    const bare = whole.replace(/^<|>$/g, "");
    let length = Math.min(bare.length, MAX_ADDRESS);
    while (!whole.startsWith("<") && ".,;:!?)'*_`]".includes(bare[length - 1])) length--;
    const address = readAddress(bare.slice(0, length));
    if (address === null || this.#isInLink()) return undefined;
    const link = makeLink(address);
    link.textContent = bare.slice(0, length);
    const closed = whole.startsWith("<") && whole.endsWith(">");
    return [link, closed ? index + whole.length : index + (whole.startsWith("<") ? 1 : 0) + length];
  }

  #isInLink() {
    return this.parent.closest("a") !== null;
  }
}

function makeLink(address) {
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer", title: address });
}

// The address if it is one of the web, otherwise null.
function readAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}
