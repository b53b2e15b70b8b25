// The decision about one request, in a sentence and in its terms; and where the request's time went.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { ms, number } from "./format.js";
import { headersWith, operatorKey } from "./keys.js";
import { ROOT } from "./store.js";

/** What the terms of the costs mean; policies of packages may have others. */
const TERMS = {
  queue: "prompts queued before it", prefill: "computing the prompt", transfer: "moving blocks",
  crowding: "others that would wait", heat: "its share of all work",
  adapter: "loading the adapter", eviction: "adapters that it would drive out", decode: "the load of its batch",
  "missing prefix": "tokens it does not hold",
};

export function Why({ row }) {
  const [detail, setDetail] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    load(row.number, abort.signal).then(setDetail, (error) => {
      if (error.name !== "AbortError") setProblem(error.message);
    });
    return () => abort.abort();
  }, [row.number]);
  if (problem) return html`<p class="muted">${problem}</p>`;
  if (!detail) return html`<p class="muted">Asking the router…</p>`;
  return html`
    <div class="why">
      ${detail.why ? html`<${Decision} why=${detail.why} row=${row} />` : html`<p>It was refused before it was routed.</p>`}
      ${detail.timings && html`<${Stages} timings=${detail.timings} />`}
      <p class="muted small">Request <code>${row.id}</code></p>
    </div>
  `;
}

async function load(requestNumber, signal) {
  const url = new URL("dashboard/request", ROOT);
  url.searchParams.set("number", requestNumber);
  const response = await fetch(url, { headers: headersWith(operatorKey()), signal, cache: "no-store" });
  if (response.status === 404) throw new Error("The router keeps the last 200 requests; this one is older.");
  if (!response.ok) throw new Error(`The router answered with status ${response.status}.`);
  return response.json();
}

function Decision({ why, row }) {
  return html`
    <p>${sentence(why.decode, "decode", why.policy)} ${prefillSentence(why, row)}
      ${why.num_decisions > 1 && ` It was routed ${number(why.num_decisions)} times; this is the last decision.`}</p>
    <div class="both">
      <${Costs} title="Decode workers" choice=${why.decode} />
      ${why.prefill.candidates.length > 0 && html`<${Costs} title="Prefill workers" choice=${why.prefill} />`}
    </div>
    <${LeftOut} why=${why} />
  `;
}

function prefillSentence(why, row) {
  if (!why.prefill.candidates.length) return "No prefill worker could take the prompt, so it computed that, too.";
  if (why.place === "here") return "It computed the prompt itself: a hand-off was expected to cost more.";
  if (row.ttft_ms !== null && !row.prefill) return "The decode worker computed the prompt itself: so little of it was not cached that a hand-off does not pay.";
  return sentence(why.prefill, "prefill", why.policy);
}

/** The chosen one against the next best, and the term that made most of the difference. */
function sentence({ candidates, num_more: more }, role, policy) {
  if (!candidates.length) return `No ${role} worker could take it.`;
  const [best, next] = candidates;
  if (!next) return `${best.worker} was the only ${role} worker that could take it.`;
  const terms = Object.keys(best.terms_ms);
  if (!terms.length) return `${best.worker} was next: the policy “${policy}” looks at no costs.`;
  const lead = next.cost_ms - best.cost_ms;
  const others = candidates.length - 1 + more;
  if (Math.abs(lead) < 0.005) return `${best.worker} and ${next.worker} would have cost the same: one of them was drawn.`;
  if (lead < 0) return `${best.worker} was taken although ${next.worker} seemed cheaper: the bounds on latency count first.`;
  const differences = terms.map((term) => [term, next.terms_ms[term] - best.terms_ms[term]]);
  const [term, part] = differences.reduce((a, b) => (b[1] > a[1] ? b : a));
  return `${best.worker} was the cheapest of ${others + 1} ${role} workers: ${ms(best.cost_ms)} against ${ms(next.cost_ms)} for ${next.worker}, mostly ${TERMS[term] ?? term} (${ms(part)}).`;
}

function Costs({ title, choice }) {
  const terms = Object.keys(choice.candidates[0]?.terms_ms ?? {}).filter((term) => choice.candidates.some((each) => each.terms_ms[term] !== 0));
  return html`
    <div class="scroll">
      <table>
        <caption><h3>${title}</h3></caption>
        <thead><tr>
          <th scope="col">Worker</th>
          ${terms.map((term) => html`<th key=${term} scope="col" class="num">${term}</th>`)}
          <th scope="col" class="num">Cost</th><th scope="col" class="num">Held</th>
        </tr></thead>
        <tbody>
          ${choice.candidates.map((each, place) => html`
            <tr key=${each.worker} class=${place === 0 ? "chosen" : ""}>
              <th scope="row">${each.worker}${place === 0 && html`<span class="hidden"> (chosen)</span>`}</th>
              ${terms.map((term) => html`<td key=${term} class="num">${ms(each.terms_ms[term])}</td>`)}
              <td class="num">${ms(each.cost_ms)}</td>
              <td class="num">${number(each.num_held_tokens)} tok</td>
            </tr>`)}
        </tbody>
      </table>
      ${choice.num_more > 0 && html`<p class="muted small">and ${number(choice.num_more)} more, all dearer</p>`}
    </div>
  `;
}

function LeftOut({ why }) {
  const left = { ...why.decode.left_out, ...why.prefill.left_out };
  const names = Object.keys(left);
  if (!names.length) return null;
  return html`<p class="small">Not considered: ${names.map((name) => `${name} (${left[name]})`).join(", ")}.</p>`;
}

/** The bar's parts follow each other; what workers did before the first token overlaps in part. */
function Stages({ timings }) {
  const before = timings.tokenize_ms + timings.router_queue_ms + timings.route_ms;
  const parts = [
    ["series-8", "Router", before],
    ["series-3", "Until the first token", Math.max(0, timings.first_token_ms - before)],
    ["series-4", "Writing the answer", timings.decode_ms],
  ];
  const total = parts.reduce((sum, part) => sum + part[2], 0) || 1;
  const workers = [
    ["queued at decode", timings.decode_queue_ms], ["queued at prefill", timings.prefill_queue_ms],
    ["prefix fetched", timings.prefix_fetch_ms], ["prompt computed", timings.prefill_ms],
    ["blocks moved", timings.transfer_ms], ["of it waited for", timings.transfer_exposed_ms], ["replays", timings.replay_ms],
  ].filter(([, value]) => value > 0);
  return html`
    <div>
      <h3>Where its time went</h3>
      <div class="stages" aria-hidden="true">${parts.map(([kind, name, value]) => html`<i key=${name} class=${kind} style=${{ width: `${(100 * value) / total}%` }}></i>`)}</div>
      <ul class="stage-list">
        ${parts.map(([kind, name, value]) => html`<li key=${name}><span class="dot ${kind}"></span> ${name} <b>${ms(value)}</b></li>`)}
      </ul>
      ${workers.length > 0 && html`<p class="muted small">On the workers: ${workers.map(([name, value]) => `${name} ${ms(value)}`).join(" · ")}</p>`}
    </div>
  `;
}
