// One message of the conversation as elements.

import { make, setText } from "./elements.js";
import { MarkdownView } from "./markdown.js";

export class UserMessage {
  constructor(text) {
    this.element = make("article", { className: "message user", "aria-label": "You" }, make("p", { textContent: text }));
  }
}

export class AssistantMessage {
  #due = 0; // the frame in which the text is drawn
  #content = "";
  #reasoning = "";

  constructor(model) {
    const body = make("div", { className: "body" });
    this.markdown = new MarkdownView(body);
    this.thoughts = make("p");
    this.details = make("details", { className: "reasoning", hidden: true }, make("summary", { textContent: "Reasoning" }), this.thoughts);
    this.wait = make("p", { className: "wait", hidden: true });
    this.note = make("p", { className: "note", hidden: true });
    this.figures = make("p", { className: "figures" });
    this.element = make(
      "article",
      { className: "message assistant", "aria-label": `Answer of ${model}`, "aria-busy": "true" },
      make("p", { className: "who", textContent: model }),
      this.details,
      this.wait,
      body,
      this.note,
      this.figures,
    );
  }

  // Draws the text so far, at most once in a frame.
  show(content, reasoning) {
    [this.#content, this.#reasoning] = [content, reasoning];
    this.#due ||= requestAnimationFrame(() => this.#draw());
  }

  showFigures(text) {
    setText(this.figures, text);
  }

  // Shows what the answer waits for; "": nothing.
  showWait(text) {
    this.wait.hidden = text === "";
    setText(this.wait, text);
  }

  end() {
    cancelAnimationFrame(this.#due);
    this.#draw();
    this.element.setAttribute("aria-busy", "false");
  }

  showNote(text, isError) {
    this.note.hidden = false;
    this.note.textContent = text;
    this.note.classList.toggle("error", isError);
    this.note.setAttribute("role", isError ? "alert" : "status");
  }

  addButton(label, action) {
    const button = make("button", { type: "button", className: "again", textContent: label });
    button.addEventListener("click", action);
    this.element.append(button);
    return button;
  }

  #draw() {
    this.#due = 0;
    this.details.hidden = this.#reasoning === "";
    setText(this.thoughts, this.#reasoning);
    this.markdown.update(this.#content);
    this.element.dispatchEvent(new Event("drawn", { bubbles: true }));
  }
}
