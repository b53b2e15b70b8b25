// Puts the page together.

import { html, render, useLayoutEffect, useState } from "../vendor/htm-preact.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { Keys } from "./keys-view.js";
import { operatorKey } from "./keys.js";
import { Plans } from "./plan.js";
import { Requests } from "./requests.js";
import { Store } from "./store.js";
import { Tiles } from "./tiles.js";
import { Announcer, Banner, Top } from "./top.js";
import { Transfers } from "./transfers.js";
import { Workers } from "./workers.js";

function App({ store }) {
  const [state, setState] = useState(store.state);
  const [asksKeys, setAsksKeys] = useState(false);
  // At once, not after the next frame: a refusal may come before it, and then nothing more does.
  useLayoutEffect(() => store.subscribe(setState), [store]);
  const reconnect = () => {
    setAsksKeys(false);
    store.connect();
  };
  const locked = state.status === "locked";
  return html`
    <div class="head">
      <${Top} state=${state} onKeys=${operatorKey() && !locked ? () => setAsksKeys(!asksKeys) : null} />
      <${Banner} state=${state} onRetry=${() => store.connect()} />
    </div>
    <${Announcer} state=${state} />
    <main id="main" tabindex="-1">
      ${locked || asksKeys
        ? html`<${Keys} reason=${state.reason} locked=${locked} onDone=${reconnect} />`
        : state.tick
          ? html`<${Cluster} state=${state} />`
          : html`<p class="empty">${state.status === "lost" ? state.reason : "Connecting to the router…"}</p>`}
    </main>
  `;
}

function Cluster({ state }) {
  const stale = state.status === "live" ? "" : "stale";
  return html`
    <div class=${stale}><${Tiles} state=${state} /></div>
    <div class="columns">
      <div class="stack ${stale}">
        <${Workers} state=${state} />
        <${Plans} state=${state} />
        <${Transfers} state=${state} />
        <${Charts} state=${state} />
        <${Requests} state=${state} />
      </div>
      <aside id="chat" aria-labelledby="chat-title"><${Chat} models=${state.about.models} workers=${state.tick.workers} /></aside>
    </div>
  `;
}

const store = new Store();
render(html`<${App} store=${store} />`, document.getElementById("app"));
store.start();
