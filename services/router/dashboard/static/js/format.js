// Numbers with their units, as people read them. Everything here returns plain text.

export const NONE = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Of things that are counted. */
export const number = (value) => (value === null || value === undefined ? NONE : whole.format(value));

/** Of what is measured: three digits, so that what stands below each other is aligned. */
export function measure(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 99.95 || size === 0) return whole.format(value);
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

/** [text, unit] of a time in milliseconds. */
export function msParts(value) {
  if (value === null || value === undefined) return [NONE, ""];
  if (value >= 60_000) return [measure(value / 60_000), "min"];
  return value >= 1000 ? [measure(value / 1000), "s"] : [measure(value), "ms"];
}

export const ms = (value) => msParts(value).join(" ").trim();

export function bytesParts(value) {
  if (value === null || value === undefined) return [NONE, ""];
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  return [place ? measure(value) : number(value), units[place]];
}

export const bytes = (value) => bytesParts(value).join(" ").trim();
export const bytesPerS = (value) => (value === null ? NONE : `${bytes(value)}/s`);

export function percent(share) {
  if (share === null || share === undefined) return NONE;
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** The same for an axis, whose numbers are round. */
export const round = (text) => text.replace(/\.(\d*?)0+(?=\s|$)/, (_, digits) => (digits ? `.${digits}` : ""));

/** A time that has passed, in seconds. */
export function span(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minuteFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
export const clock = (unixS) => clockFormat.format(unixS * 1000);
export const minute = (unixS) => minuteFormat.format(unixS * 1000);

/** "1 request", "2 requests". */
export const count = (num, noun) => `${number(num)} ${noun}${num === 1 ? "" : "s"}`;
