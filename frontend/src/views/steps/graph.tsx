// The stages as a graph: inputs, weights, query over key over value, then one stage after the other.
import type { Stage } from "./model";

/** Pixels, as the style sheet has them. */
const [CHARACTER, AROUND, GAP, LINE] = [7.6, 17, 26, 36];

export interface Place {
  left: number;
  top: number;
  width: number;
}

const LANES: Record<string, number> = { query: 0, key: 1, value: 3 };
/** Rows of the stages that repeat the one before, which share a column. */
const FOLDED = [1, 2, 0];

/** Where every stage stands. */
export function placesOf(stages: readonly Stage[]): Map<string, Place> {
  const crossed = stages.some(({ name }) => name === "source");
  const columns = new Map<string, number>();
  const widths: number[] = [];
  let folded = 0;
  const cells = stages.map(({ name, sameAs }) => {
    const target = name.replace("W_", "");
    const lane = LANES[target];
    let [kind, row] = [name, 1];
    if (name === "x" || name === "source") [kind, row] = ["input", crossed && name === "x" ? 0 : 1];
    else if (lane !== undefined) [kind, row] = [name === target ? "made" : "W", lane];
    else if (name === "W_output") [kind, row] = ["contexts", 0];
    folded = sameAs === null ? 0 : folded + 1;
    if (folded)
      [kind, row] = [folded > 1 ? [...columns.keys()].at(-1)! : name, FOLDED[folded - 1]!];
    if (!columns.has(kind)) columns.set(kind, columns.size);
    const column = columns.get(kind)!;
    const width = CHARACTER * name.length + AROUND;
    widths[column] = Math.max(widths[column] ?? 0, width);
    return { name, column, row, width };
  });
  const left = (column: number) =>
    widths.slice(0, column).reduce((before, width) => before + width + GAP, 0);
  // A row in which nothing stands takes no room.
  const rows = [...new Set(cells.map(({ row }) => row))].sort((a, b) => a - b);
  return new Map(
    cells.map(({ name, column, row, width }) => [
      name,
      { left: left(column), top: LINE * rows.indexOf(row), width },
    ]),
  );
}

/** A line from one stage to the next: along the lane of query, key or value, else along its own row. */
export function lineOf(from: Place, to: Place, early: boolean): string {
  const [x, end] = [from.left + from.width, to.left - 2];
  const [y, last] = [from.top, to.top].map((top) => top + LINE / 2 - 3) as [number, number];
  const bend = early ? x : end - GAP + 4;
  const middle = bend + GAP / 2;
  const past = bend + GAP - 4;
  return `M${x} ${y}H${bend}C${middle} ${y} ${middle} ${last} ${past} ${last}H${end}m-5-3l5 3l-5 3`;
}

interface GraphProps {
  stages: readonly Stage[];
  /** What each stage is made of. */
  operands: ReadonlyMap<string, readonly string[]>;
  current: string;
  /** The stage that went wrong. */
  wrong: string | undefined;
  go: (to: number) => void;
  at: { current: HTMLDivElement | null };
}

export function Graph({ stages, operands, current, wrong, go, at }: GraphProps) {
  const places = placesOf(stages);
  const all = [...places.values()];
  const width = Math.max(...all.map((each) => each.left + each.width));
  const height = Math.max(...all.map(({ top }) => top)) + LINE;
  const lines = stages.flatMap(({ name }) =>
    operands.get(name)!.map((from) => [from, name] as const),
  );
  return (
    <div class="ch-st-graph" ref={at}>
      <ol style={{ width: scaled(width), height: scaled(height) }}>
        {stages.map(({ name, sameAs, formula }, place) => (
          <li
            key={name}
            style={Object.fromEntries(
              Object.entries(places.get(name)!).map(([side, at]) => [side, scaled(at)]),
            )}
          >
            <button
              type="button"
              class={`ch-st-chip${sameAs === null ? "" : " ch-st-chip-same"}${name === wrong ? " ch-st-wrong" : ""}`}
              aria-current={name === current ? "step" : undefined}
              title={sameAs === null ? formula : `the same as ${sameAs}: ${formula}`}
              onClick={() => go(place)}
            >
              {name}
            </button>
          </li>
        ))}
      </ol>
      <svg viewBox={`0 0 ${width} ${height}`} style={{ width: scaled(width) }} aria-hidden="true">
        {lines.map(([from, to]) => (
          <path
            key={`${from} ${to}`}
            class={to === current ? "ch-st-into" : undefined}
            d={lineOf(places.get(from)!, places.get(to)!, to in LANES)}
          />
        ))}
      </svg>
    </div>
  );
}

/** Pixels as a reader's size of letters has them. */
function scaled(pixels: number): string {
  return `${pixels / 16}rem`;
}
