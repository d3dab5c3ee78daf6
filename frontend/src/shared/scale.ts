// From a share to its place on the row of colours: by its square root, linear or logarithmic.

/** Shares are mostly near 0, and few of them large: their root, the first, is spread far more evenly. */
export const SCALES = ["root", "linear", "log"] as const;
export type Scale = (typeof SCALES)[number];

/** The logarithmic scale goes down to this part of the largest value. */
export const DECADES = 4;

export function nextScale(now: Scale): Scale {
  return SCALES[(SCALES.indexOf(now) + 1) % SCALES.length]!;
}

export function placeOf(value: number, top: number, kind: Scale): number {
  if (!(value > 0) || !(top > 0)) return 0;
  const share = Math.min(1, value / top);
  if (kind === "root") return Math.sqrt(share);
  return kind === "linear" ? share : Math.max(0, 1 + Math.log10(share) / DECADES);
}

/** Values for the legend, and where they are on it. */
export function ticks(top: number, kind: Scale): { value: number; at: number }[] {
  const values =
    kind !== "log"
      ? [0, 0.25, 0.5, 0.75, 1].map((part) => (kind === "root" ? part ** 2 : part) * top)
      : Array.from({ length: DECADES + 1 }, (_, n) => top * 10 ** (n - DECADES));
  return values.map((value, n) => ({ value, at: n / (values.length - 1) }));
}

/** With a space at which no line breaks. */
const PERCENT = "\u00a0%";

/** A share of one in percent, with as many digits as a reader can use. */
export function percent(share: number): string {
  const hundredths = share * 100;
  if (Number.isNaN(hundredths)) return "no number";
  if (hundredths === 0) return `0${PERCENT}`;
  if (hundredths >= 99.95) return `100${PERCENT}`;
  if (hundredths >= 1) return hundredths.toFixed(1) + PERCENT;
  if (hundredths >= 0.01) return hundredths.toPrecision(2) + PERCENT;
  return (hundredths < 0.0001 ? "< 0.0001" : Number(hundredths.toPrecision(1))) + PERCENT;
}

/** A difference of shares, with its sign. */
export function signedPercent(by: number): string {
  if (!by) return percent(by);
  return `${by < 0 ? "−" : "+"}${percent(Math.abs(by))}`;
}

/** Errors below this are not written; from a tenth of it on, a share has no decimals. */
export const ROUNDED = 0.005;

/** A share that may be off by an error, with the digits that this leaves. */
export function within(share: number, error: number): string {
  if (!(error >= ROUNDED / 10)) return percent(share);
  const whole = Math.round(100 * share);
  return (error < ROUNDED ? whole : `${whole} ± ${Math.round(100 * error)}`) + PERCENT;
}

/** A number with what it counts, in the plural. */
export function quantity(value: number, unit: string): string {
  if (!Number.isFinite(value)) return number(value);
  return `${number(value)} ${number(value) === "1" ? singular(unit) : unit}`;
}

export function singular(unit: string): string {
  return unit.replace(/ies$/, "y").replace(/s$/, "");
}

// Made once: to make one takes longer than what it is for.
const thousands = new Intl.NumberFormat("en");

export function number(value: number): string {
  if (!Number.isFinite(value)) return "no number";
  return value >= 100 ? thousands.format(Math.round(value)) : String(Number(value.toPrecision(3)));
}
