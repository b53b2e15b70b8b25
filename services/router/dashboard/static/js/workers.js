// The workers: who they are, what they do, how full their KV pools are.

import { html } from "../vendor/htm-preact.js";
import { clock, count, number, percent, span } from "./format.js";

/** Each state's colour, and what it means. */
const STATES = {
  ready: ["good", "takes requests"],
  joining: ["warn", "has to answer a test first"],
  suspended: ["bad", "something failed there: has to answer a test first"],
  draining: ["warn", "ends what it has, takes nothing new"],
  left: ["muted", "drained and gone"],
  lost: ["bad", "its lease has ended"],
};
const GONE = new Set(["left", "lost"]);
const MAX_CHANGES = 6;
/** From this share on a pool is full enough to make sequences wait. */
const HIGH = 0.9;

export function Workers({ state }) {
  const { tick, points, changes } = state;
  const { workers, now_s: nowS } = tick;
  const adapted = workers.some((worker) => worker.num_adapters !== null);
  return html`
    <section class="panel" id="workers" aria-labelledby="workers-title">
      <header>
        <h2 id="workers-title">Workers</h2>
        <span class="muted small">${summary(workers)}</span>
        <span class="aside small muted"><span class="key"><i></i>held by sequences</span>${"  "}<span class="key"><i class="cached"></i>known prefixes</span></span>
      </header>
      ${workers.length
        ? html`
          <div class="scroll"><table class="cards workers" role="table">
            <caption class="hidden">Workers, their state, load and KV blocks</caption>
            <thead role="rowgroup"><tr role="row">
              <th role="columnheader" scope="col">Worker</th><th role="columnheader" scope="col">State</th>
              <th role="columnheader" scope="col" class="num">Running</th><th role="columnheader" scope="col" class="num">Waiting</th>
              <th role="columnheader" scope="col">KV blocks</th>
              <th role="columnheader" scope="col" class="num">Prefix hits</th>${adapted && html`<th role="columnheader" scope="col">Adapters</th>`}<th role="columnheader" scope="col" class="num">Lease age</th>
            </tr></thead>
            <tbody role="rowgroup">
              ${workers.map((worker) => html`<${Row} key=${worker.name} worker=${worker} nowS=${nowS} points=${points} adapted=${adapted} />`)}
            </tbody>
          </table></div>`
        : html`<p class="empty">No worker has joined. Start one: <code>./baton serve decode --directory HOST:PORT --model …</code></p>`}
      ${changes.length > 0 && html`
        <ul class="events" aria-label="What changed last">
          ${changes.slice(-MAX_CHANGES).reverse().map((change) => html`
            <li key=${change.number}><span class="muted">${clock(change.at_s)}</span> ${change.worker} <span class=${STATES[change.state][0]}>${change.prefers ? `prefers ${change.role}` : change.state}</span></li>`)}
        </ul>`}
    </section>
  `;
}

function Row({ worker, nowS, points, adapted }) {
  const gone = GONE.has(worker.state);
  const [kind, meaning] = STATES[worker.state];
  return html`
    <tr role="row" class=${gone ? "off" : ""} data-worker=${worker.name} data-state=${worker.state}>
      <th role="rowheader" scope="row" class="wide">
        <span class="worker-name">${worker.name}</span>${" "}<span class="chip ${worker.role}">${worker.role}</span>
        ${worker.role !== worker.first_role && html`<span class="since">started as ${worker.first_role}</span>`}
        <span class="worker-more">${worker.address} · ${worker.model}${worker.version && ` · ${worker.version}`}</span>
      </th>
      <td role="cell" class="half" data-label="State">
        <span class="state ${kind}" title=${meaning}><span class="dot"></span>${worker.state}</span>
        <span class="since">${span(nowS - worker.since_s)}</span>
      </td>
      <td role="cell" class="num" data-label="Running">${gone ? "–" : number(worker.num_running)}</td>
      <td role="cell" class="num" data-label="Waiting">${gone ? "–" : number(worker.num_waiting)}
        ${worker.num_waiting_tokens > 0 && html`<span class="since">${number(worker.num_waiting_tokens)} tok to do</span>`}</td>
      <td role="cell" class="wide" data-label="KV blocks">${gone ? "–" : html`<${Pool} worker=${worker} points=${points} />`}</td>
      <td role="cell" class="num" data-label="Prefix hits">${percent(worker.hit_rate)}</td>
      ${adapted && html`<td role="cell" data-label="Adapters">${worker.num_adapters === null ? "–" : number(worker.num_adapters)}
        ${worker.adapters.length > 0 && html`<span class="since">${worker.adapters.join(", ")}</span>`}</td>`}
      <td role="cell" class="num" data-label="Lease age">${gone ? "–" : `${worker.lease_age_s.toFixed(1)} s`}</td>
    </tr>
  `;
}

function Pool({ worker, points }) {
  const used = worker.blocks_used / Math.max(1, worker.blocks_total);
  const cached = Math.max(used, worker.blocks_cached / Math.max(1, worker.blocks_total));
  const width = (share) => ({ width: `${Math.min(100, 100 * share)}%` });
  return html`
    <div class="kv">
      <div class="bar" aria-hidden="true">
        <i class="cached" style=${width(cached)}></i>
        <i class="used ${used >= HIGH ? "high" : ""}" style=${width(used)}></i>
      </div>
      <span class="nowrap">${number(worker.blocks_used)} / ${number(worker.blocks_total)} <span class="muted">(${percent(used)})</span></span>
      <${Spark} values=${points.map((point) => point.kv_used[worker.name] ?? null)} />
    </div>
  `;
}

/** KV use over the last quarter of an hour, of the whole pool. */
function Spark({ values }) {
  const path = [];
  values.forEach((value, place) => {
    if (value === null) return;
    const isFirst = !path.length || values[place - 1] === null;
    path.push(`${isFirst ? "M" : "L"}${place} ${(15 - 14 * Math.min(1, value)).toFixed(2)}`);
  });
  if (path.length < 2) return null;
  return html`
    <svg class="spark" viewBox=${`0 0 ${values.length - 1} 16`} preserveAspectRatio="none" aria-hidden="true"><path d=${path.join("")} /></svg>
  `;
}

function summary(workers) {
  const parts = ["prefill", "decode"].map((role) => {
    const mine = workers.filter((worker) => worker.role === role && !GONE.has(worker.state));
    return `${mine.length} ${role}`;
  });
  const waiting = workers.reduce((sum, worker) => sum + worker.num_waiting, 0);
  return `${parts.join(", ")}${waiting ? ` · ${count(waiting, "sequence")} waiting` : ""}`;
}
