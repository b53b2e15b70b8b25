// The head of the page, the banner when the router is lost, and what a screen reader is told.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { count, span } from "./format.js";

const PLACES = [["Workers", "#workers"], ["Transfers", "#transfers"], ["Charts", "#charts"], ["Requests", "#requests"], ["Chat", "#chat"]];

export function Top({ state, onKeys }) {
  const { about, tick } = state;
  return html`
    <header class="top">
      <div class="brand">
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="8" fill="#1f2430" />
          <path d="M8 24 24 8" stroke="#4cc3d9" stroke-width="6" stroke-linecap="round" />
          <path d="m16 16 8-8" stroke="#b197fc" stroke-width="6" stroke-linecap="round" />
        </svg>
        <h1>Baton</h1>
      </div>
      ${about && tick && html`
        <div class="facts">
          <span title="This router">${about.name}</span>
          <span>${about.version}</span>
          <span>routing: ${about.policy}</span>
          <span>up ${span(tick.now_s - about.started_s)}</span>
        </div>`}
      ${tick && html`
        <nav class="jump" aria-label="Sections">
          ${PLACES.map(([name, place]) => html`<a key=${name} href=${place}>${name}</a>`)}
        </nav>`}
      <${FeedState} status=${state.status} />
      ${onKeys && html`<button type="button" class="plain" onClick=${onKeys}>Keys</button>`}
    </header>
  `;
}

function FeedState({ status }) {
  const [kind, text] = {
    live: ["good", "Live"], connecting: ["warn", "Connecting"], lost: ["warn", "Reconnecting"], locked: ["muted", "Locked"],
  }[status];
  return html`<span class="state-of-feed ${kind}"><span class="dot ${status === "live" ? "pulse" : ""}"></span>${text}</span>`;
}

export function Banner({ state, onRetry }) {
  const [nowMs, setNowMs] = useState(Date.now());
  const lost = state.status === "lost";
  useEffect(() => {
    if (!lost) return undefined;
    const timer = setInterval(() => setNowMs(Date.now()), 500);
    return () => clearInterval(timer);
  }, [lost]);
  if (!lost) return null;
  const leftS = Math.max(0, Math.ceil((state.retryAtMs - nowMs) / 1000));
  return html`
    <div class="banner">
      <strong role="alert">The connection to the router is lost.</strong>
      <span>${state.reason} ${state.tick ? "What you see is how it was." : ""}</span>
      <span class="muted" aria-hidden="true">${leftS ? `Trying again in ${leftS} s` : "Trying again…"}</span>
      <button type="button" onClick=${onRetry}>Try now</button>
    </div>
  `;
}

/** Changes of workers' states and of the connection, for those who do not see them. */
export function Announcer({ state }) {
  const [text, setText] = useState("");
  const { fresh, status, tick } = state;
  useEffect(() => {
    if (fresh.length) setText(fresh.map((change) => `${change.worker} is ${change.state}.`).join(" "));
  }, [fresh]);
  useEffect(() => {
    if (status === "live" && tick) setText(`Connected. ${count(tick.workers.length, "worker")}.`);
  }, [status]);
  return html`<div class="hidden" role="status" aria-live="polite">${text}</div>`;
}
