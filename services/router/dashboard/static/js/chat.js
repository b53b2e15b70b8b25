// Talks to the model through this router, and says who answered and how fast.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { readEvents } from "./events.js";
import { measure, ms, number } from "./format.js";
import { chatKey, headersWith } from "./keys.js";
import { ROOT } from "./store.js";

const MAX_TOKENS = 256;
const MAX_MESSAGES = 40;

export function Chat({ models, workers }) {
  const [messages, setMessages] = useState([]);
  const [text, setText] = useState("");
  const [model, setModel] = useState(models[0]);
  const [maxTokens, setMaxTokens] = useState(MAX_TOKENS);
  const [temperature, setTemperature] = useState("");
  const [told, setTold] = useState("");
  const running = useRef(null);
  const [busy, setBusy] = useState(false);
  const log = useRef(null);
  useEffect(() => {
    log.current.scrollTop = log.current.scrollHeight;
  }, [messages]);

  const ask = async () => {
    const question = text.trim();
    if (!question || busy) return;
    const asked = [...messages, { role: "user", content: question }].slice(-MAX_MESSAGES);
    setText("");
    setBusy(true);
    const abort = (running.current = new AbortController());
    const show = (answer) => setMessages([...asked, answer]);
    const answer = await converse({ model, maxTokens, temperature, messages: asked, signal: abort.signal, show });
    show(answer);
    setBusy(false);
    setTold(answer.error ? `Error: ${answer.error}` : `Answer complete: ${answer.content}`);
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      ask();
    } else if (event.key === "Escape") running.current?.abort();
  };
  const ready = workers.some((worker) => worker.serves.includes("decode") && worker.state === "ready");

  return html`
    <section class="panel chat" aria-labelledby="chat-title">
      <header>
        <h2 id="chat-title">Try the model</h2>
        ${messages.length > 0 && html`<span class="aside"><button type="button" class="plain" disabled=${busy} onClick=${() => setMessages([])}>New chat</button></span>`}
      </header>
      <div class="log" ref=${log} tabindex="0" role="region" aria-label="Conversation" aria-busy=${busy ? "true" : "false"}>
        ${messages.length === 0 && html`<p class="empty">${ready ? "Ask something. Each answer says which workers it came from, and how fast." : "No decode worker is ready, so nobody can answer yet."}</p>`}
        ${messages.map((message, place) => html`<${Message} key=${place} message=${message} />`)}
      </div>
      <div class="hidden" role="status" aria-live="polite">${told}</div>
      <div class="options">
        <div class="field"><label for="chat-model">Model</label>
          <select id="chat-model" value=${model} onChange=${(event) => setModel(event.target.value)}>
            ${models.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
          </select></div>
        <div class="field"><label for="chat-temperature">Temperature</label>
          <input id="chat-temperature" type="number" min="0" max="2" step="0.1" placeholder="auto" value=${temperature} onInput=${(event) => setTemperature(event.target.value)} /></div>
        <div class="field"><label for="chat-tokens">Max tokens</label>
          <input id="chat-tokens" type="number" min="1" max="8192" value=${maxTokens} onInput=${(event) => setMaxTokens(Number(event.target.value) || MAX_TOKENS)} /></div>
      </div>
      <form onSubmit=${(event) => { event.preventDefault(); ask(); }}>
        <label for="chat-text" class="hidden">Message</label>
        <textarea id="chat-text" rows="2" placeholder="Ask the model…" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKey}></textarea>
        <div class="send">
          <span class="muted small">Enter sends, Shift+Enter breaks the line</span>
          ${busy
            ? html`<button type="button" onClick=${() => running.current.abort()}>Stop</button>`
            : html`<button type="submit" class="primary" disabled=${!text.trim()}>Send</button>`}
        </div>
      </form>
    </section>
  `;
}

/** One answer, shown as it comes. Resolves with what it was in the end, whatever happened. */
async function converse({ model, maxTokens, temperature, messages, signal, show }) {
  const startedMs = performance.now();
  let answer = { role: "assistant", content: "", running: true };
  let frame = 0;
  const change = (part) => {
    answer = { ...answer, ...part };
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (answer.running) show(answer);
    });
  };
  show(answer);
  try {
    const response = await fetch(new URL("v1/chat/completions", ROOT), {
      method: "POST",
      headers: { "content-type": "application/json", ...headersWith(chatKey()) },
      body: JSON.stringify({
        model, max_tokens: maxTokens, temperature: temperature === "" ? undefined : Number(temperature), stream: true, stream_options: { include_usage: true },
        messages: messages.filter((message) => message.content).map(({ role, content }) => ({ role, content })),
      }),
      signal,
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const { data } of readEvents(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices?.[0]?.delta ?? {};
      const said = (delta.reasoning_content ?? "") + (delta.content ?? "");
      if (said) change({ content: answer.content + said, ttftMs: answer.ttftMs ?? performance.now() - startedMs });
      const finish = chunk.choices?.[0]?.finish_reason;
      if (finish) change({ finish });
      if (chunk.usage) change({ usage: chunk.usage, timings: chunk.timings ?? null });
    }
  } catch (error) {
    if (error.name === "AbortError") answer = { ...answer, stopped: true };
    else answer = { ...answer, error: error.message || "The connection was lost." };
  }
  cancelAnimationFrame(frame);
  return { ...answer, running: false };
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `The router answered with status ${response.status}.`;
}

function Message({ message }) {
  if (message.role === "user") return html`<div class="message user"><span class="hidden">You: </span>${message.content}</div>`;
  const isSilent = !message.running && !message.error && !message.stopped && !message.content.trim();
  return html`
    <div class="message assistant" data-state=${message.running ? "running" : "done"}><span class="hidden">Model: </span><span class="said">${message.content}</span>${message.running && html`<span class="caret"></span>`}
      ${message.error && html`<div class="error bad">${message.error}</div>`}
      ${isSilent && html`<span class="muted">The answer has no text.</span>`}
      <${Facts} message=${message} /></div>
  `;
}

function Facts({ message }) {
  const { ttftMs, usage, timings, stopped, finish } = message;
  if (ttftMs === undefined && !stopped) return null;
  const num = usage?.completion_tokens;
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const perS = timings && num > 1 && timings.decode_ms > 0 ? ((num - 1) / timings.decode_ms) * 1000 : null;
  return html`
    <div class="facts-of-answer">
      ${ttftMs !== undefined && html`<span title=${timings ? `${ms(timings.first_token_ms)} of it in the cluster` : undefined}>TTFT <b>${ms(ttftMs)}</b></span>`}
      ${perS !== null && html`<span><b>${measure(perS)}</b> tokens/s</span>`}
      ${num !== undefined && html`<span><b>${number(num)}</b> tokens${finish === "length" ? " (cut off)" : ""}</span>`}
      ${cached > 0 && html`<span><b>${number(cached)}</b> of ${number(usage.prompt_tokens)} cached</span>`}
      ${timings?.decode_worker && html`<span class="nowrap"><b class="name-prefill">${timings.prefill_worker || "itself"}</b> → <b class="name-decode">${timings.decode_worker}</b></span>`}
      ${stopped && html`<span>stopped</span>`}
    </div>
  `;
}
