// A map of queries × keys on a canvas: drawn from tiles, which are asked for as they come into
// view. Panned by dragging, zoomed by the wheel with Ctrl, panned and zoomed by two fingers, and all of
// it by keys. The wheel alone, and one finger, scroll the page.

import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { sizeOfCell, type Tile } from "../source";
import { hiddenPixel, noNumberPixel, ramp, signedPixel } from "./colour";
import { type Look, type Theme, useLook } from "./look";
import { placeOf, type Scale } from "./scale";
import { type ReadonlySignal, type Signal, useSignal } from "./signals";

export interface Point {
  query: number | null;
  key: number | null;
  /** Both are one token of a text that attends to itself: all of its links are meant, and not the one
   * to itself. */
  token?: boolean;
}

/** Places that a search has found. */
export interface Found {
  queries: number[];
  keys: number[];
}

/** From which query and key on the map shows how many of them. */
export interface Viewport {
  row: number;
  rows: number;
  column: number;
  columns: number;
}

export interface MapProps {
  rows: number;
  columns: number;
  name: string;
  rowLabel: (query: number) => string;
  columnLabel: (key: number) => string;
  tile: (
    rows: [number, number],
    columns: [number, number],
    cells: [number, number],
    abort: AbortSignal,
  ) => Promise<Tile | null>;
  viewport: Signal<Viewport>;
  hover: Signal<Point>;
  pinned: ReadonlySignal<Point>;
  /** Marks beside the map, such as what a search has found. */
  marks: Found;
  onPin: (point: Point) => void;
  /** What was drawn last. */
  drawn: Signal<Tile | null>;
  /** The value at which the colours end. */
  top: ReadonlySignal<number>;
  /** Changes when tiles have to be asked for anew. */
  version: unknown;
  /** What is under the pointer, in words, where nothing else on the page says it. */
  words?: (point: Point) => string;
}

export const LEAST = 4;

export function whole(rows: number, columns: number): Viewport {
  return { row: 0, rows: Math.max(1, rows), column: 0, columns: Math.max(1, columns) };
}

/** A viewport magnified around a place, or moved, and kept inside of the map. */
export function moved(
  view: Viewport,
  rows: number,
  columns: number,
  { zoom = 1, row = 0.5, column = 0.5, down = 0, right = 0 },
): Viewport {
  const least = Math.min(LEAST / view.rows, LEAST / view.columns, 1);
  const factor = Math.max(1 / zoom, least);
  const tall = Math.min(rows, view.rows * factor);
  const wide = Math.min(columns, view.columns * factor);
  const clamp = (at: number, most: number) => Math.max(0, Math.min(most, at));
  return {
    row: clamp(view.row + (view.rows - tall) * row + down, rows - tall),
    rows: tall,
    column: clamp(view.column + (view.columns - wide) * column + right, columns - wide),
    columns: wide,
  };
}

const GUTTER = 62;
/** Pixels of a row or column whose token is named. */
const ROOM_FOR_TEXT = 11;

