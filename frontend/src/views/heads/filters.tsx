// What is left out of all maps, arcs and lists.

import { useMemo } from "preact/hooks";
import { useLoaded } from "../../shared/loaded";
import { percent, quantity } from "../../shared/scale";
import type { Signal } from "../../shared/signals";
import type { Source } from "../../source";
import type { HeadsData } from "./data";
import { countLinks, filtered, KINDS, type Kind, kindsOf, leftOut } from "./filter";
import type { Chosen } from "./names";
import { headMap } from "./tiles";

const NAMES: Record<Kind, string> = {
  first: "first token",
  special: "special tokens",
  punctuation: "punctuation",
};

interface FiltersProps {
  data: HeadsData;
  source: Source;
  chosen: Chosen;
  without: Signal<Kind[]>;
  least: Signal<number>;
  /** Links are drawn, and not differences. */
  links: boolean;
  /** Those of one head, which are counted. */
  alone: boolean;
}

export function Filters({ data, source, chosen, without, least, links, alone }: FiltersProps) {
  const layer = data.layers[chosen.layer]!;
  const kinds = useMemo(() => kindsOf(data, layer), [data, layer]);
  const count = useCount(data, source, chosen, without.value, least.value);
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
      {links && alone && count !== null && (
        <span role="status">
          {quantity(count, "links")}
          {layer.weights ? "" : ", of those that are known"}
        </span>
      )}
    </div>
  );
}

/** How many links of a head are left; null while nothing is left out. */
function useCount(
  data: HeadsData,
  source: Source,
  { layer, head }: Chosen,
  without: readonly Kind[],
  least: number,
): number | null {
  const none = !without.length && !least;
  const { value = null } = useLoaded(() => {
    if (none) return null;
    const about = data.layers[layer]!;
    return headMap(source, layer, about, head).then((map) =>
      countLinks(filtered(map, leftOut(data, about, without), least)),
    );
  }, [data, source, layer, head, without, least, none]);
  return none ? null : value;
}
