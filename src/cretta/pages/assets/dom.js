// Small helpers: elements, numbers, long lists.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; children are text or nodes, never markup. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    // Colors are variables of the page, which attributes do not know everywhere.
    if (name === "fill" || name === "stroke") made.style[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Shows items a chunk at a time, more when the end comes into view; returns what shows others instead. */
function longList(box, make, chunk = 60, more = (text, go) => el("button", { type: "button", class: "more", onclick: go }, text)) {
  let items = [];
  let shown = 0;
  let end = null;
  const watcher = new IntersectionObserver((seen) => seen.some((item) => item.isIntersecting) && grow(), { rootMargin: "400px" });
  function grow() {
    if (end) {
      watcher.unobserve(end);
      end.remove();
      end = null;
    }
    const part = document.createDocumentFragment();
    for (const item of items.slice(shown, shown + chunk)) part.append(make(item));
    shown = Math.min(items.length, shown + chunk);
    box.append(part);
    if (shown < items.length) {
      end = more(`Show more: ${shown} of ${items.length} shown`, grow);
      box.append(end);
      watcher.observe(end);
    }
  }
  return (others) => {
    items = others;
    shown = 0;
    box.replaceChildren();
    end = null;
    grow();
  };
}

/** A number for a reader: four significant digits, no trailing zeros. */
function readable(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Sample deviation; null for a single value. */
function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

/** Calls once when things have settled for a moment. */
function settled(call, wait = 120) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), wait);
  };
}

/** Where a group of runs was run: its shift, and its setting where there are several. */
function whereOf(data, group) {
  const several = data.groups.some((item) => item.setting !== data.groups[0].setting);
  return several ? `${data.names[group.shift]} · ${data.names[group.setting]}` : data.names[group.shift];
}

/** Whether all words of the question occur. */
function matches(text, question) {
  const held = text.toLowerCase();
  return question.toLowerCase().split(/\s+/).every((word) => held.includes(word));
}
