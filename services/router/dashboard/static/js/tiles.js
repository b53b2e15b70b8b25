// The cluster in eight numbers. Times and rates are of the last minute.

import { html } from "../vendor/htm-preact.js";
import { count, measure, ms, msParts, NONE, number, percent } from "./format.js";

export function Tiles({ state }) {
  const { minute, totals, workers } = state.tick;
  const ready = workers.filter((worker) => worker.state === "ready").length;
  const away = workers.length - ready;
  const [ttft, ttftUnit] = msParts(minute.ttft_p50_ms);
  const [itl, itlUnit] = msParts(minute.itl_p50_ms);
  return html`
    <section aria-label="Overview">
      <dl class="tiles">
        <${Tile} name="Workers ready" value=${ready} unit=${`of ${workers.length}`} note=${away ? `${away} not ready` : "all ready"} bad=${!ready} />
        <${Tile} name="Running" value=${number(totals.num_running)} note=${`${number(totals.num_queued)} waiting in the router`} />
        <${Tile} name="Requests" value=${measure(minute.requests_per_s)} unit="/s" note=${`${number(totals.num_ended)} since the start`} />
        <${Tile} name="Output" value=${measure(minute.tokens_per_s)} unit="tokens/s" note="last minute" />
        <${Tile} name="TTFT, p50" value=${ttft} unit=${ttftUnit} note=${`p99 ${ms(minute.ttft_p99_ms)}`} />
        <${Tile} name="ITL, p50" value=${itl} unit=${itlUnit} note="of requests that ended" />
        <${Tile} name="Prefix hits" value=${percent(minute.hit_rate)} note=${minute.hit_rate === null ? "no prompts lately" : "of prompt tokens"} />
        <${Tile} name="Failures" value=${number(minute.num_failed)} note=${minute.num_replays ? count(minute.num_replays, "replay") : "no replays"} bad=${minute.num_failed > 0} />
      </dl>
    </section>
  `;
}

function Tile({ name, value, unit, note, bad }) {
  return html`
    <div class="tile ${bad ? "bad" : ""}">
      <dt>${name}</dt>
      <dd>${value ?? NONE}${unit && html` <span class="unit">${unit}</span>`}</dd>
      <dd class="note">${note}</dd>
    </div>
  `;
}
