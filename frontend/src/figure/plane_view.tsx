// Vectors of width 2 as arrows that are dragged: scores as projections onto a query, and the context in the hull
// of the values.
import { Component } from "preact";
import type { Touched } from "./core";
import type { FigureData } from "./model";
import { type Box, beside, foot, hull, type Point, reach, rounded, turned } from "./plane";
import { number } from "./stage";

/** Pixels of an axis on one side of 0, where both are there, and where one is. */
const HALF = 130;
const WHOLE = 200;
const ROOM = 24;

interface Props {
  data: FigureData;
  stages: Map<string, Touched>;
  /** The query in focus. */
  row: number;
  /** Puts a row of a stage elsewhere; `going` while a drag is under way. */
  move: (stage: string, row: number, to: Point, going: boolean) => void;
}

export function Plane({ data, stages, row, move }: Props) {
  const of = (name: string, at: number): Point => {
    const stage = stages.get(name)!;
    return [stage.at(at, 0), stage.at(at, 1)];
  };
  const keys = data.source_tokens.map((_, at) => of("key", at));
  const query = of("query", row);
  const weights = stages.get("weights")!;
  const shares = keys.map((_, at) => weights.at(row, at));
  // What the figure leaves out may not be known yet to whoever reads it.
  const shown = (...names: string[]) => names.some((name) => data.show.includes(name));
  const flat = shown("value", "context") && stages.get("value")!.columns === 2;
  const values = flat ? keys.map((_, at) => of("value", at)) : null;
  const named = (points: Point[]) =>
    points.map((point, at) => ({ point, word: data.source_tokens[at]! }));
  return (
    <section class="panel plane" data-stage="plane">
      <p class="name">
        plane <span>scores as projections onto the query</span>
      </p>
      <div class="planes">
        <Axes
          what="query and keys"
          words={[{ point: query, word: `query ${data.tokens[row]}` }, ...named(keys)]}
        >
          {(draw) => (
            <>
              <line class="along" {...draw.along(query)} />
              {keys.map((key, at) => (
                <line key={at} class="drop" {...draw.line(key, foot(key, query))} />
              ))}
              {keys.map((key, at) => (
                <Arrow
                  key={at}
                  {...{ draw, move, row: at, point: key, share: shares[at]! }}
                  stage="key"
                  word={data.source_tokens[at]!}
                  editable={data.edit.includes("key")}
                />
              ))}
              <Arrow
                {...{ draw, move, row, point: query, share: 1 }}
                stage="query"
                word={data.tokens[row]!}
                editable={data.edit.includes("query")}
              />
            </>
          )}
        </Axes>
        {values && (
          <Axes
            what="values and context"
            words={[{ point: of("context", row), word: "context" }, ...named(values)]}
          >
            {(draw) => (
              <>
                <polygon
                  class="hull"
                  points={hull(values)
                    .map((each) => draw.place(each).join(","))
                    .join(" ")}
                />
                {values.map((value, at) => (
                  <Arrow
                    key={at}
                    {...{ draw, move, row: at, point: value, share: shares[at]! }}
                    stage="value"
                    word={data.source_tokens[at]!}
                    editable={data.edit.includes("value")}
                  />
                ))}
                <Spot draw={draw} point={of("context", row)} />
              </>
            )}
          </Axes>
        )}
      </div>
    </section>
  );
}

type Ends = Record<"x1" | "y1" | "x2" | "y2", number>;

interface Drawing {
  /** Called with true when an arrow is taken, and with false when it is let go. */
  hold: (taken: boolean) => void;
  place: (point: Point) => Point;
  back: (x: number, y: number) => Point;
  line: (from: Point, to: Point) => Ends;
  /** The line through 0 and a point, as far as there is room. */
  along: (point: Point) => Ends;
}

interface AxesProps {
  what: string;
  /** What stands beside the points; the first is placed first. */
  words: { point: Point; word: string }[];
  children: (draw: Drawing) => preact.ComponentChildren;
}

class Axes extends Component<AxesProps, { held?: boolean }> {
  room = { most: 0, left: 0, below: 0 };

