// Every head as a small map: layers down, heads across, or in the order of a number.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { css } from "../../shared/colour";
import { paintValues } from "../../shared/map";
import { number, percent, placeOf } from "../../shared/scale";
import { theme } from "../../shared/theme";
import type { Source } from "../../source";
import type { Answer } from "./ask";
import { type HeadsData, type Row, table } from "./data";

export interface Chosen {
  layer: number;
  head: number;
}

export const ORDERS = ["model", "link", "role", "entropy", "distance"] as const;
export type Order = (typeof ORDERS)[number];

interface Listed extends Chosen {
  row: Row;
}

interface Line {
  name: string;
  title: string;
  line: Listed[];
}

/** Heads in a line: as many as there is room for, and in this range. */
const [LEAST_COLUMNS, MOST_COLUMNS] = [12, 24];
const [LEAST_WIDTH, LINE_NAME] = [24, 34];

interface OverviewProps {
  data: HeadsData;
  source: Source;
  chosen: Signal<Chosen>;
  /** Another chosen head, in a comparison. */
  other: Chosen | null;
  order: Signal<Order>;
  /** Heads of this role only; "" for all. */
  only: Signal<string>;
  /** What each head answers to what is pinned; null while nothing is. */
  answers: Answer[] | null;
}

export function Overview({ data, source, chosen, other, order, only, answers }: OverviewProps) {
  const weights = useMemo(
    () =>
      answers && new Map(answers.map((each) => [`${each.layer}/${each.head}`, each.link.weight])),
    [answers],
  );
  const weightOf = ({ layer, head }: Chosen) => weights?.get(`${layer}/${head}`) ?? -1;
  const strongest = answers?.[0]?.link.weight ?? 0;
  const grid = useRef<HTMLDivElement>(null);
  const runs = data.runs.length > 1;
  const every = data.layers.flatMap((layer, place) =>
    layer.rows.map((row, head) => ({ layer: place, head, row })),
  );
  const there = data.roles.all.filter((role) => every.some(({ row }) => row.role === role));
  const some = only.value ? every.filter(({ row }) => row.role === only.value) : every;
  const shown =
    order.value === "model"
      ? some
      : order.value === "link"
        ? [...some].sort((a, b) => weightOf(b) - weightOf(a))
        : [...some].sort((a, b) => compare(a.row, b.row, order.value, data.roles));
  const inModel = order.value === "model" && !only.value;
  const heads = Math.max(1, ...data.layers.map((layer) => layer.heads));
  const room = useSignal(MOST_COLUMNS);
  useLayoutEffect(() => {
    const box = grid.current!;
    const measure = () => {
      const fit = Math.floor((box.clientWidth - LINE_NAME) / LEAST_WIDTH);
      room.value = Math.max(LEAST_COLUMNS, Math.min(MOST_COLUMNS, fit));
    };
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  // Layers of many heads take several lines, as equal as can be.
  const most = Math.ceil(heads / Math.ceil(heads / room.value));
  const lines: Line[] = inModel
    ? data.layers.flatMap((_, place) =>
        chunks(
          every.filter((each) => each.layer === place),
          most,
        ).map((line, part) => ({
          name: part ? `+${part * most}` : layerName(data, place),
          title: data.layers[place]!.name,
          line,
        })),
      )
    : chunks(shown, most).map((line) => ({ name: "", title: "", line }));

  // Only the grid is scrolled for the head that is looked at.
  const { layer, head } = chosen.value;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the order moves the head that is looked at.
  useEffect(() => {
    const box = grid.current!;
    const small = box.querySelector(`[data-head="${layer}/${head}"]`);
    if (!small) return;
    const [seen, own] = [box.getBoundingClientRect(), small.getBoundingClientRect()];
    if (own.top < seen.top || own.bottom > seen.bottom) {
      box.scrollTop += own.top - seen.top - (seen.height - own.height) / 2;
    }
    if (own.left < seen.left || own.right > seen.right) {
      box.scrollLeft += own.left - seen.left - (seen.width - own.width) / 2;
    }
  }, [layer, head, order.value, only.value]);

  const go = (down: number, right: number) => {
    const places = lines.flatMap(({ line }, row) =>
      line.map((each, column) => ({ ...each, at: row, column })),
    );
    const now = places.find(
      (each) => each.layer === chosen.value.layer && each.head === chosen.value.head,
    );
    const { line } = lines[Math.max(0, Math.min(lines.length - 1, (now?.at ?? 0) + down))]!;
    const next = line[Math.max(0, Math.min(line.length - 1, (now?.column ?? 0) + right))];
    if (!next) return;
    chosen.value = { layer: next.layer, head: next.head };
    grid.current?.querySelector<HTMLElement>(`[data-head="${next.layer}/${next.head}"]`)?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -Infinity],
      End: [0, Infinity],
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    go(...step);
  };
  const active = shown.some((each) => same(each, chosen.value)) ? chosen.value : shown[0];

  return (
    <section class="ch-overview" aria-label="All heads">
      <div class="ch-controls">
        <label>
          Order
          <select
            aria-label="Order"
            value={order.value}
            onChange={(event) => (order.value = event.currentTarget.value as Order)}
          >
            <option value="model">as in the model</option>
            <option value="link" disabled={answers === null && order.value !== "link"}>
              by what is pinned
            </option>
            <option value="role">by role</option>
            <option value="entropy">by entropy</option>
            <option value="distance">by distance</option>
          </select>
        </label>
        {there.length > 0 && (
          <label>
            Role
            <select
              aria-label="Role"
              value={only.value}
              onChange={(event) => (only.value = event.currentTarget.value)}
            >
              <option value="">all</option>
              {there.map((role) => (
                <option key={role} value={role}>
                  {role}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      <div
        class="ch-grid"
        role="grid"
        aria-label="Heads. Arrow keys choose one."
        ref={grid}
        onKeyDown={onKeyDown}
        style={{ "--columns": String(most) }}
      >
        {inModel && (
          <div class="ch-line ch-line-heads" aria-hidden="true">
            <span class="ch-line-name">layer</span>
            {Array.from({ length: most }, (_, head) => (
              <span key={head}>{head}</span>
            ))}
          </div>
        )}
        {lines.map(({ name, title, line }, row) => (
          <div class="ch-line" role="row" key={row}>
            <span class="ch-line-name" role="rowheader" title={title}>
              {name}
            </span>
            {line.map((each) => (
              <Small
                key={`${each.layer}/${each.head}`}
                data={data}
                source={source}
                layer={each.layer}
                head={each.head}
                row={each.row}
                named={!inModel}
                weight={weights ? weightOf(each) : null}
                most={strongest}
                chosen={same(each, chosen.value)}
                other={other !== null && same(each, other)}
                reachable={active !== undefined && same(each, active)}
                choose={() => (chosen.value = { layer: each.layer, head: each.head })}
              />
            ))}
          </div>
        ))}
      </div>
      <p class="ch-remark">
        {shown.length === every.length
          ? `${every.length} ${every.length === 1 ? "head" : "heads"}`
          : `${shown.length} of ${every.length} heads`}
        {runs ? `, ${data.runs.length} runs` : ""}. Each map up to its own largest value, by the
        square root.
      </p>
    </section>
  );
}

export function same(a: Chosen, b: Chosen): boolean {
  return a.layer === b.layer && a.head === b.head;
}

/** A layer's number within its run. */
export function layerName(data: HeadsData, place: number): string {
  const { run, number } = data.layers[place]!;
  return data.runs.length > 1 ? `${"AB"[run] ?? run}${number}` : String(number);
}

/** A head's number in its layer. */
export function headName(data: HeadsData, { layer, head }: Chosen): number {
  return data.layers[layer]!.head_numbers?.[head] ?? head;
}

/** "Layer 5, head 11". */
export function titleOf(data: HeadsData, chosen: Chosen): string {
  return `Layer ${layerName(data, chosen.layer)}, head ${headName(data, chosen)}`;
}

/** Those that find an earlier token come first among the roles, and heads without a role last. */
function compare(a: Row, b: Row, order: Order, { all, matching }: HeadsData["roles"]): number {
  if (order === "role") {
    const place = ({ role }: Row) =>
      role ? all.indexOf(role) + (matching.includes(role) ? 0 : all.length) : 2 * all.length;
    return place(a) - place(b) || score(b) - score(a);
  }
  return (
    ((order === "entropy" ? a.entropy : a.distance) ?? Infinity) -
    ((order === "entropy" ? b.entropy : b.distance) ?? Infinity)
  );
}

export function score(row: Row): number {
  return row.scores[row.role] ?? 0;
}

function chunks<Each>(all: Each[], size: number): Each[][] {
  const found: Each[][] = [];
  for (let at = 0; at < all.length; at += size) found.push(all.slice(at, at + size));
  return found;
}

interface SmallProps {
  data: HeadsData;
  source: Source;
  layer: number;
  head: number;
  row: Row;
  named: boolean;
  /** What it answers to what is pinned, -1 for nothing; null while nothing is. */
  weight: number | null;
  /** The largest that any head answers. */
  most: number;
  chosen: boolean;
  other: boolean;
  reachable: boolean;
  choose: () => void;
}

function Small({
  data,
  source,
  layer,
  head,
  row,
  named,
  weight,
  most,
  chosen,
  other,
  reachable,
  choose,
}: SmallProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const about = data.layers[layer]!.small;
  const colours = theme.value;
  // biome-ignore lint/correctness/useExhaustiveDependencies: paintValues reads the theme.
  useEffect(() => {
    if (!about) return;
    let gone = false;
    void source.array(`${layer}/small`).then((codes) => {
      const place = canvas.current;
      if (gone || !place) return;
      const [height, width] = about.shape;
      [place.height, place.width] = [height, width];
      const context = place.getContext("2d")!;
      const pixels = context.createImageData(width, height);
      const values = table(about, about.top[head]!);
      const own = codes.subarray(head * height * width, (head + 1) * height * width);
      paintValues(
        new Uint32Array(pixels.data.buffer),
        Float32Array.from(own as Uint8Array, (code) => values[code]!),
        about.top[head]!,
        "root",
      );
      context.putImageData(pixels, 0, 0);
    });
    return () => {
      gone = true;
    };
  }, [source, about, layer, head, colours]);
  const name = titleOf(data, { layer, head });
  const numbers = [
    weight !== null && (weight < 0 ? "not known" : `${percent(weight)} of what is pinned`),
    row.role && `${row.role} ${Math.round(score(row) * 100)} %`,
    row.entropy !== null && `entropy ${number(row.entropy)} nats`,
    row.distance !== null && `distance ${number(row.distance)} tokens`,
  ].filter(Boolean);
  return (
    <div
      class={`ch-small${chosen ? " ch-chosen" : ""}${other ? " ch-other" : ""}`}
      role="gridcell"
      aria-selected={chosen}
      aria-label={`${name}${numbers.length ? `: ${numbers.join(", ")}` : ""}`}
      title={`${name}\n${numbers.join("\n")}`}
      tabIndex={reachable ? 0 : -1}
      data-head={`${layer}/${head}`}
      onClick={choose}
    >
      <canvas ref={canvas} aria-hidden="true" />
      {weight !== null && (
        <i
          aria-hidden="true"
          class="ch-answer"
          style={{ backgroundColor: weight < 0 ? "" : css(placeOf(weight, most, "root"), colours) }}
        />
      )}
      {named && (
        <span aria-hidden="true">
          {layerName(data, layer)}.{headName(data, { layer, head })}
        </span>
      )}
    </div>
  );
}
