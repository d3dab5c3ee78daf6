// One stage as a grid of cells, each of which is drawn again only when what it shows is another.
import { Component } from "preact";
import { cellNumber } from "../views/steps/model";
import type { Touched } from "./core";

/** With more columns cells have colours alone, with more rows no old numbers; the reading has both. */
const MOST = 12;

interface CellProps {
  at: string;
  label: string;
  kind: "number" | "still" | "pair";
  text: string;
  /** A colour alone: the text is for those who hear it. */
  bare: boolean;
  /** What stood here before the last edit, where that was something else. */
  old: string;
  value: number;
  /** From -1 to 1. */
  share: number;
  classes: string;
  stop: boolean;
  typing: string | null;
}

class Cell extends Component<CellProps> {
  override shouldComponentUpdate(next: CellProps) {
    const names = Object.keys(next) as (keyof CellProps)[];
    return names.some((name) => !Object.is(next[name], this.props[name]));
  }

  override render({
    at,
    label,
    kind,
    text,
    bare,
    old,
    value,
    share,
    classes,
    stop,
    typing,
  }: CellProps) {
    const content =
      typing === null ? (
        <>
          <span>{bare ? "" : text}</span>
          {old && <small>{old}</small>}
        </>
      ) : (
        <input defaultValue={typing} inputMode="decimal" aria-label={label} ref={focusEnd} />
      );
    const own = {
      "data-at": at,
      tabIndex: stop && typing === null ? 0 : -1,
      class: `cell ${kind} ${classes}`,
      style: { "--share": `${Math.round(100 * Math.min(1, Math.abs(share)))}%` },
    };
    if (kind === "still") {
      return (
        <td {...own} aria-label={`${label}: ${text}`}>
          {content}
        </td>
      );
    }
    // The element stays while a number is typed into it, so that it keeps the focus afterwards.
    const role =
      typing !== null
        ? {}
        : kind === "pair"
          ? ({ role: "switch", "aria-checked": value === 1 ? "true" : "false" } as const)
          : ({ role: "spinbutton", "aria-valuenow": value, "aria-valuetext": text } as const);
    return (
      <td>
        <span {...own} {...role} aria-label={typing === null ? label : undefined}>
          {content}
        </span>
      </td>
    );
  }
}

function focusEnd(input: HTMLInputElement | null) {
  if (input === null) return;
  const root = input.getRootNode() as ShadowRoot;
  if (root.activeElement === input) return;
  input.focus();
  input.setSelectionRange(input.value.length, input.value.length);
}

interface RowProps {
  stage: Touched;
  old: Touched | undefined;
  row: number;
  label: string;
  columns: string[];
  editable: boolean;
  sparse: boolean;
  /** Its numbers are whole, and stand without decimals. */
  whole: boolean;
  /** Neither numbers nor what stood there before has room. */
  small: boolean;
  top: number;
  /** Of its cells: those that a hand has set, and those that are marked, one sign each. */
  cut: string;
  marks: string;
  mask: string;
  /** The colour of each cell, a digit each; "" for none. */
  hues: string;
  /** The places of the one that is asked for, that is typed into, that Tab reaches; -1 is none. */
  asked: number;
  typing: number;
  text: string;
  stop: number;
}

/** A row of cells, which is worked out again only when a number or a mark of it is another. */
class Row extends Component<RowProps> {
  override shouldComponentUpdate(next: RowProps) {
    const now = this.props;
    const names = Object.keys(next) as (keyof RowProps)[];
    const plain = (each: unknown) => typeof each !== "object" && each !== undefined;
    if (names.some((name) => plain(now[name]) && now[name] !== next[name])) return true;
    const same = (one: Touched | undefined, other: Touched | undefined) =>
      one === other ||
      next.columns.every((_, j) => Object.is(one?.at(next.row, j), other?.at(next.row, j)));
    return !same(now.stage, next.stage) || !same(now.old, next.old);
  }