  override render({ what, words, children }: AxesProps) {
    const points = words.map((each) => each.point).filter((each) => each.every(Number.isFinite));
    const { most, left, below } = this.room;
    // Under an arrow that is dragged nothing may move.
    if (!this.state.held)
      this.room = {
        most: Math.max(most, reach(points)),
        left: Math.max(left, Number(points.some(([x]) => x < 0))),
        below: Math.max(below, Number(points.some(([, y]) => y < 0))),
      };
    const now = this.room;
    const side = now.left || now.below ? HALF : WHOLE;
    const unit = side / now.most;
    const place = ([x, y]: Point): Point => [rounded(x * unit), rounded(-y * unit)];
    const line = (from: Point, to: Point): Ends => {
      const [[x1, y1], [x2, y2]] = [place(from), place(to)];
      return { x1, y1, x2, y2 };
    };
    const draw: Drawing = {
      hold: (held) => this.setState({ held }),
      place,
      line,
      along: ([x, y]) => {
        const factor = now.most / (Math.hypot(x, y) || 1);
        const back = now.left && now.below ? -factor : 0;
        return line([x * back, y * back], [x * factor, y * factor]);
      },
      back: (x, y) => [rounded(x / unit), rounded(-y / unit)],
    };
    const [x, y] = [-side * now.left, side * now.below];
    const box: Box = [x - ROOM, -side - ROOM, side + ROOM, y + ROOM];
    const [wide, high] = [box[2] - box[0], box[3] - box[1]];
    const there = words
      .filter(({ point }) => points.includes(point))
      .map(({ point, word }) => ({ point: place(point), word }));
    const places = beside(there, box);
    return (
      <svg
        viewBox={`${box[0]} ${box[1]} ${wide} ${high}`}
        width={wide}
        role="group"
        aria-label={what}
      >
        <line class="axis" x1={x} x2={side} />
        <line class="axis" y1={-side} y2={y} />
        <text class="end" x={side} y={13}>
          {now.most}
        </text>
        <text x={4} y={-side - 4}>
          {now.most}
        </text>
        {children(draw)}
        {there.map(({ word }, at) => (
          <text key={at} class="word" x={places[at]![0]} y={places[at]![1]}>
            {word}
          </text>
        ))}
      </svg>
    );
  }
}

interface ArrowProps {
  draw: Drawing;
  move: Props["move"];
  stage: string;
  row: number;
  word: string;
  point: Point;
  share: number;
  editable: boolean;
}

/** An arrow to drag by its tip; by keys it is turned and stretched. */
class Arrow extends Component<ArrowProps> {
  dragged: "no" | "down" | "going" = "no";

  override render({ draw, move, stage, row, word, point, share, editable }: ArrowProps) {
    if (!point.every(Number.isFinite)) return null;
    const [x, y] = draw.place(point);
    const text = `${number(point[0])}, ${number(point[1])}`;
    const degrees = Math.round((Math.atan2(point[1], point[0]) * 180) / Math.PI);
    const onPointerMove = (event: PointerEvent) => {
      if (this.dragged === "no") return;
      const svg = (event.currentTarget as SVGElement).ownerSVGElement!;
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(
        svg.getScreenCTM()!.inverse(),
      );
      move(stage, row, draw.back(at.x, at.y), this.dragged === "going");
      this.dragged = "going";
    };
    const onKeyDown = (event: KeyboardEvent) => {
      const turns = { ArrowLeft: 5, ArrowRight: -5 }[event.key];
      const factor = { ArrowUp: 1.1, ArrowDown: 1 / 1.1 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey || (!turns && !factor)) return;
      move(stage, row, turned(point, turns ?? 0, factor ?? 1), false);
      event.preventDefault();
    };
    const touched = editable && {
      tabindex: 0,
      role: "slider" as const,
      "aria-label": `${stage} ${word}`,
      "aria-valuemin": -180,
      "aria-valuemax": 180,
      "aria-valuenow": degrees,
      "aria-valuetext": text,
      onKeyDown,
      onPointerMove,
      onPointerDown: (event: PointerEvent) => {
        (event.currentTarget as Element).setPointerCapture(event.pointerId);
        this.dragged = "down";
        draw.hold(true);
      },
      onLostPointerCapture: () => {
        this.dragged = "no";
        draw.hold(false);
      },
    };
    return (
      <g
        class={`arrow ${stage} ${editable ? "free" : ""}`}
        style={{ "--share": Math.max(0.25, share || 0) }}
        {...touched}
      >
        <line x2={x} y2={y} />
        <circle cx={x} cy={y} r={4} />
        {editable && <circle class="handle" cx={x} cy={y} r={14} />}
      </g>
    );
  }
}

function Spot({ draw, point }: { draw: Drawing; point: Point }) {
  if (!point.every(Number.isFinite)) return null;
  const [x, y] = draw.place(point);
  return <circle class="spot" cx={x} cy={y} r={6} />;
}
