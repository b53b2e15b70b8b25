// The last quarter of an hour.

import { html } from "../vendor/htm-preact.js";
import { Chart } from "./chart.js";
import { measure, ms, number, percent } from "./format.js";

const perS = (value) => (value === null ? "–" : `${measure(value)} /s`);
const MAX_POOLS = 8;

const CHARTS = [
  { title: "Time to first token", format: ms, series: [["p50", (p) => p.ttft_p50_ms], ["p99", (p) => p.ttft_p99_ms]] },
  { title: "Time between tokens", format: ms, series: [["mean", (p) => p.itl_mean_ms], ["p99 of requests", (p) => p.itl_p99_ms]] },
  { title: "Tokens", format: perS, series: [["output", (p) => p.tokens_per_s], ["prompts", (p) => p.prompt_tokens_per_s]] },
  { title: "Requests", format: perS, series: [["ended", (p) => p.requests_per_s]] },
  { title: "Prefix hit rate", format: percent, top: 1, series: [["of prompt tokens", (p) => p.hit_rate]] },
  { title: "In the router", format: number, least: 4, series: [["running", (p) => p.num_running], ["queued", (p) => p.num_queued]] },
  { title: "Failures and replays", format: number, least: 4, steps: true, series: [["failed", (p) => p.num_failed], ["replayed", (p) => p.num_replays]] },
];

export function Charts({ state }) {
  const { points, about, tick } = state;
  const pools = tick.workers.filter((worker) => points.some((point) => worker.name in point.kv_used));
  const kv = {
    title: "KV pool in use", format: percent, top: 1,
    series: pools.slice(0, MAX_POOLS).map(({ name }) => [name, (point) => point.kv_used[name] ?? null]),
  };
  return html`
    <section class="panel" id="charts" aria-labelledby="charts-title">
      <header>
        <h2 id="charts-title">Last 15 minutes</h2>
        <span class="muted small">in steps of ${about.step_s} s; point at one to read all of them</span>
      </header>
      <div class="charts">
        ${[...CHARTS, kv].map((chart) => html`<${Chart} key=${chart.title} ...${chart} points=${points} nowS=${tick.now_s} />`)}
      </div>
    </section>
  `;
}
