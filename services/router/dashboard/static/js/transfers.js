// KV blocks on their way: a picture of who sends to whom, the links in numbers, the latest transfers.

import { html } from "../vendor/htm-preact.js";
import { Flow } from "./flow.js";
import { bytes, bytesPerS, clock, count, ms, number, span } from "./format.js";

const MAX_TRANSFERS = matchMedia("(max-width: 620px)").matches ? 3 : 8;
const MAX_LINKS = 12;

export function Transfers({ state }) {
  const { links, workers } = state.tick;
  const latest = state.requests.filter((row) => row.transfer_bytes > 0).slice(-MAX_TRANSFERS).reverse();
  const hasPrefill = workers.some((worker) => worker.role === "prefill");
  const total = links.reduce((sum, link) => sum + link.bytes_per_s, 0);
  return html`
    <section class="panel" id="transfers" aria-labelledby="transfers-title">
      <header>
        <h2 id="transfers-title">Transfers</h2>
        <span class="muted small">KV blocks from worker to worker, told by the requests that ended</span>
        ${total > 0 && html`<span class="aside small">${bytesPerS(total)}</span>`}
      </header>
      ${hasPrefill && html`<${Flow} links=${links} workers=${workers} />`}
      ${latest.length === 0 && links.length === 0
        ? html`<p class="empty">${hasPrefill
          ? "Nothing was transferred yet. Ask the model something long: a prefill worker computes it and sends its blocks on."
          : "No prefill worker: decode workers compute prompts themselves, so nothing has to move."}</p>`
        : html`<div class="scroll"><${Links} links=${links} /></div><div class="scroll"><${Latest} rows=${latest} /></div>`}
    </section>
  `;
}

function Links({ links }) {
  if (!links.length) return null;
  return html`
    <table class="cards" role="table">
      <caption class="hidden">Links between workers</caption>
      <thead role="rowgroup"><tr role="row">
        <th role="columnheader" scope="col">Link</th><th role="columnheader" scope="col">Connector</th>
        <th role="columnheader" scope="col" class="num">Transfers</th><th role="columnheader" scope="col" class="num">In all</th>
        <th role="columnheader" scope="col" class="num">Now</th><th role="columnheader" scope="col" class="num">Speed</th>
        <th role="columnheader" scope="col" class="num">Last</th>
      </tr></thead>
      <tbody role="rowgroup">
        ${links.slice(0, MAX_LINKS).map((link) => html`
          <tr role="row" key=${link.source + link.target + link.connector}>
            <th role="rowheader" scope="row" class="wide route">${link.source} → ${link.target}</th>
            <td role="cell" data-label="Connector">${link.connector}</td>
            <td role="cell" class="num" data-label="Transfers">${number(link.num_transfers)}</td>
            <td role="cell" class="num" data-label="In all">${bytes(link.total_bytes)}</td>
            <td role="cell" class="num" data-label="Now">${bytesPerS(link.bytes_per_s)}</td>
            <td role="cell" class="num" data-label="Speed">${bytesPerS(link.speed)}</td>
            <td role="cell" class="num" data-label="Last">${span(link.idle_s)} ago</td>
          </tr>`)}
      </tbody>
    </table>
    ${links.length > MAX_LINKS && html`<p class="muted small body">and ${count(links.length - MAX_LINKS, "more link")}</p>`}
  `;
}

function Latest({ rows }) {
  if (!rows.length) return null;
  return html`
    <table class="cards" role="table">
      <caption class="hidden">Latest transfers</caption>
      <thead role="rowgroup"><tr role="row">
        <th role="columnheader" scope="col">Latest</th><th role="columnheader" scope="col">From → to</th>
        <th role="columnheader" scope="col" class="num">Size</th><th role="columnheader" scope="col" class="num">Took</th>
        <th role="columnheader" scope="col" class="num">Prompt</th><th role="columnheader" scope="col">Request</th>
      </tr></thead>
      <tbody role="rowgroup">
        ${rows.map((row) => html`
          <tr role="row" key=${row.number}>
            <td role="cell" class="nowrap" data-label="Ended">${clock(row.ended_s)}</td>
            <td role="cell" class="route half" data-label="From → to">${row.prefill} → ${row.decode}</td>
            <td role="cell" class="num" data-label="Size">${bytes(row.transfer_bytes)}</td>
            <td role="cell" class="num" data-label="Took">${ms(row.transfer_ms)}</td>
            <td role="cell" class="num" data-label="Prompt">${number(row.prompt_tokens)} tok</td>
            <td role="cell" class="half" data-label="Request"><code class="id" title=${row.id}>${shortId(row.id)}</code></td>
          </tr>`)}
      </tbody>
    </table>
  `;
}

/** What tells one id from another: all begin alike. */
export const shortId = (id) => id.replace(/^(chatcmpl|cmpl|resp|msg)[-_]/, "").slice(0, 8);
