// Vectors of width 2: what a turn, a stretch and a projection make of them, and the hull of several.
export type Point = [number, number];

/** The foot of a point on the line through 0 and another; 0 where there is no line. */
export function foot([x, y]: Point, [a, b]: Point): Point {
  const size = a * a + b * b;
  const share = size > 0 ? (x * a + y * b) / size : 0;
  return [share * a, share * b];
}

/** A vector that is turned by so many degrees, and made longer by a factor. */
export function turned([x, y]: Point, degrees: number, factor: number): Point {
  const angle = (degrees * Math.PI) / 180;
  const [cos, sin] = [factor * Math.cos(angle), factor * Math.sin(angle)];
  return [rounded(x * cos - y * sin), rounded(x * sin + y * cos)];
}

export function rounded(value: number): number {
  return Number(value.toFixed(4));
}

/** The corners of the smallest convex shape that holds all points, by Andrew's monotone chain (1979). */
export function hull(points: Point[]): Point[] {
  const sorted = [...points].sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  const half = (all: Point[]) => {
    const found: Point[] = [];
    for (const point of all) {
      while (found.length > 1 && !turnsLeft(found.at(-2)!, found.at(-1)!, point)) found.pop();
      found.push(point);
    }
    return found.slice(0, -1);
  };
  const corners = [...half(sorted), ...half(sorted.reverse())];
  return corners.length > 0 ? corners : points.slice(0, 1);
}

function turnsLeft([a, b]: Point, [c, d]: Point, [e, f]: Point): boolean {
  return (c - a) * (f - b) - (d - b) * (e - a) > 0;
}

/** The smallest of 1, 1.5, 2, 3, 4, 5, 7.5, 10, … in which all numbers have room. */
export function reach(points: Point[]): number {
  const most = Math.max(...points.flat().map(Math.abs).filter(Number.isFinite), 1e-6);
  const ten = 10 ** Math.floor(Math.log10(most));
  const steps = [1, 1.5, 2, 3, 4, 5, 7.5, 10].map((each) => Number((each * ten).toPrecision(2)));
  return steps.find((each) => each >= most) ?? 10 * ten;
}

/** Pixels: the width of a letter, the height of a word, and the distance of a word from its point. */
const LETTER = 6.6;
const TALL = 13;
const APART = 7;

export type Box = [left: number, top: number, right: number, bottom: number];

/** The start and the base line of each word: next to its point, clear of points, of earlier words and of the edges. */
export function beside(words: { point: Point; word: string }[], edge: Box): Point[] {
  const [left, top, right, bottom] = edge;
  const taken = words.map(({ point: [x, y] }) => [x - APART, y + APART, 2 * APART]);
  return words.map(({ point: [x, y], word }) => {
    const width = LETTER * word.length;
    const sides = [x + APART + 1, x - APART - 1 - width];
    if (x < 0) sides.reverse();
    const lines = Array.from({ length: 17 }, (_, at) => (at % 2 ? -1 : 1) * Math.ceil(at / 2));
    const all = lines.flatMap((line) => sides.map((start): Point => [start, y + TALL * line + 4]));
    const isFree = ([start, base]: Point) =>
      start >= left &&
      start + width <= right &&
      base - TALL >= top &&
      base <= bottom &&
      taken.every(
        ([other, its, wide]) =>
          Math.abs(base - its!) > TALL || start >= other! + wide! || other! >= start + width,
      );
    const found = all.find(isFree) ?? all[0]!;
    taken.push([...found, width]);
    return [rounded(found[0]), rounded(found[1])];
  });
}
