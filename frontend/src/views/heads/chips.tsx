// The heads that are shown at once, each with its colour.
import type { HeadsData } from "./data";
import { type Chosen, shortName } from "./names";
import { HUES, hueOf } from "./several";

interface HeadsLegendProps {
  data: HeadsData;
  heads: readonly Chosen[];
  remove: (head: Chosen) => void;
}

export function HeadsLegend({ data, heads, remove }: HeadsLegendProps) {
  if (heads.length > HUES) return null;
  return (
    <ul class="ch-several" aria-label="Heads that are shown">
      {heads.map((each, hue) => (
        <li key={shortName(data, each)}>
          <button
            type="button"
            class={`ch-button ch-hue${hue}`}
            style={hueOf(hue)}
            aria-label={`Leave out head ${shortName(data, each)}`}
            title="Leave it out"
            onClick={() => remove(each)}
          >
            <i aria-hidden="true" />
            {shortName(data, each)} <span aria-hidden="true">×</span>
          </button>
        </li>
      ))}
    </ul>
  );
}
