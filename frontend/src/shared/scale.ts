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

/** A share of one in percent, with as many digits as a reader can use. */
export function percent(share: number): string {
  const hundredths = share * 100;
  if (Number.isNaN(hundredths)) return "no number";
  if (hundredths === 0) return "0 %";
  if (hundredths >= 99.95) return "100 %";
  if (hundredths >= 10) return `${hundredths.toFixed(1)} %`;
  if (hundredths >= 0.01) return `${Number(hundredths.toPrecision(2))} %`;
  return hundredths < 0.0001 ? "< 0.0001 %" : `${Number(hundredths.toPrecision(1))} %`;
}

/** A difference of shares, with its sign. */
export function signedPercent(by: number): string {
  if (!by) return percent(by);
  return `${by < 0 ? "−" : "+"}${percent(Math.abs(by))}`;
}

/** Errors below this are not worth a word. */
export const ROUNDED = 5e-7;

/** A share that may be off by so much, with the places that this leaves. */
export function within(share: number, error: number): string {
  if (!(error >= ROUNDED)) return percent(share);
  const by = 100 * error;
  const places = Math.max(0, Math.min(6, -Math.floor(Math.log10(by))));
  if (share + error >= 1) return `≥ ${(100 * (share - error)).toFixed(places)} %`;
  return `${(100 * share).toFixed(places)} ± ${by.toFixed(places)} %`;
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