export function HeatMap(props: MapProps) {
  const { rows, columns, viewport, hover, pinned, drawn, marks } = props;
  const look = useLook();
  const { theme, scale } = look;
  const canvas = useRef<HTMLCanvasElement>(null);
  const frame = useRef<HTMLDivElement>(null);
  const width = useSignal(0);
  const cursor = useRef<Point>({ query: null, key: null });
  const latest = useRef(props);
  latest.current = props;

  // Square cells where that leaves room for both sides, and for labels.
  const room = Math.max(60, width.value - GUTTER);
  const square = Math.min(room / Math.max(1, columns), room / Math.max(1, rows));
  const [wide, tall] = [columns, rows].map((cells) =>
    Math.max(Math.min(room, Math.max(120, cells * ROOM_FOR_TEXT)), Math.round(square * cells)),
  ) as [number, number];

  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => (width.value = entry!.contentRect.width));
    watch.observe(frame.current!);
    return () => watch.disconnect();
  }, []);

  const state = useMemo(
    () => ({
      asking: false,
      wanted: false,
      abort: new AbortController(),
      picture: null as Picture | null,
      painted: "",
    }),
    [],
  );

  const paint = () => {
    const place = canvas.current;
    const view = viewport.peek();
    if (!place || !state.picture) return;
    const context = place.getContext("2d")!;
    const { tile, image } = state.picture;
    const fingerprint = `${theme.peek()} ${scale.peek()} ${props.top.peek()}`;
    if (state.picture.colours !== fingerprint) {
      colour(state.picture, props.top.peek(), look);
      state.picture.colours = fingerprint;
    }
    const down = place.height / view.rows;
    const right = place.width / view.columns;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = theme.peek() === "dark" ? "#1a1d21" : "#ffffff";
    context.fillRect(0, 0, place.width, place.height);
    context.imageSmoothingEnabled = false;
    context.drawImage(
      image,
      (tile.columns[0] - view.column) * right,
      (tile.rows[0] - view.row) * down,
      (tile.columns[1] - tile.columns[0]) * right,
      (tile.rows[1] - tile.rows[0]) * down,
    );
    const ratio = place.width / place.clientWidth || 1;
    const ink = theme.peek() === "dark" ? "#f5a26b" : "#b3430b";
    const outline = (point: Point, strength: number) => {
      context.strokeStyle = ink;
      context.globalAlpha = strength;
      context.lineWidth = ratio;
      if (point.query !== null) {
        const top = (point.query - view.row) * down;
        context.strokeRect(-2, top, place.width + 4, Math.max(down, ratio));
      }
      if (point.key !== null) {
        const left = (point.key - view.column) * right;
        context.strokeRect(left, -2, Math.max(right, ratio), place.height + 4);
      }
      context.globalAlpha = 1;
    };
    outline(pinned.peek(), 1);
    outline(hover.peek(), 0.6);
  };

  const ask = async () => {
    // One question at a time; what was wanted meanwhile is asked as the next one.
    if (state.asking) {
      state.wanted = true;
      return;
    }
    state.asking = true;
    do {
      state.wanted = false;
      const place = canvas.current;
      const view = viewport.peek();
      if (!place?.width) break;
      const { tile, version } = latest.current;
      const found = await tile(
        [view.row, view.row + view.rows],
        [view.column, view.column + view.columns],
        [place.height, place.width],
        state.abort.signal,
      ).catch(() => null);
      if (version !== latest.current.version) {
        state.wanted = true;
        continue;
      }
      state.picture = found && {
        tile: found,
        image: document.createElement("canvas"),
        colours: "",
      };
      drawn.value = found;
      paint();
    } while (state.wanted);
    state.asking = false;
  };

  // biome-ignore lint/correctness/useExhaustiveDependencies: signals are subscribed to, and a version asks anew.
  useEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    const place = canvas.current!;
    place.width = Math.round(wide * ratio);
    place.height = Math.round(tall * ratio);
    void ask();
    let waiting = 0;
    const soon = () => {
      if (!waiting) {
        waiting = requestAnimationFrame(() => {
          waiting = 0;
          paint();
        });
      }
    };
    const stops = [
      viewport.subscribe(() => {
        void ask();
        soon();
      }),
      ...[hover, pinned, theme, scale, props.top].map((each) => each.subscribe(soon)),
    ];
    return () => {
      // What was asked for before is of no use any more.
      state.abort.abort();
      state.abort = new AbortController();
      cancelAnimationFrame(waiting);
      for (const stop of stops) stop();
    };
  }, [wide, tall, props.version]);

  const at = (event: { clientX: number; clientY: number }) => {
    const box = canvas.current!.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  };
  const pointAt = ({ x, y }: { x: number; y: number }): Point => {
    const view = viewport.peek();
    const inside = (value: number, most: number) =>
      Math.max(0, Math.min(most - 1, Math.floor(value)));
    return {
      query: inside(view.row + y * view.rows, rows),
      key: inside(view.column + x * view.columns, columns),
    };
  };

  const fingers = useRef(new Map<number, { x: number; y: number }>());
  const dragged = useRef(0);
  const onPointerDown = (event: PointerEvent) => {
    canvas.current!.setPointerCapture(event.pointerId);
    fingers.current.set(event.pointerId, at(event));
    dragged.current = 0;
  };
  const onPointerMove = (event: PointerEvent) => {
    const known = fingers.current;
    const here = at(event);
    const before = known.get(event.pointerId);
    const view = viewport.peek();
    if (before && (event.buttons || event.pointerType !== "mouse")) {
      const others = [...known].filter(([id]) => id !== event.pointerId);
      known.set(event.pointerId, here);
      dragged.current += Math.hypot(here.x - before.x, here.y - before.y);
      if (others.length) {
        const other = others[0]![1];
        const apart = Math.hypot(here.x - other.x, here.y - other.y);
        const was = Math.hypot(before.x - other.x, before.y - other.y);
        viewport.value = moved(view, rows, columns, {
          zoom: apart / (was || 1),
          row: here.y,
          column: here.x,
          // What lies between two fingers goes half as far as the one that moves.
          down: ((before.y - here.y) / 2) * view.rows,
          right: ((before.x - here.x) / 2) * view.columns,
        });
      } else if (event.pointerType === "mouse" || event.pointerType === "pen") {
        viewport.value = moved(view, rows, columns, {
          down: (before.y - here.y) * view.rows,
          right: (before.x - here.x) * view.columns,
        });
      }
    }
    hover.value = pointAt(here);
  };
  const onPointerUp = (event: PointerEvent) => {
    if (fingers.current.delete(event.pointerId) && dragged.current < 0.015) {
      cursor.current = pointAt(at(event));
      props.onPin(cursor.current);
    }
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: `at` reads a ref, and the viewport is one signal.
  useEffect(() => {
    const place = canvas.current!;
    const onWheel = (event: WheelEvent) => {
      // A pinch on a touchpad comes as a wheel with Ctrl.
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const { x, y } = at(event);
      const zoom = Math.exp(-event.deltaY * (Math.abs(event.deltaY) < 50 ? 0.01 : 0.0022));
      viewport.value = moved(viewport.peek(), rows, columns, { zoom, row: y, column: x });
    };
    const onTouch = (event: TouchEvent) => {
      if (event.touches.length > 1) event.preventDefault();
    };
    // Not by Preact, which adds listeners that cannot prevent the page from scrolling.
    place.addEventListener("wheel", onWheel, { passive: false });
    place.addEventListener("touchmove", onTouch, { passive: false });
    return () => {
      place.removeEventListener("wheel", onWheel);
      place.removeEventListener("touchmove", onTouch);
    };
  }, [rows, columns]);

  const onKeyDown = (event: KeyboardEvent) => {
    const view = viewport.peek();
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const step = steps[event.key];
    if (step && event.shiftKey) {
      viewport.value = moved(view, rows, columns, {
        down: (step[0] * view.rows) / 8,
        right: (step[1] * view.columns) / 8,
      });
    } else if (step) {
      const tile = drawn.peek();
      const size = tile ? sizeOfCell(tile) : [1, 1];
      const [high, broad] = size.map((each) => Math.max(1, Math.round(each))) as [number, number];
      const from = cursor.current;
      const start = { query: Math.floor(view.row), key: Math.floor(view.column) };
      const clamp = (value: number, most: number) => Math.max(0, Math.min(most - 1, value));
      const next =
        from.query === null || from.key === null
          ? start
          : {
              query: clamp(from.query + step[0] * high, rows),
              key: clamp(from.key + step[1] * broad, columns),
            };
      cursor.current = next;
      hover.value = next;
      viewport.value = including(view, next, rows, columns);
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const { query, key } = cursor.current.query === null ? pinned.peek() : cursor.current;
      viewport.value = moved(view, rows, columns, {
        zoom: event.key === "-" ? 1 / 1.5 : 1.5,
        row: query === null ? 0.5 : share(query - view.row, view.rows),
        column: key === null ? 0.5 : share(key - view.column, view.columns),
      });
    } else if (event.key === "0") {
      viewport.value = whole(rows, columns);
    } else if (event.key === "Enter" || event.key === " ") {
      props.onPin(cursor.current);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  return (
    <div class="ch-map" ref={frame}>
      <div
        class="ch-map-inner"
        style={{ width: `${wide + GUTTER}px`, height: `${tall + GUTTER}px` }}
      >
        <Axes
          width={wide}
          height={tall}
          view={viewport.value}
          rowLabel={props.rowLabel}
          columnLabel={props.columnLabel}
          rows={rows}
          columns={columns}
          marks={marks}
        />
        <span class="ch-axis-title" aria-hidden="true">
          key →<br />
          query ↓
        </span>
        <canvas
          ref={canvas}
          class="ch-map-canvas"
          style={{
            width: `${wide}px`,
            height: `${tall}px`,
            left: `${GUTTER}px`,
            top: `${GUTTER}px`,
          }}
          tabIndex={0}
          role="application"
          aria-roledescription="map"
          aria-label={`${props.name}. Arrow keys move from cell to cell, Enter pins, plus and minus zoom, 0 shows all.`}
          onPointerDown={onPointerDown}
          onPointerMove={onPointerMove}
          onPointerUp={onPointerUp}
          onPointerCancel={(event) => {
            fingers.current.delete(event.pointerId);
            hover.value = { query: null, key: null };
          }}
          onPointerLeave={() => (hover.value = { query: null, key: null })}
          onBlur={() => (hover.value = { query: null, key: null })}
          onKeyDown={onKeyDown}
        />
      </div>
      {props.words && <Reading hover={hover} pinned={pinned} words={props.words} />}
    </div>
  );
}

function Reading({ hover, pinned, words }: Pick<Required<MapProps>, "hover" | "pinned" | "words">) {
  const point = hover.value.query !== null || hover.value.key !== null ? hover.value : pinned.value;
  return (
    <p class="ch-reading" role="status">
      {words(point)}
    </p>
  );
}

function share(part: number, of: number) {
  return Math.max(0, Math.min(1, part / of));
}

/** The viewport, moved as little as is needed to show a point. */
export function including(view: Viewport, point: Point, rows: number, columns: number): Viewport {
  const down = point.query === null ? 0 : outside(point.query, view.row, view.rows);
  const right = point.key === null ? 0 : outside(point.key, view.column, view.columns);
  return down || right ? moved(view, rows, columns, { down, right }) : view;
}

function outside(at: number, first: number, count: number): number {
  if (at < first) return at - first;
  return at + 1 > first + count ? at + 1 - first - count : 0;
}

interface Picture {
  tile: Tile;
  image: HTMLCanvasElement;
  colours: string;
}

function colour({ tile, image }: Picture, top: number, look: Look) {
  paintCells(image, tile.cells, (pixels) => paintTile(pixels, tile, top, look));
}

/** Give a canvas a pixel for each cell. */
export function paintCells(
  canvas: HTMLCanvasElement,
  [rows, columns]: readonly [number, number],
  paint: (pixels: Uint32Array) => void,
) {
  [canvas.height, canvas.width] = [Math.max(1, rows), Math.max(1, columns)];
  const context = canvas.getContext("2d")!;
  const pixels = context.createImageData(canvas.width, canvas.height);
  paint(new Uint32Array(pixels.data.buffer));
  context.putImageData(pixels, 0, 0);
}

/** The colours of a tile, of differences too. */
export function paintTile(
  pixels: Uint32Array,
  { values, signed }: Tile,
  top: number,
  { theme, scale }: Look,
) {
  const [dark, kind] = [theme.peek(), scale.peek()];
  if (!signed) return paintValues(pixels, values, top, dark, kind);
  const hidden = hiddenPixel(dark);
  for (let at = 0; at < values.length; at++) {
    const value = values[at]!;
    const share = Math.sign(value) * placeOf(Math.abs(value), top, kind);
    pixels[at] = Number.isFinite(value) ? signedPixel(share, dark) : hidden;
  }
}

export function paintValues(
  pixels: Uint32Array,
  values: ArrayLike<number>,
  top: number,
  theme: Theme,
  kind: Scale,
) {
  const [colours, hidden, none] = [ramp(theme), hiddenPixel(theme), noNumberPixel(theme)];
  for (let at = 0; at < values.length; at++) {
    const value = values[at]!;
    if (Number.isNaN(value)) pixels[at] = none;
    else pixels[at] = value < 0 ? hidden : colours[Math.round(255 * placeOf(value, top, kind))]!;
  }
}

interface AxesProps {
  width: number;
  height: number;
  rows: number;
  columns: number;
  view: Viewport;
  rowLabel: (query: number) => string;
  columnLabel: (key: number) => string;
  marks: Found;
}

/** Tokens beside the map where there is room for them, else their numbers. */
function Axes(props: AxesProps) {
  const { width, height, rows, columns, view, rowLabel, columnLabel, marks } = props;
  const down = height / view.rows;
  const right = width / view.columns;
  return (
    <svg class="ch-axes" width={width + GUTTER} height={height + GUTTER} aria-hidden="true">
      {places(view.row, view.rows, rows, down).map((row) => (
        <text
          key={`r${row}`}
          x={GUTTER - 7}
          y={GUTTER + (row - view.row + 0.5) * down}
          text-anchor="end"
          dominant-baseline="central"
        >
          {down >= ROOM_FOR_TEXT ? rowLabel(row) : row}
        </text>
      ))}
      {places(view.column, view.columns, columns, right).map((column) => (
        <text
          key={`c${column}`}
          text-anchor="start"
          dominant-baseline="central"
          transform={`translate(${GUTTER + (column - view.column + 0.5) * right} ${GUTTER - 7}) rotate(-90)`}
        >
          {right >= ROOM_FOR_TEXT ? columnLabel(column) : String(column)}
        </text>
      ))}
      {seen(marks.queries, view.row, view.rows).map((row) => (
        <rect
          key={`m${row}`}
          class="ch-mark"
          x={GUTTER - 4}
          y={GUTTER + (row - view.row) * down}
          width="3"
          height={Math.max(2, down)}
        />
      ))}
      {seen(marks.keys, view.column, view.columns).map((column) => (
        <rect
          key={`n${column}`}
          class="ch-mark"
          x={GUTTER + (column - view.column) * right}
          y={GUTTER - 4}
          width={Math.max(2, right)}
          height="3"
        />
      ))}
    </svg>
  );
}

function seen(marks: number[], first: number, count: number): number[] {
  return marks.filter((at) => at >= first && at < first + count).slice(0, 500);
}

/** Which tokens get a label: every one, or at round numbers. */
export function places(first: number, count: number, length: number, size: number): number[] {
  let step = 1;
  while (step * size < (size >= ROOM_FOR_TEXT ? 1 : 34)) {
    const lead = Number(String(step)[0]);
    step = lead === 2 ? (step / 2) * 5 : step * 2;
  }
  const found: number[] = [];
  const from = Math.ceil((first - 0.25) / step) * step;
  for (let at = Math.max(0, from); at < Math.min(length, first + count - 0.25); at += step)
    found.push(at);
  return found;
}
