// The picture: prefill workers on the left, decode workers on the right, blocks between them.

import { html } from "../vendor/htm-preact.js";
import { bytes, bytesPerS, count, number } from "./format.js";
import { useWidth } from "./width.js";

const ROW = 58;
const BOX = 44;
const MAX_ROWS = 8;
/** A link without a transfer for so long stands still. */
const MOVING_S = 2.5;
/** Narrower pictures have no room for rates beside the wires: the table has them. */
const LABELS_FROM = 560;
const GONE = new Set(["left", "lost"]);

export function Flow({ links, workers }) {
  const [ref, width] = useWidth();
  const sides = ["prefill", "decode"].map((role) => workers.filter((worker) => worker.role === role));
  const shown = sides.map((side) => side.slice(0, MAX_ROWS));
  const rows = Math.max(1, ...shown.map((side) => side.length));
  const height = rows * ROW + 6;
  const box = Math.min(190, Math.floor(width * 0.36));
  const places = new Map();
  shown.forEach((side, right) => {
    const top = (height - side.length * ROW) / 2;
    side.forEach((worker, row) => {
      places.set(worker.name, { worker, right, x: right ? width - box : 0, y: top + row * ROW + ROW / 2 });
    });
  });
  const wires = links.filter((link) => places.get(link.source)?.right === 0 && places.get(link.target)?.right === 1);
  const hidden = sides.reduce((sum, side, right) => sum + side.length - shown[right].length, 0);
  return html`
    <div class="flow" ref=${ref}>
      ${width > 0 && html`
        <svg width=${width} height=${height} role="img" aria-label=${describe(wires)}>
          ${pairs(shown).map(([source, target]) => {
            const path = wire(places.get(source), places.get(target), box);
            return html`<path key=${`${source} ${target}`} class="wire" d=${path} />`;
          })}
          ${wires.map((link) => html`
            <path key=${`${link.source} ${link.target} ${link.connector}`}
              class="stream ${link.idle_s < MOVING_S ? "on" : ""}" stroke-width=${thickness(link)}
              d=${wire(places.get(link.source), places.get(link.target), box)} />`)}
          ${width >= LABELS_FROM && wires.filter((link) => link.bytes_per_s >= 1).map((link) => {
            const { x, y } = labelAt(places.get(link.source), places.get(link.target), box);
            return html`<text key=${link.source + link.target} class="rate" x=${x} y=${y} text-anchor="middle">${bytesPerS(link.bytes_per_s)}</text>`;
          })}
          ${[...places.values()].map((place) => html`<${Node} key=${place.worker.name} place=${place} box=${box} />`)}
        </svg>`}
      ${hidden > 0 && html`<p class="muted small">and ${count(hidden, "more worker")}</p>`}
    </div>
  `;
}

function Node({ place: { worker, x, y }, box }) {
  const off = GONE.has(worker.state) ? "off" : "";
  const role = off || worker.state !== "ready" ? "off" : worker.role;
  return html`
    <g>
      <rect class="node ${off}" x=${x + 0.5} y=${y - BOX / 2} width=${box - 1} height=${BOX} rx="8" />
      <rect class="edge ${role}" x=${x + 8} y=${y - BOX / 2 + 9} width="3" height=${BOX - 18} rx="1.5" />
      <text x=${x + 19} y=${y - 3}>${clip(worker.name, box - 26)}</text>
      <text class="sub" x=${x + 19} y=${y + 13}>${clip(doing(worker), box - 26)}</text>
    </g>
  `;
}

function doing(worker) {
  if (worker.state !== "ready") return worker.state;
  if (worker.role === "prefill") {
    if (!worker.num_requests) return "idle";
    return worker.num_waiting_tokens ? `${number(worker.num_waiting_tokens)} tokens to do` : "sending";
  }
  const num = Math.max(worker.num_running, worker.num_requests);
  return num ? `${number(num)} running` : "idle";
}

const pairs = ([left, right]) => left.flatMap((a) => right.map((b) => [a.name, b.name]));

function wire(from, to, box) {
  const [x1, x2] = [from.x + box, to.x];
  const bend = (x2 - x1) / 2;
  return `M${x1} ${from.y}C${x1 + bend} ${from.y} ${x2 - bend} ${to.y} ${x2} ${to.y}`;
}

/** On the wire, nearer to its end, where wires of one source lie apart. */
function labelAt(from, to, box) {
  const t = 0.68;
  const [x1, x2] = [from.x + box, to.x];
  const x = x1 + (x2 - x1) * (1.5 * t * (1 - t) + t * t * t);
  const y = from.y + (to.y - from.y) * (3 * t * t - 2 * t * t * t);
  return { x, y: y - 6 };
}

const thickness = (link) => Math.min(6, 2.5 + Math.log10(1 + link.bytes_per_s / 1e5));

/** About as much of a text as fits; what is cut off is in the tables. */
function clip(text, width) {
  const room = Math.max(4, Math.floor(width / 7.2));
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}

function describe(links) {
  if (!links.length) return "No blocks were moved from a prefill to a decode worker lately.";
  const parts = links.map((link) => `${link.source} to ${link.target}: ${count(link.num_transfers, "transfer")}, ${bytes(link.total_bytes)}`);
  return `Blocks on their way. ${parts.join("; ")}.`;
}
