// Draws every new picture on the page with CircuitsVis, which is unpacked once a page.
(() => {
"use strict";
const page = (window.mechplateauViews ||= { drawn: 0, library: null });
const negative = "#7f1426", positive = "#123a73";
const svgName = "http://www.w3.org/2000/svg";

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

async function unpack() {
  if (window.CircuitsVis) return window.CircuitsVis;
  const packed = document.querySelector("script.mpv-library").textContent;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
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

const shown = (value) => Number(value.toPrecision(3)).toString().replace("-", "−");

function svg(tag, attributes) {
  const made = document.createElementNS(svgName, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function overlay(view, values) {
  const n = view.tokens.length;
  const over = svg("svg", { class: "mpv-over", viewBox: `0 0 ${n} ${n}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  values.forEach((value, index) => {
    if (Number.isFinite(value)) return;
    const [x, y] = [index % n, Math.floor(index / n)];
    over.append(svg("rect", { x, y, width: 1, height: 1 }));
    over.append(svg("path", { d: `M${x + 0.2} ${y + 0.2}l.6 .6m0 -.6l-.6 .6` }));
  });
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
function thinLabels(grid, n) {
  const every = Math.ceil((n * 11) / grid.querySelector(".mpv-stack").clientWidth);
  for (const labels of grid.querySelectorAll(".mpv-axis")) {
    [...labels.children].forEach((label, index) => label.classList.toggle("mpv-quiet", index % every > 0));
  }
}

function decode(base64) {
  return Array.from(new Float32Array(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer));
}

// The map itself, to be drawn once it is on the page.
function stackOf(view, map) {
  const n = view.tokens.length;
  const values = (map.values ||= decode(map.data));
  const target = element("div", "mpv-draw");
  const stack = element("div", "mpv-stack", target, overlay(view, values));
  // Not as arguments of Math.min: a long sequence has more cells than a call may have.
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  const extent = low <= high ? `from ${shown(low)} to ${shown(high)}` : "undefined";
  stack.setAttribute("role", "img");
  stack.setAttribute("aria-label", `${map.name || view.title || "attention"}, ${n} tokens, ${extent}`);
  const attention = Array.from({ length: n }, (_, row) =>
    values.slice(row * n, (row + 1) * n).map((value) => (Number.isFinite(value) ? value : 0)));
  const draw = (circuitsVis) => render(circuitsVis, target, "AttentionPattern", {
    attention, tokens: view.tokens, minValue: -view.limit, maxValue: view.limit, negativeColor: negative,
    positiveColor: positive, maskUpperTri: view.causal, showAxisLabels: false,
  });
  return { stack, draw, values };
}

function figure(view, map, read) {
  const n = view.tokens.length;
  const { stack, draw, values } = stackOf(view, map);
  const grid = element("div", "mpv-grid", axis(view.tokens, "y"), stack, axis(view.tokens, "x"));
  const made = element("figure", "", ...(map.name ? [element("figcaption", "", map.name)] : []), grid);
  new ResizeObserver(() => thinLabels(grid, n)).observe(stack);
  stack.addEventListener("pointermove", (event) => {
    const box = stack.getBoundingClientRect();
    const place = (at, start, size) => Math.min(n - 1, Math.max(0, Math.floor(((at - start) / size) * n)));
    const row = place(event.clientY, box.top, box.height), column = place(event.clientX, box.left, box.width);
    const value = values[row * n + column];
    read.textContent = `${map.name ? map.name + ": " : ""}query ${row} “${view.tokens[row]}” → key ${column} “${view.tokens[column]}”: `
      + (Number.isFinite(value) ? shown(value) : "undefined");
  });
  return { made, draw };
}

function bar(signed) {
  const made = element("i", "mpv-bar");
  const stops = (signed ? [negative, "white"] : ["white"]).concat(positive).join(", ");
  made.style.background = `linear-gradient(to right, ${stops})`;
  // As CircuitsVis mixes its colors.
  made.style.background = `linear-gradient(in lab to right, ${stops})`;
  return made;
}

function legend(view, signed, undefinedCount) {
  const ends = [signed ? `−${shown(view.limit)}` : "0", shown(view.limit)];
  const made = element("div", "mpv-legend", element("span", "", ends[0], bar(signed), ends[1], " ", view.label || "attention"));
  if (undefinedCount) {
    made.append(element("span", "", element("i", "mpv-box mpv-undefined"), `undefined (${undefinedCount})`));
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

function drawMaps(circuitsVis, root, view) {
  const read = element("div", "mpv-read");
  const figures = view.maps.map((map) => figure(view, map, read));
  const maps = element("div", "mpv-maps" + (figures.length === 1 ? " mpv-one" : ""), ...figures.map(({ made }) => made));
  const count = view.maps.reduce((sum, map) => sum + countUndefined(map.values), 0);
  root.append(maps, read, legend(view, true, count));
  for (const { draw } of figures) draw(circuitsVis);
}

function drawHeads(circuitsVis, root, view) {
  const read = element("div", "mpv-read");
  const small = view.maps.map((map) => stackOf(view, map));
  const large = [];
  const place = element("div", "mpv-maps mpv-one");
  const buttons = view.maps.map((map, index) => {
    const button = element("button", "", small[index].stack, map.name);
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
      place.append(large[chosen].made);
      large[chosen].draw(circuitsVis);
    }
    large.forEach((each, index) => { each.made.style.display = index === chosen ? "" : "none"; });
  }
  const count = view.maps.reduce((sum, map) => sum + countUndefined(map.values), 0);
  root.append(element("div", "mpv-heads", ...buttons), place, read, legend(view, true, count));
  for (const { draw } of small) draw(circuitsVis);
  choose(0);
}

// CircuitsVis sets a token as HTML.
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function drawTokens(circuitsVis, root, view) {
  const read = element("div", "mpv-read");
  const rows = view.rows.map(() => element("div", "mpv-row"));
  root.append(...rows, read, legend(view, view.signed, countUndefined(view.rows.flatMap((row) => row.values))));
  rows.forEach((target, index) => {
    const { tokens, values } = view.rows[index];
    render(circuitsVis, target, "ColoredTokens", {
      tokens: tokens.map(escaped), values: values.map((value) => value ?? 0), minValue: -view.limit, maxValue: view.limit,
      negativeColor: negative, positiveColor: positive, paddingBottom: 0,
    });
    filled(target).then(() => {
      target.querySelectorAll(":scope > .colored-tokens > span").forEach((span, place) => {
        if (values[place] === null) span.classList.add("mpv-none");
        // CircuitsVis turns every space into a non-breaking one.
        span.firstElementChild.textContent = tokens[place];
        const text = `${place} “${tokens[place]}”: ${values[place] === null ? "undefined" : shown(values[place])}`;
        span.title = text;
        span.addEventListener("pointerenter", () => { read.textContent = text; });
      });
    });
  });
}

const drawers = { maps: drawMaps, heads: drawHeads, tokens: drawTokens };

async function draw(root) {
  root.dataset.mpv = "drawing";
  const view = JSON.parse(root.querySelector("script").textContent);
  if (view.title) root.append(element("h4", "", view.title));
  try {
    page.library ||= unpack();
    drawers[view.kind](await page.library, root, view);
    await Promise.all([...root.querySelectorAll(".mpv-draw, .mpv-row")].map(filled));
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
