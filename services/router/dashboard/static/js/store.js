// What the page knows: follows the router's feed, and comes back by itself when it was lost.

import { readEvents } from "./events.js";
import { headersWith, operatorKey } from "./keys.js";

export const ROOT = new URL("../../", import.meta.url);
const EVENTS = new URL("dashboard/events", ROOT);

const SILENCE_MS = 6000;
const LONGEST_WAIT_MS = 8000;
const MAX_POINTS = 180;
const MAX_REQUESTS = 200;
const MAX_CHANGES = 50;

export class Store {
  // status: connecting, live, lost (tries again), locked (needs a key; `reason` says why).
  state = {
    status: "connecting", reason: "", retryAtMs: 0, about: null, tick: null,
    points: [], requests: [], changes: [], fresh: [],
  };

  #listeners = new Set();
  #abort = null;
  #waitMs = 1000;
  #timer = 0;
  #silence = 0;

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Follow the feed while the page is seen. */
  start() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.stop();
      else this.connect();
    });
    this.connect();
  }

  stop() {
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    this.#abort?.abort();
    this.#abort = null;
  }

  async connect() {
    this.stop();
    const abort = (this.#abort = new AbortController());
    const heard = () => {
      clearTimeout(this.#silence);
      this.#silence = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    let reason = "The router does not answer.";
    try {
      heard();
      const response = await fetch(EVENTS, {
        headers: headersWith(operatorKey()), signal: abort.signal, cache: "no-store",
      });
      if (response.status === 401 || response.status === 403) {
        this.stop();
        this.#set({ status: "locked", reason: lockReason(response.status) });
        return;
      }
      if (!response.ok) throw new Error(await refusal(response));
      for await (const event of readEvents(response, heard)) this.#take(event);
      reason = "The router has ended the connection.";
    } catch (error) {
      if (this.#abort !== abort) return;
      if (error.message && error.name === "Error") reason = error.message;
    }
    if (this.#abort === abort) this.#lost(reason);
  }

  #lost(reason) {
    this.stop();
    const waitMs = this.#waitMs;
    this.#waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    this.#set({ status: "lost", reason, retryAtMs: Date.now() + waitMs });
    if (!document.hidden) this.#timer = setTimeout(() => this.connect(), waitMs);
  }

  #take({ name, data }) {
    const message = JSON.parse(data);
    this.#waitMs = 1000;
    if (name === "hello") {
      const { about, tick } = message;
      this.#set({
        status: "live", about, tick, points: tick.points, requests: tick.requests,
        changes: tick.changes, fresh: [],
      });
      return;
    }
    const { points, requests, changes } = this.state;
    const known = changes.at(-1)?.number ?? 0;
    this.#set({
      status: "live",
      tick: message,
      points: merge(points, message.points, (point) => point.at_s, MAX_POINTS),
      requests: merge(requests, message.requests, (row) => row.number, MAX_REQUESTS),
      changes: merge(changes, message.changes, (change) => change.number, MAX_CHANGES),
      fresh: message.changes.filter((change) => change.number > known),
    });
  }

  #set(part) {
    this.state = { ...this.state, ...part };
    for (const listener of this.#listeners) listener(this.state);
  }
}

/** `after` replaces what it has in common with the end of `before`; both are in order. */
function merge(before, after, key, limit) {
  if (!after.length) return before;
  const first = key(after[0]);
  return [...before.filter((item) => key(item) < first), ...after].slice(-limit);
}

function lockReason(status) {
  if (status === 403) return "That key is not an operator’s: it may ask the model, but not see the cluster.";
  return operatorKey() ? "The router does not know that key." : "";
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `The router answered with status ${response.status}.`;
}
