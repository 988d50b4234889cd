// Draws every new picture on the page. CircuitsVis, unpacked once a page, makes a chart element of each cell of a map: 50 ms
// for 32 tokens. So every map is first painted, a pixel a cell, in the same colors, and that is what a printer or a picture
// of the whole page finds; CircuitsVis draws over it what is on the screen.
(() => {
"use strict";
const page = (window.mechplateauViews ||= { drawn: 0, library: null, palette: null });
// A map with more cells stays as painted: CircuitsVis would hold up the page for seconds.
const mostCells = 10000;
const negative = "#7f1426", positive = "#123a73";
const svgName = "http://www.w3.org/2000/svg";

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function bytesOf(base64) {
  const letters = atob(base64);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

const library = () => (page.library ||= unpack());

async function unpack() {
  if (window.CircuitsVis) return window.CircuitsVis;
  const packed = document.querySelector("script.mpv-library").textContent;
  const stream = new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
  document.head.append(Object.assign(element("script"), { textContent: await new Response(stream).text() }));
  return window.CircuitsVis;
}

// CircuitsVis finds the element to draw into by its id, so that it has to be on the page already.
function render(circuitsVis, target, component, props) {
  target.id = `mpv-${(page.drawn += 1)}`;
  circuitsVis.render(target.id, circuitsVis[component], props);
}

// CircuitsVis draws when React finds the time.
async function filled(target) {
  while (!target.firstElementChild) await new Promise((resolve) => setTimeout(resolve, 20));
}

// Calls `draw` once the element is on the screen, or nearly.
function onScreen(element, draw) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    draw();
  }, { rootMargin: "100px" });
  observer.observe(element);
}

const shades = 256;

// RGBA from the full negative color by way of white to the full positive one, mixed as CircuitsVis does.
function palette() {
  if (page.palette) return page.palette;
  const brush = Object.assign(document.createElement("canvas"), { width: 2 * shades + 1, height: 1 }).getContext("2d");
  for (let i = -shades; i <= shades; i += 1) {
    brush.fillStyle = `color-mix(in lab, ${i < 0 ? negative : positive} ${(100 * Math.abs(i)) / shades}%, white)`;
    brush.fillRect(shades + i, 0, 1, 1);
  }
  const { data } = brush.getImageData(0, 0, 2 * shades + 1, 1);
  return (page.palette = new Uint32Array(data.buffer));
}

function painted(view, values) {
  const n = view.tokens.length;
  const canvas = Object.assign(element("canvas", "mpv-painted"), { width: n, height: n });
  const brush = canvas.getContext("2d");
  const image = brush.createImageData(n, n);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = palette();
  const grey = 0xffc8c8c8;
  values.forEach((value, index) => {
    const part = Number.isFinite(value) ? Math.min(1, Math.max(-1, value / view.limit)) : 0;
    pixels[index] = view.causal && index % n > Math.floor(index / n) ? grey : colors[shades + Math.round(part * shades)];
  });
  brush.putImageData(image, 0, 0);
  return canvas;
}

const shown = (value) => Number(value.toPrecision(3)).toString().replace("-", "−");

