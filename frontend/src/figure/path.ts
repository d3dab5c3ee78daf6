// The lines over the stages: the row in focus from stage to stage, and from each operand to the number pointed at.
import type { Origin } from "./arithmetic";

type Point = [x: number, y: number];

/** Draw both into the `svg` of the panels; `pointed` is the place of a cell, or null. */
export function drawPath(panels: HTMLElement, pointed: string | null, origins: Origin[]) {
  const svg = panels.querySelector(".paths")!;
  const { left, top } = svg.getBoundingClientRect();
  const ends = (selector: string): [start: Point, end: Point][] => {
    const boxes = [...panels.querySelectorAll(selector)].map((each) =>
      each.getBoundingClientRect(),
    );
    const [first, last] = [boxes[0], boxes.at(-1)];
    if (!first || !last) return [];
    const middle = (first.top + last.bottom) / 2 - top;
    return [
      [
        [first.left - left, middle],
        [last.right - left, middle],
      ],
    ];
  };
  const lines = (found: [Point, Point][]) =>
    found.map(([[x, y], [to, down]]) => {
      const bend = Math.max(10, Math.abs(to - x) / 3);
      return `M${x} ${y}C${x + bend} ${y} ${to - bend} ${down} ${to} ${down}`;
    });
  const draw = (name: string, found: [Point, Point][]) =>
    svg.querySelector(name)!.setAttribute("d", lines(found).join(""));
  const rows = [...panels.querySelectorAll<HTMLElement>("[data-rows=query]")].flatMap(
    ({ dataset }) => ends(`[data-stage=${dataset.stage}] tr.focus > *`),
  );
  // Where the stages go on in the next line, so does the row.
  const row = rows.slice(1).flatMap(([start], at): [Point, Point][] => {
    const end = rows[at]![1];
    const isBeside = start[0] > end[0];
    return isBeside
      ? [[end, start]]
      : [
          [end, [end[0] + 14, end[1]]],
          [[start[0] - 14, start[1]], start],
        ];
  });
  const target = pointed === null ? [] : ends(`[data-at="${pointed}"]`);
  const from = origins.flatMap(({ stage, row, column }) =>
    ends(
      row === null
        ? `[data-at^="${stage}."][data-at$=".${column}"]`
        : `[data-at^="${stage}.${row}.${column ?? ""}"]`,
    ).flatMap(([, end]): [Point, Point][] => target.map(([start]) => [end, start])),
  );
  draw(".row", row);
  draw(".from", from);
}
