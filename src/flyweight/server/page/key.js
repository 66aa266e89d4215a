// The dialog that asks for an API key.

import { find } from "./elements.js";

const WRONG = "The server did not accept this key. Check it and try again.";
const NEEDED = "This server requires an API key.";

// Resolves to the key, or to null if the user cancels.
export function askKey(wrong) {
  const dialog = find("ask");
  const input = find("key");
  find("ask-reason").textContent = wrong ? WRONG : NEEDED;
  find("ask-reason").classList.toggle("error", wrong);
  input.value = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const ended = new AbortController();
    const close = (key) => {
      ended.abort();
      dialog.close();
      resolve(key);
    };
    const listen = (element, event, action) => element.addEventListener(event, action, { signal: ended.signal });
    listen(find("ask-form"), "submit", (event) => {
      event.preventDefault();
      close(input.value.trim());
    });
    listen(find("ask-cancel"), "click", () => close(null));
    listen(dialog, "cancel", () => close(null));
  });
}
