// One stage as a table of numbers with colours.

import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { cssOf, ramp } from "../../shared/colour";
import { type Theme, useLook } from "../../shared/look";
import { useOwnId } from "../../shared/own_id";
import type { ReadonlySignal } from "../../shared/signals";
import type { Origin } from "./arithmetic";
import { cellNumber, rowLabel, type Stage, type TraceData } from "./model";
import { NUMBERS, type State, TOKENS } from "./state";

/** In rem, as the style sheet has them. */
const LABEL = 6.5;
const WIDE = 3.875;
const HIGH = 1.5;

const SHARES = new Set(["weights", "dropped_weights"]);
const MASKED = new Set(["masked_scores", "weights", "dropped_weights"]);

export interface Marks {
  cell: { stage: string; row: number; column: number };
  origins: Origin[];
}

interface PanelProps {
  stage: Stage;
  data: TraceData;
  state: State;
  masked: Stage;
  marks: ReadonlySignal<Marks>;
  current: boolean;
  /** What stands above it, where that is not its name. */
  title?: string;
  onCurrent?: () => void;
}

interface Window {
  row: number;
  rows: number;
  column: number;
  columns: number;
}

export function Panel(props: PanelProps) {
  const { stage, title, data, state, masked, marks, current, onCurrent } = props;
  const id = useOwnId();
  const { theme } = useLook();
  const name = (
    <h2 id={id}>
      <button
        type="button"
        class="ch-st-stage-name"
        aria-current={current ? "step" : undefined}
        onClick={onCurrent}
      >
        {title ?? stage.name}
      </button>
    </h2>
  );
  if (stage.sameAs !== null) {
    return (
      <section class="ch-st-stage ch-st-same" data-stage={stage.name} aria-labelledby={id}>
        {name}
        <p>
          the same as <b>{stage.sameAs}</b>
        </p>
        <p>{stage.formula}</p>
      </section>
    );
  }
  const view = windowOf(stage, state);
  const over = (event: PointerEvent) => {
    const at = placeOf(event.target, view);
    state.hovered.value = at && { stage: stage.name, ...at };
  };
  const click = (event: MouseEvent) => {
    const at = placeOf(event.target, view);
    if (at !== null) state.pick(stage, at.row, at.column);
  };
  return (
    <section class="ch-st-stage" data-stage={title ? "expected" : stage.name} aria-labelledby={id}>
      {name}
      <p class="ch-st-formula">{stage.formula}</p>
      {/* The pointer only finds what the keys find as well. */}
      <div
        class="ch-st-scroll"
        tabIndex={0}
        role="region"
        aria-label={`Numbers of ${title ?? stage.name}`}
      >
        <div
          class="ch-st-numbers"
          onPointerOver={over}
          onPointerLeave={() => (state.hovered.value = null)}
          onClick={click}
        >
          <Table stage={stage} data={data} masked={masked} {...view} theme={theme.value} />
          {!title && <Highlights stage={stage} state={state} marks={marks} view={view} />}
        </div>
      </div>
      <Extent stage={stage} state={state} view={view} />
    </section>
  );
}

function windowOf(stage: Stage, state: State): Window {
  const axis = (name: string, count: number, most: number, at: number): [number, number] => {
    if (count <= most) return [0, count];
    if (name === "query") return [Math.min(state.queryFrom.value, count - most), most];
    if (name === "key") return [Math.min(state.keyFrom.value, count - most), most];
    const from = Math.floor(Math.min(at, count - 1) / most) * most;
    return [from, Math.min(most, count - from)];
  };
  const [row, rows] = axis(stage.rowAxis, stage.rows, TOKENS, state.feature.value);
  const most = stage.columnAxis === "key" ? TOKENS : NUMBERS;
  const [column, columns] = axis(stage.columnAxis, stage.columns, most, state.number.value);
  return { row, rows, column, columns };
}

function placeOf(target: EventTarget | null, view: Window) {
  const cell = (target as Element | null)?.closest<HTMLTableCellElement>("tbody td");
  if (!cell) return null;
  const row = cell.parentElement as HTMLTableRowElement;
  return { row: view.row + row.rowIndex - 1, column: view.column + cell.cellIndex - 1 };
}

interface TableProps extends Window {
  stage: Stage;
  data: TraceData;
  masked: Stage;
  theme: Theme;
}

function Table(props: TableProps) {
  // Cells are many, and the same while only what is marked changes.
  // biome-ignore lint/correctness/useExhaustiveDependencies: each of them by itself.
  return useMemo(() => tableOf(props), Object.values(props));
}

