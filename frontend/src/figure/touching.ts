// What a pointer and the keys do to a cell. Nothing is listened to outside of the figure.
import { stepped, typed, withPair } from "./model";
import { placeOf } from "./stage";

/** What a figure lets hands do. */
export interface Hands {
  root: () => HTMLElement;
  valueAt: (at: string) => number;
  rows: () => string[];
  editable: (at: string) => boolean;
  size: (stage: string) => [number, number];
  /** `going` is true while a drag is under way: what stood before it stays the old number. */
  set: (at: string, to: number | null, going?: boolean) => void;
  paint: (rows: string[], going?: boolean) => void;
  type: (typing: { at: string; text: string } | null) => void;
  /** What the pointer is over. */
  point: (at: string) => void;
  /** What was clicked, or has the focus: its row is in focus in every stage. */
  pin: (at: string) => void;
}

const PIXELS = 6;
const STEP = 0.1;

export function placeUnder(target: EventTarget | null): string | null {
  const cell = target instanceof Element ? target.closest<HTMLElement>("[data-at]") : null;
  return cell?.dataset.at ?? null;
}

/** Of a figure that is looked at: what is under the pointer, clicked, or reached by keys. */
export type Looking = Pick<Hands, "root" | "size" | "point" | "pin">;

/** Put the focus on another cell by a key; returns true if the key is one of these. */
function moving({ root, size }: Looking) {
  return (event: KeyboardEvent, at: string): boolean => {
    const [stage, row, column] = placeOf(at);
    const [rows, columns] = size(stage);
    const here = row * columns + column;
    const to = {
      ArrowUp: row > 0 ? here - columns : here,
      ArrowDown: row < rows - 1 ? here + columns : here,
      ArrowLeft: Math.max(0, here - 1),
      ArrowRight: Math.min(rows * columns - 1, here + 1),
      Home: row * columns,
      End: (row + 1) * columns - 1,
    }[event.key];
    const isVertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (to === undefined || (!isVertical && (event.ctrlKey || event.altKey))) return false;
    focusOn(root(), `${stage}.${Math.floor(to / columns)}.${to % columns}`);
    event.preventDefault();
    return true;
  };
}

function focusOn(root: HTMLElement, at: string) {
  root.querySelector<HTMLElement>(`[data-at="${at}"]`)?.focus();
}

export function looking(hands: Looking) {
  const move = moving(hands);
  const on = (does: (at: string) => void) => (event: Event) => {
    const at = placeUnder(event.target);
    if (at !== null) does(at);
  };
  return {
    onPointerOver: on(hands.point),
    onClick: on((at) => focusOn(hands.root(), at)),
    onFocusIn: on(hands.pin),
    onKeyDown: (event: KeyboardEvent) => on((at) => move(event, at))(event),
  };
}

export function touching(hands: Hands) {
  let drag: { at: string; x: number; value: number; moved: boolean; rows: string[] } | null = null;
  let typing: string | null = null;
  /** The number that was clicked once. */
  let ready: string | null = null;
  const focus = (at: string) => focusOn(hands.root(), at);
  const move = moving(hands);
  const isPair = (at: string) => placeOf(at)[0] === "mask";
  const toggle = (at: string) => {
    const [, row, column] = placeOf(at);
    hands.paint(withPair(hands.rows(), row, column, hands.valueAt(at) === 0));
  };
  const open = (at: string, text = "") => {
    typing = at;
    ready = null;
    hands.type({ at, text });
  };
  const close = (to: number | null, move: boolean) => {
    if (typing === null) return;
    const at = typing;
    typing = null;
    hands.type(null);
    if (to !== null && to !== hands.valueAt(at)) hands.set(at, to);
    if (move) focus(at);
  };

  return {
    onPointerOver: (event: PointerEvent) => {
      const at = placeUnder(event.target);
      if (event.buttons === 0) drag = null; // It ended where nothing tells.
      if (at !== null && !drag?.moved) hands.point(at);
    },
    onPointerDown: (event: PointerEvent) => {
      const at = placeUnder(event.target);
      if (at === null || typing === at || event.button !== 0 || !hands.editable(at)) return;
      const rows = isPair(at) ? hands.rows() : [];
      drag = { at, x: event.clientX, value: hands.valueAt(at), moved: false, rows };
    },
    onPointerMove: (event: PointerEvent) => {
      if (!drag || event.buttons === 0) return;
      const { at, x, value } = drag;
      if (isPair(at)) {
        const root = hands.root().getRootNode() as ShadowRoot;
        const under = placeUnder(root.elementFromPoint(event.clientX, event.clientY));
        if (under === null || !isPair(under) || (under === at && !drag.moved)) return;
        const going = drag.moved;
        drag.moved = true;
        for (const place of [at, under]) {
          const [, row, column] = placeOf(place);
          drag.rows = withPair(drag.rows, row, column, value === 0);
        }
        hands.paint(drag.rows, going);
        return;
      }
      const steps = Math.round((event.clientX - x) / PIXELS);
      if (!drag.moved && steps === 0) return;
      if (!drag.moved)
        (event.target as Element).closest("[data-at]")?.setPointerCapture(event.pointerId);
      hands.set(at, stepped(value, steps * STEP), drag.moved);
      drag.moved = true;
    },
    onPointerCancel: () => {
      drag = null;
    },
    onClick: (event: MouseEvent) => {
      const at = placeUnder(event.target);
      const moved = drag?.moved;
      drag = null;
      if (at === null || moved || typing === at) return;
      hands.pin(at);
      if (!hands.editable(at)) return focus(at);
      if (isPair(at)) return toggle(at);
      // The first click takes the focus, the next one opens the number.
      if (event.detail > 1 || ready === at) return open(at, String(hands.valueAt(at)));
      ready = at;
      focus(at);
    },
    onFocusIn: (event: FocusEvent) => {
      const at = placeUnder(event.target);
      if (at === null) return;
      if (at !== ready) ready = null;
      hands.pin(at);
    },
    onFocusOut: (event: FocusEvent) => {
      if (event.target instanceof HTMLInputElement && typing !== null)
        close(typed(event.target.value), false);
    },
    onKeyDown: (event: KeyboardEvent) => {
      const at = placeUnder(event.target);
      if (at === null || event.metaKey) return;
      if (typing === at) {
        if (event.key === "Enter") close(typed((event.target as HTMLInputElement).value), true);
        else if (event.key === "Escape") close(null, true);
        else return;
        event.preventDefault();
        return;
      }
      const editable = hands.editable(at);
      const spins = editable && !isPair(at) && !event.ctrlKey;
      const vertical = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      const plain = !event.ctrlKey && !event.altKey;
      if (vertical && spins)
        hands.set(at, stepped(hands.valueAt(at), vertical * (event.shiftKey ? 1 : STEP)));
      else if (move(event, at)) return;
      else if (!editable || !plain) return;
      else if (isPair(at)) {
        if (event.key !== "Enter" && event.key !== " ") return;
        toggle(at);
      } else if (event.key === "PageUp") hands.set(at, stepped(hands.valueAt(at), 1));
      else if (event.key === "PageDown") hands.set(at, stepped(hands.valueAt(at), -1));
      else if (event.key === "Delete" || event.key === "Backspace") hands.set(at, null);
      else if (event.key === "Enter" || event.key === "F2") open(at, String(hands.valueAt(at)));
      else if (/^[-−.,\d]$/.test(event.key)) open(at, event.key);
      else return;
      event.preventDefault();
    },
  };
}