  override render(props: RowProps) {
    const { stage, old, row, label, columns, editable, sparse, small, top, mask } = props;
    const say = props.whole ? (value: number) => `${value}`.replace("-", "−") : cellNumber;
    const pairs = stage.name === "mask";
    return (
      <tr>
        <th scope="row" title={label}>
          <bdi>{label}</bdi>
        </th>
        {columns.map((column, j) => {
          const value = stage.at(row, j);
          const waits = j === props.asked;
          const text = waits ? "?" : pairs ? (value ? "●" : "·") : say(value);
          const before = old === undefined ? value : old.at(row, j);
          const changed = !Object.is(before, value) && !waits;
          const beside = changed && !pairs && !sparse ? say(before) : "";
          const hidden = !pairs && mask[j] === "0";
          const kind = pairs && editable ? "pair" : editable && !waits ? "number" : "still";
          const what = pairs ? `${label} sees ${column}` : `${stage.name} ${label}, ${column}`;
          const classes = [
            changed && "changed",
            hidden && "hidden",
            props.cut[j] === "1" && "cut",
            waits && "asked",
            props.marks[j] === "1" && "marked",
            props.hues && `hue${props.hues[j]}`,
            value < 0 && Number.isFinite(value) && "below",
          ];
          return (
            <Cell
              key={j}
              at={`${stage.name}.${row}.${j}`}
              label={hidden ? `${what}, hidden` : what}
              kind={kind}
              text={text}
              bare={small && kind !== "pair" && !waits}
              old={beside === text ? "" : beside}
              value={value}
              share={waits || !Number.isFinite(value) ? 0 : value / top}
              classes={classes.filter(Boolean).join(" ")}
              stop={j === props.stop}
              typing={j === props.typing ? props.text : null}
            />
          );
        })}
      </tr>
    );
  }
}

export interface PanelProps {
  stage: Touched;
  old: Touched | undefined;
  rows: string[];
  columns: string[];
  editable: boolean;
  /** Numbers that a hand has set. */
  cut: ReadonlyMap<string, number>;
  /** Rows of 0 and 1, of a stage over query and key. */
  mask: string[] | null;
  /** The place that waits for a guess. */
  asked: string | null;
  typing: { at: string; text: string } | null;
  stop: string;
  /** The colour of a cell, where that is no matter of its number. */
  hue: ((row: number, column: number) => number) | null;
  marked: (row: number, column: number) => boolean;
}

export function Panel(props: PanelProps) {
  const { stage, rows, columns, editable, cut, mask, asked, typing, stop, hue, marked } = props;
  const small = stage.columns > MOST;
  const low = stage.rows > MOST;
  // Of another shape, as with another number of heads, no number stood here before.
  const same = props.old?.rows === stage.rows && props.old.columns === stage.columns;
  // Weights in one language of colour, those that dropout leaves too.
  const top = stage.name.endsWith("weights") ? 1 : stage.largest || 1;
  // Of numbers that only move, the whole ones stand as such.
  const whole =
    hue !== null &&
    rows.every((_, i) => columns.every((_, j) => Number.isSafeInteger(stage.at(i, j))));
  const columnIn = (at: string | undefined | null, row: number) => {
    const start = `${stage.name}.${row}.`;
    return at?.startsWith(start) ? Number(at.slice(start.length)) : -1;
  };
  const signs = (is: (column: number) => boolean) =>
    columns.map((_, j) => (is(j) ? "1" : "0")).join("");
  const own = [...cut.keys()].filter((at) => at.startsWith(`${stage.name}.`));
  return (
    <section class={`panel ${small ? "small" : low ? "low" : ""}`} data-stage={stage.name}>
      <p class="name">
        {stage.name} <span>{stage.formula}</span>
      </p>
      <div class="scroll">
        <table aria-label={stage.name}>
          <thead>
            <tr>
              <td />
              {columns.map((column, j) => (
                <th key={j} scope="col" title={column}>
                  {small ? j : column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((label, i) => (
              <Row
                key={i}
                stage={stage}
                old={same ? props.old : undefined}
                row={i}
                label={label}
                columns={columns}
                editable={editable}
                sparse={small || low}
                small={small}
                top={top}
                cut={own.length ? signs((j) => cut.has(`${stage.name}.${i}.${j}`)) : ""}
                marks={signs((j) => marked(i, j))}
                mask={mask?.[i] ?? ""}
                whole={whole}
                hues={hue ? columns.map((_, j) => hue(i, j)).join("") : ""}
                asked={columnIn(asked, i)}
                typing={columnIn(typing?.at, i)}
                text={columnIn(typing?.at, i) < 0 ? "" : typing!.text}
                stop={columnIn(stop, i)}
              />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
