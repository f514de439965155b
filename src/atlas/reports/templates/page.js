"use strict";
(() => {
  const root = document.documentElement;
  const themes = document.querySelector(".themes");
  const buttons = [...themes.querySelectorAll("button")];
  const remember = (theme) => { try { localStorage.setItem("atlas-theme", theme); } catch { /* not allowed here */ } };
  const recall = () => { try { return localStorage.getItem("atlas-theme"); } catch { return null; } };
  const show = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme; else delete root.dataset.theme;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.theme === (root.dataset.theme || "auto")));
  };
  for (const button of buttons) button.addEventListener("click", () => { show(button.dataset.theme); remember(button.dataset.theme); });
  show(recall());
  themes.hidden = false;

  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.values:not(.long):not([open])")];
    for (const values of folded) values.open = true;
  });
  addEventListener("afterprint", () => { for (const values of folded) values.open = false; });

  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b) => {
    const numbers = [a, b].map((value) => typeof value === "number");
    if (numbers[0] && numbers[1]) return a - b;
    if (numbers[0] !== numbers[1]) return numbers[0] ? 1 : -1;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const down = before === "none" ? column > 0 : before === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", other === head ? (down ? "descending" : "ascending") : "none");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(key(a, column), key(b, column)));
      body.append(...rows);
    }));
  }
})();
