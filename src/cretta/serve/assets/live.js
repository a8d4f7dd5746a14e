// Shows what a service does: reads its events, draws curves, classes, alarms and images, and sends commands.

const HISTORY = 500;
const BARS = 20;
const ADAPTED = { color: "#0072B2", dash: [], marker: "circle", hollow: false };
const SOURCE = { color: "#D55E00", dash: [4, 1.6], marker: "square", hollow: true };
const REFERENCE = { color: "#767676", dash: [1, 1.6], marker: "diamond", hollow: true };
const RETRY = [1, 2, 5, 10];

/** Title, the numbers of a batch for the adapted and the source model, and the name of the reference on source images. */
const CURVES = [
  { name: "energy", title: "Mean energy per batch", of: (batch) => batch.energy, reference: "energy", factor: 1 },
  { name: "confidence", title: "Mean confidence per batch (%)", of: (batch) => batch.confidence, reference: "confidence", factor: 100 },
  {
    name: "accuracy",
    title: "Estimated accuracy (%, COT)",
    of: (batch) => batch.accuracy.cot,
    source: (batch) => batch.source_accuracy.cot,
    reference: "accuracy",
    factor: 100,
  },
];
const byId = (id) => document.getElementById(id);

class Live {
  constructor() {
    this.batches = [];
    this.events = [];
    this.images = [];
    this.state = null;
    this.token = sessionStorage.getItem("token") || "";
    this.view = new View();
    this.plots = CURVES.map((curve) => [curve, new Plot(curve.title, curve.name, this.view)]);
    byId("plots").append(...this.plots.map(([, plot]) => plot.node));
    for (const [, plot] of this.plots) plot.node.hidden = true;
    byId("legend").append(
      ...[
        ["adapted model", ADAPTED],
        ["source model, same images", SOURCE],
        ["source model, source images", REFERENCE],
      ].map(([text, style]) => el("span", { role: "listitem", class: "chip" }, swatch(style), el("span", {}, text))),
    );
    byId("snapshot").addEventListener("click", () => this.command("snapshot", "Save a snapshot?"));
    byId("rollback").addEventListener("click", () => {
      const snapshot = byId("target").value;
      this.command("rollback", `Roll back to ${snapshot}? What was learned since is lost.`, { snapshot });
    });
    byId("reset").addEventListener("click", () => this.command("reset", "Reset to the source model? All that was learned is lost, except in snapshots."));
    this.listen();
  }

  headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }

  /** Reads events for ever; after a lost connection, tries again. */
  async listen() {
    for (let failures = 0; ; failures += 1) {
      try {
        const response = await fetch("events", { headers: this.headers(), cache: "no-store" });
        if (response.status === 401) {
          this.setStatus("token required", "bad");
          const entered = await this.ask("This service needs its token: enter it to see the page.", true);
          if (!entered) await new Promise((resolve) => setTimeout(resolve, 10_000));
          continue;
        }
        if (!response.ok) throw new Error((await response.json()).error);
        failures = 0;
        await this.read(response.body.pipeThrough(new TextDecoderStream()).getReader());
      } catch (error) {
        console.debug(error);
      }
      this.setStatus("connection lost", "bad");
      await new Promise((resolve) => setTimeout(resolve, 1000 * RETRY[Math.min(failures, RETRY.length - 1)]));
    }
  }

  /** Reads messages until the connection ends; the first of a connection has everything. */
  async read(reader) {
    let text = "";
    let first = true;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const messages = text.split("\n\n");
      text = messages.pop();
      for (const message of messages.filter((item) => item.startsWith("data: "))) {
        if (first) this.batches = this.events = this.images = [];
        first = false;
        this.take(JSON.parse(message.slice("data: ".length)));
      }
    }
  }

  take({ state, batches, events, images, recent }) {
    this.state = state;
    this.batches = [...this.batches, ...batches].slice(-HISTORY);
    this.events = [...events.reverse(), ...this.events].slice(0, 50);
    this.images = [...images.reverse(), ...this.images].slice(0, recent);
    this.setStatus(state.status, state.status === "ready" ? "good" : "bad");
    this.drawFacts();
    this.drawCurves();
    this.drawClasses();
    this.drawEvents();
    this.drawImages();
    this.drawControl();
    document.documentElement.dataset.ready = "yes";
    document.documentElement.dataset.batches = state.batches;
  }

  setStatus(text, kind) {
    byId("status").textContent = text;
    byId("status").className = `status ${kind}`;
  }

  latest(find) {
    for (let index = this.batches.length - 1; index >= 0; index -= 1) {
      const value = find(this.batches[index]);
      if (value !== null && value !== undefined) return value;
    }
    return null;
  }

  drawFacts() {
    const percent = (value) => (value === null ? "–" : `${readable(100 * value, 3)} %`);
    const { state } = this;
    byId("lead").textContent = `${state.method}, statistics: ${state.statistics}, guard: ${state.guard}`;
    const facts = [
      ["images accepted", state.accepted.toLocaleString("en")],
      ["batches", state.batches.toLocaleString("en")],
      ["updates", state.step.toLocaleString("en")],
      ["images waiting", state.waiting.toLocaleString("en")],
      ["est. accuracy", percent(this.latest((batch) => batch.accuracy.cot))],
      ["of source model", percent(this.latest((batch) => batch.source_accuracy.cot))],
      ["confidence", percent(this.latest((batch) => batch.confidence))],
      ["drift (none: 0.5)", readable(this.latest((batch) => batch.drift), 2)],
    ];
    byId("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const alarm = this.batches.slice(-10).reverse().find((batch) => batch.guard);
    const text = state.snapshot_error || (alarm ? `Guard, batch ${alarm.batch}: ${alarm.guard}` : "");
    byId("alarm").hidden = !text;
    if (byId("alarm").textContent !== text) byId("alarm").textContent = text;
  }

  drawCurves() {
    const { batches } = this;
    byId("empty").hidden = batches.length > 0;
    if (!batches.length) return;
    const x = batches.map((batch) => batch.batch);
    const [from, to] = [x[0], Math.max(x[x.length - 1], x[0] + 1)];
    for (const [curve, plot] of this.plots) {
      const scaled = (value) => (value === null || value === undefined ? null : curve.factor * value);
      const known = (of) => batches.filter((batch) => scaled(of(batch)) !== null);
      const column = (of, label, style) => ({ label, style, x: known(of).map((batch) => batch.batch), y: known(of).map((batch) => scaled(of(batch))), deviation: null });
      const series = [column(curve.of, "adapted model", ADAPTED)];
      if (curve.source) series.push(column(curve.source, "source model, same images", SOURCE));
      const level = scaled(this.state.reference[curve.reference]);
      if (level !== null) series.push({ label: "source model, source images", style: REFERENCE, x: [from, to], y: [level, level], deviation: null });
      plot.node.hidden = !series[0].x.length;
      plot.update(series);
    }
    this.view.extend(from, to);
  }

  drawClasses() {
    const recent = this.batches.slice(-50);
    const totals = [];
    for (const batch of recent) batch.classes.forEach((count, index) => (totals[index] = (totals[index] || 0) + count));
    const all = totals.reduce((sum, count) => sum + count, 0);
    if (!all) return;
    const order = totals.map((count, index) => [index, count]);
    const shown = order.length <= BARS ? order : order.sort((a, b) => b[1] - a[1]).slice(0, BARS);
    const most = Math.max(...totals);
    byId("classes-note").textContent = `Of the last ${all.toLocaleString("en")} images${order.length > shown.length ? `; the ${BARS} most frequent of ${order.length} classes` : ""}.`;
    byId("bars").replaceChildren(
      ...shown.flatMap(([index, count]) => {
        const value = el("div", { class: "bar-value" });
        value.style.width = `${(100 * count) / most}%`;
        return [el("span", {}, this.state.labels[index] ?? `class ${index}`), el("div", { class: "bar-box" }, value), el("span", { class: "share" }, `${((100 * count) / all).toFixed(1)} %`)];
      }),
    );
  }

  drawEvents() {
    if (!this.events.length) return;
    byId("event-list").replaceChildren(
      ...this.events.map((event) =>
        el("li", { class: event.kind }, el("time", { datetime: event.time }, new Date(event.time).toLocaleTimeString("en-GB")), el("b", {}, event.kind), el("span", {}, event.batch === undefined ? event.message : `${event.message} (batch ${event.batch})`)),
      ),
    );
  }

  drawImages() {
    if (!this.images.length) return;
    byId("thumbs").replaceChildren(
      ...this.images.map((image) =>
        el("figure", { class: "thumb" }, el("img", { src: image.source, alt: `image ${image.sequence}, predicted ${image.label}` }), el("figcaption", {}, image.label, el("small", {}, `${(100 * image.probability).toFixed(0)} %`))),
      ),
    );
  }

  drawControl() {
    const names = this.state.snapshots;
    const select = byId("target");
    if (names.join() !== [...select.options].map((option) => option.value).join()) {
      const text = (name) => name.replace(/^snapshot-0*(\d+)-batch-(\d+)-step-(\d+)\.safetensors$/, "no. $1: batch $2, update $3");
      select.replaceChildren(...names.map((name) => el("option", { value: name }, text(name))));
    }
    select.disabled = byId("rollback").disabled = !names.length;
  }

  /** Asks a question, and for the token if it is not known; returns whether the answer is yes. */
  async ask(question, always = false) {
    const dialog = byId("dialog");
    const needed = always || !this.token;
    byId("question").textContent = question;
    byId("token-field").hidden = !needed;
    byId("token").value = "";
    dialog.returnValue = "no";
    dialog.showModal();
    (needed ? byId("token") : byId("yes")).focus();
    await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
    if (dialog.returnValue !== "yes") return false;
    if (needed) {
      this.token = byId("token").value.trim();
      sessionStorage.setItem("token", this.token);
    }
    return Boolean(this.token);
  }

  async command(name, question, body = null) {
    const result = byId("result");
    result.textContent = "";
    if (!(await this.ask(question))) return;
    const headers = { ...this.headers(), ...(body ? { "Content-Type": "application/json" } : {}) };
    try {
      const response = await fetch(`state/${name}`, { method: "POST", headers, body: body && JSON.stringify(body) });
      const answer = await response.json();
      if (response.status === 401) {
        this.token = "";
        sessionStorage.removeItem("token");
      }
      result.textContent = response.ok ? `Done: ${name}.` : answer.error;
    } catch (error) {
      result.textContent = `No answer: ${error.message}`;
    }
  }
}

new Live();