function tableOf({ stage, data, masked, row, rows, column, columns, theme }: TableProps) {
  const across = places(column, columns);
  return (
    <table style={{ width: `${LABEL + WIDE * columns}rem` }}>
      <caption>
        {stage.name} [{stage.shape}]
      </caption>
      <thead>
        <tr>
          <td></td>
          {across.map((c) => (
            <th key={c} scope="col">
              {stage.columnAxis === "key" ? (
                <Token label={data.source_tokens[c]!} />
              ) : (
                <span class="ch-st-token">{c}</span>
              )}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {places(row, rows).map((r) => (
          <tr key={r}>
            <th scope="row">
              <Token label={rowLabel(stage, data, r)} />
            </th>
            {across.map((c) => {
              const value = stage.at(r, c);
              const hidden = MASKED.has(stage.name) && isHidden(stage, masked, data, r, c);
              return (
                <td
                  key={c}
                  class={[
                    hidden && "ch-st-hidden",
                    stage.expected && !near(value, stage.expected.at(r, c)) && "ch-st-wrong",
                  ]
                    .filter(Boolean)
                    .join(" ")}
                  style={hidden ? undefined : paint(stage, value, theme)}
                >
                  {cellNumber(value)}
                </td>
              );
            })}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Equal as far as the page shows it. */
function near(one: number, other: number): boolean {
  return Object.is(one, other) || Math.abs(one - other) < 5e-5;
}

/** A place and a word; the word may run from right to left. */
export function Token({ label }: { label: string }) {
  const at = label.indexOf(" ");
  if (at < 0) return <span class="ch-st-token">{label}</span>;
  return (
    <span class="ch-st-token" title={label}>
      <span class="ch-st-place">{label.slice(0, at)}</span> <bdi>{label.slice(at + 1)}</bdi>
    </span>
  );
}

function isHidden(
  stage: Stage,
  masked: Stage,
  data: TraceData,
  row: number,
  column: number,
): boolean {
  if (data.renormalised) return stage.name !== "masked_scores" && stage.at(row, column) === 0;
  return masked.at(row, column) === -Infinity;
}

/** Black or white, whichever has more contrast: at least 4.5 on any colour (WCAG 2, relative
 * luminance). */
function inkOn(paper: number): string {
  const [red, green, blue] = [0, 8, 16].map((shift) => {
    const part = ((paper >> shift) & 255) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

/** Where a weight stands on the scale. Of many keys none gets much, so that the root is drawn. */
function shareOf(weight: number, keys: number): number {
  return keys > TOKENS ? Math.sqrt(weight) : weight;
}

/** Shares on a scale of lightness; other numbers by their sign, the stronger the larger. */
function paint(stage: Stage, value: number, theme: Theme) {
  if (!Number.isFinite(value)) return {};
  if (SHARES.has(stage.name)) {
    const share = shareOf(value, stage.columns);
    const paper = ramp(theme)[Math.round(255 * Math.min(1, Math.max(0, share)))]!;
    return { background: cssOf(paper), color: inkOn(paper) };
  }
  const strength = stage.largest > 0 ? (0.5 * Math.abs(value)) / stage.largest : 0;
  // The middle of the scale for either sign.
  const middle = value < 0 ? "210 108 40" : "42 137 206";
  return { background: `rgb(${middle} / ${(100 * strength).toFixed(1)}%)` };
}

interface HighlightsProps {
  stage: Stage;
  state: State;
  marks: ReadonlySignal<Marks>;
  view: Window;
}

/** What is looked at, and where it comes from, drawn over the table, which stays as it is. */
function Highlights({ stage, state, marks, view }: HighlightsProps) {
  const { cell, origins } = marks.value;
  const boxes: VNode[] = [];
  const box = (row: number | null, column: number | null, name: string) => {
    const inside =
      (row === null || (row >= view.row && row < view.row + view.rows)) &&
      (column === null || (column >= view.column && column < view.column + view.columns));
    if (!inside) return;
    boxes.push(
      <div
        key={`${name}${row}.${column}`}
        class={name}
        style={{
          left: `${LABEL + WIDE * (column === null ? 0 : column - view.column)}rem`,
          top: `${HIGH * (row === null ? 1 : 1 + row - view.row)}rem`,
          width: `${WIDE * (column === null ? view.columns : 1)}rem`,
          height: `${HIGH * (row === null ? view.rows : 1)}rem`,
        }}
      />,
    );
  };
  const query = state.query.value;
  if (stage.rowAxis === "query" && query >= view.row && query < view.row + view.rows) {
    boxes.push(
      <div
        key="query"
        class="ch-st-query"
        style={{ top: `${HIGH * (1 + query - view.row)}rem` }}
      />,
    );
  }
  for (const each of origins) {
    if (each.stage === stage.name) box(each.row, each.column, "ch-st-origin");
  }
  if (cell.stage === stage.name) box(cell.row, cell.column, "ch-st-picked");
  return <div aria-hidden="true">{boxes}</div>;
}

/** Which part of a stage is shown, where it is not all. */
function Extent({ stage, state, view }: { stage: Stage; state: State; view: Window }) {
  const parts = [];
  if (view.rows < stage.rows)
    parts.push(`rows ${view.row} to ${view.row + view.rows - 1} of ${stage.rows}`);
  if (view.columns < stage.columns) {
    parts.push(`columns ${view.column} to ${view.column + view.columns - 1} of ${stage.columns}`);
  }
  if (parts.length === 0) return null;
  // A window of tokens follows the query and the key.
  const turns = (what: string, axis: string, from: number, shown: number, all: number) => {
    if (axis !== "width" || shown === all) return null;
    const turn = (to: number) =>
      what === "Rows" ? state.setFeature(to, stage) : state.setNumber(to, stage);
    const button = (sign: string, place: string, to: number) => (
      <button
        type="button"
        class="ch-button"
        aria-label={`${what} of ${stage.name} ${place} these`}
        disabled={to < 0 || to >= all}
        onClick={() => turn(to)}
      >
        {sign}
      </button>
    );
    return (
      <span>
        {button("‹", "before", from - 1)}
        {button("›", "after", from + shown)}
      </span>
    );
  };
  return (
    <div class="ch-st-extent">
      <span>{parts.join(", ")}</span>
      {turns("Rows", stage.rowAxis, view.row, view.rows, stage.rows)}
      {turns("Columns", stage.columnAxis, view.column, view.columns, stage.columns)}
    </div>
  );
}

function places(from: number, count: number): number[] {
  return Array.from({ length: count }, (_, at) => from + at);
}
