// Signed maps: attention and COS, on a scale symmetric around 0.
const mapPaper = [208, 214];

function floats(base64) {
  return new Float32Array(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);
}

// Rows of one map out of many that lie one after the other.
function mapAt(values, index, rows, columns) {
  const start = index * rows * columns;
  return Array.from({ length: rows }, (_, row) =>
    Array.from(values.subarray(start + row * columns, start + (row + 1) * columns)));
}

function extent(map) {
  let low = Infinity, high = -Infinity, undefinedCells = 0;
  for (const row of map) {
    for (const value of row) {
      if (!Number.isFinite(value)) undefinedCells += 1;
      else { low = Math.min(low, value); high = Math.max(high, value); }
    }
  }
  const empty = low > high;
  return { low, high, undefinedCells, empty, limit: empty ? null : Math.max(Math.abs(low), Math.abs(high)) || 1 };
}

const shown = (value) => (value === 0 ? "0" : Number(value.toPrecision(2)).toString().replace("-", "−"));

// A limit of null says that there is no value that could have a scale.
function signedTraces(map, limit, hover, compact) {
  const traces = [{
    type: "heatmap", z: map.map((row) => row.map((value) => (Number.isFinite(value) ? value : null))),
    ...(limit === null ? {} : { zmin: -limit, zmax: limit }), colorscale: scaleOf(colors("map")), hoverongaps: false, hovertemplate: hover,
    showscale: !compact && limit !== null, xgap: 0, ygap: 0,
    colorbar: { thickness: 10, len: 1, outlinewidth: 0, tickfont: { size: 10 }, x: 1.02 },
  }];
  const gaps = { x: [], y: [] };
  map.forEach((row, y) => row.forEach((value, x) => {
    if (!Number.isFinite(value)) { gaps.x.push(x); gaps.y.push(y); }
  }));
  if (gaps.x.length) {
    const flat = color("undefined");
    traces.push({
      type: "heatmap", z: map.map((row) => row.map((value) => (Number.isFinite(value) ? null : 1))),
      colorscale: [[0, flat], [1, flat]], showscale: false, hoverongaps: false,
      hovertemplate: "(%{y}, %{x}): undefined<extra></extra>",
    }, {
      type: "scatter", mode: "markers", ...gaps, hoverinfo: "skip",
      marker: { symbol: "x-thin", size: compact ? 4 : 7, line: { width: 1.2, color: "#111111" } },
    });
  }
  return traces;
}

function outlineTraces(targets, layer, compact) {
  return targets.filter((target) => target.layer === layer).map((target, index) => {
    const x = [], y = [];
    for (const [x0, y0, x1, y1] of target.segments) { x.push(x0, x1, null); y.push(y0, y1, null); }
    return {
      type: "scatter", mode: "lines", x, y, name: plain(target.name), hoverinfo: "skip",
      line: { color: color("outline"), width: compact ? 1 : 1.6, dash: dashes[index % dashes.length] },
    };
  });
}

// The divider is the row at which outputs begin; groups are positions before which a line parts the map both ways.
function mapLayout(rows, columns, xTitle, yTitle, { divider = null, groups = [], compact }) {
  const line = (across, at, dash) => ({ type: "line", xref: "x", yref: "y", layer: "above",
    x0: across ? -0.5 : at - 0.5, x1: across ? columns - 0.5 : at - 0.5,
    y0: across ? at - 0.5 : -0.5, y1: across ? at - 0.5 : rows - 0.5,
    line: { color: color("muted"), width: dash ? 1 : 0.6, dash: dash ?? "solid" } });
  const axis = { showgrid: false, ticks: "outside", ticklen: 3, constrain: "domain", nticks: compact ? 4 : 9,
    showline: true, mirror: true };
  return baseLayout({
    margin: compact ? { l: 30, r: 4, t: 4, b: 30 } : { l: 46, r: 52, t: 8, b: 42 },
    font: { family: getComputedStyle(document.body).fontFamily, size: compact ? 9 : 12, color: color("muted") },
    xaxis: { ...axis, range: [-0.5, columns - 0.5], title: { text: xTitle, standoff: 6 } },
    yaxis: { ...axis, range: [rows - 0.5, -0.5], scaleanchor: "x", constraintoward: "top", title: { text: yTitle, standoff: 6 } },
    shapes: [...groups.flatMap((at) => [line(true, at), line(false, at)]), ...(divider ? [line(true, divider, "dot")] : [])],
  });
}

const nothing = "every value is undefined (yellow with a ×)";

function undefinedNote({ empty, undefinedCells: count }) {
  return count && !empty ? ` ${count} undefined ${count === 1 ? "cell is" : "cells are"} yellow with a ×.` : "";
}
