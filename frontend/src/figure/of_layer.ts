// The arithmetic of what only layers have: their parts, their output and sinks. A figure has none
// of them, so that its script is without.
import { type Arithmetic, type Line, sum } from "./arithmetic";
import { type Call, type Change, factor, number, type Stage } from "./stage";

/** What parts of a layer make of a number, one after the other; null where that does not come to what was traced. */
function changed(before: number[], after: number[], changes: Change[], column: number) {
  const lines: Line[] = [];
  for (const change of changes) {
    if ("eps" in change) {
      const squares = before.reduce((total, each) => total + each * each, 0);
      const root = Math.sqrt(squares / before.length + change.eps);
      const next = before.map((each, d) => (each / root) * change.weight[d]!);
      lines.push(
        {
          text: `${change.part}: divided by the root of the mean square of this row, ${number(root)}, and times its weight:`,
        },
        {
          text: `${factor(before[column]!)} / ${number(root)} · ${factor(change.weight[column]!)} = ${number(next[column]!)}`,
          sum: true,
        },
      );
      before = next;
      continue;
    }
    const { part, layout, turned } = change;
    if (column >= turned) {
      lines.push({ text: `${part}: number ${column} is not turned.` });
      continue;
    }
    const second = layout === "half" ? column >= turned / 2 : column % 2 === 1;
    const other = column + (layout === "half" ? turned / 2 : 1) * (second ? -1 : 1);
    const [one, two] = second ? [other, column] : [column, other];
    const [a, b] = [before[one]!, before[two]!];
    const [made, also] = [after[one]!, after[two]!];
    // The turn from one pair to the other; it takes 0, 0 nowhere.
    const size = a * a + b * b || 1;
    const [cos, sin] = [(a * made + b * also) / size, (a * also - b * made) / size];
    before = before.map((each, d) =>
      d === one ? a * cos - b * sin : d === two ? a * sin + b * cos : each,
    );
    lines.push(
      {
        text: `${part}: the pair of numbers ${one} and ${two} is turned by the position of the token:`,
      },
      {
        text: `${sum(
          second
            ? [
                [a, sin],
                [b, cos],
              ]
            : [
                [a, cos],
                [b, -sin],
              ],
        )} = ${number(before[column]!)}`,
        sum: true,
      },
    );
  }
  const far = Math.abs(before[column]! - after[column]!);
  return lines.length && far <= 1e-4 * (1 + Math.abs(after[column]!)) ? lines : null;
}

/** The number of the context of a head that stands in the contexts of all heads, or in the output. */
function contexts(
  stages: Map<string, Stage>,
  data: Call,
  queryHead: number,
  { parts }: Stage,
  row: number,
  column: number,
  found: Arithmetic,
) {
  const { columns } = stages.get("context")!;
  const [head, place] = [Math.floor(column / columns), column % columns];
  // Of another head there is no row to mark, but a line in the graph all the same.
  const own = data.heads[queryHead] === head ? row : -1;
  found.origins.push({ stage: "context", row: own, column: place });
  const after = parts && `, changed by ${parts}`;
  found.lines.push({ text: `Number ${place} of the context of head ${head}${after}.` });
}

function sink(score: number, top: number): Line {
  return {
    text: `The sink of this head counts as well, but nothing is taken from it: exp(${number(score - top)}) = ${number(Math.exp(score - top))}`,
  };
}

/** How many keys a table has; those with the largest weights, and the one that is asked for. */
const KEYS = 24;

function largest(keys: number[], exps: number[], column: number): number[] {
  if (keys.length <= KEYS) return keys;
  const found = [...keys].sort((a, b) => exps[b]! - exps[a]!).slice(0, KEYS);
  if (!found.includes(column)) found[KEYS - 1] = column;
  return found.sort((a, b) => a - b);
}

function others(keys: number[], shown: number[], exps: number[]): string {
  const sumOf = (of: number[]) => of.reduce((total, key) => total + exps[key]!, 0);
  const rest = number(sumOf(keys) - sumOf(shown));
  return `… and ${keys.length - shown.length} more keys, whose exps add up to ${rest}`;
}

export const OF_LAYER = { changed, contexts, sink, largest, others };
export type OfLayer = typeof OF_LAYER;
