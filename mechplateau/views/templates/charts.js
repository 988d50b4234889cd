// Curves over the steps, and pictures of output position × step.
const panelPaper = [208, 188], widePaper = [314, 222];
const dashes = ["solid", "dash", "dot", "dashdot"];

function plateauShapes(plateau) {
  if (!plateau || plateau.onset === null || plateau.drop === null) return [];
  const all = { xref: "x", yref: "paper", y0: 0, y1: 1, layer: "below" };
  return [
    { ...all, type: "rect", x0: plateau.onset, x1: plateau.drop, fillcolor: color("plateau"), line: { width: 0 } },
    { ...all, type: "line", x0: plateau.drop, x1: plateau.drop,
      line: { color: color("plateau-edge"), width: 1.2, dash: "dash" } },
  ];
}

const unitRange = (unit) => (unit ? { range: [-0.03, 1.03] } : {});
// Steps and positions are whole numbers, and so are their ticks.
const wholeTicks = (span, most) => ({ dtick: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((step) => span / step <= most) ?? 2000 });
const stepsOf = (steps) => (steps.length && steps[steps.length - 1] - steps[0] <= 5 ? { ...stepAxis, ...wholeTicks(5, 5) } : stepAxis);
const stepAxis = { title: { text: "step", standoff: 6 }, unifiedhovertitle: { text: "step %{x}" } };

// Zooming one chart along the steps zooms the others with it.
const linked = [];
let linking = false;

function link(chart) {
  if (linked.includes(chart)) return;
  linked.push(chart);
  chart.on("plotly_relayout", (change) => {
    if (linking || !Object.keys(change).some((key) => key.startsWith("xaxis."))) return;
    const range = "xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null;
    const update = range ? { "xaxis.range": range } : { "xaxis.autorange": true };
    linking = true;
    Promise.all(linked.filter((other) => other !== chart).map((other) => Plotly.relayout(other, update)))
      .finally(() => { linking = false; });
  });
}

// A line needs two points: a value with no defined neighbor is drawn as a dot.
function lineAndDots(values, width) {
  const undefinedAt = (index) => (values[index] ?? null) === null;
  const alone = values.map((value, index) => value !== null && undefinedAt(index - 1) && undefinedAt(index + 1));
  if (!alone.some(Boolean)) return { mode: "lines" };
  return { mode: "lines+markers", marker: { size: alone.map((dot) => (dot ? 2.5 * width : 0)), line: { width: 0 } } };
}

function curve(curves, line, style, extra = {}) {
  const values = curves.columns[line.column];
  return {
    type: "scatter", ...lineAndDots(values, style.width), name: plain(line.label), x: curves.steps, y: values,
    line: { color: style.color, width: style.width, dash: style.dash }, connectgaps: false,
    hovertemplate: "%{y:.3~g}", ...extra,
  };
}

// Where single points are hovered over, nothing else names the step.
const hoverAlone = "%{fullData.name}, step %{x}: %{y:.3~g}<extra></extra>";

function lineStyle(panel, line, index) {
  if (line.role === "data") return { color: color("c-data"), width: 1.5, dash: "dot" };
  const tone = panel.lines.length > dashes.length && index
    ? between(colors("shades"), index / (panel.lines.length - 1)) // more lines than dashes can tell apart
    : color("c-" + panel.color);
  return { color: tone, width: index ? 1.8 : 2.2, dash: dashes[index % dashes.length] };
}

function outputTraces(panel, curves) {
  const shades = colors("shades");
  return panel.outputs.map((column, index) => ({
    type: "scatter", ...lineAndDots(curves.columns[column], 1), x: curves.steps, y: curves.columns[column], connectgaps: false,
    name: "output " + column.split("_").pop(), opacity: 0.8,
    line: { color: between(shades, index / Math.max(1, panel.outputs.length - 1)), width: 1 },
    hovertemplate: hoverAlone,
  }));
}

function key(text, style) {
  const stroke = element("i");
  stroke.style.setProperty("--k", style.color);
  stroke.style.borderTopStyle = { dash: "dashed", dot: "dotted", dashdot: "dashed" }[style.dash] || "solid";
  return element("span", {}, stroke, text);
}

function explanation(term, title) {
  if (!term) return "";
  const summary = element("summary", { title: "What is this?" },
    element("span", { textContent: "?", ariaHidden: "true" }), element("span", { className: "hidden", textContent: `What is ${title}?` }));
  return element("details", { className: "term" }, summary, element("p", { textContent: term }));
}

