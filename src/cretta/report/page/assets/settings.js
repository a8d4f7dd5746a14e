// What was run, completely: a fold for each group of runs, filled when it is opened.

/** A value as a definition list, whatever its depth. */
function valueNode(value) {
  if (value === null || value === "") return el("span", { class: "quiet" }, "–");
  if (Array.isArray(value)) return el("span", {}, value.map(String).join(", ") || "–");
  if (typeof value !== "object") return el("span", {}, String(value));
  const entries = Object.entries(value);
  if (!entries.length) return el("span", { class: "quiet" }, "–");
  return el("dl", { class: "values" }, ...entries.flatMap(([name, item]) => [el("dt", {}, name), el("dd", {}, valueNode(item))]));
}

function settingNode(data, group) {
  const where = whereOf(data, group);
  let built = false;
  const fill = (event) => {
    if (built || !event.target.open) return;
    built = true;
    const content = [el("h4", {}, "Run"), valueNode({ ...data.base, ...group.run })];
    const sources = new Map();
    for (const run of group.runs) sources.set(run.from, [...(sources.get(run.from) || []), run.seed]);
    content.push(
      el("h4", {}, "Seeds"),
      valueNode(Object.fromEntries(group.runs.map((run) => [`seed ${run.seed}`, { key: run.key, ...run.cost, ...(run.clean === null ? {} : { "accuracy on clean images after": run.clean }) }]))),
    );
    for (const [source, seeds] of sources) {
      const which = sources.size > 1 ? `, seed ${seeds.join(", ")}` : "";
      content.push(el("h4", {}, `Versions and materials${which}`), valueNode(data.provenances[source]));
    }
    event.target.append(el("div", { class: "filled" }, ...content));
  };
  return el("details", { class: "setting", ontoggle: fill }, el("summary", {}, el("b", {}, group.label), " ", el("span", { class: "quiet" }, where)));
}

function buildSettings(data) {
  const box = document.getElementById("setting-list");
  const list = el("div");
  const show = longList(list, (group) => settingNode(data, group), 40);
  const text = (group) => `${group.label} ${data.names[group.shift]} ${data.names[group.setting]}`;
  const filter = el("input", {
    type: "search",
    placeholder: "Filter settings",
    "aria-label": "Filter settings",
    oninput: settled((event) => {
      const question = event.target.value.trim();
      show(data.groups.filter((group) => !question || matches(text(group), question)));
    }),
  });
  box.append(data.groups.length > 5 ? el("div", { class: "bar" }, filter) : "", list);
  show(data.groups);
}
