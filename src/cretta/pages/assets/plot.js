// A chart of curves over batches, to be read, zoomed and reset by mouse, touch and keyboard.

const MARGIN = { left: 50, right: 12, top: 16, bottom: 26 };
const HEIGHT = 230;
let clips = 0;

/** Corners of the markers, on a circle of radius one; circle and star apart. */
const CORNERS = {
  square: [[-0.8, -0.8], [0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]],
  diamond: [[0, -1.1], [1.1, 0], [0, 1.1], [-1.1, 0]],
  up: [[0, -1], [1, 0.8], [-1, 0.8]],
  down: [[0, 1], [1, -0.8], [-1, -0.8]],
  left: [[-1, 0], [0.8, -1], [0.8, 1]],
  right: [[1, 0], [-0.8, -1], [-0.8, 1]],
  plus: [[-0.35, -1], [0.35, -1], [0.35, -0.35], [1, -0.35], [1, 0.35], [0.35, 0.35], [0.35, 1], [-0.35, 1], [-0.35, 0.35], [-1, 0.35], [-1, -0.35], [-0.35, -0.35]],
};
CORNERS.cross = CORNERS.plus.map(([x, y]) => [(x - y) * 0.75, (x + y) * 0.75]);
const ring = (count, radius = () => 1) =>
  Array.from({ length: count }, (_, index) => {
    const angle = (2 * Math.PI * index) / count - Math.PI / 2;
    return [Math.cos(angle) * radius(index), Math.sin(angle) * radius(index)];
  });
CORNERS.pentagon = ring(5);
CORNERS.hexagon = ring(6);
CORNERS.star = ring(10, (index) => (index % 2 ? 0.45 : 1.25));
CORNERS.circle = ring(16, () => 0.9);

function markerPath(marker, x, y, size) {
  const corners = CORNERS[marker] || CORNERS.circle;
  return `M${corners.map(([dx, dy]) => `${(x + dx * size).toFixed(1)} ${(y + dy * size).toFixed(1)}`).join("L")}Z`;
}

/** Black is the page's ink, and other colors may have a lighter one, so that they show on a dark page too. */
function ink(color) {
  return color === "#000000" ? "currentColor" : `var(--${color.slice(1).toLowerCase()}, ${color})`;
}

function dashes(style, width = 1.8) {
  return style.dash.length ? style.dash.map((item) => item * width).join(" ") : null;
}

/** A short piece of the curve, for legends. */
function swatch(style) {
  return svg(
    "svg",
    { class: "swatch", viewBox: "0 0 34 12", width: 34, height: 12, "aria-hidden": "true" },
    svg("path", { d: "M1 6H33", stroke: ink(style.color), "stroke-width": 1.8, "stroke-dasharray": dashes(style), fill: "none" }),
    svg("path", { d: markerPath(style.marker, 17, 6, 4), stroke: ink(style.color), fill: style.hollow ? "var(--paper)" : ink(style.color) }),
  );
}

function niceTicks(from, to, count, integers = false) {
  let step = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(step));
  const rest = step / power;
  step = power * (rest < 1.42 ? 1 : rest < 3.17 ? 2 : rest < 7.08 ? 5 : 10);
  if (integers) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to + step * 1e-9; tick += step) {
    ticks.push(Number(tick.toPrecision(12)));
  }
  return ticks;
}

/** The range of batches that all charts of a page show. */
class View {
  constructor() {
    this.full = [1, 2];
    this.range = [1, 2];
    this.listeners = [];
  }

  get zoomed() {
    return this.range[0] > this.full[0] || this.range[1] < this.full[1];
  }

  setFull(from, to) {
    this.full = [from, Math.max(to, from + 1)];
    this.range = [...this.full];
    this.notify();
  }

  show(from, to) {
    const least = Math.min(2, this.full[1] - this.full[0]);
    let [a, b] = from < to ? [from, to] : [to, from];
    if (b - a < least) [a, b] = [(a + b - least) / 2, (a + b + least) / 2];
    if (b - a >= this.full[1] - this.full[0]) [a, b] = this.full;
    const shift = Math.max(0, this.full[0] - a) - Math.max(0, b - this.full[1]);
    this.range = [Math.max(this.full[0], a + shift), Math.min(this.full[1], b + shift)];
    this.notify();
  }

  /** Takes batches that were added; what is zoomed into stays. */
  extend(from, to) {
    const zoomed = this.zoomed;
    this.full = [from, Math.max(to, from + 1)];
    if (zoomed && this.range[0] >= from) this.notify();
    else this.reset();
  }

