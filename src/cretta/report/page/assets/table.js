// Tables that sort by any column, filter by words and grow as they are scrolled.

/** Columns that fit a page of 1280 px as they are; more are set closer. */
const MANY = 8;
const TEXT_ORDER = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** The place of a row's cell in a sort: numbers by value, words as people sort them, what is missing last. */
function sortKey(row, index) {
  if (index < 0) return row[0];
  const cell = row[3][index];
  return Array.isArray(cell) ? cell[0] : cell;
}

function compare(a, b, down) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : TEXT_ORDER.compare(String(a), String(b));
  return down ? -order : order;
}

function cellNode(cell, mark, text) {
  if (text) return el("td", { class: String(cell).length > 60 ? "long" : null }, String(cell ?? ""));
  if (cell === null) return el("td", { class: "number missing" }, "–");
  if (!Array.isArray(cell)) return el("td", { class: "number" }, String(cell));
  const [, value, spread, printed, difference] = cell;
  const shown = value ? (mark === "b" ? el("b", {}, value) : value) : "–";
  return el(
    "td",
    { class: "number" },
    shown,
    spread ? " " : null,
    spread ? el("span", { class: "spread" }, `± ${spread}`) : null,
    printed ? el("span", { class: "paper" }, `paper ${printed}${difference ? ` (${difference})` : ""}`) : null,
  );
}

function wordsOf(row) {
  return [row[0], row[1], ...row[3].map((cell) => (Array.isArray(cell) ? cell[1] : cell))].join(" ");
}

function tableNode(spec) {
  const wide = spec.columns.length + 1;
  const body = el("tbody");
  let column = null;
  let down = false;
  let question = "";

  const headings = [];
  function headNode(title, index, text) {
    const button = el("button", { type: "button", onclick: () => sortBy(index) }, el("span", {}, title.replace(/ (?=[↑↓])/, "\u00a0")));
    const head = el("th", { scope: "col", "aria-sort": "none", class: text ? "" : "number" }, button);
    headings.push([head, index]);
    return head;
  }

  const over = el("tr", { class: "over" }, el("td"));
  for (let start = 0; start < spec.columns.length; ) {
    const group = spec.columns[start].group || "";
    let end = start + 1;
    while (end < spec.columns.length && (spec.columns[end].group || "") === group) end += 1;
    const attributes = { colspan: end - start };
    over.append(group ? el("th", { ...attributes, scope: "colgroup" }, el("span", {}, group)) : el("td", attributes));
    start = end;
  }
  const heads = el("tr", {}, headNode(spec.first, -1, true));
  spec.columns.forEach((item, index) => heads.append(headNode(item.title, index, item.text)));
  const grouped = spec.columns.some((item) => item.group);

  function rowNode(row) {
    if (row.heading !== undefined) {
      return el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: wide }, el("span", {}, row.heading)));
    }
    const made = el("tr", {}, el("th", { scope: "row", class: row[0].length > 30 ? "long" : null }, row[0]));
    spec.columns.forEach((item, index) => made.append(cellNode(row[3][index], row[2][index], item.text)));
    return made;
  }

  const show = longList(body, rowNode, 100, (text, go) =>
    el("tr", { class: "end" }, el("td", { colspan: wide }, el("button", { type: "button", class: "more", onclick: go }, text))),
  );

  function refresh() {
    const groups = new Map();
    for (const row of spec.rows) {
      if (question && !matches(wordsOf(row), question)) continue;
      if (!groups.has(row[1])) groups.set(row[1], []);
      groups.get(row[1]).push(row);
    }
    const items = [];
    let matching = 0;
    for (const [group, rows] of groups) {
      // Rows of a group stay together: their order changes within it.
      if (column !== null) rows.sort((a, b) => compare(sortKey(a, column), sortKey(b, column), down));
      if (group) items.push({ heading: group });
      for (const row of rows) items.push(row);
      matching += rows.length;
    }
    show(items);
    status.textContent = question ? `${matching} of ${spec.rows.length} rows` : "";
    for (const [head, index] of headings) {
      head.setAttribute("aria-sort", index === column ? (down ? "descending" : "ascending") : "none");
    }
  }

  function sortBy(index) {
    down = index === column && !down;
    column = index;
    refresh();
  }

  const status = el("span", { class: "quiet", role: "status" });
  const filter = el("input", {
    type: "search",
    placeholder: "Filter rows",
    "aria-label": `Filter rows of: ${spec.title}`,
    oninput: settled((event) => {
      question = event.target.value.trim();
      refresh();
    }),
  });
  const table = el(
    "table",
    { "aria-label": spec.title },
    el("thead", {}, grouped ? over : null, heads),
    body,
  );
  refresh();
  const scroll = el("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": spec.title }, table);
  const frame = el("div", { class: "frame" }, scroll);
  const hint = () => frame.classList.toggle("more-right", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 2);
  scroll.addEventListener("scroll", hint, { passive: true });
  new ResizeObserver(hint).observe(scroll);
  return el(
    "div",
    { class: spec.columns.length > MANY ? "table dense" : "table" },
    spec.rows.length > 5 ? el("div", { class: "bar" }, filter, status) : null,
    frame,
    ...spec.notes.map((note) => el("p", { class: "note" }, note)),
  );
}

/** A table under its title; a folded one is built when it is opened. */
function tableSection(spec) {
  if (!spec.folded) return el("div", { class: "sheet", "data-table": spec.name }, el("h3", {}, spec.title), tableNode(spec));
  let built = false;
  return el(
    "details",
    {
      class: "sheet",
      "data-table": spec.name,
      ontoggle: (event) => {
        if (event.target.open && !built) {
          built = true;
          event.target.append(tableNode(spec));
        }
      },
    },
    el("summary", {}, el("h3", {}, spec.title)),
  );
}
