// What parts of a layer make of a query or a key, number by number: a figure has none, so that its script is without.
import { type Line, sum } from "./arithmetic";
import { type Change, factor, number } from "./stage";

/** What parts of a layer make of a number, one after the other; null where that does not come to what was traced. */
export function changed(before: number[], after: number[], changes: Change[], column: number) {
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
