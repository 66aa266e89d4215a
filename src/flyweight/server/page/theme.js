// The colours: light or dark, as the system has it or as chosen for this tab.  `themechange` is sent when they change.

import { find } from "./elements.js";

const STORED = "flyweight.theme";
const THEMES = ["system", "light", "dark"];

export function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let theme = sessionStorage.getItem(STORED) ?? "system";
  const apply = () => {
    document.documentElement.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
    find("theme").textContent = `Theme: ${theme}`;
    document.dispatchEvent(new Event("themechange"));
  };
  find("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    sessionStorage.setItem(STORED, theme);
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
