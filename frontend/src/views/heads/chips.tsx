// The heads that are shown at once: their colours, and how they are mixed.

import { Choice } from "../../shared/choice";
import type { Signal } from "../../shared/signals";
import type { HeadsData } from "./data";
import { type Chosen, shortName } from "./names";
import { HUES, hueOf, type Mix } from "./several";

interface HeadsLegendProps {
  data: HeadsData;
  heads: readonly Chosen[];
  mix: Signal<Mix>;
  remove: (head: Chosen) => void;
}

const NAMES: Record<Mix, string> = { mean: "mean", max: "maximum" };

export function HeadsLegend({ data, heads, mix, remove }: HeadsLegendProps) {
  return (
    <div class="ch-several">
      {heads.length <= HUES && (
        <ul aria-label="Heads that are shown">
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
      )}
      <label>
        Map
        <Choice
          name="Map of several heads"
          value={mix.value}
          all={NAMES}
          onChoice={(each) => (mix.value = each)}
        />
      </label>
    </div>
  );
}
