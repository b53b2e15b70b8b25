// The requests that ended last; each says on demand why it went where it went.

import { html, useState } from "../vendor/htm-preact.js";
import { bytes, clock, ms, number } from "./format.js";
import { shortId } from "./transfers.js";
import { Why } from "./why.js";

const FEW = matchMedia("(max-width: 620px)").matches ? 5 : 15;

export function Requests({ state }) {
  const [open, setOpen] = useState(null);
  const [all, setAll] = useState(false);
  const [held, setHeld] = useState(null);
  const rows = held ?? state.requests;
  const shown = rows.slice(all ? 0 : -FEW).reverse();
  return html`
    <section class="panel" id="requests" aria-labelledby="requests-title">
      <header>
        <h2 id="requests-title">Recent requests</h2>
        <span class="muted small">${held ? `held: ${number(state.requests.length ? state.requests.at(-1).number - (held.at(-1)?.number ?? 0) : 0)} more since` : "newest first"}</span>
        <span class="aside">
          ${rows.length > FEW && html`<button type="button" class="plain" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show ${rows.length}`}</button>`}
          ${rows.length > 0 && html`<button type="button" class="plain" aria-pressed=${held ? "true" : "false"} onClick=${() => setHeld(held ? null : state.requests)}>Hold</button>`}
        </span>
      </header>
      ${shown.length
        ? html`<div class="scroll"><${Table} rows=${shown} open=${open} onOpen=${(id) => setOpen(open === id ? null : id)} /></div>`
        : html`<p class="empty">No request has ended yet. Ask in the chat, or: <code>./baton chat</code></p>`}
    </section>
  `;
}

function Table({ rows, open, onOpen }) {
  return html`
    <table class="cards" role="table">
      <caption class="hidden">Recent requests, what they cost and where they went</caption>
      <thead role="rowgroup"><tr role="row">
        <th role="columnheader" scope="col">Ended</th><th role="columnheader" scope="col">Request</th><th role="columnheader" scope="col">End</th>
        <th role="columnheader" scope="col" class="num">Prompt</th><th role="columnheader" scope="col" class="num">Output</th>
        <th role="columnheader" scope="col" class="num">TTFT</th><th role="columnheader" scope="col" class="num">In all</th>
        <th role="columnheader" scope="col">Prefill → decode</th><th role="columnheader" scope="col"><span class="hidden">Reason</span></th>
      </tr></thead>
      <tbody role="rowgroup">
        ${rows.flatMap((row) => [
          html`<${Row} key=${row.number} row=${row} isOpen=${open === row.number} onOpen=${() => onOpen(row.number)} />`,
          open === row.number && html`
            <tr role="row" class="detail" key=${`${row.number} detail`}>
              <td role="cell" colspan="9" id=${`why-${row.number}`}><${Why} row=${row} /></td>
            </tr>`,
        ])}
      </tbody>
    </table>
  `;
}

function Row({ row, isOpen, onOpen }) {
  return html`
    <tr role="row" data-request=${row.number}>
      <td role="cell" class="nowrap" data-label="Ended">${clock(row.ended_s)}</td>
      <th role="rowheader" scope="row" class="half" data-label="Request"><code class="id" title=${row.id}>${shortId(row.id)}</code>${row.tenant && html`<span class="since">${row.tenant}</span>`}</th>
      <td role="cell" data-label="End"><span class="chip ${outcomeKind(row)}">${row.outcome}</span>${row.num_replays > 0 && html` <span class="chip warn">replayed${row.num_replays > 1 ? ` ${row.num_replays}×` : ""}</span>`}</td>
      <td role="cell" class="num" data-label="Prompt">${number(row.prompt_tokens)} tok${row.cached_tokens > 0 && html`<span class="since">${number(row.cached_tokens)} cached</span>`}</td>
      <td role="cell" class="num" data-label="Output">${number(row.completion_tokens)} tok</td>
      <td role="cell" class="num" data-label="TTFT">${ms(row.ttft_ms)}</td>
      <td role="cell" class="num" data-label="In all">${ms(row.total_ms)}${row.itl_ms !== null && html`<span class="since">ITL ${ms(row.itl_ms)}</span>`}</td>
      <td role="cell" class="route half" data-label="Prefill → decode"><${Route} row=${row} /></td>
      <td role="cell"><button type="button" class="opener" aria-expanded=${isOpen ? "true" : "false"} aria-controls=${isOpen ? `why-${row.number}` : undefined} aria-label=${`Why was request ${shortId(row.id)} routed there?`} onClick=${onOpen}>${isOpen ? "Close" : "Why?"}</button></td>
    </tr>
  `;
}

function Route({ row }) {
  if (!row.decode) return html`<span class="muted">nowhere</span>`;
  if (row.ttft_ms === null) return html`<span class="muted">sent to</span> <span class="name-decode">${row.decode}</span>`;
  const prefill = row.prefill
    ? html`<span class="name-prefill">${row.prefill}</span>`
    : html`<span class="muted">itself</span>`;
  return html`
    ${prefill} → <span class="name-decode">${row.decode}</span>
    ${row.transfer_bytes > 0 && html`<span class="since">${bytes(row.transfer_bytes)} in ${ms(row.transfer_ms)}</span>`}
  `;
}

function outcomeKind(row) {
  if (row.failed) return "bad";
  return row.outcome === "stop" || row.outcome === "length" || row.outcome === "tool_calls" ? "" : "warn";
}