function panelFrame(parent, title, label, term = "") {
  const keys = element("div", { className: "keys" });
  const chart = element("div", { className: "chart" });
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", label);
  parent.append(element("div", { className: "panel" }, element("h3", {}, title, " ", explanation(term, title)), keys, chart));
  return { keys, chart };
}

// The loss that is left to chance, as a line with its name.
function floorOf(panel, floor) {
  if (floor === null || floor === undefined || panel.lines[0].column !== "loss") return { shapes: [], annotations: [] };
  const line = { type: "line", xref: "paper", x0: 0, x1: 1, yref: "y", y0: floor, y1: floor,
    line: { color: color("c-data"), width: 1, dash: "dot" } };
  return { shapes: [line], annotations: [{ text: "floor: random inputs", xref: "paper", x: 0, xanchor: "left", yref: "y", y: floor,
    yanchor: "bottom", showarrow: false, font: { size: 10, color: color("muted") } }] };
}

// Of many lines the key has the names alone; their meanings are behind the question mark.
const keyText = (panel, line) => (panel.lines.length > dashes.length ? line.label.split(": ")[0] : line.label);

function addPanel(parent, panel, curves, plateau, floor = null) {
  const { keys, chart } = panelFrame(parent, panel.title, `${panel.title} over the steps`, panel.term);
  addDrawing(() => {
    keys.replaceChildren();
    if (panel.lines.length > 1 || panel.outputs.length) {
      panel.lines.forEach((line, index) => keys.append(key(keyText(panel, line), lineStyle(panel, line, index))));
    }
    if (panel.outputs.length) {
      const strip = element("i", { className: "shades" });
      const shades = colors("shades");
      strip.style.background = `linear-gradient(90deg, ${shades.join(",")})`;
      keys.append(element("span", {}, strip, `output 0 … ${panel.outputs.length - 1}`));
    }
    const traces = [
      ...outputTraces(panel, curves),
      ...panel.lines.map((line, index) => curve(curves, line, lineStyle(panel, line, index),
        panel.outputs.length ? { hovertemplate: hoverAlone } : {})),
    ];
    draw(chart, traces, baseLayout({
      xaxis: { ...stepsOf(curves.steps), ...keepRange(chart) },
      yaxis: { title: { text: plain(panel.axis), standoff: 6 }, ...unitRange(panel.unit) },
      hovermode: panel.outputs.length ? "closest" : "x unified",
      shapes: [...plateauShapes(plateau), ...floorOf(panel, floor).shapes],
      annotations: floorOf(panel, floor).annotations,
    }), panelPaper);
    link(chart);
  });
}

// A redraw for new colors keeps the zoom.
function keepRange(chart) {
  const axis = chart.layout && chart.layout.xaxis;
  return axis && axis.range && !axis.autorange ? { range: [...axis.range], autorange: false } : {};
}

function addOutputMap(parent, picture, curves, plateau, title = picture.title) {
  const { chart } = panelFrame(parent, title, `${title}: output position by step`, picture.term);
  addDrawing(() => {
    const signed = picture.limits && picture.limits[0] < 0;
    const edge = { xref: "x", yref: "paper", y0: 0, y1: 1, type: "line" };
    const steps = plateau ? [plateau.onset, plateau.drop].filter((step) => step !== null) : [];
    draw(chart, [{
      type: "heatmap", x: curves.steps, y: picture.positions, z: picture.columns.map((name) => curves.columns[name]),
      zmin: picture.limits ? picture.limits[0] : undefined, zmax: picture.limits ? picture.limits[1] : undefined,
      colorscale: scaleOf(signed ? colors("map") : [color("sheet"), color("c-" + picture.key)]),
      colorbar: { thickness: 8, len: 1, outlinewidth: 0, tickfont: { size: 10 }, x: 1.02, nticks: 5 },
      hoverongaps: false,
      hovertemplate: "output %{y}, step %{x}: %{z:.3~g}<extra></extra>",
    }], baseLayout({
      margin: { l: 40, r: 44, t: 10, b: 40 },
      xaxis: { ...stepsOf(curves.steps), showgrid: false, ...keepRange(chart) },
      yaxis: { title: { text: "output", standoff: 6 }, autorange: "reversed", showgrid: false, ...wholeTicks(picture.positions.length, 6) },
      plot_bgcolor: color("grid"),
      shapes: steps.map((step) => ({ ...edge, x0: step, x1: step, line: { color: color("plateau-edge"), width: 1.2, dash: step === plateau.drop ? "dash" : "dot" } })),
    }), [208, 150]);
    link(chart);
  });
}