  /** Makes the range this many times as wide, a batch staying where it is. */
  scale(factor, around) {
    const [a, b] = this.range;
    this.show(around - (around - a) * factor, around + (b - around) * factor);
  }

  reset() {
    this.range = [...this.full];
    this.notify();
  }

  notify() {
    for (const listener of this.listeners) listener();
  }
}

class Plot {
  constructor(title, name, view) {
    this.view = view;
    this.title = title;
    this.series = [];
    this.parts = [];
    this.cursor = null;
    this.pointers = new Map();
    this.tapped = -Infinity;
    this.clip = `clip${(clips += 1)}`;
    this.canvas = svg("svg", { "aria-hidden": "true", height: HEIGHT });
    this.tip = el("div", { class: "tip", hidden: true });
    this.spoken = el("p", { class: "unseen", "aria-live": "polite" });
    this.surface = el("div", { class: "surface", tabindex: 0, role: "group", "aria-roledescription": "chart" }, this.canvas, this.tip);
    this.node = el("figure", { class: "plot", "data-metric": name }, el("figcaption", {}, title), this.surface, this.spoken);
    this.waiting = false;
    view.listeners.push(() => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(this.surface);
    this.listen();
  }

  /** ``series``: label, style, x, y and, over seeds, deviation; ``parts``: where the domains of the stream begin. */
  setSeries(series, parts) {
    this.series = series;
    this.parts = parts;
    this.cursor = null;
    this.redraw();
  }

  /** Takes curves with more batches; the cursor stays. */
  update(series) {
    this.series = series;
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  x(batch) {
    const [from, to] = this.view.range;
    return MARGIN.left + ((batch - from) / (to - from)) * (this.width - MARGIN.left - MARGIN.right);
  }

  batchAt(x) {
    const [from, to] = this.view.range;
    return from + ((x - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)) * (to - from);
  }

  y(value) {
    const [low, high] = this.values;
    return MARGIN.top + ((high - value) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  }

  /** From the lowest to the highest number in view, with some air. */
  findValues() {
    const [from, to] = this.view.range;
    let low = Infinity;
    let high = -Infinity;
    for (const item of this.series) {
      item.x.forEach((batch, index) => {
        const value = item.y[index];
        if (value === null || batch < from - 1 || batch > to + 1) return;
        const spread = item.deviation?.[index] ?? 0;
        low = Math.min(low, value - spread);
        high = Math.max(high, value + spread);
      });
    }
    if (low > high) [low, high] = [0, 1];
    const air = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
    this.values = [low - air, high + air];
  }

  draw() {
    this.width = this.surface.clientWidth;
    if (!this.width) {
      this.canvas.replaceChildren();
      return;
    }
    this.findValues();
    const [from, to] = this.view.range;
    const floor = HEIGHT - MARGIN.bottom;
    const right = this.width - MARGIN.right;
    this.canvas.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.canvas.setAttribute("width", this.width);
    this.canvas.dataset.from = from;
    this.canvas.dataset.to = to;
    const grid = svg("g", { class: "grid" });
    for (const tick of niceTicks(this.values[0], this.values[1], 5)) {
      const y = this.y(tick).toFixed(1);
      grid.append(svg("path", { d: `M${MARGIN.left} ${y}H${right}` }));
      grid.append(svg("text", { x: MARGIN.left - 6, y, dy: "0.35em", "text-anchor": "end" }, readable(tick)));
    }
    for (const tick of niceTicks(from, to, Math.max(2, this.width / 70), true)) {
      const x = this.x(tick).toFixed(1);
      grid.append(svg("path", { d: `M${x} ${MARGIN.top}V${floor + 4}` }));
      grid.append(svg("text", { class: "batch", x, y: floor + 17, "text-anchor": "middle" }, String(tick)));
    }
    grid.append(svg("text", { x: MARGIN.left - 14, y: floor + 17, "text-anchor": "end" }, "batch"));
    grid.append(svg("path", { class: "axis", d: `M${MARGIN.left} ${floor}H${right}` }));
    const clip = svg("clipPath", { id: this.clip }, svg("rect", { x: MARGIN.left, y: MARGIN.top - 4, width: right - MARGIN.left, height: floor - MARGIN.top + 4 }));
    const inside = svg("g", { "clip-path": `url(#${this.clip})` });
    this.series.forEach((item) => item.deviation && inside.append(this.band(item)));
    this.series.forEach((item) => inside.append(this.curve(item)));
    // Markers of the first and last batch in view reach over the edge: they are not clipped.
    const markers = svg("g", {}, ...this.series.map((item, index) => this.markers(item, index)));
    this.overlay = svg("g", { class: "overlay" });
    this.canvas.replaceChildren(clip, grid, this.partMarks(floor), inside, markers, this.overlay);
    this.surface.setAttribute(
      "aria-label",
      `${this.title}: ${this.series.length} ${this.series.length === 1 ? "curve" : "curves"}, batches ${Math.round(from)} to ${Math.round(to)}`,
    );
    this.drawCursor();
  }

  /** Runs of points that have a number, as text of a path. */
  line(item) {
    let text = "";
    let pen = false;
    item.x.forEach((batch, index) => {
      const value = item.y[index];
      if (value !== null) text += `${pen ? "L" : "M"}${this.x(batch).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = value !== null;
    });
    return text;
  }

  curve(item) {
    return svg("path", {
      class: "curve",
      d: this.line(item),
      stroke: ink(item.style.color),
      "stroke-dasharray": dashes(item.style),
    });
  }

  band(item) {
    const known = item.x.map((_, index) => index).filter((index) => item.y[index] !== null && item.deviation[index] !== null);
    const point = (index, sign) => `${this.x(item.x[index]).toFixed(1)} ${this.y(item.y[index] + sign * item.deviation[index]).toFixed(1)}`;
    const edge = [...known.map((index) => point(index, 1)), ...known.reverse().map((index) => point(index, -1))];
    return svg("path", { class: "band", d: edge.length ? `M${edge.join("L")}Z` : "", fill: ink(item.style.color) });
  }

  /** A few of them, not all at the same batches: curves on top of each other stay apart. */
  markers(item, index) {
    const [from, to] = this.view.range;
    const seen = item.x.map((_, at) => at).filter((at) => item.y[at] !== null && item.x[at] >= from && item.x[at] <= to);
    const every = Math.max(1, Math.round(seen.length / 8));
    const chosen = seen.filter((_, at) => at % every === Math.floor((index * every) / this.series.length) % every);
    return svg("path", {
      class: "marker",
      d: chosen.map((at) => markerPath(item.style.marker, this.x(item.x[at]), this.y(item.y[at]), 3.6)).join(""),
      stroke: ink(item.style.color),
      fill: item.style.hollow ? "var(--paper)" : ink(item.style.color),
    });
  }

  /** Where a stream passes from one domain to the next, with names where there is room. */
  partMarks(floor) {
    const marks = svg("g", { class: "parts" });
    const [from, to] = this.view.range;
    for (const { name, start, end } of this.parts) {
      if (end < from || start > to) continue;
      const x = this.x(Math.max(start - 0.5, from));
      const room = this.x(Math.min(end + 0.5, to)) - x;
      if (start - 0.5 > from) marks.append(svg("path", { d: `M${x.toFixed(1)} ${MARGIN.top - 10}V${floor}` }));
      if (room > 44) {
        const letters = Math.floor((room - 8) / 6);
        marks.append(svg("text", { x: x + 4, y: MARGIN.top - 5 }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name));
      }
    }
    return marks;
  }

  /** The line at a batch, and what the curves are there. */
  drawCursor(speak = false) {
    this.overlay?.replaceChildren();
    this.tip.hidden = this.cursor === null || !this.series.length;
    if (this.tip.hidden) return;
    const [from, to] = this.view.range;
    const batches = this.series.flatMap((item) => item.x).filter((batch) => batch >= from && batch <= to);
    if (!batches.length) {
      this.tip.hidden = true;
      return;
    }
    const batch = batches.reduce((near, item) => (Math.abs(item - this.cursor) < Math.abs(near - this.cursor) ? item : near));
    this.cursor = batch;
    const x = this.x(batch);
    this.overlay.append(svg("path", { class: "cursor", d: `M${x} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}` }));
    const part = this.parts.find((item) => item.start <= batch && batch <= item.end);
    const lines = [];
    for (const item of this.series) {
      const index = item.x.indexOf(batch);
      if (index < 0 || item.y[index] === null) continue;
      this.overlay.append(svg("circle", { cx: x, cy: this.y(item.y[index]), r: 4, stroke: ink(item.style.color) }));
      const spread = item.deviation?.[index];
      const skipped = item.skipped?.get(index);
      lines.push([item, `${readable(item.y[index])}${spread ? ` ± ${readable(spread, 2)}` : ""}${skipped ? ` (skipped: ${skipped})` : ""}`]);
    }
    const head = `batch ${batch}${part ? ` · ${part.name}` : ""}`;
    this.tip.replaceChildren(
      el("b", {}, head),
      ...lines.slice(0, 14).map(([item, text]) => el("div", {}, swatch(item.style), el("span", {}, item.label), el("span", { class: "value" }, text))),
      lines.length > 14 ? el("div", {}, `… and ${lines.length - 14} more`) : "",
    );
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, x + 14 + wide <= this.width ? x + 14 : Math.min(x - 14 - wide, this.width - wide))}px`;
    if (speak) this.spoken.textContent = `${head}: ${lines.map(([item, text]) => `${item.label} ${text}`).join("; ")}`;
  }

  pixelX(event) {
    return event.clientX - this.surface.getBoundingClientRect().left;
  }

  listen() {
    const on = (name, call, options) => this.surface.addEventListener(name, call, options);
    on("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.pointers.set(event.pointerId, this.pixelX(event));
      this.begun = this.pointers.size === 1 ? this.pixelX(event) : null;
      if (this.pointers.size === 2) this.pinched = [...this.pointers.values()].map((x) => this.batchAt(x));
    });
    on("pointermove", (event) => this.moved(event));
    on("pointerup", (event) => this.released(event));
    on("pointercancel", (event) => {
      this.pointers.delete(event.pointerId);
      this.begun = null;
      this.drawCursor();
    });
    on("pointerleave", (event) => {
      if (this.pointers.size || event.pointerType === "touch") return;
      this.cursor = null;
      this.drawCursor();
    });
    on("blur", () => {
      this.cursor = null;
      this.drawCursor();
    });
    on("dblclick", () => this.view.reset());
    on(
      "wheel",
      (event) => {
        // Elsewhere the wheel scrolls the page; Ctrl, or a pinch on a touchpad, always zooms.
        if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.surface) return;
        event.preventDefault();
        this.view.scale(Math.exp(Math.sign(event.deltaY) * Math.min(0.35, Math.abs(event.deltaY) / 300)), this.batchAt(this.pixelX(event)));
      },
      { passive: false },
    );
    on("keydown", (event) => this.pressed(event));
  }

  moved(event) {
    const x = this.pixelX(event);
    if (!this.pointers.has(event.pointerId)) {
      this.cursor = this.batchAt(x);
      this.drawCursor();
      return;
    }
    this.pointers.set(event.pointerId, x);
    if (this.pointers.size === 2 && this.pinched) this.pinch();
    else if (this.begun !== null && Math.abs(x - this.begun) > 4) {
      this.surface.setPointerCapture(event.pointerId);
      const [left, right] = [Math.min(x, this.begun), Math.max(x, this.begun)];
      this.tip.hidden = true;
      this.overlay.replaceChildren(svg("rect", { class: "chosen", x: left, y: MARGIN.top, width: right - left, height: HEIGHT - MARGIN.top - MARGIN.bottom }));
    }
  }

  released(event) {
    const x = this.pixelX(event);
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.begun !== null && Math.abs(x - this.begun) > 4) this.view.show(this.batchAt(this.begun), this.batchAt(x));
    else if (this.begun !== null) {
      this.cursor = this.batchAt(x);
      this.drawCursor();
      // Not every browser makes a double click of two taps.
      const twice = event.pointerType === "touch" && event.timeStamp - this.tapped < 350;
      this.tapped = event.timeStamp;
      if (twice) this.view.reset();
    }
    this.begun = null;
    this.pinched = null;
  }

  /** The batches that were under two fingers stay under them. */
  pinch() {
    const [[x0, x1], [b0, b1]] = [[...this.pointers.values()], this.pinched];
    if (Math.abs(x1 - x0) < 12) return;
    const perPixel = (b1 - b0) / (x1 - x0);
    const from = b0 - (x0 - MARGIN.left) * perPixel;
    this.view.show(from, from + (this.width - MARGIN.left - MARGIN.right) * perPixel);
  }

  pressed(event) {
    const [from, to] = this.view.range;
    const around = this.cursor ?? (from + to) / 2;
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps && event.shiftKey) {
      const shift = (steps[event.key] * (to - from)) / 5;
      this.view.show(from + shift, to + shift);
    } else if (event.key in steps) {
      const batches = [...new Set(this.series.flatMap((item) => item.x))].sort((a, b) => a - b);
      const at = this.cursor === null ? (steps[event.key] > 0 ? -1 : batches.length) : batches.indexOf(this.cursor);
      this.cursor = batches[Math.min(batches.length - 1, Math.max(0, at + steps[event.key]))] ?? null;
      if (this.cursor !== null && (this.cursor < from || this.cursor > to)) this.view.show(from + this.cursor - around, to + this.cursor - around);
      this.drawCursor(true);
    } else if (event.key === "+" || event.key === "=") this.view.scale(0.6, around);
    else if (event.key === "-") this.view.scale(1 / 0.6, around);
    else if (event.key === "Escape" || event.key === "0") this.view.reset();
    else return;
    event.preventDefault();
  }
}
