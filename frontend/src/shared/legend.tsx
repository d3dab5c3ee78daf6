// What the colours mean.
import { css, cssSigned } from "./colour";
import { useLook } from "./look";
import { nextScale, percent, type Scale, signedPercent, ticks } from "./scale";

const STEPS = 24;
const NAMES: Record<Scale, string> = {
  root: "square-root",
  linear: "linear",
  log: "logarithmic",
};

interface LegendProps {
  top: number;
  /** Some values are larger than where the colours end. */
  beyond: boolean;
  unit: string;
  /** Of differences, from -top to top. */
  signed?: boolean;
}

export function Legend({ top, beyond, unit, signed = false }: LegendProps) {
  const { scale, theme } = useLook();
  const [kind, dark] = [scale.value, theme.value];
  const colours = Array.from({ length: STEPS + 1 }, (_, at) =>
    signed ? cssSigned((2 * at) / STEPS - 1, dark) : css(at / STEPS, dark),
  );
  const shown = signed
    ? [-1, 0, 1].map((at) => ({ value: at * top, at }))
    : ticks(top, kind).filter((_, at) => at % 2 === 0);
  return (
    <div class="ch-legend">
      <div
        class="ch-legend-bar"
        style={{ backgroundImage: `linear-gradient(to right, ${colours.join(", ")})` }}
      />
      <div class="ch-legend-ticks">
        {shown.map(({ value, at }) => (
          <span key={at}>
            {at === 1 && beyond ? "≥ " : ""}
            {signed ? signedPercent(value) : percent(value)}
          </span>
        ))}
      </div>
      <div class="ch-legend-unit">
        {`${unit}, `}
        <button type="button" class="ch-link" onClick={() => (scale.value = nextScale(kind))}>
          {`${NAMES[kind]} scale`}
        </button>
      </div>
    </div>
  );
}
