// Joins the parts of the page.

import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { Dashboard } from "./dashboard.js";
import { find } from "./elements.js";
import { askKey } from "./key.js";
import { ModelList } from "./models.js";
import { Settings } from "./settings.js";
import { startTheme } from "./theme.js";

const WIDE = 1100; // pixels that both views need side by side

startTheme();
const api = new Api(askKey, () => {
  models.load();
  showView(document.body.dataset.view);
});
const models = new ModelList(api);
const chat = new Chat(api, new Settings(), () => models.selected);
const dashboard = new Dashboard(api, models);

function showView(view) {
  document.body.dataset.view = view;
  for (const input of document.querySelectorAll("#views input")) input.checked = input.value === view;
  dashboard.setVisible(view !== "chat" && !document.hidden);
}

find("views").addEventListener("change", (event) => showView(event.target.value));
document.addEventListener("visibilitychange", () => showView(document.body.dataset.view));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !find("ask").open) chat.stop();
});

showView(window.innerWidth >= WIDE ? "both" : "chat");
models.load();
find("prompt").focus();
