// What the planner says: how many workers of each role are wanted, which one was moved, and why.

import { html } from "../vendor/htm-preact.js";
import { clock, count, measure, ms, number } from "./format.js";

export function Plans({ state }) {
  const { plans } = state.tick;
  if (!plans?.length) return null;
  return html`
    <section class="panel" id="plan" aria-labelledby="plan-title">
      <header>
        <h2 id="plan-title">Plan</h2>
        <span class="muted small">workers that prefer each role now, and how many are wanted</span>
      </header>
      ${plans.map((plan) => html`<${Plan} plan=${plan} key=${plan.model} named=${plans.length > 1} />`)}
    </section>
  `;
}

function Plan({ plan, named }) {
  const rows = [...plan.decisions].reverse();
  const last = rows[0];
  if (!last) return html`<p class="empty">${named ? `${plan.model}: n` : "N"}othing is decided yet.</p>`;
  return html`
    <p class="body small">
      ${named && html`<strong>${plan.model}</strong>${" "}`}
      ${plan.acts ? `${count(plan.num_moves, "move")} so far` : "advice only"}, decided by ${plan.leader || "this router"}:
      ${" "}${measure(last.requests_per_s)} requests/s of ${number(last.prompt_tokens)} tokens, ${number(last.held_tokens)} of them held
      (${ms(last.prompt_ms)} each), answers of ${number(last.output_tokens)}
    </p>
    ${last.warnings.map((warning) => html`<p class="body small" role="status" key=${warning}><strong>Warning:</strong> ${warning}</p>`)}
    <div class="scroll"><table class="cards" role="table">
      <caption class="hidden">Decisions${named ? ` for ${plan.model}` : ""}</caption>
      <thead role="rowgroup"><tr role="row">
        <th role="columnheader" scope="col">Decided</th>
        <th role="columnheader" scope="col" class="num">Prefill</th><th role="columnheader" scope="col" class="num">Decode</th>
        <th role="columnheader" scope="col" class="num">Load</th><th role="columnheader" scope="col">Why</th>
      </tr></thead>
      <tbody role="rowgroup">
        ${rows.map((row) => html`
          <tr role="row" key=${row.at_s}>
            <td role="cell" class="nowrap" data-label="Decided">${clock(row.at_s)}</td>
            <td role="cell" class="num" data-label="Prefill">${row.present_prefill} → ${row.wanted_prefill}</td>
            <td role="cell" class="num" data-label="Decode">${row.present_decode} → ${row.wanted_decode}</td>
            <td role="cell" class="num" data-label="Load">${load(row.pressure_prefill)} : ${load(row.pressure_decode)}</td>
            <td role="cell" class="wide" data-label="Why">${moved(row)}${row.reason}</td>
          </tr>`)}
      </tbody>
    </table></div>
  `;
}

/** Over what the workers bear; -1: there are none for it. */
const load = (pressure) => (pressure < 0 ? "∞" : pressure.toFixed(2));

function moved(row) {
  if (row.moved) return html`<strong>${row.moved} prefers ${row.moved_to}.</strong>${" "}`;
  return row.not_moved ? html`<strong>Not moved: ${row.not_moved}.</strong>${" "}` : null;
}
