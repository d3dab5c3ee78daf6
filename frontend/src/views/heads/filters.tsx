// What is left out of all maps, arcs and lists.

import { useMemo } from "preact/hooks";
import { percent } from "../../shared/scale";
import type { Signal } from "../../shared/signals";
import type { HeadsData, LayerData } from "./data";
import { KINDS, type Kind, kindsOf } from "./filter";

const NAMES: Record<Kind, string> = {
  first: "first token",
  special: "special tokens",
  punctuation: "punctuation",
};

interface FiltersProps {
  data: HeadsData;
  layer: LayerData;
  without: Signal<Kind[]>;
  least: Signal<number>;
  /** Links are drawn, and not differences. */
  links: boolean;
}

export function Filters({ data, layer, without, least, links }: FiltersProps) {
  const kinds = useMemo(() => kindsOf(data, layer), [data, layer]);
  const toggle = (kind: Kind) => {
    const now = without.value;
    without.value = KINDS.filter((each) => now.includes(each) !== (each === kind));
  };
  return (
    <div class="ch-filters" role="group" aria-label="Filters">
      {kinds.length > 0 && <span>Without</span>}
      {kinds.map((kind) => (
        <label key={kind}>
          <input
            type="checkbox"
            checked={without.value.includes(kind)}
            onChange={() => toggle(kind)}
          />
          {NAMES[kind]}
        </label>
      ))}
      {links && (
        <label>
          At least
          <input
            type="range"
            aria-label="Links of at least"
            aria-valuetext={percent(least.value)}
            min="0"
            max="100"
            // By the square root, as the colours are: most weights are small.
            value={Math.round(100 * Math.sqrt(least.value))}
            onInput={(event) => (least.value = (Number(event.currentTarget.value) / 100) ** 2)}
          />
          <b aria-hidden="true">{percent(least.value)}</b>
        </label>
      )}
    </div>
  );
}
