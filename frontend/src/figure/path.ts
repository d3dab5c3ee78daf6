// The lines over the stages: the row in focus from stage to stage, and from each operand to the number pointed at.
import type { Origin } from "./arithmetic";

type Point = [x: number, y: number];

/** Draw both into the `svg` of the panels; `pointed` is the place of a cell, or null. */
export function drawPath(
  panels: HTMLElement,
  pointed: string | null,
  origins: Origin[],
  query: number,
) {
  const svg = panels.querySelector(".paths");
  if (!svg) return;
  const around = panels.getBoundingClientRect();
  const [left, top] = [around.left - panels.scrollLeft, around.top - panels.scrollTop];
  const find = (selector: string) => [...panels.querySelectorAll(selector)];
  const ends = (cells: Element[]): { start: Point; end: Point } | null => {
    if (cells.length === 0) return null;
    const boxes = [cells[0]!, cells.at(-1)!].map((each) => each.getBoundingClientRect());
    const [first, last] = boxes as [DOMRect, DOMRect];
    const middle = (first.top + last.bottom) / 2 - top;
    return { start: [first.left - left, middle], end: [last.right - left, middle] };
  };
  const curve = ([x, y]: Point, [to, down]: Point) => {
    const bend = Math.max(10, Math.abs(to - x) / 3);
    return `M${x} ${y}C${x + bend} ${y} ${to - bend} ${down} ${to} ${down}`;
  };
  const rows = find(".panel").flatMap((panel) => {
    const { stage } = (panel as HTMLElement).dataset;
    const isOfQueries = panel.querySelector("tr.focus") && !/^(W_|key|value|split)/.test(stage!);
    const found = isOfQueries ? ends(find(`[data-at^="${stage}.${query}."]`)) : null;
    return found ? [found] : [];
  });
  const row = rows.slice(1).map(({ start }, at) => curve(rows[at]!.end, start));
  const target = pointed === null ? null : ends(find(`[data-at="${pointed}"]`));
  const from = origins.flatMap(({ stage, row, column }) => {
    const selector =
      row === null
        ? `[data-at^="${stage}."][data-at$=".${column}"]`
        : `[data-at^="${stage}.${row}.${column ?? ""}"]`;
    const found = target && ends(find(selector));
    return found ? [curve(found.end, target!.start)] : [];
  });
  svg.setAttribute("width", `${panels.scrollWidth}`);
  svg.setAttribute("height", `${panels.scrollHeight}`);
  svg.querySelector(".row")!.setAttribute("d", row.join(""));
  svg.querySelector(".from")!.setAttribute("d", from.join(""));
}
