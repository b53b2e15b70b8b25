// One chart: uPlot draws it, the caption says it in words.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-preact.js";
import { clock, minute, NONE, round } from "./format.js";
import { useWidth } from "./width.js";

const HEIGHT = 132;
const SPAN_S = 900;
/** A young router's chart is not stretched beyond this. */
const LEAST_SPAN_S = 120;
const dark = matchMedia("(prefers-color-scheme: dark)");

export function Chart({ title, format, series, points, nowS, top, least, steps }) {
  const [ref, width] = useWidth();
  const [hovered, setHovered] = useState(null);
  const [scheme, setScheme] = useState(dark.matches);
  const plot = useRef(null);
  const latest = useRef({});
  const fromS = Math.max(nowS - SPAN_S, Math.min(points[0]?.at_s ?? nowS, nowS - LEAST_SPAN_S));
  latest.current = { nowS, fromS, setHovered, format };
  const names = series.map(([name]) => name).join("\n");
  const columns = series.map(([, value]) => points.map(value));

  useEffect(() => {
    const change = () => setScheme(dark.matches);
    dark.addEventListener("change", change);
    return () => dark.removeEventListener("change", change);
  }, []);

  useLayoutEffect(() => {
    if (!width || !series.length) return undefined;
    plot.current = new window.uPlot(options({ width, series, latest, top, least, steps }), [[], ...columns.map(() => [])], ref.current);
    return () => {
      plot.current.destroy();
      plot.current = null;
    };
  }, [width, names, scheme]);

  useLayoutEffect(() => {
    plot.current?.setData([points.map((point) => point.at_s), ...columns]);
  });

  const place = hovered !== null && hovered < points.length ? hovered : null;
  const shownAt = (column) => (place === null ? lastKnown(column) : column[place]);
  const nothing = columns.every((column) => column.every((value) => value === null));
  return html`
    <figure class="chart">
      <figcaption>
        <h3><span>${title}</span>${place !== null && html` <span class="muted small">${clock(points[place].at_s)}</span>`}</h3>
        ${series.map(([name], number) => html`
          <span class="legend series-${number + 1}" key=${name}><i></i><span class="muted">${name}</span> <b>${format(shownAt(columns[number]) ?? null)}</b></span>`)}
      </figcaption>
      <div class="plot" role="img" aria-label=${describe(title, series, columns, format)}>
        <div ref=${ref}></div>
        ${nothing && html`<div class="nothing">Nothing to show yet</div>`}
      </div>
    </figure>
  `;
}

function options({ width, series, latest, top, least, steps }) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const font = `11px ${style.getPropertyValue("--sans")}`;
  const paths = steps ? window.uPlot.paths.stepped({ align: 1 }) : undefined;
  return {
    width,
    height: HEIGHT,
    padding: [8, 14, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "baton", setSeries: false }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
    scales: {
      x: { time: false, range: () => [latest.current.fromS, latest.current.nowS] },
      y: { range: (_, __, max) => [0, top ?? Math.max(least ?? 0, (max || 1) * 1.08)] },
    },
    axes: [
      { stroke: colour("muted"), font, size: 24, gap: 4, space: 56, incrs: [30, 60, 120, 300, 600], grid: { show: false }, ticks: { stroke: colour("line"), size: 4 }, values: (_, splits) => splits.map(splits[1] - splits[0] < 60 ? clock : minute) },
      { stroke: colour("muted"), font, size: 52, gap: 4, space: 30, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, values: (_, splits) => splits.map((split) => round(latest.current.format(split))) },
    ],
    series: [
      {},
      ...series.map((_, number) => ({
        stroke: colour(`series-${number + 1}`), width: 1.6, paths,
        points: { show: true, size: 4, width: 0, fill: colour(`series-${number + 1}`), filter: lonely },
      })),
    ],
    hooks: { setCursor: [(self) => latest.current.setHovered(self.cursor.idx ?? null)] },
  };
}

/** A line needs two points: those with nothing beside them are drawn as dots. */
function lonely(plot, seriesIndex) {
  const values = plot.data[seriesIndex];
  const found = [];
  for (let place = 0; place < values.length; place += 1) {
    if (values[place] != null && values[place - 1] == null && values[place + 1] == null) found.push(place);
  }
  return found;
}

function lastKnown(column) {
  for (let place = column.length - 1; place >= 0; place -= 1) if (column[place] !== null) return column[place];
  return null;
}

function describe(title, series, columns, format) {
  const parts = series.map(([name], number) => {
    const known = columns[number].filter((value) => value !== null);
    if (!known.length) return `${name}: nothing yet`;
    return `${name}: last ${format(known.at(-1))}, lowest ${format(Math.min(...known))}, highest ${format(Math.max(...known))}`;
  });
  return `${title} over the last 15 minutes. ${parts.join("; ") || NONE}.`;
}