function svg(tag, attributes) {
  const made = document.createElementNS(svgName, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function overlay(view, values) {
  const n = view.tokens.length;
  const over = svg("svg", { class: "mpv-over", viewBox: `0 0 ${n} ${n}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const gaps = values.flatMap((value, index) => (Number.isFinite(value) ? [] : [[index % n, Math.floor(index / n)]]));
  if (gaps.length) {
    over.append(svg("path", { class: "mpv-gap", d: gaps.map(([x, y]) => `M${x} ${y}h1v1h-1z`).join("") }));
    over.append(svg("path", { d: gaps.map(([x, y]) => `M${x + 0.2} ${y + 0.2}l.6 .6m0 -.6l-.6 .6`).join("") }));
  }
  view.outlines.forEach((outline, index) => {
    const d = outline.segments.map(([x0, y0, x1, y1]) => `M${x0 + 0.5} ${y0 + 0.5}L${x1 + 0.5} ${y1 + 0.5}`).join("");
    over.append(svg("path", { d, class: "mpv-outline", "stroke-dasharray": ["none", "5 3", "2 2"][index % 3] }));
  });
  return over;
}

function axis(tokens, side) {
  const made = element("div", `mpv-axis mpv-${side}`);
  made.style[side === "x" ? "gridTemplateColumns" : "gridTemplateRows"] = `repeat(${tokens.length}, minmax(0, 1fr))`;
  for (const token of tokens) made.append(Object.assign(element("span", "", token), { title: token }));
  return made;
}

// Where the cells are smaller than letters, only some labels show; all are there.
const thinLabels = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    for (const labels of target.parentElement.querySelectorAll(".mpv-axis")) {
      const every = Math.ceil((labels.children.length * 11) / contentRect.width);
      [...labels.children].forEach((label, index) => label.classList.toggle("mpv-quiet", index % every > 0));
    }
  }
});

function decode(base64) {
  return Array.from(new Float32Array(bytesOf(base64).buffer));
}

// The map itself, painted.
function stackOf(view, map) {
  const n = view.tokens.length;
  const values = (map.values ||= decode(map.data));
  const stack = element("div", "mpv-stack", painted(view, values), overlay(view, values));
  // Not as arguments of Math.min: a long sequence has more cells than a call may have.
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  const extent = low <= high ? `from ${shown(low)} to ${shown(high)}` : "every value is undefined";
  if (low > high) stack.append(element("span", "mpv-nothing", extent));
  stack.setAttribute("role", "img");
  stack.setAttribute("aria-label", `${map.name || view.title || "attention"}, ${n} tokens, ${extent}`);
  return stack;
}

async function drawOver(stack, view, { values }) {
  const n = view.tokens.length;
  const circuitsVis = await library();
  const target = element("div", "mpv-draw");
  stack.querySelector(".mpv-painted").after(target);
  const attention = Array.from({ length: n }, (_, row) =>
    values.slice(row * n, (row + 1) * n).map((value) => (Number.isFinite(value) ? value : 0)));
  render(circuitsVis, target, "AttentionPattern", {
    attention, tokens: view.tokens, minValue: -view.limit, maxValue: view.limit, negativeColor: negative,
    positiveColor: positive, maskUpperTri: view.causal, showAxisLabels: false,
  });
}

function figure(view, map, read) {
  const n = view.tokens.length;
  const stack = stackOf(view, map);
  const { values } = map;
  const grid = element("div", "mpv-grid", axis(view.tokens, "y"), stack, axis(view.tokens, "x"));
  const made = element("figure", "", ...(map.name ? [element("figcaption", "", map.name)] : []), grid);
  thinLabels.observe(stack);
  if (values.length <= mostCells) onScreen(stack, () => drawOver(stack, view, map));
  stack.addEventListener("pointermove", (event) => {
    const box = stack.getBoundingClientRect();
    const place = (at, start, size) => Math.min(n - 1, Math.max(0, Math.floor(((at - start) / size) * n)));
    const row = place(event.clientY, box.top, box.height), column = place(event.clientX, box.left, box.width);
    const value = values[row * n + column];
    read.textContent = `${map.name ? map.name + ": " : ""}query ${row} “${view.tokens[row]}” → key ${column} “${view.tokens[column]}”: `
      + (Number.isFinite(value) ? shown(value) : "undefined");
  });
  return made;
}

function bar(signed) {
  const made = element("i", "mpv-bar");
  const stops = (signed ? [negative, "white"] : ["white"]).concat(positive).join(", ");
  made.style.background = `linear-gradient(to right, ${stops})`;
  // As CircuitsVis mixes its colors.
  made.style.background = `linear-gradient(in lab to right, ${stops})`;
  return made;
}

function legend(view, signed, values) {
  const ends = [signed ? `−${shown(view.limit)}` : "0", shown(view.limit)];
  const name = view.label || "attention";
  const undefinedCount = countUndefined(values);
  const made = element("div", "mpv-legend");
  if (undefinedCount < values.length) made.append(element("span", "", ends[0], bar(signed), ends[1], " ", name, view.beyond ? `, values ${view.beyond}` : ""));
  if (undefinedCount) {
    const text = undefinedCount < values.length ? `undefined (${undefinedCount})` : `${name}: every value is undefined`;
    made.append(element("span", "", element("i", "mpv-box mpv-undefined"), text));
  }
  (view.outlines || []).forEach((outline, index) => {
    const box = element("i", "mpv-box");
    box.style.border = `2px ${["solid", "dashed", "dotted"][index % 3]} #111`;
    made.append(element("span", "", box, outline.name));
  });
  if (view.causal) {
    const box = element("i", "mpv-box");
    box.style.background = "rgb(200, 200, 200)";
    made.append(element("span", "", box, "above the diagonal (all 0)"));
  }
  return made;
}

const countUndefined = (values) => values.filter((value) => value === null || !Number.isFinite(value)).length;

function drawMaps(root, view) {
  const read = element("div", "mpv-read");
  const figures = view.maps.map((map) => figure(view, map, read));
  const maps = element("div", "mpv-maps" + (figures.length === 1 ? " mpv-one" : ""), ...figures);
  root.append(maps, read, legend(view, true, view.maps.flatMap((map) => map.values)));
}

function drawHeads(root, view) {
  const read = element("div", "mpv-read");
  const large = [];
  const place = element("div", "mpv-maps mpv-one");
  const buttons = view.maps.map((map, index) => {
    const button = element("button", "", stackOf(view, map), map.name);
    button.type = "button";
    button.addEventListener("click", () => choose(index));
    return button;
  });
  function choose(chosen) {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)));
    read.textContent = "";
    // A large map once drawn is kept: CircuitsVis cannot take its own away again.
    if (!large[chosen]) {
      large[chosen] = figure(view, view.maps[chosen], read);
      place.append(large[chosen]);
    }
    large.forEach((each, index) => { each.style.display = index === chosen ? "" : "none"; });
  }
  root.append(element("div", "mpv-heads", ...buttons), place, read, legend(view, true, view.maps.flatMap((map) => map.values)));
  choose(0);
}

