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

/** Words and points of a plane take so much room, in pixels. */
const LETTER = 6.6;
const TALL = 13;
const DOT = 5;
const SHAFT = 3;

export type Box = [left: number, top: number, right: number, bottom: number];

function shared([a, b, c, d]: Box, [e, f, g, h]: Box): number {
  return (
    Math.max(0, Math.min(c, g) - Math.max(a, e)) * Math.max(0, Math.min(d, h) - Math.max(b, f))
  );
}

/** An arrow from 0 as small squares along it. */
function shaft([x, y]: Point): Box[] {
  const steps = Math.ceil(Math.hypot(x, y) / (2 * SHAFT));
  return Array.from({ length: steps }, (_, at): Box => {
    const [a, b] = [(x * at) / steps, (y * at) / steps];
    return [a - SHAFT, b - SHAFT, a + SHAFT, b + SHAFT];
  });
}

/** Where each word begins, and its base line: beside its point, off all arrows, the words before it and the edge. */
export function beside(words: { point: Point; word: string }[], edge: Box): Point[] {
  const taken = words.flatMap(({ point: [x, y] }): Box[] => [
    [x - DOT, y - DOT, x + DOT, y + DOT],
    ...shaft([x, y]),
  ]);
  return words.map(({ point: [x, y], word }) => {
    const width = LETTER * word.length;
    const [out, off] = [x < 0 ? -1 : 1, y > 0 ? 1 : -1];
    const sides = [out, -out, 0].flatMap((dx) => [off, -off, 0].map((dy) => [dx, dy] as const));
    let best = Infinity;
    let found: Box = [0, 0, 0, 0];
    for (const far of [7, 16, 28])
      for (const [dx, dy] of sides) {
        const left = x + dx * far - ((1 - dx) / 2) * width;
        const top = y + dy * (far + (dx ? 0 : 5)) - TALL / 2;
        const box: Box = [left, top, left + width, top + TALL];
        const beyond = Math.max(
          0,
          ...box.map((each, at) => (each - edge[at]!) * (at < 2 ? -1 : 1)),
        );
        const cost = taken.reduce((sum, each) => sum + shared(box, each), far + 40 * beyond);
        if (cost < best) [best, found] = [cost, box];
      }
    taken.push(found);
    return [rounded(found[0]), rounded(found[3] - 3)];
  });
}
