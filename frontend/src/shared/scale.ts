// From a share to its place on the row of colours, linear or logarithmic.
import { signal } from "@preact/signals";

export type Scale = "linear" | "log";

/** The logarithmic scale goes down to this part of the largest value. */
export const DECADES = 4;

export const scale = signal<Scale>("linear");

export function placeOf(value: number, top: number, kind: Scale | "root"): number {
  if (!(value > 0) || !(top > 0)) return 0;
  const share = Math.min(1, value / top);
  if (kind === "root") return Math.sqrt(share);
  return kind === "linear" ? share : Math.max(0, 1 + Math.log10(share) / DECADES);
}

/** Values for the legend, and where they are on it. */
export function ticks(top: number, kind: Scale): { value: number; at: number }[] {
  const values =
    kind === "linear"
      ? [0, 0.25, 0.5, 0.75, 1].map((part) => part * top)
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

/** A number with what it counts. */
export function quantity(value: number, unit: string): string {
  return Number.isFinite(value) ? `${number(value)} ${unit}` : number(value);
}

export function number(value: number): string {
  if (!Number.isFinite(value)) return "no number";
  return value >= 100
    ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(3)));
}
