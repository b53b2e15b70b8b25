// Asks for keys where the router has some.

import { html, useState } from "../vendor/htm-preact.js";
import { forget, keep, operatorKey, ownChatKey } from "./keys.js";

export function Keys({ reason, locked, onDone }) {
  const [operator, setOperator] = useState(locked ? "" : operatorKey());
  const [chat, setChat] = useState(ownChatKey());
  const submit = (event) => {
    event.preventDefault();
    keep(operator, chat);
    onDone();
  };
  return html`
    <section class="panel keys" aria-labelledby="keys-title">
      <header><h2 id="keys-title">${locked ? "This router asks for a key" : "Keys"}</h2></header>
      <form class="body" onSubmit=${submit}>
        <p class="muted">The cluster is shown to operators. Keys stay in this tab and are forgotten when it is closed.</p>
        ${reason && html`<p class="bad" role="alert">${reason}</p>`}
        <div class="field">
          <label for="operator-key">Operator’s key</label>
          <input id="operator-key" type="password" autocomplete="off" spellcheck=${false} required value=${operator} onInput=${(event) => setOperator(event.target.value)} />
        </div>
        <div class="field">
          <label for="chat-key">Key for the chat <span class="muted">(if it is another one)</span></label>
          <input id="chat-key" type="password" autocomplete="off" spellcheck=${false} value=${chat} onInput=${(event) => setChat(event.target.value)} />
        </div>
        <div class="row">
          <button type="submit" class="primary">Show the cluster</button>
          ${!locked && html`<button type="button" onClick=${() => { forget(); onDone(); }}>Forget the keys</button>`}
        </div>
      </form>
    </section>
  `;
}