// CircuitsVis sets a token as HTML.
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

async function drawTokens(root, view) {
  const read = element("div", "mpv-read");
  const rows = view.rows.map(() => element("div", "mpv-row"));
  root.append(...rows, read, legend(view, view.signed, view.rows.flatMap((row) => row.values)));
  const circuitsVis = await library();
  await Promise.all(rows.map(async (target, index) => {
    const { tokens, values } = view.rows[index];
    render(circuitsVis, target, "ColoredTokens", {
      tokens: tokens.map(escaped), values: values.map((value) => value ?? 0), minValue: -view.limit, maxValue: view.limit,
      negativeColor: negative, positiveColor: positive, paddingBottom: 0,
    });
    await filled(target);
    target.querySelectorAll(":scope > .colored-tokens > span").forEach((span, place) => {
      if (values[place] === null) span.classList.add("mpv-none");
      // CircuitsVis turns every space into a non-breaking one.
      span.firstElementChild.textContent = tokens[place];
      const text = `${place} “${tokens[place]}”: ${values[place] === null ? "undefined" : shown(values[place])}`;
      span.title = text;
      span.addEventListener("pointerenter", () => { read.textContent = text; });
    });
  }));
}

const drawers = { maps: drawMaps, heads: drawHeads, tokens: drawTokens };

async function draw(root) {
  root.dataset.mpv = "drawing";
  const view = JSON.parse(root.querySelector("script").textContent);
  if (view.title) root.append(element("h4", "", view.title));
  try {
    await drawers[view.kind](root, view);
    root.dataset.mpv = "drawn";
  } catch (error) {
    root.append(element("p", "mpv-error", `This view could not be drawn (${error}); it needs a browser of 2023 or newer.`));
  }
}

function drawAll() {
  for (const root of document.querySelectorAll('[data-mpv="new"]')) draw(root);
}

// Notebooks run a script before its output stands on the page: look again for a while.
drawAll();
const again = setInterval(drawAll, 100);
setTimeout(() => clearInterval(again), 10000);
})();
