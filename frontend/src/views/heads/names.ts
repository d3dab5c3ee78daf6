// Heads and layers, and what they are called.
import type { HeadsData, Row } from "./data";

export interface Chosen {
  layer: number;
  head: number;
}

export function same(a: Chosen, b: Chosen): boolean {
  return a.layer === b.layer && a.head === b.head;
}

/** A layer's number within its run. */
export function layerName(data: HeadsData, place: number): string {
  const { run, number } = data.layers[place]!;
  return data.runs.length > 1 ? `${"AB"[run] ?? run}${number}` : String(number);
}

/** A head's number in its layer. */
export function headName(data: HeadsData, { layer, head }: Chosen): number {
  return data.layers[layer]!.head_numbers?.[head] ?? head;
}

/** "Layer 5, head 11". */
export function titleOf(data: HeadsData, chosen: Chosen): string {
  return `Layer ${layerName(data, chosen.layer)}, head ${headName(data, chosen)}`;
}

export function score(row: Row): number {
  return row.scores[row.role] ?? 0;
}
