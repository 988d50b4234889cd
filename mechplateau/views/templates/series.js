// The page of a series of checkpoints: curves with what is doubtful or missing, COS at every layer, and the heads.
const byId = (id) => document.getElementById(id);
const { steps } = data;
const seriesPaper = [314, 185], layersPaper = [650, 220];

// Training steps span so much that an even axis would hide the early ones: even up to 1, then a tenth power a unit.
const unitOfOne = 0.4;
const placeOf = (step) => (!data.logarithmic ? step : step < 1 ? unitOfOne * step : unitOfOne + Math.log10(step));
const places = steps.map(placeOf);
const short = (step) => (step < 1e4 ? String(step) : `${Number((step / 1e3).toPrecision(3))}k`);

function stepsAxis(chart) {
  const axis = { title: { text: "step", standoff: 6 }, ...keepRange(chart) };
  if (!data.logarithmic) return axis;
  const most = Math.max(...steps);
  const ticks = [0, ...Array.from({ length: 16 }, (_, power) => 10 ** power)].filter((step) => step <= most && step >= Math.min(...steps));
  return { ...axis, tickmode: "array", tickvals: ticks.map(placeOf), ticktext: ticks.map(short) };
}

// Numbers of some checkpoints as one trace; a gap parts the lines.
function pieces(values, lines) {
  const x = [], y = [], customdata = [];
  for (const line of lines) {
    for (const row of line) { x.push(places[row]); y.push(values[row]); customdata.push(steps[row]); }
    x.push(null); y.push(null); customdata.push(null);
  }
  return { x, y, customdata };
}

const doubt = (values) => ({
  type: "scatter", mode: "markers", name: "doubtful", x: data.doubtful.map((row) => places[row]), y: data.doubtful.map((row) => values[row]),
  customdata: data.doubtful.map((row) => steps[row]), hovertemplate: "doubtful, step %{customdata}: %{y:.3~g}<extra></extra>",
  marker: { symbol: "x-thin", size: 8, line: { width: 2, color: color("wrong-ink") } },
});
const absences = () => data.absent.map((row) => ({
  type: "line", xref: "x", yref: "paper", x0: places[row], x1: places[row], y0: 0, y1: 1, layer: "below",
  line: { color: color("c-data"), width: 1.2, dash: "dot" },
}));

function addSeries(parent, { title, axis, color: key, term, values }) {
  const { chart } = panelFrame(parent, title, `${title} over the training steps`, term);
  addDrawing(() => {
    const stroke = { color: color("c-" + key), width: 2.2 };
    draw(chart, [{
      type: "scatter", mode: "lines+markers", name: plain(title), ...pieces(values, data.lines), connectgaps: false, line: stroke,
      marker: { size: 5, color: stroke.color }, hovertemplate: "step %{customdata}: %{y:.3~g}<extra></extra>",
    }, doubt(values)], baseLayout({
      xaxis: stepsAxis(chart), yaxis: { title: { text: axis, standoff: 6 }, rangemode: "tozero" }, hovermode: "closest", shapes: absences(),
    }), seriesPaper);
    link(chart);
  });
}

function addHeads(parent, { title, deepest, lines }) {
  const { keys, chart } = panelFrame(parent, title, `Share of each head's attention over the training steps: ${title}`);
  addDrawing(() => {
    const tone = (layer) => between(colors("shades"), layer / Math.max(1, deepest));
    keys.replaceChildren(...[...new Set([0, Math.floor(deepest / 2), deepest])].map((layer) => key(`layer ${layer}`, { color: tone(layer) })));
    draw(chart, lines.map(({ name, layer, values }) => ({
      type: "scatter", mode: "lines", name, ...pieces(values, data.lines), connectgaps: false, line: { color: tone(layer), width: 1.3 },
      hovertemplate: `${name}, step %{customdata}: %{y:.3~g}<extra></extra>`,
    })), baseLayout({
      xaxis: stepsAxis(chart), yaxis: { title: { text: "share of attention", standoff: 6 }, rangemode: "tozero" }, hovermode: "closest",
    }), seriesPaper);
    link(chart);
  });
}

// Columns are evenly spaced, so that every checkpoint has a cell.
function addLayers(parent) {
  const { names, signed } = data.layers;
  const { chart } = panelFrame(parent, "COS at every layer", "COS at every layer: place in the model by checkpoint", data.panels[0].term);
  const map = floats(data.layers.data);
  const rows = names.map((_, row) => Array.from(map.subarray(row * steps.length, (row + 1) * steps.length), (value) => (Number.isFinite(value) ? value : null)));
  addDrawing(() => {
    const fit = Math.max(1, Math.floor((printing() ? 600 : chart.clientWidth) / 48));
    const every = Math.ceil(steps.length / fit);
    const ticks = steps.map((_, index) => index).filter((index) => index % every === 0);
    draw(chart, [{
      type: "heatmap", z: rows, y: names.map((_, row) => row), zmin: signed ? -1 : 0, zmax: 1,
      colorscale: scaleOf(signed ? colors("map") : [color("sheet"), color("c-cos")]), hoverongaps: false, xgap: 1, ygap: 1,
      customdata: rows.map((_, row) => steps.map((step) => [names[row], step])),
      hovertemplate: "%{customdata[0]}, step %{customdata[1]}: %{z:.3~g}<extra></extra>",
      colorbar: { thickness: 8, len: 1, outlinewidth: 0, tickfont: { size: 10 }, x: 1.02 },
    }, {
      type: "scatter", mode: "markers", x: data.doubtful, y: data.doubtful.map(() => names.length), hovertemplate: "doubtful<extra></extra>",
      marker: { symbol: "x-thin", size: 8, line: { width: 2, color: color("wrong-ink") } },
    }], baseLayout({
      margin: { l: 40, r: 44, t: 10, b: 40 }, plot_bgcolor: color("grid"),
      xaxis: { title: { text: "step (evenly spaced)", standoff: 6 }, showgrid: false, tickmode: "array", tickvals: ticks, ticktext: ticks.map((index) => short(steps[index])) },
      yaxis: { showgrid: false, tickmode: "array", range: [-0.5, names.length - 0.5 + (data.doubtful.length ? 1 : 0)],
        ...layerTicks(names, data.doubtful.length) },
      hovermode: "closest",
    }), layersPaper);
  });
}

function layerTicks(names, doubtful) {
  const every = Math.ceil(names.length / 12);
  const kept = names.map((_, row) => row).filter((row) => row === names.length - 1 || (row % every === 0 && row < names.length - every));
  return { tickvals: [...kept, ...(doubtful ? [names.length] : [])], ticktext: [...kept.map((row) => names[row]), ...(doubtful ? ["doubtful"] : [])] };
}

if (data.measured) {
  for (const panel of data.panels) addSeries(byId("panels"), panel);
  addLayers(byId("layers"));
}
for (const panel of data.heads) addHeads(byId("heads"), panel);
