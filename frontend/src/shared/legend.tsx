// What the colours mean.
import { css } from "./colour";
import { percent, scale, ticks } from "./scale";
import { theme } from "./theme";

const STEPS = 24;

export function Legend({ top, unit }: { top: number; unit: string }) {
  const kind = scale.value;
  const dark = theme.value;
  const colours = Array.from({ length: STEPS + 1 }, (_, at) => css(at / STEPS, dark));
  const shown = ticks(top, kind).filter((_, at) => at % 2 === 0);
  return (
    <div class="ch-legend">
      <div
        class="ch-legend-bar"
        style={{ backgroundImage: `linear-gradient(to right, ${colours.join(", ")})` }}
      />
      <div class="ch-legend-ticks">
        {shown.map(({ value, at }) => (
          <span key={at}>{percent(value)}</span>
        ))}
      </div>
      <div class="ch-legend-unit">
        {unit}
        {kind === "log" ? ", logarithmic" : ""}
      </div>
    </div>
  );
}

/** A button that goes from one scale to the other. */
export function ScaleButton() {
  return (
    <button
      type="button"
      class="ch-button"
      aria-pressed={scale.value === "log"}
      title="Logarithmic colours"
      onClick={() => (scale.value = scale.value === "log" ? "linear" : "log")}
    >
      Log
    </button>
  );
}
