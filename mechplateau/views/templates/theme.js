// Colors come from the style sheet, so that charts follow dark mode and print in light colors.
const page = document.documentElement;
const coarsePointer = matchMedia("(pointer: coarse)").matches;
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

const color = (name) => getComputedStyle(page).getPropertyValue("--" + name).trim();
const colors = (name) => color(name).split(",").map((part) => part.trim());
const printing = () => page.classList.contains("printing");

// plotly reads tags and entities in its texts: whatever comes from outside goes through here.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function floats(base64) {
  return new Float32Array(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);
}

// A point between equally spaced hex colors, for t from 0 to 1.
function between(stops, t) {
  const place = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) =>
    Math.round(channel(stops[low], i) + (place - low) * (channel(stops[low + 1], i) - channel(stops[low], i))));
  return `rgb(${mixed.join(",")})`;
}

const scaleOf = (stops) => stops.map((stop, i) => [i / (stops.length - 1), stop]);

const chartConfig = {
  displaylogo: false,
  responsive: true,
  // Its buttons have no names and would stand in the way of the Tab key, seven for each chart.
  displayModeBar: false,
};

function baseLayout(extra) {
  const axis = { gridcolor: color("grid"), linecolor: color("line"), zeroline: false, automargin: true };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("muted") },
    margin: { l: 48, r: 12, t: 10, b: 40 },
    showlegend: false,
    // On a touch screen dragging scrolls the page.
    dragmode: coarsePointer ? false : "zoom",
    hoverlabel: { bgcolor: color("sheet"), bordercolor: color("line"), font: { color: color("ink") } },
    ...extra,
  };
  for (const name of ["xaxis", "yaxis"]) layout[name] = { ...axis, ...(extra[name] || {}) };
  return layout;
}

// Every chart is a function that draws itself; all are drawn anew when the colors or the paper change.
const drawings = [];

function draw(chart, traces, layout, paper) {
  // A printed page has a width of its own, unknown to the screen's layout.
  const size = printing() ? { width: paper[0], height: paper[1], autosize: false } : { autosize: true };
  return Plotly.react(chart, traces, { ...layout, ...size }, chartConfig);
}

function addDrawing(drawing) {
  drawings.push(drawing);
  drawing();
}

function redraw() {
  for (const drawing of drawings) drawing();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => {
  page.classList.add("printing");
  for (const details of document.querySelectorAll("details:not([open]):not(.term)")) {
    details.open = true;
    details.dataset.closed = "";
  }
  redraw();
});
addEventListener("afterprint", () => {
  page.classList.remove("printing");
  for (const details of document.querySelectorAll("details[data-closed]")) {
    details.open = false;
    delete details.dataset.closed;
  }
  redraw();
});

const data = JSON.parse(document.getElementById("data").textContent);
