// Which runs are looked at, and their curves.

const AT_ONCE = 24;
const EXTRA_DASHES = [[], [4, 1.6], [1, 1.6], [6, 1.6, 1, 1.6], [8, 1.6], [2, 1, 2, 3]];

/** The metrics: title, how a run's column of numbers is found, and whether "so far" and "per batch" differ. */
const METRICS = [
  { name: "accuracy", title: { running: "Accuracy so far (%)", batch: "Accuracy of each batch (%)" }, of: accuracyOf },
  { name: "ece", title: { running: "ECE so far (%)", batch: "ECE of each batch (%)" }, of: (run, mode) => (mode === "running" ? run.running : run.ece) },
  { name: "energy", title: "Mean energy of target samples", of: (run) => run.energy },
  { name: "source", title: "Mean energy of source samples", of: (run) => run.source },
  { name: "weight", title: "Mean gradient weight w", of: (run) => run.weight },
  { name: "loss", title: "Loss", of: (run) => run.loss },
];

function imagesAt(run, index) {
  return Array.isArray(run.images) ? run.images[index] : run.images;
}

function accuracyOf(run, mode) {
  let right = 0;
  let images = 0;
  return run.right.map((count, index) => {
    if (mode === "batch") return (100 * count) / imagesAt(run, index);
    right += count;
    images += imagesAt(run, index);
    return (100 * right) / images;
  });
}

/** The batch at which each point of a run's curves stands: the last of its block. */
function batchesOf(run) {
  return run.right.map((_, index) => Math.min((index + 1) * (run.block || 1), run.batches));
}

function skippedOf(run) {
  return new Map(run.skipped || []);
}

/** Mean and deviation over seeds, batch by batch; null where no seed has a number. */
function overSeeds(columns) {
  const length = Math.max(...columns.map((column) => column.length));
  const y = [];
  const spread = [];
  for (let index = 0; index < length; index += 1) {
    const values = columns.map((column) => column[index]).filter((value) => value !== null && value !== undefined);
    y.push(values.length ? mean(values) : null);
    spread.push(values.length ? deviation(values) : null);
  }
  return { y, deviation: spread.some((value) => value !== null) ? spread.map((value) => value ?? 0) : null };
}

function partsOf(run, names) {
  const parts = [];
  const batches = batchesOf(run);
  let index = 0;
  for (const [name, count] of run.domains) {
    parts.push({ name: names[name], start: index ? batches[index - 1] + 1 : 1, end: batches[index + count - 1] });
    index += count;
  }
  return parts.length > 1 ? parts : [];
}

class Curves {
  constructor(data, onchange) {
    this.data = data;
    this.onchange = onchange;
    this.chosen = [];
    this.mode = "running";
    this.apart = false;
    this.view = new View();
    this.plots = METRICS.map((metric) => [metric, new Plot("", metric.name, this.view)]);
    document.getElementById("plots").append(...this.plots.map(([, plot]) => plot.node));
    this.absent = el("p", { class: "quiet" });
    document.getElementById("plots").after(this.absent);
    this.buildBar();
    this.buildPicker();
    if (window.matchMedia("(max-width: 700px)").matches) document.getElementById("picker").open = false;
    this.chooseScene(0);
  }

  name(index) {
    return this.data.names[index];
  }

  /** What a group is called among those chosen: its shift and data only where they differ. */
  title(group) {
    const differ = (field) => new Set(this.chosen.map((item) => item[field])).size > 1;
    return [group.label, differ("shift") ? this.name(group.shift) : "", differ("setting") ? this.name(group.setting) : ""].filter(Boolean).join(" · ");
  }

  /** A method keeps its color; the second of a method has other dashes, and hollow markers. */
  style(group) {
    const own = this.data.styles[group.method];
    const before = this.chosen.slice(0, this.chosen.indexOf(group)).filter((item) => item.method === group.method).length;
    if (!before) return own;
    const others = EXTRA_DASHES.filter((dash) => String(dash) !== String(own.dash));
    const marker = Object.keys(CORNERS)[(Object.keys(CORNERS).indexOf(own.marker) + before) % Object.keys(CORNERS).length];
    return { color: own.color, dash: others[(before - 1) % others.length], marker, hollow: !own.hollow };
  }

  buildBar() {
    const option = (value, text) =>
      el("label", {}, el("input", { type: "radio", name: "mode", value, checked: value === this.mode, onchange: () => this.set({ mode: value }) }), text);
    this.all = el("button", { type: "button", hidden: true, onclick: () => this.view.reset() }, "Show all batches");
    this.view.listeners.push(() => (this.all.hidden = !this.view.zoomed));
    const several = this.data.groups.some((group) => group.runs.length > 1);
    document.getElementById("curve-bar").append(
      el("fieldset", { class: "switch" }, el("legend", { class: "unseen" }, "Accuracy and ECE"), option("running", "so far"), option("batch", "each batch")),
      several
        ? el("label", { class: "check" }, el("input", { type: "checkbox", id: "apart", onchange: (event) => this.set({ apart: event.target.checked }) }), "each seed apart")
        : "",
      this.all,
    );
  }

