// Makes elements of the page.  Text is always set as text, never parsed as HTML.

export function find(id) {
  return document.getElementById(id);
}

// An element with properties (`className`, `title`, ...), attributes (`aria-...`, `role`, ...) and children.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Changes text only where it differs, so that selections and screen readers are left alone.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Makes a table's body have these rows of texts; cells that did not change are kept.
export function fillRows(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((texts, i) => {
    const row = body.rows[i] ?? body.insertRow();
    texts.forEach((text, j) => setText(row.cells[j] ?? row.insertCell(), text));
  });
}
