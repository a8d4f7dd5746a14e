// Reliability diagrams: accuracy at each confidence, the gap to the diagonal, and how many images are there.

const DIAGRAM = { side: 200, left: 50, top: 8, strip: 40, gap: 22, bottom: 20 };
const LEAST = { width: 240, gap: 22 };

function diagramNode({ group, style, title }, index) {
  const count = group.runs[0].bins[0].length;
  const sums = [0, 1, 2].map((row) => Array.from({ length: count }, (_, bin) => group.runs.reduce((sum, run) => sum + run.bins[row][bin], 0)));
  const [images, sure, right] = sums;
  const total = images.reduce((sum, item) => sum + item, 0);
  const errors = group.runs.map((run) => run.running.at(-1)); // of all batches, as Python computed it
  const spread = (deviation(errors) ?? 0).toFixed(2);
  const summary = `ECE ${mean(errors).toFixed(2)}${Number(spread) ? ` ± ${spread}` : ""} %${errors.length > 1 ? `, ${errors.length} seeds` : ""}`;
  const { side, left, top, strip, gap, bottom } = DIAGRAM;
  const x = (share) => left + share * side;
  const y = (share) => top + (1 - share) * side;
  const width = side / count;
  const hatch = `hatch${index}`;
  const color = ink(style.color);
  const drawing = svg("svg", { viewBox: `0 0 ${left + side + 14} ${top + side + gap + strip + bottom}`, role: "img", "aria-label": `${title}: ${summary}` });
  drawing.append(
    svg(
      "pattern",
      { id: hatch, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("path", { d: "M0 0V5", stroke: color, "stroke-width": 1.6 }),
    ),
  );
  const frame = svg("g", { class: "grid" });
  for (const tick of [0, 0.5, 1]) {
    frame.append(
      svg("path", { d: `M${left} ${y(tick)}H${left + side}` }),
      svg("text", { x: left - 5, y: y(tick), dy: "0.35em", "text-anchor": "end" }, String(100 * tick)),
      svg("text", { x: x(tick), y: top + side + 14, "text-anchor": "middle" }, String(100 * tick)),
    );
  }
  drawing.append(frame);
  const most = Math.max(...images);
  const floor = top + side + gap + strip;
  images.forEach((number, bin) => {
    if (!number) return;
    const accuracy = right[bin] / number;
    const confidence = sure[bin] / number;
    const bar = { x: left + bin * width + 1, width: width - 2 };
    const tip = `confidence ${(100 * confidence).toFixed(1)} %: ${(100 * accuracy).toFixed(1)} % right, ${number} images`;
    const column = svg("g", { class: "bin", opacity: number < total / 100 ? 0.4 : null }, svg("title", {}, tip));
    column.append(
      svg("rect", { ...bar, y: y(accuracy), height: accuracy * side, fill: color, opacity: 0.55 }),
      svg("rect", {
        ...bar,
        y: y(Math.max(accuracy, confidence)),
        height: Math.abs(accuracy - confidence) * side,
        fill: `url(#${hatch})`,
        stroke: color,
        "stroke-width": 0.8,
      }),
      svg("rect", { ...bar, y: floor - (number / most) * strip, height: (number / most) * strip, fill: "currentColor", opacity: 0.45 }),
    );
    drawing.append(column);
  });
  drawing.append(
    svg("path", { class: "diagonal", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }),
    svg("path", { class: "axis", d: `M${left} ${floor}H${left + side}` }),
    svg("text", { x: left - 5, y: floor - strip, dy: "0.7em", "text-anchor": "end", class: "small" }, `${Math.round((100 * most) / total)} %`),
    svg("text", { x: left + side / 2, y: floor + 14, "text-anchor": "middle", class: "small" }, "confidence (%)"),
  );
  const label = (text, middle) => svg("text", { class: "small", transform: `translate(11 ${middle}) rotate(-90)`, "text-anchor": "middle" }, text);
  drawing.append(label("accuracy (%)", top + side / 2), label("images", floor - strip / 2));
  return el("figure", { class: "diagram" }, el("figcaption", {}, swatch(style), el("b", {}, title), el("span", { class: "quiet" }, summary)), drawing);
}

/** As many columns as fit, fewer where the last row would hold a single diagram. */
function arrangeDiagrams(box) {
  const count = box.children.length;
  const most = Math.max(1, Math.floor((box.clientWidth + LEAST.gap) / (LEAST.width + LEAST.gap)));
  let columns = Math.min(most, count);
  while (columns > 1 && count % columns === 1) columns -= 1;
  box.style.gridTemplateColumns = `repeat(${columns === 1 ? Math.min(most, count) : columns}, minmax(0, 1fr))`;
}

function showDiagrams(shown) {
  const box = document.getElementById("diagrams");
  box.replaceChildren(...(shown.length ? shown.map(diagramNode) : [el("p", { class: "quiet" }, "No run is chosen.")]));
  arrangeDiagrams(box);
}
