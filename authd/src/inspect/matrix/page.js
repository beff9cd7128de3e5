"use strict";
(() => {
  const body = document.querySelector("tbody");
  const rows = Array.from(body.rows);
  const filter = document.getElementById("filter");
  const access = document.getElementById("access");
  const count = document.getElementById("count");
  const headers = Array.from(document.querySelectorAll("thead th"));

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const cells = Array.from(row.cells);
      const text = cells.slice(0, 3).map((cell) => cell.textContent).join(" ").toLowerCase();
      const matches = words.every((word) => text.includes(word));
      const hasAccess = !access.value || cells.some((cell) => cell.className === access.value);
      row.hidden = !(matches && hasAccess);
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + (shown === 1 ? " row" : " rows");
  }

  function sort(column) {
    const header = headers[column];
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    headers.forEach((other) => other.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const direction = ascending ? 1 : -1;
    const key = (row) => row.cells[column].textContent;
    rows.sort((a, b) => direction * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
    body.append(...rows);
  }

  filter.addEventListener("input", apply);
  access.addEventListener("change", apply);
  filter.form.addEventListener("submit", (event) => event.preventDefault());
  headers.forEach((header, column) => header.firstElementChild.addEventListener("click", () => sort(column)));
})();
