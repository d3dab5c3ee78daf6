// Heads and layers, and what they are called.
import { label } from "../../shared/labels";
import type { HeadsData, Row } from "./data";

export interface Chosen {
  layer: number;
  head: number;
}

export function same(a: Chosen, b: Chosen): boolean {
  return a.layer === b.layer && a.head === b.head;
}

export function headsOf(data: HeadsData, layer: number): Chosen[] {
  return data.layers[layer]!.rows.map((_, head) => ({ layer, head }));
}

/** The heads of all layers. */
export function everyHead(data: HeadsData): Chosen[] {
  return data.layers.flatMap((_, layer) => headsOf(data, layer));
}

/** A layer's number within its run, "5", or of one of several calls "5:0". */
export function layerName(data: HeadsData, place: number): string {
  const { run, number, call } = data.layers[place]!;
  const name = typeof call === "number" ? `${number}:${call}` : String(number);
  return data.runs.length > 1 ? `${"AB"[run] ?? run}${name}` : name;
}

/** What a run is called; "" where that is its letter, and where there is no other. */
export function runName({ runs }: HeadsData, run: number): string {
  const name = runs[run] ?? "";
  return runs.length < 2 || name === "AB"[run] ? "" : name.split(" ").map(label).join(" ");
}

/** A head's number in its layer. */
export function headName(data: HeadsData, { layer, head }: Chosen): number {
  return data.layers[layer]!.head_numbers?.[head] ?? head;
}

/** "5.11", and with two runs "A5.11". */
export function shortName(data: HeadsData, chosen: Chosen): string {
  return `${layerName(data, chosen.layer)}.${headName(data, chosen)}`;
}

/** "Layer 5, head 11". */
export function titleOf(data: HeadsData, chosen: Chosen): string {
  return `Layer ${layerName(data, chosen.layer)}, head ${headName(data, chosen)}`;
}

export function score(row: Row): number {
  return row.scores[row.role] ?? 0;
}