  buildPicker() {
    this.scenes = new Map();
    for (const group of this.data.groups) {
      const scene = whereOf(this.data, group);
      if (!this.scenes.has(scene)) this.scenes.set(scene, []);
      this.scenes.get(scene).push(group);
    }
    const names = [...this.scenes.keys()];
    this.scene = el(
      "select",
      { "aria-label": "Show all methods on", onchange: (event) => event.target.value !== "" && this.chooseScene(Number(event.target.value)) },
      el("option", { value: "" }, "own choice"),
      ...names.map((name, index) => el("option", { value: index }, name)),
    );
    const list = el("div", { class: "choices", role: "group", "aria-label": "Runs", tabindex: -1 });
    const line = (group) => {
      const box = el("input", { type: "checkbox", checked: this.chosen.includes(group), onchange: (event) => this.toggle(group, event.target) });
      box.group = group;
      const seeds = group.runs.length > 1 ? ` · ${group.runs.length} seeds` : "";
      return el("label", {}, box, el("span", {}, group.label, el("small", {}, whereOf(this.data, group) + seeds)));
    };
    const show = longList(list, line, 60);
    const filter = el("input", {
      type: "search",
      placeholder: "Filter runs",
      "aria-label": "Filter runs",
      oninput: settled((event) => {
        const question = event.target.value.trim();
        const text = (group) => `${group.label} ${this.name(group.shift)} ${this.name(group.setting)}`;
        show(this.data.groups.filter((group) => !question || matches(text(group), question)));
      }),
    });
    this.list = list;
    this.status = el("p", { class: "quiet", role: "status" });
    document.getElementById("picker").append(
      el("label", { class: "field" }, "All methods on", this.scene),
      filter,
      list,
      el("button", { type: "button", onclick: () => this.choose([]) }, "None"),
      this.status,
    );
    show(this.data.groups);
  }

  chooseScene(index) {
    this.choose([...this.scenes.values()][index].slice(0, AT_ONCE));
    this.scene.value = String(index);
  }

  toggle(group, box) {
    if (box.checked && this.chosen.length >= AT_ONCE) {
      box.checked = false;
      this.status.textContent = `${AT_ONCE} runs at once are the most: take one away first.`;
      return;
    }
    this.choose(box.checked ? [...this.chosen, group] : this.chosen.filter((item) => item !== group));
  }

  choose(groups) {
    this.chosen = groups;
    this.scene.value = "";
    this.status.textContent = `${groups.length} chosen`;
    for (const box of this.list.querySelectorAll("input")) box.checked = groups.includes(box.group);
    this.refresh(true);
  }

  set(change) {
    Object.assign(this, change);
    this.refresh(false);
  }

  refresh(resetView) {
    const shown = this.chosen.map((group) => ({ group, style: this.style(group), title: this.title(group) }));
    document.getElementById("legend").replaceChildren(
      ...shown.map(({ group, style, title }) =>
        el(
          "span",
          { role: "listitem", class: "chip" },
          swatch(style),
          el("span", {}, title),
          el("button", { type: "button", "aria-label": `Take away ${title}`, onclick: () => this.choose(this.chosen.filter((item) => item !== group)) }, "×"),
        ),
      ),
    );
    const sequences = new Set(this.chosen.map((group) => JSON.stringify(group.runs[0].domains)));
    const parts = sequences.size === 1 ? partsOf(this.chosen[0].runs[0], this.data.names) : [];
    const absent = [];
    for (const [metric, plot] of this.plots) {
      const title = metric.title[this.mode] || metric.title;
      const series = shown.flatMap((item) => this.seriesOf(item, metric));
      plot.title = title;
      plot.node.querySelector("figcaption").textContent = title;
      const drawable = series.some((item) => item.y.filter((value) => value !== null).length > 1);
      plot.node.hidden = !drawable;
      if (!drawable) absent.push(title);
      plot.setSeries(drawable ? series : [], parts);
    }
    const single = this.chosen.length > 0 && this.chosen.every((group) => group.runs.every((run) => run.batches === 1));
    document.getElementById("curves").classList.toggle("single", single);
    if (!this.chosen.length) this.absent.textContent = "No run is chosen.";
    else if (single) this.absent.textContent = "These runs have one batch each: there are no curves over batches. The tables have their numbers.";
    else this.absent.textContent = absent.length ? `Not recorded by these runs, or for one batch only: ${absent.join("; ")}.` : "";
    const last = Math.max(2, ...this.chosen.flatMap((group) => group.runs.map((run) => run.batches)));
    if (resetView || last !== this.view.full[1]) this.view.setFull(1, last);
    this.onchange(shown);
  }

  seriesOf({ group, style, title }, metric) {
    const runs = group.runs.filter((run) => metric.of(run, this.mode));
    if (!runs.length) return [];
    const longest = runs.reduce((most, run) => (run.right.length > most.right.length ? run : most));
    if (this.apart && runs.length > 1) {
      return runs.map((run) => ({
        label: `${title} · seed ${run.seed}`,
        style,
        x: batchesOf(run),
        y: metric.of(run, this.mode),
        deviation: null,
        skipped: skippedOf(run),
      }));
    }
    const skipped = new Map(runs.flatMap((run) => run.skipped || []));
    return [{ label: title, style, x: batchesOf(longest), ...overSeeds(runs.map((run) => metric.of(run, this.mode))), skipped }];
  }
}
